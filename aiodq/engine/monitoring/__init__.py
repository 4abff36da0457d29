"""Monitoring: events, logs and metrics of an engine."""
