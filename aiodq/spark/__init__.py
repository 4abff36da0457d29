"""Topics as Spark's DataFrames. Nothing here runs an event loop; executors import `storage` and `format` only.

`pyspark_aiodq` lets Spark find the format `"aiodq"` by itself; `spark.dataSource.register(AiodqDataSource)` does the
same where that package is not on the driver's path.
"""
