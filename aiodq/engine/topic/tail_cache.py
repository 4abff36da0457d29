"""The newest batches, kept in memory so that who keeps up never reads the disk."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from aiodq.engine.topic.put_batch import columns_cost
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TailCache", "batch_cost"]

_COMPACT_AT: Final = 512
_DROPPED: Final = (Batch(0, 0, Columns([])), 0)


def batch_cost(batch: Batch) -> int:
    """Return the bytes of memory that a batch is counted with."""
    return columns_cost(batch.columns)


class TailCache:
    """Consecutive batches up to the log's end.

    Attributes:
        limit: the bound of `cost`, bytes.
        cost: bytes of memory.
    """

    def __init__(self, limit: int) -> None:
        """Start empty."""
        self.limit = limit
        self.cost: int = 0
        self._batches: list[tuple[Batch, int]] = []
        self._head = 0

    def append(self, batch: Batch) -> None:
        """Add the batch behind all others; the oldest go to make room."""
        cost = batch_cost(batch)
        self._batches.append((batch, cost))
        self.cost += cost
        while self.cost > self.limit and self._head < len(self._batches):
            self._drop_head()

    def trim(self, offset: int) -> None:
        """Let go of the batches wholly below `offset`."""
        while self._head < len(self._batches) and self._batches[self._head][0].stop <= offset:
            self._drop_head()

    def clear(self) -> None:
        """Let go of everything."""
        self._batches.clear()
        self._head = self.cost = 0

    def find(self, offset: int) -> Batch | None:
        """Return the batch that holds `offset`, or None where it is not in memory."""
        at = bisect_right(self._batches, offset, lo=self._head, key=lambda item: item[0].first) - 1
        if at < self._head:
            return None
        batch = self._batches[at][0]
        return batch if offset < batch.stop else None

    def since(self, offset: int) -> Iterator[Batch]:
        """Yield what is in memory of the batches that reach beyond `offset`."""
        return (batch for batch, _ in self._batches[self._head :] if batch.stop > offset)

    def _drop_head(self) -> None:
        self.cost -= self._batches[self._head][1]
        # INVARIANT: what was dropped is not referred to, though its place is only taken out with many others.
        self._batches[self._head] = _DROPPED
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._batches):
            del self._batches[: self._head]
            self._head = 0
