"""A directory of topics, and the ways to open one."""

from __future__ import annotations

import asyncio
import os
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from aiodq.clock import Clock, SystemClock
from aiodq.engine.graceful_stop import stop_channels
from aiodq.engine.stats.health import health
from aiodq.engine.store_engine import Seams, StoreEngine
from aiodq.engine.worker_threads import BACKEND
from aiodq.errors import InvalidOptionError, InvalidOptionTypeError, NotAwaitedError, StorageError
from aiodq.message import Message
from aiodq.names import check_name, check_topic_name
from aiodq.onlyasync import AsyncBlock
from aiodq.options import ChannelOptions, StoreOptions, check_channel_options, check_store_options
from aiodq.queue import Queue
from aiodq.requeue import requeue_letters
from aiodq.stats import Health, StoreStats
from aiodq.storage.io.filesystem import FileSystem, OsFileSystem
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.topic import Topic
from aiodq.transaction import Transaction
from aiodq.values import check_flag, check_whole, refuse, span_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Executor
    from datetime import timedelta
    from os import PathLike
    from types import TracebackType

    from aiodq.engine.monitoring.events import Events
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["QueueOpening", "Store", "StoreOpening", "open", "open_queue", "open_reader"]

QUEUE_TOPIC = "queue"
"""The topic of a store that `open_queue` made."""

_CHANNEL = "default"


class Store(AsyncBlock):
    """A directory of topics, owned by this process. Made by `aiodq.open`.

    All methods are to be called on the event loop that opened it.
    """

    def __init__(self, store_engine: StoreEngine) -> None:
        """Made by `aiodq.open`."""
        self._store_engine = store_engine
        self._topics: dict[str, Topic] = {}
        self._store_ref = store_engine.store_ref()

    def __repr__(self) -> str:
        """Say where it is, whether it is open, and what is in it."""
        number = len(self.topics())
        return f"<Store {self.path!r} {self._store_engine.standing}, {number} topic{'' if number == 1 else 's'}>"

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._store_engine.path

    def topic(self, name: str, options: StoreOptions | None = None) -> Topic:
        """Return a topic, created when first named: without I/O here, and kept from its first put or channel on.

        Args:
            name: 1 to 64 of `[.a-zA-Z0-9_-]`, and none that the store needs itself: `LOCK`, `topic.json`, and what
                ends `.seg` or `.aiodq-tmp`, in any case.
            options: the topic's own. Those that concern its data are kept on disk and hold from then on, also where
                none are named; `await topic.configure(options)` changes them.

        Raises:
            InvalidNameError: no such name may be.
            InvalidOptionError: these are no `StoreOptions`; a `TypeError` too. Or other ones were named for it before,
                since the store was opened.
            QueueShutDown: the store is closed.
        """
        check_topic_name(name, self._store_engine.topics)
        check_store_options(options, f"store.topic({name!r}, {{}})")
        self._store_engine.check()
        engine = self._store_engine.engine(name, options)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(self._store_engine, engine)
        return topic

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
        check_name(name)
        check_channel_options(channel, f"store.queue({name!r}, {{}})")
        check_store_options(options, f"store.queue({name!r}, options={{}})")
        topic = self.topic(name, options)
        return Queue(topic, topic.channel(_CHANNEL, channel))

    def topics(self) -> list[str]:
        """Return the names of the topics that have a message or a channel, or had one."""
        return sorted(name for name, engine in self._store_engine.topics.items() if engine.creation.exists)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels and everything in it. One that does not exist is fine.

        Raises:
            InvalidNameError: no such name may be.
            StorageError: it could not be deleted.

        Cancellation: it is done all the same.
        """
        check_name(name)
        self._store_engine.check()
        self._topics.pop(name, None)
        await self._store_engine.delete_topic(name)

    def transaction(self) -> Transaction:
        """Return a transaction: `async with store.transaction() as tx`, with `tx.ack` and `tx.put` in the block.

        Raises:
            QueueShutDown: the store is closed.
        """
        self._store_engine.check()
        transaction = Transaction(self._store_engine)
        transaction.store_ref = self._store_ref
        return transaction

    async def requeue_dead(
        self, topic: str, *, where: Callable[[Message], bool] | None = None, limit: int | None = None
    ) -> int:
        """Put dead letters back to the channels that gave them up, each to that one alone; return how many.

        The other channels of its topic do not see a message again. It is as it was put (body, tag, key and headers), at
        a new offset, in the order of the letters; its attempts begin anew. Letters are put back and settled in
        transactions of up to 100: interrupted anywhere, each is in one place and not in the other. What is in flight
        or deferred stays, and so does a letter whose channel is not there any more, or which names none.

        Args:
            topic: the dead-letter topic's name. Its only channel is meant, or else `default`. One that is not there
                has no letters, and is not made.
            where: called with each letter; only those go back for which it is true. `message.headers` has the reason.
            limit: how many at most; None for all.

        Raises:
            InvalidNameError: no topic's name.
            InvalidOptionError: `limit` is of no use; a `TypeError` too where it is of another type.
            QueueShutDown: the store is closed.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Earlier transactions stand.
            WrongContextError: inside a transaction's block: this has its own.
            StorageError: a letter could not be read, or not be put back. Earlier transactions stand.
            StoreFailedError: the store has stopped.

        Cancellation: a letter is back or not, and the rest stays.
        """
        if limit is not None:
            check_whole("limit", limit, least=0, example=100)
        if where is not None and not callable(where):
            raise InvalidOptionTypeError(
                f"where is a function of a letter, such as `lambda letter: letter.tag == 'paid'`, not {where!r}"
            )
        check_topic_name(topic, self._store_engine.topics)
        self._store_engine.check()
        if topic not in self.topics():
            return 0
        return await requeue_letters(self._store_engine, self.topic(topic), where, limit)

    def events(self) -> Events:
        """Return what happens in the store from now on, behind what happened at its opening: `async for event in …`.

        There may be any number of listeners, each with a buffer of its own: 10,000 events; what is beyond that is
        dropped, the oldest first, and counted by the iterator's `dropped`. It ends when the store is closed. Where
        nobody listens, nothing is done.

        Raises:
            QueueShutDown: the store is closed.

        Cancellation: waiting for the next event can be cancelled; none is lost.
        """
        self._store_engine.check_context()
        return self._store_engine.reporter.listeners.listen()

    def health(self) -> Health:
        """Return whether the store is well, and if not, why. No I/O; also of a store that has failed.

        It is not well where it has failed, where a write was refused for want of space, where less than 32 MiB are
        free, where a sync took longer than a second within about the last minute, or where an alarm of
        `StoreOptions.alarms` is raised.
        """
        return health(self._store_engine)

    def stats(self) -> StoreStats:
        """Return the store's numbers. No I/O."""
        failure = self._store_engine.failure
        topics = {
            name: Topic(self._store_engine, engine).stats()
            for name, engine in sorted(self._store_engine.topics.items())
            if engine.creation.exists or engine.creation.failed
        }
        return StoreStats(
            self.path,
            None if failure is None else str(failure),
            topics,
            self._store_engine.committer.committed,
            BACKEND,
        )

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Refuse puts from now on, and wait until consumers have worked off what there is.

        Whoever iterates over a channel comes to the end once nothing is ready. What is deferred stays for the next time
        the store is opened; dead letters still reach their topics. The store is open until `aclose`. What nsqd lacks
        (nsq#1302).

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Returns:
            Whether nothing is ready or in flight any more, in any channel.

        Raises:
            InvalidOptionError: no span of time; a `TypeError` too where it is of another type. Nothing was done.
            StorageError: the files of a topic or a channel could not be made.
            StoreFailedError: the store has stopped.

        Cancellation: puts stay refused.
        """
        self._store_engine.check()
        wait = None if timeout is None else span_seconds("timeout", timeout, past=True)
        ioloops = [one for one in self._store_engine.topics.values() if one.creation.exists and one.unusable is None]
        for engine in ioloops:
            engine.put_buffer.shut_down()
        try:
            async with asyncio.timeout(wait):
                await asyncio.gather(*(_drained(engine) for engine in ioloops))
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

        Puts are accepted until handlers have ended, so that these can hand on what they made. Repeating it is safe; the
        shortest grace counts. Called by a handler, it returns at once, and the rest goes on.

        Args:
            grace: seconds, or a `timedelta`, for what is under way; 0 cancels at once.

        Raises:
            InvalidOptionError: no such time; a `TypeError` too where it is of another type. Nothing was done.
            StoreFailedError: what was accepted could not be made durable.
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

    async def aclose(self) -> None:
        """Finish what was accepted, make it durable, release the directory. Repeating it is safe.

        Whoever waits for a message or for room gets `QueueShutDown`.

        Raises:
            StoreFailedError: what was accepted could not be made durable.

        Cancellation: it goes on in the store's own task; awaiting again is safe.
        """
        await self._store_engine.close()

    async def __aenter__(self) -> Self:
        """Return the store."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()


async def _drained(engine: TopicEngine) -> None:
    await engine.settle_in()
    channel_engines = list(engine.channel_engines.values())
    for channel_engine in channel_engines:
        channel_engine.shut_down(immediate=False)
    for channel_engine in channel_engines:
        await channel_engine.join(deferred=False)


class _Manner(NamedTuple):
    """How a store is opened: by which call, whether it may be made, and the seconds to wait for its lock."""

    call: str
    create: bool
    wait: float


class StoreOpening(AsyncBlock):
    """What `aiodq.open` returns: awaitable, and an asynchronous context manager."""

    def __init__(self, path: str, options: StoreOptions | None, seams: Seams, manner: _Manner) -> None:
        """Made by `aiodq.open`."""
        self._path = path
        self._options = options
        self._seams = seams
        self._manner = manner
        self._begun = False
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        """Open the store.

        Raises:
            StoreLockedError: another owner has it, and did not let go within `wait`; `pid` tells which.
            StoreNotFoundError: there is no store, and `create` is False.
            NotAStoreError: the directory holds something else.
            FormatVersionError: a newer aiodq wrote it; it was left untouched.
            StorageError: the system refused.

        Cancellation: what was opened is closed again.
        """
        return self._open().__await__()

    def __repr__(self) -> str:
        """Say what would be opened."""
        return f"<StoreOpening {self._path!r}{'' if self._begun else ' not awaited yet'}>"

    async def _open(self) -> Store:
        self._begun = True
        store_engine = StoreEngine(self._path, self._options, self._seams)
        await store_engine.open(Message, create=self._manner.create, wait=self._manner.wait)
        return Store(store_engine)

    async def __aenter__(self) -> Store:
        """Open the store."""
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        if self._store is not None:
            await self._store.aclose()

    def not_awaited(self, called: str, use: str) -> NotAwaitedError:
        """Return the error for `use` of what is not open yet."""
        self._begun = True  # who reads this need not be told again
        call = f"{self._manner.call}({self._path!r})"
        return NotAwaitedError(
            f'{call} is not open yet: write "async with {call} as {called}:" or "{called} = await {call}", '
            f"and then {use}"
        )

    def __del__(self) -> None:
        """Warn where nothing was opened, as of a coroutine that was never awaited."""
        if not self._begun:
            warnings.warn(f"{self._manner.call}({self._path!r}) was never awaited", RuntimeWarning, 2, source=self)

    if not TYPE_CHECKING:  # a checker shall go on finding the missing await

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is missing where the opening is taken for the store."""
            if name.startswith("_") or not hasattr(Store, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise self.not_awaited("store", f"store.{name}")


class QueueOpening(AsyncBlock):
    """What `aiodq.open_queue` returns: awaitable, and an asynchronous context manager."""

    def __init__(self, opening: StoreOpening, options: StoreOptions | None, channel: ChannelOptions | None) -> None:
        """Made by `aiodq.open_queue`."""
        self._opening = opening
        self._options = options
        self._channel = channel
        self._queue: Queue | None = None

    def __await__(self) -> Generator[Any, None, Queue]:
        """Open the queue's store. *Raises* and *Cancellation* as `StoreOpening`."""
        return self._open().__await__()

    def __repr__(self) -> str:
        """Say what would be opened."""
        return repr(self._opening).replace("StoreOpening", "QueueOpening", 1)

    async def _open(self) -> Queue:
        store = await self._opening
        try:
            topic = store.topic(QUEUE_TOPIC, self._options)
            queue = Queue(topic, topic.channel(_CHANNEL, self._channel), store.aclose)
            await topic.settle_in()
            queue.check()
        except BaseException:
            await store.aclose()
            raise
        return queue

    async def __aenter__(self) -> Queue:
        """Open the queue."""
        self._queue = await self._open()
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        if self._queue is not None:
            await self._queue.aclose()

    if not TYPE_CHECKING:  # as above

        def __aiter__(self) -> NoReturn:
            """Say what is missing where the opening is taken for the queue."""
            raise self._opening.not_awaited("queue", "async for message in queue")

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is missing where the opening is taken for the queue."""
            if name.startswith("_") or not hasattr(Queue, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise self._opening.not_awaited("queue", f"queue.{name}")


def open(
    path: str | PathLike[str], options: StoreOptions | None = None, *, create: bool = True,
    wait: float | timedelta = 0.0, fs: FileSystem | None = None, clock: Clock | None = None,
    executor: Executor | None = None,
) -> StoreOpening:  # fmt: skip
    """Open a store: `async with aiodq.open(path) as store`, or `store = await aiodq.open(path)`.

    Args:
        path: a directory, created if missing and locked by this process until the store is closed.
        options: see `StoreOptions`.
        create: False to open only a store that is there, not make one in a directory that is missing or empty, as a
            volume is that was not mounted.
        wait: seconds, or a `timedelta`, to wait for another process to let go of the store.
        fs: the file system; for tests.
        clock: the clocks; for tests.
        executor: the threads for blocking work, instead of the store's own; it is shut down with the store; for tests.

    Raises:
        InvalidOptionError: `wait` is no time, or the path begins with `~`.
    """
    check_store_options(options, "aiodq.open(path, {})")
    manner = _manner("aiodq.open", wait, create=create)
    seams = Seams(fs or OsFileSystem(), clock or SystemClock(), executor)
    return StoreOpening(_absolute(path), options, seams, manner)


def open_to_tend(path: str, *, create: bool, wait: float) -> StoreOpening:
    """Open a store as the command line does: by the options on disk, and by no defaults where there are none.

    Whoever looks after a store does not know what its program names: what is there stays until that runs again.
    """
    seams = Seams(OsFileSystem(), SystemClock(), keeps=True)
    return StoreOpening(_absolute(path), None, seams, _manner("aiodq.open", wait, create=create))


def open_queue(
    path: str | PathLike[str], options: StoreOptions | None = None, channel: ChannelOptions | None = None, *,
    create: bool = True, wait: float | timedelta = 0.0, fs: FileSystem | None = None, clock: Clock | None = None,
    executor: Executor | None = None,
) -> QueueOpening:  # fmt: skip
    """Open a queue in a store of its own: `async with aiodq.open_queue(path) as queue`.

    Args:
        path: a directory, created if missing and locked by this process until the queue is closed.
        options: see `StoreOptions`.
        channel: see `ChannelOptions`.
        create: see `open`.
        wait: see `open`.
        fs: the file system; for tests.
        clock: the clocks; for tests.
        executor: the threads for blocking work, instead of the store's own; it is shut down with the store; for tests.

    Raises:
        InvalidOptionError: `wait` is no time, or the path begins with `~`.
    """
    check_store_options(options, "aiodq.open_queue(path, {})")
    check_channel_options(channel, "aiodq.open_queue(path, channel={})")
    manner = _manner("aiodq.open_queue", wait, create=create)
    seams = Seams(fs or OsFileSystem(), clock or SystemClock(), executor)
    opening = StoreOpening(_absolute(path), options, seams, manner)
    return QueueOpening(opening, options, channel)


def open_reader(path: str | PathLike[str]) -> StoreReader:
    """Look into a store without owning it: synchronous, read-only, no lock, safe while its owner runs.

    Raises:
        StoreNotFoundError: there is no such directory.
        NotAStoreError: the directory holds something else.
    """
    return StoreReader(_absolute(path))


def _manner(call: str, wait: float | timedelta, *, create: bool) -> _Manner:
    check_flag("create", create)
    return _Manner(call, create, span_seconds("wait", wait))


def _absolute(path: str | PathLike[str]) -> str:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        refuse("path", "the name of a directory (str or os.PathLike)", path, "write 'data/jobs'", type_is_wrong=True)
    if "\0" in text or not text:
        raise StorageError(f"path is the name of a directory, not {path!r}: write 'data/jobs'", "")
    if text.startswith("~") and not os.path.lexists(text):
        raise InvalidOptionError(
            f"the path {text!r} begins with '~', which only a shell replaces: "
            f"write os.path.expanduser({text!r}), or {'./' + text!r} for a directory of that name"
        )
    # The lock and the directories are those of the real place, by whatever links it was named.
    return os.path.realpath(text)
