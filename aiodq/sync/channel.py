"""One consumer group's durable view of a topic, for threads."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

from aiodq.consumer import Consumer
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import InvalidOptionTypeError
from aiodq.handlers import Handler, checked_handler, checked_hook
from aiodq.sync.handlers import HandlerThreads
from aiodq.sync.message import DeferredMessage, Message, give_back
from aiodq.sync.spans import in_pages, seconds, within
from aiodq.sync.transaction import inner_messages
from aiodq.values import check_flag, check_whole, span_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
    from datetime import timedelta

    from aiodq import channel, deferred, message
    from aiodq.options import ChannelOptions, Position
    from aiodq.stats import ChannelStats
    from aiodq.sync.loop_thread import LoopThread

__all__ = ["Channel"]


class Channel:
    """A channel sees every message of its topic once; its consumers share them, in whichever threads they are.

    Made by `Topic.channel` and `Store.queue`.
    """

    def __init__(self, loop_thread: LoopThread, inner: channel.Channel) -> None:
        """Made by the topic."""
        self._loop_thread = loop_thread
        self._channel = inner

    def __repr__(self) -> str:
        """Say which it is, whether it is open, what is before it, and where."""
        return self._loop_thread.show(self._channel)

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._channel.name

    # --- taking

    def get(self, timeout: float | timedelta | None = None) -> Message:
        """Wait for the next message and take it.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever, 0 and less not at all.

        Raises:
            TimeoutError: nothing came in time.
            InvalidOptionError: no span of time; a `TypeError` too where it is of another type. Nothing was taken.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: the message could not be read; it is not lost by that.
            StoreFailedError: the store has stopped.

        Interrupted: nothing is lost and the order is kept.
        """
        return self._handed(self._loop_thread.take(partial(self._get, timeout), self._give_one_back))

    async def _get(self, timeout: float | timedelta | None) -> Message:
        return Message(self._loop_thread, await self._channel.get(timeout))

    def _give_one_back(self, message: Message) -> None:
        give_back((message,))

    def get_nowait(self) -> Message:
        """Take the next message.

        Raises:
            QueueEmpty: nothing may be delivered now. A channel just named delivers once it is on disk, for which `get`
                and `Topic.settle_in` wait.
            QueueShutDown: shut down and nothing is ready, or the store is closed.

        Interrupted: nothing is lost and the order is kept.
        """
        return self._handed(self._loop_thread.take(self._get_now, self._give_one_back))

    async def _get_now(self) -> Message:
        return Message(self._loop_thread, self._channel.get_nowait())

    def get_many(
        self, max_items: int, *, linger: float | timedelta = 0.0, timeout: float | timedelta | None = None
    ) -> list[Message]:
        """Wait for at least one message and take up to `max_items`.

        Args:
            max_items: at least 1.
            linger: seconds, or a `timedelta`, to wait for more once there is one.
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Raises:
            TimeoutError: it took longer, and nothing was taken.
            InvalidOptionError: an argument is of no use; a `TypeError` too where one is of another type. Nothing was
                taken.
            QueueShutDown: shut down and nothing is ready, or the store is closed.
            StorageError: a message could not be read; it is not lost by that.
            StoreFailedError: the store has stopped.

        Interrupted: nothing is lost and the order is kept.
        """
        get_many = partial(self._get_many, max_items, linger, seconds(timeout))
        messages = self._loop_thread.take(get_many, give_back)
        for each in messages:
            self._handed(each)
        return messages

    async def _get_many(self, most: int, linger: float | timedelta, wait: float | None) -> list[Message]:
        found = await within(wait, self._channel.get_many(most, linger=linger))
        return [Message(self._loop_thread, each) for each in found]

    def _handed(self, message: Message) -> Message:
        """Note, where that is of use, who has a message."""
        return message

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until shutdown. Nothing is acked by itself."""
        with suppress(QueueShutDown):
            while True:
                yield self.get()

    def refresh(self) -> None:
        """Have the counts be those of now: of a store in mode "shared" or "client" they are up to 0.1 s old.

        Raises:
            OwnerLostError, OwnerStalledError: of a store that is shared: there is nobody to ask, or no answer comes.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Interrupted: nothing changes.
        """
        self._loop_thread.run(self._channel.refresh)

    def peek(self) -> Message | None:
        """Return the next message without taking it, or None when nothing is ready.

        It cannot be settled.

        Raises:
            StorageError: it could not be read, or the channel's files could not be made.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: nothing changes.
        """
        found = self._loop_thread.run(self._channel.peek)
        return None if found is None else Message(self._loop_thread, found)

    # --- settling

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Settle messages of this channel in one call: all of them, or, on an error here, none.

        It returns when the settling is as durable as the store's `sync` policy makes it.

        Args:
            messages: what `get`, `get_many` or iterating gave, in any order.

        Raises:
            AlreadySettledError: one was settled before, or is named twice.
            NotInFlightError: one was taken away meanwhile (its time was up, or by a purge), or is another channel's.
            InvalidOptionError: these are no messages; a `TypeError` too.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the messages may be redelivered.

        Interrupted: settled all the same, durable with the next commit; a crash before that redelivers.
        """
        self._loop_thread.run(self._channel.ack_many, inner_messages(messages))

    def deferred_messages(self) -> Iterator[DeferredMessage]:
        """Iterate over the messages that wait for a moment, the earliest due first, without taking them.

        Each is a `Message` that was only looked at, with `due`, a `datetime` in UTC, beside. As many as `deferred`
        counts, as of the first step; what is deferred no more when its turn comes may be left out.

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
        """Give a deferred message up: it is settled, never delivered, and counted as `cancelled` in `stats`.

        Args:
            offset: as `put` gave it, or of what `deferred_messages` gave.

        Raises:
            OffsetError: it is not deferred here: it is ready, in flight, settled, or not written yet. Nothing changed.
            InvalidOptionError: it is no offset; a `TypeError` too.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the message may come.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._channel.cancel, offset)

    def purge(self) -> int:
        """Settle everything accepted so far, in flight or not; return how many messages that were.

        Raises:
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: it is done all the same.
        """
        return self._loop_thread.run(self._channel.purge)

    def seek(self, position: Position) -> None:
        """Go on from another place: everything before it counts as settled, everything from there on is redelivered.

        Going ahead therefore gives up what lies between, for good where retention deletes what is consumed. What is in
        flight is forgotten, with its attempts; settling it raises `NotInFlightError`.

        Args:
            position: `"earliest"`, `"latest"`, an offset, or a time with a zone.

        Raises:
            OffsetError: beyond the log, or before what is still kept; nothing changed.
            DiskFullError: what a transaction has put into some topic finds no room there yet; nothing changed.
            InvalidOptionError: no position; a `TypeError` too where it is of another type. Nothing changed.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._channel.seek, position)

    # --- working off

    def consume(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        on_error: Callable[[Message, BaseException], object] | None = None,
    ) -> None:
        """Work messages off until the channel is stopped or shut down, or until interrupted.

        The handler is called in threads made for this call: `concurrency` of them, which last as long as it does. The
        calling thread only waits. A message is acked when its handler returns. A handler fails by an exception, or by
        taking longer than `timeout`: the message is redelivered after the channel's `backoff`, or where it has none
        after 1 s, 2 s, 4 s … up to 15 minutes, and others are worked off meanwhile; after `max_attempts` it is dead.
        `raise aiodq.Retry(delay)` chooses the wait, `raise aiodq.Reject(reason)` gives the message up, and what the
        handler settles itself stays as it settled it. A handler may use all of the store. What ends a program
        (`SystemExit`, `KeyboardInterrupt`) ends `consume`, which raises it; each attempt that fails is a line of the
        logger `aiodq.delivery`.

        Nothing can stop a thread: where its time is up, or `consume` is interrupted, the message is settled, and the
        function goes on to its end unheard. A worker takes its next message only after that end.

        Args:
            handler: called with each message; a plain function.
            concurrency: how many messages are worked off at once.
            timeout: seconds, or a `timedelta`, that a handler has. None: for ever.
            renew: keep messages from timing out as long as their handlers run (see `Message.renewing`). Without, the
                `visibility_timeout` is all the time that a handler has before somebody else gets the message, too.
            on_error: called with the message, which is settled by then, and the exception of each failed attempt, in
                one of those threads. What it raises is logged and changes nothing. A `Retry` and a `Reject` are no
                failures.

        Raises:
            InvalidOptionError: the handler or the hook cannot be called like that, or an option is out of its range; a
                `TypeError` too where a type is wrong.
            QueueShutDown: the store is closed already.
            StoreFailedError: the store has stopped.

        Interrupted: the messages of handlers under way are released as if never handed out. Handlers go on to their
        end, and what they settle by then is refused.
        """
        check_flag("renew", renew)
        make = partial(
            Consumer,
            self._channel._channel_engine,  # noqa: SLF001 - consuming is the other half of a channel
            self._channel.check,
            self._threaded(handler, on_error),
            concurrency=check_whole("concurrency", concurrency, least=1, example=4),
            timeout=None if timeout is None else span_seconds("timeout", timeout, positive=True),
            renew=renew,
        )
        ended_by = self._loop_thread.run(self._consume, make, on_error)
        if ended_by is not None:
            raise ended_by

    def _threaded(
        self, handler: Callable[[Message], object], hook: Callable[[Message, BaseException], object] | None
    ) -> Handler:
        """Return a handler for the engine; or raise where one of them cannot be called in a thread."""
        checked_hook(hook)
        if not checked_handler(handler).threaded:
            _refuse_coroutine("handler", handler)
        if inspect.iscoroutinefunction(hook):
            _refuse_coroutine("on_error", hook)
        return Handler(lambda given: handler(Message(self._loop_thread, given)), threaded=True)

    async def _consume(
        self, make: Callable[..., Consumer], hook: Callable[[Message, BaseException], object] | None
    ) -> BaseException | None:
        """Consume on the loop; return what a handler wants the program to end with."""
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
        """End deliveries gently, for as long as the store is open: for SIGTERM.

        From the call on no message is handed out: `consume` and iterations end, `get` raises `QueueShutDown`, `join`
        returns. What is under way may end: `stop` waits until nothing is in flight. After `grace` the messages of
        handlers of `consume` are released, and these go on unheard; what others hold stays theirs to settle. What
        nobody has acked is redelivered when the store is next opened. Puts go on. Repeating it is safe; the shortest
        grace counts. Called by a handler of the channel, it does not wait, as it would wait for itself.

        Args:
            grace: seconds, or a `timedelta`, for what is under way; 0 waits for nothing.

        Raises:
            InvalidOptionError: no such time; a `TypeError` too where it is of another type. Nothing was done.
            WrongContextError: an event loop runs in this thread, or it is a forked child.

        Interrupted: it goes on; calling it again waits for the same end.
        """
        self._loop_thread.run(self._channel.stop, grace)

    def join(self, timeout: float | timedelta | None = None) -> None:
        """Wait until nothing is ready or in flight or deferred, and nothing accepted is on its way.

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

    # --- looking

    def qsize(self) -> int:
        """Return how many messages are ready: neither settled, nor in flight, nor deferred; `depth` is all of these.

        A topic's bound (`max_messages`, `Queue.maxsize`) is one of `depth`, so a full one may have a small `qsize`.
        """
        return self._loop_thread.look(self._channel.qsize)

    def in_flight(self) -> int:
        """Return how many messages are handed out and not settled."""
        return self._loop_thread.look(self._channel.in_flight)

    def deferred(self) -> int:
        """Return how many messages wait for a moment: put with a delay, or requeued with one."""
        return self._loop_thread.look(self._channel.deferred)

    @property
    def depth(self) -> int:
        """How many messages are not settled: ready, in flight and deferred."""
        return self._loop_thread.look(lambda: self._channel.depth)

    def empty(self) -> bool:
        """Return whether nothing is ready."""
        return self.qsize() == 0

    def stats(self) -> ChannelStats:
        """Return the channel's numbers. No I/O."""
        return self._loop_thread.look(self._channel.stats)

    # --- options

    @property
    def options(self) -> ChannelOptions:
        """The options that hold for the channel."""
        return self._channel.options

    def configure(self, options: ChannelOptions) -> None:
        """Let the channel go by other options from now on, for all who hold it; they are on disk when this returns.

        Nothing is settled by them before. They count as named for the channel, in this process and in later ones.

        Args:
            options: all of them, not only those that change; `start` counts for nothing.

        Raises:
            InvalidOptionError: these are no `ChannelOptions`, or the dead-letter topic is this one.
            QueueShutDown: the store is closed.
            StorageError: they could not be written; those before hold.
            StoreFailedError: the store has stopped.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._channel.configure, options)

    def pause(self) -> None:
        """Deliver nothing from now on; messages gather, what is in flight may be settled.

        It takes effect at once, and is durable when this returns: a channel stays paused over a restart.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._channel.pause)

    def resume(self) -> None:
        """Deliver again; as `pause`.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._channel.resume)

    @property
    def paused(self) -> bool:
        """Whether the channel or its topic is paused."""
        return self._channel.paused


def _refuse_coroutine(what: str, function: object) -> NoReturn:
    raise InvalidOptionTypeError(
        f"{what} {function!r:.100} is an `async def`, and aiodq.sync calls plain functions, in threads: write `def`, "
        "or use aiodq.open and `await channel.consume(handler)`"
    )
