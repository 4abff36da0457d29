"""Messages to be given up although deliverable ones come before them: out of attempts, or expired."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aiodq.delivery.channel_state import ChannelState

__all__ = ["MOST_LETTERS", "OutOfTurn"]

MOST_LETTERS: Final = 100
"""The most dead letters on their way before more are begun: each is a task, and holds its message in memory."""

_MOST_ENDED: Final = 500
"""The ranges of expired messages settled in one turn of the loop: about two milliseconds."""

_SLACK: Final = 64
"""The stale offsets tolerated in a set before it is cleaned up."""


_NOTHING: Final[deque[Any]] = deque()
"""Stands for a queue to which nothing was added yet: a deque takes 760 bytes, and most channels are idle."""


class OutOfTurn:
    """The messages of one channel that are to be given up out of turn.

    Attributes:
        ended: ranges of expired messages, as the topic reported them: all its channels share these sequences.
        ranges: offsets to be checked: their messages are out of attempts, or have expired.
        unsent: offsets to be checked once they are due: their dead letters are tried again then.
        asked: whether some are to be settled in a coming turn of the loop.
        reading: whether the messages to be checked next are being read.
        letters: the number of dead letters on their way.
        until: when to try again after a failure, in monotonic nanoseconds.
    """

    __slots__ = (
        "_begun",
        "_done",
        "_hindered",
        "_outlived",
        "_to_look",
        "asked",
        "ended",
        "letters",
        "ranges",
        "reading",
        "unsent",
        "until",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.ended: list[Sequence[tuple[int, int]]] = []
        # Of the first of these: how many ranges were taken, and up to where the next one.
        self._begun = self._done = 0
        self.ranges: deque[tuple[int, int]] = _NOTHING
        self.unsent: dict[int, None] = {}
        self.asked: bool = False
        self.reading: bool = False
        self.letters: int = 0
        self.until: int = 0
        self._hindered = 0
        self._outlived: dict[int, None] = {}
        # The same, and some that are not in flight any more, in the order in which they are looked at for that.
        self._to_look: deque[int] = _NOTHING

    def add(self, offset: int) -> None:
        """Have a message checked."""
        self._to_check().append((offset, offset + 1))

    def _to_check(self) -> deque[tuple[int, int]]:
        """Return `ranges`, to be added to."""
        if self.ranges is _NOTHING:
            self.ranges = deque()
        return self.ranges

    def sort(self, *, each: bool) -> None:
        """Have expired messages checked one by one if `each` may need other treatment than being settled."""
        while each and self.ended:
            self._to_check().extend(self.ended.pop(0)[self._begun :])
            self._begun = self._done = 0

    def take_ended(self, most: int) -> list[tuple[int, int]]:
        """Remove and return some ranges of expired messages, of up to `most` messages."""
        found = list[tuple[int, int]]()
        while self.ended and not found:
            ranges = self.ended[0]
            while most > 0 and self._begun < len(ranges) and len(found) < _MOST_ENDED:
                start, stop = ranges[self._begun]
                start = max(start, self._done)
                self._done = min(stop, start + most)
                most -= self._done - start
                found.append((start, self._done))
                self._begun += self._done == stop
            if self._begun == len(ranges):
                del self.ended[0]
                self._begun = self._done = 0
        return found

    def hinder(self, until: int, number: int) -> None:
        """Count `number` more dead letters as on their way until then: one could not be put, or its message read."""
        self._hindered += number
        self.until = until

    def may_go_on(self, now: int) -> bool:
        """Return whether more messages may be checked now."""
        if now >= self.until:
            self._hindered = 0
        return not self.reading and self.letters + self._hindered < MOST_LETTERS

    def take(self, state: ChannelState, most: int) -> Iterator[int]:
        """Yield up to `most` messages to be checked now, as long as no more letters are on their way than allowed."""
        ranges = self.ranges
        for _ in range(most):
            if not ranges or self.letters >= MOST_LETTERS:
                break
            start, stop = ranges.popleft()
            offset = state.settled.next_missing(max(start, state.floor))
            if offset + 1 < stop:
                ranges.appendleft((offset + 1, stop))
            if offset >= stop:
                continue
            if state.delivery(offset) is None:
                yield offset
            else:
                self.outlived([offset], state)

    def put_back(self, offsets: Sequence[int]) -> None:
        """Have these checked once they were read, ahead of all others."""
        self._to_check().extendleft((offset, offset + 1) for offset in reversed(offsets))
        self.reading = True

    def outlived(self, offsets: Iterable[int], state: ChannelState) -> None:
        """Note that messages in flight have expired: they are checked once they are no longer in flight."""
        if self._to_look is _NOTHING:
            self._to_look = deque()
        outlived, to_look = self._outlived, self._to_look
        for offset in offsets:
            if offset not in outlived:
                outlived[offset] = None
                to_look.append(offset)
            # Two looks for each that is new: so few are stale, and no call takes long for that.
            for _ in range(2 if len(to_look) > 2 * state.flying + _SLACK else 0):
                if state.delivery(looked := to_look.popleft()) is None:
                    outlived.pop(looked, None)
                else:
                    to_look.append(looked)

    def back(self, offset: int) -> bool:
        """Note that a message is no longer in flight, but not settled; return whether it is now to be checked."""
        if offset not in self._outlived:
            return False
        del self._outlived[offset]
        self.add(offset)
        return True

    def wait(self, offset: int, state: ChannelState) -> None:
        """Have a deferred message checked once it is due."""
        self.unsent[offset] = None
        if len(self.unsent) > 2 * len(state.deferred) + _SLACK:
            self.unsent = {offset: None for offset in self.unsent if offset in state.deferred}

    def due(self, offset: int) -> None:
        """Note that a deferred message is due."""
        if offset in self.unsent:
            del self.unsent[offset]
            self.add(offset)
