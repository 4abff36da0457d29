"""A channel's state when its store is opened, from its checkpoint and journal, limited to what the log still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.offset_map import OffsetMap
from aiodq.delivery.range_set import RangeSet, joined
from aiodq.format.journal import ChannelImage, Op, applied

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["restored_state"]


def restored_state(
    image: ChannelImage, ops: Iterable[Op], end: int, max_in_flight: int, *, wall: int = 0, now: int = 0
) -> ChannelState:
    """Return the state that a checkpoint and the operations after it describe.

    What was in flight is ready again. Entries for offsets at or after `end` are dropped: the log lost those messages
    before they were durable, and other messages will get their offsets.

    Args:
        image: what the checkpoint holds.
        ops: what was noted since.
        end: the log's.
        max_in_flight: the bound.
        wall: wall time, nanoseconds. If it is earlier than the last noted time, the clock was set back: then the last
            noted time counts as now, so that no message waits longer than it was deferred for.
        now: the same moment on the monotonic clock.
    """
    noted = applied(image, ops, end)
    settled = RangeSet(joined(noted.ranges))
    settled.discard_from(end)
    floor = settled.next_missing(min(noted.floor, end))
    settled.discard_below(floor)

    def is_open(offset: int) -> bool:
        return floor <= offset < end and offset not in settled

    dues, wall = noted.deferred, max(wall, noted.noted_ns)
    attempts = {offset: number for offset, number in noted.attempts.items() if is_open(offset)}
    waiting = sorted(offset for offset, due in dues.items() if due > wall and is_open(offset))
    # A message that the journal defers has attempts, so every later checkpoint holds it, too.
    state = ChannelState(floor, end, max_in_flight, settled, OffsetMap((dict.fromkeys(waiting, 0) | attempts).items()))
    for offset, waited in noted.suspects.items():
        if is_open(offset):
            state.orphans[offset] = waited
    for offset in waiting:
        state.defer(offset, now + dues[offset] - wall)
    return state
