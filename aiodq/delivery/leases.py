"""Leases: runs of neighbouring messages handed out for the first time, with a byte each instead of an entry each.

What happens most is the cheapest: a message is handed out by counting one up, and acked by setting its byte. Whoever
wants to know something of the channel has that counted first (`Leases.look`). Everything that is out of the ordinary
(a redelivery, a delay, a touch, a hold) is an entry of its own in the channel's state, as `Leases.part` makes one.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from itertools import compress, islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ACKED", "APART", "HELD", "IN_FLIGHT", "LONGEST", "MEASURED", "SETTLED", "Lease", "Leases"]

LONGEST: Final = 1000
"""So many messages are in a lease at most."""

HELD: Final = 1
"""In flight, in the lease."""
MEASURED: Final = 2
"""Likewise, and who acks it says so to whoever measures how long that took."""
APART: Final = 3
"""The lease knows nothing of it: it has an entry of its own, or it was taken away."""
ACKED: Final = 4
"""Acked, and not counted yet. What is larger is settled by who had it."""
SETTLED: Final = 5
"""Settled by who had it."""

IN_FLIGHT: Final = bytes([HELD, MEASURED])
"""These two."""

_HELD: Final = bytes([HELD])
_ACKED: Final = bytes([ACKED])
_SETTLED: Final = bytes([SETTLED])
_IS_HELD: Final = bytes(mark in IN_FLIGHT for mark in range(256))
_IS_ACKED: Final = bytes(mark == ACKED for mark in range(256))
_TAKEN_AWAY: Final = bytes(APART if mark in IN_FLIGHT else mark for mark in range(256))
_SECOND: Final = 1_000_000_000
_FEW: Final = 16
"""With so few messages left in flight, a lease is no longer worth its memory."""


class Lease:
    """Messages from `first` on, of which the first `next` are handed out. Each is delivered for the first time.

    Attributes:
        first: the offset of the first of them.
        number: its delivery number; the following ones have the following numbers.
        marks: what each of them is: `HELD` and so on. Those not handed out are `HELD` beforehand.
        next: how many are handed out.
        limit: so many may be, before whoever hands out looks at the channel's state again.
        last: when the last one was handed out, seconds.
        timeout: nanoseconds after which it is taken back, or None.
        clean: nothing was acked that is not counted yet: the next ack is to be told to `Leases.acked`.
        open: more may be handed out of it.
    """

    __slots__ = (
        "clean", "counted", "first", "last", "left", "limit", "marks", "next", "number", "open", "timeout", "turns",
    )  # fmt: skip

    def __init__(self, first: int, count: int, timeout: int | None) -> None:
        """Begin with `count` messages, none of which is handed out or may be yet."""
        self.first: int = first
        self.number: int = 0
        self.marks: bytearray = bytearray(_HELD * count)
        self.next: int = 0
        self.limit: int = 0
        self.last: float = 0.0
        self.timeout: int | None = timeout
        self.clean: bool = True
        self.open: bool = True
        # Of those handed out: how many are counted, and how many of these are in flight.
        self.counted: int = 0
        self.left: int = 0
        # Where it was looked at the clock, and until when what was handed out before is to be settled.
        self.turns: deque[tuple[int, int]] = deque()

    def turn(self) -> None:
        """Time has gone by: what is handed out from now on has another deadline than what was before."""
        deadline = self._deadline
        if deadline is not None:
            self.turns.append((self.next, deadline))

    @property
    def _deadline(self) -> int | None:
        """When what was handed out since the last turn is to be settled; None where that is nothing, or never."""
        begin = self.turns[-1][0] if self.turns else 0
        if self.timeout is None or self.next == begin:
            return None
        return round(self.last * _SECOND) + self.timeout

    def deadline(self) -> int | None:
        """Return the earliest deadline of what is in flight, or None."""
        if self.timeout is None or not self.left:
            return None
        turns = self.turns
        while turns:
            stop, deadline = turns[0]
            if self._any_held(stop):
                return deadline
            turns.popleft()
        return self._deadline if self._any_held(self.next) else None

    def _any_held(self, stop: int) -> bool:
        return self.marks.find(HELD, 0, stop) >= 0 or self.marks.find(MEASURED, 0, stop) >= 0

    def deadline_of(self, index: int) -> int | None:
        """Return when a message is to be settled, or None where it need not be."""
        for stop, deadline in self.turns:
            if index < stop:
                return deadline
        return self._deadline

    def late(self, now: int) -> list[int]:
        """Return the places of those in flight whose time is up."""
        late = 0
        for stop, deadline in self.turns:
            if deadline > now:
                break
            late = stop
        else:
            last = self._deadline
            if last is not None and last <= now:
                late = self.next
        return [] if not late else list(self.held(0, late))

    def held(self, begin: int, stop: int) -> Iterator[int]:
        """Yield the places of those in flight."""
        stop = min(stop, self.next)
        return compress(range(begin, stop), self.marks[begin:stop].translate(_IS_HELD))


class Leases:
    """All of a channel's leases, in the order of their offsets.

    Attributes:
        open: the one that is handed out from, or None.
        dirty: those of which something was acked since the last look.
        in_flight: how many messages are, as of the last look.
    """

    __slots__ = ("_all", "_settle", "_settle_all", "_stale", "dirty", "in_flight", "open")

    def __init__(
        self,
        settle: Callable[[int, int], None],
        settle_all: Callable[[list[int]], None],
        stale: Callable[[int, int, int | None], None],
    ) -> None:
        """Begin without any.

        Args:
            settle: called with the offsets of a range that turns out to be acked.
            settle_all: likewise, of several, in order: each start and its stop.
            stale: makes an entry apart of an offset, its delivery number and its deadline.
        """
        self.open: Lease | None = None
        self.in_flight: int = 0
        self.dirty: list[Lease] = []
        self._all: list[Lease] = []
        self._settle = settle
        self._settle_all = settle_all
        self._stale = stale

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield offset and delivery number of everything in flight."""
        for lease in self._all:
            for index in lease.held(0, lease.next):
                yield lease.first + index, lease.number + index

    # --- counting

    def look(self) -> tuple[int, int]:
        """Count what was handed out and acked since the last look; return how many each of that is."""
        lease, handed = self.open, 0
        if lease is not None:
            handed = lease.next - lease.counted
            lease.counted = lease.next
            lease.left += handed
            self.in_flight += handed
        if not self.dirty:
            return handed, 0
        dirty, acked = self.dirty, 0
        self.dirty = []
        for each in dirty:
            each.clean = True
            acked += self._settled(each)
        return handed, acked

    def acked(self, lease: Lease) -> None:
        """Something of the lease was acked, for the first time since the last look."""
        if lease.clean:
            lease.clean = False
            self.dirty.append(lease)

    def _settled(self, lease: Lease) -> int:
        marks, first, total = lease.marks, lease.first, lease.marks.count(ACKED)
        at = marks.find(ACKED)
        if at >= 0 and marks.rfind(ACKED) == at + total - 1:
            self._settle(first + at, first + at + total)
        elif total:
            self._settle_all(_edges(marks, first))
        lease.marks = marks.replace(_ACKED, _SETTLED)
        self.in_flight -= total
        lease.left -= total
        return total

    # --- beginning and ending

    def begin(self, lease: Lease) -> None:
        """Hand out of this one from now on; it lies behind all others. Those with little left are let go of."""
        self.close()
        self._all = [each for each in self._all if not self._thin(each)]
        self._all.append(lease)
        self.open = lease

    def close(self) -> None:
        """Hand out nothing more of the one that is open. What was handed out is counted."""
        lease, self.open = self.open, None
        if lease is not None:
            lease.open = False
            lease.limit = lease.next
            del lease.marks[lease.next :]

    def halt(self) -> None:
        """Have the state looked at before anything more is handed out."""
        if self.open is not None:
            self.open.limit = self.open.next

    def _thin(self, lease: Lease) -> bool:
        """Make entries apart of what is left in flight of a lease, if that is little; return whether that was done."""
        if lease.left > _FEW or not lease.clean:
            return False
        for index in list(lease.held(0, lease.next)) if lease.left else ():
            self._part(lease, index)
        return True

    def _part(self, lease: Lease, index: int) -> None:
        self._stale(lease.first + index, lease.number + index, lease.deadline_of(index))
        self._leave(lease, index)

    def _leave(self, lease: Lease, index: int) -> None:
        lease.marks[index] = APART
        lease.left -= 1
        self.in_flight -= 1

    # --- by offset; everything is counted

    def _find(self, offset: int) -> tuple[Lease, int] | None:
        """Return the lease that holds a message in flight, and its place in it."""
        leases = self._all
        at = bisect_right(leases, offset, key=_first) - 1
        if at < 0:
            return None
        lease = leases[at]
        index = offset - lease.first
        if index >= lease.next or lease.marks[index] not in IN_FLIGHT:
            return None
        return lease, index

    def delivery(self, offset: int) -> int | None:
        """Return the delivery number of a message in flight, or None."""
        found = self._find(offset)
        return None if found is None else found[0].number + found[1]

    def has(self, start: int, stop: int, number: int) -> bool:
        """Return whether all of these messages are in flight here, by this delivery number and those behind."""
        while start < stop:
            found = self._find(start)
            if found is None or found[0].number + found[1] != number:
                return False
            lease, index = found
            end = min(index + stop - start, lease.next)
            if lease.marks[index:end].translate(None, IN_FLIGHT):  # what is left is not in flight
                return False
            start, number = start + end - index, number + end - index
        return True

    def pop(self, offset: int) -> None:
        """A message is in flight no more, or has an entry of its own."""
        found = self._find(offset)
        if found is not None:
            self._leave(*found)

    def part(self, offset: int) -> None:
        """Make an entry apart of a message, if it is in flight here."""
        found = self._find(offset)
        if found is not None:
            self._part(*found)

    def part_all(self) -> None:
        """Make entries apart of everything."""
        self.close()
        for lease in self._all:
            for index in list(lease.held(0, lease.next)) if lease.left else ():
                self._part(lease, index)
        self._all.clear()

    def take_away(self, start: int, stop: int) -> None:
        """Nothing from `start` to `stop` is in flight any more."""
        leases = self._all
        for at in range(max(bisect_right(leases, start, key=_first) - 1, 0), len(leases)):
            lease = leases[at]
            low, high = max(start - lease.first, 0), min(stop - lease.first, lease.next)
            if stop <= lease.first:
                break
            if low < high:
                gone = lease.marks.count(HELD, low, high) + lease.marks.count(MEASURED, low, high)
                lease.marks[low:high] = lease.marks[low:high].translate(_TAKEN_AWAY)
                lease.left -= gone
                self.in_flight -= gone

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self.close()
        for lease in self._all:
            lease.marks = lease.marks.translate(_TAKEN_AWAY)
            lease.left = 0
        self._all.clear()
        self.dirty.clear()
        self.in_flight = 0

    # --- time

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None."""
        deadlines = [deadline for lease in self._all if (deadline := lease.deadline()) is not None]
        return min(deadlines, default=None)

    def take_late(self, now: int, most: int = sys.maxsize) -> list[int]:
        """Make entries apart, without a deadline, of what has run out of time, up to so many; return the offsets."""
        late = list(islice(((lease, index) for lease in self._all for index in lease.late(now)), max(most, 0)))
        for lease, index in late:
            self._stale(lease.first + index, lease.number + index, None)
            self._leave(lease, index)
        return [lease.first + index for lease, index in late]


def _edges(marks: bytearray, first: int) -> list[int]:
    """Return where ranges of acked messages start and stop, in order, without a step of Python's for each of them."""
    acked = marks.translate(_IS_ACKED)
    changes = int.from_bytes(acked + b"\0") ^ int.from_bytes(b"\0" + acked)
    return list(compress(range(first, first + len(marks) + 1), changes.to_bytes(len(marks) + 1)))


def _first(lease: Lease) -> int:
    return lease.first
