"""Topics as a stream of Spark's: offsets, what marks them, what stores keep for it, how far it is behind."""
