"""What an owner does with a client's requests: puts, transactions, lendings, calls."""
