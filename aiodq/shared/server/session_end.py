"""The end of a client's session, once its connection has ended: what the client held is given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiodq.awaited import interruption_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.shared.server.session import Session

__all__ = ["SessionEnd"]


class SessionEnd:
    """The end of one session, in a task of its own."""

    def __init__(self, session: Session, engine: StoreEngine, gone: Callable[[], None]) -> None:
        """Wait for `begin`.

        Args:
            session: the session.
            engine: the store's engine.
            gone: called once what the client held is given back.
        """
        self._session = session
        self._engine = engine
        self._gone = gone
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Give back what the client held."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._check)

    def leave(self) -> None:
        """Count as over, with nothing given back: what was held is another process's."""
        self._over.set()

    async def wait(self) -> None:
        """Wait until the session is over.

        Cancellation: it ends nevertheless.
        """
        await self._over.wait()

    async def _run(self) -> None:
        try:
            await self._session.end()
        finally:
            self._gone()
            self._over.set()

    def _check(self, task: asyncio.Task[None]) -> None:
        if (error := interruption_of(task)) is not None:
            self._engine.fail(error)  # what the client held is for the next owner to give back
            for share in self._session.shares:
                share.stop()
            self._over.set()
