"""The engine of a store: what its topics share, the list of topics, and how the store starts, fails and ends."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetterOffice
from aiodq.engine.committing.entries import HeldRun, Letter
from aiodq.engine.committing.group_committer import Committer
from aiodq.engine.live_stores import LIVE, closing_of, release_dead
from aiodq.engine.lock_wait import running_loop
from aiodq.engine.loop.futures import as_failure, surely, tell_all
from aiodq.engine.loop.home_loop import HomeLoop
from aiodq.engine.loop.loop_turns import LoopTurns
from aiodq.engine.loop.sync_backend import SyncBackend, SystemSyncs
from aiodq.engine.loop.ticker import Ticks
from aiodq.engine.loop.worker_threads import WorkerThreads
from aiodq.engine.monitoring.activity import Activity
from aiodq.engine.monitoring.metrics import StoreMetrics, SyncTimer
from aiodq.engine.monitoring.reporter import STORE, Reporter
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.stats.alarms import Thresholds
from aiodq.engine.stats.stats_publisher import StatsPublisher
from aiodq.engine.store.backups import Backups
from aiodq.engine.store.bulk_adoption import Adopting
from aiodq.engine.store.channel_management import create_channel
from aiodq.engine.store.deletions import Deletions
from aiodq.engine.store.emergency_flush import abandon, flush_accepted
from aiodq.engine.store.opening import make_log
from aiodq.engine.store.store_closing import StoreClosing
from aiodq.engine.store.store_opening import StoreOpening
from aiodq.engine.store.store_tasks import StoreTasks, Work
from aiodq.engine.store.taking_over import take_over
from aiodq.engine.store.watch import Watch
from aiodq.engine.store_refs import StoreRefs
from aiodq.engine.topic.no_log import NoLog
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.engine.transactions.task_transactions import OpenTransactions
from aiodq.errors import AiodqError, StorageError, StoreFailedError, StoreNotFoundError
from aiodq.format.codecs import codec_number
from aiodq.names import is_ephemeral
from aiodq.options import StoreOptions, ephemeral
from aiodq.storage.io.file_pool import PooledFileSystem
from aiodq.storage.io.kernel_aio import KernelAio
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.io.memory import MemoryFileSystem
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.state.topic.stored_options import holding
from aiodq.storage.state.watermark import WATERMARK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from concurrent.futures import Executor

    from aiodq.clock import Clock
    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetter
    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.opened_files import OpenedStore
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.store_identity import StoreIdentity
    from aiodq.storage.state.topic.stored_options import StoredOptions

__all__ = ["Seams", "StoreEngine"]

_LONGEST_TURN: Final = 0.001
"""Seconds of one turn of the loop in which topics are taken over."""

_CLOSED_AT_ONCE: Final = 100
"""Topics whose closing begins in one turn of the loop."""


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
        topics: the engines of its topics, by name.
        transactions: the open transactions.
        deletions: those of topics and channels.
        backups: those that are being made.
        failure: why the store stopped, or None.
        draining: whether no topic accepts puts any more, including topics named from now on.
        reclaiming: whether messages in flight under an earlier owner may still be claimed; nothing is settled then.
        activity: see `TopicEngineHost`.
        served: whether it is the owner's part of a shared store, whose handles give the `ResourceWarning`.
        locked: see `LiveStore`.
        at_end: called when it is released, in whatever way it ends.
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
        self.check_context: Callable[[], None] = self.home.check
        self.turns: LoopTurns = LoopTurns(self.loop)
        self.ticks: Ticks = Ticks(self.loop)
        self.threads: WorkerThreads = WorkerThreads(self.loop, seams.executor)
        self.syncs: SyncBackend = SyncBackend(self.loop, self.threads, self.fail, self.options, seams.kernel)
        self.reporter: Reporter = Reporter(path)
        self.metrics: StoreMetrics = StoreMetrics(self.clock, self.reporter, self.loop.time)
        self.topics: dict[str, TopicEngine] = {}
        self.transactions: OpenTransactions = OpenTransactions(self)
        self.crash_suspects: CrashSuspects = CrashSuspects()
        self.failure: StoreFailedError | None = None
        self._cause: BaseException | None = None
        self.closing: bool = False
        self._failed_before = False
        self.draining: bool = False
        self.reclaiming: bool = False
        self.activity: Activity[TopicEngine] = Activity()
        self.served: bool = False
        self.locked: str = ""
        self.at_end: list[Callable[[], None]] = []
        # Their files are closed with the store: until its threads have ended, one may be using them.
        self._lost: list[TopicEngine] = []
        self._opening = StoreOpening(self.fs, self.clock, path, options, self.threads)
        self._committer: Committer | None = None
        self._memory = MemoryFileSystem()
        self._tasks = StoreTasks(self.fail)
        self._closing = StoreClosing(self)
        self.store_ref: Callable[[], object] = StoreRefs(self._closing.dropped).get
        self._dead_letter_office = DeadLetterOffice(self.clock, self.fail)
        self._adopting = Adopting(self)
        self.backups: Backups = Backups(self, self._adopting)
        self.deletions: Deletions = Deletions(self, self.backups)
        self._stats_publisher = StatsPublisher(
            self.fs, path, self.topics, self.activity, threads=self.threads, clock=self.clock
        )
        self.thresholds: Thresholds = Thresholds(
            self.options.alarms, self.topics, self.clock, self.metrics, self.reporter
        )
        self._watch = Watch(self, look=self.syncs.look_for_watchers, tend=self._tell_failure)

    # --- opening

    async def open(self, kind: type[InFlight], *, create: bool = True, wait: float = 0.0) -> None:
        """Take the lock, recover every topic, start the engine.

        Args:
            kind: the class of messages.
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
            with os_errors(self.path):
                # This makes anyio load what the tasks need: if that fails, as without a descriptor, the store stops.
                anyio.create_task_group()
            release_dead(self.path)
            if going := closing_of(self.path):
                await asyncio.wait(going)
            opened = await self._opening.open(create=create, wait=wait)
            self.reporter.opened(self.clock.monotonic() - began, opened)
            await self._start(opened, kind)
        except BaseException:
            self._give_up_opening()
            raise

    async def _start(self, opened: OpenedStore, kind: type[InFlight]) -> None:
        self.threads.fail = self.fail
        if isinstance(opened.lock, StoreLock):  # a simulated disk's directories stay where they are
            self.locked = self.path
            lock = opened.lock
            self._files.stay(lock.in_place)
            self._watch.stay(partial(lock.removed, opened.identity.ruined), lock.displaced, lock.missing, lock.unlinked)
        timer = SyncTimer(self.metrics, None)
        self._committer = Committer(opened.transactions, self.threads, self.clock, timer, self.fail)
        turn_end = self.loop.time() + _LONGEST_TURN
        for _ in take_over(self, opened, kind, self._adopting):
            if self.loop.time() >= turn_end:
                await asyncio.sleep(0)
                turn_end = self.loop.time() + _LONGEST_TURN
        self._opening.taken_over()
        self._tasks.start(self._work(), f"aiodq {self.path}")
        LIVE.add(self)

    def _work(self) -> Work:
        own = self.committer.run, self._adopting.run, self._stats_publisher.run, self._watch.run
        alarms = (self.thresholds.run,) if self.options.alarms else ()
        # Figures are withdrawn after work in threads that nobody waits for any more.
        return Work((*own, *alarms), self._with_ending, self._stats_publisher.withdraw, self._end)

    def _with_ending(self) -> list[TopicEngine]:
        """The engines of all topics, of those that are being deleted too."""
        return [*self.topics.values(), *self.deletions.ending]

    @property
    def committer(self) -> Committer:
        """The committer of transactions."""
        if self._committer is None:
            raise QueueShutDown("the store is not open")
        return self._committer

    @asynccontextmanager
    async def without_transactions(self, topic: str = "") -> AsyncIterator[None]:
        """See `TopicEngineHost.without_transactions`."""
        # INVARIANT: transactions are not held up while waiting for a topic that begins only after the deletion of an
        # earlier topic of its name: that deletion needs to hold them up itself.
        await self.deletions.over(topic)
        async with self.committer.without_transactions():
            yield

    def _give_up_opening(self) -> None:
        over = QueueShutDown("the store was not opened to its end")
        tell_all(over, [engine.fail for engine in self.topics.values()])
        self._files.retire()
        self._opening.give_up()
        self.syncs.close()
        self.threads.shutdown(wait=False)

    def engine(self, name: str, options: StoreOptions | None = None) -> TopicEngine:
        """Return the engine of a topic that was named, started if it is new.

        Raises:
            InvalidOptionError: options are named, and others were before.
            MissingExtraError: a codec is not installed.
        """
        engine = self.unnamed(name)
        if options is None:
            engine.effective_options.ask()
        else:
            engine.effective_options.name(options)
        return engine

    def new_topic(self, name: str) -> TopicEngine:
        """Start the engine of a topic whose files the first message or channel will create."""
        options = holding(None, None, self.given)
        return self.add(TopicEngine(name, ephemeral(options) if is_ephemeral(name) else options, self, None))

    def unnamed(self, name: str) -> TopicEngine:
        """Return the engine of a topic without naming options for it, started if it is new."""
        return self.topics.get(name) or self.new_topic(name)

    def add(self, engine: TopicEngine) -> TopicEngine:
        """Start the engine of a topic, and return it."""
        self.topics[engine.name] = engine
        self.activity.note(engine)
        if engine.unusable is not None:
            return engine
        if self.draining:
            engine.put_buffer.shut_down()
        deletion = self.deletions.under_way(engine.name)
        if deletion is None:
            self._tasks.begin(engine)
        else:
            # Its files must not be created in a directory that is about to be deleted.
            surely(deletion, lambda _: self._tasks.begin(engine))
        return engine

    def fs_of(self, *names: str) -> FileSystem:
        """See `TopicEngineHost.fs_of`."""
        return self._memory if any(map(is_ephemeral, names)) else self.fs

    def identity_for(self, topic: str) -> StoreIdentity | None:
        """Return the identity that a topic's creation makes and its deletion drops; None for a topic in memory."""
        return None if is_ephemeral(topic) else self._opening.identity

    async def delete_topic(self, name: str) -> None:
        """See `Deletions.topic`.

        Cancellation: the topic is deleted anyway.
        """
        await self.deletions.topic(name, self.topics.pop(name, None))

    def keep(self, name: str, error: StorageError) -> None:
        """See `WholeStore.keep`."""
        if (engine := self.topics.pop(name, None)) is not None:
            engine.fail(error)  # it was named while the earlier one was being deleted
        self.add(TopicEngine(name, self.options, self, None, unusable=error))

    def on_disk(self) -> dict[str, TopicEngine]:
        """See `WholeStore.on_disk`."""
        return {
            name: engine
            for name, engine in self.topics.items()
            if not (engine.stopped or isinstance(engine.log, NoLog) or is_ephemeral(name))
        }

    def lose(self, name: str, topic: TopicEngine, segment: str = "") -> None:
        """See `WholeStore.lose`."""
        if self.topics.get(name) is not topic or topic.stopped or self.closing:
            return
        what = f"a segment's file of topic {name!r}" if segment else f"the directory of topic {name!r}"
        text = f"{what} was deleted while the store was open: delete the topic, or open again"
        error = StoreNotFoundError(text, segment or os.path.join(self.path, name))
        topic.closed = True  # there is nothing left to be made durable
        self._lost.append(topic)
        self.keep(name, error)
        self.reporter.warn(STORE, str(error), name)

    def make_log(self, name: str, record: StoredOptions) -> TopicLog:
        """See `TopicEngineHost.make_log`."""
        return make_log(self.fs_of(name), self.clock, self.path, name, record, self.identity_for(name))

    def channel_engine(self, engine: TopicEngine, channel: str, kind: type[InFlight]) -> ChannelEngine[Any]:
        """Return a topic's channel, created without a state if it is new."""
        found = engine.channel_engines.get(channel)
        if found is None:
            found = ChannelEngine(channel, engine, kind, self.clock, self.home)
            found.store_ref = self.store_ref
            engine.channel_engines[channel] = found
        return found

    def create_channel(
        self, engine: TopicEngine, channel_engine: ChannelEngine[Any], start: Callable[[TopicLog], int]
    ) -> None:
        """See `aiodq.engine.store.channel_management.create_channel`."""
        create_channel(self.fs_of(engine.name, channel_engine.name), engine, channel_engine, start)

    def send_dead_letter(self, origin: object, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """See `TopicEngineHost.send_dead_letter`."""

        def told(error: Exception | None) -> None:
            done(error)
            if error is None:
                self.reporter.dead(
                    letter.topic, letter.channel, offset, letter.attempts, letter.reason, target=letter.target
                )

        engine, offset = self.topics.get(letter.topic), letter.batch.first
        if engine is not origin or engine is None:  # there may be another topic of that name by now
            done(QueueShutDown(f"topic {letter.topic!r} was deleted"))
            return
        target = self.engine(letter.target)
        run = HeldRun(engine, engine.channel_engines[letter.channel], offset, offset + 1, 0, letter.held)

        def commit(message: Accepted, body: bytes, cost: int) -> Awaitable[None]:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            return self.committer.settle_dead(Letter(run, message, body, cost, done), target)

        self._dead_letter_office.send(letter, target.put_buffer, commit, told)

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

    def fail(self, error: BaseException) -> None:
        """Stop the store for this reason, and fail all waiters."""
        if self._cause is not None:
            return
        # INVARIANT: it is noted before anything is called. If a call fails on an exhausted stack, the watch goes on.
        self._cause = error
        if isinstance(error, RecursionError):
            # On such a stack, a woken task might never run: the future is done, and its callbacks are lost.
            self.loop.call_soon(self._tell_failure)
        else:
            self._tell_failure()

    def _tell_failure(self) -> None:
        """Fail all waiters, if the store is to stop and that has not been done yet."""
        if self._cause is None or self.failure is not None:
            return
        failure = self.failure = as_failure(self._cause, self.path)
        topics = [engine.fail for engine in self._with_ending()]
        committer = [] if self._committer is None else [self._committer.fail]
        tell_all(failure, [*committer, *topics, self.backups.fail, lambda _: self.reporter.failed(failure)])

    def _end(self) -> None:
        """Release everything, whatever its state. Blocking, as no task is left to wait for."""
        if self.home.forked:
            return  # the files and the lock are the parent's
        self.begin_closing()
        self.ticks.end()
        self.backups.fail(QueueShutDown("the store is closed"))
        self.syncs.close()
        self.threads.shutdown()
        with ExitStack() as ending:
            if not self.loop.is_closed():  # on a closed loop no task can be woken
                ending.callback(self.reporter.listeners.end)
            ending.callback(self.reporter.end)
            ending.callback(LIVE.discard, self)
            ending.callback(self._files.retire)
            ending.callback(self._opening.release)
            ending.callback(self._stats_publisher.end)
            for end in self.at_end:
                ending.callback(end)
            for engine in self._lost:
                ending.callback(_let_go, engine)
            for engine in self._with_ending():
                if not engine.closed:
                    ending.callback(self._flush_accepted, engine)

    def release_if_dead(self) -> None:
        """Release everything if the event loop was closed under the store, so that its own tasks cannot."""
        if self.loop.is_closed() and self.live:
            LIVE.discard(self)
            self._end()

    def _flush_accepted(self, engine: TopicEngine) -> None:
        error: Exception = self.failure or QueueShutDown("the event loop ended before the store was closed")
        try:
            if self.failure is None:
                flush_accepted(engine, self.clock)
        except AiodqError as cause:
            error = cause
        except Exception as cause:  # noqa: BLE001 - whatever it is, no waiter is left
            error = as_failure(cause, self.path)
        engine.fail(error)
        _let_go(engine)

    # --- ending

    def refuse_puts(self) -> None:
        """Accept no more puts to any topic; dead letters are still accepted, and acks go on."""
        self.draining = True
        for engine in self.topics.values():
            if engine.unusable is None:
                engine.put_buffer.shut_down()

    @property
    def cancelled(self) -> bool:
        """See `WholeStore.cancelled`."""
        return self._tasks.cancelled

    @property
    def live(self) -> bool:
        """Whether it is open, and not closed yet."""
        return self in LIVE

    def closing_of(self, path: str) -> asyncio.Task[None] | None:
        """See `LiveStore.closing_of`."""
        return self._closing.under_way() if self.path == path else None

    async def close(self) -> None:
        """Finish what was accepted, make it durable, release everything. Repeated calls wait for the same end.

        Raises:
            StoreFailedError: it could not be made durable.

        Cancellation: closing goes on in the store's own task.
        """
        self.check_context()
        await self._closing.close()

    def begin_closing(self) -> None:
        """Accept nothing from now on."""
        if not self.closing:
            self._failed_before = self.failure is not None
        self.closing = True
        self._stop_inline()

    def _stop_inline(self) -> None:
        """Have every put and get check whether the store may be used."""
        for engine in self._with_ending():
            engine.group_commit.hinder()
            for channel_engine in list(engine.channel_engines.values()):
                channel_engine.halt()

    @property
    def usable(self) -> bool:
        """See `TopicEngineHost.usable`."""
        return self.failure is None and not self.closing and not self.home.forked

    @property
    def inherited(self) -> bool:
        """See `TransactionHost.inherited`."""
        return self.home.forked

    @property
    def standing(self) -> str:
        """The store's state in a word, for status displays."""
        if self.failure is not None:
            return "failed"
        if self.home.forked:
            return "of the parent process"
        if self._closing.over:
            return "closed"
        return "closing" if self.closing else "open"

    async def finish(self) -> None:
        """Finish what was accepted, make it durable, release everything.

        Raises:
            StoreFailedError: something could not be made durable.
        """
        results: list[BaseException | None] = []
        await self.backups.end()
        results += await asyncio.gather(self.deletions.end(), return_exceptions=True)
        results += await asyncio.gather(self._dead_letter_office.close(), return_exceptions=True)
        if self.failure is None:
            results += await asyncio.gather(self.committer.close(), return_exceptions=True)
        if self.failure is None:
            closings: list[asyncio.Task[None]] = []
            for engine in list(self.topics.values()):
                closings.append(self.loop.create_task(engine.close()))
                if not len(closings) % _CLOSED_AT_ONCE:
                    await asyncio.sleep(0)
            results += await asyncio.gather(*closings, return_exceptions=True)
        results.append(await self._tasks.end())
        for result in results:
            # If the loop ended meanwhile, `_end` has written what was accepted: a topic is shut, and nothing is wrong.
            if isinstance(result, BaseException) and not isinstance(result, QueueShutDown):
                if not isinstance(result, AiodqError):
                    raise as_failure(result, self.path)
                if self.failure is None:  # else that is the reason, whatever could not be closed after it
                    raise result
        # Unlike an earlier failure, this one is perhaps known to nobody; and the topics were not asked.
        if self.failure is not None and not self._failed_before:
            raise self.failure.again()

    def after_fork(self) -> None:
        """Mark the store as unusable in a forked child."""
        self.home.leave()
        self.syncs.leave()
        self._stop_inline()


def _let_go(engine: TopicEngine) -> None:
    with suppress(AiodqError):
        abandon(engine)
