"""Producers in other processes that usually put again once they are answered: waiting briefly lets all share a sync.

Tasks of this process that are woken by a sync put again in the same turn of the loop. Another process has to be
scheduled first. If a sync did not wait for it, processes would split into groups that wait for each other's syncs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Returning"]

_SURE: Final = 4
"""Times in a row that a producer has to put again soon before others wait for it."""

_LONGEST: Final = 0.001
"""Soon is within the duration of a sync, and never later than so many seconds: to wait for longer costs more than
the sync that is saved."""

_WORTH: Final = 4
"""One of up to so many is waited for all that time; one of more for a share of it, as the others wait meanwhile."""

_TICK: Final = 0.001
"""Seconds of the shortest timer: for less, a loop that counts milliseconds would turn round and round."""


class _Habit:
    """How soon a producer puts again.

    Attributes:
        told: when it was answered last; None if it has put since.
        soon: how often in a row it has put again soon.
    """

    __slots__ = ("soon", "told")

    def __init__(self) -> None:
        self.told: float | None = None
        self.soon: int = 0


class Returning:
    """The producers in other processes of one topic whose puts wait for their syncs. They are compared by identity.

    Attributes:
        away: the producers that were answered, are likely to put again soon, and have not yet.
    """

    __slots__ = (
        "_again", "_began", "_habits", "_loop", "_monotonic", "_soon", "_sync", "_timer", "_together", "_told", "away",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float], again: Callable[[], None]
    ) -> None:
        """Start without producers. `again` is called when the wait is over, after `patient` has returned true."""
        self.away: set[object] = set()
        self._loop = loop
        self._monotonic = monotonic
        self._again = again
        self._habits: dict[object, _Habit] = {}
        self._together = 0
        self._sync = self._soon = self._began = self._told = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def sync_began(self) -> None:
        """Note that a sync has begun."""
        self._began = self._monotonic()

    def sync_ended(self) -> None:
        """Note that it has ended, before any producer is answered."""
        took = self._monotonic() - self._began
        # A single slow sync says nothing about the next one.
        self._sync += (min(took, 2 * self._sync) - self._sync) / 4 if self._sync else took
        self._soon = min(self._sync, _LONGEST)
        self._together = 0

    def told(self, who: object) -> None:
        """Note that a producer is answered."""
        habit = self._habits.get(who)
        if habit is None:
            habit = self._habits[who] = _Habit()
        habit.told = self._told = self._monotonic()
        if habit.soon >= _SURE:
            self._together += 1
            self.away.add(who)

    def came(self, who: object) -> None:
        """Note that a producer puts."""
        habit = self._habits.get(who)
        if habit is None or habit.told is None:
            return
        soon = self._monotonic() - habit.told <= self._soon
        habit.soon, habit.told = habit.soon + 1 if soon else 0, None
        if who in self.away:
            self._arrived(who)

    def left(self, who: object) -> None:
        """Forget a producer that has disconnected."""
        self._habits.pop(who, None)
        if who in self.away:
            self._arrived(who)

    def _arrived(self, who: object) -> None:
        self.away.remove(who)
        if not self.away and self._timer is not None:
            self._let_go()
            self._loop.call_soon(self._again)

    def patient(self) -> bool:
        """Return whether the sync should wait for the producers in `away`; `again` is called when the wait is over."""
        if not self.away:
            return False
        share = min(1.0, _WORTH * len(self.away) / max(self._together, 1))
        left = self._told + self._soon * share - self._monotonic()
        if left <= 0:
            self.away.clear()
            self._let_go()
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(max(left, _TICK), self._over)
        return True

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._again()
