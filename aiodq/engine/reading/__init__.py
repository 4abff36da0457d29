"""Reading for channels: from the newest messages in memory, and ahead from disk."""
