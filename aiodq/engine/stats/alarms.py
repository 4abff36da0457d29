"""Alarms: raised when a value reaches its threshold, and cleared once it is well away from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.engine.loop.clock_timer import ClockTimer, monotonic_ns
from aiodq.engine.stats.topic_stats import backlogs
from aiodq.options import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aiodq.clock import Clock
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.stats.topic_stats import BacklogFigures
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.options import Alarm

__all__ = ["Thresholds"]

_INTERVAL_NS: Final = 1_000_000_000
_AT_ONCE: Final = 200
"""Channels checked before others get their turn."""

_BACK: Final = 0.8
"""A value has to fall below this share of its threshold to clear an alarm; free space has to rise likewise."""


class _Key(NamedTuple):
    """One threshold of one alarm, for one topic or channel."""

    number: int
    what: str
    topic: str | None
    channel: str | None


class _Value(NamedTuple):
    """A value compared with its threshold.

    Attributes:
        key: the threshold, and where it applies.
        reached: whether the value is at its threshold, or beyond.
        well: whether it is well away from it, so that the alarm is cleared.
        text: the value and its threshold, as text.
    """

    key: _Key
    reached: bool
    well: bool
    text: str


class Thresholds:
    """The alarms of one store."""

    def __init__(
        self,
        alarms: Sequence[Alarm],
        topics: Mapping[str, TopicEngine],
        clock: Clock,
        metrics: StoreMetrics,
        reporter: Reporter,
    ) -> None:
        """Watch these alarms; `run` does the work."""
        self._alarms = alarms
        self._topics = topics
        self._clock = clock
        self._metrics = metrics
        self._reporter = reporter
        self._raised: dict[_Key, str] = {}

    @property
    def reasons(self) -> list[str]:
        """The raised alarms, as text."""
        return list(self._raised.values())

    async def run(self) -> None:
        """Check about once a second of the store's clock, until cancelled."""
        due = asyncio.Event()

        def ring() -> None:
            due.set()

        timer = ClockTimer(self._clock, ring)
        try:
            while True:
                await self._look()
                timer.set(monotonic_ns(self._clock) + _INTERVAL_NS)
                await due.wait()
                due.clear()
        finally:
            timer.stop()

    async def _look(self) -> None:
        seen: set[_Key] = set()
        for number, value in enumerate(self._values(), 1):
            seen.add(value.key)
            self._judge(value)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        for key in self._raised.keys() - seen:
            self._clear(key, "there is nothing left of it")

    def _values(self) -> Iterator[_Value]:
        now_ns = self._clock.now_ns()
        for number, alarm in enumerate(self._alarms):
            free = self._metrics.disk_free
            if alarm.disk_free is not None and free is not None:
                yield _disk_free(_Key(number, "disk_free", None, None), free, alarm.disk_free)
        watching = [(number, alarm) for number, alarm in enumerate(self._alarms) if alarm.depth or alarm.oldest_age]
        for engine in list(self._topics.values()) if watching else ():
            concerned = [(number, alarm) for number, alarm in watching if alarm.topic in {None, engine.name}]
            for backlog in backlogs(engine, now_ns) if concerned else ():
                for number, alarm in concerned:
                    if alarm.channel in {None, backlog.channel}:
                        yield from _of_backlog(number, alarm, engine.name, backlog)

    def _judge(self, value: _Value) -> None:
        key, place = value.key, self._reporter.place(value.key.topic, value.key.channel)
        if value.reached and key not in self._raised:
            self._reporter.alarm(key.topic, key.channel, value.text)
        if value.reached or (key in self._raised and not value.well):
            self._raised[key] = f"{place}: {value.text}"
        elif key in self._raised:
            self._clear(key, value.text)

    def _clear(self, key: _Key, text: str) -> None:
        del self._raised[key]
        self._reporter.cleared(key.topic, key.channel, text)


def _of_backlog(number: int, alarm: Alarm, topic: str, backlog: BacklogFigures) -> Iterator[_Value]:
    if alarm.depth is not None:
        depth, most = backlog.depth, alarm.depth
        text = f"the depth is {depth:,} (alarm at {most:,})"
        yield _Value(_Key(number, "depth", topic, backlog.channel), depth >= most, depth < most * _BACK, text)
    if alarm.oldest_age is not None:
        age, oldest = backlog.oldest_age or 0.0, seconds(alarm.oldest_age)
        text = f"the oldest message not settled was put {age:,.0f} s ago (alarm at {oldest:,.0f} s)"
        yield _Value(_Key(number, "oldest_age", topic, backlog.channel), age >= oldest, age < oldest * _BACK, text)


def _disk_free(key: _Key, free: int, least: int) -> _Value:
    text = f"{free:,} bytes are free on the disk (alarm below {least:,})"
    return _Value(key, free < least, free * _BACK >= least, text)
