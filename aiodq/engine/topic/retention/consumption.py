"""How far the channels of a topic have consumed its log at one moment, found in one pass over the channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.segments.segment_list import SegmentList

__all__ = ["Consumption"]

_SEGMENTS: Final = 64
"""The most segments that are checked channel by channel at a time."""

_CHECKS: Final = 2000
"""The most checks of a segment in a channel at a time: two milliseconds' work."""


class Consumption:
    """What the channels whose messages are kept have consumed; valid as long as the event loop does not go on.

    Segments that all channels have passed, and those that some channel has not reached, cost no look at any channel.
    Those between are checked only in channels that have not passed all of these.

    Attributes:
        passed: the offset below which all channels have settled everything; -1 without channels.
        reached: the offset from which on some channel has settled nothing; -1 without channels.
    """

    __slots__ = ("_behind", "passed", "reached")

    def __init__(self, states: Sequence[ChannelState]) -> None:
        """Look at each of these channels once."""
        floors = [state.floor for state in states]
        self.passed: int = min(floors, default=-1)
        ends = (max(floor, state.settled.last) for floor, state in zip(floors, states, strict=True))
        self.reached: int = min(ends, default=-1)
        self._behind = [state for floor, state in zip(floors, states, strict=True) if floor < self.reached]

    def covers(self, segment: Segment) -> bool:
        """Return whether all channels have settled everything in a segment; False without channels."""
        if segment.end <= self.passed:
            return True
        return segment.end <= self.reached and all(
            state.settled_all(segment.base, segment.end) for state in self._behind
        )

    def between(self, listed: SegmentList) -> range:
        """Return the numbers of the full segments that may be consumed although one before them is still needed."""
        return range(listed.at(self.passed), listed.at(self.reached)) if self.reached >= 0 else range(0)

    @property
    def at_a_time(self) -> int:
        """How many segments may be checked channel by channel at a time."""
        return max(min(_SEGMENTS, _CHECKS // max(len(self._behind), 1)), 1)
