"""Archives topics as Parquet files, each message exactly once. As nsq_to_file, but without gaps and repetitions."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError, StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem, full_path, is_url
from aiodq.spark.pipelines.places import ARCHIVED, one_store, refuse_moved, target_path, topic_column
from aiodq.spark.pipelines.session import loss_option, topics_option
from aiodq.spark.pipelines.tally import Tally
from aiodq.spark.stream.stream_hold import keep
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.state.holds import read_hold
from aiodq.storage.state.topic.topic_meta import describe
from aiodq.storage.store_layout import refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["ArchiveSummary", "archive", "check_target"]

_LOG: Final = logging.getLogger("aiodq.spark")

_DATE: Final = "date_from_unix_date(CAST(floor(unix_micros(timestamp) / 86400000000) AS INT))"
"""The date in UTC, whatever the session's zone."""

_POLL: Final = 1
"""Seconds between two checks of a query."""
_TOO_LATE: Final = "Python worker failed to connect back"
"""Spark's error if a query's own process does not answer within ten seconds, as on a busy machine."""
_STARTS: Final = 5
"""How often a query is started that ends with this error."""
_STOPS_FIRST: Final = "spark.sql.streaming.stopActiveRunOnRestart"
"""Spark's setting whether a query ends a running one with the same checkpoint, or is an error."""
_RUNNING: Final = "another query with same id is already active"
"""This error."""
_STARTING: Final = threading.Lock()
"""Held while this setting is another than the user's."""


@dataclass(frozen=True)
class ArchiveSummary:
    """The result of one run.

    Attributes:
        target: the directory of the archive.
        rows: messages archived by this run.
        batches: the number of their batches.
        seconds: the duration of the run.
        lost: messages that were deleted or damaged, and left out with `lossy`. Messages missing at the end of a topic
            are counted by each run until one goes on after them.
    """

    target: str
    rows: int
    batches: int
    seconds: float
    lost: int = 0


def archive(  # noqa: PLR0913 - what there is to say
    spark: SparkSession,
    store: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    once: bool = True,
    every: float = 10.0,
    checkpoint: str | os.PathLike[str] | None = None,
    hold: str | None = None,
    most_records: int | None = None,
    lossy: bool = False,
    progress: Callable[[int], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> ArchiveSummary:
    """Write messages to Parquet files, by topic and by the date they were put (UTC), each exactly once. Blocking.

    A run goes on where the last one with the same checkpoint ended, even one that was killed. What is still to be
    archived is held (`aiodq.storage.state.holds`): retention deletes it only afterwards, and only if as many messages
    were written as the store holds. Read the directory with Spark, which uses `_spark_metadata`; other programs may see
    files of an unfinished batch. `_spark_metadata` has full paths, so the directory must not be moved, unless a
    symbolic link to it stays. The column `topic_uuid` tells a topic from a deleted one of its name, with `lossy`.

    Args:
        spark: the session.
        store: the store's directory.
        target: a directory for the files; created if it does not exist.
        topics: names or patterns; None: all topics.
        once: end once everything is archived that was there at the beginning; otherwise go on until `stop`.
        every: seconds between two batches, if it goes on.
        checkpoint: the directory of the state; None: `_checkpoint` in the target.
        hold: the name of the hold; None: a name made from the target.
        most_records: about how many messages a batch has.
        lossy: leave out damaged or deleted messages instead of failing; also if somebody released the hold.
        progress: called from time to time with the number of messages so far.
        stop: called from time to time; the run ends once it returns True.

    Raises:
        InvalidOptionError: several stores; or the directory, or the checkpoint, is another's, was moved, or is unfit.
        NotAStoreError: the directory, or the checkpoint, lies among a store's own files.
        StorageError: fewer messages were written than the store holds, and the hold still keeps them; or as mapped
            from the system's error.
        StreamingQueryException: Spark's, with the cause in its text; a worker that does not see the store is one.
    """
    began, named = time.monotonic(), topics_option(topics)
    store, (path, state) = one_store("archive", store), check_target(target, checkpoint)
    _refuse_second(spark, path)
    hold = hold or _own_hold(store, path, state)
    reader = spark.readStream.format("aiodq").options(**_options(hold, named, most_records, lossy=lossy))
    rows = reader.schema(ARCHIVED).load(store).withColumn("date", f.expr(_DATE))
    writer = _writer(rows, path, state, every=None if once else every)
    tally = Tally(store, hold, lambda *wanted: _archived(spark, path, store, wanted))
    with closing(_Run(partial(_started, spark, writer, path, state), tally)) as run:
        while not run.wait():
            run.look(progress)
            if stop is not None and stop():
                break
        run.look(progress)
    lost = tally.lost + (tally.missing_at_ends() if lossy else 0)
    return ArchiveSummary(path, run.rows, run.batches, time.monotonic() - began, lost)


def check_target(target: str | os.PathLike[str], checkpoint: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the full paths of the directory and of the state of an archive, which can go on there. Blocking.

    Raises:
        InvalidOptionError: another checkpoint wrote the directory, the checkpoint is of another directory, or the
            directory was moved, or can be none.
        NotAStoreError: it, or the checkpoint, lies among a store's own files.
        MissingExtraError: the checkpoint is in object storage, which takes the extra `objects` to look into.
        StorageError: as mapped from the system's error.
    """
    path = target_path(target)
    state = full_path(os.fspath(checkpoint or os.path.join(path, "_checkpoint")))
    if not is_url(state):
        refuse_inside_store(OsFileSystem(), os.path.realpath(state))
    _refuse_another_checkpoint(path, state)
    return path, state


def _options(hold: str, named: dict[str, str], most_records: int | None, *, lossy: bool) -> dict[str, str]:
    options = {**named, "hold": hold, "holdAdvance": "manual", **loss_option(lossy=lossy)}
    if most_records is not None:
        options["maxRecordsPerTrigger"] = str(most_records)
    return options


def _refuse_another_checkpoint(target: str, checkpoint: str) -> None:
    """Make sure that the checkpoint is the one of the batches in the directory.

    Spark would not write a batch again that is there, and could not read a directory in which one is missing.

    Raises:
        InvalidOptionError: it is not, or the directory was moved.
    """
    refuse_moved(target)
    logs = (target, "_spark_metadata"), (checkpoint, "offsets"), (checkpoint, "commits")
    written, known, finished = (_latest(os.path.join(*log)) for log in logs)
    if written < finished:
        raise InvalidOptionError(
            f"the checkpoint {checkpoint} is another directory's: {target} does not have batch {finished}, which was "
            f"finished with it. Go on in that directory, or name a checkpoint of its own for this one"
        )
    if written > known:
        raise InvalidOptionError(
            f"{target} was written with another checkpoint than {checkpoint}: go on with that one, "
            f"or archive into another directory"
        )


def _name_of(target: str) -> str:
    """Return the name of the query that archives into a directory, by whatever path."""
    return f"archive {os.path.realpath(target)}"


def _refuse_second(spark: SparkSession, target: str) -> None:
    """Make sure that no query of a `SparkSession` archives into a directory.

    Raises:
        InvalidOptionError: one does.
    """
    if _name_of(target) in {query.name for query in spark.streams.active}:
        raise InvalidOptionError(f"a query of the same SparkSession is archiving into {target}: let it end first")


def _writer(rows: DataFrame, target: str, state: str, *, every: float | None) -> DataStreamWriter:
    writer = rows.writeStream.format("parquet").partitionBy("topic", "date").option("checkpointLocation", state)
    # Spark refuses the second of two by one name in a session.
    writer = writer.queryName(_name_of(target))
    return writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=f"{every} seconds")


def _started(spark: SparkSession, writer: DataStreamWriter, target: str, state: str) -> StreamingQuery:
    """Start a query, unless one of the same Spark application runs with the same checkpoint.

    Spark would end that one, which would seem to have archived all there was.

    Raises:
        InvalidOptionError: one does.
    """
    with _STARTING:
        before = spark.conf.get(_STOPS_FIRST) or "true"
        spark.conf.set(_STOPS_FIRST, "false")
        try:
            return writer.start(target)
        except (Py4JJavaError, PySparkException) as error:
            if _RUNNING not in str(error):
                raise
            raise InvalidOptionError(
                f"the checkpoint {state} is in use: a query of this Spark application archives with it. Let that one "
                f"end first; or, into another directory, name a checkpoint of its own"
            ) from error
        finally:
            spark.conf.set(_STOPS_FIRST, before)


def _own_hold(store: str, target: str, checkpoint: str) -> str:
    """Return the name of the hold of a directory. A new archive reuses that of an earlier one, deleted there."""
    fs, hold = OsFileSystem(), f"archive-{uuid5(NAMESPACE_URL, target)}"
    held = read_hold(fs, store, hold) if _latest(os.path.join(checkpoint, "offsets")) < 0 else None
    if held is not None and held.under_way:
        keep(store, hold, replace(held, under_way=False))
    return hold


def _latest(directory: str) -> int:
    """Return the highest batch number in a log of Spark; -1 if there is none.

    Raises:
        MissingExtraError: it is in object storage, and fsspec, or what that needs for it, is not installed.
        StorageError: as mapped from the system's error.
    """
    try:
        names = AnyFileSystem().listdir(directory)
    except FileNotFoundError:
        return -1
    except OSError as cause:
        raise storage_error(cause, directory) from cause
    return max((int(name.partition(".")[0]) for name in names if name.partition(".")[0].isdecimal()), default=-1)


def _archived(spark: SparkSession, target: str, store: str, wanted: tuple[str, int, int]) -> int:
    """Count the messages of a topic between two offsets in an archive, but not those of a deleted one of its name."""
    topic, first, stop = wanted
    rows = spark.read.schema("topic STRING, offset BIGINT, topic_uuid STRING").parquet(target)
    rows = rows.where((topic_column() == topic) & (f.col("offset") >= first) & (f.col("offset") < stop))
    with suppress(StoreNotFoundError):  # deleted: the store holds none of its messages
        uuid = f.lit(str(describe(OsFileSystem(), os.path.join(store, topic))[0].uuid))
        # An archive of an earlier version has no uuids.
        rows = rows.where(f.coalesce("topic_uuid", uuid) == uuid)
    return rows.count()


class _Run:
    """A running query and its progress."""

    def __init__(self, start: Callable[[], StreamingQuery], tally: Tally) -> None:
        self._query, self._start, self._starts = start(), start, 1
        self._tally = tally
        self._seen: dict[int, int] = {}
        self._told: set[tuple[int, str]] = set()

    @property
    def rows(self) -> int:
        return sum(self._seen.values())

    @property
    def batches(self) -> int:
        return sum(1 for rows in self._seen.values() if rows)

    def wait(self) -> bool:
        """Wait a moment, and return whether the query has ended; one that has read nothing yet may be started again.

        Raises:
            StreamingQueryException: Spark's: it has failed.
        """
        try:
            return bool(self._query.awaitTermination(_POLL))
        except StreamingQueryException as error:
            self.look(None)
            if _TOO_LATE not in str(error) or self._seen or self._starts == _STARTS:
                raise
        _LOG.warning("the query's process did not answer within ten seconds; the query is started again")
        self._query.stop()  # for a moment Spark may still count it as running, and refuse its successor
        self._query, self._starts = self._start(), self._starts + 1
        return False

    def look(self, progress: Callable[[int], object] | None) -> None:
        before, self._told = self._told, set()
        for batch in self._query.recentProgress:
            (source,) = batch["sources"]
            # With Spark Connect, only the sources report numbers.
            rows = int(source["numInputRows"])
            self._seen[int(batch["batchId"])] = rows
            end = _topics(source["endOffset"])
            # Reported once: the offsets of a topic that was created again go back.
            told = int(batch["batchId"]), json.dumps(source["endOffset"])
            self._told.add(told)
            if end is not None and told not in before:
                self._tally.batch(_topics(source["startOffset"]), end, rows)
        if progress is not None:
            progress(self.rows)

    def close(self) -> None:
        self._query.stop()


def _topics(offset: str | dict[str, Any] | None) -> dict[str, int] | None:
    """Return the offsets by topic from Spark's description of a source's position."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return None if found is None else dict(found["topics"])
