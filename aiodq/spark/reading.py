"""The work of a task that reads: it decodes a range of a log to Arrow, batch by batch."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.spark.planning import GO_ON, WITHOUT, bytes_of, warn_of
from aiodq.spark.visible import is_deleted, require_seen
from aiodq.spark.worker import spare_collections
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.read.arrow_reader import RUN_BYTES, arrow_reader, as_record_batches, columns_of
from aiodq.storage.segments.segment_files import inspect_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.format.vectorized.arrow import ArrowRows
    from aiodq.spark.options import ReadOptions
    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.io.quarantine import Damage

__all__ = ["UUID", "Partition", "read_partition", "record_batches"]

_LOG: Final = logging.getLogger("aiodq.spark")

UUID: Final = "topic_uuid"
"""The column with a topic's uuid, which tells it from a deleted one of its name. Only who asks by a schema gets it."""

_CHUNK: Final = 2 << 20
"""Bytes that are read at a time; they usually become one record batch."""
_MORE: Final = 64 << 10
"""Bytes by which the buffer of a small split exceeds it; a larger one would cost as much as if it were filled."""
_MOST_ROWS: Final = 65_536
_SMALL: Final = 256 << 10
"""Bytes up to which a record batch is joined with those before and after it."""


class Partition(InputPartition):
    """The splits of one task, as Spark sends them to it."""

    def __init__(self, splits: Sequence[Split]) -> None:
        """Hold these splits."""
        super().__init__(tuple((split.topic, split.start, split.stop) for split in splits))
        self.splits: tuple[Split, ...] = tuple(splits)


def read_partition(fs: FileSystem, partition: InputPartition | None, options: ReadOptions) -> Iterator[Any]:
    """Yield the record batches of a task; none for the partition that Spark makes if there are no splits.

    Raises:
        AiodqError: as for `record_batches`.
    """
    _keep_memory()
    splits = partition.splits if isinstance(partition, Partition) else ()
    yield from _merged(batch for split in splits for batch in record_batches(fs, split, options))
    spare_collections()


def _merged(batches: Iterator[Any]) -> Iterator[Any]:
    """Join small record batches, in order: each costs Spark as much as hundreds of rows, and a small topic has few."""
    small, size = list[Any](), 0
    for batch in batches:
        more = batch.nbytes
        if more > _SMALL or size + more > _CHUNK:
            yield from _joined(small)
            small, size = [], 0
        if more > _SMALL:
            yield batch
        else:
            small.append(batch)
            size += more
    yield from _joined(small)


def _joined(batches: list[Any]) -> list[Any]:
    joined: list[Any] = pa.Table.from_batches(batches).combine_chunks().to_batches() if len(batches) > 1 else batches
    return joined


def record_batches(fs: FileSystem, split: Split, options: ReadOptions) -> Iterator[Any]:
    """Yield `pyarrow.RecordBatch` objects with the columns that were asked for. Blocking.

    Raises:
        StoreNotFoundError: this machine does not have the topic and the store that the read was planned from. On the
            driver's machine, a topic may have been deleted: without `options.strict`, no more of it is yielded.
        CorruptionError: messages are damaged, missing, or deleted since planning, with `options.strict`.
        StorageError: as mapped from the system's error.
    """
    columns, tags = list(options.columns), options.tags
    stored = {*columns, *(() if tags is None else ("tag",))} - {UUID}
    decoded = columns_of(stored or {"offset"})
    wanted = pa.array(sorted(tags or ()), pa.string())
    for batch in as_record_batches(_rows(fs, split, options, decoded), split.topic, decoded, _MOST_ROWS):
        found = batch if tags is None else batch.filter(pc.is_in(batch.column("tag"), wanted))
        if found.num_rows:
            if UUID in columns:
                found = found.append_column(UUID, pa.repeat(str(split.place.topic), found.num_rows))
            # The columns of a schema that the user gave may have another order.
            yield found.select(columns)


def _rows(fs: FileSystem, split: Split, options: ReadOptions, columns: tuple[str, ...]) -> Iterator[ArrowRows]:
    reader, at = arrow_reader(fs, columns, verify=options.verify), split.start
    if not _is_there(fs, split, options):
        return
    left_out, chunk = 0, min(_CHUNK, bytes_of(split) + _MORE)
    try:
        while at < split.stop:
            result = reader.read(split.view, at, chunk)
            # A missing file is a loss only if the store is still visible: it may have been unmounted during the read.
            if result.damages and not _is_there(fs, split, options):
                return
            for damage in result.damages:
                # A damage without bytes is a gap in the offsets, which planning has judged as far as it looked.
                if damage.end <= damage.position and damage.stop <= split.unseen and _is_known(fs, split, damage):
                    continue
                if options.strict:
                    raise _lost(fs, damage)
                left_out += 1
                if left_out == 1:
                    warn_of(split.topic, "left out", damage)
            yield from (rows.cut(split.start, split.stop) for rows in result.batches)
            at = result.next
    finally:
        reader.close()
        if left_out > 1:
            _LOG.warning("topic %r: %d more places of this split were left out", split.topic, left_out - 1)


def _is_known(fs: FileSystem, split: Split, gap: Damage) -> bool:
    """Return whether a gap in the offsets is none within a segment whose footer says that it has none. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    segment = next(iter(split.view.between(gap.first, gap.stop)), None)
    if segment is None or not segment.base <= gap.first < gap.stop <= segment.end:
        return True
    with suppress(StoreNotFoundError):
        # The footer as it is now: the segment may have been repaired since the read was planned.
        tail = inspect_file(fs, segment.path, segment.base, split.place.topic).tail
        return tail is None or tail.records < tail.end
    return segment.records < segment.end - segment.base


def _lost(fs: FileSystem, damage: Damage) -> CorruptionError:
    """Return the error for messages that are damaged or whose file is gone, with advice."""
    if name_exists(fs, damage.path):
        return CorruptionError(f"{damage.reason}; {GO_ON}", damage.path, damage.position)
    reason = (
        f"the messages {damage.first} to {damage.stop - 1} were deleted after the read was planned, by retention or a "
        f"purge: let retention keep them, for a stream by a hold; {WITHOUT}"
    )
    return CorruptionError(reason, damage.path, damage.position)


def _is_there(fs: FileSystem, split: Split, options: ReadOptions) -> bool:
    """Return whether the topic that a split was planned from still exists; False if it was deleted, without `strict`.

    Raises:
        StoreNotFoundError: this machine does not have it; or it was deleted, with `options.strict`.
    """
    try:
        require_seen(fs, split.place)
    except StoreNotFoundError:
        if options.strict or not is_deleted(fs, split.place):
            raise
        text = "topic %r was deleted: left out, as failOnDataLoss is false, is what a task was still to read of it"
        _LOG.warning(text, split.topic)
        return False
    return True


@cache
def _keep_memory() -> None:
    """Have each read reuse the memory of the read before: new memory would have to be cleared page by page.

    Once a block of some size was freed, glibc keeps blocks of up to that size instead of returning them to the system:
    the dynamic threshold of mallopt(3). With another C library this does nothing. It stays so: a second time in one
    process, the block itself would only have to be cleared.
    """
    bytes(RUN_BYTES)
