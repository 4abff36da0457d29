"""The target of a seek: where a channel continues in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.delivery.deferrals import Deferrals
    from aiodq.delivery.range_set import RangeSet

__all__ = ["SeekTarget"]


class SeekTarget(NamedTuple):
    """An offset in the log, with what a channel has to know about the log from there on.

    Attributes:
        offset: the first offset that the channel delivers.
        seen: the offset up to which the log was read for `deferred`.
        deferred: the messages that were put with a delay and are not due yet, with their moments.
        passed: their offsets.
        gaps: ranges of offsets whose segments were deleted because they were no longer needed.
        lost: ranges of offsets whose messages are lost by damage.
        change: the number of the change that it is, or 0.
    """

    offset: int
    seen: int
    deferred: Deferrals
    passed: RangeSet
    gaps: Iterable[tuple[int, int]] = ()
    lost: Iterable[tuple[int, int]] = ()
    change: int = 0

    def apply(self, state: ChannelState) -> None:
        """Move a channel's state to this target."""
        before, offset = state.deferred, self.offset
        self.deferred.discard_range(0, offset)
        self.passed.discard_below(offset)
        state.seek(offset, self.deferred, self.passed, change=self.change)
        for later in range(max(self.seen, offset), state.end):
            if (due := before.due(later)) is not None:
                state.defer(later, due)
        for gap in self.gaps:
            state.purge(*gap)
        for lost in self.lost:
            state.lose(*lost)
