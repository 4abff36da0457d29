"""Reading a log by offset, by its owner or while the owner runs."""
