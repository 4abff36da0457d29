"""One channel's state: what is settled, in flight, deferred, ready, and what of it is not on disk yet.

Every offset of the log is in exactly one of these: settled (acked, dropped, lost to damage or given up), in flight,
deferred until a moment, or ready. `depth` counts the last three.

Moments are nanoseconds of a clock that never goes back. On disk they are wall time; who notes or restores a state says
what both are at that moment, so that a jump of the wall clock moves nothing that is waited for.
"""

from __future__ import annotations

import heapq
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiodq.delivery.range_set import RangeSet
from aiodq.delivery.timers import Deadlines, Deferrals
from aiodq.format.journal import LONGEST_RUN, MOST_REMAINING, ChannelImage, Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ChannelState", "Counters"]

_MILLISECOND: Final = 1_000_000


@dataclass(slots=True)
class Counters:
    """How often what happened since the channel was opened."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0
    timed_out: int = 0
    dead: int = 0
    expired: int = 0
    filtered: int = 0
    dropped: int = 0
    lost: int = 0
    cancelled: int = 0


class ChannelState:
    """The machine. Offsets are absolute.

    Attributes:
        floor: everything below is settled.
        settled: what else is, above it.
        end: the log's end as far as the channel may deliver.
        cursor: the next offset never handed out.
        in_flight: delivery numbers by offset. A delivery number tells two deliveries of one message apart.
        deferred: what waits for a moment.
        max_in_flight: the bound of `in_flight`.
        counters: see `Counters`.
        orphans: of what was restored, what was in hand when its process ended and has not been worked off since, and
            whether it has waited.
        counting: deliveries are to be noted as they happen, so that they count also if their process dies.
    """

    def __init__(self, floor: int, end: int, max_in_flight: int) -> None:
        """Begin with everything from `floor` to `end` ready."""
        self.floor: int = floor
        self.end: int = max(floor, end)
        self.cursor: int = floor
        self.settled: RangeSet = RangeSet()
        self.in_flight: dict[int, int] = {}
        self.deferred: Deferrals = Deferrals()
        self.max_in_flight = max_in_flight
        self.counters: Counters = Counters()
        self.counting: bool = False
        self.orphans: dict[int, bool] = {}
        self._deadlines = Deadlines(self.in_flight)
        self._again: list[int] = []
        # What lies before the cursor and is not to be found by it, as it was deferred before it was handed out.
        self._passed = RangeSet()
        self._attempts: dict[int, int] = {}
        # Of messages in flight whose deliveries are noted: how often they were delivered, this time included.
        self._noted: dict[int, int] = {}
        self._deliveries = 0
        self._fresh_acks: list[tuple[int, int]] = []
        self._fresh_requeues: list[int] = []
        self._fresh_deliveries: list[int] = []
        self._fresh_deferrals: list[int] = []
        self._fresh_seek: int | None = None
        self._noted_floor = floor

    @classmethod
    def restored(
        cls, image: ChannelImage, ops: Iterable[Op], end: int, max_in_flight: int, *, wall: int = 0, now: int = 0
    ) -> ChannelState:
        """Return the state that a checkpoint and the operations behind it describe.

        What was in flight is ready again. Whatever names an offset at or behind `end` is dropped: the log lost those
        messages before anyone was promised them, and other messages will take their numbers.

        Args:
            image: what the checkpoint holds.
            ops: what was noted since.
            end: the log's.
            max_in_flight: the bound.
            wall: wall time, nanoseconds. Where it is earlier than what was noted, it was set back meanwhile; then what
                was noted last counts as now, so that nothing waits for longer than it was deferred for.
            now: the same moment on the clock that never goes back.
        """
        state = cls(image.floor, end, max_in_flight)
        for start, stop in image.ranges:
            state.settled.add(start, stop)
        state._attempts = dict(image.attempts)
        dues, wall = dict(image.deferred), max(wall, image.noted_ns)
        for op in ops:
            if op.kind is OpKind.SEEK:
                state.floor = op.offset
                state.settled, state._attempts = RangeSet(), {}
                dues.clear()
            elif op.kind is OpKind.FLOOR:
                state.floor = max(state.floor, op.offset)
            elif op.kind is OpKind.ACK:
                state.settled.add(op.offset, op.offset + op.length)
            elif op.kind is OpKind.DEFER:
                dues[op.offset] = op.value
                if op.length < MOST_REMAINING:
                    wall = max(wall, op.value - op.length * _MILLISECOND)
            else:
                for offset in range(op.offset, min(op.run.stop, end)):
                    state._attempts[offset] = op.value
                    dues.pop(offset, None)
        state.floor = min(state.floor, end)
        state.end = end
        state.settled.discard_from(end)
        state._advance()
        state._attempts = {o: n for o, n in state._attempts.items() if state._is_open(o)}
        # What was put off and fell due while nobody ran is as suspect as it was; it has waited already.
        state.orphans = {
            offset: offset in dues
            for offset, number in state._attempts.items()
            if number and dues.get(offset, wall) <= wall
        }
        state.cursor = state._noted_floor = state.floor
        for offset in sorted(o for o, due in dues.items() if due > wall and state._is_open(o)):
            state._attempts.setdefault(offset, 0)
            state.defer(offset, now + dues[offset] - wall)
        return state

    def image(self, wall: int = 0, now: int = 0) -> ChannelImage:
        """Return the state as a checkpoint keeps it, noted at this wall time and moment."""
        attempts = {offset: number for offset, number in (self._attempts | self._noted).items() if number > 0}
        # INVARIANT: what was deferred after a delivery has its attempts noted. The due times of others are in the log.
        dues = ((offset, self.deferred.due(offset)) for offset in self._attempts)
        deferred = {offset: due - now + wall for offset, due in dues if due is not None}
        return ChannelImage(self.floor, list(self.settled), attempts, deferred, wall)

    @property
    def depth(self) -> int:
        """Messages not settled."""
        return self.end - self.floor - self.settled.total

    @property
    def ready(self) -> int:
        """Messages that wait to be handed out."""
        return self.depth - len(self.in_flight) - len(self.deferred)

    @property
    def credit(self) -> int:
        """How many more may be in flight."""
        return self.max_in_flight - len(self.in_flight)

    def extend(self, end: int) -> None:
        """The log has grown."""
        self.end = max(self.end, end)

    def again(self) -> int | None:
        """Return the lowest offset that the cursor has passed and that is ready, or None."""
        while self._again:
            offset = self._again[0]
            if self._is_open(offset) and offset not in self.in_flight and offset not in self.deferred:
                return offset
            heapq.heappop(self._again)
        return None

    def some_again(self, number: int) -> list[int]:
        """Return up to so many of the lowest such offsets, in order."""
        found: list[int] = []
        while len(found) < number and (offset := self.again()) is not None:
            heapq.heappop(self._again)
            if offset not in found[-1:]:
                found.append(offset)
        for offset in found:
            heapq.heappush(self._again, offset)
        return found

    def fresh(self) -> int:
        """Return the next offset never handed out, settled or deferred; `end` where there is none."""
        self.cursor = max(self.cursor, self.floor)
        if self.settled.total or self._passed.total:
            before = -1
            while before != self.cursor:
                before = self.cursor
                self.cursor = self._passed.next_missing(self.settled.next_missing(before))
        return min(self.end, self.cursor)

    def deliver(self, offset: int, deadline: int | None = None) -> tuple[int, int]:
        """Hand out a ready message, to be settled by `deadline`; return (attempts, delivery number)."""
        if self._again and self._again[0] == offset:
            heapq.heappop(self._again)
        attempts = self._attempts.get(offset, 0) + 1
        self.counters.redelivered += attempts > 1
        self.counters.delivered += 1
        self._deliveries += 1
        self.in_flight[offset] = self._deliveries
        if self.counting:
            self._noted[offset] = attempts
            self._fresh_deliveries.append(offset)
        if deadline is not None:
            self._deadlines.add(deadline, offset, self._deliveries)
        if offset >= self.cursor and not (self._passed.total and offset in self._passed):
            self.cursor = offset + 1
            if self._passed.total:
                self._passed.discard_below(self.cursor)
        return attempts, self._deliveries

    def is_ready(self, offset: int) -> bool:
        """Return whether a message waits to be handed out."""
        return self._is_open(offset) and offset not in self.in_flight and offset not in self.deferred

    def pick(self, offset: int) -> tuple[int, int]:
        """Hand out a ready message out of its turn; return (attempts, delivery number)."""
        if offset >= self.cursor:
            self._passed.add(offset, offset + 1)
        return self.deliver(offset)

    def passed(self, offset: int) -> bool:
        """Return whether the message was handed out or deferred before."""
        return offset < self.cursor or offset in self._passed

    def attempts(self, offset: int) -> int:
        """Return how often a message was delivered that is not in flight."""
        return self._attempts.get(offset, 0)

    def count(self, offset: int, attempts: int) -> None:
        """Note how often a message was delivered, for whoever delivers it next."""
        self._attempts[offset] = attempts
        self._fresh_requeues.append(offset)

    def touch(self, offset: int, deadline: int) -> None:
        """Expect a message in flight back by then."""
        self._deadlines.move(deadline, offset, self.in_flight[offset])

    def hold(self, offset: int) -> int:
        """Take a message, in flight or ready, until somebody settles or requeues it; return the delivery number."""
        self._deliveries += 1
        self.in_flight[offset] = self._deliveries
        if offset >= self.cursor and offset not in self._passed:
            self.cursor = offset + 1
        return self._deliveries

    def next_moment(self) -> int | None:
        """Return when there is something for `tick` to do, or None."""
        due, deadline = self.deferred.next(), self._deadlines.next()
        return due if deadline is None or (due is not None and due < deadline) else deadline

    def tick(self, now: int) -> list[int]:
        """Make ready what is due; return what was in flight for too long. The caller requeues that, one by one."""
        for offset in self.deferred.take(now):
            heapq.heappush(self._again, offset)
        late = self._deadlines.next()
        return [] if late is None or late > now else self._deadlines.take(now)

    def ack(self, offset: int) -> None:
        """Settle a message in flight."""
        self._land(offset)
        self.counters.acked += 1
        self._settle(offset, offset + 1)

    def nack(self, offset: int, attempts: int, due: int | None = None) -> None:
        """Make a message in flight ready again, now or when it is due, having been delivered `attempts` times."""
        self._land(offset)
        self.counters.requeued += 1
        self.count(offset, attempts)
        if due is None:
            heapq.heappush(self._again, offset)
        else:
            self.deferred.add(offset, due)
            self._fresh_deferrals.append(offset)

    def release(self, offset: int, attempts: int) -> None:
        """As `nack`, for a message that nobody has looked at: it counts as never delivered."""
        self.nack(offset, attempts - 1)
        self.counters.requeued -= 1
        self.counters.delivered -= 1

    def time_out(self, offset: int) -> None:
        """Make a message in flight ready again whose time is up; the delivery counts."""
        self._land(offset)
        self.counters.timed_out += 1
        self.count(offset, self.attempts(offset) + 1)
        heapq.heappush(self._again, offset)

    def defer(self, offset: int, due: int) -> None:
        """Defer a message that was never handed out, as the log says; that is not noted once more."""
        if not self._is_open(offset) or offset in self.in_flight or offset in self.deferred:
            return
        self.deferred.add(offset, due)
        if offset >= self.cursor:
            self._passed.add(offset, offset + 1)

    def send_dead_letter(self, offset: int) -> None:
        """Settle a message in flight that is given up."""
        self._land(offset)
        self.counters.dead += 1
        self._settle(offset, offset + 1)

    def expire(self, offset: int) -> None:
        """Settle a ready message whose time is over."""
        self.counters.expired += self._give_up(offset, offset + 1)

    def cancel(self, offset: int) -> None:
        """Settle a deferred message that nobody is to get."""
        self.counters.cancelled += self._give_up(offset, offset + 1)

    def skip(self, start: int, stop: int) -> None:
        """Settle ready messages that the channel does not want."""
        self.counters.filtered += self._give_up(start, stop)

    def seek(self, offset: int) -> None:
        """Begin anew at an offset: everything below it is settled, nothing else; what is in flight is forgotten."""
        self.floor = self.cursor = self._noted_floor = offset
        self.settled, self._passed = RangeSet(), RangeSet()
        for forgotten in (
            self.in_flight, self.deferred, self._deadlines, self._again, self._attempts, self._noted,
        ):  # fmt: skip
            forgotten.clear()
        for fresh in (self._fresh_acks, self._fresh_requeues, self._fresh_deliveries, self._fresh_deferrals):
            fresh.clear()
        self._fresh_seek = offset

    def lose(self, start: int, stop: int) -> int:
        """Settle offsets that cannot be read any more; return how many were not settled."""
        lost = self._give_up(start, stop)
        self.counters.lost += lost
        return lost

    def miss(self, start: int, stop: int) -> int:
        """Settle what is deleted before the channel had it; return how many messages that were."""
        missed = self._give_up(start, stop)
        self.counters.dropped += missed
        return missed

    def drop(self, count: int) -> int:
        """Settle the `count` oldest messages not in flight; return the offset behind the last of them."""
        at = self.floor
        for _ in range(min(count, self.depth - len(self.in_flight))):
            at = self.settled.next_missing(max(at, self.floor))
            while at in self.in_flight:
                at = self.settled.next_missing(at + 1)
            self.counters.dropped += self._give_up(at, at + 1)
            at += 1
        return at

    def purge(self, start: int = 0, stop: int = sys.maxsize) -> int:
        """Settle everything, or a stretch; return how many messages that were."""
        return self._give_up(start, stop)

    def settled_all(self, start: int, stop: int) -> bool:
        """Return whether everything from `start` to `stop` is settled."""
        return stop <= self.floor or self.settled.covers(max(start, self.floor), stop)

    def take_ops(self, wall: int = 0, now: int = 0) -> list[Op]:
        """Return what happened since the last call, as short as it can be said, noted at this wall time and moment."""
        ops: list[Op] = []
        if self._fresh_seek is not None:
            ops.append(Op(OpKind.SEEK, self._fresh_seek))
            self._fresh_seek = None
        if self.floor > self._noted_floor:
            ops.append(Op(OpKind.FLOOR, self.floor))
            self._noted_floor = self.floor
        if self._fresh_acks:
            joined = RangeSet()
            for start, stop in self._fresh_acks:
                joined.add(max(start, self.floor), stop)
            ops += [Op(OpKind.ACK, start, stop - start) for start, stop in joined]
            self._fresh_acks.clear()
        if self._fresh_requeues or self._fresh_deliveries:
            names = {o for o in self._fresh_requeues if self._is_open(o)}
            names |= self._noted.keys() & set(self._fresh_deliveries)
            ops += self._delivered(sorted(names))
            self._fresh_requeues.clear()
            self._fresh_deliveries.clear()
        for offset in sorted(set(self._fresh_deferrals)):
            due = self.deferred.due(offset)
            if due is not None:
                remaining = min(max(due - now, 0) // _MILLISECOND + 1, MOST_REMAINING)
                ops.append(Op(OpKind.DEFER, offset, remaining, due - now + wall))
        self._fresh_deferrals.clear()
        return ops

    def _delivered(self, offsets: list[int]) -> list[Op]:
        """Return operations that say how often these were delivered; those in flight in runs."""
        ops: list[Op] = []
        run: Op | None = None
        for offset in offsets:
            number = self._noted.get(offset)
            if number is None:
                run = None
                ops.append(Op(OpKind.REQUEUE, offset, value=self._attempts.get(offset, 0)))
            elif run is not None and (run.run.stop, run.value) == (offset, number) and run.length < LONGEST_RUN:
                run = ops[-1] = run._replace(length=run.length + 1)
            else:
                run = Op(OpKind.REQUEUE, offset, value=number)
                ops.append(run)
        return ops

    def renote(self) -> None:
        """Have `take_ops` say everything again, as what it said last did not reach the disk."""
        # Of everything that was noted before, nothing counts any more.
        self._fresh_seek = self._noted_floor = self.floor
        self._fresh_acks = list(self.settled)
        self._fresh_requeues = list(self._attempts)
        self._fresh_deliveries = list(self._noted)
        self._fresh_deferrals = [offset for offset in self._attempts if offset in self.deferred]

    def _is_open(self, offset: int) -> bool:
        return self.floor <= offset < self.end and offset not in self.settled

    def _give_up(self, start: int, stop: int) -> int:
        start, stop = max(start, self.floor), min(stop, self.end)
        if stop <= start:
            return 0
        before = self.depth
        for offset in [o for o in self.in_flight if start <= o < stop]:
            self._land(offset)
        if self.deferred:
            self.deferred.discard_range(start, stop)
        self._settle(start, stop)
        return before - self.depth

    def _land(self, offset: int) -> None:
        """A message is in flight no more."""
        del self.in_flight[offset]
        if self._noted:
            self._noted.pop(offset, None)

    def _settle(self, start: int, stop: int) -> None:
        if stop - start == 1:
            self._attempts.pop(start, None)
        elif self._attempts:
            self._attempts = {o: n for o, n in self._attempts.items() if not start <= o < stop}
        if start == self.floor and not self.settled:
            self.floor = stop
            return
        self.settled.add(start, stop)
        self._fresh_acks.append((start, stop))
        if start == self.floor:
            self._advance()

    def _advance(self) -> None:
        self.floor = self.settled.next_missing(self.floor)
        self.settled.discard_below(self.floor)
