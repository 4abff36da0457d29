"""The deadlines of a channel: when messages in flight time out.

Moments are whole nanoseconds of the caller's clock, which must be monotonic.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiodq.delivery.stale_heap import StaleHeap

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Deadlines"]

_BLOCK: Final = 128
_MOST_STALE: Final = 1000
"""Stale entries dropped by one look for the first."""

_Entry: TypeAlias = tuple[int, int, int]
"""A deadline, an offset, a delivery number."""


class Deadlines:
    """The deadlines of messages in flight.

    All messages of a channel have the same timeout, so deadlines are added in order; only moved ones need sorting.
    """

    __slots__ = ("_blocks", "_counts", "_heap", "_in_flight", "_last", "_latest", "_moved", "_swept")

    def __init__(self, in_flight: Mapping[int, int]) -> None:
        """Start without deadlines.

        Args:
            in_flight: the channel's delivery numbers by offset. A message that is not in it has no deadline.
        """
        self._in_flight = in_flight
        # Entries that came in order, in blocks, the last of which has room; and the latest deadline among them. The
        # blocks before index `_swept` have been swept of stale entries.
        self._last: list[_Entry] = []
        self._blocks = [self._last]
        self._latest = self._swept = 0
        moved = self._moved = dict[int, int]()

        def counts(entry: _Entry) -> bool:
            deadline, offset, delivery = entry
            if in_flight.get(offset) == delivery:
                return moved.get(delivery, deadline) == deadline
            moved.pop(delivery, None)
            return False

        self._counts = counts
        # Entries of deadlines that were moved.
        self._heap: StaleHeap[_Entry] = StaleHeap(counts)

    def add(self, deadline: int, offset: int, delivery: int) -> None:
        """Add a message's deadline."""
        if deadline < self._latest:
            self.move(deadline, offset, delivery)
            return
        self._latest = deadline
        self._last.append((deadline, offset, delivery))
        if len(self._last) == _BLOCK:
            # Two sweeps per block: so at most half of the entries are stale, and no call takes long.
            self._sweep()
            self._sweep()
            self._last = []
            self._blocks.append(self._last)

    def add_all(self, deadline: int, offsets: range, delivery: int) -> None:
        """Add one deadline for several messages, whose delivery numbers are consecutive, beginning with this one."""
        for number, offset in enumerate(offsets, delivery):
            self.add(deadline, offset, number)

    def _sweep(self) -> None:
        """Drop the stale entries of the next block; the next call continues with the one after it."""
        blocks, at = self._blocks, self._swept
        in_flight, moved = self._in_flight, self._moved  # what `_counts` checks, without a call for each
        kept = [
            entry
            for entry in blocks[at]
            if in_flight.get(entry[1]) == entry[2] and moved.get(entry[2], entry[0]) == entry[0]
        ]
        if at and len(blocks[at - 1]) + len(kept) <= _BLOCK:
            blocks[at - 1] += kept
            del blocks[at]
        else:
            blocks[at] = kept
            at += 1
        self._swept = at if at < len(blocks) else 0

    def move(self, deadline: int, offset: int, delivery: int) -> None:
        """Replace a message's deadline."""
        self._moved[delivery] = deadline
        self._heap.add((deadline, offset, delivery), len(self._in_flight))

    def move_all(self, deadline: int, offsets: range, delivery: int) -> None:
        """Replace the deadlines of messages whose delivery numbers are consecutive, beginning with this one."""
        for number, offset in enumerate(offsets, delivery):
            self.move(deadline, offset, number)

    def parts(self) -> tuple[list[Any] | dict[int, int], ...]:
        """See `OffsetMap.parts`."""
        return self._blocks, *self._heap.parts(), self._moved

    def take(self, now: int, most: int = sys.maxsize) -> list[int]:
        """Remove and return up to `most` offsets whose deadline has passed, earliest first."""
        found: dict[int, None] = {}  # one moved to its old deadline is there twice
        while len(found) < most and (moment := self.next()) is not None and moment <= now:
            queue, entry = self._blocks[0], self._heap.first()
            if queue and queue[0][0] == moment:
                entry = queue.pop(0)
            elif entry is not None and entry[0] == moment:
                self._heap.pop()
            else:
                break  # that moment was of a stale entry, which is gone: what comes first may not be late
            if not self._counts(entry):
                break  # after very many stale entries: `next` is in the past
            self._moved.pop(entry[2], None)
            found[entry[1]] = None
        return list(found)

    def next(self) -> int | None:
        """Return the earliest deadline, or None. It may be too early if very many messages were settled since."""
        queue, moved = self._first(), self._heap.first()
        if queue and (moved is None or queue[0][0] <= moved[0]):
            return queue[0][0]
        return None if moved is None else moved[0]

    def _first(self) -> list[_Entry]:
        """Return the first block. It begins with a valid entry unless it is empty or very many entries were stale."""
        blocks, most = self._blocks, _MOST_STALE
        while True:
            block = blocks[0]
            while block and most and not self._counts(block[0]):
                block.pop(0)
                most -= 1
            if block:
                return block
            if len(blocks) == 1:
                self._latest = 0
                return block
            del blocks[0]
            self._swept = max(self._swept - 1, 0)
