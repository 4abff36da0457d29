"""A copy of a channel's state at one moment, from which a thread makes a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.journal import ChannelImage, due_time

if TYPE_CHECKING:
    from aiodq.delivery.range_set import RangeSet
    from aiodq.delivery.timers import Deferrals

__all__ = ["StateSnapshot"]

_BEFORE: Final = 2
"""Nanoseconds by which a ready message is noted as due in the past: marking suspects moves a due time by one."""


class StateSnapshot(NamedTuple):
    """A copy of a `ChannelState`, whose attributes these are, noted at this wall time and moment."""

    floor: int
    settled: RangeSet
    attempts: dict[int, int]
    noted: dict[int, int]
    orphans: dict[int, bool]
    deferred: Deferrals
    wall: int
    now: int

    def image(self) -> ChannelImage:
        """Return it as a checkpoint stores it."""
        attempts = {offset: number for offset, number in (self.attempts | self.noted).items() if number > 0}
        deferred: dict[int, int] = {}
        # INVARIANT: a message deferred after a delivery has its attempts noted. The due times of others are in the log.
        for offset, number in self.attempts.items():
            due = self.deferred.due(offset)
            if due is None and number > 0 and offset not in self.noted and self.orphans.get(offset, True):
                due = self.now - _BEFORE  # ready, and in nobody's hands
            if due is not None:
                deferred[offset] = due_time(due - self.now + self.wall, suspect=offset in self.orphans)
        return ChannelImage(self.floor, self.settled, attempts, deferred, self.wall)
