"""One channel's state: what is settled, in flight, ready, and what of it is not on disk yet.

Every offset of the log is in exactly one of these: settled (acked, dropped, lost to damage or given up), in flight, or
ready. `depth` counts the last two.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiodq.delivery.ranges import RangeSet
from aiodq.format.journal import ChannelImage, Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ChannelState", "Counters"]


@dataclass(slots=True)
class Counters:
    """How often what happened since the channel was opened."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0
    dropped: int = 0
    lost: int = 0


class ChannelState:
    """The machine. Offsets are absolute.

    Attributes:
        floor: everything below is settled.
        settled: what else is, above it.
        end: the log's end as far as the channel may deliver.
        cursor: the next offset never handed out.
        in_flight: delivery numbers by offset. A delivery number tells two deliveries of one message apart.
        max_in_flight: the bound of `in_flight`.
        counters: see `Counters`.
    """

    def __init__(self, floor: int, end: int, max_in_flight: int) -> None:
        """Begin with everything from `floor` to `end` ready."""
        self.floor: int = floor
        self.end: int = max(floor, end)
        self.cursor: int = floor
        self.settled: RangeSet = RangeSet()
        self.in_flight: dict[int, int] = {}
        self.max_in_flight = max_in_flight
        self.counters: Counters = Counters()
        self._again: list[int] = []
        self._attempts: dict[int, int] = {}
        self._deliveries = 0
        self._fresh_acks: list[tuple[int, int]] = []
        self._fresh_requeues: list[int] = []
        self._noted_floor = floor

    @classmethod
    def restored(cls, image: ChannelImage, ops: Iterable[Op], end: int, max_in_flight: int) -> ChannelState:
        """Return the state that a checkpoint and the operations behind it describe.

        What was in flight is ready again. Whatever names an offset at or behind `end` is dropped: the log lost those
        messages before anyone was promised them, and other messages will take their numbers.
        """
        state = cls(image.floor, end, max_in_flight)
        for start, stop in image.ranges:
            state.settled.add(start, stop)
        state._attempts = dict(image.attempts)
        for op in ops:
            if op.kind is OpKind.FLOOR:
                state.floor = max(state.floor, op.offset)
            elif op.kind is OpKind.ACK:
                state.settled.add(op.offset, op.offset + op.count)
            else:
                state._attempts[op.offset] = op.value
        state.floor = min(state.floor, end)
        state.end = end
        state.settled.discard_from(end)
        state._advance()
        state._attempts = {o: n for o, n in state._attempts.items() if state._is_open(o)}
        state.cursor = state._noted_floor = state.floor
        return state

    def image(self) -> ChannelImage:
        """Return the state as a checkpoint keeps it."""
        return ChannelImage(self.floor, list(self.settled), {o: n for o, n in self._attempts.items() if n > 0})

    @property
    def depth(self) -> int:
        """Messages not settled."""
        return self.end - self.floor - self.settled.total

    @property
    def ready(self) -> int:
        """Messages that wait to be handed out."""
        return self.depth - len(self.in_flight)

    @property
    def credit(self) -> int:
        """How many more may be in flight."""
        return self.max_in_flight - len(self.in_flight)

    def extend(self, end: int) -> None:
        """The log has grown."""
        self.end = max(self.end, end)

    def again(self) -> int | None:
        """Return the lowest offset that was handed out before and is ready again, or None."""
        while self._again:
            offset = self._again[0]
            if offset >= self.floor and offset not in self.settled and offset not in self.in_flight:
                return offset
            heapq.heappop(self._again)
        return None

    def fresh(self) -> int:
        """Return the next offset never handed out and not settled; `end` where there is none."""
        if self.settled.last > self.cursor or self.floor > self.cursor:
            self.cursor = self.settled.next_missing(max(self.cursor, self.floor))
        return min(self.cursor, self.end)

    def deliver(self, offset: int) -> tuple[int, int]:
        """Hand out a ready message; return (attempts, delivery number)."""
        if self._again and self._again[0] == offset:
            heapq.heappop(self._again)
        attempts = self._attempts.get(offset, 0) + 1
        if attempts > 1:
            self.counters.redelivered += 1
        self.counters.delivered += 1
        self._deliveries += 1
        self.in_flight[offset] = self._deliveries
        if offset >= self.cursor:
            self.cursor = offset + 1
        return attempts, self._deliveries

    def ack(self, offset: int) -> None:
        """Settle a message in flight."""
        del self.in_flight[offset]
        self.counters.acked += 1
        self._settle(offset, offset + 1)

    def nack(self, offset: int, attempts: int) -> None:
        """Make a message in flight ready again, having been delivered `attempts` times."""
        del self.in_flight[offset]
        self.counters.requeued += 1
        self._attempts[offset] = attempts
        self._fresh_requeues.append(offset)
        heapq.heappush(self._again, offset)

    def release(self, offset: int, attempts: int) -> None:
        """As `nack`, for a message that nobody has looked at: it counts as never delivered."""
        self.nack(offset, attempts - 1)
        self.counters.requeued -= 1
        self.counters.delivered -= 1

    def lose(self, start: int, stop: int) -> int:
        """Settle offsets that cannot be read any more; return how many were not settled."""
        lost = self._give_up(start, stop)
        self.counters.lost += lost
        return lost

    def drop(self, count: int) -> int:
        """Settle the `count` oldest ready messages; return the offset behind the last of them."""
        at = self.floor
        for _ in range(min(count, self.ready)):
            at = self.settled.next_missing(max(at, self.floor))
            while at in self.in_flight:
                at = self.settled.next_missing(at + 1)
            self.counters.dropped += self._give_up(at, at + 1)
            at += 1
        return at

    def drop_below(self, offset: int) -> int:
        """Settle everything below `offset`, in flight or not; return how many were not settled."""
        dropped = self._give_up(self.floor, min(offset, self.end))
        self.counters.dropped += dropped
        return dropped

    def purge(self) -> int:
        """Settle everything; return how many messages that were."""
        return self._give_up(self.floor, self.end)

    def settled_all(self, start: int, stop: int) -> bool:
        """Return whether everything from `start` to `stop` is settled."""
        return stop <= self.floor or self.settled.covers(max(start, self.floor), stop)

    def take_ops(self) -> list[Op]:
        """Return what happened since the last call, as short as it can be said."""
        ops: list[Op] = []
        if self.floor > self._noted_floor:
            ops.append(Op(OpKind.FLOOR, self.floor))
            self._noted_floor = self.floor
        if self._fresh_acks:
            joined = RangeSet()
            for start, stop in self._fresh_acks:
                joined.add(max(start, self.floor), stop)
            ops += [Op(OpKind.ACK, start, stop - start) for start, stop in joined]
            self._fresh_acks.clear()
        if self._fresh_requeues:
            open_ones = {o for o in self._fresh_requeues if self._is_open(o)}
            ops += [Op(OpKind.REQUEUE, o, value=self._attempts.get(o, 0)) for o in sorted(open_ones)]
            self._fresh_requeues.clear()
        return ops

    def renote(self) -> None:
        """Have `take_ops` say everything again, as what it said last did not reach the disk."""
        self._noted_floor = -1
        self._fresh_acks = list(self.settled)
        self._fresh_requeues = list(self._attempts)

    def _is_open(self, offset: int) -> bool:
        return self.floor <= offset < self.end and offset not in self.settled

    def _give_up(self, start: int, stop: int) -> int:
        start, stop = max(start, self.floor), min(stop, self.end)
        if stop <= start:
            return 0
        before = self.depth
        gone = [o for o in self.in_flight if start <= o < stop] if self.in_flight else []
        for offset in gone:
            del self.in_flight[offset]
        self._settle(start, stop)
        return before - self.depth

    def _settle(self, start: int, stop: int) -> None:
        if self._attempts:
            if stop - start == 1:
                self._attempts.pop(start, None)
            else:
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
