"""What is ready and lies before the cursor: it was requeued, timed out, or came due."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReadyAgain"]


class ReadyAgain:
    """Offsets, of which those that are not ready any more are found out when they are first."""

    __slots__ = ("_heap", "_is_ready")

    def __init__(self, is_ready: Callable[[int], bool]) -> None:
        """Begin empty; `is_ready` tells what an offset is."""
        self._heap: list[int] = []
        self._is_ready = is_ready

    def add(self, offset: int) -> None:
        """An offset is ready."""
        heapq.heappush(self._heap, offset)

    def first(self) -> int | None:
        """Return the lowest that is ready, or None."""
        while self._heap:
            offset = self._heap[0]
            if self._is_ready(offset):
                return offset
            heapq.heappop(self._heap)
        return None

    def some(self, number: int) -> list[int]:
        """Return up to so many of the lowest that are ready, in order."""
        found: list[int] = []
        while len(found) < number and (offset := self.first()) is not None:
            heapq.heappop(self._heap)
            if offset not in found[-1:]:
                found.append(offset)
        for offset in found:
            heapq.heappush(self._heap, offset)
        return found

    def take_neighbours(self, stop: int, takes: Callable[[int], bool]) -> int:
        """Take the first and those next to it, below `stop` and as long as `takes` says so; return where that ends.

        The first of all is to be ready (see `first`).
        """
        heap = self._heap
        at = heap[0]
        while heap and at < stop:
            if heap[0] < at:  # it stands there twice
                heapq.heappop(heap)
            elif heap[0] > at or not takes(at):
                break
            else:
                heapq.heappop(heap)
                at += 1
        return at

    def handed_out(self, offset: int) -> None:
        """An offset is ready no more, which is the lowest as a rule."""
        if self._heap and self._heap[0] == offset:
            heapq.heappop(self._heap)

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
