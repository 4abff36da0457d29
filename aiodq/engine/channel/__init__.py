"""One channel of a topic: delivery, settlement, and what is journaled of them."""
