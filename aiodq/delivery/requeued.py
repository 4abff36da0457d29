"""Ready messages before the cursor, which were requeued, timed out, or came due."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Requeued"]


class Requeued:
    """A heap of offsets, from which those no longer ready are removed only when they come first."""

    __slots__ = ("_heap", "_is_ready")

    def __init__(self, is_ready: Callable[[int], bool]) -> None:
        """Make an empty heap; `is_ready` says whether an offset is ready."""
        self._heap: list[int] = []
        self._is_ready = is_ready

    def add(self, offset: int) -> None:
        """Add an offset that is ready."""
        heapq.heappush(self._heap, offset)

    def first(self) -> int | None:
        """Return the lowest offset that is ready, or None."""
        while self._heap:
            offset = self._heap[0]
            if self._is_ready(offset):
                return offset
            heapq.heappop(self._heap)
        return None

    def some(self, number: int) -> list[int]:
        """Return up to `number` of the lowest offsets that are ready, in order."""
        found: list[int] = []
        while len(found) < number and (offset := self.first()) is not None:
            heapq.heappop(self._heap)
            if offset not in found[-1:]:
                found.append(offset)
        for offset in found:
            heapq.heappush(self._heap, offset)
        return found

    def take_neighbours(self, stop: int, takes: Callable[[int], bool]) -> int:
        """Take the first offset and those that follow it without a gap, below `stop` and while `takes` returns true.

        The first one must be ready (see `first`). Return the offset after the last one taken.
        """
        heap = self._heap
        at = heap[0]
        while heap and at < stop:
            if heap[0] < at:  # the heap has it twice
                heapq.heappop(heap)
            elif heap[0] > at or not takes(at):
                break
            else:
                heapq.heappop(heap)
                at += 1
        return at

    def handed_out(self, offset: int) -> None:
        """Remove an offset that is handed out, if it is the lowest, as it usually is."""
        if self._heap and self._heap[0] == offset:
            heapq.heappop(self._heap)

    def parts(self) -> tuple[list[int]]:
        """See `OffsetMap.parts`."""
        return (self._heap,)
