"""A session: an owner's handling of one client's packets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import twice
from aiodq.errors import AiodqError, ProtocolError
from aiodq.names import check_name, check_topic_name
from aiodq.shared.requests.calls import answer, call_store, call_topic, whole, whole_numbers
from aiodq.shared.requests.client_events import ClientEvents
from aiodq.shared.requests.client_puts import ClientPuts, columns_of
from aiodq.shared.requests.client_transactions import Asked, ClientTransactions
from aiodq.shared.requests.lending import Lending
from aiodq.shared.requests.lent.lent_runs import LentRun
from aiodq.shared.requests.meant import check_existing, open_channel, open_topic
from aiodq.shared.requests.owner_state.waiting_bytes import ClientsBytes
from aiodq.shared.server.cut_off import CutOff, Earlier
from aiodq.shared.server.open_handles import OpenHandles
from aiodq.shared.server.requests_in_progress import RequestsInProgress
from aiodq.storage.log.producer_table import MOST_PENDING, Origin
from aiodq.topic import Topic
from aiodq.wire.layout import OLDEST, UNSET, VERSION
from aiodq.wire.packets import (
    Ack,
    Bye,
    Call,
    Done,
    Hello,
    Nack,
    Open,
    Ping,
    Pong,
    Put,
    Reject,
    Release,
    Resume,
    Touch,
    Txn,
    Want,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.shared.requests.serving import Owning, Share, Wire
    from aiodq.wire.payload import Held, Item
    from aiodq.wire.stream import Received

__all__ = ["Session"]

_SECOND: Final = 1_000_000_000

_WAITS: Final = frozenset({"backup", "drain", "join"})
"""Calls that only wait: the client tells the owner if their callers were cancelled."""

_SHOWN: Final = frozenset({"purge", "sync"})
"""Calls after which the client knows where the log begins and up to where it is durable."""

_MOVES: Final = frozenset({"configure", "pause", "purge", "seek"})
"""Calls that take away what is in flight, or change what clients do with what they get."""

_ENDS: Final = frozenset({"back", "changed", "closing", "deaf", "ended", "forget", "withdraw"})
"""Calls that end what waits, or are made once, or once for each topic and channel."""


class Session:
    """The session of one client.

    Attributes:
        client: its introduction; None before that.
        process: its process by the pid that it has here, or `UNSEEN`; 0 before the introduction.
        lends: whether it has opened a channel, so that it may hold messages.
        handles: the topics and channels that it has open.
    """

    def __init__(self, owner: Owning, wire: Wire) -> None:
        """Start with a new connection."""
        self.client: Hello | None = None
        self.process: int = 0
        self.lends: bool = False
        self._owner = owner
        self._wire = wire
        self._in_progress = RequestsInProgress(owner, wire)
        self._awaited: dict[int, asyncio.Task[None]] = {}
        self._earlier = Earlier()
        # Shares of earlier connections in channels, by handle, whose messages the client has not all claimed yet.
        self._unclaimed: dict[int, Sequence[Share]] = {}
        self._cut_off = CutOff()
        self._has_left = False
        waiting = ClientsBytes(owner.waiting)
        self._puts = ClientPuts(owner, wire, self._in_progress.start, self._in_progress.fail, waiting)
        self.handles: OpenHandles = OpenHandles(owner, wire, self._puts.forget)
        self._transactions = ClientTransactions(owner, waiting)
        self._events = ClientEvents(owner)
        self._handlers: dict[type[Any], Callable[[Any, int], None]] = {
            Open: self._open,
            Put: self._put,
            Want: self._want,
            Ack: self._ack,
            Nack: self._nack,
            Touch: self._touch,
            Release: self._release,
            Reject: self._reject,
            Txn: self._transact,
            Resume: self._resume,
            Call: self._call,
            Ping: self._ping,
            Bye: self._bye,
        }

    def receive(self, received: Received) -> None:
        """Handle a packet of the client.

        Raises:
            ProtocolError: the packet violates the protocol; the connection is to be closed.
        """
        # INVARIANT: a put that a thread has answered is in the topic for its client, and for anyone whom that tells.
        self._owner.engine.threads.tell_ended()
        packet, request = received
        if self.client is None:
            if not isinstance(packet, Hello):
                raise ProtocolError(f"{packet.op.name} comes before HELLO")
            self._welcome(packet, request)
            return
        handle = self._handlers.get(type(packet))
        if handle is None:
            raise ProtocolError(f"an owner of this version does not handle {packet.op.name}")
        try:
            handle(packet, request)
        except ProtocolError:
            raise
        except (AiodqError, asyncio.QueueEmpty, asyncio.QueueFull) as error:
            self._in_progress.fail(error, request)

    def _welcome(self, packet: Hello, request: int) -> None:
        version = min(VERSION, packet.newest)
        if version < max(OLDEST, packet.oldest):
            both = f"this owner speaks versions {OLDEST} to {VERSION}, the client {packet.oldest} to {packet.newest}"
            raise ProtocolError(f"{both}: have all processes run one version of aiodq, or one and the next")
        self.client, self._puts.producer = packet, packet.producer
        self.process = self._wire.process(packet.pid)
        owner = self._owner
        earlier = [each for each in owner.clients if each is not self and _is_same(each.client, packet)]
        self._earlier = Earlier(earlier)
        for each in earlier:
            # INVARIANT: even if the end of that connection was not noticed yet: later puts must not overtake these.
            each.wait_no_more()
        self._wire.send(Welcome(version, owner.pid, owner.epoch, owner.largest, 0), request)
        self._wire.welcomed()

    @property
    def shares(self) -> Iterable[Lending]:
        """See `Client`."""
        return self.handles.lendings.values()

    def wait_no_more(self) -> None:
        """See `Client`."""
        self._puts.end()

    def leave(self) -> None:
        """See `Client`."""
        self._cut_off.end()
        self._wire.end()

    async def end(self) -> None:
        """End the session: the client's messages are made ready again, unless it is back.

        Messages taken by a process that was killed, or has closed the store, count as delivered in channels with
        `max_attempts`: a message that kills every process that takes it is given up in the end.
        """
        self._puts.end()
        self._transactions.end()
        ending = self._in_progress.end()
        delivering = [lending.stop() for lending in self.handles.lendings.values()]
        await asyncio.gather(*ending, *delivering, return_exceptions=True)
        is_dead = False
        if self.client is not None and self.lends:
            is_dead = await self._cut_off.wait(self.process)
        for lending in [*self.handles.lendings.values()]:  # of which some may be deleted meanwhile
            taken = lending.had(for_sure=not self._has_left)
            await lending.give_back(taken, goes_on=not (self._has_left or is_dead))

    def holds(self) -> dict[str, int]:
        """Return how many messages the client holds, by `topic/channel`."""
        return {lending.name: lending.holding for lending in self.handles.lendings.values() if lending.holding}

    @property
    def comes_back(self) -> bool:
        """Whether the client holds messages, or waits for the outcome of settlements or claims."""
        return self._in_progress.settling or any(lending.holding for lending in self.handles.lendings.values())

    # --- topics

    def _open(self, packet: Open, request: int) -> None:
        self.handles.check_new(packet.handle)
        try:
            self._opened(packet, request)
        except (AiodqError, asyncio.QueueFull) as error:
            # Packets with this handle were sent before the client could know.
            self.handles.refuse(packet.handle, error, "" if packet.channel or not packet.existing else packet.topic)
            raise

    def _opened(self, packet: Open, request: int) -> None:
        self.handles.check_room()
        engine = self._owner.engine
        check_topic_name(packet.topic, engine.topics)
        engine.check()
        if not packet.channel:
            self.handles.opens(packet.handle, packet.topic)
            check_existing(packet, engine.topics)
            state = self.handles.add_topic(packet.handle, Topic(engine, open_topic(packet, engine)))
            facts = {"window": MOST_PENDING, "orderly": True, **state}
            self.handles.send_figures(packet.handle)
            self._wire.send(Done(None, facts), request)
            return
        self.handles.check_name(packet.topic)
        check_existing(packet, engine.topics)
        topic = Topic(engine, engine.unnamed(packet.topic))
        check_name(packet.channel, "channel")
        self._begin_lending()
        channel = open_channel(packet, topic)
        lending = Lending(self._owner, self._wire, packet.handle, topic, channel)
        self.handles.add_lending(packet.handle, lending, packet.channel)
        if before := self._earlier.shares(lending.name):
            self._unclaimed[packet.handle] = before
        self._in_progress.start(self._settled_in(packet.handle, lending), request, returning=True)

    def _begin_lending(self) -> None:
        if not self.lends and self.client is not None:
            self.lends = True
            self._owner.lends_to(self.client)

    async def _settled_in(self, handle: int, lending: Lending) -> Done:
        await lending.settled_in()
        twice(asyncio.get_running_loop().call_soon, lending.told)  # once this is sent
        return Done(None, self.handles.sent_states.note(handle, lending.state))

    def _put(self, packet: Put, request: int) -> None:
        topic = self.handles.topics.get(packet.handle)  # each call less counts for a put
        if topic is None:
            topic = self.handles.topic(packet.handle, "PUT")
        engine = topic._engine  # noqa: SLF001 - a session is a topic's other half
        self._puts.put(engine, packet.sequence, columns_of(packet, engine.clock), request)

    # --- channels

    def _want(self, packet: Want, _request: int) -> None:
        lending = self.handles.lending(packet.handle)
        if self._unclaimed:
            self._follow(packet.handle, lending)
        lending.want(packet.total)

    def _follow(self, handle: int, lending: Lending) -> None:
        """Make messages of earlier connections ready that the client no longer holds, as it has claimed the others."""
        before = self._unclaimed.pop(handle, None)
        if before is not None:
            lending.resuming.begin()
            self._in_progress.run(self._followed(lending, before), returning=True)

    async def _followed(self, lending: Lending, before: Sequence[Share]) -> None:
        # INVARIANT: nothing newer is delivered meanwhile: messages in transit when a connection ended come first.
        try:
            for share in before:
                await asyncio.gather(share.stop(), return_exceptions=True)
                await share.give_back()
        finally:
            lending.resuming.end()

    def _ack(self, packet: Ack, request: int) -> None:
        lending = self.handles.lending(packet.handle)
        failure = lending.held.ack(packet.epoch, packet.ranges)
        if request:
            self._in_progress.answer_settled(lending.commit, request, failure)

    def _release(self, packet: Release, request: int) -> None:
        lending = self.handles.lending(packet.handle)
        lending.held.release(packet.epoch, packet.ranges)
        if request:
            self._in_progress.answer_settled(lending.commit, request)

    def _nack(self, packet: Nack, request: int) -> None:
        lending = self.handles.lending(packet.handle)

        def nack(item: Item) -> None:
            message = lending.held.take(packet.epoch, item.offset, item.delivery)
            delay = None if item.span == UNSET else item.span / _SECOND
            try:
                message.nack_nowait(delay, count_attempt=item.attempts >= message.attempts)
            except AiodqError:
                lending.held.keep(LentRun.of(message))
                raise

        _each(nack, packet.items)
        if request:
            self._in_progress.answer_settled(lending.commit, request)

    def _touch(self, packet: Touch, request: int) -> None:
        lending = self.handles.lending(packet.handle)

        def touch(item: Item) -> None:
            message = lending.held.find(packet.epoch, item.offset, item.delivery)
            span = None if item.span == UNSET else item.span
            message._take().touch(item.offset, item.delivery, span)  # noqa: SLF001 - as above

        _each(touch, packet.items)
        if request:
            self._wire.send(Done(), request)

    def _reject(self, packet: Reject, request: int) -> None:
        lending = self.handles.lending(packet.handle)
        message = lending.held.take(packet.epoch, packet.offset, packet.delivery)
        self._in_progress.start(lending.held.rejected(message, packet), request, settling=True)

    def _resume(self, packet: Resume, request: int) -> None:
        lending = self.handles.lending(packet.handle)
        lending.resuming.begin()
        resuming = self._resumed(lending, packet.epoch, packet.held)
        self._in_progress.start(resuming, request, settling=bool(packet.held), returning=True)

    async def _resumed(self, lending: Lending, epoch: int, held: tuple[Held, ...]) -> Done:
        await self._transactions.over(self._puts.producer)
        missed = self._owner.missed(self._puts.producer, epoch)
        return await lending.resuming.claim(epoch, held, self._earlier.shares(lending.name), missed=missed)

    # --- transactions

    def _transact(self, packet: Txn, request: int) -> None:
        self._in_progress.check()
        origin = Origin(self._puts.producer, packet.sequence)
        if self._transactions.knows(origin):
            # Before its contents are decoded: for a committed transaction, that may no longer be possible.
            self._wire.send(Done(), request)
            return
        asked = Asked.read(packet, self._topic_engine, self.handles.lending)
        self._in_progress.start(self._transacted(origin, asked), request, settling=True)

    def _topic_engine(self, handle: int) -> TopicEngine:
        # A transaction names the topic, which is created again if it was deleted since it was opened.
        if name := self.handles.deleted_topic(handle):
            return self._owner.engine.engine(name)
        engine = self.handles.topic(handle, "TXN")._engine  # noqa: SLF001 - as above
        return self._owner.engine.engine(engine.name) if engine.closed else engine

    async def _transacted(self, origin: Origin, asked: Asked) -> Done:
        await self._transactions.commit(origin, asked)
        # The client sees the changes once it knows of the commit.
        self.handles.send_all_figures(asked.topics)
        return Done()

    # --- calls

    def _call(self, call: Call, request: int) -> None:
        if call.name not in _ENDS:
            self._in_progress.check()
        handle = call.arguments.get("handle")
        if call.name == "changed" and isinstance(handle, int) and handle in self.handles:
            self.handles.watch(handle, request)
        elif call.name == "forget":
            self._forget(whole(call.arguments, "request"))
            self._wire.send(Done(), request)
        elif handle is None:
            calling = self._in_progress.start(self._called(call), request)
            self._awaiting(call.name, calling, request)
        elif isinstance(handle, int) and handle in self.handles.topics:
            self._in_progress.start(self._topic_called(handle, self.handles.topics[handle], call), request)
        else:
            handle = handle if isinstance(handle, int) else -1
            lending = self.handles.lending(handle)
            if call.name == "ended":
                lending.ask_the_end(request, self._in_progress.fail)
                return
            calling = self._in_progress.start(self._lending_called(handle, lending, call), request)
            self._awaiting(call.name, calling, request)

    def _awaiting(self, name: str, calling: asyncio.Task[None], request: int) -> None:
        """Note a call that only waits, so that `forget` ends it."""
        if name in _WAITS:
            self._awaited[request] = calling
            calling.add_done_callback(lambda _: self._awaited.pop(request, None))

    def _forget(self, request: int) -> None:
        """End a call whose caller was cancelled."""
        calling = self._awaited.pop(request, None)
        # INVARIANT: it is answered here: a cancelled task may not have begun, and the client waits for an answer.
        if calling is not None and calling.cancel():
            self._in_progress.fail(AiodqError("the caller of this was cancelled"), request)

    async def _topic_called(self, handle: int, topic: Topic, call: Call) -> Done:
        if call.name == "withdraw":
            self._puts.withdraw(topic.name, whole_numbers(call.arguments, "sequences"))
            return Done()
        await self._puts.settled(topic.name)
        done = await answer(call_topic(self._owner, topic, call.name, call.arguments))
        self.handles.called(handle, call.name)
        if call.name in _SHOWN:
            self.handles.send_figures(handle)
        if call.name in {"pause", "purge"}:
            # INVARIANT: as for a channel below.
            await self._owner.moved(topic.name)
        return done

    async def _lending_called(self, handle: int, lending: Lending, call: Call) -> Done:
        await self._puts.settled(lending.topic)
        if call.name == "peek":
            # INVARIANT: what a client holds since an earlier owner is not looked at: if it has expired, it is settled.
            await self._owner.reclaimed()
        done = await lending.called(call, self.handles.send_figures)
        if call.name == "refresh":
            self.handles.send_figures(self.handles.of_name(lending.topic))
        if call.name in _MOVES:
            # INVARIANT: by the time of the answer, each client knows what it no longer holds, and will not claim it.
            await self._owner.moved(lending.name)
        # INVARIANT: after that. The state is sent once more, after the answer by which the client assumes its change.
        self.handles.called(handle, call.name)
        return done

    async def _called(self, call: Call) -> Done:
        if call.name == "closing":
            self._puts.close()
            self._transactions.close()
            return Done()
        if call.name == "withdraw":
            origin = Origin(self._puts.producer, whole(call.arguments, "sequence"))
            return Done(None, {"result": await self._transactions.withdraw(origin)})
        if call.name == "events":
            return Done(None, {"result": await self._events.several(whole(call.arguments, "listener"))})
        if call.name == "deaf":
            self._events.end(whole(call.arguments, "listener"))
            return Done()
        if call.name != "back":
            return await answer(call_store(self._owner, call.name, call.arguments))
        # INVARIANT: the client's messages were claimed before: RESUME arrived, and was begun, before this.
        await asyncio.gather(*(lending.resuming.over.wait() for lending in self.handles.lendings.values()))
        for handle, lending in self.handles.lendings.items():
            self._follow(handle, lending)
        self._unclaimed.clear()
        self._earlier.leave()
        if self.client is not None:
            self._owner.came_back(self.client)
        return Done()

    def _ping(self, packet: Ping, request: int) -> None:
        self._wire.send(Pong(packet.token), request)

    def _bye(self, _packet: Bye, _request: int) -> None:
        self._has_left = True
        self.leave()


def _is_same(one: Hello | None, other: Hello) -> bool:
    return one is not None and one.producer == other.producer


def _each(do: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Do something with each message for which it is possible; raise the error of the last one for which it is not."""
    failure: AiodqError | None = None
    for item in items:
        try:
            do(item)
        except AiodqError as error:
            failure = error
    if failure is not None:
        raise failure
