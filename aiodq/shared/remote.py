"""What stands behind a `Topic` and a `Channel` of a store that another process owns, in place of their engines.

The objects that users hold are the same: they ask an engine, and here that one asks the owner.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from aiodq.delivery.leases import ACKED
from aiodq.engine.channel.failure_causes import NO_CAUSE, Cause
from aiodq.engine.channel.held_by_task import HeldByTask
from aiodq.engine.channel.message_lease import MessageLease
from aiodq.engine.channel.wait_queue import WaitQueue
from aiodq.engine.put_batch import Accepted, Draft, OpenBatch, Part, atomic_part, columns_cost
from aiodq.engine.validation import check_bodies, checked, no_body
from aiodq.errors import InvalidMessageTypeError, NotInFlightError, OwnerLostError
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.message import Message
from aiodq.options import ChannelOptions
from aiodq.shared.link import error_of
from aiodq.wire.frames import decode_messages, encode_messages
from aiodq.wire.layout import UNSAID
from aiodq.wire.packets import Ack, Done, Fail, Held, Item, Nack, Range, Reject, Release, Resume, Touch, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.leases import Lease
    from aiodq.shared.link import Link
    from aiodq.wire.packets import Deliver
    from aiodq.wire.packets import Message as Said

__all__ = ["RemoteChannel", "RemotePuts"]


class RemotePuts:
    """Takes messages in, and sends all that come in one turn of the loop together; as `PutBuffer`."""

    def __init__(self, link: Link, topic: str, clock: Clock) -> None:
        """Put into this topic."""
        self.shut: bool = False
        self._link = link
        self._topic = topic
        self._clock = clock
        self._batch = OpenBatch()
        self._tasks: set[asyncio.Task[None]] = set()

    def body(self, body: bytes | bytearray | memoryview) -> bytes:
        """Return the body as bytes; how long it may be, the owner knows.

        Raises:
            InvalidMessageError: not bytes-like; a `TypeError` too.
        """
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise InvalidMessageTypeError(no_body(body))
        return bytes(body)

    def accepted(self, draft: Draft) -> Accepted:
        """Return what is to be stored of a draft besides its body.

        Raises:
            InvalidMessageError: it cannot be.
        """
        return checked(draft, self._clock)

    def accepted_many(
        self, bodies: Iterable[bytes | bytearray | memoryview | Draft], common: Draft
    ) -> list[tuple[Accepted, bytes]]:
        """As `PutBuffer.accepted_many`."""
        check_bodies(bodies)
        shared = self.accepted(common)
        return [
            (self.accepted(item), self.body(item.body)) if isinstance(item, Draft) else (shared, self.body(item))
            for item in bodies
        ]

    def accept(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Take a message in; the future gives its offset once the owner says that it is durable."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._begin()
        self._batch.add(message, body, waiter, len(body))
        return waiter

    accept_at_once = accept

    def accept_many(self, messages: list[tuple[Accepted, bytes]]) -> asyncio.Future[range]:
        """Take messages in that are stored all or not at all."""
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._begin()
        self._batch.add_part(atomic_part(messages, waiter))
        return waiter

    def accept_plain(self, bodies: list[bytes], cost: int) -> asyncio.Future[range]:
        """As `accept_many`, of messages that are nothing but bodies."""
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._begin()
        self._batch.add_part(Part(Columns(bodies), [waiter], atomic=True, cost=cost or columns_cost(Columns(bodies))))
        return waiter

    async def enter(self, accept: Callable[[], Any]) -> Any:  # noqa: ANN401 - it returns what `accept` does
        """Have a message accepted."""
        return accept()

    def withdrawn(self) -> None:
        """Somebody who waited was cancelled."""
        self._batch.cancelled = True

    def _begin(self) -> None:
        if not self._batch.count:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        batch, self._batch = self._batch, OpenBatch()
        for part in batch.take():
            task = asyncio.get_running_loop().create_task(self._put(part))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _put(self, part: Part) -> None:
        frames = encode_messages(part.columns, self._clock.now_ns())
        try:
            placed = await self._link.put(self._topic, frames, len(part.columns.bodies), each=not part.atomic)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
            part.fail(error)
        else:
            part.first = placed.start
            part.resolve()


class _NoTransactions:
    """A process that does not own the store has no transactions yet."""

    def current(self) -> None:
        """Return the one whose block the running task is in."""


class _Mine(NamedTuple):
    """A message in this process's hands: its offset, the owner's delivery number, and how often it was delivered."""

    offset: int
    delivery: int
    attempts: int


class RemoteChannel:
    """As `ChannelEngine`, of a channel that another process delivers.

    Attributes:
        lease, bodies, until, monotonic: as there; no message is ever handed out by counting one up.
    """

    def __init__(self, link: Link, topic: str, name: str) -> None:
        """Deliver what the owner sends; `Link.open_channel` begins it."""
        self.name = name
        self.options: ChannelOptions = ChannelOptions()
        self.special: bool = False
        self.counting: bool = False
        self.state: None = None
        self.error: Exception | None = None
        self.transactions: _NoTransactions = _NoTransactions()
        self.held_by_task: HeldByTask[Any] = HeldByTask()
        self.lease: MessageLease = MessageLease(topic, Batch(0, 0, Columns([])))
        self.bodies: list[bytes] = []
        self.until: float = 0.0
        self.monotonic: Callable[[], float] = time.monotonic
        self._link = link
        self._topic = topic
        self._epoch = 0
        self._ready: deque[tuple[MessageLease, int, bytes]] = deque()
        self._mine: dict[int, _Mine] = {}
        self._number = 0
        self._resumed = True
        self._settling: dict[int, Callable[[int, _Mine], Said]] = {}
        self._refused: list[Exception] = []
        self._settled = asyncio.Event()
        self._wait_queue = WaitQueue(self._wake)
        self._waiting = 0
        self._got = 0
        self._wanted = 0

    @property
    def place(self) -> str:
        """Which channel of which topic this is, in words."""
        return f"{self._topic!r}, channel {self.name!r}"

    # --- what the owner says; see `Listener`

    def delivered(self, said: Deliver, epoch: int) -> None:
        """Messages have come, for those who wait."""
        if epoch != self._epoch:
            return
        for batch in decode_messages(said.frames, said.first):
            # Numbers of this process's own: those of two owners may be the same.
            number, self._number = self._number, self._number + len(batch.columns.bodies)
            lease = MessageLease(self._topic, batch, number=number, attempts=said.attempts, channel_engine=self)  # type: ignore[arg-type]
            for index, body in enumerate(batch.columns.bodies):
                offset = batch.first + index
                self._ready.append((lease, index, body))
                self._mine[number + index] = _Mine(offset, said.delivery + offset - said.first, said.attempts)
            self._got += len(batch.columns.bodies)
        if self._waiting:
            self._wake()
        else:
            self._withdraw()

    def reopened(self, epoch: int) -> None:
        """An owner knows nothing of what was wanted and held here: what nobody has taken is its own to deliver anew."""
        before, self._epoch, self._got, self._wanted = self._epoch, epoch, 0, 0
        for lease, index, _ in self._ready:
            self._mine.pop(lease.number + index, None)
        self._ready.clear()
        self._want()
        self._resumed = not self._mine
        if self._resumed:
            return
        held = tuple(Held(one.offset, one.delivery, 1, one.attempts) for one in self._mine.values())
        answer = self._link.request(lambda handle: Resume(handle, before, held), self._topic, self.name)
        answer.add_done_callback(lambda done: self._claimed(done.result(), epoch))

    def _claimed(self, said: Said, epoch: int) -> None:
        """An owner has said what of it is still this process's."""
        if epoch != self._epoch or not isinstance(said, Done):
            return  # the next owner is asked anew
        rows = (said.facts or {}).get("held", [])
        given = {first + at: delivery + at for first, delivery, count in rows for at in range(count)}
        for number, one in list(self._mine.items()):
            if one.offset in given:
                self._mine[number] = one._replace(delivery=given[one.offset])
            else:
                self._drop(number)
        self._resumed = True
        for number in list(self._settling):
            self._send(number)

    def _want(self) -> None:
        wanted = self._got - len(self._ready) + self._waiting
        if wanted > self._wanted:
            self._wanted = wanted
            self._link.tell(lambda handle: Want(handle, wanted), self._topic, self.name)

    def _wake(self) -> None:
        self._wait_queue.wake(min(len(self._wait_queue.line), len(self._ready)))

    # --- getting

    def take_next(self, _store_ref: object) -> Message | None:
        """Hand out what is here already; None where nothing is."""
        if not self._ready:
            return None
        lease, index, body = self._ready.popleft()
        return Message(lease, index, body)

    def take(self, store_ref: object, *, cold: bool = False) -> Message | None:  # noqa: ARG002 - as the engine's
        """As `take_next`."""
        return self.take_next(store_ref)

    def take_run(self, most: int, store_ref: object) -> list[Message]:
        """Hand out up to so many that are here already."""
        return [message for _ in range(most) if (message := self.take_next(store_ref)) is not None]

    async def get(self, store_ref: object) -> Message:
        """Wait for the next message.

        Cancellation: nothing is taken, and the wake-up goes to the next who waits.
        """
        self._waiting += 1
        try:
            while True:
                message = self.take_next(store_ref)
                if message is not None:
                    return message
                if self.error is not None:
                    raise self.error
                self._want()
                await self._wait_queue.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._withdraw()

    def _withdraw(self) -> None:
        """Nobody waits any more: what is here, or crosses on the way, is for others."""
        if self._wanted > self._got:
            self._wanted = self._got
            self._link.tell(lambda handle: Want(handle, self._wanted), self._topic, self.name)
        while self._ready:
            lease, index, _ = self._ready.popleft()
            self._release(lease.first + index, lease.number + index)

    # --- settling

    def check_context(self) -> None:
        """Nothing forbids it here."""

    def check(self, offset: int, delivery: int) -> None:
        """Raise unless the message is in this process's hands.

        Raises:
            NotInFlightError: it is not.
        """
        if not self.holds(offset, delivery):
            raise NotInFlightError(f"message {offset} of {self.place} is not in this process's hands any more")

    def holds(self, offset: int, held: int) -> bool:
        """Return whether a message is still held by that number."""
        mine = self._mine.get(held)
        return mine is not None and mine.offset == offset and held not in self._settling

    def _settle(self, offset: int, number: int, say: Callable[[int, _Mine], Said]) -> None:
        """Have the owner settle a message: this one, or the next, until one says that it is done."""
        self.check(offset, number)
        self._settling[number] = say
        if self._resumed:
            self._send(number)

    def _send(self, number: int) -> None:
        mine, say = self._mine[number], self._settling[number]
        answer = self._link.request(lambda handle: say(handle, mine), self._topic, self.name)
        answer.add_done_callback(lambda done: self._answered(number, done.result()))

    def _answered(self, number: int, said: Said) -> None:
        if isinstance(said, Fail):
            if said.name == OwnerLostError.__name__:
                return  # it is said again to the next owner
            self._refused.append(error_of(said))
        self._drop(number)

    def _drop(self, number: int) -> None:
        self._mine.pop(number, None)
        if self._settling.pop(number, None) is not None and not self._settling:
            settled, self._settled = self._settled, asyncio.Event()
            settled.set()

    def ack(self, offset: int, delivery: int) -> None:
        """Settle a message; `commit` waits until the owner says that it is durable."""
        self._settle(
            offset, delivery, lambda handle, one: Ack(handle, self._epoch, (Range(one.offset, one.delivery, 1),))
        )

    def ack_many(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Settle messages: all of them, or, where one cannot be, none."""
        for offset, delivery in deliveries:
            self.check(offset, delivery)
        for offset, delivery in deliveries:
            self.ack(offset, delivery)

    def ack_run(self, lease: Lease, first: int, count: int) -> None:
        """Settle so many messages of a lease."""
        for index in range(first, first + count):
            self.ack(lease.first + index, lease.number + index)
            lease.marks[index] = ACKED

    def nack(
        self, batch: Batch, delivery: int, attempts: int, delay: int | None = None, cause: Cause = NO_CAUSE
    ) -> int | None:
        """Make a message ready again."""
        del cause
        span = UNSAID if delay is None else delay
        self._settle(
            batch.first,
            delivery,
            lambda handle, one: Nack(handle, self._epoch, (Item(one.offset, one.delivery, span, attempts),)),
        )
        return delay or 0

    def release(self, batch: Batch, delivery: int, attempts: int) -> None:
        """Make a message ready again as if it had never been handed out."""
        del attempts
        self._release(batch.first, delivery)

    def _release(self, offset: int, delivery: int) -> None:
        self._settle(
            offset, delivery, lambda handle, one: Release(handle, self._epoch, (Range(one.offset, one.delivery, 1),))
        )

    def reject(
        self, batch: Batch, delivery: int, attempts: int, reason: str, cause: Cause = NO_CAUSE
    ) -> asyncio.Future[Any]:
        """Give a message up; the future ends once that is durable."""
        error = cause.error or ""
        self._settle(
            batch.first,
            delivery,
            lambda handle, one: Reject(handle, attempts, self._epoch, one.offset, one.delivery, reason, error),
        )
        return asyncio.ensure_future(self.commit())

    def touch(self, offset: int, delivery: int, extend: int | None) -> None:
        """Begin a message's time anew."""
        self.check(offset, delivery)
        mine = self._mine[delivery]
        items = (Item(offset, mine.delivery, UNSAID if extend is None else extend, mine.attempts),)
        self._link.tell(lambda handle: Touch(handle, self._epoch, items), self._topic, self.name)

    async def commit(self) -> None:
        """Wait until everything that was settled here is durable.

        Raises:
            NotInFlightError: some of it was taken away before.
        """
        while self._settling:
            await self._settled.wait()
        if self._refused:
            raise self._refused.pop()

    async def committed(self) -> None:
        """As `commit`."""
        await self.commit()
