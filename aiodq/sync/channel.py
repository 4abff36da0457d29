"""One consumer group's durable view of a topic, for threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import NoReturn, cast

from aiodq import channel, message
from aiodq.by_name import CONFIGURE_CHANNEL
from aiodq.consuming import deferred
from aiodq.consuming.consumer import Consumer
from aiodq.consuming.handlers import Handler, checked_concurrency, checked_handler, checked_hook, is_asynchronous
from aiodq.engine.queue_errors import QueueEmpty, QueueShutDown
from aiodq.errors import InvalidOptionTypeError
from aiodq.options import ChannelOptions, Position
from aiodq.stats import ChannelStats
from aiodq.sync.handlers import HandlerThreads
from aiodq.sync.loop_thread import LoopThread
from aiodq.sync.message import DeferredMessage, Message, give_back
from aiodq.sync.spans import in_pages, seconds, within
from aiodq.sync.transaction import inner_messages
from aiodq.uncopied import Uncopied
from aiodq.values import check_flag, check_whole, shown, span_seconds

__all__ = ["Channel"]


class Channel(Uncopied):
    """A channel sees every message of its topic once; its consumers share them, in whichever threads they are.

    Made by `Topic.channel` and `Store.queue`.
    """

    def __init__(self, loop_thread: LoopThread, inner: channel.Channel) -> None:
        """Made by the topic."""
        self._loop_thread = loop_thread
        self._channel = inner

    def __repr__(self) -> str:
        """Show its name, whether it is open, its backlog, and the store."""
        return self._loop_thread.show(self._channel)

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._channel.name

    # --- taking

    def get(self, timeout: float | timedelta | None = None) -> Message:
        """Wait for the next message and take it.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever, 0 or less does not wait.

        Raises:
            TimeoutError: nothing came in time.
            InvalidOptionError: not a timeout; also a `TypeError` if it has another type. Nothing was taken.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: the message could not be read; it is not lost.
            StoreFailedError: the store has stopped.

        Interrupted: nothing is lost and the order is kept.
        """
        return self._loop_thread.take(partial(self._get, timeout), self._give_one_back, self._handed)

    async def _get(self, timeout: float | timedelta | None) -> Message:
        return Message(self._loop_thread, await self._channel.get(timeout))

    def _give_one_back(self, message: Message) -> None:
        give_back((message,))

    def get_nowait(self) -> Message:
        """Take the next message. In a shared store, this waits for the owner's answer, a second at most.

        Raises:
            QueueEmpty: nothing may be delivered now. A channel just created delivers once it is on disk; `get` and
                `Topic.settle_in` wait for that.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: nothing is lost and the order is kept.
        """
        return self._loop_thread.take(self._get_now, self._give_one_back, self._handed)

    async def _get_now(self) -> Message:
        return Message(self._loop_thread, await self._channel._get_ready())  # noqa: SLF001 - a thread may wait for the owner

    def get_many(
        self, max_items: int, *, linger: float | timedelta = 0.0, timeout: float | timedelta | None = None
    ) -> list[Message]:
        """Wait for at least one message and take up to `max_items`.

        Args:
            max_items: at least 1.
            linger: seconds, or a `timedelta`, to wait for more once there is one.
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever, 0 or less does not wait.

        Raises:
            TimeoutError: it took longer, and nothing was taken.
            InvalidOptionError: an argument is invalid; also a `TypeError` if it has another type. Nothing was taken.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: a message could not be read; it is not lost.
            StoreFailedError: the store has stopped.

        Interrupted: nothing is lost and the order is kept.
        """
        get_many = partial(self._get_many, max_items, linger, seconds(timeout))
        return self._loop_thread.take(get_many, give_back, self._handed_many)

    async def _get_many(self, most: int, linger: float | timedelta, wait: float | None) -> list[Message]:
        if wait == 0:
            found = await self._get_many_now(most, linger)
        else:
            found = await within(wait, self._channel.get_many(most, linger=linger))
        return [Message(self._loop_thread, each) for each in found]

    async def _get_many_now(self, most: int, linger: float | timedelta) -> list[message.Message]:
        """Take what is ready: a time-out of 0 would not even leave the time to read a message or to ask the owner."""
        check_whole("max_items", most, least=1, example=100)
        span_seconds("linger", linger)
        try:
            return await self._channel._get_many_ready(most)  # noqa: SLF001 - see `_get_now`
        except QueueEmpty:
            raise TimeoutError from None

    def _handed(self, message: Message) -> None:
        """Note that this thread has a message, where that matters."""

    def _handed_many(self, messages: Iterable[Message]) -> None:
        for each in messages:
            self._handed(each)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until shutdown. Nothing is acked automatically."""
        with suppress(QueueShutDown):
            while True:
                yield self.get()

    def refresh(self) -> None:
        """Update the counts: in mode "shared" or "client" they are up to 0.1 s old; of thousands of channels, seconds.

        After the owner of a shared store was killed, this waits, five seconds at most, until it is known who holds
        what.

        Raises:
            OwnerLostError, OwnerStalledError: of a shared store: there is no owner, or it does not answer.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Interrupted: nothing changes.
        """
        self._loop_thread.run(self._channel.refresh)

    def peek(self) -> Message | None:
        """Return the next message without taking it, or None if nothing is ready.

        It cannot be settled.

        Raises:
            StorageError: it could not be read, or the channel's files could not be created.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: nothing changes.
        """
        found = self._loop_thread.run(self._channel.peek)
        return None if found is None else Message(self._loop_thread, found)

    # --- settling

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Settle messages of this channel in one call: all of them, or none if one cannot be settled.

        It returns when the settling is as durable as the store's `sync` policy makes it.

        Args:
            messages: messages from `get`, `get_many` or iterating, in any order.

        Raises:
            AlreadySettledError: one was settled before, or is given twice.
            NotInFlightError: one was taken away meanwhile (timed out or purged), or belongs to another channel. If in a
                shared store the owner took one away before this process knew of it, the others are settled.
            InvalidOptionError: these are not messages; also a `TypeError`.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably until there is space.
            StoreFailedError: the store has stopped; after opening again the messages may be redelivered.

        Interrupted: settled anyway, durable with the next commit; a crash before that redelivers.
        """
        self._loop_thread.run(self._channel.ack_many, inner_messages(messages))

    def deferred_messages(self) -> Iterator[DeferredMessage]:
        """Iterate over the deferred messages, the earliest due first, without taking them.

        Each is a `Message` that was only read, with a `due` time, a `datetime` in UTC. They are as many as
        `deferred` counts at the first step; messages no longer deferred when their turn comes may be left out.

        Raises:
            StorageError: one could not be read.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: nothing changes.
        """
        found = cast(
            "AsyncGenerator[deferred.DeferredMessage, None]", self._loop_thread.call(self._channel.deferred_messages)
        )
        return (DeferredMessage(self._loop_thread, each) for each in in_pages(self._loop_thread, found))

    def cancel(self, offset: int) -> None:
        """Cancel a deferred message: it is settled, never delivered, and counted as `cancelled` in `stats`.

        Args:
            offset: as returned by `put`, or that of a message from `deferred_messages`.

        Raises:
            OffsetError: it is not deferred here, but ready, in flight, settled, or not written yet. Nothing changed.
            InvalidOptionError: it is not an offset; also a `TypeError`.
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably until there is space.
            StoreFailedError: the store has stopped; after opening again the message may be delivered.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._channel.cancel, offset)

    def purge(self) -> int:
        """Settle everything accepted so far, in flight or not; return the number of messages.

        Raises:
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        return self._loop_thread.run(self._channel.purge)

    def seek(self, position: Position) -> None:
        """Move to another position: everything before it counts as settled, everything from there on is redelivered.

        Moving ahead therefore gives up what lies between, for good if retention deletes what is consumed. Messages in
        flight are forgotten, with their attempts; settling one raises `NotInFlightError`.

        Args:
            position: `"earliest"`, `"latest"`, an offset, or a time with a zone.

        Raises:
            OffsetError: beyond the end of the log, or before the first offset kept; nothing changed.
            DiskFullError: no room yet for what a transaction has put into some topic; nothing changed.
            InvalidOptionError: not a position; also a `TypeError` if it has another type. Nothing changed.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._channel.seek, position)

    # --- consuming

    def consume(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        on_error: Callable[[Message, BaseException], object] | None = None,
    ) -> None:
        """Consume messages until the channel is stopped or shut down, or until interrupted.

        The handler is called in threads made for this call: `concurrency` of them, which last as long as it does. The
        calling thread only waits. A message is acked when its handler returns. A handler fails by an exception, or by
        exceeding `timeout`: the message is redelivered after the channel's `backoff`, or without one after 1 s, 2 s,
        4 s … up to 15 minutes, and others are processed meanwhile; after `max_attempts` it becomes a dead letter.
        `raise aiodq.Retry(delay)` chooses the wait, `raise aiodq.Reject(reason)` rejects the message, and a message
        that the handler settles itself stays settled that way. A handler may use all of the store. An exception that
        ends a program (`SystemExit`, `KeyboardInterrupt`) ends `consume`, which raises it; each failed attempt is a
        line of the logger `aiodq.delivery`.

        A thread cannot be stopped: on a timeout, or if `consume` is interrupted, the message is settled, and the
        function runs to its end unheard. A worker takes its next message, and the process ends, only after that.

        Args:
            handler: called with each message; a plain function.
            concurrency: how many messages are processed at once, from 1 to 100,000.
            timeout: seconds, or a `timedelta`, that a handler may take. None: for ever.
            renew: keep messages from timing out as long as their handlers run (see `Message.renewing`). Without it, the
                `visibility_timeout` is all the time that a handler has before the message is redelivered.
            on_error: called with the message, which is settled by then, and the exception of each failed attempt, in
                one of those threads. What it raises is logged and changes nothing. `Retry` and `Reject` are not
                failures.

        Raises:
            InvalidOptionError: the handler or the hook cannot be called like that, or an option is out of its range;
                also a `TypeError` if a type is wrong.
            QueueShutDown: the store is already closed.
            StoreFailedError: the store has stopped.

        Interrupted: the messages of running handlers are released as if never handed out. Handlers run to their end,
        and what they settle from then on is refused.
        """
        check_flag("renew", renew)
        make = partial(
            Consumer,
            self._channel._channel_engine,  # noqa: SLF001 - consuming is the other half of a channel
            self._channel.check,
            self._threaded(handler, on_error),
            concurrency=checked_concurrency(concurrency),
            timeout=None if timeout is None else span_seconds("timeout", timeout, positive=True),
            renew=renew,
        )
        ended_by = self._loop_thread.run(self._consume, make, on_error)
        if ended_by is not None:
            raise ended_by

    def _threaded(
        self, handler: Callable[[Message], object], hook: Callable[[Message, BaseException], object] | None
    ) -> Handler:
        """Return a handler for the engine; raise if one of the functions cannot be called in a thread."""
        checked_hook(hook, "def on_error(message: aiodq.sync.Message, error: BaseException) -> None")
        if not checked_handler(handler, "def handler(message: aiodq.sync.Message) -> None").threaded:
            _refuse_coroutine("handler", handler)
        if is_asynchronous(hook):
            _refuse_coroutine("on_error", hook)
        return Handler(lambda given: handler(Message(self._loop_thread, given)), threaded=True)

    async def _consume(
        self, make: Callable[..., Consumer], hook: Callable[[Message, BaseException], object] | None
    ) -> BaseException | None:
        """Consume on the loop; return the exception with which a handler ends the program, if any."""
        self._channel.check()
        threads = HandlerThreads()

        async def tell(given: message.Message, error: BaseException) -> None:
            if hook is not None:
                await threads.run(partial(hook, Message(self._loop_thread, given), error))

        consumer = make(on_error=None if hook is None else tell, in_thread=threads.run)
        self._loop_thread.began_to_consume()
        try:
            await consumer.run()
        except asyncio.CancelledError:
            if threads.exit is None:
                raise
        finally:
            threads.end()
            self._loop_thread.consumes_no_more()
        return threads.exit

    def stop(self, grace: float | timedelta = 10.0) -> None:
        """End deliveries gracefully, until the store is opened again: for SIGTERM.

        From the call on, no message is handed out: `consume` and iterations end, `get` raises `QueueShutDown`, `join`
        returns. Work in progress may finish: `stop` waits until nothing is in flight. After `grace`, the messages of
        `consume`'s handlers are released, and these run on unheard; other holders may still settle theirs. What nobody
        has acked is redelivered when the store is next opened. Puts continue. Repeating it is safe; the shortest grace
        counts. Called by a handler of the channel, it does not wait, as it would wait for itself.

        Args:
            grace: seconds, or a `timedelta`, for work in progress; 0 waits for nothing.

        Raises:
            InvalidOptionError: not a valid time; also a `TypeError` if it has another type. Nothing was done.
            WrongContextError: an event loop runs in this thread, or it is a forked child.

        Interrupted: it continues; calling it again waits for the same end.
        """
        with suppress(QueueShutDown):  # the store is closed, and nothing is delivered any more
            self._loop_thread.run(self._channel.stop, grace)

    def join(self, timeout: float | timedelta | None = None) -> None:
        """Wait until nothing is ready, in flight or deferred, and no accepted put is still to be written.

        After `stop` or `shutdown(immediate=True)`, wait only for what is in flight: in a shared store, in this process.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Raises:
            TimeoutError: it took longer.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: nothing changes.
        """
        wait = seconds(timeout)
        self._loop_thread.run(lambda: within(wait, self._channel.join()))

    # --- counts

    def qsize(self) -> int:
        """Return how many messages are ready: not settled, in flight or deferred; `depth` counts all unsettled ones.

        A topic's bound (`max_messages`, `Queue.maxsize`) limits `depth`, so a full one may have a small `qsize`.
        """
        return self._loop_thread.look(self._channel.qsize)

    def in_flight(self) -> int:
        """Return how many messages are handed out and not settled."""
        return self._loop_thread.look(self._channel.in_flight)

    def deferred(self) -> int:
        """Return how many messages are deferred: put with a delay, or requeued with one."""
        return self._loop_thread.look(self._channel.deferred)

    @property
    def depth(self) -> int:
        """The number of unsettled messages: ready, in flight and deferred."""
        return self._loop_thread.look(lambda: self._channel.depth)

    def empty(self) -> bool:
        """Return whether nothing is ready."""
        return self.qsize() == 0

    def stats(self) -> ChannelStats:
        """Return the channel's statistics. No I/O."""
        return self._loop_thread.look(self._channel.stats)

    # --- options

    @property
    def options(self) -> ChannelOptions:
        """The options that apply to the channel."""
        return self._channel.options

    @CONFIGURE_CHANNEL
    def configure(self, options: ChannelOptions) -> None:
        """Apply other options to the channel from now on, for everyone who uses it; they are on disk when this returns.

        Nothing is settled by them before that. They count as given for the channel, in this process and later ones.

        Args:
            options: all of them, not only those that change; `start` is ignored.

        Raises:
            InvalidOptionError: these are not `ChannelOptions`, or the dead-letter topic is this one.
            QueueShutDown: the store is closed.
            StorageError: they could not be written; the old ones apply.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._channel.configure, options)

    def pause(self) -> None:
        """Deliver nothing from now on; messages accumulate, those in flight may be settled.

        It takes effect at once, and is durable when this returns: a channel stays paused across a restart.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._channel.pause)

    def resume(self) -> None:
        """Deliver again; durable as `pause` is.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._channel.resume)

    @property
    def paused(self) -> bool:
        """Whether the channel or its topic is paused."""
        return self._channel.paused


def _refuse_coroutine(what: str, function: object) -> NoReturn:
    raise InvalidOptionTypeError(
        f"{what} {shown(function)} is an `async def`, and aiodq.sync calls plain functions, in threads: write `def`, "
        "or use aiodq.open and `await channel.consume(handler)`"
    )
