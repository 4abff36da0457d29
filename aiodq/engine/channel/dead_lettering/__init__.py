"""Dead letters: where messages go that a channel has given up, and why it did."""
