"""A set of integers as sorted, disjoint ranges: memory grows with the gaps, not with the members."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

__all__ = ["RangeSet", "among", "joined"]

_MOST: Final = 1024
"""Edges in a block at most: each change copies as many, in less than a microsecond."""
_FEW: Final = _MOST // 2
"""Edges in two neighbours that become one block."""


class RangeSet:  # noqa: PLW1641 - it changes, so it has no hash
    """Half-open ranges that neither overlap nor touch.

    Each range has two edges, its start and its stop; a number is a member if an odd number of edges is not above it.
    The edges are in blocks of whole ranges. A block is never changed, only replaced: so a copy shares all blocks, and
    both a copy and a change cost as much however many ranges there are, but for the list of the blocks.
    """

    __slots__ = ("_blocks", "_firsts", "total")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Make a set of ranges that are in order, and neither overlap nor touch."""
        # INVARIANT: no block is empty, and each begins with a start; `_firsts` holds these.
        self._blocks: list[array[int]] = []
        self._firsts: list[int] = []
        edges = array("q", chain.from_iterable(ranges))
        self.total: int = _members(edges)
        self._put(0, 0, edges)

    def __bool__(self) -> bool:
        """Return whether the set has any member."""
        return bool(self._blocks)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return sum(map(len, self._blocks)) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) in order."""
        for block in self._blocks:
            yield from zip(block[0::2], block[1::2], strict=True)

    def __eq__(self, other: object) -> bool:
        """Return whether another set has the same members."""
        return isinstance(other, RangeSet) and self.total == other.total and list(self) == list(other)

    def __contains__(self, number: int) -> bool:
        """Return whether `number` is a member."""
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and bisect_right(self._blocks[at], number) % 2 == 1

    def copy(self) -> RangeSet:
        """Return a set of the same members."""
        made = RangeSet()
        made._blocks, made._firsts, made.total = self._blocks.copy(), self._firsts.copy(), self.total
        return made

    @property
    def last(self) -> int:
        """The number after the largest member; 0 if empty."""
        return self._blocks[-1][-1] if self._blocks else 0

    def add(self, start: int, stop: int) -> int:
        """Add the range `start` to `stop`; return how many members are new."""
        if stop <= start:
            return 0
        at = max(bisect_right(self._firsts, stop) - 1, 0)
        if self._blocks and (not at or self._firsts[at] <= start):
            low, high, edges = at, at + 1, self._blocks[at]
        else:
            low, high, edges = self._concerned(start, stop)
        begin, end = bisect_left(edges, start), bisect_right(edges, stop)
        added = stop - start
        # Blocks begin with a start: after an odd number of edges is the inside, or the end, of a range.
        if begin < end:
            between = edges[begin:end]
            if begin % 2:
                between.insert(0, start)
            if end % 2:
                between.append(stop)
            added -= _members(between)
        elif begin % 2:
            return 0
        self.total += added
        made = edges[:begin] + array("q", (start, stop)[begin % 2 : 2 - end % 2]) + edges[end:]
        if high == low + 1 and len(edges) <= len(made) <= _MOST:
            self._blocks[low], self._firsts[low] = made, made[0]
        else:
            self._put(low, high, made)
        return added

    def add_all(self, ranges: Collection[tuple[int, int]]) -> bool:
        """Add ranges in any order; return False, having added none, if two of them overlap or one has a member."""
        found = joined(ranges)
        if _total(found) < _total(ranges) or any(self.next_present(start, stop) < stop for start, stop in found):
            return False
        if found:
            self.add_new(list(chain.from_iterable(found)))
        return True

    def add_new(self, edges: list[int]) -> None:
        """Add ranges that have no member yet: each start and its stop, in order, no two touching."""
        self.total += sum(edges[1::2]) - sum(edges[0::2])
        low, high, there = self._concerned(edges[0], edges[-1])
        begin, end = bisect_left(there, edges[0]), bisect_right(there, edges[-1])
        if begin < end:
            # Where two ranges touch, the stop of one and the start of the other cancel out.
            edges = sorted(set(edges).symmetric_difference(there[begin:end]))
        self._put(low, high, there[:begin] + array("q", edges) + there[end:])

    def _concerned(self, start: int, stop: int) -> tuple[int, int, array[int]]:
        """Return from which block on and below which one a change from `start` to `stop` goes, and their edges."""
        low = max(bisect_right(self._firsts, start) - 1, 0)
        high = max(bisect_right(self._firsts, stop), low)
        blocks = self._blocks[low:high]
        return low, high, blocks[0] if len(blocks) == 1 else array("q", chain.from_iterable(blocks))

    def _put(self, low: int, high: int, edges: array[int]) -> None:
        """Put these edges in the place of some blocks, and join them with a neighbour if there are few."""
        if low and len(self._blocks[low - 1]) + len(edges) <= _FEW:
            low -= 1
            edges = self._blocks[low] + edges
        if high < len(self._blocks) and len(edges) + len(self._blocks[high]) <= _FEW:
            edges = edges + self._blocks[high]
            high += 1
        made = [edges[at : at + _FEW] for at in range(0, len(edges), _FEW)] if len(edges) > _MOST else [edges]
        self._blocks[low:high] = filter(None, made)
        self._firsts[low:high] = [block[0] for block in made if block]

    def clear(self) -> None:
        """Remove every member."""
        self._blocks.clear()
        self._firsts.clear()
        self.total = 0

    def next_missing(self, number: int) -> int:
        """Return the first number from `number` on that is not a member."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return number
        block = self._blocks[at]
        edge = bisect_right(block, number)
        return block[edge] if edge % 2 else number

    def next_present(self, number: int, stop: int) -> int:
        """Return the first member from `number` on and before `stop`; `stop` if there is none."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0:
            block = self._blocks[at]
            edge = bisect_right(block, number)
            if edge < len(block):
                return min(number if edge % 2 else block[edge], stop)
        return min(self._firsts[at + 1], stop) if at + 1 < len(self._firsts) else stop

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of the members from `start` to `stop`, in order."""
        for block in self._blocks[max(bisect_right(self._firsts, start) - 1, 0) :]:
            # The number of edges up to `start` is odd within a range.
            for at in range(bisect_right(block, start) & ~1, len(block), 2):
                first = max(block[at], start)
                if first >= stop:
                    return
                yield first, min(block[at + 1], stop)

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all of `start` to `stop` are members."""
        return stop <= start or self.next_missing(start) >= stop

    def discard_below(self, number: int) -> None:
        """Remove every member below `number`."""
        if not self._firsts or number <= self._firsts[0]:
            return
        at = bisect_right(self._firsts, number) - 1
        edges = self._blocks[at]
        cut = bisect_right(edges, number)
        gone, kept = edges[:cut], edges[cut:]
        if cut % 2:
            gone.append(number)
            kept.insert(0, number)
        self.total -= sum(map(_members, (*self._blocks[:at], gone)))
        self._put(0, at + 1, kept)

    def discard_from(self, number: int) -> None:
        """Remove `number` and every member above it."""
        if number >= self.last:
            return
        at = max(bisect_left(self._firsts, number) - 1, 0)
        edges = self._blocks[at]
        cut = bisect_left(edges, number)
        kept, gone = edges[:cut], edges[cut:]
        if cut % 2:
            kept.append(number)
            gone.insert(0, number)
        self.total -= sum(map(_members, (gone, *self._blocks[at + 1 :])))
        self._put(at, len(self._blocks), kept)


def _members(edges: array[int]) -> int:
    """Return how many members whole ranges have."""
    return sum(edges[1::2]) - sum(edges[0::2])


def _total(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those as one that overlap or touch."""
    found: list[tuple[int, int]] = []
    last = -1
    for start, stop in sorted(ranges):
        if start > last:
            found.append((start, stop))
            last = stop
        elif stop > last:
            found[-1] = found[-1][0], stop
            last = stop
    return found


def among(numbers: Collection[int], start: int, stop: int) -> list[int]:
    """Return those of some distinct numbers that are from `start` on and below `stop`, in the faster way."""
    if stop - start <= len(numbers):
        return [number for number in range(start, stop) if number in numbers]
    return [number for number in numbers if start <= number < stop]
