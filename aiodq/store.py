"""The store: a directory of topics."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Final, Protocol, Self

from aiodq.awaited import mark_retrieved, shielded
from aiodq.by_name import STORE_QUEUE, STORE_TOPIC, known_as
from aiodq.consuming.handlers import checked_choice
from aiodq.engine.graceful_stop import stop_channels
from aiodq.engine.monitoring.events import Events
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.stats.topic_stats import topic_stats
from aiodq.engine.store.health import health
from aiodq.engine.store.store_engine import StoreEngine
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.engine.transactions.task_transactions import TransactionHost
from aiodq.message import Message
from aiodq.names import check_name, check_topic_name
from aiodq.onlyasync import AsyncBlock
from aiodq.options import ChannelOptions, StoreOptions, check_channel_options, check_store_options
from aiodq.queue import Queue
from aiodq.requeue import requeue_letters
from aiodq.stats import BackupReport, Health, StoreStats
from aiodq.storage.store_layout import absolute_path
from aiodq.topic import Topic
from aiodq.transaction import Transaction
from aiodq.values import check_whole, span_seconds

__all__ = ["QUEUE_CHANNEL", "OpenStore", "Store", "StoreHandle"]

QUEUE_CHANNEL: Final = "default"
"""The channel of a topic that is used as a queue."""

_GOING_ON: Final[set[asyncio.Task[None]]] = set()
"""Keeps references to tasks that would otherwise be garbage collected."""


class OpenStore(TransactionHost, Protocol):
    """What a handle needs of a store's engine, or of its substitute if another process owns the store."""

    @property
    def standing(self) -> str:
        """The state of the store, as one word."""
        ...

    def store_ref(self) -> object:
        """Return what a handle holds to keep the store open."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, and leave the store."""
        ...


@known_as("Store")
class StoreHandle(AsyncBlock):
    """A store, whichever process owns it; `Store` adds what needs its engine in this process."""

    _queue_class: type[Queue] = Queue

    def __init__(self, store_engine: OpenStore) -> None:
        """Stand for this store, and keep it open."""
        self._store_engine = store_engine
        self._store_ref = store_engine.store_ref()

    def __repr__(self) -> str:
        """Show its directory, state and number of topics."""
        number = len(self.topics())
        return f"<Store {self.path!r} {self._store_engine.standing}, {number} topic{'' if number == 1 else 's'}>"

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._store_engine.path

    @abstractmethod
    def topic(self, name: str, options: StoreOptions | None = None) -> Topic:
        """Return a topic, created when first named."""

    @abstractmethod
    def topics(self) -> list[str]:
        """Return the names of the topics."""

    @STORE_QUEUE
    def queue(self, name: str, channel: ChannelOptions | None = None, *, options: StoreOptions | None = None) -> Queue:
        """Return a topic with its channel `default` as a queue.

        Args:
            name: as for `topic`.
            channel: the channel's options, as for `Topic.channel`.
            options: the topic's, as for `topic`.

        Raises:
            InvalidNameError: the name is not allowed.
            InvalidOptionError: these are not `ChannelOptions` or `StoreOptions`, then also a `TypeError`; or other
                options were named before.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        name = check_name(name)
        check_channel_options(channel, f"store.queue({name!r}, {{}})")
        check_store_options(options, f"store.queue({name!r}, options={{}})")
        topic = self.topic(name, options)
        return self._queue_class(topic, topic.channel(QUEUE_CHANNEL, channel))

    def _as_queue(self, name: str, options: StoreOptions | None, channel: ChannelOptions | None) -> Queue:
        """Return a queue that closes the store when it is closed; for `aiodq.open_queue`."""
        topic = self.topic(name, options)
        return self._queue_class(topic, topic.channel(QUEUE_CHANNEL, channel), self.aclose)

    def transaction(self) -> Transaction:
        """Return a transaction: `async with store.transaction() as tx`, with `tx.ack` and `tx.put` in the block.

        Raises:
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        self._store_engine.check()
        transaction = Transaction(self._store_engine)
        transaction.store_ref = self._store_ref
        return transaction

    async def aclose(self) -> None:
        """Write what was accepted, make it durable, and release the directory. Repeating it is safe.

        Calls that wait for a message or for room raise `QueueShutDown`.

        Raises:
            StoreFailedError: what was accepted could not be made durable.
            StorageError: a file could not be closed. The store is closed anyway.
            OwnerLostError, OwnerStalledError: in mode "shared" or "client": no owner has taken what was accepted
                within the `failover` of `aiodq.open`. The store is closed anyway.

        Cancellation: it goes on in the store's own task; awaiting again is safe, and so is opening the store again on
        this event loop, which waits for it.
        """
        await self._store_engine.close()

    async def __aenter__(self) -> Self:
        """Return the store.

        Raises:
            QueueShutDown: it is closed.
        """
        if self._store_engine.standing in {"closing", "closed"}:
            self._store_engine.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; in a forked child, where the store is the parent's, do nothing."""
        if not self._store_engine.inherited:
            await self.aclose()


class Store(StoreHandle):
    """A directory of topics, owned by this process. Made by `aiodq.open`.

    All methods are to be called on the event loop that opened it.
    """

    _store_engine: StoreEngine

    def __init__(self, store_engine: StoreEngine) -> None:
        """Called by `aiodq.open`."""
        super().__init__(store_engine)
        self._topics: dict[str, Topic] = {}

    @STORE_TOPIC
    def topic(self, name: str, options: StoreOptions | None = None) -> Topic:
        """Return a topic. This does no I/O; the topic is created on disk by its first put or channel.

        Args:
            name: 1 to 64 of `[.a-zA-Z0-9_-]`, but not a name that the store needs itself: `LOCK`, `topic.json`, and all
                that end with `.seg` or `.aiodq-tmp`, in upper or lower case. A name that ends with `#ephemeral` is of a
                topic in memory, up to half of `memory_bytes`; beyond that the oldest messages are dropped and counted.
                It ends with the store, or the owner of a shared one, or when it is deleted.
            options: the topic's options. Those that concern its data are stored on disk and stay in effect, even if
                none are named later; `await topic.configure(options)` changes them.

        Raises:
            InvalidNameError: the name is not allowed.
            InvalidOptionError: these are not `StoreOptions`, then also a `TypeError`; or other options were named for
                the topic before, since the store was opened.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        name = check_topic_name(name, self._store_engine.topics)
        check_store_options(options, f"store.topic({name!r}, {{}})")
        self._store_engine.check()
        engine = self._store_engine.engine(name, options)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(self._store_engine, engine)
        return topic

    def topics(self) -> list[str]:
        """Return the names of the topics that have a message or a channel, or had one."""
        return sorted(name for name, engine in self._store_engine.topics.items() if engine.creation.exists)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it, quarantined bytes included. If it does not exist, do nothing.

        Raises:
            InvalidNameError: the name is not allowed.
            StorageError: it could not be deleted completely. As long as `topics` names it, delete it again; until the
                store is opened again, it cannot be used. The deletion waits while a full disk keeps committed
                transactions from being written to their topics.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Cancellation: it is completed anyway.
        """
        name = check_name(name)
        self._store_engine.check()
        self._topics.pop(name, None)
        await self._store_engine.delete_topic(name)

    async def requeue_dead(
        self, topic: str, *, where: Callable[[Message], bool] | None = None, limit: int | None = None
    ) -> int:
        """Put dead letters back to the channels that gave them up, each to that channel alone; return how many.

        The topic's other channels do not get the message again. It has its original body, tag, key and headers, and a
        new offset; the order is that of the letters, and its attempts begin anew. Letters are put back and settled in
        transactions of up to 100: after a crash, each is in one of the two places, never in both. Letters stay if they
        are in flight or deferred, if they name no channel, if their channel no longer exists, or if its `tags` no
        longer match them. After the owner of a shared store was killed, this waits as `Channel.refresh` does.

        Args:
            topic: the dead-letter topic's name. Letters are taken from its only channel, or else from `default`. A
                topic that does not exist has no letters and is not created; nor is a channel if there are no letters.
            where: called with each letter; only letters for which it returns true are put back. `message.headers` has
                the reason. It must be a plain function: an awaitable result is refused.
            limit: the most letters to put back; None for all.

        Raises:
            InvalidNameError: it is not a topic's name.
            InvalidOptionError: `limit` is out of range, the topic has several channels and no `default`, or `where` is
                not such a function; also a `TypeError` if a type is wrong. If `where` returned an awaitable, earlier
                transactions stand.
            QueueShutDown: the store is closed.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Earlier transactions stand.
            WrongContextError: inside a transaction's block: it uses transactions of its own.
            StorageError: a letter could not be read or put back. Earlier transactions stand.
            StoreFailedError: the store has stopped.

        Cancellation: each letter is either put back or still here.
        """
        if limit is not None:
            check_whole("limit", limit, least=0, example=100)
        checked_choice(where)
        topic = check_topic_name(topic, self._store_engine.topics)
        self._store_engine.check()
        if topic not in self.topics():
            return 0
        return await requeue_letters(self._store_engine, self.topic(topic), where, limit)

    def events(self) -> Events:
        """Return the events of the store, first those of its opening, then all from now on: `async for event in …`.

        A listener may be 10,000 events behind; beyond that, the oldest are dropped and counted in the iterator's
        `dropped`. The iteration ends when the store is closed; a closed store has only the events of its opening.
        Without listeners, no events are kept. In mode "shared" or "client", there are none while no owner answers
        (see `health`), and when the owner changes some may be reported twice or not at all.

        Raises:
            WrongContextError: in another event loop or thread than the store's.

        Cancellation: waiting for the next event can be cancelled; none is lost.
        """
        self._store_engine.check_context()
        return self._store_engine.reporter.listeners.listen()

    def health(self) -> Health:
        """Return whether the store is healthy, and if not, why. No I/O; works for a failed or closed store too.

        It is not healthy if it has failed, if it is being closed or is closed, if a write was refused because the disk
        is full, if less than 32 MiB are free, if a sync took longer than a second within about the last minute, if
        its path does not lead to its directory any more, if an alarm of `StoreOptions.alarms` is raised, or, in mode
        "shared" or "client", if no owner answers.
        """
        return health(self._store_engine)

    def stats(self) -> StoreStats:
        """Return the store's statistics. No I/O."""
        failure = self._store_engine.failure
        topics = {
            name: topic_stats(engine)
            for name, engine in sorted(self._store_engine.topics.items())
            if engine.creation.exists or engine.creation.failed
        }
        return StoreStats(
            self.path,
            None if failure is None else str(failure),
            topics,
            self._store_engine.committer.committed,
            self._store_engine.syncs.name,
        )

    async def backup(self, path: str | PathLike[str]) -> BackupReport:
        """Copy the store, as it is at one moment, into a new directory, while it is in use. The copy is a store.

        Nothing that was put, settled or committed before the call is missing, and of each topic the messages are a
        prefix. Messages settled during the copy may be delivered once more from the backup. Everything is synced
        before the directory gets its name: until then it is called `PATH.aiodq-tmp`. The copy does not contain
        ephemeral topics and channels, or quarantined bytes. Puts and acks go on during the copy. Transactions wait
        while the topics' small files are copied; deletions of topics and of consumed segments wait until the end.

        Open a backup only after the original was given up: to readers such as Spark, and to producers that repeat
        puts, both are the same store.

        Args:
            path: the directory, which must not exist. In mode "shared" or "client" the owner makes it.

        Raises:
            InvalidOptionError: the path begins with `~`, or is no path, then also a `TypeError`.
            NotAStoreError: the path exists already, or its parent directory does not, or it lies in this or another
                store.
            StoreLockedError: another backup is being made there.
            StorageError: a topic of the store cannot be used, or as mapped from the system's error, above all
                `DiskFullError`. There is no backup.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Cancellation: it is aborted, and its files are removed; a backup that is complete by then stays.
        """
        target = absolute_path(path)
        self._store_engine.check()
        return await self._store_engine.backups.make(target)

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Refuse puts from now on, into new topics too, and wait until consumers have processed all messages.

        An `async for` over a channel ends once nothing is ready, also after the timeout. Deferred messages stay for the
        next time the store is opened. Dead letters are still put, and so are the messages of transactions that ack a
        message. The store stays open until `aclose`. nsqd has nothing like it (nsq#1302).

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Returns:
            Whether nothing is ready or in flight any more, in any channel.

        Raises:
            InvalidOptionError: it is not a duration; also a `TypeError` if it has a wrong type. Nothing was done.
            StorageError: the files of a topic or a channel could not be created.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.

        Cancellation: puts stay refused, and deliveries end once nothing is ready.
        """
        self._store_engine.check()
        wait = None if timeout is None else span_seconds("timeout", timeout, past=True)
        self._store_engine.refuse_puts()
        ioloops = [one for one in self._store_engine.topics.values() if one.creation.exists and one.unusable is None]
        try:
            # Tasks of their own: even if the time is too short for them, getters and putters must be told.
            endings = [(engine, _going_on(_end_getters(engine))) for engine in ioloops]
            async with asyncio.timeout(wait):
                await asyncio.gather(*(_drained(self._store_engine, engine, ending) for engine, ending in endings))
        except TimeoutError:
            return False
        return True

    async def stop(self, grace: float | timedelta = 10.0) -> None:
        """End the deliveries of all channels gently, as `Channel.stop` does, and close the store: for SIGTERM.

        ```python
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: stopping.append(loop.create_task(store.stop())))
        await jobs.consume(handler)  # returns once it is stopped
        ```

        Puts are accepted until the handlers have ended, so that handlers can put their results. Repeating it is safe;
        the shortest grace counts. Called by a handler, it returns at once and goes on in the background.

        Args:
            grace: seconds, or a `timedelta`, that running handlers have; 0 cancels them at once.

        Raises:
            InvalidOptionError: it is not a duration; also a `TypeError` if it has a wrong type. Nothing was done.
            StoreFailedError: what was accepted could not be made durable.
            OwnerLostError, OwnerStalledError: in mode "shared" or "client": as `aclose`.
            WrongContextError: another event loop, or a forked child.

        Cancellation: it goes on; calling it again waits for the same end.
        """
        wait = span_seconds("grace", grace)
        self._store_engine.check_context()
        channel_engines = [
            channel_engine
            for engine in self._store_engine.topics.values()
            for channel_engine in engine.channel_engines.values()
        ]
        await stop_channels(channel_engines, wait, self._store_engine.close)


def _going_on(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start work that goes on to its end even if its caller no longer waits."""
    task = asyncio.get_running_loop().create_task(work)
    _GOING_ON.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[None]) -> None:
    _GOING_ON.discard(task)
    mark_retrieved(task)  # its caller may no longer wait for the error


async def _end_getters(engine: TopicEngine) -> None:
    """Let getters go on until nothing is ready, once what was accepted is visible to them."""
    await engine.settle_in()
    for channel_engine in list(engine.channel_engines.values()):
        channel_engine.shut_down(immediate=False)


async def _drained(store_engine: StoreEngine, engine: TopicEngine, ending: asyncio.Task[None]) -> None:
    await _unless_deleted(store_engine, shielded(ending))
    for channel_engine in list(engine.channel_engines.values()):
        await _unless_deleted(store_engine, channel_engine.join(deferred=False))


async def _unless_deleted(store_engine: StoreEngine, end: Awaitable[None]) -> None:
    """Wait for the end of what a topic or channel has; one that is deleted meanwhile has nothing any more."""
    try:
        await end
    except QueueShutDown:
        store_engine.check()
