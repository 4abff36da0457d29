"""Shows to other processes what only the owner of a store knows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError
from aiodq.storage.state.owner_stats import ChannelFigures, remove_figures, write_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.clock import Clock
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.engine.worker_threads import WorkerThreads
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.state.owner_stats import Figures

__all__ = ["StatsPublisher"]

_INTERVAL: Final = 1.0
_SHARE: Final = 50
"""Looking at all channels takes at most this fraction of the loop's time."""


class StatsPublisher:
    """One per store."""

    def __init__(
        self, fs: FileSystem, path: str, topics: Mapping[str, TopicEngine], threads: WorkerThreads, clock: Clock
    ) -> None:
        """Show the figures of these topics in the store at `path`; `run` does it."""
        self._fs = fs
        self._path = path
        self._topics = topics
        self._threads = threads
        self._clock = clock
        self._shown: Figures | None = None
        self._there = False

    async def run(self) -> None:
        """Look about once a second, and show what has changed."""
        pause = _INTERVAL
        while True:
            await asyncio.sleep(pause)
            began = self._clock.monotonic()
            figures = self._look()
            pause = max(_INTERVAL, _SHARE * (self._clock.monotonic() - began))
            if figures != self._shown:
                self._there = True
                # On a full or failing disk the last figures stand, and the next look tries again.
                with suppress(OSError, AiodqError, QueueShutDown):
                    await self._threads.call(write_figures, self._fs, self._path, figures)
                    self._shown = figures

    def end(self) -> None:
        """Show nothing any more. Blocking."""
        if self._there:
            with suppress(OSError):  # readers see that the owner is gone
                remove_figures(self._fs, self._path)

    def _look(self) -> Figures:
        found: dict[str, dict[str, ChannelFigures]] = {}
        for name, engine in self._topics.items():
            for channel_engine in engine.channel_engines.values():
                state = channel_engine.state
                if state is None:
                    continue
                counters, latency = state.counters, channel_engine.latency
                figures = ChannelFigures(
                    state.flying,
                    counters.timed_out,
                    counters.dead,
                    counters.dropped,
                    latency.put_to_deliver(),
                    latency.put_to_ack(),
                )
                if any(figures):
                    found.setdefault(name, {})[channel_engine.name] = figures
        return found
