"""Writes an HTML file with charts of the messages of a store, and of its backlog."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import floor
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from pyspark.sql import Window
from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError, StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.options import batch_options
from aiodq.spark.packing import plan_tasks
from aiodq.spark.pipelines.census import COLUMNS, SCHEMA, census, coarser, step_for
from aiodq.spark.pipelines.pictures import Bars, page
from aiodq.spark.pipelines.places import one_store
from aiodq.spark.pipelines.session import check_stores, loss_option, topics_option
from aiodq.spark.pipelines.spread import spread
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.state.topic.topic_meta import describe
from aiodq.storage.store_layout import refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from aiodq.spark.options import ReadOptions
    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["ReportSummary", "report"]

_MOST_TAGS: Final = 20


@dataclass(frozen=True)
class ReportSummary:
    """The result of one run: the numbers of messages and topics, the file, and the seconds that it took.

    With `lossy`, `lost` is the most messages that may have been left out: the offsets without a message between the
    first and the last one of each topic. They include messages that a repair or retention has deleted.
    """

    path: str
    topics: int
    rows: int
    seconds: float
    lost: int = 0


def report(
    spark: SparkSession,
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    lossy: bool = False,
) -> ReportSummary:
    """Describe a store in one HTML file that needs nothing else. Blocking.

    It shows the rate over time, sizes and tags by topic; by channel, the backlog and its age, redeliveries, and
    messages that were given up.

    Args:
        spark: the session.
        store: the store's directory. It may be open in another process.
        path: the file; overwritten if it exists.
        topics: names or patterns; None: all topics.
        lossy: leave out messages that are damaged, or deleted meanwhile, instead of failing. With an owner whose
            consumers are fast, some usually are. The file and the result say how many at most.

    Raises:
        StoreNotFoundError: there is no such store or topic, or none that matches.
        PySparkException: Spark's, with the cause in its text.
        InvalidOptionError: several stores were named; or the file is a store's lock.
        NotAStoreError: the file would be among a store's own files.
        OSError: the file has no place: a directory has its name, or its own directory is missing.
        StorageError: it cannot be written; an earlier one stays as it was.
    """
    began, store = time.monotonic(), one_store("report", store)
    check_stores(store, topics)
    check_file(os.fspath(path))
    found, offsets = _topics(spark, store, topics, lossy=lossy)
    counts = {topic: counted.total["count"] for topic, counted in found.items()}
    lost = {topic: len(span) - counts.get(topic, 0) for topic, span in offsets.items()}
    sections: list[tuple[str, list[str | Bars]]] = []
    for topic, (total, moments, sizes, tags) in found.items():
        first, last = (datetime.fromtimestamp(total[name] / 1e6, UTC) for name in ("first", "last"))
        put = f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} (UTC)"
        text = f"{total['count']:,} messages, {total['bytes']:,} bytes, put from {put}"
        text += _left_out(offsets[topic], lost[topic]) if lossy and lost[topic] else ""
        sections.append((topic, [text, _rate(moments, first, last), _sizes(sizes), _tags(tags)]))
    channels = _channels(store, found)
    if channels:
        sections.append(("Channels", list(channels)))
    title = f"aiodq: {os.path.abspath(store)}"
    _write(os.fspath(path), page(title, datetime.now(UTC), sections))
    number = sum(counts.values())
    missed = sum(lost.values()) if lossy else 0
    return ReportSummary(os.path.abspath(path), len(found), number, time.monotonic() - began, missed)


def _left_out(offsets: range, lost: int) -> str:
    """Return a text about messages that were left out; whether an offset ever had a message is not known."""
    return (
        f"; of the offsets {offsets.start} to {offsets.stop - 1}, {lost:,} have no message: what is damaged or gone "
        f"was left out, and a repair or retention may have given up some before, which looks the same"
    )


def _write(path: str, text: str) -> None:
    """Make a text the content of a file, which stays as public as it is: the store's own files are not.

    Raises:
        StorageError: as mapped from the system's error; the old content stands.
    """
    with os_errors(path):
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as pipe:
                pipe.write(text)
            return
        place = os.path.realpath(path)
        temporary = os.path.join(os.path.dirname(place), f"{uuid4().hex}{TEMPORARY}")
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if os.path.exists(place):
                shutil.copymode(place, temporary)
            os.replace(temporary, place)
        except BaseException:
            with suppress(OSError):
                os.remove(temporary)
            raise


def check_file(path: str) -> None:
    """Make sure that the file can be written, before everything is read for it.

    Raises:
        NotAStoreError: it would be among a store's own files, and might replace one.
        InvalidOptionError: it would replace a store's lock, with which another process could own the store, too.
        OSError: it cannot.
    """
    place = os.path.realpath(path)
    refuse_inside_store(OsFileSystem(), place)
    if os.path.basename(place) == LOCK_NAME and os.path.exists(place):
        raise InvalidOptionError(f"{path} is the lock of a store: name another file for the report")
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Topic(NamedTuple):
    """The counts of a topic: all messages, and messages by second, by size as a power of two, and by tag."""

    total: dict[str, int]
    moments: dict[int, int]
    sizes: dict[int, int]
    tags: dict[str | None, int]


def _topics(
    spark: SparkSession, store: str, topics: Sequence[str] | None, *, lossy: bool
) -> tuple[dict[str, _Topic], dict[str, range]]:
    """Count everything in one pass: each task counts what it reads, and Spark adds it up; with the offsets."""
    wanted = {"path": store, "columns": COLUMNS, **topics_option(topics), **loss_option(lossy=lossy)}
    found: dict[str, _Topic] = {}
    options = batch_options(wanted)
    tasks = plan_tasks(AnyFileSystem(), options)
    rows = _counted(spark, tasks, options).toArrow().to_pylist()
    for row in sorted(rows, key=itemgetter("topic", "place")):
        topic = found.setdefault(row["topic"], _Topic({}, {}, {}, {}))
        if row["kind"] == "all":
            topic.total.update({name: row[name] for name in ("count", "bytes", "first", "last")})
        elif row["kind"] == "tag":
            topic.tags[row["text"]] = row["count"]
        else:
            (topic.moments if row["kind"] == "moment" else topic.sizes)[row["number"]] = row["count"]
    offsets: dict[str, range] = {}
    for split in (split for task in tasks for split in task):
        offsets[split.topic] = range(offsets.get(split.topic, range(split.start, 0)).start, split.stop)
    return found, offsets


def _counted(spark: SparkSession, tasks: Sequence[Sequence[Split]], options: ReadOptions) -> DataFrame:
    """Return the sums of all counts: the rows of `census`, each with its `place` among those of its kind."""
    counted = spread(spark, tasks, partial(census, AnyFileSystem(), options=options), SCHEMA)
    if len(tasks) > 1:
        # Partitioned as the places need it, the sums need no exchange of their own. The rows are few: with Spark's
        # usual 200 partitions, each task would write as many files.
        counted = counted.repartition(len(tasks), "topic", "kind")
    sums = [f.sum("count").alias("count"), f.sum("bytes").alias("bytes")]
    ends = [f.min("first").alias("first"), f.max("last").alias("last")]
    summed = counted.groupBy("topic", "kind", "number", "text").agg(*sums, *ends)
    often = f.row_number().over(Window.partitionBy("topic", "kind").orderBy(f.col("count").desc(), "text"))
    return summed.withColumn("place", often).where(f"kind <> 'tag' OR place <= {_MOST_TAGS}")


def _rate(moments: Mapping[int, int], first: datetime, last: datetime) -> Bars:
    """Return the chart of messages per second over time."""
    begin, end = floor(first.timestamp()), floor(last.timestamp())
    step = step_for(begin, end)
    counts, start = coarser(moments, step), begin // step * step
    times = range(start, end + 1, step)
    bars = [(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}", counts[at] / step) for at in times]
    return Bars(f"Messages a second, by {timedelta(seconds=step)}", bars)


def _sizes(counts: Mapping[int, int]) -> Bars:
    """Return the chart of messages by size, in powers of two."""
    powers = range(min(counts), max(counts) + 1)
    bars = [("0" if p < 0 else f"{2**p:,} to {2 ** (p + 1) - 1:,}", float(counts.get(p, 0))) for p in powers]
    return Bars("Messages by size in bytes", bars)


def _tags(counts: Mapping[str | None, int]) -> Bars:
    """Return the chart of messages by tag, the most frequent first."""
    bars = [("without a tag" if tag is None else tag, float(count)) for tag, count in counts.items()]
    return Bars("Messages by tag", bars, across=True)


def _channels(store: str, topics: Iterable[str]) -> list[Bars]:
    fs = AnyFileSystem()
    # Opening a topic means to scan its last segment: only done if it has consumers.
    consumed = [topic for topic in topics if _is_consumed(fs, os.path.join(store, topic))]
    summaries = StoreReader(store, fs).stats(consumed).topics if consumed else {}
    found = [(f"{topic} / {name}", each) for topic in summaries for name, each in summaries[topic].channels.items()]
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


def _is_consumed(fs: FileSystem, directory: str) -> bool:
    """Return whether a topic has channels; False also if it was deleted since it was counted."""
    try:
        return bool(describe(fs, directory)[0].channels)
    except StoreNotFoundError:
        return False
