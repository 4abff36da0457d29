"""Ranges of a log as Arrow record batches: what readers return while the owner runs, and what Spark's tasks read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aiodq.errors import InvalidOptionError, InvalidOptionTypeError
from aiodq.format.vectorized.arrow import COLUMNS, ArrowDecoder, joined, schema_of
from aiodq.storage.read.frame_reader import FrameReader
from aiodq.values import several, shown, shown_typed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from aiodq.format.vectorized.arrow import Arrow, ArrowRows
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["RUN_BYTES", "arrow_reader", "as_record_batches", "as_table", "columns_of"]

_MOST_BYTES: Final = 2 << 20
"""About the most bytes of a record batch, however few rows it has: it fits a processor's cache, and its consumer can
work on it while the next one is made."""
_ENOUGH_BYTES: Final = _MOST_BYTES * 3 // 4
"""Bytes from which on a batch ends where rows were decoded together: joining more to it takes a copy of both."""
RUN_BYTES: Final = 16 << 20
"""Bytes decoded at once if needed to see a whole put."""


def columns_of(columns: Collection[str] | None) -> tuple[str, ...]:
    """Return the columns in canonical order; all if None.

    Raises:
        InvalidOptionError: a column does not exist, or none is named; also a `TypeError` if these are no names.
    """
    found = several(COLUMNS if columns is None else columns)
    if found is None:
        told = f"columns are some of {', '.join(COLUMNS)}, not {shown_typed(columns)}: write columns=['offset', 'body']"
        raise InvalidOptionTypeError(told)
    wanted = list(found)
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown or not wanted:
        told = shown(unknown[0]) if unknown else "none"
        raise InvalidOptionError(f"columns are some of {', '.join(COLUMNS)}, not {told}")
    return tuple(name for name in COLUMNS if name in wanted)


def arrow_reader(fs: FileSystem, columns: Collection[str], *, verify: bool) -> FrameReader[ArrowRows]:
    """Return a reader of rows with these columns."""
    return FrameReader(fs, ArrowDecoder(columns, verify=verify), RUN_BYTES)


def as_record_batches(
    found: Iterable[ArrowRows], topic: str, columns: Sequence[str], most_rows: int
) -> Iterator[Arrow]:
    """Yield `pyarrow.RecordBatch` objects of `most_rows` rows or about 2 MiB each; the last one may be smaller."""
    pending: list[ArrowRows] = []
    count = size = 0
    for rows in found:
        at = rows.first
        while at < rows.stop:
            room = -(-(_MOST_BYTES - size) * (rows.stop - rows.first) // max(rows.size, 1))
            here = rows.cut(at, at + min(most_rows - count, room))
            at = here.stop
            pending.append(here)
            count += here.stop - here.first
            size += here.size
            if count >= most_rows or size >= _ENOUGH_BYTES:
                yield _joined(pending, topic, columns)
                pending = []
                count = size = 0
    if pending:
        yield _joined(pending, topic, columns)


def _joined(rows: Sequence[ArrowRows], topic: str, columns: Sequence[str]) -> Arrow:
    arrays = [joined(rows, name, topic) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def as_table(batches: Iterable[Arrow], columns: Sequence[str]) -> Arrow:
    """Return the record batches as one `pyarrow.Table`."""
    return pa.Table.from_batches(batches, schema_of(columns))
