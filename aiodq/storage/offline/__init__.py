"""A store inspected, verified and repaired without an engine."""
