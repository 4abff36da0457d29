"""How many messages to prefetch for consumers that would otherwise wait for each of them."""

from __future__ import annotations

from typing import Final

from aiodq.wire.layout import PREFETCHED

__all__ = ["LOOKS", "MOST_AHEAD", "WINDOW", "Pace"]

WINDOW: Final = 0.01
"""Seconds within which `PREFETCHED` messages are taken before more are, so that no getter waits for each."""

_AHEAD: Final = 0.005
MOST_AHEAD: Final = 3000
"""Seconds' worth of messages to prefetch, and the most messages: no other process can have prefetched ones."""

LOOKS: Final = 4
"""How often in the time of what is prefetched it is seen whether more is to be."""


class Pace:
    """How quickly messages are taken. It reads no clock.

    Attributes:
        ahead: how many to prefetch: as many as are taken within `_AHEAD` seconds; 0 if they are taken slowly.
    """

    __slots__ = ("_since", "_taken", "ahead")

    def __init__(self) -> None:
        """Start with nothing taken."""
        self.ahead: int = 0
        self._taken = 0
        self._since = 0.0

    def look(self, now: float, taken: int, *, shut: bool) -> None:
        """Adjust `ahead`, unless the last look is too recent.

        Args:
            now: a monotonic clock's seconds.
            taken: how many messages were taken in all.
            shut: whether nothing is to be prefetched any more.
        """
        elapsed = now - self._since
        if elapsed < WINDOW:
            return
        number = taken - self._taken
        quick = number >= PREFETCHED and not shut
        self.ahead = min(int(number * _AHEAD / elapsed), MOST_AHEAD) if quick else 0
        self._taken, self._since = taken, now
