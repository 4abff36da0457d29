"""A topic's segments as files: their names, their two ends, and what lies between."""
