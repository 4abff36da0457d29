"""Transactions: committed in groups, then appended to their topics."""
