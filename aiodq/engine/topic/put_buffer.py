"""Accepting messages: checks, the open batch, backpressure, and the three answers to a full backlog."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from aiodq.engine.put_batch import (
    OVERHEAD,
    PLAIN,
    Accepted,
    Draft,
    OpenBatch,
    Part,
    PutResult,
    accepted_cost,
    columns_cost,
)
from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.engine.topic.backlog_bound import BacklogBound, BoundedTopic
from aiodq.engine.validation import check_bodies, checked, no_body
from aiodq.errors import InvalidMessageTypeError, MessageSizeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiodq.clock import Clock
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.put_batch import Waiter
    from aiodq.format.columns import Columns
    from aiodq.storage.log.producer_table import Origin

__all__ = ["PutBuffer", "PutTopic"]

T = TypeVar("T")
W = TypeVar("W", "asyncio.Future[int]", PutResult)

_MOST_WAITING: Final = 100_000


class _BufferFull(QueueFull):
    """It is the write buffer that has no room, not the backlog."""


class _GroupCommit(Protocol):
    """See `aiodq.engine.topic.group_commit.GroupCommit`."""

    def stop_inline(self) -> None: ...

    def hinder(self) -> None: ...


class PutTopic(BoundedTopic, Protocol):
    """What is needed of the topic that is put into: `aiodq.engine.topic.topic_engine.TopicEngine` has it."""

    loop: asyncio.AbstractEventLoop
    clock: Clock

    @property
    def channel_engines(self) -> Mapping[str, ChannelEngine[Any]]:
        """Its channels, by name."""
        ...

    @property
    def group_commit(self) -> _GroupCommit:
        """How messages get into its log."""
        ...

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    def opened(self, *, ready: bool = False) -> None:
        """The open batch is no longer empty."""
        ...


class PutBuffer:
    """The way into a topic.

    Attributes:
        batch: what was accepted and not yet taken by the writer.
        pending: messages accepted and not yet visible to channels.
        cost: their bytes of memory.
        shut: no more is accepted.
        bounded: the backlog has a bound.
        bound: whether the backlog has room.
    """

    __slots__ = (
        "_closed", "_engine", "_limit", "_loop", "_options", "_over", "_turn", "_waiting", "batch", "bound", "bounded",
        "cost", "dropped", "pending", "shut",
    )  # fmt: skip

    def __init__(self, engine: PutTopic) -> None:
        """Accept for this topic."""
        self.batch: OpenBatch = OpenBatch()
        self._closed: deque[OpenBatch] = deque()
        self.pending: int = 0
        self.cost: int = 0
        self.shut: bool = False
        self.dropped: int = 0
        self._over = QueueShutDown("the queue was shut down, or its store closed")
        self._engine = engine
        self._loop = engine.loop
        self.bound: BacklogBound = BacklogBound(engine)
        self.configure()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turn = False

    def configure(self) -> None:
        """Take over the topic's options."""
        self._options = self._engine.options
        self._limit = self._options.memory_bytes // 2
        self.bounded: bool = self._options.max_messages is not None or self._options.max_bytes is not None

    # --- checks

    def body(self, body: bytes | bytearray | memoryview) -> bytes:
        """Return the body as bytes.

        Raises:
            MessageSizeError: outside the topic's bounds.
            InvalidMessageError: not bytes-like; a `TypeError` too.
        """
        if type(body) is not bytes:
            if not isinstance(body, (bytes, bytearray, memoryview)):
                raise InvalidMessageTypeError(no_body(body))
            body = bytes(body)
        size, options = len(body), self._options
        if not options.min_message_bytes <= size <= options.max_message_bytes:
            raise MessageSizeError(
                f"a message of {size} bytes; this topic takes {options.min_message_bytes} to "
                f"{options.max_message_bytes} (min_message_bytes, max_message_bytes)"
            )
        return body

    def accepted(self, draft: Draft) -> Accepted:
        """Return what is to be stored of a draft besides its body.

        Raises:
            InvalidMessageError: it cannot be.
        """
        return checked(draft, self._engine.clock.now_ns)

    def moment(self) -> Callable[[], int]:
        """Return what tells the wall time, the same one to whoever asks: that which delays and lives begin at."""
        return cache(self._engine.clock.now_ns)

    def accepted_many(
        self, bodies: Iterable[bytes | bytearray | memoryview | Draft], common: Draft
    ) -> list[tuple[Accepted, bytes]]:
        """Return what is to be stored of several messages; what is no draft has what `common` says besides its body.

        Raises:
            MessageSizeError, InvalidMessageError: one cannot be stored.
        """
        check_bodies(bodies)
        now_ns = self.moment()
        return self.accepted_all(bodies, checked(common, now_ns), now_ns)

    def accepted_all(
        self,
        bodies: Iterable[bytes | bytearray | memoryview | Draft],
        shared: Accepted,
        now_ns: Callable[[], int],
    ) -> list[tuple[Accepted, bytes]]:
        """Return what is to be stored of several messages; what is no draft has what `shared` says besides its body.

        They are put at one wall time, which `moment` gives.

        Raises:
            MessageSizeError, InvalidMessageError: one cannot be stored.
        """
        return [
            (checked(item, now_ns), self.body(item.body)) if isinstance(item, Draft) else (shared, self.body(item))
            for item in bodies
        ]

    # --- accepting

    def accept_nowait(self, message: Accepted, body: bytes) -> PutResult:
        """As `accept`, for who need not wait."""
        cost = accepted_cost(message, body)
        self._make_room(1, cost)
        result = PutResult()
        self._add_for(message, body, cost, result)
        return result

    def accept(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Take a message in; the future gives its offset once it is as durable as the policy says.

        Raises:
            QueueFull: no room now.
            QueueShutDown: no more is accepted.
        """
        cost = accepted_cost(message, body)
        self._make_room(1, cost)
        return self._add(message, body, cost)

    def _add(self, message: Accepted, body: bytes, cost: int) -> asyncio.Future[int]:
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._add_for(message, body, cost, waiter)
        return waiter

    def _add_for(self, message: Accepted, body: bytes, cost: int, waiter: Waiter) -> None:
        if not self.batch.count:
            self._engine.opened()
        self.batch.add(message, body, waiter, cost)
        self.pending += 1
        self.cost += cost

    def add_plain(self, body: bytes, cost: int, waiter: W) -> W | None:
        """Take a plain message in where `GroupCommit.ready`; None where there is no room."""
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
        """As `accept`, as soon as there is room, after those who came before; see `enter`."""
        cost = len(body) + OVERHEAD if message is PLAIN else accepted_cost(message, body)
        if self.shut or self._waiting or self._turn or not self.has_room(1, cost):
            return await self.enter(partial(self.accept, message, body))
        return self._add(message, body, cost)

    def accept_columns(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Take messages in that are stored all or not at all, and cost so many bytes; the future gives their offsets.

        Raises:
            QueueFull: no room now.
            QueueShutDown: no more is accepted.
        """
        self._make_room(len(columns.bodies), cost)
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._add_part(Part(columns, [waiter], atomic=True, cost=cost))
        return waiter

    def accept_of(self, columns: Columns, origin: Origin) -> asyncio.Future[range]:
        """As `accept_columns`, of messages that somebody puts who may put them again; the log knows them then.

        Raises:
            QueueFull: no room now.
            QueueShutDown: no more is accepted.
        """
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self.accept_part(Part(columns, [waiter], atomic=True, cost=columns_cost(columns), origin=origin))
        return waiter

    def accept_part(self, part: Part) -> None:
        """Take messages in that are stored all or not at all.

        Raises:
            QueueFull: no room now.
            QueueShutDown: no more is accepted.
        """
        self._make_room(len(part.columns.bodies), part.cost)
        self._add_part(part)

    def _add_part(self, part: Part) -> None:
        if not self.batch.count:
            self._engine.opened()
        self.batch.add_part(part)
        self.pending += len(part.columns.bodies)
        self.cost += part.cost

    def reserve(self, messages: int, cost: int, *, pressing: bool) -> None:
        """Count messages of a transaction before they come; `unreserve` ends it.

        Args:
            messages: how many.
            cost: their bytes of memory.
            pressing: also where no more is accepted from outside.

        Raises:
            QueueFull: no room now.
            QueueShutDown: no more is accepted.
        """
        if not (self.shut and pressing):
            self._make_room(messages, cost)
        self._engine.group_commit.stop_inline()
        self.pending += messages
        self.cost += cost

    def unreserve(self, messages: int, cost: int) -> None:
        """Count them no longer, as they come now, or will not."""
        self.pending -= messages
        self.cost -= cost
        self.freed()
        self._tell_of_the_end()

    def accept_committed(self, columns: Columns) -> asyncio.Future[range]:
        """Take in what a transaction has committed, whether there is room or not; the future gives the offsets."""
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._add_part(Part(columns, [waiter], atomic=True, cost=columns_cost(columns)))
        return waiter

    def close_batch(self) -> None:
        """Let what is accepted from now on be a batch of its own, behind what is about to be asked of the ioLoop."""
        if self.batch.count:
            self._closed.append(self.batch)
            self.batch = OpenBatch()

    def next_batch(self) -> OpenBatch | None:
        """Return the batch that `take` would give, or None where nothing waits to be written."""
        if self._closed:
            return self._closed[0]
        return self.batch if self.batch.count else None

    def take(self) -> list[Part]:
        """Give the oldest batch to the writer."""
        if not self._closed:
            self.close_batch()
        if not self._closed:
            return []
        # INVARIANT: what is not returned stays here, where `fail` finds it.
        batch = self._closed[0]
        parts = batch.take()
        self._closed.popleft()
        if not batch.cancelled:
            return parts
        withdrawn = batch.count - sum(len(part.columns.bodies) for part in parts)
        if withdrawn:
            self.pending -= withdrawn
            self.cost -= batch.cost - sum(part.cost for part in parts)
            self.freed()
        return parts

    def take_all(self) -> list[Part]:
        """Give all there is."""
        parts: list[Part] = []
        while self.next_batch() is not None:
            parts += self.take()
        return parts

    def withdrawn(self) -> None:
        """Somebody who waited was cancelled: what was not taken yet is looked through for it when it is."""
        for batch in (*self._closed, self.batch):
            batch.cancelled = True

    def done(self, part: Part) -> None:
        """A part is visible, or failed."""
        self.pending -= len(part.columns.bodies)
        self.cost -= part.cost
        if self._waiting:
            self.freed()
        self._tell_of_the_end()

    def _tell_of_the_end(self) -> None:
        """Wake those who wait for more where nothing comes any more."""
        if self.shut and not self.pending:
            for channel_engine in self._engine.channel_engines.values():
                channel_engine.wake()

    # --- room

    async def enter(self, accept: Callable[[], T]) -> T:
        """Have a message accepted as soon as there is room, after those who came before.

        Raises:
            QueueFull: the backlog's bound is reached and the policy is `"reject"`.
            QueueShutDown, StoreFailedError: it is over.

        Cancellation: nothing was accepted, and the turn goes to the next who waits.
        """
        turn = False
        while True:
            self._engine.check()
            if turn or not (self._waiting or self._turn) or self.shut:
                # INVARIANT: while one makes room, that room is nobody else's.
                self._turn, waits = True, False
                try:
                    return accept()
                except _BufferFull:
                    waits = True  # that passes by itself
                except QueueFull:
                    waits = self._options.overflow != "reject"
                    if not waits:
                        raise
                finally:
                    self._turn = False
                    if not waits:
                        self.freed()
            await self._wait_for_room(first=turn)
            turn = True

    @property
    def at_rest(self) -> bool:
        """Whether nobody waits for room, and more is accepted."""
        return not (self.shut or self._waiting or self._turn)

    async def _wait_for_room(self, *, first: bool) -> None:
        self._engine.group_commit.hinder()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self.freed()  # those behind may fit in where this one did not
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._turn = False
                self.freed()
            raise
        self._turn = False

    def freed(self, *, anyhow: bool = False) -> None:
        """Give the turn to the first who waits, as there may be room: to one at a time, so that the order is kept.

        Args:
            anyhow: also where there seems to be none: what is in the way may be dropped from now on.
        """
        while self._waiting and not self._turn and (anyhow or self._may_enter()):
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._turn = True
                waiter.set_result(None)

    def _may_enter(self) -> bool:
        """Return whether the first who waits may be let in, or is to make room or be refused."""
        return not self._buffer_full(0) and (self._options.overflow != "block" or self.has_room(1, 0))

    def full(self) -> bool:
        """Return whether a message of no bytes would be refused now."""
        return not self.has_room(1, 0)

    def accept_letter(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Take a dead letter in, also where no more is accepted from outside.

        Raises:
            QueueFull: no room now.
        """
        cost = accepted_cost(message, body)
        if not self.shut:
            self._make_room(1, cost)
        return self._add(message, body, cost)

    def _make_room(self, messages: int, cost: int) -> None:
        if self.shut:
            raise self._over
        if self.has_room(messages, cost):
            return
        if self.bounded and self._options.overflow == "drop_oldest" and not self._buffer_full(cost):
            self._drop_oldest(messages, cost)
            return
        if self.bounded and not self._within_bounds(messages, cost):
            raise QueueFull("the backlog's bound is reached (max_messages, max_bytes)")
        raise _BufferFull("the write buffer's bound is reached (memory_bytes)")

    def has_room(self, messages: int, cost: int) -> bool:
        """Return whether so many messages of so many bytes of memory would be accepted now."""
        return not self._buffer_full(cost) and (not self.bounded or self._within_bounds(messages, cost))

    def _buffer_full(self, cost: int) -> bool:
        return bool(self.pending) and (self.cost + cost > self._limit or self.pending >= _MOST_WAITING)

    def _within_bounds(self, messages: int, cost: int) -> bool:
        if self.bound.admits(self.pending + messages, self.cost + cost):
            return True
        return not self.pending and self.bound.empty

    def _drop_oldest(self, messages: int, cost: int) -> None:
        """Settle the oldest ready messages of every channel that is over the bound, until there is room."""
        step = messages
        while not self._within_bounds(messages, cost):
            dropped = self._engine.retention.drop_oldest(step)
            self.dropped += dropped
            if not dropped:
                raise QueueFull("the backlog is full of messages in flight or not yet written")
            step *= 2

    # --- ending

    def refuse_batch(self, error: Exception) -> None:
        """Fail what is in the open batch, and go on accepting."""
        for part in self.take_all():
            part.fail(error)
            self.done(part)

    def shut_down(self, over: QueueShutDown | None = None) -> None:
        """Accept no more; who waits for room is told."""
        self._engine.group_commit.hinder()
        self.shut = True
        self._over = over or self._over
        self._fail_waiting(self._over)

    def fail(self, error: Exception) -> None:
        """Tell everyone that nothing comes of it."""
        self.shut = True
        self.close_batch()
        while self._closed:
            for part in self._closed.popleft().parts:
                part.fail(error)
        self._fail_waiting(error)

    def _fail_waiting(self, error: Exception) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)
