"""The two clocks, behind a seam so that tests can hold them.

What goes to disk is wall time; what is waited for is monotonic time. A jump of the wall clock therefore moves no timer.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where time comes from."""

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
        """Return `time.time_ns()`."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()
