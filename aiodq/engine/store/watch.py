"""The watch: about once a second, checks the disk space, the event loop, syncs in progress, and what was deleted."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import StoreNotFoundError
from aiodq.storage.io.filesystem import free_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from aiodq.engine.store.whole_store import WholeStore
    from aiodq.engine.topic.topic_engine import TopicEngine

    _Missing: TypeAlias = Callable[[Iterable[str]], list[str]]

__all__ = ["Watch"]

_INTERVAL: Final = 1.0


class _Seen(NamedTuple):
    """The result of a look at the disk.

    Attributes:
        free: the free space, in bytes, or None if it is unknown.
        displaced: why the store's path does not lead to its directory any more; empty if it does.
        gone: the topics whose directories are gone.
        unlinked: the segments being written whose files are gone: the path of each by its topic.
    """

    free: int | None
    displaced: str
    gone: list[str]
    unlinked: dict[str, str]


class Watch:
    """The watch of one store."""

    def __init__(self, host: WholeStore, *, look: Callable[[], None], tend: Callable[[], None]) -> None:
        """Watch this store; `run` does the work. Each time it calls `look` in a thread, and `tend` here."""
        self._host = host
        self._look_elsewhere = look
        self._tend = tend
        self._sampling = False
        self._watcher = host.activity.watch()
        self._writing: set[TopicEngine] = set()
        self._sizes: dict[TopicEngine, int] = {}
        self._removed: Callable[[], bool] = lambda: False
        self._displaced: Callable[[], str] = lambda: ""
        self._missing: _Missing = lambda _: []
        self._unlinked: _Missing = lambda _: []

    def stay(
        self, removed: Callable[[], bool], displaced: Callable[[], str], missing: _Missing, unlinked: _Missing
    ) -> None:
        """Watch for what is deleted or renamed under the store from now on. All arguments are called in a thread.

        Args:
            removed: returns whether the store's directory is gone.
            displaced: returns why its path does not lead to it any more, or an empty string.
            missing: returns which names are no longer in it.
            unlinked: returns which paths below it name nothing any more.
        """
        self._removed, self._displaced, self._missing, self._unlinked = removed, displaced, missing, unlinked

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self._sample()
            self._host.metrics.expect_tick(_INTERVAL)
            await asyncio.sleep(_INTERVAL)
            self._host.metrics.ticked()
            self._host.reporter.tick()
            self._tend()

    def _sample(self) -> None:
        """Look at the disk in a thread. A disk that hangs blocks one look, but not this task."""
        if not self._sampling:
            self._sampling = True
            topics = self._host.on_disk()
            written = self._written(topics)
            self._host.threads.start(partial(self._look, list(topics), written), partial(self._sampled, topics))

    def _written(self, topics: Mapping[str, TopicEngine]) -> dict[str, str]:
        """Return the path of each segment that has grown since the last look, by its topic."""
        before, self._sizes, written = self._sizes, {}, dict[str, str]()
        active: set[TopicEngine] = self._watcher.take() | self._writing
        # A put that follows another one before the next tick is not noted.
        self._writing = {topic for topic in active if topic.tick_scheduled and not topic.stopped}
        for topic in active:
            topic.io_loop.tend()
            if topics.get(topic.name) is topic:
                segment = topic.log.segments[-1]
                self._sizes[topic] = segment.size
                # One that was begun since and is as large by chance is looked at once it grows.
                if before.get(topic) != segment.size:
                    written[topic.name] = segment.path
        return written

    def _look(self, topics: list[str], written: Mapping[str, str]) -> _Seen:
        """Look at the disk. Blocking.

        Raises:
            _RemovedError: the store's directory was deleted.
        """
        # INVARIANT: no put is acknowledged once it is known that the files being written have no names any more.
        if self._removed():
            raise _RemovedError("the store's directory was deleted while the store was open")
        self._look_elsewhere()
        below = {os.path.join(name, os.path.basename(path)): name for name, path in written.items()}
        unlinked = {below[path]: written[below[path]] for path in self._unlinked(below)}
        free = free_space(self._host.fs, self._host.path)
        return _Seen(free, self._displaced(), self._missing(topics), unlinked)

    def _sampled(self, topics: Mapping[str, TopicEngine], seen: _Seen | None, error: BaseException | None) -> None:
        self._sampling = False
        self._host.metrics.disk_free = None if seen is None else seen.free
        if isinstance(error, _RemovedError):
            self._host.fail(error)
        if seen is None:
            return
        self._host.metrics.placed(seen.displaced)
        for name in seen.gone:
            self._host.lose(name, topics[name])
        for name, path in seen.unlinked.items():
            # Since the look, another segment may have been begun, and retention may have deleted this one before it.
            if topics[name].log.segments[-1].path == path:
                self._host.lose(name, topics[name], path)


class _RemovedError(StoreNotFoundError):
    """The directory of an open store was deleted."""
