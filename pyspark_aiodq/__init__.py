"""Lets Spark find the format `"aiodq"` by itself: it looks for a `DefaultSource` in every module named `pyspark_*`."""

from aiodq.spark.source import AiodqDataSource as DefaultSource

__all__ = ["DefaultSource"]
