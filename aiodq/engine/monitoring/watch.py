"""The watch: checks about once a second the disk space, the event loop, syncs that do not end, and the directory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.errors import StoreNotFoundError
from aiodq.storage.io.free_space import free_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["Watch"]

_INTERVAL: Final = 1.0


class Watch:
    """The watch of one store."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        threads: WorkerThreads,
        metrics: StoreMetrics,
        reporter: Reporter,
        *,
        look: Callable[[], None],
        tend: Callable[[], None],
    ) -> None:
        """Watch the store at `path`; `run` does the work. Each time it calls `look` in a thread, and `tend` here."""
        self._fs = fs
        self._path = path
        self._threads = threads
        self._metrics = metrics
        self._reporter = reporter
        self._look_elsewhere = look
        self._tend = tend
        self._sampling = False
        self._removed: Callable[[], bool] = lambda: False
        self._fail: Callable[[Exception], None] | None = None

    def stay(self, removed: Callable[[], bool], fail: Callable[[Exception], None]) -> None:
        """Have `fail` called with an error once `removed`, in a thread, says that the store's directory was deleted."""
        self._removed, self._fail = removed, fail

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
            self._tend()

    def _sample(self) -> None:
        """Look at the disk in a thread. A disk that hangs blocks one look, but not this task."""
        if not self._sampling:
            self._sampling = True
            self._threads.start(self._look, self._sampled)

    def _look(self) -> int | None:
        """Return the free space.

        Raises:
            _RemovedError: the store's directory was deleted.
        """
        # INVARIANT: nothing more is promised once it is known that the files being written have no names any more.
        if self._removed():
            raise _RemovedError("the store's directory was deleted while the store was open")
        self._look_elsewhere()
        return free_space(self._fs, self._path)

    def _sampled(self, free: int | None, error: BaseException | None) -> None:
        self._sampling = False
        self._metrics.disk_free = None if error is not None else free
        if isinstance(error, _RemovedError) and self._fail is not None:
            self._fail(error)


class _RemovedError(StoreNotFoundError):
    """The directory of an open store was deleted."""
