"""One consumer group's durable view of a topic."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodq.acking import Commit, ack_all
from aiodq.consumer import Consumer
from aiodq.deferred import look_at_deferred
from aiodq.engine.channel_management import make_now, pause_channel
from aiodq.engine.futures import to_its_end
from aiodq.engine.graceful_stop import stop_channels
from aiodq.engine.queue_errors import QueueEmpty, QueueShutDown
from aiodq.engine.stats.preview import state_of
from aiodq.engine.stats.topic_stats import channel_standing, channel_stats
from aiodq.errors import AiodqError, NotInFlightError, StoreFailedError
from aiodq.handlers import checked_handler, checked_hook
from aiodq.iteration import iterate
from aiodq.onlyasync import AsyncIteration
from aiodq.options import check_channel_options, check_dead_letter
from aiodq.starting import find_place, move_channel
from aiodq.values import check_flag, check_offset, check_position, check_whole, span_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from datetime import timedelta

    from aiodq.deferred import DeferredMessage
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.channel.held_by_task import HeldByTask
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.message import Message
    from aiodq.options import ChannelOptions, Position
    from aiodq.stats import ChannelStats

__all__ = ["Channel"]


class Channel(AsyncIteration):
    """A channel sees every message of its topic once; its consumers share them.

    Made by `Topic.channel` and `Store.queue`.
    """

    def __init__(self, engine: TopicEngine, channel_engine: ChannelEngine[Message]) -> None:
        """Called by the topic."""
        self._engine = engine
        self._channel_engine = channel_engine
        self._store_ref = channel_engine.store_ref()
        # Notes which task got which message; only a `Queue` needs it.
        self._held_by_task: HeldByTask[Message] | None = None

    def __repr__(self) -> str:
        """Show its name, state, counts and directory."""
        standing = self._engine.standing
        standing = channel_standing(self._channel_engine) if standing == "open" else standing
        counts = f"{self.qsize()} ready, {self.in_flight()} in flight, {self.deferred()} deferred"
        return f"<{self._described()} {standing}, {counts} [{self._engine.store}]>"

    def _described(self) -> str:
        return f"Channel {self.name!r} of topic {self._engine.name!r}"

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._channel_engine.name

    def check(self) -> None:
        """Raise if the channel cannot be used.

        Raises:
            StorageError: its files could not be created.
            StoreFailedError: the store has stopped.
            QueueShutDown: the store is closed.
        """
        self._engine.check()
        if self._channel_engine.error is not None:
            raise self._channel_engine.error

    async def get(self, timeout: float | timedelta | None = None) -> Message:
        """Wait for the next message and take it.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever, 0 or less does not wait.

        Raises:
            TimeoutError: nothing came in time.
            InvalidOptionError: not a span of time; also a `TypeError` if the type is wrong. Nothing was taken.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: the message could not be read; it is not lost because of that.
            StoreFailedError: the store has stopped.

        Cancellation: nothing is lost and the order is kept.
        """
        if timeout is None:
            channel_engine = self._channel_engine
            message = channel_engine.take_next(self._store_ref) or await channel_engine.get(self._store_ref)
            if channel_engine.special:
                return self._handed(message)
            if self._held_by_task is not None:
                self._held_by_task.note(message)
            return message
        wait = span_seconds("timeout", timeout, past=True)
        if not wait:
            try:
                return self.get_nowait()
            except QueueEmpty:
                raise TimeoutError from None
        async with asyncio.timeout(wait):
            message = await self._channel_engine.get(self._store_ref)
        return self._handed(message)

    def get_nowait(self) -> Message:
        """Take the next message. If none is in memory, this reads a little from disk.

        A channel just named is made durable first, if it has messages: a sync or two, for which the event loop waits.

        Raises:
            QueueEmpty: nothing may be delivered now, or making the channel durable takes more than half a second.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: the channel could not be created.
        """
        self._engine.check()
        message = self._take_now()
        if message is None:
            if self._channel_engine.finished:
                raise QueueShutDown("the queue was shut down")
            named = "the channel was just named: it delivers once it is on disk, for which get() waits"
            raise QueueEmpty(named if self._channel_engine.state is None else "nothing may be delivered now")
        return self._handed(message)

    def _take_now(self, *, cold: bool = True, thorough: bool = True) -> Message | None:
        channel_engine = self._channel_engine
        message: Message | None = channel_engine.take(self._store_ref, cold=cold, thorough=thorough)
        if message is None and self._engine.pending:
            self._engine.catch_up()
            message = channel_engine.take(self._store_ref, cold=cold, thorough=thorough)
        if message is None and channel_engine.state is None and self._made_now():
            return channel_engine.take(self._store_ref, cold=True, thorough=thorough)
        return message

    def _made_now(self) -> bool:
        """Create a channel just named at once, if it has messages; return whether that was tried."""
        before_it = self._channel_engine.preview is None or not self.empty()
        if before_it:
            make_now(self._engine, self._channel_engine)
        return before_it

    async def get_many(self, max_items: int, *, linger: float | timedelta = 0.0) -> list[Message]:
        """Wait for at least one message and take up to `max_items`: as many as are ready, also those not in memory.

        Args:
            max_items: at least 1.
            linger: seconds, or a `timedelta`, to wait for more once there is one.

        Raises:
            InvalidOptionError: `max_items` or `linger` is out of range; also a `TypeError` if a type is wrong. Nothing
                was taken.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: a message could not be read; it is not lost because of that.
            StoreFailedError: the store has stopped.

        Cancellation: nothing is lost and the order is kept.
        """
        check_whole("max_items", max_items, least=1, example=100)
        wait = span_seconds("linger", linger)
        channel_engine = self._channel_engine
        messages: list[Message] = [await channel_engine.get(self._store_ref)]
        deadline = asyncio.get_running_loop().time() + wait
        try:
            await self._take_more(messages, max_items)
            if wait:
                async with asyncio.timeout_at(deadline):
                    while len(messages) < max_items:
                        messages.append(await channel_engine.get(self._store_ref))
                        await self._take_more(messages, max_items)
        except (TimeoutError, AiodqError):
            pass  # what was taken so far is returned; an error is raised by the next call
        except BaseException:
            self._give_back(messages)
            raise
        return self._handed_many(messages) or await self.get_many(max_items, linger=linger)

    async def _take_more(self, messages: list[Message], most: int) -> None:
        """Take what is ready, up to `most` messages in all; the event loop gets its turn whenever that takes long."""
        channel_engine, taken, read = self._channel_engine, 0, self._channel_engine.read_here
        while len(messages) < most:
            messages += channel_engine.take_run(most - len(messages), self._store_ref)
            if len(messages) == most:
                return
            if channel_engine.turn.is_over_amid(len(messages) - taken, most, channel_engine.read_here - read):
                await channel_engine.turn.leave()
                taken, read = len(messages), channel_engine.read_here
            message = self._take_now(cold=False, thorough=False)
            if message is not None:
                messages.append(message)
            elif not await channel_engine.was_read():
                return

    def _give_back(self, messages: list[Message]) -> None:
        for message in messages:
            if not message.settled:
                # If the channel has ended meanwhile, its messages are redelivered anyway.
                with suppress(NotInFlightError, QueueShutDown, StoreFailedError):
                    message.release()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages until shutdown; none is acked automatically."""
        return iterate(self._channel_engine, self._store_ref, self._handed, self._held_by_task)

    def _handed(self, message: Message) -> Message:
        """Do what is due before the caller gets a message: ack it, write its delivery down, note the task."""
        channel_engine = self._channel_engine
        if channel_engine.options.auto_ack:
            message.ack_nowait()
            return message
        if channel_engine.counting:
            channel_engine.note_deliveries()
        if self._held_by_task is not None:
            self._held_by_task.note(message)
        return message

    def _handed_many(self, messages: list[Message]) -> list[Message]:
        """Do as `_handed` for several; with `auto_ack`, return only those not taken away meanwhile."""
        channel_engine = self._channel_engine
        if channel_engine.options.auto_ack:
            messages = [message for message in messages if message.held]
            ack_all(channel_engine, messages)
            return messages
        if channel_engine.counting:
            channel_engine.note_deliveries()
        if self._held_by_task is not None:
            self._held_by_task.note_many(messages)
        return messages

    def ack_many(self, messages: Iterable[Message]) -> Awaitable[None]:
        """Settle messages of this channel in one call: all of them, or none if this raises.

        ```python
        batch = await channel.get_many(100)
        await channel.ack_many(batch)
        ```

        The settling takes effect when called, in a transaction's block too. Await the result for it to be as durable as
        the store's `sync` policy makes it; otherwise it is durable with the next commit, as by `Message.ack_nowait`.

        The event loop waits for all of it: some 0.15 ms for a thousand messages.

        Args:
            messages: messages from `get`, `get_many` or `async for`, in any order.

        Raises:
            AlreadySettledError: one was settled before, or is given twice.
            NotInFlightError: one was taken away meanwhile (it timed out, or by a purge), or is another channel's.
            InvalidOptionError: these are not messages; also a `TypeError`.
            QueueShutDown: the store is closed.
            DiskFullError: when awaited: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the messages may be redelivered.

        Cancellation: settled all the same, durable with the next commit; a crash before that redelivers.
        """
        self.check()
        ack_all(self._channel_engine, messages)
        return Commit(self._channel_engine)

    def deferred_messages(self) -> AsyncIterator[DeferredMessage]:
        """Iterate over the deferred messages, the earliest due first, without taking them.

        ```python
        async for message in channel.deferred_messages():
            if message.due > tomorrow:
                await channel.cancel(message.offset)
        ```

        Each is a `Message` that cannot be settled, with an attribute `due`, a `datetime` in UTC. The iteration covers
        what `deferred` counts at the first step; messages no longer deferred when their turn comes are left out. They
        are read one by one: only their offsets and due times are held in memory.

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
        """Give a deferred message up: it is settled, never delivered, and counted as `cancelled` in `stats`.

        Other channels deliver it all the same, and it goes to no dead-letter topic.

        Args:
            offset: as returned by `put`, or that of a message from `deferred_messages`.

        Raises:
            OffsetError: it is not deferred here: it is ready, in flight, settled, or not written yet. Nothing changed.
            InvalidOptionError: it is not an offset; also a `TypeError`.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the message may be delivered.

        Cancellation: it is done all the same.
        """
        check_offset("offset", offset)
        self.check()
        await to_its_end(self._cancel(offset))

    async def _cancel(self, offset: int) -> None:
        self._catch_up()
        if self._channel_engine.state is None:
            await self._engine.settle_in(self.name)
        self._channel_engine.cancel(offset)
        await self._channel_engine.committed()

    async def peek(self) -> Message | None:
        """Return the next message without taking it, or None when nothing is ready.

        The message cannot be settled. For a channel just named, this waits until the channel is created. As
        go-diskqueue's peek (SYSTEMS row A19).

        Raises:
            StorageError: it could not be read, or the channel's files could not be created.
            QueueShutDown: the store is closed.
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
        """Bring the counts up to date: in a store of mode "shared" or "client" they may be up to 0.1 s old.

        Raises:
            OwnerLostError, OwnerStalledError: of a shared store: it has no owner, or the owner does not answer.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Cancellation: nothing changes.
        """
        self.check()
        await asyncio.sleep(0)

    def qsize(self) -> int:
        """Return how many messages are ready; `depth` also counts those in flight and deferred.

        A topic's bound (`max_messages`, `Queue.maxsize`) limits `depth`, so a full one may have a small `qsize`.
        Messages that have expired, lack a tag that the channel wants, or are for another channel count until looked at.
        A channel just named has its counts at once. But while it is being created, deferred messages that have to be
        read from disk count as ready, and a channel that starts at a `datetime` has no counts.
        """
        state = self._state()
        return 0 if state is None else state.ready

    def _state(self) -> ChannelState | None:
        """Return the state, up to date with what was accepted as far as possible; only for reading."""
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

    def empty(self) -> bool:
        """Return whether nothing is ready."""
        return self.qsize() == 0

    async def join(self) -> None:
        """Wait until `depth` is 0 and nothing accepted is still to be written.

        Raises:
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: nothing changes.
        """
        self._engine.check()
        while self._engine.put_buffer.pending or self.depth or self._channel_engine.state is None:
            if self._engine.put_buffer.pending or self._channel_engine.state is None:
                await self._engine.settle_in(self.name)
            await self._channel_engine.join()
            if self._channel_engine.shut_now:
                return

    async def purge(self) -> int:
        """Settle everything accepted so far, in flight or not; return the number of messages.

        Raises:
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: it is done all the same.
        """
        self._engine.check()
        return await to_its_end(self._purge())

    async def _purge(self) -> int:
        await self._engine.settle_in(self.name)
        state = self._channel_engine.state
        count = 0 if state is None else state.purge()
        self._channel_engine.reset()
        self._engine.settled(self._channel_engine)
        await self._channel_engine.committed()
        return count

    async def consume(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        on_error: Callable[[Message, BaseException], object] | None = None,
    ) -> None:
        """Process messages with a handler until the channel is stopped or shut down, or until cancelled.

        A message is acked when its handler returns. A handler fails if it raises, if its task is cancelled from within,
        or if it takes longer than `timeout`. Then the message is redelivered after the channel's `backoff`, or without
        one after 1 s, 2 s, 4 s … up to 15 minutes, while others are processed; after `max_attempts` it is given up.
        `raise aiodq.Retry(delay)` chooses the wait, `raise aiodq.Reject(reason)` gives the message up. If the handler
        settles the message itself (`await message.nack()`: again at once), that stands. No handler can end `consume`.
        With `max_attempts`, messages in flight when their process died also wait before the next attempt: if one of
        them was the cause, the others do not lose their attempts to it.

        Each failed attempt is logged once by the logger `aiodq.delivery` at WARNING, with `topic`, `channel`, `offset`,
        `attempt` and `next` as attributes of the record; the last one with its traceback.

        Args:
            handler: called with each message, in a task of its own. A coroutine function, or whatever else returns
                an awaitable, runs on the event loop. A plain function runs in a thread, of which there are
                `concurrency`. There it may read the message; what settles it belongs on the event loop, and raises
                `WrongContextError`: it returns or raises instead, or calls `anyio.from_thread.run(message.touch)`.
                Nothing can stop a thread: where its time is up, or `consume` is cancelled, the message is settled,
                and the function goes on to its end unheard. A worker takes its next message only after that end.
            concurrency: how many messages are worked off at once.
            timeout: seconds, or a `timedelta`, that a handler has; then it is cancelled. One that returns all the same
                is done. None: for ever.
            renew: keep messages from timing out as long as their handlers run (see `Message.renewing`). Without, the
                `visibility_timeout` is all the time that a handler has before somebody else gets the message, too.
            on_error: called with the message, which is settled by then, and the exception of each failed attempt, on
                the event loop. It may be a coroutine function. What it raises is logged and changes nothing. A `Retry`
                and a `Reject` are no failures.

        Raises:
            InvalidOptionError: the handler or the hook cannot be called like that, or an option is out of its range; a
                `TypeError` too where a type is wrong.
            QueueShutDown: the store is closed already.
            StoreFailedError: the store has stopped.

        Cancellation: handlers under way are cancelled, and their messages released as if never handed out. The message
        of one that returns all the same is acked.
        """
        check_flag("renew", renew)
        checked_hook(on_error)
        consumer = Consumer(
            self._channel_engine,
            self.check,
            checked_handler(handler),
            concurrency=check_whole("concurrency", concurrency, least=1, example=4),
            timeout=None if timeout is None else span_seconds("timeout", timeout, positive=True),
            renew=renew,
            on_error=on_error,
        )
        self.check()
        await consumer.run()

    async def stop(self, grace: float | timedelta = 10.0) -> None:
        """End deliveries gently, for as long as the store is open: for SIGTERM.

        From the call on no message is handed out: `consume` and `async for` end, `get` raises `QueueShutDown`, `join`
        returns. What is under way may end: `stop` waits until nothing is in flight. After `grace`, handlers of
        `consume` are cancelled and their messages released; what others hold stays theirs to settle. What nobody has
        acked is redelivered when the store is next opened. Puts go on. Repeating it is safe; the shortest grace counts.

        Nothing stops a thread: a plain function that still runs after `grace` goes on unheard, and its message is
        released. So is that of a handler that has not ended 5 s after it was cancelled.

        Called by a handler of the channel, or by what it awaits or started, it does not wait, as it would wait for
        itself: it returns at once, and the rest goes on.

        Args:
            grace: seconds, or a `timedelta`, for what is under way; 0 cancels at once.

        Raises:
            InvalidOptionError: no such time; a `TypeError` too where it is of another type. Nothing was done.
            WrongContextError: another event loop, or a forked child.

        Cancellation: it goes on; calling it again waits for the same end.
        """
        wait = span_seconds("grace", grace)
        self._engine.check_context()
        await stop_channels([self._channel_engine], wait)

    async def seek(self, position: Position) -> None:
        """Go on from another place: everything before it counts as settled, everything from there on is redelivered.

        Going ahead therefore gives up what lies between: where retention deletes what is consumed, for good.
        What is in flight is forgotten, with its attempts; settling it raises `NotInFlightError`.

        To seek ahead is to settle all that is skipped: with `Retention(consumed="delete")`, the default, what no other
        channel waits for is deleted soon, and no seek back brings it again. Where it is to stay, the topic needs
        `Retention(consumed="keep")`.

        Args:
            position: `"earliest"`, `"latest"`, an offset, or a time with a zone.

        Raises:
            OffsetError: beyond the log, or before what is still kept; nothing changed.
            DiskFullError: what a transaction has put into some topic finds no room there yet; nothing changed.
            StorageError: the log could not be read for what is not due yet; nothing changed.
            InvalidOptionError: no position; a `TypeError` too where it is of another type. Nothing changed.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: it is done all the same.
        """
        self._engine.check()
        check_position("position", position)
        await to_its_end(self._seek(position))

    async def _seek(self, position: Position) -> None:
        place = await find_place(self._engine, self._channel_engine, position)
        async with self._engine.without_transactions():
            await move_channel(self._engine, self._channel_engine, place, position)

    @property
    def options(self) -> ChannelOptions:
        """The options that hold for the channel."""
        return self._channel_engine.options

    async def configure(self, options: ChannelOptions) -> None:
        """Let the channel go by other options from now on, for all who hold it; they are on disk when this returns.

        Nothing is settled by them before. They count as named for the channel, in this process and in later ones.

        Args:
            options: all of them, not only those that change; `start` counts for nothing.

        Raises:
            InvalidOptionError: these are no `ChannelOptions`, or the dead-letter topic is this one.
            StorageError: they could not be written; those before hold.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the channel was deleted.

        Cancellation: it is done all the same.
        """
        check_channel_options(options, "await channel.configure({})", optional=False)
        check_dead_letter(self._engine.name, options)
        self.check()
        configuring = self._engine.effective_options.configure_channel(self._channel_engine, options)
        await to_its_end(configuring)

    def pause(self) -> Awaitable[None]:
        """Deliver nothing from now on; messages gather, what is in flight may be settled (SYSTEMS row B15).

        It takes effect at once. Await the result for it to be durable: a channel stays paused over a restart.

        Raises:
            QueueShutDown, StorageError: the store is closed or failed, the channel deleted, or it was not written.
        """
        return pause_channel(self._engine, self._channel_engine, paused=True)

    def resume(self) -> Awaitable[None]:
        """Deliver again; as `pause`.

        Raises:
            QueueShutDown, StorageError: the store is closed or failed, the channel deleted, or it was not written.
        """
        return pause_channel(self._engine, self._channel_engine, paused=False)

    @property
    def paused(self) -> bool:
        """Whether the channel or its topic is paused."""
        return self._channel_engine.paused

    def stats(self) -> ChannelStats:
        """Return the channel's numbers. No I/O."""
        return channel_stats(self._engine, self._channel_engine)
