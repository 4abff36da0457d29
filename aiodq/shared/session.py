"""A session: what an owner does for one client, from decoded packets on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.put_batch import Part, columns_cost
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, OwnerLostError, ProtocolError
from aiodq.format.columns import Columns
from aiodq.names import check_name, check_topic_name
from aiodq.shared.calls import call_store, call_topic, whole
from aiodq.shared.client_events import ClientEvents
from aiodq.shared.client_transactions import Asked, ClientTransactions
from aiodq.shared.lending import Lending, Owning, Wire, answer
from aiodq.shared.options_json import read_channel_options, read_topic_options, topic_options
from aiodq.shared.placing import Placing
from aiodq.shared.refusals import Refusals, deletion
from aiodq.shared.remote_errors import fail_of
from aiodq.storage.log.producer_table import MOST_PENDING, Origin
from aiodq.storage.log.topic_log import TopicLog
from aiodq.topic import Topic
from aiodq.wire.frames import decode_lone, decode_messages
from aiodq.wire.layout import UNSAID, VERSION
from aiodq.wire.packets import (
    Ack,
    Bye,
    Call,
    Done,
    Figures,
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
    from collections.abc import Awaitable, Callable, Coroutine

    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.shared.placing import Underway
    from aiodq.wire.payload import Held
    from aiodq.wire.stream import Packet

__all__ = ["Session"]

_SECOND: Final = 1_000_000_000

_FIGURES: Final = 0.1
"""Seconds between two checks of the counts, and of whether clients still hold what they think."""


class Session:
    """The session of one client.

    Attributes:
        client: its introduction; None before that.
    """

    def __init__(self, owner: Owning, wire: Wire) -> None:
        """Start with a new connection."""
        self.client: Hello | None = None
        self._owner = owner
        self._wire = wire
        self._topics: dict[int, Topic] = {}
        self._lendings: dict[int, Lending] = {}
        self._refusals = Refusals()
        self._entering: set[asyncio.Task[Any] | None] = set()
        self._closing = self._ending = False
        self._placing = 0
        self._figures: dict[int, Figures] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transactions = ClientTransactions(owner)
        self._events = ClientEvents(owner)
        self._says: dict[type[Any], Callable[[Any, int], None]] = {
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

    def receive(self, packet: Packet) -> None:
        """Handle a packet of the client.

        Raises:
            ProtocolError: the packet violates the protocol; the connection is to be closed.
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
            both = f"this owner speaks version {VERSION}, the client {said.oldest} to {said.newest}"
            raise ProtocolError(f"{both}: have all processes run one version of aiodq, or one and the next")
        self.client = said
        owner = self._owner
        self._wire.send(Welcome(VERSION, owner.pid, owner.epoch, owner.largest, 0), request)
        owner.came(said)
        self._begin(self._look())

    async def end(self) -> None:
        """End the session: what the client held goes back, as if it had never been delivered."""
        self._ending = True
        self._transactions.end()
        self._enter_no_more()
        tasks = [*self._tasks, *(lending.stop() for lending in self._lendings.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lending in self._lendings.values():
            await lending.give_back()

    def holds(self) -> dict[str, int]:
        """Return how many messages the client holds, by `topic/channel`."""
        return {lending.name: lending.holding for lending in self._lendings.values() if lending.holding}

    def _enter_no_more(self) -> None:
        for task in list(self._entering):
            if task is not None:
                task.cancel()

    # --- answers

    def _fail(self, error: Exception, request: int) -> None:
        engine = self._owner.engine
        if not engine.usable:
            # The next owner is to answer.
            if engine.failure is not None:
                self._owner.failed()
            error = OwnerLostError("this owner ends", engine.path)
        self._wire.send(fail_of(error), request)

    def _start(self, doing: Coroutine[Any, Any, Done], request: int) -> None:
        """Run something that takes longer, and answer."""
        # A task that is cancelled before its first turn has not begun to await it.
        self._begin(self._answered(doing, request)).add_done_callback(lambda _: doing.close())

    def _begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answered(self, doing: Awaitable[Done], request: int) -> None:
        try:
            self._wire.send(await doing, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is not left waiting
            self._fail(error, request)

    async def _look(self) -> None:
        """Send counts regularly, and which messages were taken away."""
        while True:
            await asyncio.sleep(_FIGURES)
            if self._owner.engine.usable:
                for handle in [*self._topics, *self._lendings]:
                    self._say_figures(handle)
                self._let_go_of_deleted()

    def _say_figures(self, handle: int, *, anyhow: bool = False) -> None:
        lending = self._lendings.get(handle)
        if lending is None:
            log = self._topics[handle]._engine.log  # noqa: SLF001 - a session is a topic's other half
            figures = Figures(handle, 0, 0, 0, log.begin, log.end, log.durable)
        else:
            lending.look()
            figures = lending.figures()
        if anyhow or figures != self._figures.get(handle):
            self._figures[handle] = figures
            self._wire.send(figures)

    def _let_go_of_deleted(self) -> None:
        """Drop the state of deleted topics and channels; keep the reason for packets that still use their handles."""
        for handle, lending in list(self._lendings.items()):
            if (error := lending.error) is not None:
                del self._lendings[handle]
                lending.stop().cancel()
                self._let_go(handle, error)
        for handle, topic in list(self._topics.items()):
            if (error := deletion(topic)) is not None:
                del self._topics[handle]
                self._let_go(handle, error, topic.name)

    def _let_go(self, handle: int, error: Exception, topic: str = "") -> None:
        self._figures.pop(handle, None)
        self._refusals.add(handle, error, topic)

    # --- topics

    def _open(self, said: Open, request: int) -> None:
        if said.handle in self._topics or said.handle in self._lendings or said.handle in self._refusals:
            raise ProtocolError(f"the handle {said.handle} is in use")
        try:
            self._opened(said, request)
        except (AiodqError, asyncio.QueueFull) as error:
            # Packets with this handle were sent before the client could know.
            self._refusals.add(said.handle, error)
            raise

    def _opened(self, said: Open, request: int) -> None:
        engine = self._owner.engine
        check_topic_name(said.topic, engine.topics)
        engine.check()
        if not said.channel:
            named = read_topic_options(said.options) if said.options else None
            topic = self._topics[said.handle] = Topic(engine, engine.engine(said.topic, named))
            self._wire.send(Done(None, {"window": MOST_PENDING, "options": topic_options(topic.options)}), request)
            return
        topic = Topic(engine, engine.unnamed(said.topic))
        check_name(said.channel, "channel")
        channel = topic.channel(said.channel, read_channel_options(said.options) if said.options else None)
        lending = self._lendings[said.handle] = Lending(self._owner, self._wire, said.handle, topic, channel)
        self._start(lending.settled_in(), request)

    def _put(self, said: Put, request: int) -> None:
        topic = self._topics.get(said.handle)
        if topic is None or self.client is None:
            self._refusals.check(said.handle)
            raise ProtocolError(f"PUT: the handle {said.handle} is no topic's")
        columns = _columns(said)
        origin = Origin(self.client.producer, said.sequence)
        if self._placing or not self._place_now(topic._engine, origin, columns, request):  # noqa: SLF001 - as above
            # INVARIANT: puts after one that may have to wait go the same way, or they would overtake it.
            self._placing += 1
            self._start(self._place_in_turn(topic, origin, columns), request)

    async def _place_in_turn(self, topic: Topic, origin: Origin, columns: Columns) -> Done:
        try:
            return await self._place(topic, origin, columns)
        finally:
            self._placing -= 1

    def _place_now(self, engine: TopicEngine, origin: Origin, columns: Columns, request: int) -> bool:
        """Place a put at once, if it has to wait only for the log; return whether it was placed."""
        put_buffer, commit, log = engine.put_buffer, engine.group_commit, engine.log
        putting, key = self._owner.putting, (engine.name, origin)
        if key in putting or not isinstance(log, TopicLog) or log.producers.find(origin) is not None:
            return False
        if not (commit.lone or commit.inline):  # these imply it
            engine.check()
            if not put_buffer.at_rest:
                return False
        sizes, options = list(map(len, columns.bodies)), engine.options
        if min(sizes) < options.min_message_bytes or max(sizes) > options.max_message_bytes:
            return False  # it is refused
        placing = Placing(len(sizes), partial(self._told, putting, key, request))
        part = Part(columns, [placing], atomic=True, cost=columns_cost(columns), origin=origin)
        # INVARIANT: no other task has run since the check: a put that arrives twice at once is placed once.
        putting[key] = placing
        try:
            if not commit.place(part):
                put_buffer.accept_part(part)
        except asyncio.QueueFull:
            del putting[key]
            return False  # it waits for room, or is refused, by the options
        except BaseException:
            putting.pop(key, None)
            raise
        return True

    def _told(self, putting: Underway, key: tuple[str, Origin], request: int, placed: Placing) -> None:
        """Answer a put that was placed at once, whose outcome is known."""
        del putting[key]
        if placed.error is None:
            self._wire.send(Done((placed.offset, placed.messages)), request)
        else:
            # The engine is still notifying others, which may change what this client is told.
            asyncio.get_running_loop().call_soon(self._fail, placed.error, request)

    async def _place(self, topic: Topic, origin: Origin, columns: Columns) -> Done:
        engine = topic._engine  # noqa: SLF001 - a session is a topic's other half
        engine.check()
        key, putting = (engine.name, origin), self._owner.putting
        while True:
            placing = putting.get(key)
            if placing is None:
                known = engine.log.producers.find(origin) if isinstance(engine.log, TopicLog) else None
                if known is not None:
                    return Done((known.start, len(known)))
                for body in columns.bodies:
                    engine.put_buffer.body(body)
                # INVARIANT: no other task has run since the check: a put that arrives twice at once is placed once.
                placing = putting[key] = asyncio.get_running_loop().create_task(self._put_in(engine, columns, origin))
                placing.add_done_callback(partial(self._placed, putting, key))
            try:
                # INVARIANT: an accepted put stays accepted if its connection ends: it may arrive again over another.
                placed = await asyncio.shield(placing.waiter() if isinstance(placing, Placing) else placing)
            except asyncio.CancelledError:
                if self._closing and isinstance(placing, asyncio.Future) and placing.cancelled():
                    raise QueueShutDown("the store is closed") from None
                if self._ending or isinstance(placing, Placing) or not placing.cancelled():
                    raise
                continue  # it belonged to another connection, which is gone
            return Done((placed.start, len(placed)))

    async def _put_in(self, engine: TopicEngine, columns: Columns, origin: Origin) -> range:
        """Put as soon as there is room, unless the client closes or is gone before."""
        task = asyncio.current_task()
        self._entering.add(task)
        try:
            waiter = await engine.put_buffer.enter(lambda: engine.put_buffer.accept_of(columns, origin))
        finally:
            self._entering.discard(task)
        return await waiter

    @staticmethod
    def _placed(putting: Underway, key: tuple[str, Origin], done: asyncio.Future[range]) -> None:
        del putting[key]
        if not done.cancelled():
            done.exception()  # perhaps its client is gone

    # --- channels

    def _lending(self, handle: int) -> Lending:
        lending = self._lendings.get(handle)
        if lending is None:
            self._refusals.check(handle)
            raise ProtocolError(f"the handle {handle} is no channel's")
        return lending

    def _want(self, said: Want, _request: int) -> None:
        self._lending(said.handle).want(said.total)

    def _ack(self, said: Ack, request: int) -> None:
        lending = self._lending(said.handle)
        failure = lending.ack(said.epoch, said.ranges)
        if request:
            self._start(lending.committed(failure), request)

    def _release(self, said: Release, request: int) -> None:
        lending = self._lending(said.handle)
        lending.release(said.epoch, said.ranges)
        if request:
            self._start(lending.committed(), request)

    def _nack(self, said: Nack, request: int) -> None:
        lending = self._lending(said.handle)
        for item in said.items:
            message = lending.take(said.epoch, item.offset, item.delivery)
            delay = None if item.span == UNSAID else item.span / _SECOND
            try:
                message.nack_nowait(delay, count_attempt=item.attempts >= message.attempts)
            except AiodqError:
                lending.keep(message)
                raise
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
        self._start(lending.rejected(message, said), request)

    def _resume(self, said: Resume, request: int) -> None:
        lending = self._lending(said.handle)
        lending.begin_resume()
        self._start(self._resumed(lending, said.held), request)

    async def _resumed(self, lending: Lending, held: tuple[Held, ...]) -> Done:
        if self.client is not None:
            await self._transactions.over(self.client.producer)
        return await lending.resume(held)

    # --- transactions

    def _transact(self, said: Txn, request: int) -> None:
        if self.client is None:
            raise ProtocolError("TXN comes before HELLO")
        origin = Origin(self.client.producer, said.sequence)
        if self._transactions.knows(origin):
            # Before its contents are looked at: that may no longer be possible, and it is done.
            self._wire.send(Done(), request)
            return
        asked = Asked.read(said, self._topic_engine, self._lending)
        self._start(self._transacted(origin, asked), request)

    def _topic_engine(self, handle: int) -> TopicEngine:
        # A transaction names the topic, which is created again if it was deleted since it was opened.
        if name := self._refusals.topic(handle):
            return self._owner.engine.engine(name)
        topic = self._topics.get(handle)
        if topic is None:
            self._refusals.check(handle)
            raise ProtocolError(f"TXN: the handle {handle} is no topic's")
        engine = topic._engine  # noqa: SLF001 - as above
        return self._owner.engine.engine(engine.name) if engine.closed else engine

    async def _transacted(self, origin: Origin, asked: Asked) -> Done:
        await self._transactions.commit(origin, asked)
        # The client sees the changes as soon as it knows of the commit.
        changed = asked.topics
        for handle, topic in self._topics.items():
            if topic.name in changed:
                self._say_figures(handle, anyhow=True)
        for handle, lending in self._lendings.items():
            if lending.topic in changed:
                self._say_figures(handle, anyhow=True)
        return Done()

    # --- calls

    def _call(self, said: Call, request: int) -> None:
        handle = said.arguments.get("handle")
        if handle is None:
            self._start(self._called(said), request)
        elif isinstance(handle, int) and handle in self._topics:
            self._start(answer(call_topic(self._owner, self._topics[handle], said.name, said.arguments)), request)
        else:
            lending = self._lending(handle if isinstance(handle, int) else -1)
            self._start(lending.called(said, self._say_figures), request)

    async def _called(self, said: Call) -> Done:
        if said.name == "closing":
            self._closing = True
            self._enter_no_more()
            self._transactions.close()
            return Done()
        if said.name == "withdraw" and self.client is not None:
            origin = Origin(self.client.producer, whole(said.arguments, "sequence"))
            return Done(None, {"result": await self._transactions.withdraw(origin)})
        if said.name == "events":
            return Done(None, {"result": await self._events.several(whole(said.arguments, "listener"))})
        if said.name == "deaf":
            self._events.end(whole(said.arguments, "listener"))
            return Done()
        if said.name != "back":
            return await answer(call_store(self._owner, said.name, said.arguments))
        # INVARIANT: the client's messages were claimed before: RESUME arrived, and was begun, before this.
        await asyncio.gather(*(lending.resumed.wait() for lending in self._lendings.values()))
        if self.client is not None:
            self._owner.came_back(self.client)
        return Done()

    def _ping(self, said: Ping, request: int) -> None:
        self._wire.send(Pong(said.token), request)

    def _bye(self, _said: Bye, _request: int) -> None:
        self._wire.end()


def _columns(said: Put) -> Columns:
    """Return the messages of a put."""
    body = decode_lone(said.frames, said.count)
    if body is not None:
        return Columns([body])
    batches = decode_messages(said.frames, 0, said.count)
    columns = batches[0].columns if len(batches) == 1 else Columns.joined([batch.columns for batch in batches])
    columns.times = None
    return columns
