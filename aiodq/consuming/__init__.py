"""Between a channel and its consumers: handlers, iteration, and acks of several messages."""
