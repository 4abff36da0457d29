"""How long the getters of a channel have run without yielding to the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LONGEST_TURN", "LoopTurn"]

LONGEST_TURN: Final = 0.001
"""Seconds after which a getter that always finds a message gives way to others, even within a longer batch."""

_WHOLE_BATCH: Final = 1000
"""The messages one call takes without giving way: the call that returns first has the first messages."""

_MUCH_READ: Final = 2 << 20
"""Bytes read from the page cache after which a call gives way, however few its messages: about two milliseconds."""

_LOOK_AFTER: Final = 100
"""The messages of a longer batch after which its call checks whether to give way."""


class LoopTurn:
    """The turn of one channel's getters on the event loop.

    Attributes:
        began: when others last had their turn, in monotonic seconds.
    """

    __slots__ = ("_gave_way", "_monotonic", "began")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Start with the turn over, so that the first getter yields."""
        self.began: float = 0.0
        self._gave_way = False
        self._monotonic = monotonic

    def begin(self) -> float:
        """Start a turn, as the event loop has just run other callbacks, so getters need not yield; return the time."""
        self.began = self._monotonic()
        return self.began

    @property
    def is_over(self) -> bool:
        """Whether to yield to the event loop."""
        return self._monotonic() - self.began > LONGEST_TURN

    def is_over_amid(self, taken: int, most: int, read: int) -> bool:
        """Return whether a call is to yield to the event loop.

        Seldom: meanwhile another getter may return later messages before this call returns its own.

        Args:
            taken: the messages it has taken since it last yielded.
            most: the messages that it takes in all.
            read: the bytes that were read for it on the event loop since then.
        """
        return read > _MUCH_READ or (most > _WHOLE_BATCH and taken > _LOOK_AFTER and self.is_over)

    async def leave(self) -> float:
        """Yield to the event loop; return the time.

        Getters that come meanwhile do so too, in order: the first of them begins the next turn.

        Cancellation: it counts as having yielded, so the next getter need not. Otherwise a caller whose timeout is
        shorter than a turn of the loop would never get a message, however often it called.
        """
        if self._gave_way:
            self._gave_way = False
            return self.begin()
        before = self.began
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._gave_way = True
            raise
        return self.begin() if self.began == before else self._monotonic()
