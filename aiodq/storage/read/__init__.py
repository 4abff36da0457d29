"""Reading a log by offset, as its owner or while that runs."""
