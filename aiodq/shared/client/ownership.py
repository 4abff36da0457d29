"""A process's ownership of a shared store: it takes the store if nobody else has it, and serves it to all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.futures import ended
from aiodq.engine.store.store_engine import StoreEngine
from aiodq.errors import StorageError, StoreLockedError
from aiodq.message import Message
from aiodq.shared.server.owner import Owner
from aiodq.storage.io.lock import is_locked

if TYPE_CHECKING:
    from aiodq.engine.store.store_engine import Seams
    from aiodq.options import StoreOptions
    from aiodq.shared.connection.link import Link
    from aiodq.shared.server.inside import Inside

__all__ = ["Ownership"]

_FAILED_TWICE: Final = 10.0
"""Seconds within which a second failure means that opening the store again does not help."""


class Ownership:
    """The ownership of one store by this process, which may never have it.

    Attributes:
        owner: the server of the store, if this process owns it.
        locked: says who had the store for itself when this process last tried to take it; None if it was free.
        taking: whether this process is about to own it.
    """

    def __init__(self, path: str, options: StoreOptions | None, seams: Seams, *, create: bool) -> None:
        """Prepare; `take` takes the store."""
        self.owner: Owner | None = None
        self.locked: StoreLockedError | None = None
        self.taking: bool = False
        self._path = path
        self._options = options
        self._seams = seams
        self._create = create
        self._kept_open: object = None
        self._failed_at: float | None = None

    async def take(self, producer: int) -> bool:
        """Own the store if no process does, and serve it; return whether this process owns it now.

        Args:
            producer: the number that identifies this process's puts.

        Raises:
            AiodqError: it could not be opened or served, or has failed twice.
        """
        await self._let_go_of_failed()
        if self.locked is not None and is_locked(self._path):
            return False  # a look costs a fiftieth of an attempt, and frequent looks notice soon that the lock is free
        self.taking = True
        try:
            return await self._take(producer)
        finally:
            self.taking = False

    async def _take(self, producer: int) -> bool:
        engine = StoreEngine(self._path, self._options, self._seams)
        engine.reclaiming = engine.served = True
        try:
            await self._opened(engine)
        except StoreLockedError as error:
            self.locked = error
            return False
        self.locked = None
        kept_open, owner = engine.store_ref(), Owner(engine, own=producer)
        try:
            await owner.start()
        except BaseException:
            await ended(engine.close())
            raise
        self.owner, self._kept_open = owner, kept_open
        return True

    async def _opened(self, engine: StoreEngine) -> None:
        """Open an engine.

        Cancellation: the engine is closed before this ends, as the store would otherwise stay locked.
        """
        try:
            await ended(engine.open(Message, create=self._create))
        except asyncio.CancelledError:
            if engine.live:
                await ended(engine.close())
            raise

    async def _let_go_of_failed(self) -> None:
        """Release a failed store that this process owned: the next one to open it reads what is really there.

        Raises:
            StoreFailedError: it has failed twice within `_FAILED_TWICE` seconds.
        """
        owner = self.owner
        if owner is None:
            return
        failure = owner.engine.failure
        self.owner = None
        try:
            # INVARIANT: if this is cancelled, as the store closes here, the directory is free before that ends.
            await ended(_close(owner))
        except StorageError:
            if failure is None:
                raise  # else all know that it has failed, and everything is released all the same
        self._kept_open = None
        now = asyncio.get_running_loop().time()
        before, self._failed_at = self._failed_at, now
        if failure is not None and before is not None and now - before < _FAILED_TWICE:
            raise failure.again()

    def connect(self, link: Link) -> Inside | None:
        """Connect this process's link to its own server, without a socket; None if it does not own the store."""
        return None if self.owner is None else self.owner.connect(link)

    async def release(self) -> None:
        """Leave the store's clients to others, and release it, if this process owns it."""
        owner, self.owner = self.owner, None
        try:
            if owner is not None:
                await _close(owner)
        finally:
            self._kept_open = None


async def _close(owner: Owner) -> None:
    await owner.close()
    await owner.engine.close()
