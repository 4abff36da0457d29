"""A channel in a process that does not own the store: the messages it holds, and their settlement."""
