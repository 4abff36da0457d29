"""The two clocks, as a Protocol, so that tests can replace them.

Times on disk are wall time; timers use monotonic time. A jump of the wall clock therefore moves no timer.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

__all__ = ["Clock", "SystemClock"]

_LATEST_NS: Final = (1 << 63) - 1 - 100 * 366 * 86_400 * 1_000_000_000
"""In 2162: a time on disk is a signed 64-bit number, and a due time a hundred years later must fit into it too."""


class Clock(Protocol):
    """A source of wall time and monotonic time."""

    def now_ns(self) -> int:
        """Return wall time in nanoseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Return `time.time_ns()`, or the latest time that can be stored if the machine's clock is beyond that."""
        try:
            now = time.time_ns()
        except OverflowError:  # it says 2263 or later
            return _LATEST_NS
        return now if now < _LATEST_NS else _LATEST_NS  # noqa: FURB136 - `min` is a call, and each put asks

    monotonic: staticmethod[[], float] = staticmethod(time.monotonic)
