"""Messages that are to be given up though others that may be delivered are before them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiodq.delivery.channel_state import ChannelState

__all__ = ["MOST_LETTERS", "OutOfTurn"]

MOST_LETTERS: Final = 100
"""So many dead letters may be on their way before more is given up: each is a task, and holds its message in memory."""

_MOST_ENDED: Final = 500
"""So many ranges of expired messages are settled in a turn of the loop: some two milliseconds' work."""

_SLACK: Final = 64
"""So many offsets that stand for nothing any more are left alone."""


class OutOfTurn:
    """One per channel.

    Attributes:
        ended: that whose time to live has ended, as the topic told it: all its channels have the same sequences.
        ranges: what is to be looked at: it had its last attempt, or its time to live has ended.
        unsent: what is to be looked at once it is due: its dead letter is tried once more then.
        asked: some of it is to be settled in a turn of the loop that comes.
        reading: what is to be looked at next is being read.
        letters: how many are on their way.
        until: what was hindered is tried again then, monotonic nanoseconds.
    """

    __slots__ = (
        "_begun",
        "_hindered",
        "_outlived",
        "asked",
        "ended",
        "letters",
        "ranges",
        "reading",
        "unsent",
        "until",
    )

    def __init__(self) -> None:
        """Begin empty."""
        self.ended: deque[Sequence[tuple[int, int]]] = deque()
        self._begun = 0
        self.ranges: deque[tuple[int, int]] = deque()
        self.unsent: set[int] = set()
        self.asked: bool = False
        self.reading: bool = False
        self.letters: int = 0
        self.until: int = 0
        self._hindered = 0
        self._outlived: set[int] = set()

    def add(self, offset: int) -> None:
        """Look at a message."""
        self.ranges.append((offset, offset + 1))

    def sort(self, *, each: bool) -> None:
        """Have what has ended looked at, where `each` message may be to be dealt with otherwise."""
        while each and self.ended:
            self.ranges.extend(self.ended.popleft()[self._begun :])
            self._begun = 0

    def take_ended(self) -> Sequence[tuple[int, int]]:
        """Remove and return some of what has ended."""
        if not self.ended:
            return ()
        ranges, begin = self.ended[0], self._begun
        self._begun += _MOST_ENDED
        if self._begun >= len(ranges):
            self.ended.popleft()
            self._begun = 0
        return ranges[begin : begin + _MOST_ENDED]

    def hinder(self, until: int, number: int) -> None:
        """Count so many letters more as on their way until then: one could not be put, or its message not be read."""
        self._hindered += number
        self.until = until

    def may_go_on(self, now: int) -> bool:
        """Return whether more may be looked at now."""
        if now >= self.until:
            self._hindered = 0
        return not self.reading and self.letters + self._hindered < MOST_LETTERS

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

    def wait(self, offset: int, state: ChannelState) -> None:
        """Look at a deferred message once it is due."""
        self.unsent.add(offset)
        if len(self.unsent) > 2 * len(state.deferred) + _SLACK:
            self.unsent = {offset for offset in self.unsent if offset in state.deferred}

    def due(self, offset: int) -> None:
        """A message was deferred until now."""
        if offset in self.unsent:
            self.unsent.discard(offset)
            self.add(offset)
