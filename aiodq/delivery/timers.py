"""What a channel waits for: messages deferred until a moment, and those in flight until their time is up.

Moments are whole nanoseconds of whatever clock the caller has, as long as it never goes back.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Deadlines", "Deferrals", "later_than"]

_OFFSET_BITS: Final = 64
_OFFSET: Final = (1 << _OFFSET_BITS) - 1
_SLACK: Final = 64
_BLOCK: Final = 128

_Entry: TypeAlias = tuple[int, int, int]
"""A deadline, an offset, a delivery number."""
"""So many entries that stand for nothing any more are left alone."""


def later_than(moment: int, start: int, dues: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return which of some neighbours from `start` on are due later than this moment, and when."""
    alike = dues.count(dues[0]) == len(dues)
    if (dues[0] if alike else min(dues)) > moment:
        return range(start, start + len(dues)), dues
    if alike:
        return (), ()
    later = [offset for offset, due in enumerate(dues, start) if due > moment]
    return later, [dues[offset - start] for offset in later]


class Deferrals:
    """Offsets, each with the moment at which it is due.

    One costs about 130 bytes of memory. Neighbours that are due at the same moment cost next to nothing until then, if
    they were added together: the first of them is an entry, and the next becomes one when that is gone.
    """

    __slots__ = ("_behind", "_heap", "_keys", "_starts", "_tails")

    def __init__(self) -> None:
        """Begin empty."""
        # The moment and the offset in one number, which the heap and the mapping share.
        self._keys: dict[int, int] = {}
        self._heap: list[int] = []
        # Where the rests of runs start, in order; each one's stop and moment; how many messages they are. The message
        # before a rest is an entry.
        self._starts: list[int] = []
        self._tails: dict[int, tuple[int, int]] = {}
        self._behind = 0

    def __len__(self) -> int:
        """Return how many are deferred."""
        return len(self._keys) + self._behind

    def __contains__(self, offset: int) -> bool:
        """Return whether the offset is deferred."""
        return offset in self._keys or self._tail_with(offset) is not None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, due)."""
        for offset, key in self._keys.items():
            yield offset, key >> _OFFSET_BITS
        for start, (stop, due) in self._tails.items():
            for offset in range(start, stop):
                yield offset, due

    def copy(self) -> Deferrals:
        """Return the same, of which nothing can be taken."""
        made = Deferrals()
        made._keys, made._behind = self._keys.copy(), self._behind
        made._starts, made._tails = self._starts.copy(), self._tails.copy()
        return made

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, due) by moment, as of the first step; some of it may be deferred no more, or anew."""
        heap, keys, tails, before = self._heap.copy(), self._keys.copy(), self._tails.copy(), -1
        while heap:
            key = heapq.heappop(heap)
            # What was said of a message before may still stand in the heap, also where it is in the rest of a run now.
            if key == before or keys.get(key & _OFFSET) != key:
                continue
            before = key
            offset, due = key & _OFFSET, key >> _OFFSET_BITS
            yield offset, due
            stop, moment = tails.get(offset + 1, (0, 0))
            # What was said of a message before may still stand in the heap, but not of those behind it.
            for following in range(offset + 1, stop if moment == due else 0):
                yield following, due

    def due(self, offset: int) -> int | None:
        """Return when an offset is due, or None where it is not deferred."""
        key = self._keys.get(offset)
        if key is not None:
            return key >> _OFFSET_BITS
        start = self._tail_with(offset)
        return None if start is None else self._tails[start][1]

    def add(self, offset: int, due: int) -> None:
        """Defer an offset until `due`, whatever was said of it before."""
        if self._tails:
            self.discard(offset)
        self._enter(offset, due)

    def _enter(self, offset: int, due: int) -> None:
        key = max(due, 0) << _OFFSET_BITS | offset
        self._keys[offset] = key
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = sorted(self._keys.values())
        else:
            heapq.heappush(self._heap, key)

    def add_all(self, start: int, dues: Sequence[int], ahead: int = 0) -> None:
        """As `add`, of neighbours from `start` on, none of which is deferred: when each is due, less `ahead`."""
        due = max(dues[0] + ahead, 0)
        if dues.count(dues[0]) == len(dues):
            self._enter(start, due)
            self._add_tail(start + 1, start + len(dues), due)
            return
        keys = {offset: max(due + ahead, 0) << _OFFSET_BITS | offset for offset, due in enumerate(dues, start)}
        self._keys |= keys
        self._heap += keys.values()
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = list(self._keys.values())
        heapq.heapify(self._heap)

    def _add_tail(self, start: int, stop: int, due: int) -> None:
        if start < stop:
            insort(self._starts, start)
            self._tails[start] = stop, due
            self._behind += stop - start

    def _pop_tail(self, start: int) -> tuple[int, int]:
        del self._starts[bisect_left(self._starts, start)]
        stop, due = self._tails.pop(start)
        self._behind -= stop - start
        return stop, due

    def _tail_with(self, offset: int) -> int | None:
        """Return where the rest of a run starts that has the offset in it, or None."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._tails[self._starts[at]][0]:
            return None
        return self._starts[at]

    def _promote(self, offset: int) -> None:
        """Make an entry of the first message of the rest that starts here, if one does: the entry before it is gone."""
        if offset in self._tails:
            stop, due = self._pop_tail(offset)
            self._enter(offset, due)
            self._add_tail(offset + 1, stop, due)

    def discard(self, offset: int) -> None:
        """Forget an offset, if it is there."""
        if self._keys.pop(offset, None) is not None:
            self._promote(offset + 1)
            return
        start = self._tail_with(offset)
        if start is not None:
            stop, due = self._pop_tail(start)
            self._add_tail(start, offset, due)
            self._add_tail(offset + 1, stop, due)
            self._promote(offset + 1)

    def discard_range(self, start: int, stop: int) -> None:
        """Forget everything from `start` to `stop`."""
        if self._tails:
            self._discard_tails(start, stop)
        if stop - start <= len(self._keys):
            for offset in range(start, stop):
                self._keys.pop(offset, None)
        else:
            self._keys = {offset: key for offset, key in self._keys.items() if not start <= offset < stop}
        self._promote(stop)

    def _discard_tails(self, start: int, stop: int) -> None:
        """Cut a range out of the rests of runs. What is behind it has the entry before it taken away next."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        for at in self._starts[first : bisect_left(self._starts, stop)]:
            end, due = self._tails[at]
            if end > start:
                self._pop_tail(at)
                self._add_tail(at, start, due)
                self._add_tail(stop, end, due)

    def clear(self) -> None:
        """Forget everything."""
        self._keys.clear()
        self._heap.clear()
        self._starts.clear()
        self._tails.clear()
        self._behind = 0

    def take(self, now: int, most: int = sys.maxsize) -> list[int]:
        """Remove and return what is due, the earliest first, up to so many."""
        found: list[int] = []
        while len(found) < most and (moment := self.next()) is not None and moment <= now:
            offset = heapq.heappop(self._heap) & _OFFSET
            del self._keys[offset]
            found.append(offset)
            if self._tails:
                self._take_tail(offset + 1, most, found)
        return found

    def _take_tail(self, start: int, most: int, found: list[int]) -> None:
        """Likewise, of the rest that starts here, if one does: it is due as the entry before it was."""
        if start not in self._tails:
            return
        stop, due = self._pop_tail(start)
        end = min(stop, start + most - len(found))
        found += range(start, end)
        if end < stop:
            self._enter(end, due)
            self._add_tail(end + 1, stop, due)

    def soon(self, number: int, within: int) -> list[int]:
        """Return up to so many that are due within so many nanoseconds of the earliest: about the first of them."""
        first = self.next()
        if first is None:
            return []
        found: list[int] = []
        # The top of a heap is not sorted, but what is early is in it.
        for key in self._heap[:number]:
            offset = key & _OFFSET
            if key >> _OFFSET_BITS <= first + within and self._keys.get(offset) == key:
                found += range(offset, max(self._tails.get(offset + 1, (0, 0))[0], offset + 1))[:number]
        return list(dict.fromkeys(found))[:number]  # what was deferred anew to the same moment is there twice

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

    __slots__ = ("_blocks", "_heap", "_in_flight", "_last", "_latest", "_moved", "_swept")

    def __init__(self, in_flight: Mapping[int, int]) -> None:
        """Begin empty.

        Args:
            in_flight: delivery numbers by offset, as the channel has them. What is not in it has no deadline.
        """
        self._in_flight = in_flight
        # What came in order, in blocks, in the last of which is room; and the latest deadline among them. Of
        # those before the one with this index, what no longer counts is gone.
        self._last: deque[_Entry] = deque()
        self._blocks = [self._last]
        self._latest = self._swept = 0
        self._heap: list[_Entry] = []
        self._moved: dict[int, int] = {}

    def add(self, deadline: int, offset: int, delivery: int) -> None:
        """Expect a message back by then."""
        if deadline < self._latest:
            self.move(deadline, offset, delivery)
            return
        self._latest = deadline
        self._last.append((deadline, offset, delivery))
        if len(self._last) == _BLOCK:
            # Two for each: so no more than a half is what no longer counts, and no call takes long.
            self._sweep()
            self._sweep()
            self._last = deque()
            self._blocks.append(self._last)

    def add_all(self, deadline: int, offsets: range, delivery: int) -> None:
        """As `add`, of messages of which the first has this delivery number, and the others those behind it."""
        for number, offset in enumerate(offsets, delivery):
            self.add(deadline, offset, number)

    def _sweep(self) -> None:
        """Drop what no longer counts from the next block, and the next time from the one after it."""
        blocks, at = self._blocks, self._swept
        in_flight, moved = self._in_flight, self._moved  # as `_counts` asks, without a call for each
        kept = deque(
            [
                entry
                for entry in blocks[at]
                if in_flight.get(entry[1]) == entry[2] and moved.get(entry[2], entry[0]) == entry[0]
            ]
        )
        if at and len(blocks[at - 1]) + len(kept) <= _BLOCK:
            blocks[at - 1] += kept
            del blocks[at]
        else:
            blocks[at] = kept
            at += 1
        self._swept = at if at < len(blocks) else 0

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
        self._last = deque()
        self._blocks = [self._last]
        self._latest = self._swept = 0
        self._heap.clear()
        self._moved.clear()

    def take(self, now: int, most: int = sys.maxsize) -> list[int]:
        """Remove and return the offsets whose time is up, the earliest first, up to so many."""
        found: dict[int, None] = {}  # one may stand there twice, moved to where it was
        while len(found) < most and (moment := self.next()) is not None and moment <= now:
            queue = self._blocks[0]
            entry = queue.popleft() if queue and queue[0][0] == moment else heapq.heappop(self._heap)
            self._moved.pop(entry[2], None)
            found[entry[1]] = None
        return list(found)

    def next(self) -> int | None:
        """Return the earliest deadline, or None."""
        queue, heap = self._first(), self._heap
        while heap and not self._counts(heap[0]):
            _, offset, delivery = heapq.heappop(heap)
            if self._in_flight.get(offset) != delivery:
                self._moved.pop(delivery, None)
        if queue and (not heap or queue[0][0] <= heap[0][0]):
            return queue[0][0]
        return heap[0][0] if heap else None

    def _first(self) -> deque[_Entry]:
        """Return the first block, which begins with what counts, or is the only one, and empty."""
        blocks = self._blocks
        while True:
            block = blocks[0]
            while block and not self._counts(block[0]):
                block.popleft()
            if block:
                return block
            if len(blocks) == 1:
                self._latest = 0
                return block
            del blocks[0]
            self._swept = max(self._swept - 1, 0)

    def _counts(self, entry: _Entry) -> bool:
        deadline, offset, delivery = entry
        return self._in_flight.get(offset) == delivery and self._moved.get(delivery, deadline) == deadline
