"""The deferred messages of a channel: when they are due.

Moments are whole nanoseconds of the caller's clock, which must be monotonic.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any, Final

from aiodq.delivery.offset_map import OffsetMap
from aiodq.delivery.stale_heap import StaleHeap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Deferrals", "later_than"]

_OFFSET_BITS: Final = 64
_OFFSET: Final = (1 << _OFFSET_BITS) - 1
_SPREAD: Final = 1000
"""The most messages added together that are entered at once: half a millisecond's work."""


def later_than(moment: int, start: int, dues: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return which of the consecutive messages from `start` on are due after this moment, and their due times."""
    alike = _are_alike(dues)
    if (dues[0] if alike else min(dues)) > moment:
        return range(start, start + len(dues)), dues
    if alike:
        return (), ()
    later = [offset for offset, due in enumerate(dues, start) if due > moment]
    return later, [dues[offset - start] for offset in later]


def _are_alike(dues: Sequence[int]) -> bool:
    """Return whether all moments are the same; of very many that are not, mostly by a look at two of them."""
    return dues[0] == dues[-1] and dues.count(dues[0]) == len(dues)


class Deferrals:
    """Deferred messages: offsets, each with the moment at which it is due.

    Each costs about 130 bytes of memory. Consecutive messages that are due at the same moment and were added together
    cost next to nothing until then: only the first is an entry, and the next becomes one when that is gone.
    """

    __slots__ = ("_behind", "_heap", "_keys", "_starts", "_tails", "_unspread")

    def __init__(self) -> None:
        """Start without messages."""
        # Moment and offset in one number, which the heap and the mapping share.
        self._keys: OffsetMap[int] = OffsetMap()
        keys = self._keys
        self._heap: StaleHeap[int] = StaleHeap(lambda key: keys.get(key & _OFFSET) == key)
        # The starts of the tails of runs, in order; the stop and the moment of each; the number of messages in them.
        # The message before a tail is an entry.
        self._starts: list[int] = []
        self._tails: OffsetMap[tuple[int, int]] = OffsetMap()
        self._behind = 0
        # Very many messages added together, whose due times are still to be entered one by one: the first offset, the
        # due times, the index of the first one's, what is to be added to each, and the common due time until then.
        self._unspread: list[tuple[int, Sequence[int], int, int, int]] = []

    def __len__(self) -> int:
        """Return the number of deferred messages."""
        return self._keys.size + self._behind

    def __contains__(self, offset: int) -> bool:
        """Return whether an offset is deferred."""
        return offset in self._keys or self._tail_with(offset) is not None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, due)."""
        for offset, key in self._keys.items():
            yield offset, key >> _OFFSET_BITS
        for start, (stop, due) in self._tails.items():
            for offset in range(start, stop):
                yield offset, due

    def copy(self) -> Deferrals:
        """Return a copy, from which nothing can be taken."""
        made = Deferrals()
        made._keys, made._behind = self._keys.copy(), self._behind
        made._starts, made._tails = self._starts.copy(), self._tails.copy()
        made._unspread = self._unspread.copy()
        return made

    def parts(self) -> tuple[list[int] | dict[int, Any], ...]:
        """See `OffsetMap.parts`."""
        return *self._heap.parts(), self._starts, *self._keys.parts(), *self._tails.parts()

    @staticmethod
    def place(offset: int, due: int) -> int:
        """Return the place of a deferred message in the order of all that there may be."""
        return due << _OFFSET_BITS | offset

    def in_order(self, after: int = -1) -> Iterator[tuple[int, int]]:
        """Yield (offset, due) by moment, as of the first step; some may be stale or deferred again.

        Args:
            after: the place after which to begin, as `place` returns it.
        """
        while self.spread():
            pass
        heap, keys, tails, before = self._heap.copy(), self._keys.copy(), self._tails.copy(), -1
        begin, passed = after >> _OFFSET_BITS, after & _OFFSET
        if after >= 0:
            heap = [key for key in heap if key >> _OFFSET_BITS >= begin]  # the rest of a run may lie after its first
            heapq.heapify(heap)
        while heap:
            key = heapq.heappop(heap)
            # An older entry of a message may still be in the heap, also if the message is in the rest of a run now.
            if key == before or keys.get(key & _OFFSET) != key:
                continue
            before = key
            offset, due = key & _OFFSET, key >> _OFFSET_BITS
            if key > after:
                yield offset, due
            stop, moment = tails.get(offset + 1, (0, 0))
            # The heap may still hold an earlier entry of this message, but its tail belongs to the current one.
            first = max(offset, passed if due == begin else 0) + 1
            for following in range(first, stop if moment == due else 0):
                yield following, due

    def due(self, offset: int) -> int | None:
        """Return when an offset is due, or None if it is not deferred."""
        key = self._keys.get(offset)
        if key is not None:
            return key >> _OFFSET_BITS
        start = self._tail_with(offset)
        return None if start is None else self._tails[start][1]

    def add(self, offset: int, due: int) -> None:
        """Defer an offset until `due`, replacing any earlier due time."""
        if self._behind:
            self.discard(offset)
        self._enter(offset, due)

    def _enter(self, offset: int, due: int) -> None:
        key = max(due, 0) << _OFFSET_BITS | offset
        self._keys[offset] = key
        self._heap.add(key, self._keys.size)

    def add_all(self, start: int, dues: Sequence[int], ahead: int = 0) -> None:
        """Add consecutive offsets from `start` on, none of them deferred, given their due times less `ahead`.

        Very many have due times of their own only once `spread` was called until it returns False.
        """
        alike = _are_alike(dues)
        if alike or len(dues) > _SPREAD:
            # All with the last of them, so that none comes before it is due.
            due = max((dues[0] if alike else max(dues)) + ahead, 0)
            self._enter(start, due)
            self._add_tail(start + 1, start + len(dues), due)
            if not alike:
                self._unspread.append((start, dues, 0, ahead, due))
            return
        keys = [max(each + ahead, 0) << _OFFSET_BITS | offset for offset, each in enumerate(dues, start)]
        self._keys.update(range(start, start + len(keys)), keys)
        self._heap.add_all(keys, self._keys.size)

    def spread(self) -> bool:
        """Enter the due times of some of very many messages that were added together; return whether more are left."""
        if self._unspread:
            start, dues, at, ahead, due = self._unspread.pop(0)
            if at + _SPREAD < len(dues):
                self._unspread.insert(0, (start, dues, at + _SPREAD, ahead, due))
            self._spread(start + at, dues[at : at + _SPREAD], ahead, due)
        return bool(self._unspread)

    def _spread(self, start: int, dues: Sequence[int], ahead: int, due: int) -> None:
        stop = start + len(dues)
        end, common = self._tails.get(start + 1, (start + 1, due))
        if self._keys.get(start) == self.place(start, due) and common == due and end >= stop:
            self.discard_range(start, stop)
            self.add_all(start, dues, ahead)
            return
        # Some of them may be no longer deferred, or until another moment.
        for offset, own in enumerate(dues, start):
            if self.due(offset) == due:
                self.add(offset, own + ahead)

    def _add_tail(self, start: int, stop: int, due: int) -> None:
        if start < stop:
            insort(self._starts, start)
            self._tails[start] = stop, due
            self._behind += stop - start

    def _pop_tail(self, start: int) -> tuple[int, int]:
        del self._starts[bisect_left(self._starts, start)]
        stop, due = self._tails[start]
        self._tails.pop(start)
        self._behind -= stop - start
        return stop, due

    def _tail_with(self, offset: int) -> int | None:
        """Return the start of the tail that contains the offset, or None."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._tails[self._starts[at]][0]:
            return None
        return self._starts[at]

    def _promote(self, offset: int) -> None:
        """Make an entry of the first message of the tail that starts here, if any: the entry before it is gone."""
        if offset in self._tails:
            stop, due = self._pop_tail(offset)
            self._enter(offset, due)
            self._add_tail(offset + 1, stop, due)

    def discard(self, offset: int) -> None:
        """Remove an offset, if it is deferred."""
        if self._keys.pop(offset) is not None:
            self._promote(offset + 1)
            return
        start = self._tail_with(offset)
        if start is not None:
            stop, due = self._pop_tail(start)
            self._add_tail(start, offset, due)
            self._add_tail(offset + 1, stop, due)
            self._promote(offset + 1)

    def discard_range(self, start: int, stop: int) -> None:
        """Remove everything from `start` to `stop`."""
        if self._behind:
            self._discard_tails(start, stop)
        self._keys.discard_range(start, stop)
        self._promote(stop)

    def _discard_tails(self, start: int, stop: int) -> None:
        """Cut a range out of the tails. The caller then removes the entry before what follows."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        for at in self._starts[first : bisect_left(self._starts, stop)]:
            end, due = self._tails[at]
            if end > start:
                self._pop_tail(at)
                self._add_tail(at, start, due)
                self._add_tail(stop, end, due)

    def take(self, now: int, most: int = sys.maxsize) -> list[int]:
        """Remove and return up to `most` offsets that are due, earliest first."""
        found: list[int] = []
        heap, keys, last = self._heap, self._keys, now << _OFFSET_BITS | _OFFSET
        while len(found) < most and (key := heap.first()) is not None and key <= last:
            heap.pop()
            offset = key & _OFFSET
            if keys.get(offset) != key:
                break  # after very many stale entries: `next` is in the past
            keys.pop(offset)
            found.append(offset)
            if self._behind:
                self._take_tail(offset + 1, most, found)
        return found

    def _take_tail(self, start: int, most: int, found: list[int]) -> None:
        """Take from the tail that starts here, if any: it is due like the entry before it."""
        if start not in self._tails:
            return
        stop, due = self._pop_tail(start)
        end = min(stop, start + most - len(found))
        found += range(start, end)
        if end < stop:
            self._enter(end, due)
            self._add_tail(end + 1, stop, due)

    def soon(self, number: int, within: int) -> list[int]:
        """Return up to `number` offsets due within `within` nanoseconds of the earliest: about the first ones."""
        first = self.next()
        if first is None:
            return []
        found: list[int] = []
        for key in self._heap.early(number):
            offset = key & _OFFSET
            if key >> _OFFSET_BITS <= first + within and self._keys.get(offset) == key:
                found += range(offset, max(self._tails.get(offset + 1, (0, 0))[0], offset + 1))[:number]
        return list(dict.fromkeys(found))[:number]  # a message deferred again to the same moment is in the heap twice

    def next(self) -> int | None:
        """Return the earliest moment, or None. It may be too early if very many messages were deferred again since."""
        key = self._heap.first()
        return None if key is None else key >> _OFFSET_BITS
