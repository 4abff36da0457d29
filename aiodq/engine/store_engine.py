"""The engine of a store: the lock, the threads, one ioLoop per topic, opening and closing."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from asyncio import _get_running_loop
from contextlib import ExitStack, suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from aiodq.engine.bulk_adoption import Adopting
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.channel.crash_suspects import CrashSuspects
from aiodq.engine.channel.dead_letters import DeadLetterOffice
from aiodq.engine.channel_management import create_channel
from aiodq.engine.deletions import Deletions
from aiodq.engine.emergency_flush import abandon, flush_accepted
from aiodq.engine.futures import as_failure, tell_all
from aiodq.engine.home_loop import BY_THREAD, HomeLoop
from aiodq.engine.lock_wait import running_loop, when_unlocked
from aiodq.engine.loop_turns import LoopTurns
from aiodq.engine.monitoring.metrics import StoreMetrics, SyncTimer
from aiodq.engine.monitoring.reporter import STORE, Reporter
from aiodq.engine.monitoring.watch import Watch
from aiodq.engine.opening import make_log, open_store
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.stats.alarms import Thresholds
from aiodq.engine.stats.stats_publisher import StatsPublisher
from aiodq.engine.store_refs import StoreRef
from aiodq.engine.sync_backend import SyncBackend, SystemSyncs
from aiodq.engine.ticker import Ticks
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.engine.transactions.group_committer import Committer
from aiodq.engine.transactions.task_transactions import OpenTransactions
from aiodq.engine.worker_threads import WorkerThreads
from aiodq.errors import AiodqError, InvalidNameError, StoreFailedError, WrongContextError
from aiodq.format.codecs import codec_number
from aiodq.names import check_topic_name, is_ephemeral
from aiodq.options import StoreOptions, ephemeral
from aiodq.storage.io.file_pool import PooledFileSystem
from aiodq.storage.io.kernel_aio import KernelAio
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.io.memory import MemoryFileSystem
from aiodq.storage.state.parked_transactions import drop_owed
from aiodq.storage.state.stored_options import holding
from aiodq.storage.state.watermark import WATERMARK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor
    from contextlib import AbstractAsyncContextManager

    from aiodq.clock import Clock
    from aiodq.engine.channel.dead_letters import DeadLetter
    from aiodq.engine.channel.message_lease import Makers
    from aiodq.engine.opened_files import OpenedStore, OpenedTopic
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.store_identity import StoreIdentity
    from aiodq.storage.state.stored_options import StoredOptions

__all__ = ["Seams", "StoreEngine"]

_LIVE: Final[weakref.WeakSet[StoreEngine]] = weakref.WeakSet()


class Seams(NamedTuple):
    """The parts that tests replace, and how a store is owned.

    Attributes:
        fs, clock: the file system, and the clock.
        executor: the threads; None for the store's own.
        kernel: makes the backend that syncs without a thread.
        keeps: whether nothing is deleted from a topic without options on disk, whatever is done with it.
    """

    fs: FileSystem
    clock: Clock
    executor: Executor | None = None
    kernel: Callable[[], SystemSyncs] | None = KernelAio
    keeps: bool = False


class StoreEngine:
    """The engine behind a `Store`.

    Attributes:
        path: the store's directory.
        given: the options that the store was opened with, or None.
        options: those, or the library's defaults: for what does not belong to a topic.
        keeps: see `Seams`.
        fs, clock, threads, syncs: the file system, the clock, the threads, and the sync backend.
        loop, turns, ticks: see `TopicEngineHost`.
        reporter: reports events.
        metrics: the metrics of the store.
        thresholds: the alarms.
        topics: the running ioLoops, by topic.
        transactions: the open transactions.
        deletions: those of topics and channels.
        failure: why the store stopped, or None.
        draining: whether no topic accepts puts any more, including topics named from now on.
        reclaiming: whether messages in flight under an earlier owner may still be claimed; nothing is settled then.
    """

    def __init__(self, path: str, options: StoreOptions | None, seams: Seams) -> None:
        """Prepare to `open`. Must be called on the loop that will use the store."""
        self.path = path
        self.given: StoreOptions | None = options
        self.options: StoreOptions = options or StoreOptions()
        self.keeps: bool = seams.keeps
        self._files = PooledFileSystem(seams.fs, frozenset({WATERMARK}))
        self.fs: FileSystem = self._files
        self.clock: Clock = seams.clock
        self.loop: asyncio.AbstractEventLoop = running_loop()
        self.home: HomeLoop = HomeLoop(self.loop)
        self.turns: LoopTurns = LoopTurns(self.loop)
        self.ticks: Ticks = Ticks(self.loop)
        self.threads: WorkerThreads = WorkerThreads(self.loop, seams.executor, self.fail)
        self.syncs: SyncBackend = SyncBackend(self.loop, self.threads, self.fail, self.options, seams.kernel)
        self.reporter: Reporter = Reporter(path)
        self.metrics: StoreMetrics = StoreMetrics(self.clock, self.reporter)
        self.topics: dict[str, TopicEngine] = {}
        self.transactions: OpenTransactions = OpenTransactions(self)
        self.crash_suspects: CrashSuspects = CrashSuspects()
        self.failure: StoreFailedError | None = None
        self.closing: bool = False
        self.forked: bool = False
        self.draining: bool = False
        self.reclaiming: bool = False
        self._opening = threading.Lock()
        self._opened: OpenedStore | None = None
        self._committer: Committer | None = None
        self._memory = MemoryFileSystem()
        self._given_up = False
        self._wanted: asyncio.Queue[TopicEngine | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closed: asyncio.Task[None] | None = None
        self._store_ref: weakref.ref[StoreRef] | None = None
        self._dropped = False
        self.deletions: Deletions = Deletions(self)
        self._dead_letter_office = DeadLetterOffice(self.clock, self.fail)
        self._adopting = Adopting(self, path)
        self._stats_publisher = StatsPublisher(self.fs, path, self.topics, self.threads, self.clock)
        self.thresholds: Thresholds = Thresholds(
            self.options.alarms, self.topics, self.clock, self.metrics, self.reporter
        )
        self._watch = Watch(self.fs, path, self.threads, self.metrics, self.reporter)

    # --- opening

    async def open(self, makers: Makers[Any], *, create: bool = True, wait: float = 0.0) -> None:
        """Take the lock, recover every topic, start the engine.

        Args:
            makers: make messages.
            create: whether a missing store is created.
            wait: seconds to wait for another owner to release it.

        Raises:
            StoreLockedError: another owner has it.
            StoreNotFoundError: there is none, and none is to be created.
            NotAStoreError: the directory is something else.
            StorageError: as mapped from the system's error.
        """
        if self.given is not None:
            codec_number(self.given.compression)
        began = self.clock.monotonic()
        try:
            # A dropped store of this directory is still closing, as after a notebook cell was run again.
            if going := [task for other in list(_LIVE) if (task := other.going(self.path)) is not None]:
                await asyncio.wait(going)
            opened = await when_unlocked(partial(self.threads.call, self._open_unless_given_up, create=create), wait)
            self.reporter.opened(self.clock.monotonic() - began, opened.topics, opened.identity.damages)
            self._start(opened, makers)
        except BaseException:
            self._give_up_opening()
            raise

    def _start(self, opened: OpenedStore, makers: Makers[Any]) -> None:
        if isinstance(opened.lock, StoreLock):  # a simulated disk's directories stay where they are
            self._files.stay(opened.lock.in_place)
            self._watch.stay(opened.lock.removed, self.fail)
        timer = SyncTimer(self.metrics, None)
        self._committer = Committer(opened.transactions, self.threads, self.clock, timer, self.fail)
        for name, topic in opened.topics.items():
            engine = self.start_topic(name, topic, makers)
            if name in opened.brought:
                channels = {acks.channel for acks in opened.brought[name].acks}
                channel_engines = [
                    channel_engine
                    for channel_engine in engine.channel_engines.values()
                    if channel_engine.name in channels
                ]
                self._committer.recovered(engine, channel_engines, topic.left)
        for name in opened.brought.keys() - opened.topics.keys():
            engine = self.new_topic(name)
            self._committer.recovered(engine, (), [puts.columns for _, puts in opened.brought[name].puts])
        self._own_up(opened)
        # The engine has taken over what was brought; kept any longer, it would only take memory.
        self._opened = opened._replace(topics={}, brought={})
        opened.transactions.found.clear()
        self._task = self.loop.create_task(self._run(), name=f"aiodq {self.path}")
        _LIVE.add(self)

    def _own_up(self, opened: OpenedStore) -> None:
        """Report the topics that cannot be used, and go on without them."""
        for name, error in (*opened.unusable.items(), *opened.owing.items()):
            text = f"topic {name!r} cannot be used, and what it is owed is kept: {error}"
            self.reporter.warn(STORE, text, name)
        for name, error in opened.unusable.items():
            self._add(TopicEngine(name, self.options, self, None, unusable=error))
        for name, error in opened.owing.items():
            with suppress(InvalidNameError):  # of an older aiodq; no topic can be called so any more
                self.new_topic(check_topic_name(name)).creation.refused(error)
                self._adopting.owing.add(name)
        self._adopting.blocked |= opened.blocked
        if opened.taken:
            self.committer.take_up(partial(drop_owed, self.fs, opened.taken))

    @property
    def committer(self) -> Committer:
        """The committer of transactions."""
        if self._committer is None:
            raise QueueShutDown("the store is not open")
        return self._committer

    def without_transactions(self) -> AbstractAsyncContextManager[None]:
        """See `TopicEngineHost.without_transactions`."""
        return self.committer.without_transactions()

    def _open_unless_given_up(self, *, create: bool) -> OpenedStore:
        opened = open_store(self.fs, self.clock, self.path, self.given, create=create)
        with self._opening:
            self._opened = opened
            if self._given_up:
                opened.abandon()
        return opened

    def _give_up_opening(self) -> None:
        """Close what was opened, as nobody waits for the store any more; a thread still opening it does so itself."""
        self._files.retire()
        with self._opening:
            self._given_up = True
            if self._opened is not None:
                self._opened.abandon()
        self.syncs.close()
        self.threads.shutdown(wait=False)

    def start_topic(self, name: str, topic: OpenedTopic, makers: Makers[Any]) -> TopicEngine:
        """Start a topic's ioLoop, with the channels and options found on disk."""
        meta = topic.log.meta
        engine = self._add(TopicEngine(name, holding(None, meta.options, self.given), self, topic.log))
        paused = meta.paused
        engine.paused = "" in paused
        for channel, (journal, state) in topic.channels.items():
            channel_engine = self.channel_engine(engine, channel, makers)
            channel_engine.configure(meta.channel_options.get(channel, channel_engine.options))
            channel_engine.pause(paused=channel in paused)
            if self.reclaiming:
                channel_engine.reclaim(under_way=True)
            channel_engine.attach(journal, state)
            engine.attached(channel_engine)
        return engine

    def engine(self, name: str, options: StoreOptions | None = None) -> TopicEngine:
        """Return the ioLoop of a topic that was named, started if it is new.

        Raises:
            InvalidOptionError: options are named, and others were before.
            MissingExtraError: a codec is not installed.
        """
        engine = self.topics.get(name) or self.new_topic(name)
        if options is None:
            engine.effective_options.ask()
        else:
            engine.effective_options.name(options)
        return engine

    def new_topic(self, name: str) -> TopicEngine:
        """Start an ioLoop for a topic whose files the first message or channel will create."""
        options = holding(None, None, self.given)
        return self._add(TopicEngine(name, ephemeral(options) if is_ephemeral(name) else options, self, None))

    def unnamed(self, name: str) -> TopicEngine:
        """Return the ioLoop of a topic that was not named here, started if it is new."""
        return self.topics.get(name) or self.new_topic(name)

    def _add(self, engine: TopicEngine) -> TopicEngine:
        self.topics[engine.name] = engine
        if engine.unusable is not None:
            return engine
        if self.draining:
            engine.put_buffer.shut_down()
        deletion = self.deletions.under_way(engine.name)
        if deletion is None:
            self._wanted.put_nowait(engine)
        else:
            # Its files must not be created in a directory that is about to be deleted.
            deletion.add_done_callback(lambda _: self._wanted.put_nowait(engine))
        return engine

    def fs_of(self, *names: str) -> FileSystem:
        """See `TopicEngineHost.fs_of`."""
        return self._memory if any(map(is_ephemeral, names)) else self.fs

    def identity_for(self, topic: str) -> StoreIdentity | None:
        """Return the identity that a topic's creation makes and its deletion drops; None for a topic in memory."""
        return None if self._opened is None or is_ephemeral(topic) else self._opened.identity

    async def delete_topic(self, name: str) -> None:
        """See `Deletions.topic`.

        Cancellation: the topic is deleted all the same.
        """
        await self.deletions.topic(name, self.topics.pop(name, None))

    def make_log(self, name: str, record: StoredOptions) -> TopicLog:
        """See `TopicEngineHost.make_log`."""
        return make_log(self.fs_of(name), self.clock, self.path, name, record, self.identity_for(name))

    def channel_engine(self, engine: TopicEngine, channel: str, makers: Makers[Any]) -> ChannelEngine[Any]:
        """Return a topic's channel, created without a state if it is new."""
        found = engine.channel_engines.get(channel)
        if found is None:
            found = ChannelEngine(channel, engine, makers, self.clock, self.home)
            found.store_ref = self.store_ref
            engine.channel_engines[channel] = found
        return found

    def create_channel(
        self, engine: TopicEngine, channel_engine: ChannelEngine[Any], start: Callable[[TopicLog], int]
    ) -> None:
        """See `aiodq.engine.channel_management.create_channel`."""
        create_channel(self.fs_of(engine.name, channel_engine.name), engine, channel_engine, start)

    def send_dead_letter(self, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """See `TopicEngineHost.send_dead_letter`."""

        def told(error: Exception | None) -> None:
            done(error)
            if error is None:
                offset = letter.batch.first
                self.reporter.dead(
                    letter.topic, letter.channel, offset, letter.attempts, letter.reason, target=letter.target
                )

        self._dead_letter_office.send(letter, self.engine(letter.target).put_buffer, told)

    # --- running

    def check(self) -> None:
        """Raise if the store cannot be used from here and now.

        Raises:
            StoreFailedError: it has failed.
            QueueShutDown: it is closed.
            WrongContextError: see `check_context`.
        """
        if self.failure is not None:
            raise self.failure.again()
        self.check_context()
        if self.closing:
            raise QueueShutDown("the store is closed")

    def check_context(self) -> None:
        """Raise if the caller may not use the store.

        Raises:
            WrongContextError: it is on another loop, in another thread, or in a forked child.
        """
        home = self.home
        if get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop:
            return
        if self.forked:
            raise WrongContextError(
                "this store was opened before a fork, and is the parent's: open one in the child after the fork, "
                "once the parent has closed its own"
            )
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongContextError(
                "this store is to be used on the event loop that opened it, not from another thread or without a loop: "
                "from a thread, asyncio.run_coroutine_threadsafe(topic.put(body), loop).result()"
            ) from None
        if here is not self.loop:
            raise WrongContextError(
                "this store was opened on another event loop than the one that runs here: open it in the "
                "asyncio.run(...) that uses it, and once for each"
            )

    def fail(self, error: Exception) -> None:
        """Stop the store for this reason, and fail everyone who waits."""
        if self.failure is not None:
            return
        failure = self.failure = as_failure(error, self.path)
        ioloops = [engine.fail for engine in (*self.topics.values(), *self.deletions.ending)]
        committer = [] if self._committer is None else [self._committer.fail]
        tell_all(failure, [*committer, *ioloops, lambda _: self.reporter.failed(failure)])

    async def _run(self) -> None:
        """Own the ioLoops until the store is closed. If cancelled, as the loop is ending, save what was accepted."""
        try:
            async with anyio.create_task_group() as tasks:
                for run in (self.committer.run, self._adopting.run, self._stats_publisher.run, self._watch.run):
                    tasks.start_soon(self._guarded, run)
                if self.options.alarms:
                    tasks.start_soon(self._guarded, self.thresholds.run)
                while (engine := await self._wanted.get()) is not None:
                    tasks.start_soon(self._guarded, engine.io_loop.run)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - as in `_guarded`
            self.fail(error)
        finally:
            self._end()

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            self.fail(error)

    def _end(self) -> None:
        """Release everything, whatever its state. Blocking, as no task is left to wait for."""
        if self.forked:
            return  # the files and the lock are the parent's
        self._begin_closing()
        self.ticks.end()
        self.syncs.close()
        self.threads.shutdown()
        with ExitStack() as ending:
            ending.callback(_LIVE.discard, self)
            ending.callback(self._files.retire)
            ending.callback(self._unlock)
            ending.callback(self._stats_publisher.end)
            for engine in (*self.topics.values(), *self.deletions.ending):
                if not engine.closed:
                    ending.callback(self._flush_accepted, engine)
        self.reporter.end()
        if not self.loop.is_closed():  # on a closed loop nobody can be woken any more
            self.reporter.listeners.end()

    def release_if_dead(self) -> None:
        """Release everything if the event loop was closed under the store, so that its own tasks cannot."""
        if self.loop.is_closed() and self in _LIVE:
            self._end()

    def _flush_accepted(self, engine: TopicEngine) -> None:
        error: Exception = self.failure or QueueShutDown("the event loop ended before the store was closed")
        try:
            if self.failure is None:
                flush_accepted(engine, self.clock)
        except AiodqError as cause:
            error = cause
        except Exception as cause:  # noqa: BLE001 - whatever it is, nobody is left waiting
            error = as_failure(cause, self.path)
        engine.fail(error)
        with suppress(AiodqError):
            abandon(engine)

    def _unlock(self) -> None:
        if self._opened is not None:
            self._opened.abandon()

    # --- ending

    def refuse_puts(self) -> None:
        """Accept no more puts to any topic; dead letters are still accepted, and acks go on."""
        self.draining = True
        for engine in self.topics.values():
            if engine.unusable is None:
                engine.put_buffer.shut_down()

    def store_ref(self) -> object:
        """Return the reference that a handle holds to keep the store open; None if it is being dropped already."""
        if self._store_ref is None:
            store_ref = StoreRef(self)
            self._store_ref = weakref.ref(store_ref)
            return store_ref
        return self._store_ref()

    def dropped(self) -> None:
        """Warn that no handle is left, finish what was accepted, and release the directory."""
        if self.close_asked or self.forked:
            return
        self._dropped = True
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop is closed
            self.release_if_dead()
        if self.failure is None:
            warnings.warn(f"store was never closed [{self.path}]", ResourceWarning, 3, source=self)

    def _let_go(self) -> None:
        if self._closed is None and self in _LIVE:
            self._begin_closing()
            self._closed = self.loop.create_task(self._close())
            self._closed.add_done_callback(self._gone)

    def _gone(self, closed: asyncio.Task[None]) -> None:
        error = None if closed.cancelled() else closed.exception()
        if error is not None:
            text = f"a store that was never closed could not be closed as it should [{self.path}]"
            self.loop.call_exception_handler({"message": text, "exception": error})

    def going(self, path: str) -> asyncio.Task[None] | None:
        """Return the task that closes the store of this directory, if it was dropped on the running loop."""
        if self.path == path and self._dropped and self.loop is asyncio.get_running_loop():
            self._let_go()
            return self._closed
        return None

    async def close(self) -> None:
        """Finish what was accepted, make it durable, release everything. Repeated calls wait for the same end.

        Raises:
            StoreFailedError: it could not be made durable.

        Cancellation: closing goes on in the store's own task.
        """
        self.check_context()
        if self._closed is None:
            self._begin_closing()
            self._closed = self.loop.create_task(self._close())
        await asyncio.shield(self._closed)

    def _begin_closing(self) -> None:
        self.closing = True
        self._stop_inline()

    def _stop_inline(self) -> None:
        """Have every put and get check whether the store may be used."""
        for engine in (*self.topics.values(), *self.deletions.ending):
            engine.group_commit.hinder()
            for channel_engine in list(engine.channel_engines.values()):
                channel_engine.halt()

    @property
    def usable(self) -> bool:
        """See `TopicEngineHost.usable`."""
        return self.failure is None and not self.closing and not self.forked

    @property
    def standing(self) -> str:
        """The store's state in a word, for status displays."""
        if self.failure is not None:
            return "failed"
        if self.forked:
            return "of the parent process"
        if self._closed is not None and self._closed.done():
            return "closed"
        return "closing" if self.closing else "open"

    @property
    def close_asked(self) -> bool:
        """Whether `close` was called."""
        return self._closed is not None

    async def _close(self) -> None:
        results: list[BaseException | None] = []
        results += await asyncio.gather(self.deletions.end(), return_exceptions=True)
        results += await asyncio.gather(self._dead_letter_office.close(), return_exceptions=True)
        if self.failure is None:
            results += await asyncio.gather(self.committer.close(), return_exceptions=True)
        if self.failure is None:
            closings = [engine.close() for engine in list(self.topics.values())]
            results += await asyncio.gather(*closings, return_exceptions=True)
        self._wanted.put_nowait(None)
        if self._task is not None:
            await asyncio.wait([self._task])
            results.append(None if self._task.cancelled() else self._task.exception())
        for result in results:
            if isinstance(result, BaseException):
                raise result if isinstance(result, AiodqError) else as_failure(result, self.path)

    def after_fork(self) -> None:
        """Mark the store as unusable in a forked child."""
        self.forked = True
        self.home.leave()
        self._stop_inline()


def _mark_children() -> None:
    for store_engine in list(_LIVE):
        store_engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_children)
