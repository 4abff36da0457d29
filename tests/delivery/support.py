"""What a channel's state comes to on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.format.journal import ChannelImage, decode_checkpoint, encode_checkpoint

if TYPE_CHECKING:
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.format.journal import ChannelRecord

__all__ = ["image_of", "in_flight", "stored"]


def stored(record: ChannelRecord) -> ChannelImage:
    """Return what a checkpoint of this says when it is read."""
    return decode_checkpoint(bytes(encode_checkpoint(record, 1)))[0]


def image_of(state: ChannelState, wall: int = 0, now: int = 0) -> ChannelImage:
    """Return what is read of a checkpoint of this state, noted at this wall time and moment."""
    return stored(state.snapshot(wall, now))


def in_flight(state: ChannelState) -> dict[int, int]:
    """Return the delivery numbers of the messages in flight, by offset."""
    numbers = {offset: state.delivery(offset) for offset in range(state.end)}
    return {offset: number for offset, number in numbers.items() if number is not None}
