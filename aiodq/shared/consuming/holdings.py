"""The messages of a channel that a process holds without owning the store, as a state machine.

Messages have numbers of the process's own, as two owners may give the same delivery number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.delivery.leases import TAKEN_AWAY
from aiodq.delivery.range_set import RangeSet, joined
from aiodq.shared.encoding.number_runs import GONE, HERE, NumberRun, NumberRuns, marked_ranges
from aiodq.wire.payload import Held, Range, add_range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aiodq.delivery.leases import Lease

__all__ = ["COMMITTING", "SETTLING", "HeldMessage", "Holdings", "Reserved", "numbers_of", "portions"]

SETTLING: Final = 2
"""Held, and an owner is asked to settle it."""
COMMITTING: Final = 3
"""Held, and a transaction is to settle it."""

_RESUMED: Final = 1000
"""Messages of one RESUME: the answer may have a row for each, and must not exceed `JSON` bytes."""

_LEFT: Final = bytes(HERE if mark == COMMITTING else mark for mark in range(256))
_FREE: Final = bytes(mark == HERE for mark in range(256))
_SETTLING: Final = bytes(mark == SETTLING for mark in range(256))
_NOT_SETTLING: Final = bytes(mark not in {GONE, SETTLING} for mark in range(256))


class HeldMessage(NamedTuple):
    """A message that this process holds: its offset, the owner's delivery number, and its number of deliveries."""

    offset: int
    delivery: int
    attempts: int


class Reserved(NamedTuple):
    """Messages that a transaction is to settle.

    Attributes:
        numbers: under which they are held.
        offset: the first one's offset; the others follow it.
        delivery: the owner's delivery number of the first one, when they were reserved.
    """

    numbers: range
    offset: int
    delivery: int


def numbers_of(reserved: Iterable[Reserved]) -> RangeSet:
    """Return the numbers under which messages are held."""
    return RangeSet(joined((each.numbers.start, each.numbers.stop) for each in reserved))


class _Origin(NamedTuple):
    """Which owner has delivered messages, and the number that it gave the first one."""

    epoch: int
    delivery: int


class _Run(NumberRun):
    """Messages of a lease whose offsets and delivery numbers are consecutive, too."""

    __slots__ = ("attempts", "delivery", "lease", "offset", "origin")

    def __init__(self, lease: Lease, number: int, delivery: int, count: int, attempts: int, *, origin: _Origin) -> None:
        super().__init__(number, count)
        self.lease = lease
        self.offset = lease.first + number - lease.number
        self.delivery = delivery
        self.attempts = attempts
        self.origin = origin

    def message_at(self, place: int) -> HeldMessage:
        return HeldMessage(self.offset + place, self.delivery + place, self.attempts)

    def part(self, start: int, stop: int) -> None:
        """Let none of these messages be settled by its mark in the lease."""
        marks, base = self.lease.marks, self.number - self.lease.number
        marks[base + start : base + stop] = marks[base + start : base + stop].translate(TAKEN_AWAY)


class Holdings:
    """The messages held: free to be settled, or about to be.

    A free message may be acked by its mark in its lease alone. The marks of all others show that they may not.

    Attributes:
        free: the number of messages that are not about to be settled.
    """

    def __init__(self) -> None:
        """Start without messages."""
        self._runs: NumberRuns[_Run] = NumberRuns()
        self.free: int = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._runs)

    def add(self, lease: Lease, delivery: int, attempts: int, epoch: int = 0) -> None:
        """Add the messages of a lease, which this owner has delivered under numbers from `delivery` on."""
        count = len(lease.marks)
        self._runs.add(_Run(lease, lease.number, delivery, count, attempts, origin=_Origin(epoch, delivery)))
        self.free += count

    def get(self, number: int) -> HeldMessage | None:
        """Return the message held under a number, or None."""
        found = self._runs.find(number)
        return None if found is None else found[0].message_at(found[1])

    def is_free(self, offset: int, number: int) -> bool:
        """Return whether a message is held under that number and not about to be settled."""
        found = self._runs.find(number)
        return found is not None and found[0].marks[found[1]] == HERE and found[0].offset + found[1] == offset

    def all_free(self, numbers: range) -> bool:
        """Return whether all of these numbers are held and not about to be settled."""
        parts = self._runs.parts(numbers)
        return sum(run.marks.count(HERE, start, stop) for run, start, stop in parts) == len(numbers)

    def free_of(self, numbers: range) -> list[range]:
        """Return which of these numbers are held and not about to be settled."""
        return [
            range(run.number + first, run.number + last)
            for run, start, stop in self._runs.parts(numbers)
            for first, last in marked_ranges(run.marks, start, stop, _FREE)
        ]

    def any_of(self, numbers: Iterable[range]) -> bool:
        """Return whether any of these numbers is held."""
        return any(
            run.marks.count(GONE, start, stop) < stop - start
            for each in numbers
            for run, start, stop in self._runs.parts(each)
        )

    def rows(self, numbers: Iterable[range]) -> list[HeldMessage]:
        """Return the messages held under these numbers."""
        return [
            run.message_at(place)
            for each in numbers
            for run, start, stop in self._runs.parts(each)
            for place in range(start, stop)
            if run.marks[place] != GONE
        ]

    def ranges(self, numbers: Iterable[range]) -> tuple[Range, ...]:
        """Return the messages held under these numbers in the owner's terms."""
        found: list[Range] = []
        self.gather(numbers, found)
        return tuple(found)

    def gather(self, numbers: Iterable[range], found: list[Range]) -> bool:
        """Append the ranges of these numbers to `found`; return whether there are any."""
        any_there = False
        for each in numbers:
            for run, start, stop in self._runs.parts(each):
                if stop - start == 1 and run.marks[start] != GONE:
                    any_there = True
                    add_range(found, run.offset + start, run.delivery + start, 1)
                    continue
                for first, last in marked_ranges(run.marks, start, stop):
                    any_there = True
                    add_range(found, run.offset + first, run.delivery + first, last - first)
        return any_there

    # --- settling

    def take_one(self, offset: int, number: int) -> bool:
        """Mark a message as `SETTLING`, if `is_free`; return whether it was."""
        found = self._runs.find(number)
        if found is None:
            return False
        run, place = found
        if run.marks[place] != HERE or run.offset + place != offset:
            return False
        run.marks[place] = SETTLING
        self.free -= 1
        return True

    def take(self, numbers: range, mark: int) -> None:
        """Mark those that are free as `SETTLING` or `COMMITTING`."""
        for run, start, stop in self._runs.parts(numbers):
            for first, last in marked_ranges(run.marks, start, stop, _FREE):
                run.part(first, last)
                run.marks[first:last] = bytes([mark]) * (last - first)
                self.free -= last - first

    def reserve(self, numbers: range) -> list[Reserved]:
        """Mark messages that are free as `COMMITTING`; return them, in ranges."""
        reserved = [
            Reserved(range(run.number + first, run.number + last), run.offset + first, run.delivery + first)
            for run, start, stop in self._runs.parts(numbers)
            for first, last in marked_ranges(run.marks, start, stop, _FREE)
        ]
        self.take(numbers, COMMITTING)
        return reserved

    def leave(self, numbers: range) -> None:
        """Free messages that a transaction does not settle after all."""
        for run, start, stop in self._runs.parts(numbers):
            self.free += run.marks.count(COMMITTING, start, stop)
            run.marks[start:stop] = run.marks[start:stop].translate(_LEFT)

    def missing(self, reserved: Reserved) -> list[Range]:
        """Return which reserved messages are not held any more, as they were when they were reserved."""
        edges, found = [reserved.numbers.start], list[Range]()
        for run, start, stop in self._runs.parts(reserved.numbers):
            for first, last in marked_ranges(run.marks, start, stop):
                edges += (run.number + first, run.number + last)
        edges.append(reserved.numbers.stop)
        for begin, end in zip(edges[0::2], edges[1::2], strict=True):
            if begin < end:
                at = begin - reserved.numbers.start
                found.append(Range(reserved.offset + at, reserved.delivery + at, end - begin))
        return found

    def drop(self, numbers: range) -> None:
        """Drop messages that are no longer held."""
        for run, start, stop in self._runs.parts(numbers):
            if free := run.marks.count(HERE, start, stop):
                run.part(start, stop)
                self.free -= free
            self._runs.drop(run, start, stop)

    def part_all(self) -> None:
        """Let no message be acked by its mark any more."""
        for run in self._runs:
            run.part(0, len(run.marks))

    def lose(self, deliveries: range, since: int = 0) -> list[range]:
        """Drop messages that the owner took back; those that it is asked to settle stay until it answers.

        Args:
            deliveries: the owner's delivery numbers.
            since: messages under numbers below this one are another owner's.

        Returns:
            The numbers of those that stay.
        """
        staying: list[range] = []
        for run in self._runs:
            start = max(deliveries.start - run.delivery, 0)
            stop = min(deliveries.stop - run.delivery, len(run.marks))
            if start >= stop or run.number < since:
                continue
            staying += [
                range(run.number + first, run.number + last)
                for first, last in marked_ranges(run.marks, start, stop, _SETTLING)
            ]
            for first, last in marked_ranges(run.marks, start, stop, _NOT_SETTLING):
                self.drop(range(run.number + first, run.number + last))
        return staying

    # --- another owner

    def drop_superseded(self) -> dict[int, int]:
        """Drop messages that are also held under a later number; return their offsets by number.

        An owner redelivers a message that was made ready or taken back there, which this process may not know yet.
        """
        superseded: dict[int, int] = {}
        seen: set[int] = set()
        for run in reversed(list(self._runs)):
            for first, last in marked_ranges(run.marks, 0, len(run.marks)):
                offsets = range(run.offset + first, run.offset + last)
                superseded |= {run.number + offset - run.offset: offset for offset in offsets if offset in seen}
                seen.update(offsets)
        for number in superseded:
            self.drop(range(number, number + 1))
        return superseded

    def held(self) -> tuple[Held, ...]:
        """Return all that is held."""
        return tuple(
            Held(run.offset + first, run.delivery + first, last - first, run.attempts)
            for run in self._runs
            for first, last in marked_ranges(run.marks, 0, len(run.marks))
        )

    def as_delivered(self) -> dict[int, tuple[Held, ...]]:
        """Return all that is held under the numbers of the owners that have delivered it, by their epochs."""
        found: dict[int, list[Held]] = {}
        for run in self._runs:
            epoch, delivery = run.origin
            found.setdefault(epoch, []).extend(
                Held(run.offset + first, delivery + first, last - first, run.attempts)
                for first, last in marked_ranges(run.marks, 0, len(run.marks))
            )
        return {epoch: tuple(held) for epoch, held in found.items() if held}

    def among(self, offsets: Collection[int], before: int) -> dict[int, int]:
        """Return which of these offsets are held under numbers below `before`, by number."""
        return {
            run.number + place: run.offset + place
            for run in (self._runs if offsets else ())
            if run.number < before
            for first, last in marked_ranges(run.marks, 0, len(run.marks))
            for place in range(first, last)
            if run.offset + place in offsets
        }

    def renumber(self, given: Mapping[int, int], before: int) -> None:
        """Give messages under numbers below `before` new delivery numbers, by offset; drop those without one."""
        for run in self._runs:
            if run.number >= before:
                continue
            marks = bytes(run.marks)
            self.drop(range(run.number, run.number + len(marks)))
            news: list[_Run] = []
            for place, mark in enumerate(marks):
                delivery = given.get(run.offset + place) if mark != GONE else None
                if delivery is None:
                    continue
                number, last = run.number + place, news[-1] if news else None
                if last is None or (last.number + last.left, last.delivery + last.left) != (number, delivery):
                    origin = _Origin(run.origin.epoch, run.origin.delivery + place)
                    last = _Run(run.lease, number, delivery, 0, run.attempts, origin=origin)
                    news.append(last)
                last.marks.append(mark)
                last.left += 1
            for new in news:
                self._runs.add(new)
                self.free += new.marks.count(HERE)


def portions(held: Iterable[Held], most: int = _RESUMED) -> list[tuple[Held, ...]]:
    """Return what is held in portions of at most `most` messages."""
    found: list[list[Held]] = []
    left = 0
    for each in held:
        first, delivery, count, attempts = each
        while count:
            if not left:
                found.append([])
                left = most
            taken = min(count, left)
            found[-1].append(Held(first, delivery, taken, attempts))
            first, delivery, count, left = first + taken, delivery + taken, count - taken, left - taken
    return [tuple(rows) for rows in found]
