"""A clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiodq.clock import storable

__all__ = ["FakeClock"]

_START: Final = 1_767_225_600_000_000_000
_NANOSECONDS: Final = 1_000_000_000


class FakeClock:
    """A clock for tests: `aiodq.open(path, clock=FakeClock())`."""

    def __init__(self, now_ns: int = _START, monotonic: float = 0.0) -> None:
        """Begin at a wall time, by default that of 2026-01-01 UTC, and a monotonic one."""
        self._wall_ns = now_ns
        self._now_ns = storable(now_ns)
        self._monotonic_ns = round(monotonic * _NANOSECONDS)
        self._watchers: list[Callable[[], None]] = []

    def now_ns(self) -> int:
        """Return wall time in nanoseconds since 1970-01-01 UTC; from 1 on and until 2162, as that of `SystemClock`."""
        return self._now_ns

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._monotonic_ns / _NANOSECONDS

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks.

        Timers of channels ring before this returns; if very many messages are concerned, the others are handled in the
        next turns of the loop.
        """
        if seconds < 0:
            raise ValueError("time does not go back; `jump` sets the wall clock")
        self._monotonic_ns += round(seconds * _NANOSECONDS)
        self.jump(seconds)
        for watcher in list(self._watchers):
            watcher()

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` whenever time has passed, as a timer would; return the function that ends that."""
        self._watchers.append(watcher)

        def end() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return end

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does."""
        self._wall_ns += round(seconds * _NANOSECONDS)
        self._now_ns = storable(self._wall_ns)
