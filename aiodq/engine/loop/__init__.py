"""The event loop of a store: futures, timers, turns, and the threads and syncs that report to it."""
