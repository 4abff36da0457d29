"""The watch: checks about once a second the disk space, the event loop, and syncs that do not end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.storage.io.free_space import free_space

if TYPE_CHECKING:
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.worker_threads import WorkerThreads
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["Watch"]

_INTERVAL: Final = 1.0


class Watch:
    """The watch of one store."""

    def __init__(
        self, fs: FileSystem, path: str, threads: WorkerThreads, metrics: StoreMetrics, reporter: Reporter
    ) -> None:
        """Watch the store at `path`; `run` does the work."""
        self._fs = fs
        self._path = path
        self._threads = threads
        self._metrics = metrics
        self._reporter = reporter
        self._sampling = False

    async def run(self) -> None:
        """Check until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._sample()
            due = loop.time() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            self._metrics.late(loop.time() - due)
            self._metrics.tick()
            self._reporter.tick()

    def _sample(self) -> None:
        """Look up the free space in a thread. A disk that hangs blocks one lookup, but not this task."""
        if not self._sampling:
            self._sampling = True
            self._threads.start(lambda: free_space(self._fs, self._path), self._sampled)

    def _sampled(self, free: int | None, error: BaseException | None) -> None:
        self._sampling = False
        self._metrics.disk_free = None if error is not None else free
