"""The stats publisher: publishes for other processes the statistics that only the owner of a store knows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.stats.active_topics import ActiveTopics
from aiodq.errors import AiodqError
from aiodq.storage.state.owner_stats import ChannelFigures, remove_figures, write_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiodq.clock import Clock
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.monitoring.activity import Activity
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.state.owner_stats import Figures

__all__ = ["StatsPublisher"]

_INTERVAL: Final = 1.0
_SHARE: Final = 50
"""Collecting the figures of all channels takes at most this fraction of the loop's time, as 1 in so many."""

_AT_ONCE: Final = 100
"""Channels read before others get their turn: two milliseconds, if all of them are busy."""


class StatsPublisher:
    """The stats publisher of one store."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        topics: Mapping[str, TopicEngine],
        activity: Activity[TopicEngine],
        *,
        threads: WorkerThreads,
        clock: Clock,
    ) -> None:
        """Publish the figures of these topics in the store at `path`; `run` does the work."""
        self._fs = fs
        self._path = path
        self._topics = topics
        self._active = ActiveTopics(activity, topics.values())
        self._threads = threads
        self._clock = clock
        self._shown: Figures | None = None
        self._there = False

    async def run(self) -> None:
        """Collect the figures about once a second, and publish them if they have changed."""
        pause, figures = _INTERVAL, dict[str, dict[str, ChannelFigures]]()
        while True:
            await asyncio.sleep(pause)
            figures, taken = await self._look(figures)
            pause = max(_INTERVAL, _SHARE * taken)
            if figures != self._shown:
                self._there = True
                # On a full or failing disk the last figures stand, and the next round tries again.
                with suppress(OSError, AiodqError, QueueShutDown):
                    await self._threads.call(write_figures, self._fs, self._path, figures)
                    self._shown = figures

    async def withdraw(self) -> None:
        """Wait until no thread works for the store any more, as one may be writing the figures; then withdraw them.

        Cancellation: `end` does it.
        """
        await self._threads.over()
        if self._there:
            with suppress(AiodqError, QueueShutDown):  # there is no thread for it
                await self._threads.call(self.end)
                self._there = False

    def end(self) -> None:
        """Withdraw the figures if they are there still. Blocking."""
        if self._there:
            with suppress(OSError):  # readers see that the owner is gone
                remove_figures(self._fs, self._path)

    async def _look(self, before: Iterable[str]) -> tuple[dict[str, dict[str, ChannelFigures]], float]:
        """Return the figures, and the seconds of the loop's time that collecting them took.

        Args:
            before: the topics that had figures at the last look.
        """
        found: dict[str, dict[str, ChannelFigures]] = {}
        taken, began = 0.0, self._clock.monotonic()
        for number, (topic, channel_engine) in enumerate(self._channels(before), 1):
            figures = _figures(channel_engine)
            if figures is not None and any(figures):
                found.setdefault(topic, {})[channel_engine.name] = figures
            if not number % _AT_ONCE:
                taken += self._clock.monotonic() - began
                await asyncio.sleep(0)
                began = self._clock.monotonic()
        return found, taken + self._clock.monotonic() - began

    def _channels(self, before: Iterable[str]) -> Iterator[tuple[str, ChannelEngine[Any]]]:
        """Yield the channels that may have figures, each with its topic's name; their set may change meanwhile."""
        for name in self._names({*before}):
            engine = self._topics.get(name)
            for channel_engine in () if engine is None else list(engine.channel_engines.values()):
                yield name, channel_engine

    def _names(self, before: set[str]) -> Iterator[str]:
        """Yield the active topics, then the others that had figures: latencies pass with time."""
        for topic in self._active.take():
            before.discard(topic.name)
            yield topic.name
        yield from before


def _figures(channel_engine: ChannelEngine[Any]) -> ChannelFigures | None:
    """Return the published figures of a channel; None if it has none to show."""
    state, latency = channel_engine.state, channel_engine.latency
    if state is None:
        return None
    counters = state.counters
    # Most of a thousand channels are idle: they should cost almost nothing.
    if latency.idle and not (state.flying or counters.timed_out or counters.dead or counters.dropped):
        return None
    return ChannelFigures(
        state.flying,
        counters.timed_out,
        counters.dead,
        counters.dropped,
        latency.put_to_deliver(),
        latency.put_to_ack(),
    )
