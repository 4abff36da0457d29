"""The open stores of this process: a forked child must not use them, and one without handles may still be closing."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Final, Protocol

__all__ = ["LIVE", "LiveStore", "closing_of", "leaves", "leaving", "release_dead"]


class LiveStore(Protocol):
    """What is needed of an open store: `aiodq.engine.store.store_engine.StoreEngine` has it.

    Attributes:
        locked: the directory that it has locked; empty on a simulated disk.
    """

    locked: str

    def closing_of(self, path: str) -> asyncio.Task[None] | None:
        """Return the task that closes the store of a directory, if it runs on this loop and no caller waits for it."""
        ...

    def release_if_dead(self) -> None:
        """Release everything if the event loop was closed under the store."""
        ...

    def after_fork(self) -> None:
        """Mark the store as unusable in a forked child."""
        ...


LIVE: Final[weakref.WeakSet[LiveStore]] = weakref.WeakSet()


def closing_of(path: str) -> list[asyncio.Task[None]]:
    """Return the tasks that close stores of this directory.

    A notebook's cell that is run again drops its store, and a block that is cancelled as it ends does not wait for the
    closing.
    """
    return [task for store in list(LIVE) if (task := store.closing_of(path)) is not None]


_LEAVING: Final[weakref.WeakKeyDictionary[asyncio.Task[None], str]] = weakref.WeakKeyDictionary()
"""The tasks in which shared stores close, by directory."""


def leaves(path: str, closing: asyncio.Task[None]) -> None:
    """Note the task in which a shared store closes: this process may be its owner until that ends."""
    _LEAVING[closing] = path


async def leaving(path: str) -> None:
    """Wait for the shared stores of this directory that close on this loop.

    Cancellation: they go on closing.
    """
    loop = asyncio.get_running_loop()
    if going := [task for task, its in list(_LEAVING.items()) if its == path and task.get_loop() is loop]:
        await asyncio.wait(going)


def release_dead(path: str) -> None:
    """Release the stores of this directory whose event loop was closed, so that they can no longer be closed.

    Blocking: what they had accepted is written.
    """
    for store in list(LIVE):
        if store.locked == path:
            store.release_if_dead()


def _mark_children() -> None:
    for store in list(LIVE):
        store.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_children)
