"""The commit delay: a sync waits briefly for other processes that usually put again once they are answered.

Tasks of this process that are woken by a sync put again in the same turn of the loop. Another process has to be
scheduled first. If a sync did not wait for it, processes would split into groups that wait for each other's syncs.
Databases know this as `commit_delay` and `commit_siblings` (PostgreSQL); here the delay is measured, not configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["CommitDelay"]

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
        answered_at: when it was answered last; None if it has put since.
        soon: how often in a row it has put again soon.
    """

    __slots__ = ("answered_at", "soon")

    def __init__(self) -> None:
        self.answered_at: float | None = None
        self.soon: int = 0


class CommitDelay:
    """How long a topic's next sync waits for producers in other processes. They are compared by identity.

    Attributes:
        expected: the producers that were answered, are likely to put again soon, and have not yet.
    """

    __slots__ = (
        "_answered_at", "_began", "_habits", "_loop", "_monotonic", "_on_end", "_soon", "_sync", "_timer",
        "_together", "expected",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float], on_end: Callable[[], None]
    ) -> None:
        """Start without producers. `on_end` is called when the wait is over, after `should_wait` has returned true."""
        self.expected: set[object] = set()
        self._loop = loop
        self._monotonic = monotonic
        self._on_end = on_end
        self._habits: dict[object, _Habit] = {}
        self._together = 0
        self._sync = self._soon = self._began = self._answered_at = 0.0
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

    def answered(self, producer: object) -> None:
        """Note that a producer is answered."""
        habit = self._habits.get(producer)
        if habit is None:
            habit = self._habits[producer] = _Habit()
        habit.answered_at = self._answered_at = self._monotonic()
        if habit.soon >= _SURE:
            self._together += 1
            self.expected.add(producer)

    def put_arrived(self, producer: object) -> None:
        """Note that a producer puts."""
        habit = self._habits.get(producer)
        if habit is None or habit.answered_at is None:
            return
        soon = self._monotonic() - habit.answered_at <= self._soon
        habit.soon, habit.answered_at = habit.soon + 1 if soon else 0, None
        if producer in self.expected:
            self._not_expected(producer)

    def disconnected(self, producer: object) -> None:
        """Forget a producer that has disconnected."""
        self._habits.pop(producer, None)
        if producer in self.expected:
            self._not_expected(producer)

    def _not_expected(self, producer: object) -> None:
        self.expected.remove(producer)
        if not self.expected and self._timer is not None:
            self._cancel_timer()
            self._loop.call_soon(self._on_end)

    def should_wait(self) -> bool:
        """Return whether the sync should wait for those in `expected`; `on_end` is called when the wait is over."""
        if not self.expected:
            return False
        share = min(1.0, _WORTH * len(self.expected) / max(self._together, 1))
        left = self._answered_at + self._soon * share - self._monotonic()
        if left <= 0:
            self.expected.clear()
            self._cancel_timer()
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(max(left, _TICK), self._over)
        return True

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._on_end()
