"""What a process has sent to its owner, or is about to send, and has no answer to."""
