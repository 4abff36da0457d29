"""A topic's ioLoop: decides, in turns of the event loop, what is written and synced, and which operations run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiodq.engine.channel.acks.ack_persister import Job
from aiodq.engine.loop.ticker import Ticker
from aiodq.engine.topic.commit.group_commit import WrittenTopic
from aiodq.engine.topic.commit.request_queue import RequestQueue, SyncWanted

if TYPE_CHECKING:
    import asyncio

    from aiodq.engine.channel.acks.ack_persister import AckPersister
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.loop.on_demand import OnDemand
    from aiodq.engine.topic.commit.group_commit import GroupCommit
    from aiodq.engine.topic.commit.request_queue import Request
    from aiodq.engine.topic.commit.segment_writer import Written
    from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion

__all__ = ["DrivenTopic", "IoLoop"]


class DrivenTopic(WrittenTopic, Protocol):
    """What the ioLoop needs of its topic."""

    group_commit: GroupCommit
    segment_deletion: SegmentDeletion


class IoLoop:
    """The ioLoop of one topic. Each turn handles what has happened since the last one, and starts what may start now.

    Attributes:
        requests: the requests to it, and the scheduling of its turns.
        ticker: its ticks.
        in_turn: whether a turn runs now.
    """

    __slots__ = (
        "_engine", "_host", "_persister", "_retain_queued", "_sync_result", "_tick_due", "_written", "in_turn",
        "requests", "ticker",
    )  # fmt: skip

    def __init__(self, engine: DrivenTopic, host: TopicEngineHost, persister: AckPersister) -> None:
        """Drive a topic and what belongs to it, from `begin` on."""
        self._engine = engine
        self._host = host
        self._persister = persister
        self.requests: RequestQueue = RequestQueue(host.loop, self.turn)
        self.ticker: Ticker = Ticker(host.ticks, self._tick)
        self.in_turn: bool = False
        self._retain_queued = self._tick_due = False
        self._written: tuple[int, Written] | None = None
        self._sync_result: tuple[BaseException | None] | None = None

    # --- its life: it has no task, as most of a thousand topics are idle

    def begin(self) -> None:
        """Take turns from now on, unless the topic has ended."""
        if self._engine.stopped:
            return
        self._engine.schedule_tick()
        for worker in self._workers:
            worker.begin(self._host.fail)
        self.requests.begin()

    def end(self) -> list[asyncio.Task[None]]:
        """Take no more turns; return the tasks that are cancelled for that."""
        self.requests.end()
        return [task for worker in self._workers if (task := worker.end()) is not None]

    @property
    def _workers(self) -> tuple[OnDemand, ...]:
        return self._engine.writer.worker, self._engine.reader.worker, self._persister.worker

    # --- what has happened

    def wrote(self, serial: int, result: Written) -> None:
        """Note what the segment writer has written."""
        self._written = serial, result
        self.requests.wake()

    def synced(self, _: None, error: BaseException | None) -> None:
        """Note that a sync has ended, and handle it at once."""
        group_commit = self._engine.group_commit
        if group_commit.undisturbed and error is None:
            group_commit.synced_lone()
            return
        self._sync_result = (error,)
        if self.in_turn:
            self.requests.wake()
        else:
            self.requests.turn_now()

    def tend(self) -> None:
        """Have the workers go on that an interrupt has ended."""
        for worker in self._workers:
            worker.go_on()

    def _tick(self) -> None:
        self._tick_due = True
        self.requests.turn_anyway()

    def retain_soon(self) -> None:
        """Look for segments to delete as soon as nothing else is under way."""
        if not self._retain_queued:
            self._retain_queued = True
            self.requests.wake()

    # --- a turn

    def turn(self) -> None:
        """Take a turn; an exception stops the store, and so does Ctrl-C in the middle of it."""
        try:
            self._turn()
        except BaseException as error:
            self._host.fail(error)
            if not isinstance(error, Exception):
                raise

    def _turn(self) -> None:
        engine = self._engine
        if engine.stopped:
            return
        self.in_turn = True
        try:
            self._take_reports()
            asked = self.requests.asked
            while asked and not engine.stopped:
                self._handle(asked.popleft())
            if not engine.stopped:
                self._advance()
                # Under "always" no put is written at once while others wait: until then the last look remains valid.
                if not (engine.durably and engine.group_commit.ready and engine.put_buffer.pending):
                    engine.group_commit.look()
        finally:
            self.in_turn = False
            if (active := self._host.activity.topics) is not None:
                active.add(engine)

    def _take_reports(self) -> None:
        """Handle what has ended since the last turn."""
        written, self._written = self._written, None
        if written is not None:
            self._engine.group_commit.written(*written)
        result, self._sync_result = self._sync_result, None
        if result is not None:
            self._engine.group_commit.synced(*result)
        if self._tick_due:
            self._tick_due = False
            self._ticked()
        if self._retain_queued:
            self._retain_queued = False  # before the look, which may ask for another
            if not self._engine.retain_if_idle():
                self._retain_queued = True

    def _handle(self, request: Request) -> None:
        if isinstance(request, SyncWanted):
            self._engine.syncer.wait(self._engine.serial, request.done)
        else:
            self._engine.exclusive_work.add(request)

    def _advance(self) -> None:
        """Start whatever may start now. Every decision of the ioLoop is made here."""
        engine = self._engine
        group_commit, syncer, work = engine.group_commit, engine.syncer, engine.exclusive_work
        if work.running:
            return
        at_rest = not group_commit.writing and not syncer.busy and not engine.publisher.unsynced
        if at_rest and work.waiting and self._start_operation():
            return
        batch = engine.put_buffer.next_batch()
        if batch is not None and not group_commit.writing and group_commit.may_write(batch):
            group_commit.write(batch)
        if not engine.writer.rolling and syncer.needed(engine.visible):
            engine.writer.syncing = True
            if group_commit.delay is not None:
                group_commit.delay.sync_began()
            syncer.start(engine.real_log(), engine.visible, engine.publisher.early)
        if syncer.waiting:
            syncer.resolve()

    def _start_operation(self) -> bool:
        """Start the next operation, the log being at rest; return whether it runs."""
        syncer, work = self._engine.syncer, self._engine.exclusive_work
        if self._engine.durably and syncer.lagging and work.comes_after(syncer.written):
            syncer.sync_now()
            return False
        return work.start_next(syncer.written)

    def _ticked(self) -> None:
        engine = self._engine
        engine.group_commit.gathering = False
        if engine.tick_scheduled:
            engine.tick_scheduled = False
            engine.retention.begin_round()
        if engine.options.sync == "interval":
            engine.syncer.due = True
            if self._persister.unsynced:
                self._persister.submit(Job(lambda: None, lambda _, __: None, acks_first=True))
                engine.schedule_tick()
        engine.retain_if_idle()
        if (again := engine.retention.next_look()) is not None:
            self.ticker.within(again)
