"""A store, its topics and transactions in a process that does not own it."""
