"""What one client has of one channel: how many messages it wants, and which are in its hands."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.acking import ack_all
from aiodq.engine.channel.failure_causes import Cause
from aiodq.engine.channel.message_lease import MessageLease
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.transactions.group_committer import HeldAck
from aiodq.errors import AiodqError, NotInFlightError
from aiodq.format.columns import Columns
from aiodq.message import Message
from aiodq.shared.calls import call_channel
from aiodq.shared.options_json import channel_options
from aiodq.shared.remote_errors import error_facts
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Deliver, Done, Figures, Gone, Range

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from aiodq.channel import Channel
    from aiodq.engine.store_engine import StoreEngine
    from aiodq.shared.visitors import Visitor
    from aiodq.storage.log.producer_table import Origin
    from aiodq.store import Store
    from aiodq.topic import Topic
    from aiodq.wire.packets import Call, Hello, Reject
    from aiodq.wire.packets import Message as Said
    from aiodq.wire.payload import Held

__all__ = ["Lending", "Owning", "Wire", "answer"]

_LOG: Final = logging.getLogger("aiodq.delivery")

_AT_ONCE: Final = 100
"""Messages that one client is given of a channel before it is another's turn."""

_PACKET_BYTES: Final = 256 * 1024
"""Bytes of bodies after which a delivery is sent, though there is more."""

_LEASE: Final[Callable[[Message], object]] = attrgetter("_run")
_BODY: Final[Callable[[Message], bytes]] = attrgetter("body")

_AGAIN: Final = 1.0
"""Seconds after which a message that could not be read is read again, unless the client wants one anew before."""


class Owning(Protocol):
    """What a session asks of who owns the store.

    Attributes:
        engine: the store's.
        pid: the owner's process.
        epoch: the owner's.
        largest: bytes of the largest packet.
        putting: puts under way that may come again, by topic and origin.
        transacting: transactions under way, which may come again, too.
    """

    engine: StoreEngine
    store: Store
    pid: int
    epoch: int
    largest: int
    putting: dict[tuple[str, Origin], asyncio.Future[range]]
    transacting: dict[Origin, asyncio.Task[Any]]

    @property
    def clients(self) -> Sequence[Visitor]:
        """Return who is connected."""
        ...

    def came(self, client: Hello) -> None:
        """A client has introduced itself."""
        ...

    def came_back(self, client: Hello) -> None:
        """A client has said what it held of the owner before."""
        ...

    def failed(self) -> None:
        """The store has stopped: others may open it anew."""
        ...


class Wire(Protocol):
    """The connection."""

    def send(self, said: Said, request: int = 0) -> None:
        """Send a packet."""
        ...

    @property
    def clogged(self) -> bool:
        """Whether the other end does not take what was sent."""
        ...

    async def writable(self) -> None:
        """Wait until the other end takes what was sent."""
        ...

    def end(self) -> None:
        """Close, once what was said is sent."""
        ...


async def answer(asking: Awaitable[Any]) -> Done:
    """Return the answer to a call."""
    return Done(None, {"result": await asking})


class Lending:
    """What one client has of one channel: how many it wants, and which are in its hands."""

    def __init__(self, owner: Owning, wire: Wire, handle: int, topic: Topic, channel: Channel) -> None:
        """Begin to give, as soon as something is wanted."""
        self._topic = topic
        self._owner = owner
        self._wire = wire
        self._handle = handle
        self._channel = channel
        self._held: dict[int, Message] = {}
        self._wanted = 0
        self._given = 0
        self._place = channel._channel_engine.place  # noqa: SLF001 - a session is a channel's other half
        self._changed = asyncio.Event()
        self._idle = False
        self._ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._timed_out = 0
        self._over = False
        self.resumed: asyncio.Event = asyncio.Event()
        self.resumed.set()
        self._getting: asyncio.Task[Any] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def name(self) -> str:
        """Of what it is, as `topic/channel`."""
        return f"{self._topic.name}/{self._channel.name}"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic.name

    @property
    def holding(self) -> int:
        """How many messages are in the client's hands."""
        return len(self._held)

    def stop(self) -> asyncio.Task[Any]:
        """Give nothing more; return the task that ends."""
        return self._task

    def want(self, total: int) -> None:
        """Give so many in all."""
        self._wanted = total
        if total <= self._given:
            if self._getting is not None:
                self._getting.cancel()  # nothing is taken by one that is cancelled
            return
        if self._idle and not self._wire.clogged:
            # What is there is given at once. It is another's turn before there is more, and errors are for `_run`.
            with suppress(AiodqError):
                self._deliver(self._take_more([]))
        if total > self._given:
            self._changed.set()

    async def _run(self) -> None:
        while True:
            self._idle = True
            await self._changed.wait()
            self._idle = False
            self._changed.clear()
            while self._wanted > self._given:
                try:
                    if not await self._give():
                        break
                except QueueShutDown as error:
                    self._say(error)
                    break
                except AiodqError as error:
                    self._say(error)
                    _LOG.error("%s gives no message, asked again in %.3g s: %s", self._place, _AGAIN, error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_AGAIN):
                            await self._changed.wait()
                    self._changed.clear()
                    continue
                await self._wire.writable()
                await asyncio.sleep(0)

    def _say(self, error: Exception) -> None:
        """Have the client told why it gets no message now; `look` tells of a channel that is no more."""
        if not self._ended.done() and self._channel._channel_engine.error is None:  # noqa: SLF001 - as above
            self._ended.set_result(error)

    async def _give(self) -> bool:
        """Wait for a message, and deliver what there is; return whether there was any before it was withdrawn."""
        messages = self._take_more([])
        if not messages:
            first = await self._wait(self._owner.engine.store_ref())
            if first is None:
                return False
            messages = self._take_more([first])
        self._deliver(messages)
        return True

    def _take_more(self, messages: list[Message]) -> list[Message]:
        """Return these and what else there is, as much as the client wants and a packet holds."""
        engine = self._channel._channel_engine  # noqa: SLF001 - a session is a channel's other half
        store_ref = self._owner.engine.store_ref()
        size = sum(map(len, map(_BODY, messages)))
        most = min(self._wanted - self._given, _AT_ONCE)
        while len(messages) < most and size < _PACKET_BYTES:
            found = self._take_run(most - len(messages), _PACKET_BYTES - size, store_ref)
            if not found:
                try:
                    message = engine.take(store_ref)
                except AiodqError:
                    if not messages:
                        raise
                    break  # the next call raises it
                if message is None:
                    break
                found = [message]
            messages += found
            size += sum(map(len, map(_BODY, found)))
        if messages and engine.counting:
            engine.note_deliveries()
        self._given += len(messages)
        return messages

    def _take_run(self, most: int, size: int, store_ref: object) -> list[Message]:
        """Return what follows in the lease that is open, as far as it is no more bytes than that."""
        engine = self._channel._channel_engine  # noqa: SLF001 - as above
        first = engine.lease.next
        if sum(map(len, engine.bodies[first : first + most])) > size:
            message = engine.take_next(store_ref)
            return [] if message is None else [message]
        return list(engine.take_run(most, store_ref))

    async def _wait(self, store_ref: object) -> Message | None:
        """Wait for a message; None where it was withdrawn."""
        engine = self._channel._channel_engine  # noqa: SLF001 - as above
        getting = self._getting = asyncio.get_running_loop().create_task(engine.get(store_ref))
        try:
            message: Message = await getting
        except asyncio.CancelledError:
            if getting.cancelled() and self._wanted <= self._given:
                return None
            if getting.done() and not getting.cancelled() and getting.exception() is None:
                getting.result().release()  # it came in the moment in which the client went
            raise
        finally:
            self._getting = None
        return message

    def _deliver(self, messages: list[Message]) -> None:
        for run in _runs(messages) if messages else ():
            first = run[0]
            delivery = first._delivery  # noqa: SLF001 - as above
            self._held.update(zip(range(delivery, delivery + len(run)), run, strict=True))
            frames = encode_messages(_columns(run), first.timestamp_ns)
            self._wire.send(Deliver(self._handle, first.attempts, first.offset, delivery, frames))

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

    def ack(self, epoch: int, ranges: Iterable[Range]) -> NotInFlightError | None:
        """Settle ranges of messages, as many as can be, and tell the client which cannot; return why, if any."""
        failure: NotInFlightError | None = None
        found: list[Message] = []
        lost: list[Range] = []
        for each in ranges:
            messages, missing = self._take_range(epoch, each)
            found += messages
            lost += missing
        if lost:
            what = f"message {lost[0].first} of {self._channel.name!r}"
            failure = NotInFlightError(f"{what} is not in this client's hands")
        for message in self._not_acked(found):
            failure = NotInFlightError(f"message {message.offset} of {self._channel.name!r} was taken away before")
            lost.append(Range(message.offset, message._delivery, 1))  # noqa: SLF001 - as above
        if lost and epoch == self._owner.epoch:
            self._wire.send(Gone(self._handle, epoch, tuple(lost)))
        return failure

    def _take_range(self, epoch: int, each: Range) -> tuple[list[Message], list[Range]]:
        """Take what the client holds of a range; return that, and what it does not hold."""
        first, delivery, count = each
        found = self._take_whole(epoch, each)
        if found:
            return found, []
        lost: list[Range] = []
        # No count is believed: what is looked at is never more than what is held.
        numbers: Iterable[int] = range(delivery, delivery + count) if count <= len(self._held) else sorted(self._held)
        before = delivery
        for number in numbers:
            if not delivery <= number < delivery + count:
                continue
            with suppress(NotInFlightError):
                found.append(self.take(epoch, first + number - delivery, number))
                if number > before:
                    lost.append(Range(first + before - delivery, before, number - before))
                before = number + 1
        if before < delivery + count:
            lost.append(Range(first + before - delivery, before, delivery + count - before))
        return found, lost

    def _take_whole(self, epoch: int, each: Range) -> list[Message]:
        """Take a range that consists of runs of leases, all of which the client holds; else nothing."""
        first, delivery, count = each
        held, numbers = self._held, range(delivery, delivery + count)
        if epoch != self._owner.epoch or count > len(held) or not all(map(held.__contains__, numbers)):
            return []
        found = [held[number] for number in numbers]
        for _, members in groupby(found, _LEASE):
            run = list(members)
            if run[0].offset != first or not _is_run(run):
                return []
            first += len(run)
        for number in numbers:
            del held[number]
        return found

    def _not_acked(self, messages: list[Message]) -> Iterable[Message]:
        """Settle messages; yield those that are not in flight any more."""
        if len(messages) > 1:
            with suppress(NotInFlightError):
                ack_all(self._channel._channel_engine, messages)  # noqa: SLF001 - as above
                return
        for message in messages:
            try:
                message.ack_nowait()
            except NotInFlightError:
                yield message

    # --- for transactions

    def taken(self, epoch: int, ranges: Iterable[Range]) -> Iterator[Message]:
        """Yield ranges of messages, each taken out of the client's hands.

        Raises:
            NotInFlightError: one is not in them.
        """
        for first, delivery, count in ranges:
            for place in range(count):
                yield self.take(epoch, first + place, delivery + place)

    def claim(self, message: Message) -> HeldAck:
        """Return what a transaction needs in order to settle a message.

        Raises:
            AlreadySettledError: it was settled before.
        """
        settlement, delivery = message._claim()  # noqa: SLF001 - as above
        return HeldAck(self._channel._engine, settlement, message.offset, delivery)  # noqa: SLF001 - as above

    def keep(self, message: Message) -> None:
        """Let a message be in the client's hands again, which may be gone meanwhile."""
        number, state = message._delivery, self._channel._channel_engine.state  # noqa: SLF001 - as above
        if self._over:
            with suppress(AiodqError, QueueShutDown):
                message.release()
        elif state is not None and state.delivery(message.offset) == number:
            self._held[number] = message
        else:
            self._wire.send(Gone(self._handle, self._owner.epoch, (Range(message.offset, number, 1),)))

    # --- the channel

    async def settled_in(self) -> Done:
        """Wait until the channel is there; say what it is like."""
        await self._topic.settle_in()
        engine = self._channel._channel_engine  # noqa: SLF001 - as above
        return Done(None, {"options": channel_options(engine.options), "paused": engine.pause_asked})

    async def called(self, said: Call, say_figures: Callable[..., None]) -> Done:
        """Do what is asked by a name."""
        if said.name == "refresh":
            await self._topic.settle_in()
            self._channel._catch_up()  # noqa: SLF001 - as above
            say_figures(self._handle, anyhow=True)
            return Done()
        if said.name == "commit":
            return await self.committed()
        if said.name == "ended":
            # INVARIANT: it is told once. Who is told wants something again, or nothing any more.
            error = await asyncio.shield(self._ended)
            self._ended = asyncio.get_running_loop().create_future()
            return Done(None, error_facts(error))
        done = await answer(call_channel(self._topic, self._channel, said.name, said.arguments))
        say_figures(self._handle)
        return done

    def look(self) -> None:
        """Tell the client what was taken away, and whether the channel is no more."""
        engine = self._channel._channel_engine  # noqa: SLF001 - as above
        if engine.error is not None and not self._ended.done():
            self._ended.set_exception(engine.error)
            self._ended.exception()  # it may be that nobody asks
        state = engine.state
        if state is None or not self._held:
            return
        # Looking at all that is held costs more than to see that nothing was taken away from anybody.
        timed_out, self._timed_out = self._timed_out, state.counters.timed_out
        if timed_out == self._timed_out and state.flying >= len(self._held):
            return
        lost = [number for number, message in self._held.items() if state.delivery(message.offset) != number]
        for number in lost:
            message = self._held.pop(number)
            self._wire.send(Gone(self._handle, self._owner.epoch, (Range(message.offset, number, 1),)))

    async def resume(self, held: Iterable[Held]) -> Done:
        """Give a client what it held of an owner before, as far as it is nobody else's; say by which numbers."""
        try:
            return await self._resume(held)
        finally:
            self.resumed.set()

    async def _resume(self, held: Iterable[Held]) -> Done:
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

    async def committed(self, failure: AiodqError | None = None) -> Done:
        """Wait until what was settled is durable; then raise why not all of it is, if that is so."""
        await self._channel._channel_engine.committed()  # noqa: SLF001 - as above
        if failure is not None:
            raise failure
        return Done()

    async def rejected(self, message: Message, said: Reject) -> Done:
        """Give a message up, and wait until that is durable."""
        engine = self._channel._channel_engine  # noqa: SLF001 - as above
        batch = message._batch()  # noqa: SLF001 - as above
        rejecting = engine.reject(batch, said.delivery, said.attempts, said.reason, Cause(error=said.error))
        message._committed()  # noqa: SLF001 - as above
        await asyncio.shield(rejecting)
        return await self.committed()

    def figures(self) -> Figures:
        """Return how many messages there are."""
        channel = self._channel
        engine = channel._engine  # noqa: SLF001 - as above
        numbers = channel.qsize(), channel.in_flight(), channel.deferred()
        return Figures(self._handle, *numbers, engine.log.begin, engine.log.end, engine.log.durable)

    def give_back(self) -> None:
        """Let everything that the client holds be ready again."""
        self._over = True
        for message in self._held.values():
            with suppress(AiodqError, QueueShutDown):
                message.release()
        self._held.clear()


def _runs(messages: list[Message]) -> Iterable[list[Message]]:
    """Yield messages that follow each other, were delivered as often, and have neighbouring delivery numbers."""
    if _is_run(messages):
        yield messages
        return
    first = 0
    for at, (one, other) in enumerate(pairwise(messages), 1):
        if not _follows(one, other):
            yield messages[first:at]
            first = at
    yield messages[first:]


def _is_run(messages: list[Message]) -> bool:
    """Return whether messages, whose delivery numbers grow, are neighbours in one lease."""
    one, other = messages[0], messages[-1]
    near = other._index - one._index == len(messages) - 1  # noqa: SLF001 - as above
    return near and len(set(map(_LEASE, messages))) == 1


def _follows(one: Message, other: Message) -> bool:
    if one._run is other._run:  # noqa: SLF001 - as above
        return other._index == one._index + 1  # noqa: SLF001 - as above
    return (
        other.offset == one.offset + 1 and other.attempts == one.attempts and other._delivery == one._delivery + 1  # noqa: SLF001 - as above
    )


def _columns(run: list[Message]) -> Columns:
    """Return messages column by column."""
    bodies, lease = [message.body for message in run], run[0]._run  # noqa: SLF001 - as above
    plain = lease.times is None and lease.tags is None and lease.keys is None and lease.headers is None
    if plain and lease is run[-1]._run:  # noqa: SLF001 - as above
        return Columns(bodies)
    times = [message.timestamp_ns for message in run]
    tags, keys = [message.tag for message in run], [message.key for message in run]
    headers = [message.headers for message in run]
    return Columns(
        bodies,
        None if len(set(times)) == 1 else times,
        tags=tags if any(tag is not None for tag in tags) else None,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
    )
