"""Group commit: a put is written at once if nothing is in progress; otherwise in one batch with other waiting puts."""

from __future__ import annotations

from asyncio import _get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from aiodq.engine.batch.put_batch import OVERHEAD, Part, PutResult, accepted_cost, columns_of_one
from aiodq.engine.loop.home_loop import BY_THREAD, task_of
from aiodq.engine.topic.commit.commit_delay import CommitDelay
from aiodq.engine.topic.commit.publisher import ShownTopic
from aiodq.engine.topic.commit.syncer import NEVER
from aiodq.errors import AiodqError, StoreFailedError
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.storage.log.active_segment import WRITE_BYTES
from aiodq.storage.log.topic_log import TopicLog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.engine.batch.put_batch import Accepted, OpenBatch
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.commit.exclusive_work import ExclusiveWork
    from aiodq.engine.topic.commit.publisher import Publisher
    from aiodq.engine.topic.commit.segment_writer import SegmentWriter, Written
    from aiodq.engine.topic.creation import Creation
    from aiodq.engine.topic.effective_options import EffectiveOptions
    from aiodq.engine.topic.retention.topic_retention import TopicRetention

__all__ = ["GIVE_WAY", "NOT_NOW", "GroupCommit", "WrittenTopic"]

NOT_NOW: Final = -1
"""Returned in place of an offset if a put has to wait for something, if only for its error."""

GIVE_WAY: Final = -2
"""Likewise, if the caller has held the loop for so long that it is to give way to others first."""

_LONGEST_RUN: Final = 1024
"""Inline puts in a row after which others have their turn even if no time went by, as on a clock that stands still."""

_CROWD: Final = 12
"""The tasks that put in one turn of the loop and still write inline. From some ten on a batch, with all its futures and
its turn, costs less. For 100 bytes: 6.5 microseconds a put of 8 tasks, 4.1 of 16, 2.4 of 100; 5.5 inline."""

_OVERLAP: Final = 1 << 20
"""Waiting bytes from which on the next batch is written during a sync instead of after it."""


def _nobody() -> None:
    """Stand in for a weak reference to a task that is gone."""


class WrittenTopic(ShownTopic, Protocol):
    """What group commit needs of a topic."""

    in_writer: list[Part]
    creation: Creation
    effective_options: EffectiveOptions
    exclusive_work: ExclusiveWork
    publisher: Publisher
    retention: TopicRetention
    writer: SegmentWriter

    @property
    def at_rest(self) -> bool:
        """Whether nothing is being written, and no operation runs, waits or was asked for."""
        ...


class GroupCommit:
    """The group commit of one topic.

    Attributes:
        inline: whether a plain put may be written in the caller's own step, without a future and without a turn of the
            loop: nothing is being written, waits or rolls, no operation runs or is queued, the topic has its files, and
            the policy does not ask for a sync. Puts of many tasks in one turn of the loop are batched nevertheless.
        lone: the same, if the policy asks for a sync: the put is written in the caller's step, and its sync is started.
            This is for a task that puts one message after the other; several concurrent puts share their syncs.
        undisturbed: whether the sync of such a put is in flight, and nothing has reached the ioLoop since.
        writing: whether a batch is being written.
        gathering: whether tasks that were woken by a sync get a turn of the loop, or until the next tick, to put again.
        ready: whether a plain put may be accepted without checking anything but its body and the room.
        delay: of syncs for producers in other processes; None as long as there are none.

    INVARIANT: code that changes one of these conditions clears the flag before the next put; only `look`, at the end of
    the ioLoop's turn, sets it.
    """

    __slots__ = (
        "_before", "_bounded", "_count_from", "_due_from", "_engine", "_home", "_host", "_least", "_log",
        "_loop", "_monotonic", "_most", "_now_ns", "_publisher", "_retention", "_sharing", "_task", "_tasks",
        "_turns", "delay", "gathering", "inline", "lone", "ready", "undisturbed", "writing",
    )  # fmt: skip

    def __init__(self, engine: WrittenTopic, host: TopicEngineHost) -> None:
        """Start as every topic does: with files to be created or checked."""
        self.inline: bool = False
        self.lone: bool = False
        self.undisturbed: bool = False
        self.ready: bool = False
        self.writing: bool = False
        self.gathering: bool = False
        self.delay: CommitDelay | None = None
        self._engine = engine
        self._host = host
        self._loop = host.loop
        self._home = host.home
        self._turns = host.turns
        self._now_ns = host.clock.now_ns
        self._monotonic = host.clock.monotonic
        self._least = self._most = 0
        self._bounded = False
        self._sharing = 0
        self._task: Callable[[], asyncio.Task[Any] | None] = _nobody
        self._tasks = self._before = 0
        self._count_from = self._due_from = 0
        self._publisher = engine.publisher
        self._retention = engine.retention
        self._log: TopicLog | None = None

    def stop_inline(self) -> None:
        """Let no put be written inline before the ioLoop has had a turn."""
        self.inline = self.lone = self.undisturbed = False

    def hinder(self) -> None:
        """Let every put check everything for itself before the ioLoop has had a turn."""
        self.inline = self.lone = self.undisturbed = self.ready = False

    def look(self) -> None:
        """Determine what the next put has to check, and whether it may be written at once."""
        engine, host = self._engine, self._host
        log, options, put_buffer = engine.log, engine.options, engine.put_buffer
        self._log = log if isinstance(log, TopicLog) else None
        usable = (
            host.usable
            and not engine.stopped
            and put_buffer.at_rest
            and self._log is not None
            and engine.creation.at_rest
            and engine.effective_options.at_rest
        )
        self.ready = usable and not put_buffer.bounded
        self._least, self._most = options.min_message_bytes, min(options.max_message_bytes, WRITE_BYTES - OVERHEAD)
        self._bounded = put_buffer.bounded
        at_once = (
            usable
            and self._log is not None
            and engine.at_rest
            and not put_buffer.pending
            and self._log.options.codec == CODEC_NONE
            and engine.name not in engine.metrics.refusing
            and not engine.retention.begun
            and not self._publisher.has_untold
        )
        durably = options.sync == "always"
        # INVARIANT: writes after the start of a sync, or after a tick, belong to another batch than those before it.
        # Both happen within a turn, and this is at its end.
        self._count_from = 0
        self._due_from = engine.syncer.due_at() - 1 if options.sync == "interval" else NEVER
        self.inline = at_once and not durably and self._sharing <= _CROWD
        self.lone = at_once and durably and not engine.syncer.busy and self._sharing <= 1

    def accept(self, body: object) -> asyncio.Future[int] | None:
        """Accept a plain message into the open batch; None if it has to take the slow path, if only for its error."""
        if not self.ready or type(body) is not bytes or not self._least <= len(body) <= self._most:
            return None
        home = self._home
        if not (get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop):
            return None
        return self._engine.put_buffer.add_plain(body, len(body) + OVERHEAD, self._loop.create_future())

    def accept_nowait(self, body: object) -> PutResult | None:
        """Do as `accept`, for a caller that need not wait."""
        if not self.ready or type(body) is not bytes or not self._least <= len(body) <= self._most:
            return None
        home = self._home
        if not (get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop):
            return None
        return self._engine.put_buffer.add_plain(body, len(body) + OVERHEAD, PutResult())

    def _is_here(self) -> bool:
        """Return whether the caller runs on the store's loop. The most frequent calls do the same without this call."""
        home = self._home
        return get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop

    def put_many_now(self, columns: Columns, cost: int, *, gave_way: bool = False) -> int:
        """Write messages at once, all or none; return the first offset, or else `NOT_NOW` or `GIVE_WAY`.

        Args:
            columns: the messages, checked.
            cost: their cost in bytes of memory.
            gave_way: whether the caller has just yielded to the event loop.

        Raises:
            As `put_now`.
        """
        home = self._home
        if not self.inline or cost > WRITE_BYTES:
            return NOT_NOW
        if not (get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop):
            return NOT_NOW
        now = self._monotonic()
        if not gave_way and now >= self._turns.until and self._turns.over(now):
            return GIVE_WAY
        return self._stage_now(columns, cost, now)

    def put_labelled_now(self, message: Accepted, body: bytes, *, gave_way: bool = False) -> int:
        """Do as `put_now`, for a checked message with more than a body."""
        if not self.inline or get_ident() != self._home.thread:
            return NOT_NOW
        cost = accepted_cost(message, body)
        if cost > WRITE_BYTES:
            return NOT_NOW
        task, now = task_of(self._loop), self._monotonic()
        if task is None or task is not self._task():
            if not self._is_here() or self._crowded(task):
                return NOT_NOW
        elif now >= self._turns.until and not gave_way and self._turns.over(now):
            return GIVE_WAY
        offset = self._append_now(columns_of_one(message, body), cost, now)
        if offset >= 0 and not offset % _LONGEST_RUN:
            self._turns.until = now
        return offset

    def _append_now(self, columns: Columns, cost: int, now: float) -> int:
        """Do as `_stage_now`, for one message with more than a body."""
        log, engine = self._log, self._engine
        if log is None or (self._bounded and not engine.put_buffer.has_room(1, cost)):
            return NOT_NOW
        time_ns = self._now_ns()
        try:
            offset = log.append(columns.bodies[0], time_ns, labelled=columns)
        except BaseException as error:
            self._failed(log, error)
            raise
        if offset >= 0:
            self._show(Batch(offset, time_ns, columns), cost, now)
        return offset

    def _stage_now(self, columns: Columns, cost: int, now: float) -> int:
        """Write messages at once while `inline`, all or none; return the first offset, or `NOT_NOW`."""
        log, engine, messages = self._log, self._engine, len(columns.bodies)
        if log is None or not log.ready or (self._bounded and not engine.put_buffer.has_room(messages, cost)):
            return NOT_NOW
        time_ns = self._now_ns()
        try:
            span = log.stage(columns, time_ns, atomic=True)
            if span is None:
                return NOT_NOW
            log.flush()
            log.commit()
        except BaseException as error:
            self._failed(log, error)
            raise
        self._show(Batch(span[0], time_ns, columns), cost, now)
        return span[0]

    def _show(self, batch: Batch, cost: int, now: float) -> None:
        """Publish messages that were written at once."""
        engine = self._engine
        try:
            engine.visible = stop = batch.stop
            self._retention.written_at = now
            if stop > self._count_from:
                self._count(engine, stop)
            engine.publisher.show_many(batch, cost)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the store stops and all waiters are failed
            self._stop(error)

    def put_now(self, body: object, *, gave_way: bool = False) -> int:  # noqa: C901, PLR0911, PLR0912 - a call costs more than a branch
        """Write a message at once; return its offset, or `NOT_NOW` or `GIVE_WAY`.

        Raises:
            DiskFullError: no space; nothing was written, and later puts may succeed.
            StorageError: nothing was written.
            StoreFailedError: the store has stopped.
        """
        log, engine = self._log, self._engine
        if not self.inline or log is None or type(body) is not bytes or not self._least <= len(body) <= self._most:
            return NOT_NOW
        if get_ident() != self._home.thread:
            return NOT_NOW
        if self._bounded and not engine.put_buffer.has_room(1, len(body) + OVERHEAD):
            return NOT_NOW
        # Of this loop: until 3.12, Python asks the system for the process's number each time to tell which loop runs.
        task = task_of(self._loop)
        now = self._monotonic()
        # The task of the last put is known to belong to the store's loop.
        if task is None or task is not self._task():
            # It does not yield, as the messages of tasks that put after it would then come before its own.
            if not self._is_here() or self._crowded(task):
                return NOT_NOW
        elif now >= self._turns.until and not gave_way and self._turns.over(now):
            return GIVE_WAY
        time_ns = self._now_ns()
        try:
            offset = log.active.append(body, log.options.segment_bytes, log.durable, time_ns)
        except BaseException as error:
            self._failed(log, error)
            raise
        if offset < 0:
            return NOT_NOW
        try:
            engine.visible = offset + 1
            self._retention.written_at = now
            if offset >= self._count_from:
                self._count(engine, offset + 1)
            if engine.channel_engines:
                ended = engine.tail.add(offset, time_ns, body)
                if ended or engine.waiting:
                    self._publisher.shown(trim=ended)
            if not offset % _LONGEST_RUN:
                self._turns.until = now
        except BaseException as error:  # noqa: BLE001 - whatever it is, the store stops and all waiters are failed
            self._stop(error)
        return offset

    def _crowded(self, task: asyncio.Task[Any] | None) -> bool:
        """Count a put by another task than the last one; return whether that makes a crowd in this turn of the loop."""
        if self._tasks == _CROWD:
            self.inline = False
            return True
        if not self._tasks:
            self._loop.call_soon(self._turned)
        self._tasks += 1
        self._task = _nobody if task is None else ref(task)
        return False

    def _turned(self) -> None:
        self._before, self._tasks = self._tasks, 0

    def _count(self, engine: WrittenTopic, stop: int) -> None:
        """Count an inline write as a batch without waiters: later ones belong to it until the next turn.

        Once enough messages are written for a sync to be due, that turn is requested.
        """
        if not self._count_from:
            engine.serial = engine.taken = engine.syncer.written = engine.serial + 1
            if not engine.tick_scheduled:
                engine.schedule_tick()
        self._count_from = self._due_from
        if stop > self._count_from:
            self._count_from = NEVER
            if not engine.syncer.busy:
                engine.syncer.wake()

    def _failed(self, log: TopicLog, error: BaseException) -> None:
        """Roll back a failed write, or stop the store if its outcome is unknown."""
        self.inline = self.lone = False
        try:
            if isinstance(error, AiodqError) and not isinstance(error, StoreFailedError):
                self._engine.metrics.written(self._engine.name, error)
            else:
                self._stop(error)  # first, as the rollback needs more of a stack that may be exhausted
        finally:
            log.rollback()

    def _stop(self, error: BaseException) -> None:
        """Stop the store, and raise the error that says so; Ctrl-C and the like are raised themselves."""
        self._host.fail(error)
        if not isinstance(error, Exception):
            raise error
        self._host.check()

    def put_lone(self, body: object) -> asyncio.Future[int] | None:
        """Write a message at once and start its sync; the future gives its offset. None if that is not possible now.

        Raises:
            As `put_now`.
        """
        if not self.lone or type(body) is not bytes or not self._least <= len(body) <= self._most:
            return None
        home = self._home
        if not (get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop):
            return None
        log, engine, cost = self._log, self._engine, len(body) + OVERHEAD
        if log is None or (self._bounded and not engine.put_buffer.has_room(1, cost)):
            return None
        time_ns = self._now_ns()
        try:
            offset = log.append(body, time_ns, zeros_ahead=True)
        except BaseException as error:
            self._failed(log, error)
            raise
        if offset < 0:
            return None
        waiter: asyncio.Future[int] = self._loop.create_future()
        part = Part(Columns([body]), [waiter], atomic=False, first=offset, time_ns=time_ns, cost=cost)
        self._sync_lone(engine, log, part)
        return waiter

    def put_lone_labelled(self, message: Accepted, body: bytes) -> asyncio.Future[int] | None:
        """Do as `put_lone`, for a checked message with more than a body."""
        if not self.lone or not self._is_here():
            return None
        waiter: asyncio.Future[int] = self._loop.create_future()
        columns, cost = columns_of_one(message, body), accepted_cost(message, body)
        return waiter if self.place(Part(columns, [waiter], atomic=False, cost=cost)) else None

    def place(self, part: Part) -> bool:
        """Write a part at once, and sync it if the policy asks for that; its waiter is resolved.

        Returns:
            Whether that was done; if it is not possible now, nothing has happened.

        Raises:
            As `put_now`.
        """
        log, engine, columns = self._log, self._engine, part.columns
        if not (self.lone or self.inline) or log is None or part.cost > WRITE_BYTES:
            return False
        if self._bounded and not engine.put_buffer.has_room(len(columns.bodies), part.cost):
            return False
        part.time_ns = self._now_ns()
        try:
            part.first = self._written_at_once(log, part)
        except BaseException as error:
            self._failed(log, error)
            raise
        if part.first < 0:
            return False
        if self.lone:
            self._sync_lone(engine, log, part)
            return True
        self._show(Batch(part.first, part.time_ns, columns), part.cost, self._monotonic())
        part.resolve()
        return True

    def _written_at_once(self, log: TopicLog, part: Part) -> int:
        """Write a part, all or none; return its first offset, or `NOT_NOW`."""
        columns, origin = part.columns, part.origin
        if len(columns.bodies) == 1:
            return log.append(
                columns.bodies[0], part.time_ns, zeros_ahead=self.lone, origin=origin,
                labelled=None if columns.plain else columns,
            )  # fmt: skip
        span = log.stage(columns, part.time_ns, atomic=part.atomic, origin=origin) if log.ready else None
        if span is None:
            return NOT_NOW
        log.flush()
        log.commit()
        return span[0]

    def _sync_lone(self, engine: WrittenTopic, log: TopicLog, part: Part) -> None:
        """Start the sync of one put just written, nothing else being under way."""
        # INVARIANT: a written part is in `unsynced` before anything else may fail, so that its waiter is resolved.
        engine.publisher.unsynced.append((part, Batch(part.first, part.time_ns, part.columns)))
        self.lone = False
        self.undisturbed = True
        try:
            put_buffer, syncer = engine.put_buffer, engine.syncer
            engine.serial = engine.taken = syncer.written = engine.serial + 1
            put_buffer.pending += len(part.columns.bodies)
            put_buffer.cost += part.cost
            engine.retention.written_at = self._monotonic()
            if not engine.tick_scheduled:
                engine.schedule_tick()
            engine.writer.syncing = True
            if self.delay is not None:
                self.delay.sync_began()
            syncer.start(log, engine.visible, None if part.origin is None else part.durable)
        except BaseException as error:
            self._host.fail(error)
            if not isinstance(error, Exception):
                raise

    # --- syncs

    def synced(self, error: BaseException | None) -> None:
        """Publish what a sync that has ended has made durable.

        Raises:
            StoreFailedError: the sync failed.
        """
        engine = self._engine
        engine.writer.sync_ended()
        engine.syncer.ended(error)
        if self.delay is not None:
            self.delay.sync_ended()
        told = engine.publisher.synced()
        if engine.options.sync != "always":
            return
        self._sharing, batch = told, engine.put_buffer.next_batch()
        if batch is not None and batch.count <= told:
            # Tasks that were woken usually put again. If no more tasks than those already wait, one turn of the loop
            # lets all of them share the next sync. Otherwise they would split into two groups that wait for each
            # other's syncs.
            self.gathering = True
            self._loop.call_soon(self._gathered)

    def _gathered(self) -> None:
        self.gathering = False
        self._engine.turn()

    def synced_lone(self) -> None:
        """End the sync of a lone put after which nothing else has happened: the next put may take the same path."""
        engine = self._engine
        self.undisturbed = False
        self.lone = True
        engine.writer.syncing = False
        engine.syncer.ended(None)
        if self.delay is not None:
            self.delay.sync_ended()
        engine.publisher.synced()
        if (active := self._host.activity.topics) is not None:
            active.add(engine)

    # --- batches

    def may_write(self, batch: OpenBatch) -> bool:
        """Return whether a batch is to be written now, nothing else being written."""
        engine = self._engine
        if self.gathering or self._publisher.has_untold:
            return False
        if engine.exclusive_work.waiting and engine.exclusive_work.comes_after(engine.taken):
            return False
        if batch.cost >= _OVERLAP or engine.options.sync != "always":
            return True
        if engine.syncer.busy:
            return False
        if self.delay is None or engine.exclusive_work.waiting or engine.syncer.waiting:
            return True
        return not self.delay.should_wait()

    def begin_delay(self) -> CommitDelay:
        """Have puts of other processes wait for each other; return the object that counts them."""
        if self.delay is None:
            self.delay = CommitDelay(self._loop, self._monotonic, self._engine.turn)
        return self.delay

    def write(self, batch: OpenBatch) -> None:
        """Write the oldest batch: in this step if it is small, otherwise by the segment writer, which reports."""
        engine = self._engine
        self.writing = True
        engine.taken = batch.serial
        engine.in_writer = engine.put_buffer.take()
        written = engine.writer.write_at_once(engine.in_writer)
        if written is None:
            engine.writer.begin(batch.serial, engine.in_writer)
        else:
            self.written(batch.serial, written)
            if engine.exclusive_work.waiting:
                engine.exclusive_work.wake(batch.serial)

    def written(self, serial: int, result: Written) -> None:
        """Publish a batch that was written, have it wait for its sync, or fail it."""
        engine = self._engine
        self.writing = False
        engine.publisher.written(serial, result, durably=engine.options.sync == "always")
        engine.in_writer = []
        if engine.options.sync != "always":
            # A batch taken within a turn may be small although many tasks still put.
            told = self._before + sum(len(part.waiters) for part in result.parts)
            self._sharing, self._before = max(told, self._sharing // 2), 0
        if not engine.effective_options.acting:
            engine.effective_options.used()
        if engine.retention.wrote():
            engine.retain_if_idle()
        if not engine.tick_scheduled:
            engine.schedule_tick()
