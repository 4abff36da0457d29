"""The watch: checks about once a second the disk space, the event loop, syncs that do not end, and the directories."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from aiodq.errors import StoreNotFoundError
from aiodq.storage.io.free_space import free_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["Watch", "WatchedStore"]

_INTERVAL: Final = 1.0

T = TypeVar("T")


class WatchedStore(Protocol[T]):
    """What the watch needs of the store: `aiodq.engine.store.store_engine.StoreEngine` has it."""

    def on_disk(self) -> Mapping[str, T]:
        """Return the topics that have a directory, by name."""
        ...

    def lose(self, name: str, topic: T) -> None:
        """Have a topic end whose directory was deleted, if it is still in use."""
        ...

    def fail(self, error: BaseException) -> None:
        """Stop the store."""
        ...


class _Seen(NamedTuple):
    """What a look at the disk has found: the free space, and which directories of topics are gone."""

    free: int | None
    gone: list[str]


class Watch(Generic[T]):
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
        self._missing: Callable[[Iterable[str]], list[str]] = lambda _: []
        self._store: WatchedStore[T] | None = None

    def stay(
        self, store: WatchedStore[T], removed: Callable[[], bool], missing: Callable[[Iterable[str]], list[str]]
    ) -> None:
        """Tell the store of directories that somebody deletes.

        Args:
            store: the store.
            removed: says, in a thread, whether its own is gone.
            missing: says, in a thread, which names are in it no more.
        """
        self._store, self._removed, self._missing = store, removed, missing

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
            topics = {} if self._store is None else self._store.on_disk()
            self._threads.start(partial(self._look, list(topics)), partial(self._sampled, topics))

    def _look(self, topics: list[str]) -> _Seen:
        """Return what there is to see.

        Raises:
            _RemovedError: the store's directory was deleted.
        """
        # INVARIANT: nothing more is promised once it is known that the files being written have no names any more.
        if self._removed():
            raise _RemovedError("the store's directory was deleted while the store was open")
        self._look_elsewhere()
        return _Seen(free_space(self._fs, self._path), self._missing(topics))

    def _sampled(self, topics: Mapping[str, T], seen: _Seen | None, error: BaseException | None) -> None:
        self._sampling = False
        self._metrics.disk_free = None if seen is None else seen.free
        if self._store is None:
            return
        if isinstance(error, _RemovedError):
            self._store.fail(error)
        for name in [] if seen is None else seen.gone:
            self._store.lose(name, topics[name])


class _RemovedError(StoreNotFoundError):
    """The directory of an open store was deleted."""
