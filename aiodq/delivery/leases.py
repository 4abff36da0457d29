"""Leases: runs of consecutive messages handed out for the first time, with a byte each instead of an entry each.

The most frequent operations are the cheapest: a message is handed out by incrementing a counter, and acked by setting
its byte. Code that needs the channel's state first counts the bytes (`Leases.look`). Everything out of the ordinary (a
redelivery, a delay, a touch, a hold) is an entry of its own in the channel's state, as `Leases.part` makes one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import compress, count, filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

__all__ = [
    "ACKED", "APART", "CLAIMED", "GAP", "HELD", "IN_FLIGHT", "LONGEST", "MEASURED", "SETTLED", "SKIPPED", "TAKEN_AWAY",
    "Lease", "Leases", "indexes", "with_gaps",
]  # fmt: skip

LONGEST: Final = 1000
"""Most messages in a lease."""

HELD: Final = 1
"""In flight, in the lease."""
MEASURED: Final = 2
"""In flight, in the lease, and sampled for latency: its ack is reported."""
APART: Final = 3
"""Not in the lease any more: it has an entry of its own, or was removed."""
ACKED: Final = 4
"""Acked, and not counted yet. This and larger marks mean that the consumer has settled it."""
SETTLED: Final = 5
"""Settled by its consumer, and counted."""
CLAIMED: Final = 6
"""In flight, in the lease, within a call that settles it unless it fails."""
SKIPPED: Final = 7
"""In a gap of the lease, and not wanted: settled once the lease goes on behind it."""
GAP: Final = 8
"""In a gap of the lease: settled, or with an entry of its own."""

IN_FLIGHT: Final = bytes([HELD, MEASURED])
"""The marks of messages in flight."""

_INDEXES: Final = list(range(LONGEST))
_HELD: Final = bytes([HELD])
_ACKED: Final = bytes([ACKED])
_SETTLED: Final = bytes([SETTLED])
_SKIPPED: Final = bytes([SKIPPED])
_GAP: Final = bytes([GAP])
_IS_HELD: Final = bytes(mark in IN_FLIGHT for mark in range(256))
_IS_ACKED: Final = bytes(mark == ACKED for mark in range(256))
_IS_GIVEN: Final = bytes(mark not in {SKIPPED, GAP} for mark in range(256))
_IS_SKIPPED: Final = bytes(mark == SKIPPED for mark in range(256))
TAKEN_AWAY: Final = bytes(APART if mark in IN_FLIGHT else mark for mark in range(256))
"""Translates marks into those of messages that are not in the lease any more, as far as they were in flight."""

# A getter in C: each search among very many leases calls it for some of them.
_first: Final[Callable[[Lease], int]] = attrgetter("first")

_SECOND: Final = 1_000_000_000
_FEW: Final = 16
"""Messages in flight at or below which a lease is not worth its memory."""


class Lease:
    """A lease of the messages from `first` on, of which the first `next` are handed out, each for the first time.

    It may have gaps: messages between others that are not handed out of it.

    Attributes:
        first: the offset of the first message.
        number: its delivery number; the others have the following numbers.
        marks: the state of each message, `HELD` and so on. Those not handed out yet are `HELD` beforehand.
        next: how many are handed out, the gaps between them included.
        edge: where the next gap begins, or the lease ends.
        allowed: how many may be handed out as far as `max_in_flight` goes, the gaps between them included.
        room: how many may be handed out before the channel's state has to be looked at again, up to the next gap.
        limit: how many may be handed out before anything else has to be done: at most `room`.
        last: when the last one was handed out, seconds.
        timeout: nanoseconds after which a message is taken back, or None.
        clean: whether every ack is counted: the next one is to be reported to `Leases.acked`.
        open: whether more may be handed out of it.
        gaps: whether there is a gap anywhere in it.
        noted: of how many messages handed out the delivery was journaled before they were counted: see `handed_ops`.
        runs: what is behind the next gap: where each run of messages without one begins and ends, the last run first.
    """

    __slots__ = (
        "allowed", "clean", "counted", "edge", "first", "gaps", "last", "left", "limit", "marks", "next", "noted",
        "number", "open", "room", "runs", "timeout", "turns",
    )  # fmt: skip

    def __init__(self, first: int, count: int, timeout: int | None) -> None:
        """Make a lease of `count` messages; none is handed out, and none may be until `room` is raised."""
        self.first: int = first
        self.number: int = 0
        self.marks: bytearray = bytearray(_HELD * count)
        self.next: int = 0
        self.edge: int = count
        self.allowed: int = 0
        self.room: int = 0
        self.limit: int = 0
        self.last: float = 0.0
        self.timeout: int | None = timeout
        self.clean: bool = True
        self.open: bool = True
        self.gaps: bool = False
        self.noted: int = 0
        self.runs: list[tuple[int, int]] = []
        # Of the messages handed out: how many are counted, and how many of these are in flight.
        self.counted: int = 0
        self.left: int = 0
        # Where the clock was read, and the deadline of what was handed out before that.
        self.turns: list[tuple[int, int]] = []

    # --- handing out

    def leave_out(self, marks: bytearray) -> None:
        """Take these marks, one for each message: what is not `HELD` in them is in a gap. The first and last are."""
        edges = _edges(marks, _IS_HELD, 0)
        self.marks, self.edge, self.gaps = marks, edges[1], len(edges) > 2  # noqa: PLR2004 - a start and a stop
        self.runs = list(zip(edges[-2:0:-2], edges[:1:-2], strict=True))

    def reach(self, credit: int) -> None:
        """Let so many more be handed out, if the lease is open."""
        self.allowed = self.next + credit if self.open else self.next
        self.limit = self.room = min(self.edge, self.allowed)

    def halt(self) -> None:
        """Let nothing more be handed out before `reach` is called."""
        self.limit = self.room = self.allowed = self.next

    def before_gap(self) -> bool:
        """Return whether a gap is next, behind which more may be handed out without a look at the channel's state."""
        return self.next == self.edge and self.next < self.allowed and bool(self.runs)

    def leap(self) -> None:
        """Go on behind the gap that is next; the caller hands out what follows, in the same step."""
        start, stop = self.runs.pop()
        self.allowed += start - self.next
        self.limit = self.next = start
        self.edge, self.room = stop, min(stop, self.allowed)

    def goes_on_with(self, offset: int) -> bool:
        """Return whether the lease hands out the next message, if the lowest that is not settled is at this offset.

        If there is a gap before it, the lease goes on behind that.
        """
        index = offset - self.first
        if self.runs and self.edge == self.next <= index <= self.runs[-1][0]:
            self.leap()
            return True
        return index == self.next < self.edge

    def uncounted(self) -> Iterable[range]:
        """Return the offsets of what was handed out since it was last counted, run by run."""
        if not self.gaps:
            return (range(self.first + self.counted, self.first + self.next),)
        edges = _edges(self.marks[self.counted : self.next], _IS_GIVEN, self.first + self.counted)
        return map(range, edges[0::2], edges[1::2])

    # --- time

    def turn(self) -> None:
        """Note that time has passed: messages handed out from now on get a later deadline."""
        deadline = self._deadline
        if deadline is not None:
            self.turns.append((self.next, deadline))

    @property
    def _deadline(self) -> int | None:
        """The deadline of what was handed out since the last turn; None if there is nothing, or no deadline."""
        begin = self.turns[-1][0] if self.turns else 0
        if self.timeout is None or self.next == begin:
            return None
        return round(self.last * _SECOND) + self.timeout

    def deadline(self) -> int | None:
        """Return the earliest deadline of a message in flight, or None."""
        if self.timeout is None or not self.left:
            return None
        turns = self.turns
        while turns:
            stop, deadline = turns[0]
            if self._any_held(stop):
                return deadline
            turns.pop(0)
        return self._deadline if self._any_held(self.next) else None

    def taken_over(self) -> Lease:
        """Return a closed copy of a counted lease, without a deadline; then no message is in flight in this one."""
        made = Lease(self.first, 0, None)
        made.number, made.marks, made.next, made.counted, made.left = (
            self.number, self.marks, self.next, self.counted, self.left,
        )  # fmt: skip
        made.open = False
        self.marks, self.left = self.marks.translate(TAKEN_AWAY), 0
        return made

    def _any_held(self, stop: int) -> bool:
        return self.marks.find(HELD, 0, stop) >= 0 or self.marks.find(MEASURED, 0, stop) >= 0

    def deadline_of(self, index: int) -> int | None:
        """Return a message's deadline, or None if it has none."""
        for stop, deadline in self.turns:
            if index < stop:
                return deadline
        return self._deadline

    def late(self, now: int) -> list[int]:
        """Return the indexes of the messages in flight whose deadline has passed."""
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
        """Yield the indexes of the messages in flight."""
        stop = min(stop, self.next)
        return compress(range(begin, stop), self.marks[begin:stop].translate(_IS_HELD))


class Leases:
    """The leases of a channel, in the order of their offsets.

    Attributes:
        open: the lease that is handed out from, or None.
        dirty: leases with acks since the last look.
        in_flight: the number of messages in flight, as of the last look.
    """

    __slots__ = ("_all", "_closed", "_settle", "_settle_all", "_stale", "_swept", "dirty", "in_flight", "open")

    def __init__(
        self,
        settle: Callable[[int, int], None],
        settle_all: Callable[[list[int]], None],
        stale: Callable[[int, int, int | None], None],
    ) -> None:
        """Start without leases.

        Args:
            settle: called with the range of offsets found to be acked.
            settle_all: called with several such ranges, in order: each start and its stop.
            stale: makes an entry of its own for an offset, its delivery number and its deadline.
        """
        self.open: Lease | None = None
        self.in_flight: int = 0
        self.dirty: list[Lease] = []
        self._all: list[Lease] = []
        # Those before this index were looked at for what is to be dissolved.
        self._swept = 0
        # A heap of closed leases by deadline, which may be earlier than the lease's: see `_first_late`.
        self._closed: list[tuple[int, int, Lease]] = []
        self._settle = settle
        self._settle_all = settle_all
        self._stale = stale

    # --- counting

    def look(self) -> tuple[int, int, int]:
        """Count what was handed out, acked and skipped since the last look; return the three numbers."""
        lease, handed, skipped = self.open, 0, 0
        if lease is not None:
            handed = lease.next - lease.counted
            if lease.gaps and handed:
                between, skipped = self._skip(lease)
                handed -= between
            lease.counted = lease.next
            lease.left += handed
            self.in_flight += handed
        if not self.dirty:
            return handed, 0, skipped
        dirty, acked = self.dirty, 0
        self.dirty = []
        for each in dirty:
            each.clean = True
            acked += self._settled(each)
        return handed, acked, skipped

    def _skip(self, lease: Lease) -> tuple[int, int]:
        """Settle what the open lease has skipped since the last look; return the size of the gaps, and how much."""
        passed = lease.marks[lease.counted : lease.next]
        skipped = passed.count(SKIPPED)
        if skipped:
            self._settle_all(_edges(passed, _IS_SKIPPED, lease.first + lease.counted))
            passed = passed.replace(_SKIPPED, _GAP)
            lease.marks[lease.counted : lease.next] = passed
        return passed.count(GAP), skipped

    def acked(self, lease: Lease) -> None:
        """Note the first ack in a lease since the last look."""
        if lease.clean:
            lease.clean = False
            self.dirty.append(lease)

    def _settled(self, lease: Lease) -> int:
        marks, first, total = lease.marks, lease.first, lease.marks.count(ACKED)
        at = marks.find(ACKED)
        if at >= 0 and marks.rfind(ACKED) == at + total - 1:
            self._settle(first + at, first + at + total)
        elif total:
            self._settle_all(_edges(marks, _IS_ACKED, first))
        lease.marks = marks.replace(_ACKED, _SETTLED)
        self.in_flight -= total
        lease.left -= total
        return total

    # --- beginning and ending

    def begin(self, lease: Lease) -> None:
        """Hand out from this lease from now on; it comes after all others. Leases with little left are dissolved."""
        self.close()
        # Two leases are looked at for each new one: the cost does not depend on their number, and few have little left.
        self._sweep()
        self._sweep()
        self._all.append(lease)
        self.open = lease

    def close(self) -> None:
        """Close the open lease, so that nothing more is handed out of it. Everything handed out must be counted."""
        lease, self.open = self.open, None
        if lease is not None:
            lease.open = False
            lease.halt()
            lease.runs.clear()
            lease.edge = lease.next
            del lease.marks[lease.next :]
            deadline = lease.deadline()
            if deadline is not None:
                self._expect(deadline, lease)

    def halt(self) -> None:
        """Make the open lease look at the state before it hands out anything more."""
        if self.open is not None:
            self.open.halt()

    def _sweep(self) -> None:
        """Dissolve the next lease if it has little left; the call after this one goes on with the one after it."""
        at = self._swept if self._swept < len(self._all) else 0
        if at < len(self._all) and self._thin(self._all[at]):
            del self._all[at]
        else:
            at += 1
        self._swept = at

    def _thin(self, lease: Lease) -> bool:
        """Dissolve a lease of which little is in flight into entries of their own; return whether that was done."""
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

    # --- by offset; everything must be counted

    def _find(self, offset: int) -> tuple[Lease, int] | None:
        """Return the lease that holds a message in flight, and its index in it."""
        leases = self._all
        at = bisect_right(leases, offset, key=_first) - 1
        if at < 0:
            return None
        lease = leases[at]
        index = offset - lease.first
        if index >= lease.next or lease.marks[index] not in IN_FLIGHT:
            return None
        return lease, index

    def _between(self, start: int, stop: int) -> Iterator[Lease]:
        """Yield the leases that may hold messages from `start` to `stop`."""
        leases = self._all
        for at in range(max(bisect_right(leases, start, key=_first) - 1, 0), len(leases)):
            if stop <= leases[at].first:
                break
            yield leases[at]

    def delivery(self, offset: int) -> int | None:
        """Return the delivery number of a message in flight, or None."""
        found = self._find(offset)
        return None if found is None else found[0].number + found[1]

    def within(self, start: int, stop: int) -> Iterator[int]:
        """Yield the messages in flight from `start` to `stop`."""
        for lease in self._between(start, stop):
            for index in lease.held(max(start - lease.first, 0), stop - lease.first):
                yield lease.first + index

    def has(self, start: int, stop: int, number: int) -> bool:
        """Return whether all of these are in flight in leases, with consecutive delivery numbers from this one on."""
        while start < stop:
            found = self._find(start)
            if found is None or found[0].number + found[1] != number:
                return False
            lease, index = found
            end = min(index + stop - start, lease.next)
            if lease.marks[index:end].translate(None, IN_FLIGHT):  # any mark left is not in flight
                return False
            start, number = start + end - index, number + end - index
        return True

    def past_those_in_flight(self, offset: int, apart: Container[int]) -> int:
        """Return the first offset from this one on that is neither in flight in a lease nor apart."""
        before = -1
        while before != offset:
            # Without a Python statement per message: consumers may hold very many, and each put may ask this.
            before, offset = offset, next(filterfalse(apart.__contains__, count(offset)))
            offset = self._past_those_leased(offset)
        return offset

    def _past_those_leased(self, offset: int) -> int:
        while (found := self._find(offset)) is not None:
            lease, index = found
            left = lease.marks[index : lease.next].lstrip(IN_FLIGHT)
            offset = lease.first + lease.next - len(left)
            if left:
                break
        return offset

    def pop(self, offset: int) -> None:
        """Remove a message that is no longer in flight or has an entry of its own."""
        found = self._find(offset)
        if found is not None:
            self._leave(*found)

    def part(self, offset: int) -> None:
        """Move a message, if it is in flight in a lease, to an entry of its own."""
        found = self._find(offset)
        if found is not None:
            self._part(*found)

    def take_away(self, start: int, stop: int) -> None:
        """Remove everything from `start` to `stop` from what is in flight."""
        for lease in self._between(start, stop):
            low, high = max(start - lease.first, 0), min(stop - lease.first, lease.next)
            if low < high:
                gone = lease.marks.count(HELD, low, high) + lease.marks.count(MEASURED, low, high)
                lease.marks[low:high] = lease.marks[low:high].translate(TAKEN_AWAY)
                lease.left -= gone
                self.in_flight -= gone

    def clear(self) -> None:
        """Remove everything."""
        self.close()
        for lease in self._all:
            lease.marks = lease.marks.translate(TAKEN_AWAY)
            lease.left = 0
        self._all.clear()
        self._closed.clear()
        self.dirty.clear()
        self.in_flight = 0

    def detach(self) -> None:
        """Replace the leases by copies without a deadline: their holders can no longer use the originals."""
        self.close()
        self._all = [lease.taken_over() for lease in self._all]
        self._closed.clear()

    # --- time

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None."""
        closed, opened = self._first_late(), None if self.open is None else self.open.deadline()
        if closed is None or opened is None:
            return opened if closed is None else closed[0]
        return min(closed[0], opened)

    def _expect(self, deadline: int, lease: Lease) -> None:
        if len(self._closed) > 2 * len(self._all) + _FEW:
            self._closed = [entry for entry in self._closed if entry[2].left]
            heapq.heapify(self._closed)
        heapq.heappush(self._closed, (deadline, lease.number, lease))

    def _first_late(self) -> tuple[int, Lease] | None:
        """Return the earliest deadline of a closed lease, and the lease."""
        while self._closed:
            noted, _, lease = self._closed[0]
            deadline = lease.deadline()
            if deadline == noted:
                return deadline, lease
            heapq.heappop(self._closed)
            if deadline is not None:
                self._expect(deadline, lease)
        return None

    def take_late(self, now: int, most: int) -> list[int]:
        """Move up to `most` messages past their deadline to entries without one; return their offsets."""
        found: list[int] = []
        while len(found) < most and (first := self._first_late()) is not None and first[0] <= now:
            self._take_late(first[1], now, most, found)
        if len(found) < most and self.open is not None:
            self._take_late(self.open, now, most, found)
        return found

    def _take_late(self, lease: Lease, now: int, most: int, found: list[int]) -> None:
        for index in lease.late(now)[: most - len(found)]:
            self._stale(lease.first + index, lease.number + index, None)
            self._leave(lease, index)
            found.append(lease.first + index)


def with_gaps(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> bytearray:
    """Return the marks of the messages from `start` to `stop`, where those of these ranges are in a gap."""
    marks = bytearray(_HELD * (stop - start))
    for first, end in ranges:
        marks[first - start : end - start] = _GAP * (end - first)
    return marks


def indexes(first: int, stop: int) -> list[int]:
    """Return the indexes from `first` to `stop`: where possible existing int objects, which compare by identity."""
    return _INDEXES[first:stop] if stop <= LONGEST else list(range(first, stop))


def _edges(marks: bytearray, those: bytes, first: int) -> list[int]:
    """Return the starts and stops of the runs of `those` marks, a table for `translate`, without a Python loop."""
    there = marks.translate(those)
    changes = int.from_bytes(there + b"\0") ^ int.from_bytes(b"\0" + there)
    return list(compress(range(first, first + len(marks) + 1), changes.to_bytes(len(marks) + 1)))
