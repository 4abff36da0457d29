"""A set of integers as sorted, disjoint ranges: memory grows with the gaps, not with the members."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["RangeSet", "among"]


class RangeSet:
    """Half-open ranges that neither overlap nor touch."""

    __slots__ = ("_starts", "_stops", "total")

    def __init__(self) -> None:
        """Make an empty set."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total: int = 0

    def __bool__(self) -> bool:
        """Return whether the set has any member."""
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) in order."""
        return zip(self._starts, self._stops, strict=True)

    def __contains__(self, number: int) -> bool:
        """Return whether `number` is a member."""
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def copy(self) -> RangeSet:
        """Return a set of the same members."""
        made = RangeSet()
        made._starts, made._stops, made.total = self._starts.copy(), self._stops.copy(), self.total
        return made

    @property
    def last(self) -> int:
        """The number after the largest member; 0 if empty."""
        return self._stops[-1] if self._stops else 0

    def add(self, start: int, stop: int) -> int:
        """Add the range `start` to `stop`; return how many members are new."""
        if stop <= start:
            return 0
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        if low == high:
            self._starts.insert(low, start)
            self._stops.insert(low, stop)
            added = stop - start
        else:
            covered = sum(self._stops[low:high]) - sum(self._starts[low:high])
            merged_start, merged_stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
            self._starts[low:high] = [merged_start]
            self._stops[low:high] = [merged_stop]
            added = merged_stop - merged_start - covered
        self.total += added
        return added

    def add_new(self, edges: list[int]) -> None:
        """Add ranges that have no member yet: each start and its stop, in order, no two touching."""
        starts, stops = edges[0::2], edges[1::2]
        self.total += sum(stops) - sum(starts)
        low, high = bisect_left(self._stops, starts[0]), bisect_right(self._starts, stops[-1])
        if low < high:
            # Where two ranges touch, the stop of one and the start of the other cancel out.
            edges = sorted(set(edges) ^ set(chain(self._starts[low:high], self._stops[low:high])))
            starts, stops = edges[0::2], edges[1::2]
        self._starts[low:high] = starts
        self._stops[low:high] = stops

    def next_missing(self, number: int) -> int:
        """Return the first number from `number` on that is not a member."""
        at = bisect_right(self._starts, number) - 1
        return self._stops[at] if at >= 0 and number < self._stops[at] else number

    def next_present(self, number: int, stop: int) -> int:
        """Return the first member from `number` on and before `stop`; `stop` if there is none."""
        at = bisect_right(self._stops, number)
        return min(max(self._starts[at], number), stop) if at < len(self._starts) else stop

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all of `start` to `stop` are members."""
        return stop <= start or self.next_missing(start) >= stop

    def discard_below(self, number: int) -> None:
        """Remove every member below `number`."""
        at = bisect_right(self._stops, number)
        self.total -= sum(self._stops[:at]) - sum(self._starts[:at])
        del self._starts[:at], self._stops[:at]
        if self._starts and self._starts[0] < number:
            self.total -= number - self._starts[0]
            self._starts[0] = number

    def discard_from(self, number: int) -> None:
        """Remove `number` and every member above it."""
        at = bisect_left(self._starts, number)
        self.total -= sum(self._stops[at:]) - sum(self._starts[at:])
        del self._starts[at:], self._stops[at:]
        if self._stops and self._stops[-1] > number:
            self.total -= self._stops[-1] - number
            self._stops[-1] = number


def among(numbers: Collection[int], start: int, stop: int) -> list[int]:
    """Return those of some distinct numbers that are from `start` on and below `stop`, in the faster way."""
    if stop - start <= len(numbers):
        return [number for number in range(start, stop) if number in numbers]
    return [number for number in numbers if start <= number < stop]
