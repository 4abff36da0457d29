"""The opening of a store's files in a thread, and their release, also after the caller was cancelled."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from aiodq.engine.lock_wait import when_unlocked
from aiodq.engine.store.opening import open_store

if TYPE_CHECKING:
    from aiodq.clock import Clock
    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.opened_files import OpenedStore
    from aiodq.options import StoreOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.state.store_identity import StoreIdentity

__all__ = ["StoreOpening"]


class StoreOpening:
    """The opening of one store's files."""

    __slots__ = ("_clock", "_fs", "_given", "_given_up", "_opened", "_opening", "_path", "_threads")

    def __init__(
        self, fs: FileSystem, clock: Clock, path: str, given: StoreOptions | None, threads: WorkerThreads
    ) -> None:
        """Open nothing yet."""
        self._fs = fs
        self._clock = clock
        self._path = path
        self._given = given
        self._threads = threads
        self._opening = threading.Lock()
        self._opened: OpenedStore | None = None
        self._given_up = False

    async def open(self, *, create: bool, wait: float) -> OpenedStore:
        """Take the lock and recover every topic.

        Args:
            create: whether a missing store is created.
            wait: seconds to wait for another owner to release it.

        Raises:
            AiodqError: see `aiodq.engine.store.opening.open_store`.

        Cancellation: `give_up` has to be called.
        """
        opening = partial(self._open_unless_given_up, create=create)
        return await when_unlocked(self._path, self._threads.call, opening, wait)

    def _open_unless_given_up(self, *, create: bool) -> OpenedStore:
        opened = open_store(self._fs, self._clock, self._path, self._given, create=create)
        with self._opening:
            self._opened = opened
            if self._given_up:
                opened.abandon()
        return opened

    def give_up(self) -> None:
        """Close what was opened, as the caller was cancelled; a thread that is still opening it does so itself."""
        with self._opening:
            self._given_up = True
            self.release()

    def taken_over(self) -> None:
        """Drop the references to what the engine has taken over, which would only take memory."""
        if self._opened is not None:
            self._opened.transactions.found.clear()
            self._opened = self._opened._replace(topics={}, committed={})

    @property
    def identity(self) -> StoreIdentity | None:
        """The store's identity; None before the store is open."""
        return None if self._opened is None else self._opened.identity

    def release(self) -> None:
        """Close what was opened and is not taken over, and release the directory."""
        if self._opened is not None:
            self._opened.abandon()
