"""Messages that were handed out: the leases that they belong to, and which task holds them."""
