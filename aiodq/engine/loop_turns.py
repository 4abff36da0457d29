"""When who works without ever waiting has to give way to the rest of the event loop: by time, not by count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

__all__ = ["LoopTurns"]

_SLICE: Final = 0.0005
"""Seconds after which it is looked whether the loop still goes through the same turn; two such are the most."""


class LoopTurns:
    """One per store.

    Nothing tells when the loop began its turn. So who finds that a slice of time is over has the loop call back at its
    next turn, and begins another. Who finds that one over too, before the loop has called back, is to give way.

    Attributes:
        until: the end of the slice, on the store's monotonic clock: before it, nothing has to be asked.
    """

    __slots__ = ("_asked", "_loop", "until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with the first slice over."""
        self.until: float = 0.0
        self._loop = loop
        self._asked = False

    def over(self, now: float) -> bool:
        """Return whether others are to have their turn, where the slice is over; else another one begins."""
        if self._asked:
            return True
        self._asked = True
        self.until = now + _SLICE
        self._loop.call_soon(self._turned)
        return False

    def _turned(self) -> None:
        self._asked = False
