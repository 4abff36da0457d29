"""The put buffer: checks messages, gathers them in the open batch, counts the room, applies the overflow policies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiodq.engine.batch.acceptance import Acceptance
from aiodq.engine.batch.put_batch import (
    OVERHEAD,
    PLAIN,
    Accepted,
    OpenBatch,
    Part,
    PutResult,
    accepted_cost,
    columns_cost,
)
from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.engine.topic.backlog_bound import BacklogBound
from aiodq.engine.topic.puts.waiting_puts import BufferFull, WaitingPuts
from aiodq.errors import again

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiodq.engine.batch.put_batch import Waiter
    from aiodq.engine.topic.backlog_bound import BoundedTopic
    from aiodq.format.columns import Columns
    from aiodq.storage.log.producer_table import Origin

__all__ = ["PutBuffer"]

T = TypeVar("T")
W = TypeVar("W", "asyncio.Future[int]", PutResult)

_MOST_WAITING: Final = 100_000

_NO_MEMORY: Final = "the write buffer's bound is reached (memory_bytes)"


class PutBuffer(Acceptance):
    """The put buffer of one topic.

    Attributes:
        batch: what was accepted and not yet taken by the writer.
        pending: the number of messages accepted and not yet visible to channels.
        cost: their cost in bytes of memory.
        shut: whether nothing more is accepted.
        bounded: whether the backlog has a bound.
        drops: whether old messages are dropped for new ones that would exceed it.
        dropped: how many were.
        bound: the bound of the backlog.
    """

    __slots__ = (
        "_closed", "_engine", "_limit", "_loop", "_options", "_over", "_waiting", "batch", "bound", "bounded", "cost",
        "dropped", "drops", "pending", "shut",
    )  # fmt: skip

    def __init__(self, engine: BoundedTopic) -> None:
        """Accept messages for this topic."""
        super().__init__(engine)
        self.batch: OpenBatch = OpenBatch()
        self._closed: list[OpenBatch] = []
        self.pending: int = 0
        self.cost: int = 0
        self.shut: bool = False
        self.dropped: int = 0
        self._over = QueueShutDown("the queue was shut down, or its store closed")
        self._engine = engine
        self._loop = engine.loop
        self.bound: BacklogBound = BacklogBound(engine)
        self.configure()
        self._waiting = WaitingPuts(self)

    def configure(self) -> None:
        """Apply the topic's options."""
        self._options = self._engine.options
        self._limit = self._options.memory_bytes // 2
        self.bounded: bool = self._options.max_messages is not None or self._options.max_bytes is not None
        self.drops: bool = self.bounded and self._options.overflow == "drop_oldest"

    # --- accepting

    def accept_nowait(self, message: Accepted, body: bytes) -> PutResult:
        """Do as `accept`, for a caller that need not wait."""
        cost = accepted_cost(message, body)
        self._make_room(1, cost)
        result = PutResult()
        self._add_for(message, body, cost, result)
        return result

    def accept(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Accept a message; the future gives its offset once it is as durable as the policy says.

        Raises:
            QueueFull: there is no room now.
            QueueShutDown: nothing more is accepted.
        """
        cost = accepted_cost(message, body)
        self._make_room(1, cost)
        return self._add(message, body, cost)

    def _add(self, message: Accepted, body: bytes, cost: int) -> asyncio.Future[int]:
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._add_for(message, body, cost, waiter)
        return waiter

    def _add_for(self, message: Accepted, body: bytes, cost: int, waiter: Waiter) -> None:
        if not self.batch.count:
            self._engine.opened()
        self.batch.add(message, body, waiter, cost)
        self.pending += 1
        self.cost += cost

    def add_plain(self, body: bytes, cost: int, waiter: W) -> W | None:
        """Accept a plain message while `GroupCommit.ready`; return None if there is no room."""
        if self.pending and (self.cost + cost > self._limit or self.pending >= _MOST_WAITING):
            return None
        batch = self.batch
        if not batch.count:
            self._engine.opened(ready=True)
        batch.add_plain(body, waiter, cost)
        self.pending += 1
        self.cost += cost
        return waiter

    async def enter_one(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Do as `accept` as soon as there is room, after earlier puts; see `enter`."""
        cost = len(body) + OVERHEAD if message is PLAIN else accepted_cost(message, body)
        if not (self.at_rest and self.has_room(1, cost)):
            ahead = self.ahead()
            return await self.enter(lambda: self.accept(self.one_in_time(message, ahead), body))
        return self._add(message, body, cost)

    async def enter_columns(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Do as `accept_columns` as soon as there is room, after earlier puts; see `enter`."""
        if self.at_rest and self.has_room(len(columns.bodies), cost):
            return self.accept_columns(columns, cost)
        ahead = self.ahead()
        return await self.enter(lambda: self.accept_columns(self.in_time(columns, ahead), cost))

    def accept_columns(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Accept messages that are stored all or none, and cost so many bytes; the future gives their offsets.

        Raises:
            QueueFull: there is no room now.
            QueueShutDown: nothing more is accepted.
        """
        self._make_room(len(columns.bodies), cost)
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._add_part(Part(columns, [waiter], atomic=True, cost=cost))
        return waiter

    def accept_of(self, columns: Columns, origin: Origin) -> asyncio.Future[range]:
        """Do as `accept_columns` for messages that their producer may put again; the log will recognise them.

        Raises:
            QueueFull: there is no room now.
            QueueShutDown: nothing more is accepted.
        """
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self.accept_part(Part(columns, [waiter], atomic=True, cost=columns_cost(columns), origin=origin))
        return waiter

    def accept_part(self, part: Part) -> None:
        """Accept messages that are stored all or none.

        Raises:
            QueueFull: there is no room now.
            QueueShutDown: nothing more is accepted.
        """
        self._make_room(len(part.columns.bodies), part.cost)
        self._add_part(part)

    def _add_part(self, part: Part) -> None:
        if not self.batch.count:
            self._engine.opened()
        self.batch.add_part(part)
        self.pending += len(part.columns.bodies)
        self.cost += part.cost

    def check_open(self, *, pressing: bool) -> None:
        """Check that `reserve` may find room, now or later.

        Raises:
            QueueShutDown, StoreFailedError: nothing more is accepted.
        """
        self._engine.check()
        if self.shut and not pressing:
            raise again(self._over)

    def reserve(self, messages: int, cost: int, *, pressing: bool, covered: bool = False) -> None:
        """Count messages of a transaction before they are accepted; `unreserve` undoes it.

        Args:
            messages: their number.
            cost: their cost in bytes of memory.
            pressing: even if nothing more is accepted from outside.
            covered: the transaction settles as many in every channel, so they fit even if the backlog is over its bound
                on messages.

        Raises:
            QueueFull: there is no room now.
            QueueShutDown: nothing more is accepted.
        """
        if covered and not self.shut and self._options.max_bytes is None:
            if self.buffer_full(cost):
                raise BufferFull(_NO_MEMORY)
        elif not (self.shut and pressing):
            self._make_room(messages, cost)
        self._engine.group_commit.stop_inline()
        self.pending += messages
        self.cost += cost

    def unreserve(self, messages: int, cost: int) -> None:
        """Undo `reserve`, as the messages are accepted now, or never."""
        self.pending -= messages
        self.cost -= cost
        self._waiting.freed()
        self._tell_of_the_end()

    def accept_committed(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Accept what a transaction has committed, whether there is room or not; the future gives the offsets."""
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._add_part(Part(columns, [waiter], atomic=True, cost=cost))
        return waiter

    def close_batch(self) -> None:
        """Close the open batch: messages accepted later are written after what the ioLoop is now asked to do."""
        if self.batch.count:
            self._closed.append(self.batch)
            self.batch = OpenBatch()

    def next_batch(self) -> OpenBatch | None:
        """Return the batch that `take` would take, or None if nothing waits to be written."""
        if self._closed:
            return self._closed[0]
        return self.batch if self.batch.count else None

    def take(self) -> list[Part]:
        """Take the oldest batch, to be written."""
        if not self._closed:
            self.close_batch()
        if not self._closed:
            return []
        # INVARIANT: a batch that is not returned stays here, where `fail` finds it.
        batch = self._closed[0]
        parts = batch.take()
        del self._closed[0]
        if not batch.cancelled:
            return parts
        withdrawn = batch.count - sum(len(part.columns.bodies) for part in parts)
        if withdrawn:
            self.pending -= withdrawn
            self.cost -= batch.cost - sum(part.cost for part in parts)
            self._waiting.freed()
            self._tell_of_the_end()
        return parts

    def take_all(self) -> list[Part]:
        """Take all batches."""
        parts: list[Part] = []
        while self.next_batch() is not None:
            parts += self.take()
        return parts

    def withdrawn(self) -> None:
        """Note that a waiting put was cancelled: the batches not yet taken are searched for it when taken."""
        for batch in (*self._closed, self.batch):
            batch.cancelled = True

    def done(self, part: Part) -> None:
        """Stop counting a part, as it is visible or has failed."""
        self.pending -= len(part.columns.bodies)
        self.cost -= part.cost
        if self.drops:
            self._drop_oldest(part)
        if self._waiting.line:
            self._waiting.freed()
        self._tell_of_the_end()

    def _tell_of_the_end(self) -> None:
        """Wake the getters of a topic that was shut down, as no more messages will come."""
        if self.shut and not self.pending:
            for channel_engine in self._engine.channel_engines.values():
                channel_engine.wake()

    # --- room

    @property
    def at_rest(self) -> bool:
        """Whether no put waits for room, and messages are accepted."""
        return not (self.shut or self._waiting.line or self._waiting.turn)

    @property
    def lacks_bytes(self) -> bool:
        """Whether a put may be waiting for room because of the bound on bytes."""
        return self._options.max_bytes is not None and bool(self._waiting.line)

    def enter(self, accept: Callable[[], T], *, ahead: bool = False) -> Coroutine[Any, Any, T]:
        """See `WaitingPuts.enter`."""
        return self._waiting.enter(accept, ahead=ahead)

    def fits(self, accept: Callable[[], object], *, ahead: bool = False) -> bool:
        """See `WaitingPuts.fits`."""
        return self._waiting.fits(accept, ahead=ahead)

    def freed(self, *, even_if_full: bool = False) -> None:
        """See `WaitingPuts.freed`."""
        self._waiting.freed(even_if_full=even_if_full)

    @property
    def refuses(self) -> bool:
        """See `Room.refuses`."""
        return self._options.overflow == "reject"

    def check(self) -> None:
        """See `Room.check`."""
        self._engine.check()

    def may_try(self) -> bool:
        """See `Room.may_try`."""
        return self._options.overflow != "block" or self.has_room(1, 0)

    def waits(self) -> None:
        """See `Room.waits`."""
        self._engine.group_commit.hinder()
        if self._options.max_bytes is not None:
            self._engine.retention.look_for_bytes()

    def full(self) -> bool:
        """Return whether a message of no bytes would be refused now."""
        return not self.has_room(1, 0)

    def _make_room(self, messages: int, cost: int) -> None:
        if self.shut:
            raise again(self._over)
        if self.has_room(messages, cost):
            return
        if self.drops and not self.buffer_full(cost):
            if not self._has_room_without_oldest(messages, cost):
                raise QueueFull("the backlog is full of messages in flight or not yet written")
            return
        if self.bounded and not self._within_bounds(messages, cost):
            raise QueueFull("the backlog's bound is reached (max_messages, max_bytes)")
        raise BufferFull(_NO_MEMORY)

    def has_room(self, messages: int, cost: int) -> bool:
        """Return whether so many messages with that cost in bytes would be accepted now."""
        return not self.buffer_full(cost) and (not self.bounded or self._within_bounds(messages, cost))

    def buffer_full(self, cost: int = 0) -> bool:
        """Return whether the write buffer has no room for a message of this cost."""
        return bool(self.pending) and (self.cost + cost > self._limit or self.pending >= _MOST_WAITING)

    def _within_bounds(self, messages: int, cost: int) -> bool:
        if self.bound.admits(self.pending + messages, self.cost + cost):
            return True
        return not self.pending and self.bound.empty

    def _has_room_without_oldest(self, messages: int, cost: int) -> bool:
        """Return whether so many messages fit if the oldest ones are dropped as soon as these are visible."""
        if not self._engine.overflow.may_drop():
            return False
        if self.bound.admits_without(self.pending + messages, self.cost + cost):
            return True
        return not self.pending and self.bound.idle

    def _drop_oldest(self, part: Part) -> None:
        """Settle the oldest messages of every channel over the bound, as a part is visible that has made it so.

        A part that has failed is not visible, and has none dropped.
        """
        step = len(part.columns.bodies)
        if part.columns.transaction is not None and self._options.max_bytes is None and self.bound.credit >= step:
            return  # as `reserve` says: the transaction is about to settle as many
        # CRASH: messages are dropped for others only once those are as durable as the policy makes them. Otherwise a
        # power cut, or a full disk, would take both.
        while not self.bound.admits(0, 0):
            excess = self.bound.excess
            dropped = self._engine.overflow.drop_oldest(excess or step, part.first, furthest=not excess)
            self.dropped += dropped
            if not dropped:
                return  # the rest is in flight by now
            step *= 2

    # --- ending

    def refuse_batch(self, error: Exception) -> None:
        """Fail everything accepted and not yet taken, and go on accepting."""
        for part in self.take_all():
            part.fail(error)
            self.done(part)

    def shut_down(self, over: QueueShutDown | None = None) -> None:
        """Accept nothing more, and fail those that wait for room."""
        self._engine.group_commit.hinder()
        self.shut = True
        self._over = over or self._over
        self._waiting.fail(self._over)

    def fail(self, error: Exception) -> None:
        """Fail everything accepted and not yet taken, and those that wait for room."""
        self.shut = True
        self.close_batch()
        while self._closed:
            for part in self._closed.pop(0).parts:
                part.fail(error)
        self._waiting.fail(error)
