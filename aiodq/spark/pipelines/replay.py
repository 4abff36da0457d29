"""Puts messages from Parquet files, as `archive` writes them, back into topics."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import Observation
from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError
from aiodq.options import time_ns
from aiodq.spark.objects import full_path
from aiodq.spark.options import write_options
from aiodq.spark.pipelines.places import ARCHIVED, check_archived, in_order, refuse_moved, refuse_store, some
from aiodq.spark.pipelines.session import use_here
from aiodq.spark.writing.committing import was_committed, was_committed_by_another
from aiodq.spark.writing.writers import check_place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ReplaySummary", "check_places", "check_range", "replay"]


@dataclass(frozen=True)
class ReplaySummary:
    """The result of one run.

    Attributes:
        store: the store's directory.
        rows: the number of messages that were added.
        seconds: the duration of the run.
        repeated: whether a run of the same `txn_id` was committed before, so that nothing was added.
    """

    store: str
    rows: int
    seconds: float
    repeated: bool = False


def replay(  # noqa: PLR0913 - what there is to say
    spark: SparkSession,
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    into: str | None = None,
    topics: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    first: int | None = None,
    stop: int | None = None,
    txn_id: str | None = None,
    max_message_bytes: int | None = None,
) -> ReplaySummary:
    """Put archived messages into topics again, in the order of their topics and offsets: all of them or none. Blocking.

    They get new offsets and times. Topics of one name, deleted and created again, come one after the other. The store
    may be open in another process, whose consumers receive them.

    Args:
        spark: the session.
        source: a directory of Parquet files with `topic`, `offset`, `timestamp`, `tag`, `key`, `headers` and `body`.
        store: the store's directory; created if it does not exist.
        into: one topic for all messages; None: each goes into the topic that it came from.
        topics: only messages of these topics.
        tags: only messages with one of these tags.
        since: only messages put at this time or later.
        until: only messages put before this time.
        first: only messages from this offset on.
        stop: only messages before this offset.
        txn_id: a name for this run; repeated under the same name, it adds nothing.
        max_message_bytes: the largest body that topics take which do not exist yet; None: 16 MiB. An archive does not
            know the bounds of the topics that it is of.

    Raises:
        StoreNotFoundError, NotAStoreError: there are no files, or none of a topic; or the store cannot be created.
        InvalidOptionError: a time without a zone; an end before the beginning; a moved archive; an invalid name.
        CorruptionError: Spark's log of the archive's files cannot be read.
        PySparkException: Spark's, with the cause in its text; if there is no such directory, an `AnalysisException`.
    """
    began, path, archived = time.monotonic(), full_path(os.fspath(store)), full_path(os.fspath(source))
    check_range(first, stop, since, until)
    topics, tags = some("topics", topics), some("tags", tags)
    if check_places(archived, path, into, txn_id, max_message_bytes):
        return ReplaySummary(path, 0, time.monotonic() - began, repeated=True)
    # With the types given, Spark does not read names of topics in paths as numbers.
    rows = check_archived(spark.read.schema(ARCHIVED).parquet(archived), archived, topics)
    order = in_order(rows, topics)
    for column, names in (("topic", topics), ("tag", tags)):
        rows = rows.where(f.col(column).isin(names)) if names else rows
    rows = _between(f.unix_micros("timestamp"), _micros(since), _micros(until), rows)
    rows = _between(f.col("offset"), first, stop, rows).orderBy(*order)
    topic, counted, run = f.lit(into) if into is not None else f.col("topic"), Observation(), uuid4().hex
    use_here(spark)
    wanted = rows.select(topic.alias("topic"), "tag", "key", "headers", "body")
    writer = wanted.observe(counted, f.count(f.lit(1)).alias("rows")).write.format("aiodq").mode("append")
    writer.options(txnId=txn_id, txnRun=run, maxMessageBytes=max_message_bytes).save(path)
    repeated = was_committed_by_another(path, txn_id, run)
    return ReplaySummary(path, 0 if repeated else int(counted.get["rows"]), time.monotonic() - began, repeated)


def check_places(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    into: str | None,
    txn_id: str | None,
    max_message_bytes: int | None = None,
) -> bool:
    """Return whether a run was committed; before anything is read, make sure that it has what it reads and writes.

    A directory that is missing Spark tells of.

    Raises:
        InvalidOptionError: it is to read a store, or an archive that was moved; a wrong name; nothing is written there.
        InvalidNameError: no topic can have that name.
        StoreNotFoundError, NotAStoreError: there is no place for the store.
        CorruptionError: Spark's log of the archive's files cannot be read.
    """
    archived, path = full_path(os.fspath(source)), full_path(os.fspath(store))
    refuse_store(archived, "replay reads what archive wrote")
    most = None if max_message_bytes is None else str(max_message_bytes)
    given = {"path": path, "topic": into, "txnId": txn_id, "maxMessageBytes": most}
    writing = write_options({name: value for name, value in given.items() if value is not None}, stream=False)
    check_place(writing.store)
    if txn_id is not None and was_committed(writing, txn_id):
        return True
    refuse_moved(archived)
    return False


def check_range(first: int | None, stop: int | None, since: datetime | None, until: datetime | None) -> None:
    """Make sure that the range does not end before it begins: with its ends exchanged, it would be empty.

    Raises:
        InvalidOptionError: it does; or a time has no zone.
    """
    if first is not None and stop is not None and stop < first:
        raise InvalidOptionError(f"it is to stop before {stop}, and its first offset is {first}")
    if since is not None and until is not None and time_ns(until) < time_ns(since):
        raise InvalidOptionError(f"it is to end before {until}, and begins at {since}")


def _between(column: Column, least: int | None, end: int | None, rows: DataFrame) -> DataFrame:
    if least is not None:
        rows = rows.where(column >= f.lit(least))
    return rows if end is None else rows.where(column < f.lit(end))


def _micros(moment: datetime | None) -> int | None:
    """Return a time with the precision of Spark, microseconds."""
    return None if moment is None else time_ns(moment) // 1000
