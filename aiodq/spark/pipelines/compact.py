"""The latest message by key, as a topic of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Observation
from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError
from aiodq.names import check_name
from aiodq.spark.objects import AnyFileSystem, full_path
from aiodq.spark.options import batch_options, write_options
from aiodq.spark.packing import pack, pack_splits
from aiodq.spark.pipelines.places import one_store
from aiodq.spark.pipelines.results import name_of_result
from aiodq.spark.pipelines.session import loss_option, use_here
from aiodq.spark.pipelines.spread import spread
from aiodq.spark.planning import bytes_of, plan
from aiodq.spark.reading import record_batches
from aiodq.spark.writing import check_place, was_committed
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
"""So many segments a task writes, about: the last one of each is not full."""

_KEYS: Final = pa.schema(
    [("key", pa.binary()), ("offset", pa.int64()), ("empty", pa.bool_()), ("messages", pa.int64())]
)
_KEYS_OF_SPARK: Final = "key BINARY, offset BIGINT, empty BOOLEAN, messages BIGINT"
_MESSAGE: Final = ("tag", "key", "headers", "body")


class _Piece(NamedTuple):
    """What a task is to write: splits, and which of the messages with a key, by offset, in order."""

    splits: tuple[Split, ...]
    kept: Any


@dataclass(frozen=True)
class CompactSummary:
    """What one run did.

    Attributes:
        into: the new topic.
        read: messages there were; with `lossy`, those that could be read.
        kept: those that were added to it.
        seconds: it took.
        repeated: nothing was read or added, as the same was committed before.
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
    """Put the latest message of each key into another topic, in their order: all of them or none. Blocking.

    Messages without a key are all kept. The topic that is read stays as it is. It is read twice: first the keys, of
    which Spark finds the latest, then all that is kept, which is written as it is read, without a shuffle.

    Repeated, also after a run that was killed, it adds nothing while the messages are the same. If they are others, it
    takes another topic, or a `txn_id`, and is put behind the earlier result. One that was deleted is made anew.

    Args:
        spark: a session.
        store: the store's directory.
        topic: the topic to read.
        into: the topic to write.
        target: another store for it; the same where None.
        drop_empty: leave out keys whose latest message has an empty body, as one that says that the key is gone.
        segment_bytes: how large a segment of the new topic becomes, about.
        txn_id: a name for this run: repeated, it adds nothing; a new one adds, whatever the topic has already.
        lossy: leave out what is damaged or deleted instead of failing; then an earlier message of the key counts.

    Raises:
        InvalidOptionError: it would be put into the topic that is read; nothing can be written there; several stores;
            or there is an earlier result, of other messages, and no `txn_id`.
        InvalidNameError: no topic can have that name; a pattern is none.
        StoreNotFoundError, NotAStoreError: there is no such store or topic.
        PySparkException: Spark's, with the cause in its text.
    """
    began, fs = time.monotonic(), AnyFileSystem()
    store, place, writing = check_compact(store, topic, into, target, txn_id, segment_bytes)
    options = batch_options({"path": store, "topic": topic, **loss_option(lossy=lossy)})
    repeated = txn_id is not None and was_committed(writing, txn_id)
    splits = [] if repeated else plan(fs, options)
    if splits and txn_id is None:
        txn_id = name_of_result(fs, place, into, splits, drop_empty=drop_empty, lossy=lossy)
        repeated = was_committed(writing, txn_id)
    if repeated or not splits:
        return CompactSummary(into, 0, 0, time.monotonic() - began, repeated=repeated)
    read, keyless, offsets = _latest(spark, splits, options, drop_empty=drop_empty)
    kept = keyless + len(offsets)
    if kept:
        size = sum(map(bytes_of, splits)) * kept // max(read, 1)
        parts = pack(splits, bytes_of, -(-size // (segment_bytes * _SEGMENTS)))
        work = [_Piece(part, _between(offsets, part[0].start, part[-1].stop)) for part in parts]
        kept = _write(_rows(spark, options, work), place, topic=into, segmentBytes=str(segment_bytes), txnId=txn_id)
    return CompactSummary(into, read, kept, time.monotonic() - began)


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
        InvalidOptionError: the topic would be put into itself.
    """
    place = store if target is None else full_path(os.fspath(target))
    if into == topic and os.path.realpath(place) == os.path.realpath(store):
        raise InvalidOptionError(f"topic {topic!r} stays as it is: put its latest messages into another one")
    return place


def _latest(
    spark: SparkSession, splits: Sequence[Split], options: ReadOptions, *, drop_empty: bool
) -> tuple[int, int, Any]:
    """Return how many messages there are, how many have no key, and the offsets of the latest of each key, sorted."""
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
    """Yield the keys of a task's messages, and last a row that counts those without one, also where there are none."""
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
    """Return what is to be written, by a session that this thread may write by."""
    use_here(spark)
    schema = "tag STRING, key BINARY, headers MAP<STRING, STRING>, body BINARY"
    return spread(spark, work, partial(_kept, AnyFileSystem(), options), schema)


def _write(rows: DataFrame, store: str, **options: str | None) -> int:
    """Write rows, and return how many: what was deleted since the keys were read is not among them, with `lossy`."""
    written = Observation()
    writer = rows.observe(written, f.count(f.lit(1)).alias("rows")).write.format("aiodq").mode("append")
    writer.options(**options).save(store)
    return int(written.get["rows"])


def _kept(fs: FileSystem, options: ReadOptions, piece: _Piece) -> Iterator[pa.RecordBatch]:
    """Yield what is kept of a task's messages, as they are read."""
    for split in piece.splits:
        for batch in record_batches(fs, split, options):
            latest = np.isin(batch["offset"].to_numpy(), _between(piece.kept, split.start, split.stop))
            yield batch.filter(pc.or_(pc.is_null(batch["key"]), pa.array(latest))).select(list(_MESSAGE))


def _between(offsets: Any, start: int, stop: int) -> Any:  # noqa: ANN401 - numpy's
    low, high = np.searchsorted(offsets, (start, stop))
    return offsets[low:high]
