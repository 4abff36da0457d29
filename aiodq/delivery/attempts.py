"""How often a channel's messages were delivered."""

from __future__ import annotations

from aiodq.delivery.offset_map import OffsetMap

__all__ = ["Attempts"]


class Attempts:
    """The numbers of deliveries of one channel's unsettled messages.

    Attributes:
        before: how often messages were delivered before the delivery in progress; a missing message never was.
        noted: of messages in flight whose deliveries are noted: how often they were delivered, this time included.
    """

    __slots__ = ("before", "noted")

    def __init__(self, before: OffsetMap[int]) -> None:
        """Begin with nothing in flight."""
        self.before: OffsetMap[int] = before
        self.noted: OffsetMap[int] = OffsetMap()

    def first_of(self, start: int, stop: int) -> int:
        """Return the first message from `start` on that was delivered before; `stop` where there is none below it."""
        return next(self.before.within(start, stop), stop)

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
