"""File access: the seam to the operating system, durable replacement, locks, and the one place that maps `OSError`."""
