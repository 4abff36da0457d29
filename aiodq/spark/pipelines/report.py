"""One HTML file with pictures of what went through a store, and of what waits in it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from aiodq.spark.pipelines.pictures import Bars, page
from aiodq.spark.pipelines.session import load
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.store_reader import StoreReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from aiodq.storage.offline.summaries import ChannelSummary

__all__ = ["ReportSummary", "report"]

_MOST_TAGS: Final = 20
_MOMENTS: Final = 60
"""About so many bars over time."""

_STEPS: Final = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
"""Seconds that one bar may stand for."""


@dataclass(frozen=True)
class ReportSummary:
    """What one run did: so many messages of so many topics described in a file, in so many seconds."""

    path: str
    topics: int
    rows: int
    seconds: float


def report(
    spark: SparkSession,
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
) -> ReportSummary:
    """Describe a store in one HTML file that needs nothing else. Blocking.

    It shows by topic the rate over time, sizes and tags; by channel how much waits and since when, what was redelivered
    and what was given up.

    Args:
        spark: a session.
        store: the store's directory. It may be open in another process.
        path: the file; written over if it is there.
        topics: names or patterns; all topics where None.

    Raises:
        StoreNotFoundError: there is no such store.
        PySparkException: Spark's, with the cause in its text.
        OSError: the file cannot be written.
    """
    began = time.monotonic()
    rows = load(spark, store, topics, columns="topic,offset,timestamp,tag,body").withColumn("bytes", f.length("body"))
    totals = rows.groupBy("topic").agg(
        f.count(f.lit(1)).alias("rows"),
        f.sum("bytes").alias("bytes"),
        f.min(f.unix_micros("timestamp")).alias("first"),
        f.max(f.unix_micros("timestamp")).alias("last"),
    )
    found = {row["topic"]: row.asDict() for row in totals.orderBy("topic").collect()}
    sections: list[tuple[str, list[str | Bars]]] = []
    for topic, total in found.items():
        of = rows.where(f.col("topic") == topic)
        first, last = (datetime.fromtimestamp(total[name] / 1e6, UTC) for name in ("first", "last"))
        put = f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} (UTC)"
        text = f"{total['rows']:,} messages, {total['bytes']:,} bytes, put from {put}"
        sections.append((topic, [text, _rate(of, first, last), _sizes(of), _tags(of)]))
    channels = _channels(str(os.fspath(store)), found)
    if channels:
        sections.append(("Channels", list(channels)))
    title = f"aiodq: {os.path.abspath(store)}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(title, datetime.now(UTC), sections))
    number = sum(total["rows"] for total in found.values())
    return ReportSummary(os.path.abspath(path), len(found), number, time.monotonic() - began)


def _rate(rows: DataFrame, first: datetime, last: datetime) -> Bars:
    """Return messages a second over time."""
    span = max((last - first).total_seconds(), 1.0)
    many = _STEPS[-1] * (int(span / _STEPS[-1] / _MOMENTS) + 1)
    step = next((step for step in _STEPS if span / step <= _MOMENTS), many)
    moment = (f.floor(f.unix_timestamp("timestamp") / step) * step).alias("moment")
    counts = {row["moment"]: row["count"] for row in rows.groupBy(moment).count().collect()}
    start = int(first.timestamp()) // step * step
    moments = range(start, int(last.timestamp()) + 1, step)
    bars = [(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}", counts.get(at, 0) / step) for at in moments]
    return Bars(f"Messages a second, by {timedelta(seconds=step)}", bars)


def _sizes(rows: DataFrame) -> Bars:
    """Return how many messages have which size, in powers of two."""
    power = f.when(f.col("bytes") == 0, -1).otherwise(f.floor(f.log2("bytes"))).alias("power")
    counts = {row["power"]: row["count"] for row in rows.groupBy(power).count().collect()}
    powers = range(min(counts), max(counts) + 1)
    bars = [("0" if p < 0 else f"{2**p:,} to {2 ** (p + 1) - 1:,}", float(counts.get(p, 0))) for p in powers]
    return Bars("Messages by size in bytes", bars)


def _tags(rows: DataFrame) -> Bars:
    """Return how many messages have which tag, the most frequent first."""
    counts = rows.groupBy("tag").count().orderBy(f.col("count").desc(), "tag").limit(_MOST_TAGS).collect()
    bars = [("without a tag" if row["tag"] is None else row["tag"], float(row["count"])) for row in counts]
    return Bars("Messages by tag", bars, across=True)


def _channels(store: str, topics: dict[str, dict[str, object]]) -> list[Bars]:
    reader = StoreReader(store, OsFileSystem())
    found: list[tuple[str, ChannelSummary]] = []
    for topic in topics:
        found += [(f"{topic} / {name}", channel) for name, channel in reader.topic(topic).stats().channels.items()]
    if not found:
        return []
    now = time.time_ns()
    ages = [(name, 0.0 if c.oldest_ns is None else max(now - c.oldest_ns, 0) / 1e9) for name, c in found]
    return [
        Bars("Not acked, in messages", [(name, float(c.depth)) for name, c in found], across=True),
        Bars("Age of the oldest that is not acked, in seconds", ages, across=True),
        Bars("Came again, in messages", [(name, float(c.returned)) for name, c in found], across=True),
        Bars("Given up (dead letters), in messages", [(name, float(c.dead or 0)) for name, c in found], across=True),
    ]
