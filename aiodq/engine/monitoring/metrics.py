"""The metrics of a running store: how long syncs take, free disk space, whether the event loop keeps up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.errors import DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.engine.monitoring.reporter import Reporter

__all__ = ["LEAST_FREE", "SLOW_SYNC", "StoreMetrics", "SyncTimer"]

SLOW_SYNC: Final = 1.0
"""Seconds after which a sync counts as slow."""

_LAGGING: Final = 0.5
"""Seconds by which the loop may be late for a timer before that is reported."""

_PROMPT: Final = 0.05
"""Seconds by which a tick may be late without the loop counting as held up."""

LEAST_FREE: Final = 32 << 20
"""Bytes of free space below which a store is not healthy."""

_WINDOW: Final = 30.0
"""Seconds for which one of two maxima is kept; both together cover the last 30 to 60."""

_FULL: Final = "the disk is full"


class StoreMetrics:
    """The metrics of one store; used only on its loop.

    Attributes:
        disk_free: bytes free on the store's disk, as of about a second ago; None if not known yet.
        displaced: why the store's path does not lead to its directory any more; empty if it does.
        refusing: why a write was refused, which another try does not change, by topic, until one succeeds again.
    """

    def __init__(self, clock: Clock, reporter: Reporter, loop_time: Callable[[], float]) -> None:
        """Start with nothing measured."""
        self.disk_free: int | None = None
        self.displaced: str = ""
        self.refusing: dict[str, str] = {}
        self._clock = clock
        self._reporter = reporter
        self._loop_time = loop_time
        self._interval, self._tick_due = 0.0, float("inf")
        self._under_way: dict[SyncTimer, float] = {}
        self._worst = self._worst_before = 0.0
        self._since = clock.monotonic()

    # --- syncs

    def began(self, timer: SyncTimer) -> None:
        """Note that a sync has begun."""
        self._under_way[timer] = self._clock.monotonic()

    def ended(self, timer: SyncTimer) -> None:
        """Note that a sync has ended."""
        now = self._clock.monotonic()
        took = now - self._under_way.pop(timer, now)
        if took > SLOW_SYNC:
            took = max(took - self._held_up(), 0.0)
        self._turn(now)
        self._worst = max(self._worst, took)
        if took > SLOW_SYNC:
            self._reporter.slow_sync(timer.topic, took, under_way=False)

    def _turn(self, now: float) -> None:
        if now - self._since >= _WINDOW:
            self._worst_before = self._worst if now - self._since < 2 * _WINDOW else 0.0
            self._worst, self._since = 0.0, now

    @property
    def sync_latency(self) -> float:
        """The seconds that the longest sync of about the last minute took, or has taken so far."""
        now = self._clock.monotonic()
        self._turn(now)
        latest = now - self._held_up()
        return max(self._worst, self._worst_before, *(latest - began for began in self._under_way.values()))

    def tick(self) -> None:
        """Report syncs that do not end; called about once a second."""
        now = self._clock.monotonic() - self._held_up()
        for timer, began in self._under_way.items():
            if now - began > SLOW_SYNC:
                self._reporter.slow_sync(timer.topic, now - began, under_way=True)

    # --- the disk

    def written(self, topic: str, error: Exception | None) -> None:
        """Note the outcome of a topic's write."""
        if isinstance(error, DiskFullError):
            if not self.refusing.get(topic, "").startswith(_FULL):
                self._reporter.disk_full(topic, error)
            self.refusing[topic] = f"{_FULL}: {error}"
        elif isinstance(error, StorageError) and not error.retriable:
            self.refusing[topic] = f"it cannot be written: {error}"
        elif error is None and self.refusing:
            self.refusing.pop(topic, None)

    def placed(self, displaced: str) -> None:
        """Note why the store's path does not lead to its directory any more, or that it does (empty)."""
        if displaced != self.displaced:
            self._reporter.displaced(displaced)
        self.displaced = displaced

    # --- the loop

    def expect_tick(self, interval: float) -> None:
        """Note that the next tick is due in so many seconds."""
        self._interval, self._tick_due = interval, self._loop_time() + interval

    def ticked(self) -> None:
        """Do what is due with each tick, which may be late."""
        late = self._loop_time() - self._tick_due
        if late > _LAGGING:
            self._reporter.lagging(late)
        self.tick()

    def _held_up(self) -> float:
        """Return for how many of the last seconds the loop may have been held up: what ended then is noticed now.

        That is no fault of the disk's.
        """
        late = self._loop_time() - self._tick_due
        return late + self._interval if late > _PROMPT else 0.0


class SyncTimer:
    """Times the syncs of one topic, or of the store; at most one is under way.

    Attributes:
        topic: the topic's name, or None for the store.
    """

    def __init__(self, metrics: StoreMetrics, topic: str | None) -> None:
        """Start with none under way."""
        self.topic = topic
        self._metrics = metrics

    def began(self) -> None:
        """Note that a sync has begun."""
        self._metrics.began(self)

    def ended(self) -> None:
        """Note that the sync has ended, successfully or not."""
        self._metrics.ended(self)

    def __enter__(self) -> None:
        """See `began`."""
        self.began()

    def __exit__(self, *_: object) -> None:
        """See `ended`."""
        self.ended()
