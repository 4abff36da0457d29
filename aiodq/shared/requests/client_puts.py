"""A client's puts at the owner: each is placed once, however often it arrives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from aiodq.awaited import mark_retrieved, shielded, twice
from aiodq.engine.batch.put_batch import Part, columns_cost
from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.format.columns import Columns
from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult
from aiodq.storage.log.producer_table import Origin
from aiodq.storage.log.topic_log import TopicLog
from aiodq.wire.frames import decode_lone, decode_messages
from aiodq.wire.packets import Done

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from aiodq.clock import Clock
    from aiodq.engine.topic.commit.commit_delay import CommitDelay
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.shared.requests.owner_state.waiting_bytes import ClientsBytes
    from aiodq.shared.requests.serving import Owning, Wire
    from aiodq.wire.packets import Put

    Key = tuple[str, Origin]

__all__ = ["ClientPuts", "columns_of"]


class ClientPuts:
    """The puts that arrive over one connection.

    Attributes:
        producer: the number that identifies the client's puts.
    """

    def __init__(
        self,
        owner: Owning,
        wire: Wire,
        start: Callable[[Coroutine[Any, Any, Done], int], asyncio.Task[None]],
        fail: Callable[[Exception, int], None],
        kept: ClientsBytes,
    ) -> None:
        """Start without puts; `start` runs what takes longer and answers, `fail` answers with an error."""
        self.producer: int = 0
        self._owner = owner
        self._wire = wire
        self._start = start
        self._fail = fail
        self._kept = kept
        self._slow: dict[Key, int] = {}
        self._moving: dict[asyncio.Future[None], str] = {}
        self._waiting: dict[Key, asyncio.Future[Any]] = {}
        self._withdrawn: set[Key] = set()
        self._delays: set[CommitDelay] = set()
        self._closing = self._ending = False

    def put(self, engine: TopicEngine, sequence: int, columns: Columns, request: int) -> None:
        """Place a put that has arrived, and answer."""
        origin = Origin(self.producer, sequence)
        if engine.durably:
            delay = engine.group_commit.delay
            if delay is None or delay not in self._delays:
                self._join(engine)
            else:
                delay.put_arrived(self)
        # INVARIANT: puts after one that may have to wait go the same way, or they would overtake it.
        if not self._slow and self._place_now(engine, origin, columns, request):
            return
        key = engine.name, origin
        self._slow[key] = self._slow.get(key, 0) + 1
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moving[moved] = engine.name
        answering = self._start(self._place_in_turn(engine, key, columns, moved), request)
        twice(answering.add_done_callback, lambda _: self._moved(moved))

    def _join(self, engine: TopicEngine) -> None:
        """Have the puts of others wait briefly for this client's, if it usually puts again soon."""
        self._delays.add(engine.group_commit.begin_delay())

    def _moved(self, moved: asyncio.Future[None]) -> None:
        """Note that a put is answered, or waits for room."""
        if self._moving.pop(moved, None) is not None:
            moved.set_result(None)

    def forget(self, engine: TopicEngine) -> None:
        """Forget a deleted topic: otherwise its memory would not be freed before the connection ends."""
        if (delay := engine.group_commit.delay) is not None:
            self._delays.discard(delay)

    async def settled(self, topic: str) -> None:
        """Wait until the earlier puts of this client into a topic are answered, except those that wait for room."""
        underway: list[asyncio.Future[Any]] = [
            result.waiter()
            for (name, origin), result in self._owner.puts_in_progress.items()
            if name == topic and origin.producer == self.producer and isinstance(result, ClientPutResult)
        ]
        moving = [moved for moved, name in self._moving.items() if name == topic]
        if underway or moving:
            await asyncio.wait([*underway, *moving])

    def withdraw(self, topic: str, sequences: Collection[int]) -> None:
        """Drop puts whose callers were all cancelled, unless they are accepted; each is answered with an error."""
        for sequence in sequences:
            key = topic, Origin(self.producer, sequence)
            if key in self._slow:
                self._withdrawn.add(key)
            if key in self._waiting:
                self._waiting[key].cancel()

    def close(self) -> None:
        """Refuse puts that wait for room, as the client closes its store."""
        self._closing = True
        self._wait_no_more()

    def end(self) -> None:
        """Drop puts that wait for room, as the client is gone."""
        self._ending = True
        self._wait_no_more()
        for delay in self._delays:
            delay.disconnected(self)

    def _wait_no_more(self) -> None:
        for task in list(self._waiting.values()):
            task.cancel()

    # --- at once

    def _place_now(self, engine: TopicEngine, origin: Origin, columns: Columns, request: int) -> bool:
        """Place a put at once, if it has to wait only for the log; return whether it was placed."""
        put_buffer, commit, log = engine.put_buffer, engine.group_commit, engine.log
        in_progress, key = self._owner.puts_in_progress, (engine.name, origin)
        if key in in_progress or not isinstance(log, TopicLog) or log.producers.find(origin) is not None:
            return False
        if not (commit.lone or commit.inline):  # these imply it
            engine.check()
            if not put_buffer.at_rest:
                return False
        sizes, options = list(map(len, columns.bodies)), engine.options
        if min(sizes) < options.min_message_bytes or max(sizes) > options.max_message_bytes:
            return False  # it is refused
        answer = self._wire.early(request) if engine.durably else None
        result = ClientPutResult(len(sizes), partial(self._told, engine, key, request), answer)
        part = Part(columns, [result], atomic=True, cost=columns_cost(columns), origin=origin)
        # INVARIANT: no other task has run since the check: a put that arrives twice at once is placed once.
        in_progress[key] = result
        delay = commit.delay if engine.durably else None
        try:
            # If other producers are likely to put soon, too, all of them are to share a sync.
            if (delay is not None and delay.expected) or not commit.place(part):
                put_buffer.accept_part(part)
        except asyncio.QueueFull:
            del in_progress[key]
            return False  # it waits for room, or is refused, by the options
        except BaseException:
            in_progress.pop(key, None)
            raise
        return True

    def _told(self, engine: TopicEngine, key: Key, request: int, placed: ClientPutResult) -> None:
        """Answer a put that was placed at once, whose outcome is known."""
        del self._owner.puts_in_progress[key]
        delay = engine.group_commit.delay if engine.durably else None  # no sync, nobody to share it
        if delay is not None and not (self._closing or self._ending):
            delay.answered(self)
        if placed.early and self._wire.answered(placed):
            return
        if placed.error is None:
            # Waiting puts are written, and their sync begun, in this step: the answered process will take the
            # processor.
            send = self._wire.send if engine.put_buffer.next_batch() is None else self._wire.send_soon
            send(Done((placed.offset, placed.messages)), request)
        else:
            # The engine is still notifying others, which may change what this client is told.
            asyncio.get_running_loop().call_soon(self._fail, placed.error, request)

    # --- in turn

    async def _place_in_turn(
        self, engine: TopicEngine, key: Key, columns: Columns, moved: asyncio.Future[None]
    ) -> Done:
        try:
            return await self._place(engine, key, columns, moved)
        finally:
            self._slow[key] -= 1
            if not self._slow[key]:
                del self._slow[key]
                self._withdrawn.discard(key)

    async def _place(self, engine: TopicEngine, key: Key, columns: Columns, moved: asyncio.Future[None]) -> Done:
        engine.check()
        in_progress, (_, origin) = self._owner.puts_in_progress, key
        while True:
            result = in_progress.get(key)
            if result is None:
                known = engine.log.producers.find(origin) if isinstance(engine.log, TopicLog) else None
                if known is not None:
                    return Done((known.start, len(known)))
                for body in columns.bodies:
                    engine.put_buffer.body(body)
                self._refuse_withdrawn(key)
                cost = columns_cost(columns)
                if not (engine.put_buffer.at_rest and engine.put_buffer.has_room(len(columns.bodies), cost)):
                    self._kept.check(cost, engine.name)
                self._kept.keep(cost, engine.name)
                # INVARIANT: no other task has run since the check: a put that arrives twice at once is placed once.
                entering = self._put_in(engine, key, columns, moved)
                loop = asyncio.get_running_loop()
                self._waiting[key] = loop.create_future()
                task = loop.create_task(entering)
                result = in_progress[key] = task
                if key in self._waiting:  # a loop with eager tasks may be past that already
                    self._waiting[key] = task
                task.add_done_callback(partial(self._placed, key, cost))
            try:
                # INVARIANT: an accepted put stays accepted if its connection ends: it may arrive again over another.
                placed = await shielded(result.waiter() if isinstance(result, ClientPutResult) else result)
            except asyncio.CancelledError:
                if self._closing and isinstance(result, asyncio.Future) and result.cancelled():
                    raise QueueShutDown("the store is closed") from None
                if self._ending or isinstance(result, ClientPutResult) or not result.cancelled() or _is_cancelled():
                    raise
                # It was withdrawn, or belonged to another connection, which is gone. `_placed` may be still to come.
                await asyncio.sleep(0)
                continue
            return Done((placed.start, len(placed)))

    def _refuse_withdrawn(self, key: Key) -> None:
        if key in self._withdrawn:
            raise QueueFull("this put was withdrawn while it waited for room")

    async def _put_in(self, engine: TopicEngine, key: Key, columns: Columns, moved: asyncio.Future[None]) -> range:
        """Put as soon as there is room, unless the client withdraws the put, closes its store or disconnects before."""
        # The next step of the loop is after the first attempt to enter.
        asyncio.get_running_loop().call_soon(self._look_whether_waiting, key, moved)
        buffer, ahead = engine.put_buffer, engine.put_buffer.ahead()
        waiter = await buffer.enter(lambda: buffer.accept_of(buffer.in_time(columns, ahead), key[1]))
        del self._waiting[key]
        return await waiter

    def _look_whether_waiting(self, key: Key, moved: asyncio.Future[None]) -> None:
        if key in self._waiting:
            self._moved(moved)

    def _placed(self, key: Key, cost: int, done: asyncio.Future[range]) -> None:
        del self._owner.puts_in_progress[key]
        self._kept.drop(cost, key[0])
        self._waiting.pop(key, None)
        mark_retrieved(done)  # perhaps its client is gone


def _is_cancelled() -> bool:
    """Return whether the task that runs was cancelled, as all are when their loop ends, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def columns_of(packet: Put, clock: Clock) -> Columns:
    """Return the messages of a put, in the owner's time."""
    body = decode_lone(packet.frames, packet.count)
    if body is not None:
        return Columns([body])
    batches = decode_messages(packet.frames, 0, packet.count)
    parts = [batch.columns for batch in batches]
    for number, batch in enumerate(batches):
        # If the wall clock was set back since they were put, perhaps while they waited for an owner, no wait is
        # prolonged.
        ahead = 0 if batch.columns.dues is batch.columns.expiries is None else batch.time_ns - clock.now_ns()
        if ahead > 0:
            parts[number] = batch.columns.moved(-ahead)
    columns = Columns.joined(parts)
    columns.times = None
    return columns
