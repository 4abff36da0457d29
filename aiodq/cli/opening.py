"""Opening stores for commands."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiodq.opening import open_to_tend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodq.store import Store
    from aiodq.topic import Topic

__all__ = ["made_to_get", "open_store"]

_LOCK_WAIT_SECONDS: Final = 0.5
"""Seconds that somebody else's lock may take to go: `get --follow` has the store for moments only."""


@asynccontextmanager
async def open_store(path: str, *, create: bool = False, wait: float = _LOCK_WAIT_SECONDS) -> AsyncIterator[Store]:
    """Own a store for a while.

    Args:
        path: its directory.
        create: it is made if it is not there.
        wait: seconds to wait for another owner.

    Raises:
        StoreLockedError: another owner has it all that time.
        StoreNotFoundError: it is not there, and not to be made.
        StorageError: as `aiodq.open`.
    """
    async with open_to_tend(path, create=create, wait=wait) as store:
        yield store


def made_to_get(store: Store, name: str) -> Topic:
    """Return a topic to put into; one that is made gets the channel `default`, as no command that takes makes one."""
    new = name not in store.topics()
    topic = store.topic(name)
    if new:
        topic.channel("default")
    return topic
