"""What stands between a channel and its consumer: handlers, iteration, and acks of several messages."""
