"""Writes the latest message of each key into a topic of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Observation
from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError
from aiodq.names import check_name
from aiodq.options import StoreOptions
from aiodq.spark.objects import AnyFileSystem, full_path
from aiodq.spark.options import batch_options, write_options
from aiodq.spark.packing import pack, pack_splits
from aiodq.spark.pipelines.places import one_store
from aiodq.spark.pipelines.results import name_of_result
from aiodq.spark.pipelines.session import loss_option, use_here
from aiodq.spark.pipelines.spread import spread
from aiodq.spark.planning import bytes_of, gaps_in, plan, settled
from aiodq.spark.reading import record_batches
from aiodq.spark.writing.committing import was_committed, was_committed_by_another
from aiodq.spark.writing.staged_rows import kept_options
from aiodq.spark.writing.writers import check_place
from aiodq.storage.read.arrow_reader import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from aiodq.spark.options import ReadOptions, WriteOptions
    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["CompactSummary", "check_compact", "compact"]

_SEGMENT_BYTES: Final = 64 << 20
_SEGMENTS: Final = 8
"""About how many segments a task writes: its last one is not full."""

_KEYS: Final = pa.schema(
    [("key", pa.binary()), ("offset", pa.int64()), ("empty", pa.bool_()), ("messages", pa.int64())]
)
_KEYS_OF_SPARK: Final = "key BINARY, offset BIGINT, empty BOOLEAN, messages BIGINT"
_MESSAGE: Final = ("tag", "key", "headers", "body")


class _Piece(NamedTuple):
    """The work of a task: its splits, and the offsets of the messages with a key that it keeps, in order."""

    splits: tuple[Split, ...]
    kept: Any


@dataclass(frozen=True)
class CompactSummary:
    """The result of one run.

    Attributes:
        into: the topic that was written.
        read: the number of messages; with `lossy`, of those that could be read.
        kept: the number of messages that were added.
        seconds: the duration of the run.
        repeated: whether the same run was committed before, so that nothing was added.
    """

    into: str
    read: int
    kept: int
    seconds: float
    repeated: bool = False


def compact(  # noqa: PLR0913 - what there is to say
    spark: SparkSession,
    store: str | os.PathLike[str],
    topic: str,
    into: str,
    *,
    target: str | os.PathLike[str] | None = None,
    drop_empty: bool = False,
    segment_bytes: int = _SEGMENT_BYTES,
    txn_id: str | None = None,
    lossy: bool = False,
) -> CompactSummary:
    """Put the latest message of each key into another topic, in order: all of them or none. Blocking.

    All messages without a key are kept. The source topic does not change. It is read twice: first the keys, for which
    Spark finds the latest messages, then the messages that are kept, which are written without a shuffle.

    A repeated run, also after one that was killed, adds nothing if the messages are the same. If they are not, use
    another topic, or a `txn_id`, which adds the result after the earlier one. A deleted topic is created again.
    A new topic takes bodies as large as the source topic does (`max_message_bytes`), an existing one as its own says.
    If no message is kept, no topic is created, and one that is there stays as it is.

    Args:
        spark: the session.
        store: the store's directory.
        topic: the topic to read.
        into: the topic to write.
        target: the store to write to; None: the same one.
        drop_empty: leave out keys whose latest message has an empty body, which marks a deleted key.
        segment_bytes: about how large a segment of the new topic becomes.
        txn_id: a name for this run. Repeated, it adds nothing; a new one adds the result to what the topic has.
        lossy: leave out damaged or deleted messages instead of failing; an earlier message of the key then counts.

    Raises:
        InvalidOptionError: `into` is the topic that is read, or cannot be written; several stores; or there is an
            earlier result of other messages, and no `txn_id`.
        InvalidNameError: the name is not allowed for a topic, as a pattern is not.
        StoreNotFoundError, NotAStoreError: there is no such store or topic.
        OffsetError: retention has deleted messages between others; not with `lossy`.
        PySparkException: Spark's, with the cause in its text.
    """
    began, fs = time.monotonic(), AnyFileSystem()
    store, place, writing = check_compact(store, topic, into, target, txn_id, segment_bytes)
    options = batch_options({"path": store, "topic": topic, **loss_option(lossy=lossy)})
    repeated = txn_id is not None and was_committed(writing, txn_id)
    splits, named = [] if repeated else _planned(fs, options), txn_id is not None
    if splits and txn_id is None:
        txn_id = name_of_result(fs, place, into, splits, drop_empty=drop_empty, lossy=lossy)
        repeated = was_committed(writing, txn_id)
    if repeated or not (splits or named):
        return CompactSummary(into, 0, 0, time.monotonic() - began, repeated=repeated)
    read, keyless, offsets = _latest(spark, splits, options, drop_empty=drop_empty)
    kept, run = keyless + len(offsets), uuid4().hex
    # A run with a name is committed even if it keeps nothing: repeated, it would add what was put since.
    if kept or named:
        work = _work(splits, offsets, segment_bytes, kept / max(read, 1)) if kept else []
        how = {"topic": into, "segmentBytes": str(segment_bytes), "maxMessageBytes": _most(fs, store, topic)}
        kept = _write(_rows(spark, options, work), place, **how, txnId=txn_id, txnRun=run)
        repeated = was_committed_by_another(place, txn_id, run)
    return CompactSummary(into, read, 0 if repeated else kept, time.monotonic() - began, repeated=repeated)


def _work(splits: Sequence[Split], offsets: Any, segment_bytes: int, share: float) -> list[_Piece]:  # noqa: ANN401 - numpy's
    """Return what each task writes, of which this share is kept: several segments, as the last one is not full."""
    size = int(sum(map(bytes_of, splits)) * share)
    parts = pack(splits, bytes_of, -(-size // (segment_bytes * _SEGMENTS)))
    return [_Piece(part, _between(offsets, part[0].start, part[-1].stop)) for part in parts]


def _planned(fs: FileSystem, options: ReadOptions) -> list[Split]:
    """Return the splits of the topic.

    Raises:
        OffsetError: messages between others were deleted, with `options.strict`: of a key that is in the topic, others
            may have been later.
    """
    splits = plan(fs, options)
    gone = gaps_in(splits[0].view) if splits and options.strict else ()
    if gone:
        raise settled(splits[0].topic, gone[0], "an earlier message of a key would pass for the latest")
    return splits


def _most(fs: FileSystem, store: str, topic: str) -> str:
    """Return the largest body that the new topic takes: as large a one as the topic that is read, if that is raised."""
    kept, default = kept_options(fs, store, topic), StoreOptions().max_message_bytes
    return str(default if kept is None else max(default, kept.max_message_bytes))


def check_compact(  # noqa: PLR0917 - what there is to check
    store: str | os.PathLike[str],
    topic: str,
    into: str,
    target: str | os.PathLike[str] | None,
    txn_id: str | None,
    segment_bytes: int = _SEGMENT_BYTES,
) -> tuple[str, str, WriteOptions]:
    """Return the store that is read, the one that is written to, and the options of the write. Blocking.

    Raises:
        InvalidOptionError: it would be put into the topic that is read; nothing can be written there; several stores.
        InvalidNameError: no topic can have that name; a pattern is none.
        StoreNotFoundError, NotAStoreError: there is no place for a store.
    """
    check_name(topic)  # by a pattern it would be several topics, whose offsets have nothing to do with each other
    source = one_store("compact", store)
    place, named = _place(source, topic, into, target), {} if txn_id is None else {"txnId": txn_id}
    writing = write_options({"path": place, "topic": into, "segmentBytes": str(segment_bytes), **named}, stream=False)
    check_place(writing.store)
    return source, place, writing


def _place(store: str, topic: str, into: str, target: str | os.PathLike[str] | None) -> str:
    """Return the store that is written to.

    Raises:
        InvalidOptionError: the topic would be written into itself.
    """
    place = store if target is None else full_path(os.fspath(target))
    if into == topic and os.path.realpath(place) == os.path.realpath(store):
        raise InvalidOptionError(f"topic {topic!r} stays as it is: put its latest messages into another one")
    return place


def _latest(
    spark: SparkSession, splits: Sequence[Split], options: ReadOptions, *, drop_empty: bool
) -> tuple[int, int, Any]:
    """Return the number of messages, the number without a key, and the sorted offsets of the latest of each key."""
    if not splits:
        return 0, 0, np.empty(0, np.int64)
    wanted = replace(options, columns=columns_of(["key", "offset", *(["body"] if drop_empty else [])]))
    tasks = pack_splits(splits, options)
    keys: DataFrame = spread(spark, tasks, partial(_keys, AnyFileSystem(), wanted), _KEYS_OF_SPARK)
    latest = keys.groupBy("key").agg(
        f.max("offset").alias("offset"), f.max_by("empty", "offset").alias("empty"), f.sum("messages").alias("messages")
    )
    found = latest.select(f.col("key").isNull().alias("keyless"), "offset", "empty", "messages").toArrow()
    keyless = pc.sum(found.filter(found["keyless"])["messages"]).as_py()
    alive = found.filter(pc.invert(pc.or_(found["keyless"], found["empty"])))
    return pc.sum(found["messages"]).as_py(), keyless, np.sort(alive["offset"].to_numpy())


def _keys(fs: FileSystem, options: ReadOptions, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a task's messages, and last a row with the number of those without a key, even if 0."""
    keyless = 0
    for split in splits:
        for batch in record_batches(fs, split, options):
            with_key = batch.filter(pc.is_valid(batch["key"]))
            keyless += batch.num_rows - with_key.num_rows
            rows = with_key.num_rows
            lengths = pc.binary_length(with_key["body"]) if "body" in options.columns else pa.repeat(1, rows)
            columns = [
                with_key["key"],
                with_key["offset"],
                pc.equal(lengths, 0),
                pa.repeat(pa.scalar(1, pa.int64()), rows),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_KEYS)
    yield pa.RecordBatch.from_pylist([{"key": None, "offset": None, "empty": False, "messages": keyless}], _KEYS)


def _rows(spark: SparkSession, options: ReadOptions, work: Sequence[_Piece]) -> DataFrame:
    """Return the rows to write, with a session with which this thread may write."""
    use_here(spark)
    schema = "tag STRING, key BINARY, headers MAP<STRING, STRING>, body BINARY"
    return spread(spark, work, partial(_kept, AnyFileSystem(), options), schema)


def _write(rows: DataFrame, store: str, **options: str | None) -> int:
    """Write rows and return their number; with `lossy`, messages deleted since the keys were read are left out."""
    written = Observation()
    writer = rows.observe(written, f.count(f.lit(1)).alias("rows")).write.format("aiodq").mode("append")
    writer.options(**options).save(store)
    return int(written.get["rows"])


def _kept(fs: FileSystem, options: ReadOptions, piece: _Piece) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task that are kept, as they are read."""
    for split in piece.splits:
        for batch in record_batches(fs, split, options):
            latest = np.isin(batch["offset"].to_numpy(), _between(piece.kept, split.start, split.stop))
            yield batch.filter(pc.or_(pc.is_null(batch["key"]), pa.array(latest))).select(list(_MESSAGE))


def _between(offsets: Any, start: int, stop: int) -> Any:  # noqa: ANN401 - numpy's
    low, high = np.searchsorted(offsets, (start, stop))
    return offsets[low:high]
