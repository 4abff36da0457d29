"""The watch: about once a second, checks the disk space, the event loop, syncs in progress, and the directories."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import StoreNotFoundError
from aiodq.storage.io.filesystem import free_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiodq.engine.store.whole_store import WholeStore
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["Watch"]

_INTERVAL: Final = 1.0


class _Seen(NamedTuple):
    """The result of a look at the disk: the free space, and which directories of topics are gone."""

    free: int | None
    gone: list[str]


class Watch:
    """The watch of one store."""

    def __init__(self, host: WholeStore, *, look: Callable[[], None], tend: Callable[[], None]) -> None:
        """Watch this store; `run` does the work. Each time it calls `look` in a thread, and `tend` here."""
        self._host = host
        self._look_elsewhere = look
        self._tend = tend
        self._sampling = False
        self._removed: Callable[[], bool] = lambda: False
        self._missing: Callable[[Iterable[str]], list[str]] = lambda _: []

    def stay(self, removed: Callable[[], bool], missing: Callable[[Iterable[str]], list[str]]) -> None:
        """Watch for deleted directories from now on.

        Args:
            removed: returns whether the store's directory is gone; called in a thread.
            missing: returns which names are no longer in it; called in a thread.
        """
        self._removed, self._missing = removed, missing

    async def run(self) -> None:
        """Check until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._sample()
            due = loop.time() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            self._host.metrics.late(loop.time() - due)
            self._host.metrics.tick()
            self._host.reporter.tick()
            self._tend()

    def _sample(self) -> None:
        """Look at the disk in a thread. A disk that hangs blocks one look, but not this task."""
        if not self._sampling:
            self._sampling = True
            topics = self._host.on_disk()
            self._host.threads.start(partial(self._look, list(topics)), partial(self._sampled, topics))

    def _look(self, topics: list[str]) -> _Seen:
        """Look at the disk. Blocking.

        Raises:
            _RemovedError: the store's directory was deleted.
        """
        # INVARIANT: no put is acknowledged once it is known that the files being written have no names any more.
        if self._removed():
            raise _RemovedError("the store's directory was deleted while the store was open")
        self._look_elsewhere()
        return _Seen(free_space(self._host.fs, self._host.path), self._missing(topics))

    def _sampled(self, topics: Mapping[str, TopicEngine], seen: _Seen | None, error: BaseException | None) -> None:
        self._sampling = False
        self._host.metrics.disk_free = None if seen is None else seen.free
        if isinstance(error, _RemovedError):
            self._host.fail(error)
        for name in [] if seen is None else seen.gone:
            self._host.lose(name, topics[name])


class _RemovedError(StoreNotFoundError):
    """The directory of an open store was deleted."""
