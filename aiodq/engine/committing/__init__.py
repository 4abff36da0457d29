"""The commit of transactions: their acks and puts take effect in all of their topics, or in none."""
