"""What Arrow gives and what the decoder of batches gives, in a form in which they can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.format.arrow import joined
from tests.format.support import records_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.format.arrow import ArrowRows
    from aiodq.format.frames import Batch


def rows_of(found: Iterable[ArrowRows]) -> list[tuple[object, ...]]:
    """Return rows of (offset, nanoseconds, tag, key, headers, body), each array found sound."""
    rows: list[tuple[object, ...]] = []
    for one in found:
        count = one.stop - one.first
        times = [one.times] * count if isinstance(one.times, int) else one.times.tolist()
        columns = [joined([one], name, "t") for name in ("tag", "key", "headers", "body")]
        for column in columns:
            column.validate(full=True)
        lists = [column.to_pylist() for column in columns]
        rows += zip(range(one.first, one.stop), times, *lists, strict=True)
    return rows


def rows_expected(batches: Iterable[Batch]) -> list[tuple[object, ...]]:
    """Return the rows that Arrow should give."""
    return [
        (row.offset, row.time_ns, row.tag, row.key, list(row.headers.items()) if row.headers else None, row.body)
        for row in records_in(batches)
    ]
