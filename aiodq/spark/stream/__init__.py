"""Topics as a Spark stream: its offsets, their marks, its holds in the stores, and its lag."""
