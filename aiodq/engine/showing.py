"""Shows to other processes what only the owner of a store knows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.engine.signals import QueueShutDown
from aiodq.errors import AiodqError
from aiodq.storage.figures import ChannelFigures, remove_figures, write_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.clock import Clock
    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.offload import Offload
    from aiodq.storage.figures import Figures
    from aiodq.storage.filesystem import FileSystem

__all__ = ["Showing"]

_INTERVAL: Final = 1.0
_SHARE: Final = 50
"""Looking at all channels takes at most this fraction of the loop's time."""


class Showing:
    """One per store."""

    def __init__(self, fs: FileSystem, path: str, topics: Mapping[str, IoLoop], offload: Offload, clock: Clock) -> None:
        """Show the figures of these topics in the store at `path`; `run` does it."""
        self._fs = fs
        self._path = path
        self._topics = topics
        self._offload = offload
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
                    await self._offload.call(write_figures, self._fs, self._path, figures)
                    self._shown = figures

    def end(self) -> None:
        """Show nothing any more. Blocking."""
        if self._there:
            with suppress(OSError):  # readers see that the owner is gone
                remove_figures(self._fs, self._path)

    def _look(self) -> Figures:
        found: dict[str, dict[str, ChannelFigures]] = {}
        for name, ioloop in self._topics.items():
            for outlet in ioloop.outlets.values():
                state = outlet.state
                if state is None:
                    continue
                counters, latency = state.counters, outlet.latency
                figures = ChannelFigures(
                    len(state.in_flight),
                    counters.timed_out,
                    counters.dead,
                    counters.dropped,
                    latency.put_to_deliver(),
                    latency.put_to_ack(),
                )
                if any(figures):
                    found.setdefault(name, {})[outlet.name] = figures
        return found
