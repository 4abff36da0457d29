"""A topic's log, as its owner writes it: append, roll, sync, recover, delete."""
