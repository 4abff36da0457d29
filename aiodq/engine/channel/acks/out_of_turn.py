"""Messages to be given up although deliverable ones come before them: out of attempts, or expired."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

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
        self.ended: deque[Sequence[tuple[int, int]]] = deque()
        # Of the first of these: how many ranges were taken, and up to where the next one.
        self._begun = self._done = 0
        self.ranges: deque[tuple[int, int]] = deque()
        self.unsent: set[int] = set()
        self.asked: bool = False
        self.reading: bool = False
        self.letters: int = 0
        self.until: int = 0
        self._hindered = 0
        self._outlived: set[int] = set()
        # The same, and some that are not in flight any more, in the order in which they are looked at for that.
        self._to_look: deque[int] = deque()

    def add(self, offset: int) -> None:
        """Have a message checked."""
        self.ranges.append((offset, offset + 1))

    def sort(self, *, each: bool) -> None:
        """Have expired messages checked one by one if `each` may need other treatment than being settled."""
        while each and self.ended:
            self.ranges.extend(self.ended.popleft()[self._begun :])
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
                self.ended.popleft()
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
        self.ranges.extendleft((offset, offset + 1) for offset in reversed(offsets))
        self.reading = True

    def outlived(self, offsets: Iterable[int], state: ChannelState) -> None:
        """Note that messages in flight have expired: they are checked once they are no longer in flight."""
        outlived, to_look = self._outlived, self._to_look
        for offset in offsets:
            if offset not in outlived:
                outlived.add(offset)
                to_look.append(offset)
            # Two looks for each that is new: so few are stale, and no call takes long for that.
            for _ in range(2 if len(to_look) > 2 * state.flying + _SLACK else 0):
                if state.delivery(looked := to_look.popleft()) is None:
                    outlived.discard(looked)
                else:
                    to_look.append(looked)

    def back(self, offset: int) -> bool:
        """Note that a message is no longer in flight, but not settled; return whether it is now to be checked."""
        if offset not in self._outlived:
            return False
        self._outlived.discard(offset)
        self.add(offset)
        return True

    def wait(self, offset: int, state: ChannelState) -> None:
        """Have a deferred message checked once it is due."""
        self.unsent.add(offset)
        if len(self.unsent) > 2 * len(state.deferred) + _SLACK:
            self.unsent = {offset for offset in self.unsent if offset in state.deferred}

    def due(self, offset: int) -> None:
        """Note that a deferred message is due."""
        if offset in self.unsent:
            self.unsent.discard(offset)
            self.add(offset)
