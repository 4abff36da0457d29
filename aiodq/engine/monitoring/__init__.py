"""What an engine tells of itself: events, logs, metrics, alarms, health."""
