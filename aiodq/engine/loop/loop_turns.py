"""When a task that never waits has to yield to the event loop: by time, not by count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

__all__ = ["LoopTurns"]

_SLICE: Final = 0.0005
"""Seconds between two checks whether the loop is still in the same turn; a task runs for two of them at most."""


class LoopTurns:
    """The time slices of one store.

    It is unknown when the loop began its turn. So a task that finds a slice over asks the loop to call back at its next
    turn, and begins another slice. If that one ends, too, before the loop has called back, the task has to yield.

    Attributes:
        until: the end of the slice, on the store's monotonic clock; before it, no check is needed.
    """

    __slots__ = ("_asked", "_loop", "until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start with the first slice over."""
        self.until: float = 0.0
        self._loop = loop
        self._asked = False

    def over(self, now: float) -> bool:
        """Return whether to yield, the slice being over; if not, begin another slice."""
        if self._asked:
            return True
        self._asked = True
        self.until = now + _SLICE
        self._loop.call_soon(self._turned)
        return False

    def _turned(self) -> None:
        self._asked = False
