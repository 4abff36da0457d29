"""A store looked at, verified or repaired without an engine."""
