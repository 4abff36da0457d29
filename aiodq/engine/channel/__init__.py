"""One channel of a topic: delivery, settlement, and the journaling of both."""
