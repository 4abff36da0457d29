"""When messages expire: on disk by wall time, within a run by the monotonic clock."""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.clock_timer import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.clock import Clock

__all__ = ["Lifetimes"]

_DRIFT: Final = 50_000_000
"""Nanoseconds by which the two clocks may diverge unnoticed: a slewed wall clock does so all the time."""


class Lifetimes:
    """The lifetimes of one topic's messages.

    The difference between wall time and monotonic time is noted when messages with a time to live are put, if it has
    changed since. Messages put before a jump of the wall clock keep the old difference, those put after it have the new
    one. Messages put in an earlier run have the difference as of when the topic was opened.
    """

    def __init__(self, clock: Clock) -> None:
        """Start a run in which nothing was put yet."""
        self._clock = clock
        self._opened = clock.now_ns()
        self._starts: list[int] = [0]
        self._ahead: list[int] = [self._opened - monotonic_ns(clock)]
        self._own: int | None = None

    def note(self, first: int, begin: int) -> None:
        """Note that messages with a time to live were put now, from offset `first` on; the log begins at `begin`."""
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
        """Whether messages with a time to live may have been put in this run."""
        return self._own is not None

    def end(self, offset: int, put: int, expiry: int) -> int:
        """Return when a message expires, in monotonic nanoseconds.

        Args:
            offset: the message's.
            put: when it was put, wall time.
            expiry: when it expires, wall time.
        """
        ahead = self._ahead[bisect_right(self._starts, offset) - 1]
        if self._own is None or offset < self._own:
            # Setting the wall clock back between two runs does not prolong a message's life.
            ahead += max(put - self._opened, 0)
        return expiry - ahead

    def left(self, first: int, put: int, expiries: Sequence[int], now: int) -> tuple[int, int]:
        """Return how many neighbours have not expired, up to the first that has, and when the first of them expires.

        Args:
            first: the first offset.
            put: when the last of them was put, wall time. Used for all of them, it can only make them expire sooner.
            expiries: when each expires, wall time; 0 for never.
            now: monotonic nanoseconds, as the returned moment, which is `sys.maxsize` if none expires.
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
