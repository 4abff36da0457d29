"""Statistics of a running store: figures, health, alarms, and the figures published to other processes."""
