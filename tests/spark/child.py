"""Carries messages as a stream between stores, or between a store and Parquet, where it may be killed at any moment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiodq.spark.pipelines import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONF = {
    "spark.sql.shuffle.partitions": "2",
    # Its workers are killed again and again: that is to cost repetitions, not the query.
    "spark.task.maxFailures": "1000",
    # Nothing waits for data to be near: all workers of a cluster have their share of the tasks.
    "spark.locality.wait": "0s",
}


def read(spark: SparkSession, way: str, source: str) -> DataFrame:
    """Return a stream in small batches, each of several tasks where it comes from a store."""
    if way == "in":
        return spark.readStream.schema("body BINARY").option("maxFilesPerTrigger", "1").parquet(source)
    options = {"maxRecordsPerTrigger": "60", "minPartitions": "2", "hold": "copy"}
    return spark.readStream.format("aiodq").options(**options).load(source)


def main(way: str, master: str, source: str, target: str, checkpoint: str) -> None:
    """Carry what there is: from store to store ("copy"), from a store to Parquet ("out") or the other way ("in")."""
    spark = start_session(master, CONF)
    writer = read(spark, way, source).writeStream.option("checkpointLocation", checkpoint)
    writer = writer.format("parquet") if way == "out" else writer.format("aiodq").option("topic", "orders")
    print("ready", flush=True)
    query = writer.trigger(availableNow=True).start(target)
    query.awaitTermination()
    error = query.exception()
    if error is not None:
        raise error
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
