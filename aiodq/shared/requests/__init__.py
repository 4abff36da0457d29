"""How an owner handles a client's requests: puts, transactions, lendings, calls."""
