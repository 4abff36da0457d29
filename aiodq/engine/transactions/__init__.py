"""Transactions before they are committed: what they consist of, and which task is in which."""
