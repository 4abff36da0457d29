"""Numbered messages, kept in runs of consecutive numbers: a run costs about as much as a single message."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["GONE", "HERE", "NumberRun", "NumberRuns", "in_parts", "marked_ranges", "neighbours"]

GONE: Final = 0
HERE: Final = 1

_THERE: Final = bytes(mark != GONE for mark in range(256))
"""Translates marks into 1 for messages that are not gone."""


class NumberRun:
    """Messages with consecutive numbers, some of which may be gone.

    Attributes:
        number: the first message's number.
        marks: a byte each: `GONE`, `HERE`, or another state that the run's holder defines.
        left: how many are not gone.
    """

    __slots__ = ("left", "marks", "number")

    def __init__(self, number: int, count: int) -> None:
        """Start with all messages here."""
        self.number: int = number
        self.marks: bytearray = bytearray([HERE]) * count
        self.left: int = count

    def lengthen(self, count: int) -> None:
        """Add `count` messages at the end; the run must not be in `NumberRuns` yet."""
        self.marks += bytes([HERE]) * count
        self.left += count


R = TypeVar("R", bound=NumberRun)


class NumberRuns(Generic[R]):
    """Runs without a common number, in the order of their numbers."""

    __slots__ = ("_count", "_numbers", "_runs")

    def __init__(self) -> None:
        """Start without runs."""
        self._numbers: list[int] = []
        self._runs: list[R] = []
        self._count = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def __iter__(self) -> Iterator[R]:
        """Yield the runs as they are now."""
        return iter(list(self._runs))

    def add(self, run: R) -> None:
        """Add a run."""
        at = bisect_left(self._numbers, run.number)
        self._numbers.insert(at, run.number)
        self._runs.insert(at, run)
        self._count += run.left

    def find(self, number: int) -> tuple[R, int] | None:
        """Return a message's run, and its index there; None if there is none, or it is gone."""
        at = bisect_right(self._numbers, number) - 1
        if at < 0:
            return None
        run = self._runs[at]
        place = number - run.number
        return (run, place) if place < len(run.marks) and run.marks[place] != GONE else None

    def parts(self, numbers: range) -> list[tuple[R, int, int]]:
        """Return the runs that contain any of these numbers, each with start and stop index."""
        at = bisect_right(self._numbers, numbers.start) - 1
        if at < 0:
            at = 0
        else:
            run = self._runs[at]
            first, last = numbers.start - run.number, numbers.stop - run.number
            if first < last <= len(run.marks):
                return [(run, first, last)]  # nearly always
        found: list[tuple[R, int, int]] = []
        while at < len(self._runs) and self._numbers[at] < numbers.stop:
            run = self._runs[at]
            start = max(numbers.start - run.number, 0)
            stop = min(numbers.stop - run.number, len(run.marks))
            if start < stop:
                found.append((run, start, stop))
            at += 1
        return found

    def drop(self, run: R, start: int, stop: int) -> None:
        """Mark messages of a run as gone; the run goes with its last message."""
        there = stop - start - run.marks.count(GONE, start, stop)
        if stop - start == 1:
            run.marks[start] = GONE
        else:
            run.marks[start:stop] = bytes(stop - start)
        run.left -= there
        self._count -= there
        if there and not run.left:
            at = bisect_left(self._numbers, run.number)
            del self._numbers[at], self._runs[at]

    def restore(self, numbers: range) -> tuple[R, int] | None:
        """Restore messages of one run that are gone; return it and the first one's index, None if it is gone, too."""
        for run, start, stop in self.parts(numbers):
            run.marks[start:stop] = bytes([HERE]) * (stop - start)
            run.left += stop - start
            self._count += stop - start
            return run, start
        return None

    def clear(self) -> None:
        """Remove everything."""
        self._numbers.clear()
        self._runs.clear()
        self._count = 0


def marked_ranges(marks: bytearray, start: int, stop: int, table: bytes = _THERE) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the indexes whose marks `table` translates into 1."""
    flags = marks[start:stop].translate(table)
    at = flags.find(1)
    while at >= 0:
        end = flags.find(0, at)
        end = len(flags) if end < 0 else end
        yield start + at, start + end
        at = flags.find(1, end)


def neighbours(numbers: Iterable[int]) -> list[range]:
    """Return numbers, in their order, as ranges of consecutive ones."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def in_parts(numbers: Iterable[range], most: int) -> list[list[range]]:
    """Return ranges of numbers, in their order, in parts of at most `most` numbers."""
    found: list[list[range]] = []
    left = 0
    for each in numbers:
        rest = each
        while rest:
            if not left:
                found.append([])
                left = most
            found[-1].append(rest[:left])
            rest, left = rest[left:], left - len(found[-1][-1])
    return found
