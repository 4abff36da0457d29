"""What Arrow gives and what the decoder of batches gives, in a form in which they can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.format.vectorized.arrow import joined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.format.frame import Batch
    from aiodq.format.vectorized.arrow import ArrowRows


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
    rows: list[tuple[object, ...]] = []
    for batch in batches:
        columns, count = batch.columns, len(batch.columns.bodies)
        headers = [list(one.items()) or None for one in columns.headers or [{}] * count]
        times = columns.times or [batch.time_ns] * count
        nothing = [None] * count
        texts, keys = columns.tags or nothing, columns.keys or nothing
        rows += zip(range(batch.first, batch.stop), times, texts, keys, headers, columns.bodies, strict=True)
    return rows
