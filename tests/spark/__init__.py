"""Topics as Spark DataFrames: options, splits and tasks without a JVM, and the whole of it in local sessions."""
