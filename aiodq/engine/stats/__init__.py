"""A running store looked at: its figures, its health, its alarms, and what other processes are shown of it."""
