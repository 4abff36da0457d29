"""What is read for channels: from the newest in memory, and ahead from disk."""
