"""What an owner does for one client: everything that comes over a connection but the bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.engine.channel.message_lease import MessageLease
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, InvalidOptionError, NotInFlightError, OwnerLostError, ProtocolError
from aiodq.format.columns import Columns
from aiodq.message import Message
from aiodq.names import check_name, check_topic_name
from aiodq.storage.log.producer_table import MOST_PENDING, Origin
from aiodq.storage.log.topic_log import TopicLog
from aiodq.topic import Topic
from aiodq.wire.frames import decode_messages, encode_messages
from aiodq.wire.layout import UNSAID, VERSION
from aiodq.wire.packets import (
    Ack,
    Bye,
    Call,
    Deliver,
    Done,
    Fail,
    Figures,
    Hello,
    Nack,
    Open,
    Ping,
    Pong,
    Put,
    Range,
    Reject,
    Release,
    Resume,
    Touch,
    Want,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from aiodq.channel import Channel
    from aiodq.engine.store_engine import StoreEngine
    from aiodq.wire.packets import Message as Said
    from aiodq.wire.payload import Held
    from aiodq.wire.stream import Packet

__all__ = ["Owning", "Session"]

_AT_ONCE: Final = 100
"""Messages that one client is given of a channel before it is another's turn."""

_PACKET_BYTES: Final = 256 * 1024
"""Bytes of bodies after which a delivery is sent, though there is more."""

_SECOND: Final = 1_000_000_000


class Owning(Protocol):
    """What a session asks of who owns the store.

    Attributes:
        engine: the store's.
        pid: the owner's process.
        epoch: the owner's.
        largest: bytes of the largest packet.
        putting: puts under way that may come again, by topic and origin.
    """

    engine: StoreEngine
    pid: int
    epoch: int
    largest: int
    putting: dict[tuple[str, Origin], asyncio.Future[range]]


class Wire(Protocol):
    """The connection."""

    def send(self, said: Said, request: int = 0) -> None:
        """Send a packet."""
        ...

    async def writable(self) -> None:
        """Wait until the other end takes what was sent."""
        ...

    def end(self) -> None:
        """Close, once what was said is sent."""
        ...


class Session:
    """One client.

    Attributes:
        client: what it said of itself; None before that.
    """

    def __init__(self, owner: Owning, wire: Wire) -> None:
        """Begin with whoever has connected."""
        self.client: Hello | None = None
        self._owner = owner
        self._wire = wire
        self._topics: dict[int, Topic] = {}
        self._lendings: dict[int, _Lending] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._says: dict[type[Any], Callable[[Any, int], None]] = {
            Open: self._open,
            Put: self._put,
            Want: self._want,
            Ack: self._ack,
            Nack: self._nack,
            Touch: self._touch,
            Release: self._release,
            Reject: self._reject,
            Resume: self._resume,
            Call: self._call,
            Ping: self._ping,
            Bye: self._bye,
        }

    def receive(self, packet: Packet) -> None:
        """Do what a client says.

        Raises:
            ProtocolError: nobody who speaks this protocol says that here; nothing more is to be heard of it.
        """
        said, request = packet
        if self.client is None:
            if not isinstance(said, Hello):
                raise ProtocolError(f"{said.op.name} comes before HELLO")
            self._welcome(said, request)
            return
        does = self._says.get(type(said))
        if does is None:
            raise ProtocolError(f"{said.op.name} is nothing for an owner, or for one of this version")
        try:
            does(said, request)
        except ProtocolError:
            raise
        except (AiodqError, asyncio.QueueEmpty, asyncio.QueueFull) as error:
            self._fail(error, request)

    def _welcome(self, said: Hello, request: int) -> None:
        if not said.oldest <= VERSION <= said.newest:
            raise ProtocolError(f"this owner speaks version {VERSION}, the client {said.oldest} to {said.newest}")
        self.client = said
        owner = self._owner
        self._wire.send(Welcome(VERSION, owner.pid, owner.epoch, owner.largest, 0), request)

    async def end(self) -> None:
        """The client is gone: what it held goes back, as if it had never been delivered."""
        tasks = [*self._tasks, *(lending.stop() for lending in self._lendings.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lending in self._lendings.values():
            lending.give_back()

    # --- answers

    def _fail(self, error: Exception, request: int) -> None:
        if not self._owner.engine.usable:
            error = OwnerLostError("this owner ends", self._owner.engine.path)
        retriable = getattr(error, "retriable", False)
        path, position = getattr(error, "path", ""), getattr(error, "position", None)
        text = str(getattr(error, "message", None) or error).encode()[:4096].decode(errors="ignore")
        self._wire.send(
            Fail(
                type(error).__name__,
                bool(retriable),
                getattr(error, "errno", None) or 0,
                -1 if position is None else position,
                getattr(error, "pid", None) or 0,
                path,
                text,
            ),
            request,
        )

    def _start(self, doing: Coroutine[Any, Any, Done], request: int) -> None:
        """Do something that takes longer, and answer."""
        task = asyncio.get_running_loop().create_task(self._answered(doing, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, doing: Awaitable[Done], request: int) -> None:
        try:
            done = await doing
        except (AiodqError, asyncio.QueueFull, asyncio.QueueEmpty) as error:
            self._fail(error, request)
        else:
            self._wire.send(done, request)

    # --- topics

    def _open(self, said: Open, request: int) -> None:
        engine = self._owner.engine
        check_topic_name(said.topic, engine.topics)
        engine.check()
        if said.handle in self._topics or said.handle in self._lendings:
            raise ProtocolError(f"the handle {said.handle} is in use")
        if said.options:
            raise InvalidOptionError(f"options of {said.topic!r} over a socket: {sorted(said.options)}")
        topic = Topic(engine, engine.engine(said.topic))
        if not said.channel:
            self._topics[said.handle] = topic
            self._wire.send(Done(None, {"window": MOST_PENDING}), request)
            return
        channel = topic.channel(check_name(said.channel, "channel"))
        self._lendings[said.handle] = _Lending(self._owner, self._wire, said.handle, topic, channel)
        self._start(self._settled_in(topic), request)

    async def _settled_in(self, topic: Topic) -> Done:
        await topic.settle_in()
        return Done()

    def _put(self, said: Put, request: int) -> None:
        topic = self._topics.get(said.handle)
        if topic is None or self.client is None:
            raise ProtocolError(f"PUT: the handle {said.handle} is no topic's")
        batches = decode_messages(said.frames, 0, said.count)
        columns = Columns.joined([batch.columns for batch in batches])
        columns.times = None
        self._start(self._place(topic, Origin(self.client.producer, said.sequence), columns), request)

    async def _place(self, topic: Topic, origin: Origin, columns: Columns) -> Done:
        engine = topic._engine  # noqa: SLF001 - a session is a topic's other half
        engine.check()
        key = engine.name, origin
        waiter = self._owner.putting.get(key)
        if waiter is None:
            known = engine.log.producers.find(origin) if isinstance(engine.log, TopicLog) else None
            if known is not None:
                return Done((known.start, len(known)))
            for body in columns.bodies:
                engine.put_buffer.body(body)
            waiter = await engine.put_buffer.enter(lambda: engine.put_buffer.accept_of(columns, origin))
            self._owner.putting[key] = waiter
            waiter.add_done_callback(lambda _: self._owner.putting.pop(key, None))
        # INVARIANT: what was accepted stays accepted, though its client goes: it may come again by another connection.
        placed = await asyncio.shield(waiter)
        return Done((placed.start, len(placed)))

    # --- channels

    def _lending(self, handle: int) -> _Lending:
        lending = self._lendings.get(handle)
        if lending is None:
            raise ProtocolError(f"the handle {handle} is no channel's")
        return lending

    def _want(self, said: Want, _request: int) -> None:
        self._lending(said.handle).want(said.total)

    def _ack(self, said: Ack, request: int) -> None:
        lending = self._lending(said.handle)
        lending.each(said.epoch, said.ranges, lambda message: message.ack_nowait())
        if request:
            self._start(lending.committed(), request)

    def _release(self, said: Release, request: int) -> None:
        lending = self._lending(said.handle)
        lending.each(said.epoch, said.ranges, lambda message: message.release())
        if request:
            self._start(lending.committed(), request)

    def _nack(self, said: Nack, request: int) -> None:
        lending = self._lending(said.handle)
        for item in said.items:
            message = lending.take(said.epoch, item.offset, item.delivery)
            delay = None if item.span == UNSAID else item.span / _SECOND
            message.nack_nowait(delay, count_attempt=item.attempts >= message.attempts)
        if request:
            self._start(lending.committed(), request)

    def _touch(self, said: Touch, request: int) -> None:
        lending = self._lending(said.handle)
        for item in said.items:
            message = lending.find(said.epoch, item.offset, item.delivery)
            span = None if item.span == UNSAID else item.span
            message._take().touch(item.offset, item.delivery, span)  # noqa: SLF001 - as above
        if request:
            self._wire.send(Done(), request)

    def _reject(self, said: Reject, request: int) -> None:
        lending = self._lending(said.handle)
        message = lending.take(said.epoch, said.offset, said.delivery)
        self._start(lending.rejected(message, said.reason), request)

    def _resume(self, said: Resume, request: int) -> None:
        lending = self._lending(said.handle)
        self._start(lending.resume(said.held), request)

    def _call(self, said: Call, request: int) -> None:
        handle = said.arguments.get("handle")
        lending = self._lending(handle if isinstance(handle, int) else -1)
        if said.name == "refresh":
            self._wire.send(lending.figures())
            self._wire.send(Done(), request)
        elif said.name == "commit":
            self._start(lending.committed(), request)
        else:
            raise InvalidOptionError(f"this owner knows no call {said.name!r}")

    def _ping(self, said: Ping, request: int) -> None:
        self._wire.send(Pong(said.token), request)

    def _bye(self, _said: Bye, _request: int) -> None:
        self._wire.end()


class _Lending:
    """What one client has of one channel: how many it wants, and which are in its hands."""

    def __init__(self, owner: Owning, wire: Wire, handle: int, topic: Topic, channel: Channel) -> None:
        self._topic = topic
        self._owner = owner
        self._wire = wire
        self._handle = handle
        self._channel = channel
        self._held: dict[int, Message] = {}
        self._wanted = 0
        self._given = 0
        self._changed = asyncio.Event()
        self._getting: asyncio.Task[Any] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> asyncio.Task[Any]:
        """Give nothing more; return the task that ends."""
        return self._task

    def want(self, total: int) -> None:
        """Give so many in all."""
        self._wanted = total
        if total > self._given:
            self._changed.set()
        elif self._getting is not None:
            self._getting.cancel()  # nothing is taken by one that is cancelled

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._wanted > self._given:
                try:
                    if not await self._give():
                        break
                except QueueShutDown:
                    return
                await self._wire.writable()
                await asyncio.sleep(0)

    async def _give(self) -> bool:
        """Wait for a message, and deliver what there is; return whether there was any before it was withdrawn."""
        engine = self._channel._channel_engine  # noqa: SLF001 - a session is a channel's other half
        store_ref = self._owner.engine.store_ref()
        self._getting = asyncio.get_running_loop().create_task(engine.get(store_ref))
        getting = self._getting
        try:
            first = await getting
        except asyncio.CancelledError:
            if getting.cancelled() and self._wanted <= self._given:
                return False
            if getting.done() and not getting.cancelled() and getting.exception() is None:
                getting.result().release()  # it came in the moment in which the client went
            raise
        finally:
            self._getting = None
        messages, size = [first], len(first.body)
        most = min(self._wanted - self._given, _AT_ONCE)
        while len(messages) < most and size < _PACKET_BYTES:
            message = engine.take(store_ref)
            if message is None:
                break
            messages.append(message)
            size += len(message.body)
        self._given += len(messages)
        self._deliver(messages)
        return True

    def _deliver(self, messages: list[Message]) -> None:
        for message in messages:
            self._held[message._delivery] = message  # noqa: SLF001 - as above
        for run in _runs(messages):
            first = run[0]
            frames = encode_messages(_columns(run), first.timestamp_ns)
            self._wire.send(Deliver(self._handle, first.attempts, first.offset, first._delivery, frames))  # noqa: SLF001

    def find(self, epoch: int, offset: int, delivery: int) -> Message:
        """Return a message that the client holds.

        Raises:
            NotInFlightError: it does not.
        """
        message = self._held.get(delivery) if epoch == self._owner.epoch else None
        if message is None or message.offset != offset:
            raise NotInFlightError(f"message {offset} of {self._channel.name!r} is not in this client's hands")
        return message

    def take(self, epoch: int, offset: int, delivery: int) -> Message:
        """As `find`, of a message that is about to be settled."""
        message = self.find(epoch, offset, delivery)
        del self._held[delivery]
        return message

    def each(self, epoch: int, ranges: Iterable[Range], settle: Callable[[Message], None]) -> None:
        """Settle ranges of messages: as many as can be.

        Raises:
            NotInFlightError: some could not be.
        """
        failure: NotInFlightError | None = None
        for first, delivery, count in ranges:
            if count > len(self._held):
                failure = NotInFlightError(f"{count} messages from offset {first} on are not in this client's hands")
                continue
            for place in range(count):
                try:
                    settle(self.take(epoch, first + place, delivery + place))
                except NotInFlightError as error:
                    failure = error
        if failure is not None:
            raise failure

    async def resume(self, held: Iterable[Held]) -> Done:
        """Give a client what it held of an owner before, as far as it is nobody else's; say by which numbers."""
        await self._channel._engine.settle_in(self._channel.name)  # noqa: SLF001 - as above
        given: list[tuple[int, int, int]] = []
        for one in held:
            async for message in self._topic.scan(one.first, one.first + one.messages):
                number = self._claim(message, one.attempts)
                if number is None:
                    continue
                if given and given[-1][0] + given[-1][2] == message.offset and given[-1][1] + given[-1][2] == number:
                    given[-1] = (*given[-1][:2], given[-1][2] + 1)
                else:
                    given.append((message.offset, number, 1))
        return Done(None, {"held": given})

    def _claim(self, seen: Message, attempts: int) -> int | None:
        """Hand a message out that is ready, out of its turn; return its delivery number, None where it is not."""
        engine = self._channel._channel_engine  # noqa: SLF001 - as above
        state = engine.state
        if state is None or not state.is_ready(seen.offset):
            return None
        state.count(seen.offset, max(attempts - 1, 0))
        _, number = state.pick(seen.offset)
        batch = seen._batch()  # noqa: SLF001 - as above
        lease = MessageLease.of_one(seen.topic, batch, 0, number=number, attempts=attempts, channel_engine=engine)
        self._held[number] = Message(lease, 0, seen.body, self._owner.engine.store_ref())
        engine.touch(seen.offset, number, None)
        return number

    async def committed(self) -> Done:
        """Wait until what was settled is durable."""
        await self._channel._channel_engine.committed()  # noqa: SLF001 - as above
        return Done()

    async def rejected(self, message: Message, reason: str) -> Done:
        """Give a message up, and wait until that is durable."""
        await message.reject(reason)
        return Done()

    def figures(self) -> Figures:
        """Return how many messages there are."""
        channel = self._channel
        engine = channel._engine  # noqa: SLF001 - as above
        numbers = channel.qsize(), channel.in_flight(), channel.deferred()
        return Figures(self._handle, *numbers, engine.log.begin, engine.log.end, engine.log.durable)

    def give_back(self) -> None:
        """Let everything that the client holds be ready again."""
        for message in self._held.values():
            with suppress(AiodqError, QueueShutDown):
                message.release()
        self._held.clear()


def _runs(messages: list[Message]) -> Iterable[list[Message]]:
    """Yield messages that follow each other, were delivered as often, and have neighbouring delivery numbers."""
    run = messages[:1]
    for one, other in pairwise(messages):
        follows = other.offset == one.offset + 1 and other.attempts == one.attempts
        if not follows or other._delivery != one._delivery + 1:  # noqa: SLF001 - as above
            yield run
            run = []
        run.append(other)
    yield run


def _columns(run: list[Message]) -> Columns:
    """Return messages column by column."""
    times = [message.timestamp_ns for message in run]
    tags, keys = [message.tag for message in run], [message.key for message in run]
    headers = [message.headers for message in run]
    return Columns(
        [message.body for message in run],
        None if len(set(times)) == 1 else times,
        tags=tags if any(tag is not None for tag in tags) else None,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
    )
