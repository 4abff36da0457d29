"""How far a channel has come, which its journal records: what is settled, and how often the rest was delivered."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final, Self

from aiodq.delivery.range_set import RangeSet, joined
from aiodq.format.journal import MOST_REMAINING, Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.delivery.attempts import Attempts

__all__ = ["Progress", "Unjournaled"]

_PIECES: Final = 1000
"""Operations that one range becomes at a time: only a hostile store has more offsets than these hold."""

_CHANGES: Final = 64
"""Numbers of seeks that are journaled with the last one: a client repeats one within seconds."""


class Unjournaled:
    """The changes of one channel that its journal does not hold yet.

    Attributes:
        floor: the floor in the journal.
        seek: the offset sought since then; None if there was no seek.
        changes: the numbers of the seeks since the last one in the journal, which were made by now.
        acks: ranges that were settled.
        requeues: offsets that were made ready again, or deferred.
        deliveries: offsets that were handed out, if deliveries are journaled.
    """

    __slots__ = ("acks", "changes", "deliveries", "floor", "requeues", "seek")

    def __init__(self, floor: int) -> None:
        """Start with this floor and no changes."""
        self.floor: int = floor
        self.seek: int | None = None
        self.changes: tuple[int, ...] = ()
        self.acks: list[tuple[int, int]] = []
        self.requeues: list[int] = []
        self.deliveries: list[int] = []

    @classmethod
    def everything(
        cls, floor: int, settled: RangeSet, requeues: Iterable[int], deliveries: Iterable[int]
    ) -> Self:  # fmt: skip
        """Return a channel's whole state as changes, which replace everything journaled before."""
        unjournaled = cls(floor)
        unjournaled.seek = floor
        unjournaled.acks, unjournaled.requeues, unjournaled.deliveries = list(settled), list(requeues), list(deliveries)
        return unjournaled

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but perhaps another floor."""
        return not (self.acks or self.requeues or self.deliveries) and self.seek is None

    @property
    def pieces(self) -> int:
        """How many acks there are, or requeues if there are more of these."""
        return max(len(self.acks), len(self.requeues))

    def clear(self, floor: int) -> None:
        """Drop all changes, as a checkpoint holds them; set the floor.

        The numbers of seeks stay: if the checkpoint cannot be written, they are journaled again.
        """
        self.seek, self.floor = None, floor
        for fresh in (self.acks, self.requeues, self.deliveries):
            fresh.clear()

    def take_settled(self, floor: int, most: int) -> list[Op]:
        """Remove and return the seek, the floor (now `floor`), and up to `most` of the oldest acks, joined."""
        ops: list[Op] = []
        if self.seek is not None:
            # A seek that another one made void before it was journaled is repeated all the same.
            ops += [Op(OpKind.FLOOR, 0, value=change) for change in self.changes[:-1]]
            ops.append(Op(OpKind.SEEK, self.seek, value=self.changes[-1] if self.changes else 0))
            self.seek, self.changes = None, ()
        if floor > self.floor:
            ops.append(Op(OpKind.FLOOR, floor))
            self.floor = floor
        if self.acks:
            ranges = joined([(max(start, floor), stop) for start, stop in self.acks[:most] if stop > floor])
            del self.acks[:most]
            for start, stop in ranges:
                first = start if stop - start <= MOST_REMAINING else self._take_long(start, stop, ops)
                ops.append(Op(OpKind.ACK, first, min(stop - first, MOST_REMAINING)))
        return ops

    def _take_long(self, start: int, stop: int, ops: list[Op]) -> int:
        """Add the operations of a long range but for the last one, whose start is returned; leave what is too much."""
        *starts, last = range(start, stop, MOST_REMAINING)[:_PIECES]
        ops += [Op(OpKind.ACK, at, MOST_REMAINING) for at in starts]
        if stop - last > MOST_REMAINING:
            self.acks.append((last + MOST_REMAINING, stop))
        return last

    def take_deliveries(self, most: int) -> tuple[list[int], list[int]]:
        """Return up to so many of the oldest requeues, and the deliveries.

        INVARIANT: every delivery is returned by the next call, as it must be written before the message is handed out.
        """
        requeued, delivered, self.deliveries = self.requeues[:most], self.deliveries, []
        del self.requeues[:most]
        return requeued, delivered


class Progress:
    """The progress of one channel.

    Attributes:
        floor: the offset below which everything is settled.
        settled: the settled offsets above it.
        attempts: how often messages that are not settled were delivered.
        unjournaled: what of all this is not on disk yet.
    """

    __slots__ = ("attempts", "floor", "settled", "unjournaled")

    def __init__(self, floor: int, settled: RangeSet, attempts: Attempts) -> None:
        """Start with what is on disk."""
        self.floor: int = floor
        self.settled: RangeSet = settled
        self.attempts: Attempts = attempts
        self.unjournaled: Unjournaled = Unjournaled(floor)

    def delivered(self, offsets: range, attempts: int, journaled: int = 0) -> None:
        """Note how often messages were delivered, this time included; those before `journaled` are in the journal."""
        if len(offsets) == 1:
            self.attempts.noted[offsets.start] = attempts
        else:
            self.attempts.noted.update(offsets, repeat(attempts))
        self.unjournaled.deliveries += range(max(offsets.start, journaled), offsets.stop)

    def settle(self, start: int, stop: int) -> None:
        """Settle messages from `start` to `stop`."""
        if self.attempts.before.size:
            self.attempts.before.discard_range(start, stop)
        self.settle_plain(start, stop)

    def settle_plain(self, start: int, stop: int) -> None:
        """Settle messages delivered at most once, which have no number of attempts but the noted ones."""
        if self.attempts.noted.size:
            self.attempts.noted.discard_range(start, stop)
        if start == self.floor and not self.settled:
            self.floor = stop
            return
        if start == self.floor and self.settled.last <= stop:
            self.floor = stop
            self.settled.clear()
            return
        self.settled.add(start, stop)
        self.unjournaled.acks.append((start, stop))
        if start == self.floor:
            self._advance()

    def settle_runs(self, edges: list[int]) -> None:
        """Settle ranges of messages that were in flight, as `settle_plain`: each start and its stop, in order."""
        # INVARIANT: messages in flight are not settled yet.
        self.settled.add_new(edges)
        for start, stop in zip(edges[0::2], edges[1::2], strict=True) if self.attempts.noted.size else ():
            self.attempts.noted.discard_range(start, stop)
        self.unjournaled.acks += zip(edges[0::2], edges[1::2], strict=True)
        if edges[0] == self.floor:
            self._advance()

    def _advance(self) -> None:
        self.floor = self.settled.next_missing(self.floor)
        self.settled.discard_below(self.floor)

    def covers(self, start: int, stop: int) -> bool:
        """Return whether everything from `start` to `stop` is settled."""
        return stop <= self.floor or self.settled.covers(max(start, self.floor), stop)

    def seek(self, offset: int, change: int = 0) -> None:
        """Continue at an offset: everything below it is settled; everything else counts as never delivered.

        Args:
            offset: the offset.
            change: the number of this change, or 0; it is journaled as well.
        """
        self.floor, self.settled = offset, RangeSet()
        self.attempts.clear()
        self.all_noted()
        self.unjournaled.seek = offset
        if change:
            self.unjournaled.changes = (*self.unjournaled.changes, change)[-_CHANGES:]

    def all_noted(self) -> None:
        """Drop what is not journaled yet: a checkpoint holds it instead."""
        self.unjournaled.clear(self.floor)

    def renote(self) -> None:
        """Journal everything again, as the last entries did not reach the disk."""
        attempts, changes = self.attempts, self.unjournaled.changes
        self.unjournaled = Unjournaled.everything(self.floor, self.settled, attempts.before, attempts.noted)
        self.unjournaled.changes = changes
