"""Topics to Parquet, once each message: what nsq_to_file is for, without its gaps and repetitions."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError
from aiodq.spark.objects import full_path
from aiodq.spark.pipelines.places import one_store, refuse_moved, target_path, topic_column
from aiodq.spark.pipelines.session import loss_option, topics_option
from aiodq.spark.pipelines.tally import Tally
from aiodq.spark.stream.stream_hold import keep
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ArchiveSummary", "archive", "check_target"]

_DATE: Final = "date_from_unix_date(CAST(floor(unix_micros(timestamp) / 86400000000) AS INT))"
"""The date in UTC, whatever the session's zone."""

_POLL: Final = 1
"""Seconds between two looks at a query."""


@dataclass(frozen=True)
class ArchiveSummary:
    """What one run did.

    Attributes:
        target: the directory.
        rows: messages archived by this run.
        batches: in so many batches.
        seconds: it took.
        lost: messages that were gone or damaged, and left out with `lossy`. What is missing at a topic's end each run
            counts, up to the first one that goes on behind it.
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
    archived is held (`aiodq.storage.state.holds`): retention deletes it only afterwards, and only where the messages
    that were written are as many as the store holds. Read the directory with Spark, which goes by `_spark_metadata`;
    others may see files of a batch that did not come to its end. Its files have their full paths there: the directory
    stays where it is, or a symbolic link to it does.

    Args:
        spark: a session.
        store: the store's directory.
        target: a directory for the files; made if there is none.
        topics: names or patterns; all topics where None.
        once: end when all that was there at the beginning is archived; else go on until `stop`.
        every: seconds between two batches where it goes on.
        checkpoint: where the state is kept; `_checkpoint` in the target where None.
        hold: the hold's name; one that stands for the target where None.
        most_records: about so many messages a batch.
        lossy: leave out what is damaged or gone, instead of failing; also where somebody released the hold.
        progress: called now and then with the number of messages so far.
        stop: asked now and then whether to end.

    Raises:
        InvalidOptionError: several stores; or a directory that another checkpoint wrote, was moved, or can be none.
        StorageError: fewer messages were written than the store holds; it goes on holding them.
        StreamingQueryException: Spark's, with the cause in its text; a worker that does not see the store is one.
    """
    began, named = time.monotonic(), topics_option(topics)
    store, (path, state) = one_store("archive", store), check_target(target, checkpoint)
    hold = hold or _own_hold(store, path, state)
    reader = spark.readStream.format("aiodq").options(**_options(hold, named, most_records, lossy=lossy))
    rows = reader.load(store).withColumn("date", f.expr(_DATE))
    writer = rows.writeStream.format("parquet").partitionBy("topic", "date").option("checkpointLocation", state)
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every} seconds")
    tally = Tally(store, hold, partial(_archived, spark, path))
    with closing(_Run(writer.start(path), tally)) as run:
        while not run.query.awaitTermination(_POLL):
            run.look(progress)
            if stop is not None and stop():
                break
        run.look(progress)
    lost = tally.lost + (tally.missing_at_ends() if lossy else 0)
    return ArchiveSummary(path, run.rows, run.batches, time.monotonic() - began, lost)


def check_target(target: str | os.PathLike[str], checkpoint: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the full paths of the directory and of the state of an archive, which can go on there. Blocking.

    Raises:
        InvalidOptionError: another checkpoint wrote the directory, it was moved, or can be none.
    """
    path = target_path(target)
    state = full_path(os.fspath(checkpoint or os.path.join(path, "_checkpoint")))
    _refuse_another_checkpoint(path, state)
    return path, state


def _options(hold: str, named: dict[str, str], most_records: int | None, *, lossy: bool) -> dict[str, str]:
    options = {**named, "hold": hold, "holdAdvance": "manual", **loss_option(lossy=lossy)}
    if most_records is not None:
        options["maxRecordsPerTrigger"] = str(most_records)
    return options


def _refuse_another_checkpoint(target: str, checkpoint: str) -> None:
    """Make sure that the directory has no batch that the checkpoint does not know: Spark would write it no second time.

    Raises:
        InvalidOptionError: it has, or was moved.
    """
    refuse_moved(target)
    written, known = _latest(os.path.join(target, "_spark_metadata")), _latest(os.path.join(checkpoint, "offsets"))
    if written > known:
        raise InvalidOptionError(
            f"{target} was written with another checkpoint than {checkpoint}: go on with that one, "
            f"or archive into another directory"
        )


def _own_hold(store: str, target: str, checkpoint: str) -> str:
    """Return the hold of a directory; a new query has that of an earlier archive there, of which nothing is left."""
    fs, hold = OsFileSystem(), f"archive-{uuid5(NAMESPACE_URL, target)}"
    held = read_hold(fs, store, hold) if _latest(os.path.join(checkpoint, "offsets")) < 0 else None
    if held is not None and held.under_way:
        keep(store, hold, replace(held, under_way=False))
    return hold


def _latest(directory: str) -> int:
    """Return the highest number of a batch in a log of Spark's; -1 for none."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return -1
    return max((int(name.partition(".")[0]) for name in names if name.partition(".")[0].isdecimal()), default=-1)


def _archived(spark: SparkSession, target: str, topic: str, first: int, stop: int) -> int:
    """Count the messages of a topic between two offsets in an archive."""
    rows = spark.read.schema("topic STRING, offset BIGINT").parquet(target)
    return rows.where((topic_column() == topic) & (f.col("offset") >= first) & (f.col("offset") < stop)).count()


class _Run:
    """A query, and how far it has come."""

    def __init__(self, query: StreamingQuery, tally: Tally) -> None:
        self.query = query
        self._tally = tally
        self._seen: dict[int, int] = {}
        self._told: set[tuple[int, str]] = set()

    @property
    def rows(self) -> int:
        return sum(self._seen.values())

    @property
    def batches(self) -> int:
        return sum(1 for rows in self._seen.values() if rows)

    def look(self, progress: Callable[[int], object] | None) -> None:
        before, self._told = self._told, set()
        for batch in self.query.recentProgress:
            (source,) = batch["sources"]
            # Over Spark Connect only the sources say how many.
            rows = int(source["numInputRows"])
            self._seen[int(batch["batchId"])] = rows
            end = _topics(source["endOffset"])
            # Told once: the offsets of a topic that was made anew go back.
            told = int(batch["batchId"]), json.dumps(source["endOffset"])
            self._told.add(told)
            if end is not None and told not in before:
                self._tally.batch(_topics(source["startOffset"]), end, rows)
        if progress is not None:
            progress(self.rows)

    def close(self) -> None:
        self.query.stop()


def _topics(offset: str | dict[str, Any] | None) -> dict[str, int] | None:
    """Return the offsets by topic of what Spark shows of a source's place."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return None if found is None else dict(found["topics"])
