"""Topics as Spark's DataFrames. Nothing here runs an event loop; executors import `storage` and `format` only.

`pyspark_aiodq` lets Spark find the format `"aiodq"` by itself; `spark.dataSource.register(AiodqDataSource)` does the
same where that package is not on the driver's path. With a pyspark that is too old everything here is a
`MissingExtraError` that says so.
"""

from aiodq.spark.versions import refuse_old

try:
    from pyspark import __version__ as _version
except ModuleNotFoundError:
    _version = ""  # what needs pyspark says itself that it is missing

refuse_old(_version)
