"""Transactions as their users begin them, before they are committed."""
