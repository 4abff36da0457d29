"""The state of one channel: which messages are settled, in flight, deferred or ready, and what is not on disk yet.

Every offset of the log is in exactly one of these: settled (acked, dropped, lost to damage or given up), in flight,
deferred until a moment, or ready. `depth` counts the last three.

Moments are nanoseconds of a monotonic clock. On disk they are wall time; the caller that notes or restores a state
gives both readings of that moment, so that a jump of the wall clock does not shift any deadline.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from aiodq.delivery.attempts import Attempts
from aiodq.delivery.counters import Counters
from aiodq.delivery.deadlines import Deadlines
from aiodq.delivery.deferrals import Deferrals
from aiodq.delivery.handed_ops import handed_ops
from aiodq.delivery.leases import LONGEST, Lease, Leases, with_gaps
from aiodq.delivery.log_end import OwnEnd
from aiodq.delivery.offset_map import OffsetMap
from aiodq.delivery.progress import Progress
from aiodq.delivery.range_set import RangeSet, among
from aiodq.delivery.requeue_ops import deferrals, deliveries
from aiodq.delivery.requeued import Requeued
from aiodq.delivery.state_snapshot import StateSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.delivery.log_end import LogEnd
    from aiodq.delivery.progress import Unjournaled
    from aiodq.format.journal import Op

__all__ = ["ChannelState"]

_MOST_DIRTY: Final = 16
"""The most leases with uncounted acks: the next ack counts them, so that no call has to count many at once."""

_DROPPED: Final = 64
"""Messages that are dropped at a time, if none of them is in flight."""


class ChannelState:
    """The state machine of a channel. Offsets are absolute.

    What was handed out and acked through a lease (`Lease`) is entered once the state is needed: each method does that.

    Attributes:
        log: the log's end as far as the channel may deliver.
        deferred: messages that wait for a moment.
        requeued: ready messages that the cursor has passed.
        max_in_flight: the most messages in flight.
        orphans: restored messages that were in flight when their process ended and have not been processed since, and
            whether each has been deferred.
        counting: whether deliveries are noted as they happen, so that they count even if their process dies.
        handed_ops: see `aiodq.delivery.handed_ops.handed_ops`.
        free: called with large objects that are no longer needed, to free them gradually.
    """

    def __init__(
        self, floor: int, end: int, max_in_flight: int,
        settled: RangeSet | None = None, attempts: OffsetMap[int] | None = None,
    ) -> None:  # fmt: skip
        """Start with all from `floor` to `end` ready but `settled`; `attempts`: how often messages were delivered."""
        self.log: LogEnd = OwnEnd(max(floor, end))
        self.deferred: Deferrals = Deferrals()
        self.max_in_flight = max_in_flight
        self.counting: bool = False
        self.free: Callable[[dict[Any, Any] | list[Any]], object] = lambda _: None
        self.orphans: OffsetMap[bool] = OffsetMap()
        self._cursor = floor
        self._attempts = Attempts(OffsetMap() if attempts is None else attempts)
        self._progress = Progress(floor, RangeSet() if settled is None else settled, self._attempts)
        self._counters = Counters()
        self._leases = Leases(self._progress.settle_plain, self._progress.settle_runs, self._set_apart)
        self.handed_ops: Callable[[], list[Op] | None] = partial(handed_ops, self._leases, self._progress)
        # Delivery numbers of messages in flight that are in no lease.
        self._apart: dict[int, int] = {}
        self._deadlines = Deadlines(self._apart)
        self.requeued: Requeued = Requeued(self.is_ready)
        # Messages beyond the cursor that it is to skip: they were deferred or handed out out of turn.
        self._passed = RangeSet()
        self._deliveries = 0

    def snapshot(self, wall: int = 0, now: int = 0) -> StateSnapshot:
        """Return a copy of the state, noted at this wall time and moment."""
        self._look()
        counts = self._attempts.before.copy(), self._attempts.noted.copy(), self.orphans.copy()
        return StateSnapshot(self.floor, self.settled.copy(), *counts, self.deferred.copy(), wall, now)

    # --- properties

    def _look(self) -> None:
        """Enter what was handed out and acked through leases."""
        leases, lease = self._leases, self._leases.open
        if leases.dirty or (lease is not None and lease.counted != lease.next):
            if self.counting and lease is not None:
                for offsets in lease.uncounted():
                    # INVARIANT: before acked messages are settled, which forgets their deliveries again.
                    self._progress.delivered(offsets, 1, lease.first + lease.noted)
            handed, acked, skipped = leases.look()
            if handed and lease is not None:
                self._cursor = lease.first + lease.next
            self._counters.delivered += handed
            self._counters.acked += acked
            self._counters.filtered += skipped

    @property
    def floor(self) -> int:
        """The offset below which everything is settled."""
        self._look()
        return self._progress.floor

    @property
    def settled(self) -> RangeSet:
        """The settled offsets above the floor."""
        self._look()
        return self._progress.settled

    @property
    def counters(self) -> Counters:
        """See `Counters`."""
        self._look()
        return self._counters

    @property
    def depth(self) -> int:
        """The number of unsettled messages."""
        self._look()
        return self.log.visible - self._progress.floor - self._progress.settled.total

    @property
    def flying(self) -> int:
        """The number of messages in flight."""
        self._look()
        return len(self._apart) + self._leases.in_flight

    def delivery(self, offset: int) -> int | None:
        """Return a message's delivery number, which identifies one delivery; None if it is not in flight."""
        self._look()
        number = self._apart.get(offset)
        return self._leases.delivery(offset) if number is None else number

    @property
    def ready(self) -> int:
        """The number of messages ready to be handed out."""
        return self.depth - self.flying - len(self.deferred)

    @property
    def credit(self) -> int:
        """How many more may be in flight: none if dead-lettering already holds more than the limit."""
        self._look()
        return max(self.max_in_flight - len(self._apart) - self._leases.in_flight, 0)

    @property
    def end(self) -> int:
        """The log's end as far as the channel may deliver."""
        return self.log.visible

    def follow(self, log: LogEnd) -> None:
        """Follow a log: from now on the end is read from it, so that its growth need not be reported."""
        self.log = log

    def extend(self, end: int) -> None:
        """Note that the log has grown, as long as no log is followed."""
        self.log.visible = max(self.log.visible, end)

    def fresh(self) -> int:
        """Return the next offset never handed out, settled or deferred; `end` if there is none."""
        self._look()
        self._cursor = max(self._cursor, self._progress.floor)
        if self._progress.settled.total or self._passed.total:
            before = -1
            while before != self._cursor:
                before = self._cursor
                self._cursor = self._passed.next_missing(self._progress.settled.next_missing(before))
            self._passed.discard_below(self._cursor)
        return min(self.log.visible, self._cursor)

    # --- leases

    def plain_run(self, offset: int, stop: int) -> int:
        """Return how many messages from `offset` on, before `stop`, a lease may hold; 0 if another message comes first.

        They are the next in order, were never delivered before, and are not deferred.
        """
        stop = self._leasable(offset, stop)
        return min(self._progress.settled.next_present(offset, stop), self._passed.next_present(offset, stop)) - offset

    def run_with_gaps(self, offset: int, stop: int) -> bytearray:
        """Return the marks of the messages from `offset` on, before `stop`, for a lease that may have gaps.

        The gaps are what is settled, deferred or was handed out out of turn. A message that is to come again ends it.
        """
        again = self.requeued.first()
        stop = self._leasable(offset, stop if again is None else min(stop, again))
        taken = self._progress.settled.within(offset, stop), self._passed.within(offset, stop)
        return with_gaps(offset, stop, chain(*taken))

    def _leasable(self, offset: int, stop: int) -> int:
        """Return before which offset all from `offset` on, if it is the next one, was never delivered before."""
        self._look()
        if offset != self._cursor:
            return offset
        return self._attempts.first_of(offset, max(min(stop, self.log.visible, offset + LONGEST), offset))

    def begin(self, lease: Lease) -> None:
        """Hand out messages through a lease from now on, which begins with the next message (see `plain_run`)."""
        self._look()
        lease.number = self._deliveries + 1
        self._leases.begin(lease)
        self._deliveries += len(lease.marks)

    def reach(self, lease: Lease) -> None:
        """Raise the room and the limit of a lease to what may be in flight, if it is open."""
        lease.reach(self.credit)

    def acked(self, lease: Lease) -> None:
        """Note the first ack in a lease since the last look."""
        if len(self._leases.dirty) >= _MOST_DIRTY:
            self._look()  # if the acks are scattered, counting them costs a hundred microseconds a lease
        self._leases.acked(lease)

    def halt(self) -> None:
        """Hand out nothing more of the open lease before `reach` is called."""
        self._leases.halt()

    def close_lease(self) -> None:
        """Hand out nothing more of the open lease."""
        self._look()
        self._leases.close()

    def detach(self) -> None:
        """Cut the leases off from their holders: they hand out nothing more, and nothing can be settled by them."""
        self._look()
        self._leases.detach()

    def _set_apart(self, offset: int, delivery: int, deadline: int | None) -> None:
        self._apart[offset] = delivery
        if deadline is not None:
            self._deadlines.add(deadline, offset, delivery)

    # --- deliveries

    def deliver(self, offset: int, deadline: int | None = None) -> tuple[int, int]:
        """Hand out a ready message, to be settled by `deadline`; return (attempts, delivery number)."""
        self._make_way(offset, offset + 1)
        self.requeued.handed_out(offset)
        attempts = self.attempts(offset) + 1
        self._counters.redelivered += attempts > 1
        self._counters.delivered += 1
        self._deliveries += 1
        self._apart[offset] = self._deliveries
        if self.counting:
            self._progress.delivered(range(offset, offset + 1), attempts)
        if deadline is not None:
            self._deadlines.add(deadline, offset, self._deliveries)
        if offset >= self._cursor and not (self._passed.total and offset in self._passed):
            self._cursor = offset + 1
        return attempts, self._deliveries

    def deliver_again(
        self, most: int, fits: Callable[[int], bool], deadline: int | None = None
    ) -> tuple[range, int, int] | None:
        """Hand out the next redelivered messages: consecutive ones, delivered equally often, each of which `fits`.

        Returns:
            Their offsets, the attempts of each, and the first delivery number (the others follow it); None if the next
            message does not fit, or none is redelivered.
        """
        start, fresh, before = self.requeued.first(), self.fresh(), self._attempts.before
        if start is None or start >= fresh:
            return None
        number, apart, deferred, waiting = before.get(start, 0), self._apart, self.deferred, len(self.deferred)

        def takes(at: int) -> bool:
            return before.get(at, 0) == number and at not in apart and not (waiting and at in deferred) and fits(at)

        stop = self._progress.settled.next_present(start, min(fresh, start + min(most, self.credit)))
        stop = self.requeued.take_neighbours(stop, takes)
        if start == stop:
            return None
        self._make_way(start, stop)
        offsets, attempts, first = range(start, stop), number + 1, self._deliveries + 1
        self._counters.redelivered += len(offsets) if number else 0
        self._counters.delivered += len(offsets)
        self._deliveries += len(offsets)
        self._apart.update(zip(offsets, range(first, first + len(offsets)), strict=True))
        if self.counting:
            self._progress.delivered(offsets, attempts)
        if deadline is not None:
            self._deadlines.add_all(deadline, offsets, first)
        return offsets, attempts, first

    def _make_way(self, start: int, stop: int) -> None:
        """Halt the open lease; close it if it was to hand out these messages, as they are handled in another way."""
        self._look()
        lease = self._leases.open
        if lease is None:
            return
        if start < lease.first + len(lease.marks) and stop > lease.first + lease.next:
            self._leases.close()
        else:
            self._leases.halt()

    def is_ready(self, offset: int) -> bool:
        """Return whether a message is ready to be handed out."""
        self._look()
        return self._is_open(offset) and self.delivery(offset) is None and offset not in self.deferred

    def pick(self, offset: int) -> tuple[int, int]:
        """Hand out a ready message out of turn; return (attempts, delivery number)."""
        self._make_way(offset, offset + 1)
        if offset >= self._cursor:
            self._passed.add(offset, offset + 1)
        return self.deliver(offset)

    def passed(self, offset: int) -> bool:
        """Return whether the message was handed out or deferred before."""
        self._look()
        return offset < self._cursor or offset in self._passed

    def attempts(self, offset: int) -> int:
        """Return how often a message that is not in flight was delivered."""
        return self._attempts.before.get(offset, 0)

    def delivered_as_often(self, attempts: int) -> list[int]:
        """Return the messages not in flight and not settled that were delivered at least this often."""
        return [offset for offset, number in self._attempts.before.items() if number >= attempts]

    def count(self, offset: int, attempts: int) -> None:
        """Note how often a message was delivered, for its next delivery."""
        self._attempts.before[offset] = attempts
        self._progress.unjournaled.requeues.append(offset)

    def touch(self, offset: int, deadline: int) -> None:
        """Give a message in flight another deadline."""
        self._look()
        self._leases.part(offset)
        self._deadlines.move(deadline, offset, self._apart[offset])

    def hold(self, start: int, stop: int | None = None) -> int:
        """Hold messages, in flight or ready, until they are settled or requeued; return the first delivery number."""
        stop = start + 1 if stop is None else stop
        self._make_way(start, stop)
        self._leases.take_away(start, stop)
        first = self._deliveries + 1
        self._deliveries += stop - start
        self._apart.update(zip(range(start, stop), range(first, self._deliveries + 1), strict=True))
        if stop > self._cursor:
            # Messages before these may not have been handed out yet.
            self._passed.add(max(start, self._cursor), stop)
        return first

    def is_in_flight(self, start: int, stop: int, delivery: int) -> bool:
        """Return whether all of these messages are in flight, with consecutive delivery numbers from this one on."""
        self._look()
        numbers, offsets = list(range(delivery, delivery + stop - start)), range(start, stop)
        leased = start not in self._apart and self._leases.has(start, stop, delivery)
        return leased or list(map(self._apart.get, offsets)) == numbers or list(map(self.delivery, offsets)) == numbers

    def unhold(self, start: int, stop: int, delivery: int, deadline: int | None) -> None:
        """Return held messages to being in flight, with their earlier delivery numbers from this one on."""
        self._apart.update(zip(range(start, stop), range(delivery, delivery + stop - start), strict=True))
        if deadline is not None:
            self._deadlines.move_all(deadline, range(start, stop), delivery)

    def next_moment(self) -> int | None:
        """Return the next moment at which `tick` has something to do, or None."""
        self._look()
        moments = self.deferred.next(), self._deadlines.next(), self._leases.next_deadline()
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self, now: int, most: int = sys.maxsize) -> tuple[list[int], list[int]]:
        """Make due messages ready; return them, and those whose deadline has passed, which the caller requeues.

        Up to `most` of each: if there are more, `next_moment` is in the past.
        """
        self._look()
        due = self.deferred.take(now, most)
        for offset in due:
            self._make_ready_again(offset)
        late = self._leases.take_late(now, most)
        return due, late + self._deadlines.take(now, most - len(late))

    def recall(self, offset: int) -> None:
        """Make a deferred message ready before it is due."""
        self.deferred.discard(offset)
        self._make_ready_again(offset)

    def _make_ready_again(self, offset: int) -> None:
        self.requeued.add(offset)
        # Redelivered messages come before new ones; this one may be in a gap of the lease, ahead of some of them.
        self._make_way(offset, offset + 1)

    def ack(self, start: int, stop: int | None = None) -> None:
        """Settle a message in flight, or all messages before `stop`."""
        stop = start + 1 if stop is None else stop
        if None in list(map(self._apart.pop, range(start, stop), repeat(None))):
            self._look()
            self._leases.take_away(start, stop)
        self._counters.acked += stop - start
        self._progress.settle(start, stop)

    def nack(self, offset: int, attempts: int, due: int | None = None) -> None:
        """Requeue a message in flight, now or when it is due, as delivered `attempts` times."""
        self._land(offset)
        self._counters.requeued += 1
        self.count(offset, attempts)
        if due is None:
            self._make_ready_again(offset)
        else:
            self.deferred.add(offset, due)

    def release(self, offset: int, attempts: int) -> None:
        """Requeue a message that was not processed, as `nack` does: it counts as never delivered."""
        self.nack(offset, attempts - 1)
        self._counters.take_back(attempts)

    def time_out(self, offset: int) -> None:
        """Requeue a message in flight whose deadline has passed; the delivery counts."""
        self._land(offset)
        self._counters.timed_out += 1
        self.count(offset, self.attempts(offset) + 1)
        self._make_ready_again(offset)

    def defer(self, offset: int, due: int) -> None:
        """Defer a message that was never handed out, by its due time in the log; that is not noted again."""
        if not self.is_ready(offset) or self.passed(offset):
            return
        self._make_way(offset, offset + 1)
        self.deferred.add(offset, due)
        self._passed.add(offset, offset + 1)

    def defer_all(self, offsets: Sequence[int], dues: Sequence[int], ahead: int) -> None:
        """Defer new messages as `defer` does, given their offsets in order and their due times less `ahead`."""
        start, stop = offsets[0], offsets[-1] + 1
        if stop - start > len(offsets) or start < max(self.fresh(), self._progress.settled.last, self._passed.last):
            for offset, due in zip(offsets, dues, strict=True):
                self.defer(offset, due + ahead)
            return
        self._make_way(start, stop)
        self.deferred.add_all(start, dues, ahead)
        if start == self._cursor:
            self._cursor = stop  # nothing is between them, as is usual
        else:
            self._passed.add(start, stop)

    def send_dead_letter(self, offset: int) -> None:
        """Settle a message in flight as a dead letter."""
        self._land(offset)
        self._counters.dead += 1
        self._progress.settle(offset, offset + 1)

    def expire(self, offset: int) -> None:
        """Settle a ready message that has expired."""
        self._counters.expired += self._give_up(offset, offset + 1)

    def expire_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[int]:
        """Settle expired messages that are ready or deferred; return those in flight."""
        self._look()
        held = list[int]()
        for start, stop in ranges:
            those = sorted([*among(self._apart, start, stop), *self._leases.within(start, stop)])
            for edge in (*those, stop):
                self._counters.expired += self._give_up(start, edge)
                start = edge + 1  # noqa: PLW2901 - go on after the message in flight
            held += those
        return held

    def cancel(self, offset: int) -> None:
        """Settle a deferred message that is not to be delivered."""
        self._counters.cancelled += self._give_up(offset, offset + 1)

    def skip(self, start: int, stop: int) -> None:
        """Settle ready messages that the channel does not want."""
        self._counters.filtered += self._give_up(start, stop)

    def seek(
        self, offset: int, deferred: Deferrals | None = None, passed: RangeSet | None = None, *, change: int = 0
    ) -> None:
        """Move to an offset: all below is settled, `deferred` waits (`passed` says the same), all else is ready.

        The number of this change, if it has one, is journaled as well.
        """
        self._look()
        self._forget_all()
        self._cursor, self._passed, self.deferred = offset, passed or RangeSet(), deferred or Deferrals()
        self._leases.clear()
        self._progress.seek(offset, change)

    def _forget_all(self) -> None:
        """Forget what is known of single messages but for leases: nothing of it is valid any more."""
        kept = self._attempts, self.deferred, self._deadlines, self.requeued
        for part in chain([self._apart], *(each.parts() for each in kept)):
            self.free(part)
        self._attempts.clear()
        self._apart = {}
        self.deferred, self._deadlines, self.requeued = Deferrals(), Deadlines(self._apart), Requeued(self.is_ready)

    def lose(self, start: int, stop: int) -> int:
        """Settle offsets that can no longer be read; return how many were unsettled."""
        self._counters.lost += (lost := self._give_up(start, stop))
        return lost

    def miss(self, start: int, stop: int) -> int:
        """Settle messages deleted before the channel had them; return their number."""
        self._counters.dropped += (missed := self._give_up(start, stop))
        return missed

    def drop(self, most: int, *, until: int = sys.maxsize, spare: bool = False) -> list[int]:
        """Settle and return up to `most` of the oldest messages before `until`, with `spare` before one in flight."""
        dropped, at, most = list[int](), self.floor, min(most, self.depth - self.flying)
        while (left := most - len(dropped)) > 0:
            at = self._progress.settled.next_missing(max(at, self._progress.floor))
            while (end := self._leases.past_those_in_flight(at, self._apart)) > at and not spare:
                at = self._progress.settled.next_missing(end)
            if end > at or at >= until:
                break
            stop = self._progress.settled.next_present(at, min(at + min(left, _DROPPED), self.log.visible, until))
            stop = min((*among(self._apart, at, stop), *self._leases.within(at, stop)), default=stop)
            self._counters.dropped += self._give_up(at, stop)
            dropped += range(at, stop)
        return dropped

    def purge(self, start: int = 0, stop: int = sys.maxsize) -> int:
        """Settle everything, or a range; return the number of messages."""
        return self._give_up(start, stop)

    def settled_all(self, start: int, stop: int) -> bool:
        """Return whether everything from `start` to `stop` is settled."""
        self._look()
        return self._progress.covers(start, stop)

    @property
    def unjournaled(self) -> Unjournaled:
        """What `take_ops` still has to return, besides the floor."""
        self._look()
        return self._progress.unjournaled

    def take_ops(self, wall: int = 0, now: int = 0, most: int = sys.maxsize) -> list[Op]:
        """Return what happened since the last call in as few operations as possible, noted at this time and moment.

        Args:
            wall: the wall time.
            now: the moment.
            most: the most acks, and the most requeues, oldest first; later calls return the others.
        """
        self._look()
        unjournaled = self._progress.unjournaled
        ops = unjournaled.take_settled(self._progress.floor, most)
        requeued, delivered = unjournaled.take_deliveries(most)
        requeued = sorted(filter(self._is_open, set(requeued))) if requeued else requeued
        if requeued or delivered:
            ops += deliveries(requeued, delivered, self._attempts, self.orphans)
        if requeued:
            # Last, because a delivery or requeue ends a deferral.
            ops += deferrals(requeued, self.deferred, self.orphans, wall, now)
        return ops

    def all_noted(self) -> None:
        """Clear what `take_ops` still has to return: a `snapshot` holds it instead."""
        self._look()
        self._progress.all_noted()

    def renote(self) -> None:
        """Make `take_ops` return everything again, as its last result did not reach the disk."""
        self._look()
        self._progress.renote()

    def _is_open(self, offset: int) -> bool:
        return self._progress.floor <= offset < self.log.visible and offset not in self._progress.settled

    def _give_up(self, start: int, stop: int) -> int:
        start, stop = max(start, self.floor), min(stop, self.log.visible)
        if stop <= start:
            return 0
        before = self.depth
        self._make_way(start, stop)
        self._leases.take_away(start, stop)
        if stop - start == self.log.visible - self._progress.floor:
            self._forget_all()
        else:
            for offset in among(self._apart, start, stop):
                del self._apart[offset]
            if self.deferred:
                self.deferred.discard_range(start, stop)
        self._progress.settle(start, stop)
        return before - self.depth

    def _land(self, offset: int) -> None:
        """Remove a message from those in flight."""
        if self._apart.pop(offset, None) is None:
            self._look()
            self._leases.pop(offset)
        self._attempts.land(offset)
