"""How often a channel's messages were delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.delivery.range_set import among

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Attempts"]


class Attempts:
    """One per channel; of what is settled, nothing is kept.

    Attributes:
        before: how often messages were delivered, the delivery under way not counted. What is not here never was.
        noted: of messages in flight whose deliveries are noted: how often they were, this time included.
    """

    __slots__ = ("before", "noted")

    def __init__(self, before: dict[int, int]) -> None:
        """Begin with nothing in flight."""
        self.before: dict[int, int] = before
        self.noted: dict[int, int] = {}

    def first_of(self, start: int, stop: int) -> int:
        """Return the first message from `start` on that was delivered before; `stop` where there is none below it."""
        before = self.before
        return next((offset for offset in range(start, stop) if offset in before), stop)

    def note(self, offsets: range, attempts: int) -> None:
        """Messages were delivered, this time included, so often, and that is noted."""
        self.noted |= dict.fromkeys(offsets, attempts)

    def to_tell(self, requeued: Iterable[int], delivered: Iterable[int]) -> list[int]:
        """Return in order what is to be told: what was requeued, and of what was delivered that which is in flight."""
        return sorted((self.noted.keys() & set(delivered)).union(requeued))

    def settle(self, start: int, stop: int) -> None:
        """Messages are settled."""
        for offset in among(self.before, start, stop):
            del self.before[offset]

    def settle_noted(self, start: int, stop: int) -> None:
        """Likewise, as far as their deliveries are noted."""
        if self.noted:
            for offset in among(self.noted, start, stop):
                del self.noted[offset]

    def land(self, offset: int) -> None:
        """A message is in flight no more."""
        if self.noted:
            self.noted.pop(offset, None)

    def clear(self) -> None:
        """Forget everything."""
        self.before.clear()
        self.noted.clear()
