"""The engine of a topic: its parts, its interface to channels and handles, and its end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from aiodq.engine.channel.acks.ack_persister import AckPersister, Job, close_all
from aiodq.engine.lifetimes import Lifetimes
from aiodq.engine.loop.futures import settle, tell_all, to_its_end
from aiodq.engine.monitoring.metrics import SyncTimer
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.reading.prefetch_reader import PrefetchingReader
from aiodq.engine.reading.tail_cache import TailCache
from aiodq.engine.topic.commit.exclusive_work import ExclusiveWork
from aiodq.engine.topic.commit.group_commit import GroupCommit
from aiodq.engine.topic.commit.io_loop import IoLoop
from aiodq.engine.topic.commit.publisher import Publisher
from aiodq.engine.topic.commit.request_queue import Operation, SyncWanted
from aiodq.engine.topic.commit.segment_writer import SegmentWriter
from aiodq.engine.topic.commit.syncer import Syncer
from aiodq.engine.topic.creation import Creation
from aiodq.engine.topic.effective_options import EffectiveOptions
from aiodq.engine.topic.expirations import Expirations
from aiodq.engine.topic.no_log import NoLog
from aiodq.engine.topic.puts.put_buffer import PutBuffer
from aiodq.engine.topic.retention.overflow import Overflow
from aiodq.engine.topic.retention.purge import Purge
from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion
from aiodq.engine.topic.retention.topic_retention import TopicRetention
from aiodq.errors import WrongContextError, again
from aiodq.options import seconds
from aiodq.storage.log.backlog_bytes import BacklogBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiodq.clock import Clock
    from aiodq.engine.batch.put_batch import Part
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
    from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetter
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.monitoring.activity import Activity
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.errors import StorageError
    from aiodq.options import StoreOptions
    from aiodq.storage.log.topic_log import LogOptions, TopicLog
    from aiodq.storage.read.log_reader import LogView

__all__ = ["TopicEngine"]

P = ParamSpec("P")
T = TypeVar("T")

_LEAST_AHEAD: Final = 1 << 16

_AT_ONCE: Final = 100
"""Channels told of the topic's end in one turn of the loop: a millisecond's work."""


class TopicEngine:
    """The engine of one topic.

    Attributes:
        name: the topic's name.
        log: its log; an empty substitute until the first message or channel creates its files.
        retention: decides which segments are deleted.
        segment_deletion: deletes segments.
        overflow: drops messages if the backlog is over its bound.
        creation: creates its files and its channels.
        put_buffer: the open batch, and the puts that wait for room.
        channel_engines: its channels, by name.
        tail: the newest messages in memory.
        syncer: decides when the log is synced, and counts the syncs.
        visible: the offset up to which channels may deliver. They read it themselves.
        waiting: the channels with waiting getters.
        paused: whether none of its channels delivers.
        in_writer: what the segment writer is writing.
        submitted: the number of operations so far that may change something.
        serial, taken: the serial numbers of the batch opened last, and of the one taken to be written last.
        tick_scheduled: whether the next tick is scheduled.
        writer: writes its segments.
        exclusive_work: the operations that need exclusive use of the log.
        io_loop: decides what is done when.
        durably: whether a message becomes visible only once it is synced.
        group_commit: writes messages to the log.
        abandoned: whether its files were closed, so that what a thread opens later is to be closed at once.
        forgotten: whether it is being deleted, or was: what transactions cannot put into it is dropped.
        publisher: makes what is written visible to channels.
        reporter: reports events.
        metrics: the metrics of the store.
        activity: which topics may have changed, if somebody asks.
        backlog_bytes: returns the bytes of a channel's backlog.
        lifetimes, expirations: when messages expire, and what settles them then.
        unusable: why the topic cannot be used until the store is opened again, although it has files, or that it was
            deleted since; otherwise None.
    """

    serial: int = 0
    taken: int = 0
    submitted: int = 0
    paused: bool = False
    tick_scheduled: bool = False
    stopped: bool = False
    closed: bool = False
    abandoned: bool = False
    forgotten: bool = False

    def __init__(
        self,
        name: str,
        options: StoreOptions,
        host: TopicEngineHost,
        log: TopicLog | None,
        *,
        unusable: StorageError | None = None,
    ) -> None:
        """Serve an opened log, or one that is created only when needed; its ioLoop does the work once it has begun."""
        self.unusable: Exception | None = unusable
        self.name = name
        self.options: StoreOptions = options
        self.log: TopicLog | NoLog = NoLog() if log is None else log
        self.visible: int = self.log.end
        self.channel_engines: dict[str, ChannelEngine[Any]] = {}
        self.waiting: dict[ChannelEngine[Any], None] = {}
        self.tail: TailCache = TailCache(self._quarter)
        self.clock: Clock = host.clock
        self.loop: asyncio.AbstractEventLoop = host.loop
        self.lifetimes: Lifetimes = Lifetimes(host.clock)
        self.reporter: Reporter = host.reporter
        self.metrics: StoreMetrics = host.metrics
        self.activity: Activity[TopicEngine] = host.activity
        self.check_context: Callable[[], None] = host.check_context
        self.without_transactions: Callable[[], AbstractAsyncContextManager[None]] = partial(
            host.without_transactions, name
        )
        self.fail_store: Callable[[BaseException], None] = host.fail
        self.send_dead_letter: Callable[[DeadLetter, Callable[[Exception | None], None]], None] = partial(
            host.send_dead_letter, self
        )
        self.transactions: OpenTransactions = host.transactions
        self.crash_suspects: CrashSuspects = host.crash_suspects
        self._host = host
        self.durably: bool = options.sync == "always"
        self._persister = AckPersister(host.syncs, self, SyncTimer(host.metrics, name), durable=self.durably)
        self.io_loop: IoLoop = IoLoop(self, host, self._persister)
        self.writer: SegmentWriter = SegmentWriter(log, host.clock, host.threads, self.io_loop.wrote)
        exists = log is not None or unusable is not None
        self.creation: Creation = Creation(
            self, lambda: host.make_log(name, self.effective_options.record), exists=exists
        )
        self.reader: PrefetchingReader = PrefetchingReader(host.fs_of(name), host.threads, self.view, self._ahead)
        self.put_buffer: PutBuffer = PutBuffer(self)
        self.segment_deletion: SegmentDeletion = SegmentDeletion(self, self._persister, host)
        self.retention: TopicRetention = TopicRetention(self, self.segment_deletion, self._persister, host)
        self.overflow: Overflow = Overflow(self, self.segment_deletion, host)
        self.publisher: Publisher = Publisher(self)
        self.expirations: Expirations = Expirations(self)
        self.backlog_bytes: BacklogBytes = BacklogBytes()
        wake, timer = self.io_loop.requests.wake, SyncTimer(host.metrics, name)
        self.syncer: Syncer = Syncer(options, host.syncs, timer, wake, self.io_loop.synced, end=self.visible)
        self.exclusive_work: ExclusiveWork = ExclusiveWork(host, wake)
        self.group_commit: GroupCommit = GroupCommit(self, host)
        self.io_loop.requests.on_wake = self.group_commit.stop_inline
        self.effective_options: EffectiveOptions = EffectiveOptions(self, self.creation, host, self._persister)
        self.in_writer: list[Part] = []

    # --- what handles call, on the loop

    def check(self) -> None:
        """Raise if the topic cannot be used (see `TopicEngineHost.check`).

        Raises:
            StorageError: its files cannot be used.
        """
        self._host.check()
        if self.unusable is not None:
            raise copy(self.unusable) from self.unusable
        self.io_loop.requests.check()

    @property
    def store(self) -> str:
        """The store's directory."""
        return self._host.path

    @property
    def standing(self) -> str:
        """The topic's state as one word, for status displays."""
        standing = self._host.standing
        if standing != "open":
            return standing
        if self.stopped:
            return "deleted"
        return "paused" if self.paused else "shut down" if self.put_buffer.shut else "open"

    def view(self) -> LogView:
        """Return the log as far as channels may see it."""
        return self.log.view(self.visible)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is being written, and no operation runs, waits or was asked for."""
        busy = self.group_commit.writing or self.exclusive_work.busy or self.io_loop.requests.asked
        return not (busy or self.stopped)

    def opened(self, *, ready: bool = False) -> None:
        """Note that the open batch is no longer empty; `ready`: nothing has to be created or written before it."""
        self.serial += 1
        self.put_buffer.batch.serial = self.serial
        if not self.tick_scheduled:
            self.schedule_tick()
        if not ready:
            self.creation.create()
            self.retry()
        self.io_loop.requests.wake()

    def retry(self) -> None:
        """Retry what could not be created or written, before anything else is written."""
        self.creation.again()
        self.effective_options.again()

    def turn(self) -> None:
        """See `WholeTopic.turn`."""
        self.io_loop.requests.turn_now()

    def retain_soon(self) -> None:
        """Look for segments to delete as soon as nothing else is under way."""
        self.io_loop.retain_soon()
        self.schedule_tick()

    def retain_if_idle(self) -> bool:
        """Look for segments to delete unless a thread is changing their list; return whether that was done.

        A roll and an operation change the list; a turn of the ioLoop follows both.
        """
        if self.writer.rolling or self.exclusive_work.running:
            return False
        self.retention.retain()
        return True

    def schedule_tick(self) -> None:
        """Have a tick soon: something has changed that it has to look at."""
        if not self.tick_scheduled:
            self.io_loop.ticker.within(seconds(self.options.sync_interval))
            self.tick_scheduled = True
            self.activity.note(self)

    def created(self, log: TopicLog) -> None:
        """Take over the topic's new files."""
        if self.abandoned:
            log.abandon()
            return
        self.log = log
        self.visible = log.end
        self.writer.log = log
        self.expirations.opened()
        self.effective_options.created()

    def refuse(self, error: Exception) -> None:
        """Refuse what was accepted and is not written yet."""
        self.taken = self.serial
        self.syncer.wrote(self.serial, pressing=False)
        if isinstance(self.log, NoLog):
            self.syncer.nothing_to_sync()
        self.put_buffer.refuse_batch(error)

    def real_log(self) -> TopicLog:
        """Return the log, for work on its files.

        Raises:
            StorageError: the topic's files could not be created.
        """
        if isinstance(self.log, NoLog):
            raise again(self.creation.error)
        return self.log

    async def settle_in(self, channel: str | None = None) -> None:
        """Wait until everything accepted before is visible to channels, and new channels and options are on disk.

        Raises:
            StorageError: this channel could not be created, or its options not written; without a name, any channel.

        Cancellation: nothing changes.
        """
        self.retry()
        await self._rest()
        if self.effective_options.coming:
            await self.persist(lambda: None)
        self.creation.check(channel)
        self.effective_options.check(channel)

    def catch_up(self) -> None:
        """Do at once what the next turn of the ioLoop would do, for a caller that looks for just accepted messages.

        This is at most one small write. Nothing is written under `"always"`, where messages become visible once they
        are synced, and nothing is done for another thread, which may only read.
        """
        if self.durably:
            self.note_synced()
        elif not self.io_loop.in_turn and self.put_buffer.pending:
            with suppress(WrongContextError):
                self.check_context()
                # INVARIANT: only from its first turn on, which comes after the deletion of an earlier one of its name.
                self.turn()

    def note_synced(self) -> None:
        """Take note of syncs that have ended, before the loop is woken for them; nothing is written.

        INVARIANT: if the thread that synced a put has answered its producer (`aiodq.shared.server.early_answers`), then
        the producer, and anyone whom it tells, finds the message in the topic.
        """
        if self.put_buffer.pending and not self.io_loop.in_turn:
            with suppress(WrongContextError):
                self.check_context()
                self._host.threads.tell_ended()

    @property
    def pending(self) -> int:
        """See `ChannelEngineHost.pending`."""
        return self.put_buffer.pending

    def configure(self, options: StoreOptions, log: LogOptions) -> None:
        """Apply other options."""
        self.group_commit.hinder()
        self.options = options
        self.durably = self._persister.durable = options.sync == "always"
        self.syncer.options = options
        self.tail.limit = self._quarter
        self.put_buffer.configure()
        if not isinstance(self.log, NoLog):
            self.log.configure(log)
            self.tick_scheduled = False  # a tick after an earlier interval, which was longer, would come too late
            self.schedule_tick()

    @property
    def _quarter(self) -> int:
        """Half of the memory beside the write buffer: for the log's tail; the channels' read-ahead has the same."""
        return self.options.memory_bytes // 4

    def _ahead(self) -> int:
        """Return how many bytes each channel may read ahead, given the number of channels."""
        return max(self._quarter // max(len(self.channel_engines), 1), _LEAST_AHEAD)

    def settled(self, channel_engine: ChannelCore) -> None:
        """See `ChannelEngineHost.settled`."""
        self._use()
        self.attached(channel_engine)

    def _use(self) -> None:
        if not self.effective_options.acting:
            self.effective_options.used()

    def attached(self, channel_engine: ChannelCore) -> None:
        """Note that a channel's state is attached, or that something in it was settled."""
        self._persister.settled(channel_engine)
        self.put_buffer.freed()
        self.look_behind(channel_engine)

    def acked(self, channel_engine: ChannelCore) -> None:
        """See `ChannelEngineHost.acked`. What may be deleted by it is looked for once it is written (`look_behind`)."""
        self._use()
        self._persister.settled(channel_engine)
        self.put_buffer.freed()

    def awaited(self, channel_engine: ChannelCore) -> None:
        """See `ChannelEngineHost.awaited`."""
        self._persister.settled(channel_engine)

    def moved(self, offset: int | None = None) -> None:
        """See `ChannelEngineHost.moved`; without an offset, the channel was deleted."""
        self.put_buffer.bound.forget()
        self.publisher.moved()
        if offset is not None:
            self.expirations.look_from(offset)

    def write_now(self, channel_engine: ChannelCore) -> None:
        """See `ChannelEngineHost.write_now`."""
        self._persister.write_now(channel_engine)

    def write_settled(self) -> None:
        """Write and sync what was settled in its channels, as the loop has ended. Blocking.

        Raises:
            StorageError: that of a channel could not be written; that of the others is.
        """
        with ExitStack() as ending:
            for channel_engine in self.channel_engines.values():
                ending.callback(self._persister.write_blocking, channel_engine)

    def settled_elsewhere(self, channel_engine: ChannelCore) -> None:
        """See `ChannelEngineHost.settled_elsewhere`."""
        self._use()
        self._persister.note(channel_engine)
        self.put_buffer.freed()
        self.look_behind(channel_engine)

    def look_behind(self, channel_engine: ChannelCore) -> None:
        """Note that a channel has settled something: the oldest segment may be deleted now, others at the next tick.

        If a put waits for bytes, the others are looked at now, too: segments count until they are deleted.
        """
        if self.retention.passed(channel_engine):
            self.retain_soon()
        if self.options.max_bytes is not None and self.put_buffer.lacks_bytes:
            self.retention.look_for_bytes()
        self.schedule_tick()

    async def purge(self) -> int:
        """Drop everything accepted so far; return the number of messages.

        Cancellation: it is dropped anyway.
        """
        return await Purge(self, self.segment_deletion, self._persister).run() if self.creation.exists else 0

    async def sync(self) -> None:
        """Wait until everything accepted or settled before is on disk.

        Cancellation: it is synced anyway.
        """
        await to_its_end(self._sync())

    async def _sync(self) -> None:
        await self.sync_log()
        await self.persist(lambda: None, acks_first=True)

    async def wait_durable(self) -> None:
        """Wait until every message visible to channels is as durable as the policy makes it.

        Cancellation: it becomes durable anyway.
        """
        if not self.are_durable():
            await self.sync_log()

    def are_durable(self) -> bool:
        """Return whether every message visible to channels is as durable as the policy makes it."""
        return self.log.durable >= self.visible or not (self.durably or self.segment_deletion.pinned is not None)

    async def sync_log(self) -> None:
        """Wait until everything accepted before is on disk.

        Cancellation: it is synced anyway.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.io_loop.requests.ask(SyncWanted(done))
        await done

    def _is_idle(self) -> bool:
        """Return whether everything accepted and asked for before is done."""
        syncer = self.syncer
        under_way = syncer.busy or self.publisher.unsynced or (self.durably and syncer.lagging)
        return self.at_rest and not (under_way or self.put_buffer.pending or syncer.written < self.serial)

    async def _rest(self) -> None:
        """Wait until everything accepted and asked for before is done.

        That changes nothing, and is not counted: channels named after it are created together with those before it.
        """
        if self._is_idle():
            self.turn()  # retention looks in it, as it would in that of a request
            await asyncio.sleep(0)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.put_buffer.close_batch()
        self.io_loop.requests.ask(Operation(lambda: None, lambda _, error: settle(done, None, error), self.serial))
        await done

    async def operate(self, work: Callable[[], T]) -> T:
        """Do `work` with the log at rest, everything accepted before being durable.

        Cancellation: it is completed anyway.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(work, lambda result, error: settle(done, result, error))
        return await done

    def submit(
        self, work: Callable[[], T], finish: Callable[[T, Exception | None], None], after: int | None = None
    ) -> None:
        """Do as `operate`, without waiting; `finish` gets the result, or no result and an error."""
        if after is None:
            self.put_buffer.close_batch()
        told = cast("Callable[[object, Exception | None], None]", finish)
        self.submitted += 1
        self.io_loop.requests.ask(Operation(work, told, self.serial if after is None else after))

    async def persist(self, work: Callable[[], T], *, acks_first: bool = False, regardless: bool = False) -> T:
        """Have the metadata persister do a job.

        Cancellation: it is completed anyway.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._persister.submit(
            Job(work, lambda result, error: settle(done, result, error), acks_first, regardless=regardless)
        )
        return await done

    async def close(self, over: QueueShutDown | None = None, *, deleted: bool = False) -> None:
        """Finish what was accepted, make everything durable, close the files and end.

        Args:
            over: the error for what is asked later.
            deleted: whether the files are about to be deleted: no time is spent on their being read sooner.
        """
        if self.unusable is not None:
            self.closed, self.unusable = True, over or self.unusable
            self.activity.note(self)
            return
        over = over or QueueShutDown("the store is closed")
        self.put_buffer.shut_down(over)
        await self._tell_channels(lambda channel_engine: channel_engine.end_getters(over))
        await self.operate(lambda: None)
        await self._tell_channels(lambda channel_engine: channel_engine.refuse(over))
        self._persister.closing = True

        def close_journals() -> None:
            close_all(list(self.channel_engines.values()), fold=not deleted)

        await self.persist(close_journals, acks_first=True, regardless=True)
        await self.operate(lambda: self.log.close())  # noqa: PLW0108 - the log may be made until then
        self.reader.close()
        self.closed = True
        self.fail(over)

    async def _tell_channels(self, tell: Callable[[ChannelEngine[Any]], None]) -> None:
        """Call `tell` with each channel, and with those that come meanwhile; some in each turn of the loop."""
        told: dict[ChannelEngine[Any], None] = {}
        while left := [one for one in self.channel_engines.values() if one not in told]:
            if told:
                await asyncio.sleep(0)
            for channel_engine in left[:_AT_ONCE]:
                tell(channel_engine)
                told[channel_engine] = None

    def fail(self, error: Exception) -> None:
        """End: all waiters, and all later calls, get `error`."""
        self.stopped = True
        self.activity.note(self)
        self.expirations.stop()
        self.group_commit.hinder()
        self.io_loop.ticker.end()
        parts = [part.fail for part in self.in_writer]
        own = [self.put_buffer.fail, self.publisher.fail, self.syncer.fail, self.exclusive_work.fail]
        channel_engines = [channel_engine.end for channel_engine in self.channel_engines.values()]
        stop = self.io_loop.requests.close, lambda _: self.io_loop.end()
        tell_all(error, [*parts, *own, self._persister.fail, *channel_engines, *stop])

    def guarded(self, function: Callable[P, object]) -> Callable[P, None]:
        """Return `function` as a callback for the event loop: an exception stops the store, and so does Ctrl-C.

        Only the first call counts, so that it may be scheduled twice: Ctrl-C may come instead of one of them.
        """
        called = False

        def callback(*args: P.args, **kwargs: P.kwargs) -> None:
            nonlocal called
            try:
                if not called:
                    called = True
                    function(*args, **kwargs)
            except BaseException as error:
                self._host.fail(error)
                if not isinstance(error, Exception):
                    raise

        return callback
