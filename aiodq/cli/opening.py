"""Opening stores for commands."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from aiodq.cli.exits import CommandError
from aiodq.errors import OwnerLostError, StoreLockedError
from aiodq.names import is_ephemeral
from aiodq.opening import open_to_tend
from aiodq.shared.administration import look_anew
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.storage.store_layout import absolute_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodq.channel import Channel
    from aiodq.stats import ChannelStats
    from aiodq.store import Store
    from aiodq.topic import Topic

__all__ = ["check_kept", "check_parent", "figures_of", "made_to_get", "open_store"]

_LOCK_WAIT_SECONDS: Final = 0.5
"""Seconds to wait for another process to release the lock: `get --follow` holds it only briefly."""


@asynccontextmanager
async def open_store(path: str, *, create: bool = False) -> AsyncIterator[Store]:
    """Use a store in the block: own it, or ask its owner if that serves others (mode `"shared"`, `aiodq serve`).

    Args:
        path: its directory.
        create: whether a missing store is created.

    Raises:
        CommandError, InvalidOptionError: as `check_parent`.
        StoreLockedError: another owner has it in mode "exclusive", for half a second.
        StoreNotFoundError: there is none, and none is to be created.
        StorageError: as `aiodq.open`.
    """
    if create:
        check_parent(path)
    async with await _own_or_ask(path, create=create) as store:
        yield store


def check_parent(path: str) -> None:
    """Check that a store can be created there: its parent directory has to exist.

    Raises:
        CommandError: the parent directory does not exist.
        InvalidOptionError, StorageError: as `absolute_path`.
    """
    parent = os.path.dirname(absolute_path(path))
    if not os.path.lexists(parent):
        raise CommandError(f"there is no directory {parent}, in which to make the store")


async def _own_or_ask(path: str, *, create: bool) -> Store:
    with suppress(StoreLockedError):  # by an owner, which may serve others
        return await open_to_tend(path, create=create)
    try:
        return await open_to_tend(path, create=False, mode="client", failover=_LOCK_WAIT_SECONDS)
    except OwnerLostError:
        return await open_to_tend(path, create=create)  # it may be free by now; or the error names the owner


def made_to_get(store: Store, name: str) -> Topic:
    """Return a topic to put into; a new one gets the channel `default`, as `get` does not create channels.

    Raises:
        CommandError: as `check_kept`.
    """
    check_kept(store, name, "topic")
    new = name not in store.topics()
    topic = store.topic(name)
    if new:
        topic.channel("default")
    return topic


def check_kept(store: Store, name: str, what: str) -> None:
    """Check that a topic or channel outlives the command.

    Raises:
        CommandError: it is ephemeral, and this process owns the store.
    """
    if is_ephemeral(name) and not isinstance(store, SharedStore):
        raise CommandError(
            f"{what} {name!r} would be kept only in the memory of this command, as no other process owns the "
            "store, and be lost at its end: do this while aiodq serve or a program in mode 'shared' has the store"
        )


async def figures_of(store: Store, channel: Channel) -> ChannelStats:
    """Return a channel's present figures, whichever process owns the store."""
    if isinstance(store, SharedStore):
        await channel.refresh()
        await look_anew(store)
    return channel.stats()
