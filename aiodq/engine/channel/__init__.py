"""One channel of a topic: delivery, settlement, what is journaled of it."""
