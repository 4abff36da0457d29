"""The latest message by key, as a topic of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError
from aiodq.spark.pipelines.session import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactSummary", "compact"]


@dataclass(frozen=True)
class CompactSummary:
    """What one run did.

    Attributes:
        into: the new topic.
        read: messages there were.
        kept: those that are in it.
        seconds: it took.
    """

    into: str
    read: int
    kept: int
    seconds: float


def compact(
    spark: SparkSession,
    store: str | os.PathLike[str],
    topic: str,
    into: str,
    *,
    target: str | os.PathLike[str] | None = None,
    drop_empty: bool = False,
) -> CompactSummary:
    """Put the latest message of each key into another topic, in their order: all of them or none. Blocking.

    Messages without a key are all kept. The topic that is read stays as it is.

    Args:
        spark: a session.
        store: the store's directory.
        topic: the topic to read.
        into: the topic to write.
        target: another store for it; the same where None.
        drop_empty: leave out keys whose latest message has an empty body, as one that says that the key is gone.

    Raises:
        InvalidOptionError: it would be put into the topic that is read.
        PySparkException: Spark's, with the cause in its text.
    """
    began = time.monotonic()
    if into == topic and (target is None or os.path.realpath(target) == os.path.realpath(store)):
        raise InvalidOptionError(f"topic {topic!r} stays as it is: put its latest messages into another one")
    rows = load(spark, store, [topic])
    newest = Window.partitionBy("key").orderBy(f.col("offset").desc())
    latest = rows.withColumn("place", f.row_number().over(newest))
    kept = latest.where(f.col("key").isNull() | (f.col("place") == 1)).drop("place")
    if drop_empty:
        kept = kept.where(f.col("key").isNull() | (f.length("body") > 0))
    written = kept.orderBy("offset").select(f.lit(into).alias("topic"), "tag", "key", "headers", "body").persist()
    try:
        numbers = rows.count(), written.count()
        written.write.format("aiodq").mode("append").save(os.fspath(target if target is not None else store))
    finally:
        written.unpersist()
    return CompactSummary(into, *numbers, time.monotonic() - began)
