"""The messages of one channel that a client holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.errors import not_in_flight
from aiodq.shared.encoding.number_runs import NumberRuns
from aiodq.shared.requests.lent.lent_runs import LentRun
from aiodq.wire.payload import Range, add_range

if TYPE_CHECKING:
    from aiodq.delivery.channel_state import ChannelState

__all__ = ["LentMessages"]

_GONE: Final = 100
"""Ranges in one GONE: for each, the client looks through all that it holds."""


class LentMessages(NumberRuns[LentRun]):
    """The messages of one channel that a client holds, by their delivery numbers.

    A client names a message by the epoch of the owner that delivered it, its offset and its delivery number.

    Attributes:
        changed: whether the client got or gave up messages since this was set to False.
    """

    __slots__ = ("_epoch", "changed")

    def __init__(self, epoch: int) -> None:
        """Start with none; `epoch` is that of this owner."""
        super().__init__()
        self._epoch = epoch
        self.changed: bool = False

    def place_of(self, epoch: int, offset: int, delivery: int) -> tuple[LentRun, int]:
        """Return the run of a message that the client holds, and its index there.

        Raises:
            NotInFlightError: the client does not hold it.
        """
        found = self.find(delivery) if epoch == self._epoch else None
        if found is None or found[0].offset + found[1] != offset:
            raise not_in_flight(f"message {offset}")
        return found

    def held(self, epoch: int, each: Range) -> tuple[list[tuple[LentRun, int, int]], list[Range]]:
        """Return the part of a range that the client holds, as (run, start, stop), and the rest."""
        if epoch != self._epoch:
            return [], [each]
        offset, delivery, count = each
        found: list[tuple[LentRun, int, int]] = []
        lost: list[Range] = []
        at = delivery
        # The client's count is not trusted: at most what is held is looked at.
        for run, start, stop in self.parts(range(delivery, delivery + count)):
            if run.offset - run.number != offset - delivery:
                continue
            for first, last in run.parts(start, stop):
                if run.number + first > at:
                    lost.append(Range(offset + at - delivery, at, run.number + first - at))
                found.append((run, first, last))
                at = run.number + last
        if at < delivery + count:
            lost.append(Range(offset + at - delivery, at, delivery + count - at))
        return found, lost

    def drop(self, run: LentRun, start: int, stop: int) -> None:
        """Drop messages that the client no longer holds."""
        self.changed = True
        if run.left > stop - start:
            run.forget(start, stop)
        super().drop(run, start, stop)

    def drop_lost(self, state: ChannelState) -> list[tuple[Range, ...]]:
        """Drop messages that are no longer in flight for the client; return them, in parts for one GONE each."""
        found: list[Range] = []
        all_lost = not state.flying  # as after a seek: of very many messages, a look at each takes its time
        for run in self:
            for first, last in run.parts(0, len(run.marks)):
                if all_lost:
                    add_range(found, run.offset + first, run.number + first, last - first)
                else:
                    self._drop_lost(run, first, last, state, found)
        if all_lost:
            self.clear()
            self.changed = True
        return [tuple(found[at : at + _GONE]) for at in range(0, len(found), _GONE)]

    def _drop_lost(self, run: LentRun, first: int, last: int, state: ChannelState, found: list[Range]) -> None:
        """Drop those of the messages held from index `first` to before `last` that are no longer in flight."""
        at = last if last - first > 1 and run.in_flight(first, last) else first
        while at < last:
            start = at
            while at < last and state.delivery(run.offset + at) != run.number + at:
                at += 1
            if start < at:
                self.drop(run, start, at)
                add_range(found, run.offset + start, run.number + start, at - start)
            at += 1

    def keep(self, part: LentRun) -> None:
        """Add messages that are in the client's hands again: a part of a run, or all of it."""
        count = len(part.bodies)
        found = self.restore(range(part.number, part.number + count))
        if found is None:
            self.add(part)
        else:
            run, start = found
            run.bodies[start : start + count] = part.bodies
