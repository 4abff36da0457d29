"""What a channel waits for: messages deferred until a moment, and those in flight until their time is up.

Moments are whole nanoseconds of whatever clock the caller has, as long as it never goes back.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Deadlines", "Deferrals"]

_OFFSET_BITS: Final = 64
_OFFSET: Final = (1 << _OFFSET_BITS) - 1
_SLACK: Final = 64
"""So many entries that stand for nothing any more are left alone."""


class Deferrals:
    """Offsets, each with the moment at which it is due. One costs about 130 bytes of memory."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        """Begin empty."""
        # The moment and the offset in one number, which the heap and the mapping share.
        self._keys: dict[int, int] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        """Return how many are deferred."""
        return len(self._keys)

    def __contains__(self, offset: int) -> bool:
        """Return whether the offset is deferred."""
        return offset in self._keys

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, due)."""
        return ((offset, key >> _OFFSET_BITS) for offset, key in self._keys.items())

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, due) by moment, as of the first step; some of it may be deferred no more, or anew."""
        heap, before = self._heap.copy(), -1
        while heap:
            key = heapq.heappop(heap)
            if key != before:
                yield key & _OFFSET, key >> _OFFSET_BITS
            before = key

    def due(self, offset: int) -> int | None:
        """Return when an offset is due, or None where it is not deferred."""
        key = self._keys.get(offset)
        return None if key is None else key >> _OFFSET_BITS

    def add(self, offset: int, due: int) -> None:
        """Defer an offset until `due`, whatever was said of it before."""
        key = max(due, 0) << _OFFSET_BITS | offset
        self._keys[offset] = key
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = sorted(self._keys.values())
        else:
            heapq.heappush(self._heap, key)

    def add_all(self, dues: Iterable[tuple[int, int]]) -> None:
        """As `add`, of many."""
        keys = {offset: max(due, 0) << _OFFSET_BITS | offset for offset, due in dues}
        self._keys |= keys
        self._heap += keys.values()
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = list(self._keys.values())
        heapq.heapify(self._heap)

    def discard(self, offset: int) -> None:
        """Forget an offset, if it is there."""
        self._keys.pop(offset, None)

    def discard_range(self, start: int, stop: int) -> None:
        """Forget everything from `start` to `stop`."""
        if stop - start <= len(self._keys):
            for offset in range(start, stop):
                self._keys.pop(offset, None)
        else:
            self._keys = {offset: key for offset, key in self._keys.items() if not start <= offset < stop}

    def clear(self) -> None:
        """Forget everything."""
        self._keys.clear()
        self._heap.clear()

    def take(self, now: int) -> list[int]:
        """Remove and return what is due."""
        found: list[int] = []
        while (moment := self.next()) is not None and moment <= now:
            offset = heapq.heappop(self._heap) & _OFFSET
            del self._keys[offset]
            found.append(offset)
        return found

    def soon(self, number: int, within: int) -> list[int]:
        """Return up to so many that are due within so many nanoseconds of the earliest: about the first of them."""
        first = self.next()
        if first is None:
            return []
        # The top of a heap is not sorted, but what is early is in it.
        top = [key for key in self._heap[:number] if key >> _OFFSET_BITS <= first + within]
        return [offset for key in top if self._keys.get(offset := key & _OFFSET) == key]

    def next(self) -> int | None:
        """Return the earliest moment, or None."""
        heap = self._heap
        while heap and self._keys.get(heap[0] & _OFFSET) != heap[0]:
            heapq.heappop(heap)
        return heap[0] >> _OFFSET_BITS if heap else None


class Deadlines:
    """When messages in flight are to be taken back.

    All of a channel's have the same time, so that their deadlines come in order; only what was moved needs sorting.
    """

    __slots__ = ("_heap", "_in_flight", "_most", "_moved", "_queue")

    def __init__(self, in_flight: Mapping[int, int]) -> None:
        """Begin empty.

        Args:
            in_flight: delivery numbers by offset, as the channel has them. What is not in it has no deadline.
        """
        self._in_flight = in_flight
        self._queue: deque[tuple[int, int, int]] = deque()
        self._heap: list[tuple[int, int, int]] = []
        self._moved: dict[int, int] = {}
        self._most = _SLACK

    def add(self, deadline: int, offset: int, delivery: int) -> None:
        """Expect a message back by then."""
        queue = self._queue
        if queue and deadline < queue[-1][0]:
            self.move(deadline, offset, delivery)
            return
        queue.append((deadline, offset, delivery))
        if len(queue) > self._most:
            self._queue = deque(entry for entry in queue if self._counts(entry))
            self._most = 2 * len(self._queue) + _SLACK

    def move(self, deadline: int, offset: int, delivery: int) -> None:
        """Expect a message back by then instead of when it was expected before."""
        self._moved[delivery] = deadline
        heapq.heappush(self._heap, (deadline, offset, delivery))
        if len(self._heap) > 2 * len(self._in_flight) + _SLACK:
            self._heap = sorted(entry for entry in self._heap if self._counts(entry))
            kept = {delivery for _, _, delivery in self._heap}
            self._moved = {delivery: at for delivery, at in self._moved.items() if delivery in kept}

    def clear(self) -> None:
        """Expect nothing."""
        self._queue.clear()
        self._heap.clear()
        self._moved.clear()

    def take(self, now: int) -> list[int]:
        """Remove and return the offsets whose time is up, the earliest first."""
        found: dict[int, None] = {}  # one may stand there twice, moved to where it was
        while (moment := self.next()) is not None and moment <= now:
            entry = self._queue.popleft() if self._queue and self._queue[0][0] == moment else heapq.heappop(self._heap)
            self._moved.pop(entry[2], None)
            found[entry[1]] = None
        return list(found)

    def next(self) -> int | None:
        """Return the earliest deadline, or None."""
        queue, heap = self._queue, self._heap
        while queue and not self._counts(queue[0]):
            queue.popleft()
        while heap and not self._counts(heap[0]):
            _, offset, delivery = heapq.heappop(heap)
            if self._in_flight.get(offset) != delivery:
                self._moved.pop(delivery, None)
        if queue and (not heap or queue[0][0] <= heap[0][0]):
            return queue[0][0]
        return heap[0][0] if heap else None

    def _counts(self, entry: tuple[int, int, int]) -> bool:
        deadline, offset, delivery = entry
        return self._in_flight.get(offset) == delivery and self._moved.get(delivery, deadline) == deadline
