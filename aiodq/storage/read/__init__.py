"""Reading a log by offset, beside its owner or as its owner."""
