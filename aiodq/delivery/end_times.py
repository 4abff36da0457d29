"""When the messages of a whole backlog expire, in bounded memory.

A timing wheel with an overflow: early end times are kept by moment, later ones only as one range of offsets, which has
to be read again when the early ones have passed.
"""

from __future__ import annotations

import heapq
from array import array
from itertools import chain
from typing import Final

from aiodq.delivery.range_set import RangeSet, joined

__all__ = ["EndTimes"]

_MOST_RANGES: Final = 100_000
"""Ranges of offsets that are kept by moment: at most about 25 MB."""

_PRECISION_BITS: Final = 10
_FINEST_BITS: Final = 20
_COARSEST_BITS: Final = 30
"""End times within the same 1/1024 of the remaining time are merged: within 1 ms at least, and within 1.07 s at most.
They count as ended when the last of them has ended, so a single one, or several at one moment, are exact."""


class _Slot:
    """Ranges that end at about the same moment: the latest end, and the starts and stops of the ranges in turn."""

    __slots__ = ("ends", "ranges")

    def __init__(self) -> None:
        self.ends = 0
        self.ranges = array("q")

    def add(self, start: int, stop: int, ends: int) -> int:
        """Add a range; return by how many the number of ranges grew."""
        self.ends = max(self.ends, ends)
        if self.ranges and self.ranges[-1] == start:
            self.ranges[-1] = stop
            return 0
        self.ranges.extend((start, stop))
        return 1


class EndTimes:
    """Ranges of offsets with their end times, in nanoseconds of a monotonic clock.

    An offset may be added more than once, and is returned at most as often.
    """

    __slots__ = ("_ended", "_heap", "_horizon", "_most", "_rest", "_slots", "ranges")

    def __init__(self, most: int = _MOST_RANGES) -> None:
        """Make an empty wheel; `most` is the number of ranges kept by moment."""
        self._most = most
        self._ended = RangeSet()
        self._slots: dict[int, _Slot] = {}
        self._heap: list[int] = []
        self._horizon: int | None = None
        self._rest: tuple[int, int] | None = None
        self.ranges: int = 0

    def add(self, start: int, stop: int, ends: int, now: int) -> None:
        """Add the messages from `start` to `stop`, which end at the moment `ends`; it is `now`."""
        if ends <= now:
            # Kept apart: as one of the others it could move some of them to the overflow, which has to be read again.
            self._ended.add(start, stop)
            return
        if self._horizon is not None and ends >= self._horizon:
            self._leave(start, stop)
            return
        bits = max((ends - now >> _PRECISION_BITS).bit_length(), _FINEST_BITS)
        bits = min(bits, _COARSEST_BITS)
        edge = (ends >> bits) + 1 << bits
        slot = self._slots.get(edge)
        if slot is None:
            slot = self._slots[edge] = _Slot()
            heapq.heappush(self._heap, edge)
        self.ranges += slot.add(start, stop, ends)
        if self.ranges > self._most:
            self._leave_the_later_half()

    def _leave(self, start: int, stop: int) -> None:
        rest = self._rest
        self._rest = (start, stop) if rest is None else (min(rest[0], start), max(rest[1], stop))

    def _leave_the_later_half(self) -> None:
        """Keep by moment only the earliest ranges; of the rest, only the offsets between which they lie."""
        self._heap.sort()
        kept = len(self._heap)
        while kept > 1 and self.ranges * 2 > self._most:
            kept -= 1
            slot = self._slots.pop(self._heap[kept])
            self.ranges -= len(slot.ranges) // 2
            self._leave(min(slot.ranges[0::2]), max(slot.ranges[1::2]))
        if kept < len(self._heap):
            self._horizon = self._heap[kept]
            del self._heap[kept:]

    def next(self) -> int | None:
        """Return the next moment at which `take` has something, or None."""
        return self._slots[self._heap[0]].ends if self._heap else None

    def take(self, now: int, most: int = _MOST_RANGES) -> list[tuple[int, int]]:
        """Remove and return the ranges that have ended, disjoint and in order.

        Up to `most` of those kept by moment: if there are more, `next` is in the past.
        """
        first = self.next()
        if not self._ended and (first is None or first > now):
            return []  # as after each put that ends later
        before, self._ended, edges = self._ended, RangeSet(), array("q")
        while len(edges) < 2 * most and self._heap and self._slots[self._heap[0]].ends <= now:
            ranges, room = self._slots[self._heap[0]].ranges, 2 * most - len(edges)
            edges.extend(ranges[:room])
            del ranges[:room]
            if not ranges:
                del self._slots[heapq.heappop(self._heap)]
        self.ranges -= len(edges) // 2
        return joined(chain(before, zip(edges[0::2], edges[1::2], strict=True)))

    def take_rest(self) -> tuple[int, int] | None:
        """Return the offsets between which to look for the next end times, once all ranges kept by moment are taken."""
        if self._heap:
            return None
        rest, self._rest, self._horizon = self._rest, None, None
        return rest
