"""When times to live end: on disk as wall time, within a run on the clock that never goes back."""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from aiodq.engine.clock_timer import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.clock import Clock

__all__ = ["Lifetimes"]

_DRIFT: Final = 50_000_000
"""Nanoseconds by which the two clocks may come apart unnoticed: a wall clock that is slewed does so all the time."""


class Lifetimes:
    """One per topic.

    How far wall time is ahead of the other clock is noted whenever messages with a time to live come and it has changed
    since: what was put before a jump of the wall clock goes on by what was true then, what is put after it by what is
    true now. What was put in an earlier run goes by wall time as it was when the topic was opened.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin a run in which nothing was put yet."""
        self._clock = clock
        self._opened = clock.now_ns()
        self._starts: list[int] = [0]
        self._ahead: list[int] = [self._opened - monotonic_ns(clock)]
        self._own: int | None = None

    def note(self, first: int, begin: int) -> None:
        """Messages with a time to live were put now, at the offset `first` and behind it; the log begins at `begin`."""
        ahead = self._clock.now_ns() - monotonic_ns(self._clock)
        if self._own is None:
            self._own = first
        if abs(ahead - self._ahead[-1]) > _DRIFT:
            self._starts.append(first)
            self._ahead.append(ahead)
            gone = bisect_right(self._starts, begin) - 1
            del self._starts[:gone], self._ahead[:gone]

    @property
    def seen(self) -> bool:
        """Whether messages with a time to live may have come in this run."""
        return self._own is not None

    def end(self, offset: int, put: int, expiry: int) -> int:
        """Return when a message's time to live ends, monotonic nanoseconds.

        Args:
            offset: the message's.
            put: when it was put, wall time.
            expiry: when its time ends, wall time.
        """
        ahead = self._ahead[bisect_right(self._starts, offset) - 1]
        if self._own is None or offset < self._own:
            # A wall clock that was set back between two runs makes nothing live for longer than it was to.
            ahead += max(put - self._opened, 0)
        return expiry - ahead

    def left(self, first: int, put: int, expiries: Sequence[int], now: int) -> tuple[int, int]:
        """Return how many neighbours have time left, up to the first that has not, and when the first of them ends.

        Args:
            first: the first one's offset.
            put: when the last of them was put, wall time. All are taken to have been: it makes them end sooner, if any.
            expiries: when the time of each ends, wall time; 0 for never.
            now: monotonic nanoseconds, as what is returned; `sys.maxsize` where none ends.
        """
        at = bisect_right(self._starts, first)
        ahead = self._ahead[at - 1]
        if self._own is None or first < self._own:
            ahead += max(put - self._opened, 0)
        if at < len(self._starts):
            expiries = expiries[: self._starts[at] - first]
        soonest = min(filter(None, expiries), default=0)
        if 0 < soonest <= now + ahead:
            expiries = expiries[: next(at for at, expiry in enumerate(expiries) if 0 < expiry <= now + ahead)]
            soonest = min(filter(None, expiries), default=0)
        return len(expiries), soonest - ahead if soonest else sys.maxsize
