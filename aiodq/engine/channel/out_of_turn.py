"""Messages that are to be given up though others that may be delivered are before them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.delivery.channel_state import ChannelState

__all__ = ["OutOfTurn"]

_SLACK: Final = 64
"""So many offsets that stand for nothing any more are left alone."""


class OutOfTurn:
    """One per channel.

    Attributes:
        ranges: what is to be looked at: it had its last attempt, or its time to live has ended.
        unsent: what is to be looked at once it is due: its dead letter is tried once more then.
    """

    __slots__ = ("_outlived", "ranges", "unsent")

    def __init__(self) -> None:
        """Begin empty."""
        self.ranges: deque[tuple[int, int]] = deque()
        self.unsent: set[int] = set()
        self._outlived: set[int] = set()

    def add(self, offset: int) -> None:
        """Look at a message."""
        self.ranges.append((offset, offset + 1))

    def outlived(self, offsets: Iterable[int], state: ChannelState) -> None:
        """The times to live of messages have ended that are in flight: they are looked at once they are not."""
        self._outlived.update(offsets)
        if len(self._outlived) > 2 * state.flying + _SLACK:
            self._outlived = {offset for offset in self._outlived if state.delivery(offset) is not None}

    def back(self, offset: int) -> bool:
        """A message is in flight no more, and not settled; return whether it is to be looked at by that."""
        if offset not in self._outlived:
            return False
        self._outlived.discard(offset)
        self.add(offset)
        return True

    def due(self, offset: int) -> None:
        """A message was deferred until now."""
        if offset in self.unsent:
            self.unsent.discard(offset)
            self.add(offset)
