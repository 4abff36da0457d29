"""A timer of the event loop that rings at a moment of the store's clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock

__all__ = ["ClockTimer", "monotonic_ns"]

_SECOND: Final = 1_000_000_000
_LONGEST: Final = 86_400.0
"""Seconds; a loop may not take a timer of years, so it rings once a day for nothing instead."""

_HELD_UP: Final = 20_000_000
"""Nanoseconds: a timer that is later than this was held up by something that ran without awaiting anything."""

_MOMENT: Final = 0.001
"""Seconds in which what gathered meanwhile has its turn."""


def monotonic_ns(clock: Clock) -> int:
    """Return a clock's monotonic time in nanoseconds."""
    return round(clock.monotonic() * _SECOND)


class ClockTimer:
    """Rings at the earliest moment it was set to. A test's clock, which is moved by hand, makes it check when moved.

    If the loop was blocked, it rings a moment later still: an ack or a renewal that came in time, but waits in a socket
    or a queue of this process, is handled first.

    Attributes:
        at: that moment, in monotonic nanoseconds; None while silent.
    """

    __slots__ = ("_clock", "_gave_way", "_handles", "_ring", "_unwatch", "at")

    def __init__(self, clock: Clock, ring: Callable[[], int | None]) -> None:
        """Start silent.

        Args:
            clock: the store's clock.
            ring: called when the moment has come; it returns the next one, or None.
        """
        self._clock = clock
        self._ring = ring
        self.at: int | None = None
        self._gave_way = False
        self._handles: tuple[asyncio.TimerHandle, ...] = ()
        watch: Callable[[Callable[[], None]], Callable[[], None]] | None = getattr(clock, "watch", None)
        self._unwatch: Callable[[], None] | None = None if watch is None else watch(self._look)

    def set(self, moment: int) -> None:
        """Ring at `moment`, in monotonic nanoseconds, or earlier if set so before."""
        if self.at is not None and self.at <= moment:
            return
        self.at = moment
        if self._unwatch is not None:
            if moment <= monotonic_ns(self._clock):
                asyncio.get_running_loop().call_soon(self._look)
            return
        self._wait(min(max(moment - monotonic_ns(self._clock), 0) / _SECOND, _LONGEST))

    def stop(self) -> None:
        """Stop the timer."""
        self.at = None
        self._cancel()
        if self._unwatch is not None:
            self._unwatch()

    def _wait(self, seconds: float) -> None:
        self._cancel()
        loop = asyncio.get_running_loop()
        # Twice: Ctrl-C may come instead of a call, and is raised before its first line. Without one that follows, what
        # is delayed or in flight would wait for ever.
        self._handles = loop.call_later(seconds, self._look), loop.call_later(seconds, self._look)

    def _cancel(self) -> None:
        for handle in self._handles:
            handle.cancel()
        self._handles = ()

    def _look(self) -> None:
        moment = self.at
        if moment is None:
            return
        now = monotonic_ns(self._clock)
        if self._unwatch is None and now > moment + _HELD_UP and not self._gave_way:
            self._gave_way = True
            self._wait(_MOMENT)
            return
        self.at, self._gave_way = None, False
        try:
            following = self._ring() if now >= moment else moment
        except KeyboardInterrupt:
            self.set(moment)
            raise
        if following is not None:
            self.set(following)
