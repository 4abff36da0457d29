"""What a process has put into a topic since the owner last counted the messages of its channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aiodq.delivery.range_set import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Counted", "PlacedPuts"]

_FEW: Final = 256
"""Gaps between them after which it is looked for the first time which of them no channel's counts lack."""


class Counted(Protocol):
    """A channel's counts; `aiodq.shared.consuming.counts.Counts` implements it.

    Attributes:
        end: up to where the owner's last counts include what was put.
    """

    end: int

    @property
    def depth(self) -> int:
        """The number of messages that are not settled."""
        ...


class PlacedPuts:
    """The offsets of a process's messages in a topic, for the counts of all its channels.

    They are kept once for all channels, so that a put costs the same however many there are.

    Attributes:
        end: after the last of them, also once it was forgotten.
    """

    def __init__(self, counts: Callable[[], Iterable[Counted]]) -> None:
        """Start without puts; `counts` returns those of the topic's channels."""
        self.end: int = 0
        self._counts = counts
        # The last ones, up to `end`, without a gap; those before them.
        self._begin = 0
        self._earlier = RangeSet()
        self._gaps = 0
        self._most = _FEW
        # No channel is deeper, as far as known here.
        self._deepest = 0

    def add(self, offsets: range) -> None:
        """Note that messages of this process are in the log."""
        self._deepest += len(offsets)
        if offsets.start == self.end:
            self.end = offsets.stop
        elif offsets.start > self.end:
            self._earlier.add(self._begin, self.end)
            self._begin, self.end = offsets.start, offsets.stop
            self._forget()
        else:
            self._earlier.add(offsets.start, offsets.stop)

    def _forget(self) -> None:
        """Forget those that no channel's counts lack, once in many gaps."""
        self._gaps += 1
        if self._gaps >= self._most:
            self._earlier.discard_below(min((each.end for each in self._counts()), default=self.end))
            self._gaps, self._most = 0, max(_FEW, 2 * len(self._earlier))

    def since(self, end: int) -> int:
        """Return how many of them are at or after the offset `end`."""
        last = max(self.end - max(self._begin, end), 0)
        if end >= self._earlier.last:
            return last
        return last + sum(stop - start for start, stop in self._earlier.within(end, self._earlier.last))

    def counted(self, depth: int) -> None:
        """Note the depth of a channel by its owner's counts."""
        self._deepest = max(self._deepest, depth)

    def grew(self, messages: int) -> None:
        """Note that a channel may be deeper by so many messages."""
        self._deepest += messages

    def reaches(self, depth: int) -> bool:
        """Return whether a channel is at least so deep, by what is known here.

        All channels are looked at only if one may be.
        """
        if self._deepest >= depth:
            self._deepest = max((each.depth for each in self._counts()), default=0)
        return self._deepest >= depth
