"""The commit of transactions: what they settle and put, in all of their topics or in none."""
