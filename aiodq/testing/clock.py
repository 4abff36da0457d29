"""A clock that stands still until it is moved."""

from __future__ import annotations

from typing import Final

__all__ = ["FakeClock"]

_START: Final = 1_767_225_600_000_000_000
_NANOSECONDS: Final = 1_000_000_000


class FakeClock:
    """A clock for tests: `aiodq.open(path, clock=FakeClock())`."""

    def __init__(self, now_ns: int = _START, monotonic: float = 0.0) -> None:
        """Begin at a wall time, by default that of 2026-01-01 UTC, and a monotonic one."""
        self._now_ns = now_ns
        self._monotonic = monotonic

    def now_ns(self) -> int:
        """Return wall time in nanoseconds since 1970-01-01 UTC."""
        return self._now_ns

    def monotonic(self) -> float:
        """Return the seconds that went by."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time go by, on both clocks."""
        if seconds < 0:
            raise ValueError("time does not go back; `jump` sets the wall clock")
        self._monotonic += seconds
        self.jump(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does."""
        self._now_ns += round(seconds * _NANOSECONDS)
