"""A topic's log for its owner: append, roll, sync, recover, delete."""
