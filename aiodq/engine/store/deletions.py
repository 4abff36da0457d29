"""Deleting topics and channels, in tasks of their own: a cancelled caller does not leave a deletion half done."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import mark_retrieved, shielded, twice
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.store.channel_management import delete_channel
from aiodq.errors import DiskFullError, StorageError, StoreFailedError
from aiodq.storage.state.transactions.parked_transactions import drop_owed, read_owed
from aiodq.storage.store_layout import delete_topic, has_topic, has_topics

if TYPE_CHECKING:
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.store.backups import Backups
    from aiodq.engine.store.whole_store import WholeStore
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.state.store_identity import StoreIdentity

__all__ = ["Deletions"]

_RETRY_SECONDS: Final = 0.25
"""Seconds after which a deletion tries again whether what transactions put into other topics can be put there now."""


class Deletions:
    """The deletions of one store.

    Attributes:
        ending: the topics being deleted, which belong to the store until that is done.
    """

    def __init__(self, host: WholeStore, backups: Backups) -> None:
        """Start with nothing to delete; a deletion waits for the backups that include the topic."""
        self._host = host
        self._backups = backups
        self._topics: dict[str, asyncio.Task[None]] = {}
        self._channels: set[asyncio.Task[None]] = set()
        self.ending: set[TopicEngine] = set()

    def under_way(self, topic: str) -> asyncio.Task[None] | None:
        """Return the task that is deleting a topic of that name, if there is one."""
        return self._topics.get(topic)

    async def over(self, topic: str) -> None:
        """Wait until no topic of that name is being deleted; only then is a new one of that name created."""
        while (deletion := self._topics.get(topic)) is not None:
            await asyncio.wait([deletion])

    async def topic(self, name: str, engine: TopicEngine | None) -> None:
        """End a topic and delete its files, or wait for a deletion that is under way.

        Raises:
            StorageError: as mapped from the system's error.

        Cancellation: the topic is deleted anyway.
        """
        if engine is not None:
            for channel_engine in engine.channel_engines.values():
                channel_engine.shut_down(immediate=True, over=_deleted(name))
            self.ending.add(engine)
            task = self._host.loop.create_task(self._delete(engine, self._topics.get(name)))
            self._topics[name] = task
            twice(task.add_done_callback, partial(self._ended, name))
            task.add_done_callback(mark_retrieved)
        if name in self._topics:
            await shielded(self._topics[name])

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._topics.get(name) is task:
            del self._topics[name]

    async def _delete(self, engine: TopicEngine, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await self._backups.have(engine)
        try:
            while True:
                if await self._delete_now(engine):
                    return
                await asyncio.sleep(_RETRY_SECONDS)
        except StoreFailedError:
            raise
        except StorageError as error:
            await self._keep(engine.name, error)
            raise
        except KeyboardInterrupt as error:
            self._host.fail(error)  # the topic may be half deleted, and closing would wait for its end
            raise

    async def _keep(self, name: str, error: StorageError) -> None:
        """Make a half-deleted topic unusable until it is deleted again, or the store is opened again."""
        host, left = self._host, True
        with suppress(StorageError):
            left = await host.threads.call(has_topic, host.fs_of(name), host.path, name)
        # INVARIANT: a topic is opened with all of its channels. Without those that were not named since, retention
        # would delete messages that they still need.
        if left and self._topics.get(name) is asyncio.current_task():
            unusable = copy(error)
            unusable.message = (
                f"topic {name!r} is half deleted: delete it again, or open the store again; {error.message}"
            )
            host.keep(name, unusable)

    async def _delete_now(self, engine: TopicEngine) -> bool:
        """Delete a topic; return False if that cannot begin now.

        Raises:
            StorageError: as mapped from the system's error.
        """
        host, begun = self._host, False
        host.committer.forget(engine)
        try:
            async with host.without_transactions():
                begun = True
                await self._close(engine)
                engine.metrics.refusing.pop(engine.name, None)
                identity = host.identity_for(engine.name)
                await host.threads.call(_delete_files, host.fs_of(engine.name), host.path, engine.name, identity)
        except StorageError as error:
            # There may be no room for the puts of transactions into other topics. This deletion may make the room, but
            # it has to wait until nothing in the transaction log could bring the topic back.
            again = error.retriable and (not begun or isinstance(error, DiskFullError))
            if not again or engine.closed or host.closing:
                if not (begun or isinstance(error, StoreFailedError) or host.closing):
                    await self._close(engine)
                raise
            return False
        host.reporter.topic_deleted(engine.name)
        return True

    async def _close(self, engine: TopicEngine) -> None:
        await engine.close(_deleted(engine.name), deleted=True)
        self.ending.discard(engine)

    async def channel(self, engine: TopicEngine, name: str, change: int = 0) -> None:
        """See `aiodq.engine.store.channel_management.delete_channel`.

        Cancellation: the channel is deleted anyway.
        """
        channel_engine = engine.channel_engines.get(name)
        if channel_engine is None:
            return
        task = self._host.loop.create_task(self._delete_channel(engine, channel_engine, change))
        self._channels.add(task)
        task.add_done_callback(self._channels.discard)
        task.add_done_callback(mark_retrieved)
        await shielded(task)

    async def _delete_channel(self, engine: TopicEngine, channel_engine: ChannelEngine[Any], change: int) -> None:
        async with self._host.without_transactions(engine.name):
            await delete_channel(self._host.fs_of(engine.name, channel_engine.name), engine, channel_engine, change)

    async def end(self) -> None:
        """Wait for all deletions under way."""
        await asyncio.gather(*self._topics.values(), *self._channels, return_exceptions=True)


def _delete_files(fs: FileSystem, store: str, name: str, identity: StoreIdentity | None) -> None:
    """Delete a topic's files and parked transactions, and with the last topic the store's identity. Blocking."""
    # Parked transactions first: they would bring the topic back.
    drop_owed(fs, read_owed(fs, store).get(name, []))
    delete_topic(fs, store, name)
    if identity is not None:
        identity.drop(partial(has_topics, fs, store))


def _deleted(name: str) -> QueueShutDown:
    return QueueShutDown(f"topic {name!r} was deleted")
