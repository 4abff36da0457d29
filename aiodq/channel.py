"""The channel: one consumer group's durable view of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from typing import Any

from aiodq.awaited import Awaited
from aiodq.by_name import CONFIGURE_CHANNEL
from aiodq.channel_handle import ChannelHandle
from aiodq.consuming.acking import ack_all
from aiodq.consuming.deferred import DeferredMessage, cancel_deferred, look_at_deferred
from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.loop.futures import to_its_end
from aiodq.engine.stats.topic_stats import channel_stats, state_of
from aiodq.engine.store.channel_management import make_now, pause_channel, purge_channel
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.message import Message
from aiodq.options import ChannelOptions, Position, check_channel_options, check_dead_letter
from aiodq.starting import find_target, move_channel
from aiodq.stats import ChannelStats
from aiodq.values import check_offset, check_position

__all__ = ["Channel"]


class _Commit(Awaited[None]):
    """Awaits that everything its channel has settled is as durable as the store's policy makes it."""

    __slots__ = ("_channel_engine",)

    def __init__(self, channel_engine: ChannelEngine[Message]) -> None:
        """Wait, when awaited, for this channel."""
        self._channel_engine = channel_engine

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the commit."""
        return self._channel_engine.committed().__await__()


class Channel(ChannelHandle):
    """A channel sees every message of its topic once; its consumers share them.

    Made by `Topic.channel` and `Store.queue`.
    """

    _engine: TopicEngine
    _channel_engine: ChannelEngine[Message]

    def __init__(self, engine: TopicEngine, channel_engine: ChannelEngine[Message]) -> None:
        """Called by the topic."""
        super().__init__(engine, channel_engine)

    def _made_now(self) -> bool:
        """Create a channel just named at once, if it has messages; return whether that was tried."""
        before_it = self._channel_engine.preview is None or not self.empty()
        if before_it:
            make_now(self._engine, self._channel_engine)
        return before_it

    def ack_many(self, messages: Iterable[Message]) -> Awaited[None]:
        """Settle messages of this channel in one call: all of them, or none if this raises.

        ```python
        batch = await channel.get_many(100)
        await channel.ack_many(batch)
        ```

        The settling takes effect when called, in a transaction's block too. Await the result for it to be as durable as
        the store's `sync` policy makes it; otherwise it is durable with the next commit, as by `Message.ack_nowait`.

        The event loop waits for all of it: some 0.15 ms for a thousand messages; out of order, up to 0.5 ms.

        Args:
            messages: messages from `get`, `get_many` or `async for`, in any order.

        Raises:
            AlreadySettledError: one was settled before, or is given twice.
            NotInFlightError: one is no longer in flight (it timed out, or was purged), or is another channel's. When
            awaited, in a shared store: the owner took one back before this process knew of it; the others are
            settled.
            InvalidOptionError: these are not messages; also a `TypeError`.
            QueueShutDown: the store is closed.
            DiskFullError: when awaited: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the messages may be redelivered.

        Cancellation: settled anyway, durable with the next commit; a crash before that redelivers.
        """
        self.check()
        ack_all(self._channel_engine, messages)
        return _Commit(self._channel_engine)

    def deferred_messages(self) -> AsyncIterator[DeferredMessage]:
        """Iterate over the deferred messages, the earliest due first, without taking them.

        ```python
        async for message in channel.deferred_messages():
            if message.due > tomorrow:
                await channel.cancel(message.offset)
        ```

        Each is a `Message` that cannot be settled, with an attribute `due`, a `datetime` in UTC. The iteration covers
        what `deferred` counts at the first step; messages no longer deferred when their turn comes are left out. Beside
        the offsets and due times of all, about 1 MiB of messages is held in memory, or one that is larger.

        Raises:
            StorageError: one could not be read.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Cancellation: nothing changes.
        """
        self.check()
        self._catch_up()
        return look_at_deferred(self._engine, self._channel_engine)

    async def cancel(self, offset: int) -> None:
        """Give up a deferred message: it is settled, never delivered, and counted as `cancelled` in `stats`.

        Other channels still deliver it, and it goes to no dead-letter topic.

        Args:
            offset: as returned by `put`, or that of a message from `deferred_messages`.

        Raises:
            OffsetError: it is not deferred here: it is ready, in flight, settled, or not written yet. Nothing changed.
            InvalidOptionError: it is not an offset; also a `TypeError`.
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the message may be delivered.

        Cancellation: it is completed anyway.
        """
        check_offset("offset", offset)
        self.check()
        await to_its_end(cancel_deferred(self._engine, self._channel_engine, offset))

    async def peek(self) -> Message | None:
        """Return the next message without taking it, or None when nothing is ready.

        The message cannot be settled. For a new channel, this waits until the channel is created; in a shared store
        also as `refresh` does. Like peek in go-diskqueue.

        Raises:
            StorageError: it could not be read, or the channel's files could not be created.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
            StoreFailedError: the store has stopped.

        Cancellation: nothing changes.
        """
        self._engine.check()
        self._catch_up()
        if self._channel_engine.state is None:
            await self._engine.settle_in(self.name)
        found: Message | None = await self._channel_engine.peek()
        await asyncio.sleep(0)
        return found

    async def refresh(self) -> None:
        """Bring counts and the topic's offsets up to date: in mode "shared" or "client" they may be up to 0.1 s old.

        Where processes have thousands of channels open, they may be some seconds old: their owner spends at most a
        twentieth of its time on that.

        It waits for a channel that is being created. After the owner of a shared store was killed, it waits until the
        other processes have reported what they hold: 1 s, or up to 5 s if one that is alive has not reported.

        Raises:
            OwnerLostError, OwnerStalledError: of a shared store: it has no owner, or the owner does not answer.
            StorageError: the channel could not be created.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Cancellation: nothing changes.
        """
        self.check()
        if self._channel_engine.state is None:
            await self._engine.settle_in(self._channel_engine.name)
        else:
            await asyncio.sleep(0)

    def qsize(self) -> int:
        """Return how many messages are ready; `depth` also counts those in flight and deferred.

        A topic's bound (`max_messages`, `Queue.maxsize`) limits `depth`, so a full one may have a small `qsize`.
        Messages without a tag that the channel wants, or for another channel, count until they are looked at. A new
        channel has its counts at once. But while it is being created, deferred messages that have to be read from
        disk count as ready, and a channel that starts at a `datetime` counts nothing: `refresh` waits for that.
        """
        state = self._state()
        return 0 if state is None else state.ready

    def _state(self) -> ChannelState | None:
        """Return the state, as up to date with accepted messages as possible; only for reading."""
        self._catch_up()
        return state_of(self._engine, self._channel_engine)

    def _catch_up(self) -> None:
        if self._engine.pending:
            self._engine.catch_up()

    def in_flight(self) -> int:
        """Return how many messages are in flight: delivered and not settled."""
        state = self._channel_engine.state
        return 0 if state is None else state.flying

    def deferred(self) -> int:
        """Return how many messages wait until they are due: put or requeued with a delay."""
        state = self._state()
        return 0 if state is None else len(state.deferred)

    @property
    def depth(self) -> int:
        """The number of messages that are not settled: ready, in flight and deferred."""
        state = self._state()
        return 0 if state is None else state.depth

    async def join(self) -> None:
        """Wait until `depth` is 0 and nothing accepted is still to be written.

        After `stop` or `shutdown(immediate=True)`, wait only for what is in flight: in a shared store, in this process.

        Raises:
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: nothing changes.
        """
        self.check()
        while self._engine.put_buffer.pending or self.depth or self._channel_engine.state is None:
            if self._engine.put_buffer.pending or self._channel_engine.state is None:
                await self._engine.settle_in(self.name)
            await self._channel_engine.join()
            if self._channel_engine.shut_now:
                return

    async def purge(self) -> int:
        """Settle everything accepted so far, in flight or not; return the number of messages.

        Raises:
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: it is completed anyway.
        """
        self._engine.check()
        return await to_its_end(purge_channel(self._engine, self._channel_engine))

    async def seek(self, position: Position) -> None:
        """Continue at another position: everything before it counts as settled, everything from there on is delivered.

        Messages in flight are forgotten, with their attempts; settling one raises `NotInFlightError`.

        Seeking ahead therefore settles what it skips. With `Retention(consumed="delete")`, the default, skipped
        messages that no other channel needs are soon deleted, and seeking back does not restore them. To keep them,
        give the topic `Retention(consumed="keep")`.

        Args:
            position: `"earliest"`, `"latest"`, an offset, or a time with a zone.

        Raises:
            OffsetError: beyond the log, or before what is still kept; nothing changed.
            DiskFullError: a committed transaction's messages do not fit on the disk yet; nothing changed.
            StorageError: the log could not be searched for deferred messages; nothing changed.
            InvalidOptionError: it is not a position; also a `TypeError` if it has a wrong type. Nothing changed.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: it is completed anyway.
        """
        self._engine.check()
        check_position("position", position)
        await to_its_end(self._seek(position))

    async def _seek(self, position: Position, change: int = 0) -> None:
        # INVARIANT: the last one called is the last to move the channel: earlier ones go on if their callers were
        # cancelled, and it takes longer to find a time than an end.
        async with self._channel_engine.seeking:
            target = await find_target(self._engine, self._channel_engine, position)
            async with self._engine.without_transactions():
                await move_channel(self._engine, self._channel_engine, target._replace(change=change), position)

    @CONFIGURE_CHANNEL
    async def configure(self, options: ChannelOptions) -> None:
        """Change the channel's options, for all its users; they are on disk when this returns.

        They settle nothing before that. They count as named for the channel, in this process and in later ones.

        Args:
            options: all options, not only those that change; `start` is ignored.

        Raises:
            InvalidOptionError: these are not `ChannelOptions`, or the dead-letter topic is this topic.
            StorageError: they could not be written; the earlier ones stay in effect.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: it is completed anyway.
        """
        check_channel_options(options, "await channel.configure({})", optional=False)
        check_dead_letter(self._engine.name, options)
        self.check()
        configuring = self._engine.effective_options.configure_channel(self._channel_engine, options)
        await to_its_end(configuring)

    def pause(self) -> Awaited[None]:
        """Deliver nothing from now on. Puts go on, and messages in flight can be settled.

        It takes effect at once; if another process owns a shared store, once awaited. Await the result for it to be
        durable: a channel stays paused across restarts.

        Raises:
            QueueShutDown, StorageError: the store is closed or failed, the channel deleted, or it was not written.

        Cancellation: it becomes durable anyway.
        """
        return pause_channel(self._engine, self._channel_engine, paused=True)

    def resume(self) -> Awaited[None]:
        """Deliver again. It takes effect and becomes durable as `pause` does.

        Raises:
            QueueShutDown, StorageError: the store is closed or failed, the channel deleted, or it was not written.

        Cancellation: it becomes durable anyway.
        """
        return pause_channel(self._engine, self._channel_engine, paused=False)

    def stats(self) -> ChannelStats:
        """Return the channel's numbers. No I/O."""
        self._engine.note_synced()
        return channel_stats(self._engine, self._channel_engine)
