"""The ticks of topics: one timer of the event loop for a whole store, set while there is something to do."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Ticker", "Ticks"]

_TOGETHER: Final = 0.05
"""Seconds by which a topic may tick early, together with another one."""

_AT_ONCE: Final = 25
"""Topics that tick in one turn of the loop: about a millisecond."""

_MANY: Final = 1000
"""Entries up to which nobody looks for those of topics that have ended, or tick at another time."""

_SHORTEST: Final = 0.001
"""Seconds between two ticks of a topic, at least: by a shorter `sync_interval` alone the loop would do little else."""


class Ticks:
    """The ticks of one store: which topics are to tick, and when.

    A timer of the event loop costs as much as a put, and puts to a thousand topics would set a thousand of them.
    """

    __slots__ = ("_due", "_loop", "_most", "_numbers", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start with nothing to do."""
        self._loop = loop
        self._due: list[tuple[float, int, Ticker]] = []
        self._most = _MANY
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Return the loop's time, seconds."""
        return self._loop.time()

    def add(self, moment: float, ticker: Ticker) -> None:
        """Have a topic tick at this time of the loop, if that is still its `due` then."""
        if len(self._due) >= self._most:
            self._due[:] = [entry for entry in self._due if entry[2].due == entry[0]]
            heapify(self._due)
            self._most = max(_MANY, 2 * len(self._due))
        heappush(self._due, (moment, next(self._numbers), ticker))
        if self._timer is None or self._due[0][2] is ticker:
            self._set()

    def _set(self) -> None:
        """Set the timer to when the first is due."""
        # INVARIANT: whatever interrupts this, an earlier timer still rings, or the next topic sets one.
        before, self._timer = self._timer, self._loop.call_at(self._due[0][0], self._ring)
        if before is not None:
            before.cancel()

    def _ring(self) -> None:
        self._timer = None
        due, until = self._due, self.now() + _TOGETHER
        for _ in range(_AT_ONCE):
            if not due or due[0][0] > until:
                break
            moment, _, ticker = heappop(due)
            if ticker.due == moment:
                ticker.ring()
        if due:
            self._set()

    def end(self) -> None:
        """Tick no more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Ticker:
    """The ticks of one topic. An idle topic causes no wake-up, however many topics there are.

    Attributes:
        due: when it ticks next, in the loop's time; None if it does not.
    """

    __slots__ = ("_tick", "_ticks", "due")

    def __init__(self, ticks: Ticks, tick: Callable[[], None]) -> None:
        """Call `tick` when due, once for each `within`."""
        self._ticks = ticks
        self._tick: Callable[[], None] | None = tick
        self.due: float | None = None

    def within(self, seconds: float) -> None:
        """Tick in so many seconds at the latest, but not within a millisecond; an earlier tick will do."""
        if self._tick is None:
            return
        moment = self._ticks.now() + max(seconds, _SHORTEST)
        if self.due is None or moment < self.due:
            self._ticks.add(moment, self)
            self.due = moment

    def ring(self) -> None:
        """Tick now."""
        self.due = None
        if self._tick is not None:
            self._tick()

    def end(self) -> None:
        """Tick no more."""
        # The store's heap may still hold this for a while: it must not keep the topic alive.
        self._tick = self.due = None
