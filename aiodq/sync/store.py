"""A directory of topics for threads, and the ways to open one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Protocol, Self, TypeVar

from aiodq import message, store
from aiodq import opening as ways
from aiodq.by_name import STORE_QUEUE, STORE_TOPIC, Explained
from aiodq.engine.monitoring import events
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import InvalidOptionTypeError, WrongContextError
from aiodq.opening import Mode
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.stats import BackupReport, Health, StoreStats
from aiodq.sync.loop_thread import LoopThread, refuse_running_loop, wait_for_dropped
from aiodq.sync.message import Message
from aiodq.sync.queue import Queue
from aiodq.sync.topic import Topic
from aiodq.sync.transaction import Transaction
from aiodq.uncopied import Uncopied
from aiodq.values import shown, span_seconds

__all__ = ["Events", "Store", "open", "open_queue"]


class _Closable(Protocol):
    """A store, or a queue that has one to itself."""

    async def aclose(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=_Closable)


class Store(Uncopied):
    """A directory of topics, for any number of threads of this process. Made by `aiodq.sync.open`."""

    def __init__(self, loop_thread: LoopThread, inner: store.Store) -> None:
        """Made by `aiodq.sync.open`."""
        self._loop_thread = loop_thread
        self._store = inner

    def __repr__(self) -> str:
        """Show the path, whether it is open, and its contents."""
        return self._loop_thread.show(self._store)

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._store.path

    @STORE_TOPIC
    def topic(self, name: str, options: StoreOptions | None = None) -> Topic:
        """Return a topic, created on first use: without I/O here, and on disk from its first put or channel on.

        Args:
            name: 1 to 64 of `[.a-zA-Z0-9_-]`; see `aiodq.Store.topic`.
            options: the topic's own. Those that concern its data are stored and apply from then on, also if none are
                given; `topic.configure(options)` changes them.

        Raises:
            InvalidNameError: the name is invalid.
            InvalidOptionError: these are not `StoreOptions`; also a `TypeError`. Or other ones were given for it
                before, since the store was opened.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        return Topic(self._loop_thread, self._loop_thread.call(self._store.topic, name, options))

    @STORE_QUEUE
    def queue(self, name: str, channel: ChannelOptions | None = None, *, options: StoreOptions | None = None) -> Queue:
        """Return a topic with its channel `default` as a queue.

        Args:
            name: as for `topic`.
            channel: the channel's options, as for `Topic.channel`.
            options: the topic's, as for `topic`.

        Raises:
            InvalidNameError: the name is invalid.
            InvalidOptionError: these are not `ChannelOptions`, or not `StoreOptions`; also a `TypeError`. Or other ones
                were given before.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        return Queue(self._loop_thread, self._loop_thread.call(self._store.queue, name, channel, options=options))

    def topics(self) -> list[str]:
        """Return the names of the topics that have a message or a channel, or had one."""
        return self._loop_thread.look(self._store.topics)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels and everything in it, quarantined bytes, too. A missing one is fine.

        Raises:
            InvalidNameError: the name is invalid.
            QueueShutDown: the store is closed.
            StorageError: it could not be deleted.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._store.delete_topic, name)

    def transaction(self) -> Transaction:
        """Return a transaction: `with store.transaction() as tx`, with `tx.ack` and `tx.put` in the block.

        Raises:
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        return Transaction(self._loop_thread, self._loop_thread.call(self._store.transaction))

    def requeue_dead(
        self, topic: str, *, where: Callable[[Message], bool] | None = None, limit: int | None = None
    ) -> int:
        """Return dead letters to the channels that rejected them, each to that one alone; return their number.

        See `aiodq.Store.requeue_dead`; in transactions of up to 100.

        Args:
            topic: the dead-letter topic's name.
            where: called with each letter on the store's own thread, where it must not wait for the store; only letters
                for which it is true are requeued.
            limit: how many at most; None for all.

        Raises:
            InvalidNameError: not a topic's name.
            InvalidOptionError: `limit` is invalid, or `where` is a coroutine function or returns an awaitable; also a
                `TypeError` if one has another type.
            QueueShutDown: the store is closed.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Earlier transactions stand.
            WrongContextError: inside a transaction's block: this call has its own transactions.
            StorageError: a letter could not be read or requeued. Earlier transactions stand.
            StoreFailedError: the store has stopped.

        Interrupted: each letter is either requeued or stays.
        """
        if self._loop_thread.transactions.current is not None:
            raise WrongContextError("this thread is in a transaction of this store, and requeue_dead has its own")
        if where is not None and not callable(where):
            raise InvalidOptionTypeError(
                f"where is a function of a letter, such as `lambda letter: letter.tag == 'paid'`, not {shown(where)}"
            )

        def chosen(letter: message.Message) -> bool:
            return where is None or where(Message(self._loop_thread, letter))

        return self._loop_thread.run(
            self._store.requeue_dead, topic, where=None if where is None else chosen, limit=limit
        )

    def events(self) -> Events:
        """Return the events of its opening and those from now on: `for event in …`.

        There may be any number of listeners, each with a buffer of its own: 10,000 events; beyond that the oldest are
        dropped, and counted by the iterator's `dropped`. It ends when the store is closed.

        Raises:
            QueueShutDown: the store is closed.

        Interrupted: waiting for the next event may be; none is lost.
        """
        return Events(self._loop_thread, self._loop_thread.call(self._store.events))

    def health(self) -> Health:
        """Return whether the store is healthy, and if not, why: see `aiodq.Store.health`. No I/O."""
        return self._loop_thread.look(self._store.health)

    def stats(self) -> StoreStats:
        """Return the store's statistics. No I/O."""
        return self._loop_thread.look(self._store.stats)

    def backup(self, path: str | PathLike[str]) -> BackupReport:
        """Copy the store, as it is at one moment, into a new directory, while it is used: see `aiodq.Store.backup`.

        Args:
            path: the directory, which must not exist.

        Raises:
            InvalidOptionError: the path begins with `~`, or is no path, then also a `TypeError`.
            NotAStoreError: there is something of that name, or no directory above it, or it lies inside a store.
            StoreLockedError: another backup is being made there.
            QueueShutDown: the store is closed.
            StorageError: a topic of the store cannot be used, or the system refused, above all `DiskFullError`.
            StoreFailedError: the store has stopped.

        Interrupted: it is given up, and what there was of it is removed; one that is complete by then stays.
        """
        return self._loop_thread.run(self._store.backup, path)

    def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Refuse puts from now on, and wait until consumers have processed everything.

        An iteration over a channel ends once nothing is ready. Deferred messages stay until the store is next opened;
        dead letters still reach their topics. The store stays open until `close`.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Returns:
            Whether nothing is ready or in flight in any channel.

        Raises:
            InvalidOptionError: not a timeout; also a `TypeError` if it has another type. Nothing was done.
            QueueShutDown: the store is closed.
            StorageError: the files of a topic or a channel could not be created.
            StoreFailedError: the store has stopped.

        Interrupted: puts stay refused.
        """
        return self._loop_thread.run(self._store.drain, timeout)

    def stop(self, grace: float | timedelta = 10.0) -> None:
        """End the deliveries of all channels gracefully, as `Channel.stop` does, and close the store: for SIGTERM.

        Puts are accepted until handlers have ended, so that these can pass on their results. Repeating it is safe; the
        shortest grace counts. Called by a handler, it returns at once, and the rest continues.

        Args:
            grace: seconds, or a `timedelta`, for work in progress; 0 waits for nothing.

        Raises:
            InvalidOptionError: not a valid time; also a `TypeError` if it has another type. Nothing was done.
            StoreFailedError: what was accepted could not be made durable.
            WrongContextError: an event loop runs in this thread, or it is a forked child.

        Interrupted: it continues; calling it again waits for the same end.
        """
        wait = span_seconds("grace", grace)
        self._loop_thread.close(partial(self._store.stop, wait))

    def close(self) -> None:
        """Finish what was accepted, make it durable, release the directory. Repeating it is safe.

        Calls that wait for a message or for room raise `QueueShutDown`.

        Raises:
            StoreFailedError: what was accepted could not be made durable.

        Interrupted: it continues; calling it again waits for the same end.
        """
        self._loop_thread.close(self._store.aclose)

    def __enter__(self) -> Self:
        """Return the store.

        Raises:
            QueueShutDown: it is closed.
            WrongContextError: an event loop runs in this thread, or the store was opened before a fork.
        """
        self._loop_thread.run(self._store.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; in a child that was forked in the block, leave the store to the parent."""
        if not self._loop_thread.inherited:
            self.close()


class Events(Uncopied):
    """The events of a store's opening and those from now on: `for event in store.events()`.

    It ends after the store is closed, once all earlier events were returned. It need not be closed.
    """

    def __init__(self, loop_thread: LoopThread, inner: events.Events) -> None:
        """Made by `Store.events`."""
        self._loop_thread = loop_thread
        self._events = inner

    def __repr__(self) -> str:
        """Show how far the listener is behind."""
        return repr(self._events)

    @property
    def dropped(self) -> int:
        """The number of events lost because this listener did not take them in time."""
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
        try:
            found = self._loop_thread.take(self._next, self._put_back)
        except QueueShutDown:  # the loop has ended, and what came before needs none
            found = self._events.take()
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> events.Event | None:
        return await anext(self._events, None)

    def _put_back(self, event: events.Event | None) -> None:
        if event is not None:
            self._events.put_back(event)


@Explained("aiodq.sync.open", StoreOptions="aiodq.sync.open(path, StoreOptions({}))")
def open(
    path: str | PathLike[str], options: StoreOptions | None = None, *, create: bool = True,
    wait: float | timedelta = 0.0, mode: Mode = "exclusive", failover: float | timedelta = 30.0,
) -> Store:  # fmt: skip
    """Open a store for threads: `with aiodq.sync.open(path) as store`, or `store = aiodq.sync.open(path)`.

    Args:
        path: a directory, created if missing and locked by this process until the store is closed.
        options: see `StoreOptions`.
        create: False to open only an existing store, and not create one in a directory that is missing or empty, as
            when a volume was not mounted.
        wait: seconds, or a `timedelta`, to wait for another process to release the store; in mode "exclusive".
        mode: "exclusive": this process alone has the store. "shared": any number of processes have it; one of them owns
            it, and when that ends, another takes over. "client": as shared, but this process never owns it; nor does it
            make one that is missing, but waits for it.
        failover: seconds, or a `timedelta`, to look for an owner, at first and after one is gone; then waiters get an
            error. In mode "shared" and "client".

    Raises:
        OwnerLostError: in mode "client": no process serves the store.
        StoreLockedError: another owner has it, and did not release it within `wait`; `pid` is its process.
        StoreNotFoundError: there is no store, and `create` is False; or, in mode "client", nobody has made one within
            `failover`.
        NotAStoreError: the directory holds something else, or lies inside another store.
        FormatVersionError: a newer aiodq wrote it; it was left untouched.
        InvalidOptionError: an option is invalid, or the path begins with `~`; also a `TypeError` if it has another
            type.
        StorageError: the system refused.
        WrongContextError: an event loop runs in this thread.

    Interrupted: what was opened is closed again.
    """
    refuse_running_loop()
    opening = ways.open(path, options, create=create, wait=wait, mode=mode, failover=failover)
    opening.forgo()  # without a free thread, or interrupted before there is one, it is no forgotten `await`
    return Store(*_opened(path, opening))


@Explained(
    "aiodq.sync.open_queue",
    StoreOptions="aiodq.sync.open_queue(path, StoreOptions({}))",
    ChannelOptions="aiodq.sync.open_queue(path, channel=ChannelOptions({}))",
)
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
    opening.forgo()  # as above
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
