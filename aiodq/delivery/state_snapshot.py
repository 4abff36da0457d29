"""A copy of a channel's state at one moment, from which a thread makes a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.journal import due_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.delivery.deferrals import Deferrals
    from aiodq.delivery.offset_map import OffsetMap
    from aiodq.delivery.range_set import RangeSet

__all__ = ["StateSnapshot"]

_BEFORE: Final = 2
"""Nanoseconds by which a ready message is noted as due in the past: marking suspects moves a due time by one."""


class StateSnapshot(NamedTuple):
    """A copy of a `ChannelState`, as a checkpoint stores it: a `ChannelRecord`.

    It shares with the state whatever neither of them changes, so making it costs next to nothing.

    Attributes:
        floor, ranges: what is settled.
        before, noted: how often messages were delivered; see `Attempts`.
        orphans, waiting: the state's `orphans` and `deferred`.
        noted_ns: the wall time of the copy.
        now: its moment.
    """

    floor: int
    ranges: RangeSet
    before: OffsetMap[int]
    noted: OffsetMap[int]
    orphans: OffsetMap[bool]
    waiting: Deferrals
    noted_ns: int
    now: int

    def attempt_rows(self) -> Iterator[tuple[int, int]]:
        """Yield the messages that were delivered and are not settled, and how often each was."""
        before, noted = self.before, self.noted
        yield from ((offset, number) for offset, number in before.items() if number > 0 and offset not in noted)
        yield from ((offset, number) for offset, number in noted.items() if number > 0)

    def deferral_rows(self) -> Iterator[tuple[int, int]]:
        """Yield messages and the wall time at which each is due: in the past for those that are ready."""
        # INVARIANT: a message deferred after a delivery has its attempts noted. The due times of others are in the log.
        for offset, number in self.before.items():
            due = self.waiting.due(offset)
            if due is None and number > 0 and offset not in self.noted and self.orphans.get(offset, True):
                due = self.now - _BEFORE  # ready, not in flight
            if due is not None:
                yield offset, due_time(due - self.now + self.noted_ns, suspect=offset in self.orphans)
