"""Opening stores for commands."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiodq.cli.exits import CommandError
from aiodq.errors import OwnerLostError, StoreLockedError
from aiodq.names import is_ephemeral
from aiodq.opening import open_to_tend
from aiodq.shared.handles import SharedStore
from aiodq.shared.tending import look_anew

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodq.channel import Channel
    from aiodq.stats import ChannelStats
    from aiodq.store import Store
    from aiodq.topic import Topic

__all__ = ["check_kept", "check_parent", "figures_of", "made_to_get", "open_store"]

_LOCK_WAIT_SECONDS: Final = 0.5
"""Seconds that somebody else's lock may take to go: `get --follow` has the store for moments only."""


@asynccontextmanager
async def open_store(path: str, *, create: bool = False) -> AsyncIterator[Store]:
    """Have a store for a while: own it, or ask its owner, where that serves others (mode `"shared"`, `aiodq serve`).

    Args:
        path: its directory.
        create: it is made if it is not there.

    Raises:
        CommandError: as `check_parent`.
        StoreLockedError: another owner has it for half a second, and serves nobody.
        StoreNotFoundError: it is not there, and not to be made.
        StorageError: as `aiodq.open`.
    """
    if create:
        check_parent(path)
    async with await _own_or_ask(path, create=create) as store:
        yield store


def check_parent(path: str) -> None:
    """Make sure that a store can be made there: its directory is made, those above it are not.

    Raises:
        CommandError: the one above it is not there.
    """
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.lexists(parent) and not path.startswith("~"):  # of that, `open` has more to say
        raise CommandError(f"there is no directory {parent}, in which to make the store")


async def _own_or_ask(path: str, *, create: bool) -> Store:
    try:
        return await open_to_tend(path, create=create, wait=0.0)
    except StoreLockedError:
        pass  # it is somebody's, who may serve others
    try:
        return await open_to_tend(path, create=False, wait=0.0, mode="client", failover=_LOCK_WAIT_SECONDS)
    except OwnerLostError:
        return await open_to_tend(path, create=create, wait=0.0)  # by now it may be nobody's; else this says whose


def made_to_get(store: Store, name: str) -> Topic:
    """Return a topic to put into; one that is made gets the channel `default`, as no command that takes makes one.

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
    """Make sure that a topic or channel is there when the command has ended.

    Raises:
        CommandError: it is ephemeral, and this process owns the store.
    """
    if is_ephemeral(name) and not isinstance(store, SharedStore):
        raise CommandError(
            f"{what} {name!r} would be kept in the memory of this command, as nobody else owns the store, and be gone "
            "with it: do this while aiodq serve or a program in mode 'shared' has the store"
        )


async def figures_of(store: Store, channel: Channel) -> ChannelStats:
    """Return a channel's figures as they are now, whoever owns the store."""
    if isinstance(store, SharedStore):
        await channel.refresh()
        await look_anew(store)
    return channel.stats()
