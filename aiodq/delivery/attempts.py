"""How often a channel's messages were delivered."""

from __future__ import annotations

from aiodq.delivery.offset_map import OffsetMap

__all__ = ["Attempts"]


class Attempts:
    """The numbers of deliveries of one channel's unsettled messages.

    Attributes:
        before: how often messages were delivered before the delivery in progress; a missing message never was.
        noted: of messages in flight whose deliveries are noted: how often they were delivered, this time included.
        unseen: from this offset on, no message was delivered by another process before.
    """

    __slots__ = ("before", "noted", "unseen")

    def __init__(self, before: OffsetMap[int]) -> None:
        """Begin with nothing in flight."""
        self.before: OffsetMap[int] = before
        self.noted: OffsetMap[int] = OffsetMap()
        self.unseen: int = max(before, default=-1) + 1

    def first_of(self, start: int, stop: int) -> int:
        """Return the first fresh message from `start` on, below `stop`, that was delivered before; `stop` if none is.

        A fresh one was not handed out since the channel was restored: another process delivered it.
        """
        return stop if start >= self.unseen else next(self.before.within(start, stop), stop)

    def land(self, offset: int) -> None:
        """Note that a message is no longer in flight."""
        if self.noted.size:
            self.noted.pop(offset)

    def clear(self) -> None:
        """Forget everything."""
        self.before, self.noted = OffsetMap(), OffsetMap()

    def parts(self) -> tuple[dict[int, dict[int, int]], ...]:
        """See `OffsetMap.parts`."""
        return *self.before.parts(), *self.noted.parts()
