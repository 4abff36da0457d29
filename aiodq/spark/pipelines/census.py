"""Counts messages for a report, by topic: when they were put, their sizes and tags. One pass, and few rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiodq.spark.reading import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aiodq.spark.options import ReadOptions
    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["COLUMNS", "MOMENTS", "SCHEMA", "census", "coarser", "step_for"]

SCHEMA: Final = (
    "topic STRING, kind STRING, number BIGINT, text STRING, count BIGINT, bytes BIGINT, first BIGINT, last BIGINT"
)
"""The columns of a row. `kind` is "all" (with bytes, and the first and the last time in microseconds), "size" (`number`
is the power of two, -1 for empty), "moment" (`number` is its second) or "tag" (`text`, null for none); `count` is the
number of messages."""

COLUMNS: Final = "timestamp,tag,body"
"""The columns of messages that are counted."""

MOMENTS: Final = 60
"""About how many bars show a rate over time."""

_STEPS: Final = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
"""Seconds that one bar may stand for; after these, each is twice the one before. So each is a multiple of those before
it, and counts can be added up to the next."""
_MOST_TAGS: Final = 100_000
"""The most counts in memory before they are yielded."""
_SECOND: Final = 1_000_000
_ARROW: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("topic", "kind")),
        ("number", pa.int64()),
        ("text", pa.string()),
        *((name, pa.int64()) for name in ("count", "bytes", "first", "last")),
    ]
)


def step_for(first: int, last: int) -> int:
    """Return how many seconds a bar stands for, so that up to about `MOMENTS` lie between two times, in seconds."""
    span = max(last - first, 1)
    step = next((step for step in _STEPS if span / step <= MOMENTS), _STEPS[-1])
    while span / step > MOMENTS:
        step *= 2
    return step


def coarser(counts: Mapping[int, int], step: int) -> Counter[int]:
    """Return counts over time with larger steps, which are a multiple of those that they were counted with."""
    found: Counter[int] = Counter()
    for moment, count in counts.items():
        found[moment // step * step] += count
    return found


def census(fs: FileSystem, splits: Sequence[Split], options: ReadOptions) -> Iterator[Any]:
    """Yield the counts of a task's splits as `pyarrow.RecordBatch` objects. Blocking.

    Raises:
        AiodqError: as for `record_batches`.
    """
    open_: _Topic | None = None
    for split in splits:
        if open_ is None or open_.name != split.topic:
            if open_ is not None:
                yield open_.rows()
            open_ = _Topic(split.topic)
        for batch in record_batches(fs, split, options):
            open_.add(batch)
            if len(open_.tags) > _MOST_TAGS:
                yield open_.rows()
                open_ = _Topic(split.topic)
    if open_ is not None:
        yield open_.rows()


class _Topic:
    """The counts of one topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tags: Counter[str | None] = Counter()
        self._count = self._bytes = 0
        self._first = self._last = 0
        self._sizes = np.zeros(65, np.int64)
        self._moments: Counter[int] = Counter()

    def add(self, batch: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        times = batch.column("timestamp").cast(pa.int64()).to_numpy()
        sizes = pc.binary_length(batch.column("body")).to_numpy()
        first, last = int(times.min()), int(times.max())
        self._first, self._last = (min(self._first, first), max(self._last, last)) if self._count else (first, last)
        self._count += len(times)
        self._bytes += int(sizes.sum())
        # The exponent of 0 is 0, that of 1 is 1, that of 2 and of 3 is 2.
        self._sizes += np.bincount(np.frexp(sizes.astype(np.float64))[1], minlength=65)
        for entry in pc.value_counts(batch.column("tag")).to_pylist():
            self.tags[entry["values"]] += entry["counts"]
        self._add_moments(times, first)

    def _add_moments(self, times: Any, first: int) -> None:  # noqa: ANN401 - numpy's
        """Count moments, with the step for what was seen so far: never longer than that of the whole topic."""
        step = step_for(self._first // _SECOND, self._last // _SECOND)
        low = first // _SECOND // step
        counts = np.bincount(times // (_SECOND * step) - low)
        for number in np.flatnonzero(counts).tolist():
            self._moments[(low + number) * step] += int(counts[number])
        if len(self._moments) > 2 * MOMENTS:
            self._moments = coarser(self._moments, step)

    def rows(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        blank = dict.fromkeys(_ARROW.names)
        step = step_for(self._first // _SECOND, self._last // _SECOND)
        total = {"count": self._count, "bytes": self._bytes, "first": self._first, "last": self._last}
        found: list[dict[str, Any]] = [{**blank, "kind": "all", **total}] if self._count else []
        for number, count in enumerate(self._sizes.tolist()):
            if count:
                found.append({**blank, "kind": "size", "number": number - 1, "count": count})
        for moment, count in coarser(self._moments, step).items():
            found.append({**blank, "kind": "moment", "number": moment, "count": count})
        found += [{**blank, "kind": "tag", "text": tag, "count": count} for tag, count in self.tags.items()]
        return pa.RecordBatch.from_pylist([{**row, "topic": self.name} for row in found], _ARROW)
