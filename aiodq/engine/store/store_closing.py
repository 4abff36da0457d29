"""The closing of a store: on request, or because no handle of it is left."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

from aiodq.awaited import shielded

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.store.whole_store import WholeStore

__all__ = ["StoreClosing"]


class StoreClosing:
    """The closing of one store, which happens once, in a task of its own."""

    __slots__ = ("_dropped", "_left", "_store", "_task")

    def __init__(self, store: WholeStore) -> None:
        """Start with an open store."""
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._dropped = self._left = False

    @property
    def asked(self) -> bool:
        """Whether `close` was called, or the store dropped and its loop has noticed."""
        return self._task is not None

    @property
    def over(self) -> bool:
        """Whether the store is closed."""
        return self._task is not None and self._task.done()

    async def close(self) -> None:
        """Close the store. Repeated calls wait for the same end.

        Raises:
            StoreFailedError: something could not be made durable.

        Cancellation: closing goes on in the store's own task.
        """
        task = self._task or self._begin()
        try:
            await shielded(task)
        except asyncio.CancelledError:
            self._left = True
            raise

    def _begin(self) -> asyncio.Task[None]:
        self._store.begin_closing()
        self._task = self._store.loop.create_task(self._store.finish())
        return self._task

    # --- without being asked

    def dropped(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Warn that no handle is left, finish what was accepted, and release the directory.

        Args:
            warn: at hand even where the interpreter ends and has taken modules apart.
        """
        store = self._store
        if self.asked or store.home.forked:
            return
        self._dropped = True
        try:
            store.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop is closed
            store.release_if_dead()
        finally:
            if store.failure is None and not store.served:
                warn(f"store was never closed [{store.path}]", ResourceWarning, 3, source=store)

    def under_way(self) -> asyncio.Task[None] | None:
        """Return the task that closes the store, if it runs on the running loop and no caller waits for it."""
        if not (self._dropped or self._left) or self._store.loop is not asyncio.get_running_loop():
            return None
        if self._dropped:
            self._let_go()
        return self._task

    def _let_go(self) -> None:
        if self._task is None and self._store.live and not self._store.cancelled:
            self._begin().add_done_callback(self._gone)

    def _gone(self, closed: asyncio.Task[None]) -> None:
        error = None if closed.cancelled() else closed.exception()
        if error is not None:
            text = f"a store that was never closed could not be closed as it should [{self._store.path}]"
            self._store.loop.call_exception_handler({"message": text, "exception": error})
