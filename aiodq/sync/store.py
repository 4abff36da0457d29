"""A directory of topics for threads, and the ways to open one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from aiodq import opening as ways
from aiodq.errors import InvalidOptionTypeError, WrongContextError
from aiodq.sync.loop_thread import LoopThread, refuse_running_loop, wait_for_dropped
from aiodq.sync.message import Message
from aiodq.sync.queue import Queue
from aiodq.sync.topic import Topic
from aiodq.sync.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta
    from os import PathLike
    from types import TracebackType

    from aiodq import message, store
    from aiodq.engine.monitoring import events
    from aiodq.opening import Mode
    from aiodq.options import ChannelOptions, StoreOptions
    from aiodq.stats import Health, StoreStats

__all__ = ["Events", "Store", "open", "open_queue"]


class _Closable(Protocol):
    """A store, or a queue that has one to itself."""

    async def aclose(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=_Closable)


class Store:
    """A directory of topics, for any number of threads of this process. Made by `aiodq.sync.open`."""

    def __init__(self, loop_thread: LoopThread, inner: store.Store) -> None:
        """Made by `aiodq.sync.open`."""
        self._loop_thread = loop_thread
        self._store = inner

    def __repr__(self) -> str:
        """Say where it is, whether it is open, and what is in it."""
        return self._loop_thread.show(self._store)

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._store.path

    def topic(self, name: str, options: StoreOptions | None = None) -> Topic:
        """Return a topic, created when first named: without I/O here, and kept from its first put or channel on.

        Args:
            name: 1 to 64 of `[.a-zA-Z0-9_-]`; see `aiodq.Store.topic`.
            options: the topic's own. Those that concern its data are kept on disk and hold from then on, also where
                none are named; `topic.configure(options)` changes them.

        Raises:
            InvalidNameError: no such name may be.
            InvalidOptionError: these are no `StoreOptions`; a `TypeError` too. Or other ones were named for it before,
                since the store was opened.
            QueueShutDown: the store is closed.
        """
        return Topic(self._loop_thread, self._loop_thread.call(self._store.topic, name, options))

    def queue(self, name: str, channel: ChannelOptions | None = None, *, options: StoreOptions | None = None) -> Queue:
        """Return a topic with its channel `default` as a queue.

        Args:
            name: as for `topic`.
            channel: the channel's options, as for `Topic.channel`.
            options: the topic's, as for `topic`.

        Raises:
            InvalidNameError: no such name may be.
            InvalidOptionError: these are no `ChannelOptions`, or no `StoreOptions`; a `TypeError` too. Or other ones
                were named before.
            QueueShutDown: the store is closed.
        """
        return Queue(self._loop_thread, self._loop_thread.call(self._store.queue, name, channel, options=options))

    def topics(self) -> list[str]:
        """Return the names of the topics that have a message or a channel, or had one."""
        return self._loop_thread.look(self._store.topics)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels and everything in it. One that does not exist is fine.

        Raises:
            InvalidNameError: no such name may be.
            QueueShutDown: the store is closed.
            StorageError: it could not be deleted.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._store.delete_topic, name)

    def transaction(self) -> Transaction:
        """Return a transaction: `with store.transaction() as tx`, with `tx.ack` and `tx.put` in the block.

        Raises:
            QueueShutDown: the store is closed.
        """
        return Transaction(self._loop_thread, self._loop_thread.call(self._store.transaction))

    def requeue_dead(
        self, topic: str, *, where: Callable[[Message], bool] | None = None, limit: int | None = None
    ) -> int:
        """Put dead letters back to the channels that gave them up, each to that one alone; return how many.

        As `aiodq.Store.requeue_dead`, in transactions of up to 100.

        Args:
            topic: the dead-letter topic's name.
            where: called with each letter, on the store's own thread, where it must not wait for the store; only those
                go back for which it is true.
            limit: how many at most; None for all.

        Raises:
            InvalidNameError: no topic's name.
            InvalidOptionError: `limit` is of no use; a `TypeError` too where it is of another type.
            QueueShutDown: the store is closed.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Earlier transactions stand.
            WrongContextError: inside a transaction's block: this has its own.
            StorageError: a letter could not be read, or not be put back. Earlier transactions stand.
            StoreFailedError: the store has stopped.

        Interrupted: a letter is back or not, and the rest stays.
        """
        if self._loop_thread.transactions.current is not None:
            raise WrongContextError("this thread is in a transaction of this store, and requeue_dead has its own")
        if where is not None and not callable(where):
            raise InvalidOptionTypeError(
                f"where is a function of a letter, such as `lambda letter: letter.tag == 'paid'`, not {where!r}"
            )

        def chosen(letter: message.Message) -> bool:
            return where is None or where(Message(self._loop_thread, letter))

        return self._loop_thread.run(
            self._store.requeue_dead, topic, where=None if where is None else chosen, limit=limit
        )

    def events(self) -> Events:
        """Return what happens in the store from now on, behind what happened at its opening: `for event in …`.

        There may be any number of listeners, each with a buffer of its own: 10,000 events; what is beyond that is
        dropped, the oldest first, and counted by the iterator's `dropped`. It ends when the store is closed.

        Raises:
            QueueShutDown: the store is closed.

        Interrupted: waiting for the next event can be; none is lost.
        """
        return Events(self._loop_thread, self._loop_thread.call(self._store.events))

    def health(self) -> Health:
        """Return whether the store is well, and if not, why: see `aiodq.Store.health`. No I/O."""
        return self._loop_thread.look(self._store.health)

    def stats(self) -> StoreStats:
        """Return the store's numbers. No I/O."""
        return self._loop_thread.look(self._store.stats)

    def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Refuse puts from now on, and wait until consumers have worked off what there is.

        Whoever iterates over a channel comes to the end once nothing is ready. What is deferred stays for the next time
        the store is opened; dead letters still reach their topics. The store is open until `close`.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Returns:
            Whether nothing is ready or in flight any more, in any channel.

        Raises:
            InvalidOptionError: no span of time; a `TypeError` too where it is of another type. Nothing was done.
            QueueShutDown: the store is closed.
            StorageError: the files of a topic or a channel could not be made.
            StoreFailedError: the store has stopped.

        Interrupted: puts stay refused.
        """
        return self._loop_thread.run(self._store.drain, timeout)

    def stop(self, grace: float | timedelta = 10.0) -> None:
        """End the deliveries of all channels gently, as `Channel.stop` does, and close the store: for SIGTERM.

        Puts are accepted until handlers have ended, so that these can hand on what they made. Repeating it is safe; the
        shortest grace counts. Called by a handler, it returns at once, and the rest goes on.

        Args:
            grace: seconds, or a `timedelta`, for what is under way; 0 waits for nothing.

        Raises:
            InvalidOptionError: no such time; a `TypeError` too where it is of another type. Nothing was done.
            StoreFailedError: what was accepted could not be made durable.
            WrongContextError: an event loop runs in this thread, or it is a forked child.

        Interrupted: it goes on; calling it again waits for the same end.
        """
        self._loop_thread.run(self._store.stop, grace)

    def close(self) -> None:
        """Finish what was accepted, make it durable, release the directory. Repeating it is safe.

        Whoever waits for a message or for room gets `QueueShutDown`.

        Raises:
            StoreFailedError: what was accepted could not be made durable.

        Interrupted: it goes on; calling it again waits for the same end.
        """
        self._loop_thread.close(self._store.aclose)

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class Events:
    """The events of a store from now on, behind those of its opening: `for event in store.events()`.

    It ends when the store is closed, once what happened before was seen. Nothing needs to be closed.
    """

    def __init__(self, loop_thread: LoopThread, inner: events.Events) -> None:
        """Made by `Store.events`."""
        self._loop_thread = loop_thread
        self._events = inner

    def __repr__(self) -> str:
        """Say how far the listener is behind."""
        return repr(self._events)

    @property
    def dropped(self) -> int:
        """Events that were lost to this listener, as it did not take them in time."""
        return self._events.dropped

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> events.Event:
        """Wait for the next event.

        Raises:
            StopIteration: the store is closed.

        Interrupted: no event is lost.
        """
        found = self._loop_thread.run(self._next)
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> events.Event | None:
        return await anext(self._events, None)


def open(
    path: str | PathLike[str], options: StoreOptions | None = None, *, create: bool = True,
    wait: float | timedelta = 0.0, mode: Mode = "exclusive", failover: float | timedelta = 30.0,
) -> Store:  # fmt: skip
    """Open a store for threads: `with aiodq.sync.open(path) as store`, or `store = aiodq.sync.open(path)`.

    Args:
        path: a directory, created if missing and locked by this process until the store is closed.
        options: see `StoreOptions`.
        create: False to open only a store that is there, not make one in a directory that is missing or empty, as a
            volume is that was not mounted.
        wait: seconds, or a `timedelta`, to wait for another process to let go of the store; in mode "exclusive".
        mode: "exclusive": this process alone has the store. "shared": any number of processes have it, one of them owns
            it, and when it ends another takes over. "client": as shared, but this process never owns it.
        failover: seconds, or a `timedelta`, to look for an owner, at first and after one is gone; then those who wait
            are told. In mode "shared" and "client".

    Raises:
        OwnerLostError: in mode "client": nobody serves the store.
        StoreLockedError: another owner has it, and did not let go within `wait`; `pid` tells which.
        StoreNotFoundError: there is no store, and `create` is False.
        NotAStoreError: the directory holds something else.
        FormatVersionError: a newer aiodq wrote it; it was left untouched.
        InvalidOptionError: an option is of no use, or the path begins with `~`; a `TypeError` too where it is of
            another type.
        StorageError: the system refused.
        WrongContextError: an event loop runs in this thread.

    Interrupted: what was opened is closed again.
    """
    refuse_running_loop()
    return Store(*_opened(path, ways.open(path, options, create=create, wait=wait, mode=mode, failover=failover)))


def open_queue(
    path: str | PathLike[str],
    options: StoreOptions | None = None,
    channel: ChannelOptions | None = None,
    *,
    create: bool = True,
    wait: float | timedelta = 0.0,
    mode: Mode = "exclusive",
    failover: float | timedelta = 30.0,
) -> Queue:
    """Open a queue in a store of its own, for threads: `with aiodq.sync.open_queue(path) as queue`.

    Args:
        path: a directory, created if missing and locked by this process until the queue is closed.
        options: see `StoreOptions`.
        channel: see `ChannelOptions`.
        create: see `open`.
        wait: see `open`.
        mode: see `open`.
        failover: see `open`.

    Raises:
        As `open`.

    Interrupted: what was opened is closed again.
    """
    refuse_running_loop()
    opening = ways.open_queue(path, options, channel, create=create, wait=wait, mode=mode, failover=failover)
    return Queue(*_opened(path, opening), owns=True)


def _opened(path: str | PathLike[str], opening: Awaitable[C]) -> tuple[LoopThread, C]:
    """Start a thread and open something in it."""
    directory = os.path.realpath(path)
    wait_for_dropped(directory)
    loop_thread = LoopThread(directory)
    try:
        inner = loop_thread.take(lambda: opening, lambda unwanted: unwanted.aclose())
    except BaseException:
        loop_thread.end()
        raise
    loop_thread.own(inner.aclose)
    return loop_thread, inner
