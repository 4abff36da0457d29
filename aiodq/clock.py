"""The two clocks, as a Protocol, so that tests can replace them.

Times on disk are wall time; timers use monotonic time. A jump of the wall clock therefore moves no timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final, Protocol

__all__ = ["Clock", "SystemClock", "storable"]

_EARLIEST_NS: Final = 1
"""In a due time and an end of life on disk, 0 says that there is none; so no moment is 0, nor before it."""

_LATEST_NS: Final = (1 << 63) - 1 - 100 * 366 * 86_400 * 1_000_000_000
"""In 2162: a time on disk is a signed 64-bit number, and a due time a hundred years later must fit into it too."""


class Clock(Protocol):
    """A source of wall time and monotonic time."""

    def now_ns(self) -> int:
        """Return wall time in nanoseconds since 1970-01-01 UTC: from 1 on, and until 2162."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Return `time.time_ns()`, limited to the times that can be stored."""
        try:
            now = time.time_ns()
        except OverflowError:  # it says 2263 or later
            return _LATEST_NS
        return now if 0 < now < _LATEST_NS else storable(now)

    monotonic: ClassVar[Callable[..., float]] = staticmethod(time.monotonic)


def storable(now_ns: int) -> int:
    """Return a wall time, limited to the times that can be stored."""
    return min(max(now_ns, _EARLIEST_NS), _LATEST_NS)
