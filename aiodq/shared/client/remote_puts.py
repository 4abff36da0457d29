"""Puts of a process that does not own the store: they replace the put buffer behind a topic."""

from __future__ import annotations

import asyncio
import time
from asyncio import _get_running_loop
from collections import deque
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from aiodq.awaited import twice
from aiodq.engine.batch.acceptance import Acceptance
from aiodq.engine.batch.put_batch import (
    OVERHEAD,
    Accepted,
    OpenBatch,
    Part,
    PutResult,
    accepted_cost,
)
from aiodq.engine.loop.futures import settle
from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.engine.topic.commit.group_commit import NOT_NOW
from aiodq.errors import again
from aiodq.format.columns import Columns
from aiodq.shared.connection.sent.sent_puts import SentPut, WithdrawnError
from aiodq.wire.frames import encode_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.clock import Clock
    from aiodq.engine.batch.put_batch import Waiter
    from aiodq.options import StoreOptions
    from aiodq.shared.connection.link import Link

__all__ = ["PuttingTopic", "RemotePuts", "ShortCut"]

T = TypeVar("T")

_MOST_WAITING: Final = 100_000
_AT_ONCE: Final = 1000
_PUT_BYTES: Final = 1 << 20
"""Most messages and bytes of one packet: the messages of one turn of the loop are sent together, each its own put."""

_SHARE: Final = 10
"""Looking through the puts that are not sent yet for cancelled ones takes at most one part in so many of the time."""


class ShortCut:
    """The counterpart of `GroupCommit`: nothing is written at once, but plain bodies take a fast path in `RemotePuts`.

    Attributes:
        inline, lone: as in `GroupCommit`.
        accept: as in `GroupCommit`.
    """

    inline: bool = False
    lone: bool = False

    def __init__(self, puts: RemotePuts) -> None:
        """Accept for these puts."""
        self.accept: Callable[[object], asyncio.Future[int] | None] = puts.accept_plain

    def accept_nowait(self, _body: object) -> None:
        """Leave the message to the buffer."""

    def put_now(self, _body: object, *, gave_way: bool = False) -> int:  # noqa: ARG002 - of `PutAtOnce`, as all of these
        """Leave the message to the buffer."""
        return NOT_NOW

    def put_lone(self, _body: object) -> None:
        """Leave the message to the buffer."""

    def put_many_now(self, _columns: object, _cost: int, *, gave_way: bool = False) -> int:  # noqa: ARG002
        """Leave the messages to the buffer."""
        return NOT_NOW

    def put_labelled_now(self, _message: object, _body: object, *, gave_way: bool = False) -> int:  # noqa: ARG002
        """Leave the message to the buffer."""
        return NOT_NOW

    def put_lone_labelled(self, _message: object, _body: object) -> None:
        """Leave the message to the buffer."""


class PuttingTopic(Protocol):
    """What is needed of the topic; `aiodq.shared.client.remote_topic.RemoteTopic` implements it."""

    name: str
    options: StoreOptions
    clock: Clock
    link: Link
    loop: asyncio.AbstractEventLoop
    unsent: set[RemotePuts]

    @property
    def together(self) -> bool:
        """Whether no put can be refused alone, so that several may be sent together."""
        ...

    @property
    def usable(self) -> bool:
        """Whether the topic can be used, regardless of the caller."""
        ...

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    def is_full(self) -> bool:
        """Return whether the backlog's bound is reached, as far as known here."""
        ...

    def placed(self, offsets: range) -> None:
        """Note that messages of this process are in the log."""
        ...

    def refuse_waiting(self) -> None:
        """Have puts that wait for room at the owner be refused, as no more is accepted."""
        ...

    def find_out(self, then: Callable[[], None]) -> None:
        """Ask whether the topic was deleted, as the owner has refused something; then call `then`."""
        ...


class RemotePuts(Acceptance):
    """The counterpart of `PutBuffer`: it accepts messages, and sends those of one turn of the loop together.

    Attributes:
        pending: the number of accepted messages that the owner has not confirmed.
        shut: whether no more is accepted.
    """

    def __init__(self, topic: PuttingTopic) -> None:
        """Put into this topic."""
        super().__init__(topic)
        self.pending: int = 0
        self.shut: bool = False
        self._over = QueueShutDown("the queue was shut down, or its store closed")
        self._cost = 0
        self._topic = topic
        self._unsent = topic.unsent
        self._loop = topic.loop
        self._batch = OpenBatch()
        self._crowd: OpenBatch | None = None
        self._least = self._most = 0
        self._gate = asyncio.Lock()
        self._roomy = asyncio.Event()
        self._lone = False
        self._number = 0
        self._under_way: dict[int, None] = {}
        self._withdrawing = False
        self._sweep_at = 0.0
        self._sweeping: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    # --- accepting

    def accept(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Accept a message; the future gives its offset once the owner confirms that it is durable."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._lone and not self.pending:
            # A sole producer that awaits each put does not wait for others in this turn.
            self._add(message, body, waiter)
            self._send()
        else:
            self._begin()
            self._add(message, body, waiter)
        return waiter

    def accept_plain(self, body: object) -> asyncio.Future[int] | None:
        """Accept a message that is only a body; None if it has to wait, if only for its error."""
        loop = self._loop
        if self._crowd is not None and type(body) is bytes and self._least <= (size := len(body)) <= self._most:
            # What cannot change within a turn of the loop was checked for the first put of this turn.
            if _get_running_loop() is loop and self._has_room():
                self.pending += 1
                self._cost += size + OVERHEAD
                waiter: asyncio.Future[int] = loop.create_future()
                self._crowd.add_plain(body, waiter, size + OVERHEAD)
                return waiter
            return None
        return self._accept_first(body)

    def _accept_first(self, body: object) -> asyncio.Future[int] | None:
        """Do as `accept_plain` for the first put of a turn of the loop, and for anything that is not a valid body."""
        pending, loop = self.pending, self._loop
        topic = self._topic
        options = topic.options
        if type(body) is not bytes or not options.min_message_bytes <= len(body) <= options.max_message_bytes:
            return None
        if self.shut or self._gate.locked() or (pending and not self._has_room()):
            return None
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:  # no loop runs in this thread, or it is the parent's, before a fork
            here = False
        if not here or not topic.usable:
            return None
        batch, cost = self._batch, len(body) + OVERHEAD
        waiter: asyncio.Future[int] = loop.create_future()
        self.pending = pending + 1
        self._cost += cost
        if self._lone and not pending:
            self._put(Part(Columns([body]), [waiter], atomic=False, cost=cost))
            return waiter
        if not batch.count:
            loop.call_soon(self._send)
            self._unsent.add(self)
        batch.add_plain(body, waiter, cost)
        self._crowd, self._least, self._most = batch, options.min_message_bytes, options.max_message_bytes
        return waiter

    def accept_nowait(self, message: Accepted, body: bytes) -> PutResult:
        """Accept a message for a caller that does not wait.

        Raises:
            QueueFull: no room now, as far as known here.
            QueueShutDown: no more is accepted.
        """
        self._check_shut()
        if not self._has_room():
            raise QueueFull("the write buffer's bound is reached (memory_bytes)")
        if self._topic.is_full():
            raise QueueFull("the backlog's bound is reached (max_messages, max_bytes)")
        result = PutResult()
        self._begin()
        self._add(message, body, result)
        return result

    def accept_columns(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Accept messages that are stored as a whole or not at all; the future gives their offsets."""
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        alone = not self._batch.count
        self._batch.add_part(Part(columns, [waiter], atomic=True, cost=cost))
        self._count(len(columns.bodies), cost)
        if alone:
            self._send()  # it would never be combined with others
        return waiter

    async def enter_one(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Accept a message as soon as there is room, in order of the calls."""
        if not self._gate.locked() and self._has_room():
            return self.accept(message, body)
        ahead = self.ahead()
        return await self.enter(lambda: self.accept(self.one_in_time(message, ahead), body))

    async def enter_columns(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Accept messages that are stored all or none as soon as there is room, in order of the calls."""
        ahead = self.ahead()
        return await self.enter(lambda: self.accept_columns(self.in_time(columns, ahead), cost))

    async def enter(self, accept: Callable[[], T]) -> T:
        """Call `accept` as soon as there is room in memory, in order of the calls.

        Cancellation: nothing was accepted, and the turn goes to the next waiter.
        """
        self._crowd = None  # puts that wait here are not overtaken
        async with self._gate:
            while not (self._has_room() or self.shut):
                self._roomy.clear()
                await self._roomy.wait()
            self._topic.check()
            self._check_shut()
            return accept()

    def _add(self, message: Accepted, body: bytes, waiter: Waiter) -> None:
        self._check_shut()
        cost = accepted_cost(message, body)
        self._batch.add(message, body, waiter, cost)
        self._count(1, cost)

    def check_open(self, *, pressing: bool) -> None:
        """See `PutBuffer.check_open`."""
        if not pressing:
            self._check_shut()

    def _check_shut(self) -> None:
        if self.shut:
            raise again(self._over)

    def _count(self, messages: int, cost: int) -> None:
        self.pending += messages
        self._cost += cost

    def _has_room(self) -> bool:
        return not self.pending or (
            self._cost < self._topic.options.memory_bytes // 2 and self.pending < _MOST_WAITING
        )  # fmt: skip

    def full(self) -> bool:
        """Return whether a put would have to wait or be refused now, as far as known here."""
        return not self._has_room() or self._topic.is_full()

    def withdrawn(self) -> None:
        """Note that a waiter was cancelled: its message is not sent, or not stored if it waits for room there."""
        self._batch.cancelled = True
        if self._under_way and not self._withdrawing:
            self._withdrawing = True
            # Once for all that are cancelled in this turn of the loop.
            twice(self._loop.call_soon, self._withdraw)

    def _withdraw(self) -> None:
        if not self._withdrawing:
            return
        self._withdrawing = False
        left = self._sweep_at - time.monotonic()
        if left <= 0:
            self._sweep()
            return
        self._topic.link.give_up_puts(self._topic.name, queued=False)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(left, self._sweep)

    def _sweep(self) -> None:
        """Drop cancelled puts that are not sent yet, too: they would take room until it is their turn."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        began = time.monotonic()
        self._topic.link.give_up_puts(self._topic.name)
        ended = time.monotonic()
        self._sweep_at = ended + _SHARE * (ended - began)

    # --- sending

    def _begin(self) -> None:
        if not self._batch.count:
            asyncio.get_running_loop().call_soon(self._send)
            self._unsent.add(self)

    def send_anyway(self) -> None:
        """Send what was accepted: an interrupt, as of Ctrl-C, may have come instead of the call that was scheduled."""
        if self._batch.count:
            self._send()
        else:
            self._unsent.discard(self)

    def _send(self) -> None:
        self._unsent.discard(self)
        batch, self._batch, self._crowd = self._batch, OpenBatch(), None
        count, cost = batch.count, batch.cost
        self._lone = count <= 1
        for part in batch.take():
            for piece in _pieces(part, _AT_ONCE if self._topic.together else 1):
                count, cost = count - len(piece.columns.bodies), cost - piece.cost
                self._put(piece)
        self._done(count, cost)

    def _put(self, part: Part) -> None:
        messages = len(part.columns.bodies)
        self._number += 1
        number = self._number
        self._under_way[number] = None
        try:
            frames = encode_messages(part.columns, self._topic.clock.now_ns())
            on_done = partial(self._placed, part, number)
            given_up, cancelled = partial(self._is_given_up, part), partial(_is_cancelled, part)
            put = SentPut(frames, messages, not part.atomic, on_done, given_up, cancelled)
            self._topic.link.put(self._topic.name, put)
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiters are told
            self._placed(part, number, error)

    def _is_given_up(self, part: Part) -> bool:
        """Return whether a put is not to wait for room: its callers were cancelled, or it is refused by a shutdown."""
        return part.cancelled or (self.shut and not any(isinstance(waiter, PutResult) for waiter in part.waiters))

    def _placed(self, part: Part, number: int, found: range | Exception) -> None:
        """Handle the outcome of a part."""
        if isinstance(found, WithdrawnError) and self.shut:
            found = copy(self._over)
        if isinstance(found, QueueShutDown) and self._topic.usable and not self.shut:
            # Its waiters may open the topic again, if it was deleted. A drain leaves it as it is.
            self._topic.find_out(partial(self._tell, part, number, found))
        else:
            self._tell(part, number, found)

    def _tell(self, part: Part, number: int, found: range | Exception) -> None:
        if isinstance(found, Exception):
            part.fail(found)
        else:
            self._topic.placed(found)
            part.first = found.start
            part.resolve()
        self._done(len(part.columns.bodies), part.cost)
        del self._under_way[number]
        if self._waiting:
            self._tell_waiting()

    def _done(self, messages: int, cost: int) -> None:
        self.pending -= messages
        self._cost -= cost
        self._roomy.set()

    def flush(self) -> None:
        """Send what was accepted in this turn of the loop."""
        if self._batch.count:
            self._send()

    async def settled(self) -> None:
        """Wait until the outcome of everything accepted before is known.

        Cancellation: nothing changes.
        """
        self.flush()
        if self._under_way:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._number, waiter))
            await waiter

    def _tell_waiting(self) -> None:
        oldest = next(iter(self._under_way), self._number + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            _, waiter = self._waiting.popleft()
            settle(waiter, None, None)

    def shut_down(self, over: QueueShutDown | None = None) -> None:
        """Accept no more, and fail the puts that wait for room."""
        self.shut = True
        self._crowd = None
        self._over = over or self._over
        self._roomy.set()
        if self._under_way or self._batch.count:
            self._topic.refuse_waiting()


def _is_cancelled(part: Part) -> bool:
    return part.cancelled


def _pieces(part: Part, most: int) -> Iterator[Part]:
    """Split a part into puts of up to `most` messages and about a MiB each, unless it is atomic."""
    if part.atomic or (len(part.waiters) <= most and part.cost <= _PUT_BYTES):
        yield part
        return
    left, first, size = part.cost, 0, 0
    sizes = list(part.columns.sizes())
    for stop, each in enumerate(sizes, 1):
        size += each + OVERHEAD
        last = stop == len(sizes)
        if last or stop - first == most or size > _PUT_BYTES:
            cost = left if last else min(size, left)
            waiters: list[Waiter] = part.waiters[first:stop]
            yield Part(part.columns.slice(first, stop), waiters, atomic=False, cost=cost)
            left, first, size = left - cost, stop, 0
