"""What a channel does with messages between handing them out and settling them: in time, over restarts, for good."""
