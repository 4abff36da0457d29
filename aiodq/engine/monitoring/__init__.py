"""What an engine tells of itself: events, logs, what is measured."""
