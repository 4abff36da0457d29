"""The tail cache: the newest batches in memory, so that a channel that keeps up never reads the disk."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from aiodq.engine.batch.put_batch import OVERHEAD, columns_cost
from aiodq.engine.reading.small_batches import LONGEST_RUN, SMALL, is_small, joined, merged
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BATCH_OVERHEAD", "TailCache", "batch_cost"]

BATCH_OVERHEAD: Final = 500
"""Bytes that a batch takes in addition to the cost of its messages, most of which counts if there is but one."""

_COMPACT_AT: Final = 512
_TRIM_EVERY: Final = 256
"""Messages, written one by one, between two checks for what every channel has had."""

_RUN_BYTES: Final = 64 * 1024
"""Bytes of memory of a run that becomes one batch, unless one of its messages is looked up earlier."""

_MERGED: Final = 250
"""Small batches that are merged at once: that holds up the event loop for a fifth of a millisecond."""

_DROPPED: Final = (Batch(0, 0, Columns([])), 0)


def batch_cost(batch: Batch) -> int:
    """Return the cost of a batch in bytes of memory."""
    return columns_cost(batch.columns)


class TailCache:
    """Consecutive batches up to the log's end.

    Attributes:
        limit: the bound of `cost`, in bytes.
        cost: bytes of memory used.
    """

    __slots__ = ("_batches", "_bodies", "_first", "_head", "_parts", "_run_cost", "_short", "_times", "cost", "limit")

    def __init__(self, limit: int) -> None:
        """Start empty."""
        self.limit: int = limit
        self.cost: int = 0
        self._batches: list[tuple[Batch, int]] = []
        self._head = self._short = 0
        self._first = self._run_cost = 0
        self._bodies: list[bytes] = []
        self._times: list[int] = []
        self._parts: list[Batch] = []

    def add(self, offset: int, time_ns: int, body: bytes) -> bool:
        """Append a plain message, to a run that becomes a batch; return whether to `trim` now."""
        bodies = self._bodies
        if offset != self._first + len(bodies):
            self._end_run()
            self._first, bodies = offset, self._bodies
        bodies.append(body)
        self._times.append(time_ns)
        self._run_cost += len(body) + OVERHEAD
        if len(bodies) >= LONGEST_RUN or self._run_cost >= _RUN_BYTES:
            self._end_run()
        return not offset % _TRIM_EVERY

    def _end_run(self) -> None:
        bodies, times = self._bodies, self._times
        if self._parts:
            batch, cost, self._parts, self._run_cost = joined(self._parts), self._run_cost, [], 0
            self._first = batch.stop
            self._take(batch, cost)
        if not bodies:
            return
        first, cost, time_ns = self._first, self._run_cost, times[0]
        self._bodies, self._times, self._run_cost, self._first = [], [], 0, first + len(bodies)
        columns = Columns(bodies, None if times[-1] == time_ns == max(times) == min(times) else times)
        self._take(Batch(first, time_ns, columns), cost)

    def append(self, batch: Batch, cost: int) -> bool:
        """Append a batch with its cost in bytes of memory; the oldest are dropped to make room.

        Returns:
            Whether to `trim` now: a small batch is merged with those that follow, unless it is looked up earlier.
        """
        columns = batch.columns
        columns.lengths = None  # they were for the writer, and are not counted in `cost`
        if len(columns.bodies) <= SMALL and is_small(batch):
            return self._append_small(batch, cost)
        self._end_run()
        self._first = batch.stop
        self._take(batch, cost)
        return True

    def _append_small(self, batch: Batch, cost: int) -> bool:
        if not self._parts or self._parts[-1].stop != batch.first:
            self._end_run()
            self._first = batch.first
        self._parts.append(batch)
        self._run_cost += cost
        if batch.stop - self._first >= LONGEST_RUN or self._run_cost >= _RUN_BYTES:
            self._end_run()
        return batch.first // _TRIM_EVERY != batch.stop // _TRIM_EVERY

    def _take(self, batch: Batch, cost: int) -> None:
        cost += BATCH_OVERHEAD
        self._batches.append((batch, cost))
        self.cost += cost
        self._short = self._short + 1 if len(batch.columns.bodies) <= SMALL and is_small(batch) else 0
        if self._short >= _MERGED:
            self._merge()
        while self.cost > self.limit and self._head < len(self._batches):
            self._drop_head()

    def _merge(self) -> None:
        """Merge the newest batches: a consumer that reads each message as it comes has left one batch for each."""
        start = max(self._head, len(self._batches) - self._short)
        self._short = 0
        short = self._batches[start:]
        longer = [(batch, batch_cost(batch) + BATCH_OVERHEAD) for batch in merged(batch for batch, _ in short)]
        self._batches[start:] = longer
        self.cost += sum(cost for _, cost in longer) - sum(cost for _, cost in short)

    def needed(self, offset: int) -> bool:
        """Return whether reading from `offset` on needs the oldest batch; also if there is no batch at all."""
        self._end_run()
        return self._head >= len(self._batches) or self._batches[self._head][0].stop > offset

    def trim(self, offset: int) -> None:
        """Drop the batches wholly below `offset`."""
        self._end_run()
        while self._head < len(self._batches) and self._batches[self._head][0].stop <= offset:
            self._drop_head()

    def clear(self) -> None:
        """Drop everything."""
        self._batches.clear()
        self._bodies, self._times, self._parts, self._run_cost = [], [], [], 0
        self._head = self._short = self.cost = 0

    def find(self, offset: int) -> Batch | None:
        """Return the batch that holds `offset`, or None if it is not in memory."""
        if offset >= self._first:
            self._end_run()
        at = bisect_right(self._batches, offset, lo=self._head, key=lambda item: item[0].first) - 1
        if at < self._head:
            return None
        batch = self._batches[at][0]
        return batch if offset < batch.stop else None

    def since(self, offset: int) -> Iterator[Batch]:
        """Yield the batches in memory that reach beyond `offset`."""
        self._end_run()
        return (batch for batch, _ in self._batches[self._head :] if batch.stop > offset)

    def _drop_head(self) -> None:
        self.cost -= self._batches[self._head][1]
        # INVARIANT: a dropped batch is not referred to, though its slot is only removed with many others.
        self._batches[self._head] = _DROPPED
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._batches):
            del self._batches[: self._head]
            self._head = 0
