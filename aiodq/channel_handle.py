"""The part of `Channel` that is the same in every process: handing out messages, consuming, stopping."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from aiodq.by_name import known_as
from aiodq.consuming.acking import ack_all
from aiodq.consuming.consumer import Consumer
from aiodq.consuming.handlers import checked_concurrency, checked_handler, checked_hook
from aiodq.consuming.iteration import iterate
from aiodq.engine.channel.lease.held_by_task import HeldByTask
from aiodq.engine.channel.open_channel import OpenChannel
from aiodq.engine.graceful_stop import stop_channels
from aiodq.engine.queue_errors import QueueEmpty, QueueShutDown
from aiodq.engine.stats.topic_stats import channel_standing
from aiodq.engine.topic.puts.open_topic import OpenTopic
from aiodq.errors import AiodqError, NotInFlightError, StoreFailedError, again
from aiodq.message import Message
from aiodq.onlyasync import AsyncIteration
from aiodq.options import ChannelOptions
from aiodq.values import check_flag, check_whole, span_seconds

__all__ = ["ANSWERED", "ChannelHandle"]

ANSWERED: Final = 1.0
"""Seconds for which a call that is not to wait waits for a read, or for the answer of a shared store's owner."""


@known_as("Channel")
class ChannelHandle(AsyncIteration):
    """A channel, whichever process owns its store; `Channel` adds what needs the channel's state in this process."""

    _engine: OpenTopic
    _channel_engine: OpenChannel[Message]

    def __init__(self, engine: OpenTopic, channel_engine: OpenChannel[Message]) -> None:
        """Stand for this channel, and keep its store open."""
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

    @property
    def options(self) -> ChannelOptions:
        """The options that hold for the channel.

        In mode "shared" or "client", until the owner has opened it: those named here, or the defaults. `refresh` waits
        for that.
        """
        return self._channel_engine.options

    @property
    def paused(self) -> bool:
        """Whether the channel or its topic is paused."""
        return self._channel_engine.paused

    def check(self) -> None:
        """Raise if the channel cannot be used.

        Raises:
            StorageError: its files could not be created.
            StoreFailedError: the store has stopped.
            QueueShutDown: the store is closed.
        """
        self._engine.check()
        if self._channel_engine.error is not None:
            raise again(self._channel_engine.error)

    async def get(self, timeout: float | timedelta | None = None) -> Message:
        """Wait for the next message and take it.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever, 0 or less does not wait;
                in a shared store, only for the owner's answer, a second at most.

        Raises:
            TimeoutError: nothing came in time.
            InvalidOptionError: not a duration; also a `TypeError` if the type is wrong. Nothing was taken.
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
                return await self._get_ready()
            except QueueEmpty:
                raise TimeoutError from None
        try:
            async with asyncio.timeout(wait):
                message = await self._channel_engine.get(self._store_ref)
        except TimeoutError:
            # The time may be shorter than a turn of the loop, and the message in memory all the while.
            left = self._take_late(wait)
            if left is None:
                raise
            message = left
        return self._handed(message)

    async def _get_ready(self) -> Message:
        """Take what may be delivered now, as `get_nowait` does; if another process owns the store, ask it."""
        return self.get_nowait()

    def _take_late(self, wait: float) -> Message | None:  # noqa: ARG002 - see `SharedChannel`
        """Take a message that is ready after a wait of `wait` seconds that timed out."""
        message: Message | None = self._channel_engine.take(self._store_ref)
        return message

    def get_nowait(self) -> Message:
        """Take the next message. If none is in memory, this reads a little from disk.

        A new channel is made durable first, if it has messages: this blocks the event loop for a sync or two.

        Raises:
            QueueEmpty: nothing may be delivered now, or making the channel durable takes more than half a second.
            QueueShutDown: shut down and nothing is ready, or the store is closed, or the channel was deleted.
            StorageError: the channel could not be created.
        """
        self._engine.check()
        message = self._take_now()
        if message is None:
            if self._channel_engine.finished:
                self.check()
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

    @abstractmethod
    def _made_now(self) -> bool:
        """Create a new channel at once, if it has messages; return whether that was tried."""

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
            # What was taken so far is returned; an error is raised by the next call.
            with suppress(TimeoutError, AiodqError):
                await self._take_more(messages, max_items)
                if wait:
                    async with asyncio.timeout_at(deadline):
                        while len(messages) < max_items:
                            messages.append(await channel_engine.get(self._store_ref))
                            await self._take_more(messages, max_items)
        except BaseException:
            self._give_back(messages)
            raise
        return self._handed_many(messages) or await self.get_many(max_items, linger=linger)

    async def _get_many_ready(self, max_items: int) -> list[Message]:
        """Take as `_get_ready` does, and up to `max_items`, also those not in memory."""
        messages = [await self._get_ready()]
        try:
            with suppress(TimeoutError, AiodqError):  # as in `get_many`
                async with asyncio.timeout(ANSWERED):
                    await self._take_more(messages, max_items)
        except BaseException:
            self._give_back(messages)
            raise
        return messages[:1] + self._handed_many(messages[1:])

    async def _take_more(self, messages: list[Message], most: int) -> None:
        """Take what is ready, up to `most` messages in all; if that takes long, yield to the event loop meanwhile."""
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
        """Do what is needed before the caller gets a message: ack it, record its delivery, note the task."""
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
        """Do as `_handed` for several; with `auto_ack`, return only those that are still in flight."""
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

    @abstractmethod
    def qsize(self) -> int:
        """Return the number of messages that may be delivered now."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of messages handed out and not settled."""

    @abstractmethod
    def deferred(self) -> int:
        """Return the number of messages that are not due yet."""

    def empty(self) -> bool:
        """Return whether nothing is ready."""
        return self.qsize() == 0

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
        With `max_attempts`, messages that were in flight when their process died also wait before the next attempt: if
        one of them caused it, the others do not lose their attempts because of it.

        Each failed attempt is logged once by the logger `aiodq.delivery` at WARNING, with `topic`, `channel`, `offset`,
        `attempt` and `next` as attributes of the record; the last one with its traceback.

        Args:
            handler: called with each message, in a task of its own. A coroutine function, or whatever else returns
                an awaitable, runs on the event loop. A plain function runs in one of `concurrency` threads. There it
                can read the message, but not settle it, which raises `WrongContextError`: let it return or raise, or
                call `anyio.from_thread.run(message.touch)`. A thread cannot be stopped: after `timeout`, or if
                `consume` is cancelled, the message is settled and the function's result ignored. The worker, and at
                exit the process, wait for the function to end.
            concurrency: how many messages are processed at once, from 1 to 100,000.
            timeout: seconds, or a `timedelta`, after which a handler is cancelled. If it returns normally anyway,
                its message is acked. None: no limit.
            renew: keep messages from timing out while their handlers run (see `Message.renewing`). With False, a
                handler has `visibility_timeout`; after that, another consumer may get the message as well.
            on_error: called on the event loop after each failed attempt, with the message, which is settled by then,
                and the exception. It may be a coroutine function. What it raises is logged and changes nothing. It is
                not called for `Retry` and `Reject`.

        Raises:
            InvalidOptionError: the handler or `on_error` cannot be called like that, or an option is out of its range;
                also a `TypeError` if a type is wrong.
            QueueShutDown: the store is closed already.
            StoreFailedError: the store has stopped.

        Cancellation: running handlers are cancelled, and their messages released as if never delivered. If a handler
        returns normally anyway, its message is acked.
        """
        check_flag("renew", renew)
        checked_hook(on_error)
        consumer = Consumer(
            self._channel_engine,
            self.check,
            checked_handler(handler),
            concurrency=checked_concurrency(concurrency),
            timeout=None if timeout is None else span_seconds("timeout", timeout, positive=True),
            renew=renew,
            on_error=on_error,
        )
        self.check()
        await consumer.run()

    async def stop(self, grace: float | timedelta = 10.0) -> None:
        """Stop deliveries gently, as for SIGTERM; they do not start again while the store is open.

        From the call on no message is delivered: `consume`, `async for` and `join` end, and `get` raises
        `QueueShutDown`. `stop` waits until nothing is in flight. After `grace`, handlers of `consume` are cancelled and
        their messages released; messages that others hold can still be settled. What nobody has acked is redelivered
        when the store is next opened. Puts go on. Repeating it is safe; the shortest grace counts.

        A thread cannot be stopped: if a plain function still runs after `grace`, its message is released and its result
        ignored. The message of a handler that has not ended 5 s after it was cancelled is released, too.

        Called by a handler of the channel, or by something that the handler awaits or started, it would wait for
        itself: then it returns at once, and stopping continues in the background.

        Args:
            grace: seconds, or a `timedelta`, for messages in flight; 0 cancels handlers at once.

        Raises:
            InvalidOptionError: it is not a duration; also a `TypeError` if it has a wrong type. Nothing was done.
            WrongContextError: another event loop, or a forked child.

        Cancellation: it goes on; calling it again waits for the same end.
        """
        wait = span_seconds("grace", grace)
        self._engine.check_context()
        await stop_channels([self._channel_engine], wait)
