"""What an ioLoop does now and then: a timer that runs only while there is something to look at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Ticker"]


class Ticker:
    """One per topic. A topic where nothing happens costs no wake-up, however many of them there are."""

    def __init__(self, tick: Callable[[], None]) -> None:
        """Call `tick` when it is time, once for each `within`."""
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def within(self, seconds: float) -> None:
        """Tick in so many seconds at the latest; one that comes sooner will do."""
        if self._over:
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._tick()

    def end(self) -> None:
        """Tick no more."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
