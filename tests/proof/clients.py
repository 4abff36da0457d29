"""Clients of a store that is shared, in the simulated machine: all but the socket between them and the owner.

They are other processes: they live on when the owner is killed, and repeat what was not answered: puts, acks and
transactions, which count once.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.requests.lent.claims import Claims
from aiodq.shared.requests.owner_state.made_changes import MadeChanges
from aiodq.shared.requests.owner_state.overview import Overview
from aiodq.shared.requests.owner_state.waiting_bytes import WaitingBytes
from aiodq.shared.server.session import Session
from aiodq.storage.log.topic_log import TopicLog
from aiodq.testing import Marked
from aiodq.wire import packets
from aiodq.wire.frames import decode_messages, encode_messages
from aiodq.wire.payload import Held, Range
from aiodq.wire.stream import Received
from tests.proof.bodies import body_of, id_of
from tests.proof.ledger import Committed, Committing, Found, Outliving, Put, Putting, Settled, Settlement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult, PutsInProgress
    from aiodq.shared.requests.serving import Client
    from aiodq.storage.log.producer_table import Origin
    from tests.proof.world import World

__all__ = ["clients", "puts_of_clients", "puts_of_clients_through_memory", "work_of_clients"]

_MARK = "o"
"""With which the name of a message of a client begins; then comes its producer."""

_COMMITTED = "q"
"""The same for a message that a client puts in a transaction."""

_CHANNEL = "default"
_SIZE = 40
_LARGEST = 1 << 20


class _Owning:
    """What a session asks of who owns the store, as `aiodq.shared.server.owner.Owner`."""

    def __init__(self, store: aiodq.Store, epoch: int) -> None:
        self.engine: StoreEngine = store._store_engine
        self.store = store
        self.pid = 1
        self.own = 0
        self.epoch = epoch
        self.largest = _LARGEST
        self.puts_in_progress: PutsInProgress = {}
        self.transacting: dict[Origin, asyncio.Task[Any]] = {}
        self.waiting = WaitingBytes()
        self.changes = MadeChanges()
        self.overview = Overview(self.engine, epoch)
        self.closing = False
        self.clients: Sequence[Client] = ()

    def lends_to(self, client: packets.Hello) -> None:
        """Nobody waits for it."""

    async def noted(self) -> None:
        """As above."""

    def came_back(self, client: packets.Hello) -> None:
        """As above."""

    def claims(self, _place: str) -> Claims:
        """Nobody claims anything."""
        return Claims()

    def missed(self, _producer: int, _epoch: int) -> bool:
        """There was no owner before."""
        return False

    async def reclaimed(self) -> None:
        """There was no owner before."""

    def failed(self) -> None:
        """Nobody opens the store anew."""

    async def moved(self, place: str) -> None:
        """Nobody holds anything."""


class _Acking(Settlement):
    """A client acks a message, and repeats that until an owner has answered."""

    __slots__ = ()


class _Got(NamedTuple):
    """A message that a client holds."""

    name: str
    offset: int
    delivery: int


class _Client:
    """One client, and what it hears."""

    def __init__(self, owning: _Owning, producer: int) -> None:
        self._epoch = owning.epoch
        self._wanted = 0
        self._arrived: list[_Got] = []
        self.session = Session(owning, self)
        self._answers: dict[int, asyncio.Future[packets.Packet]] = {}
        self._request = 0
        self._handles: dict[tuple[str, str], int] = {}
        self._ask(packets.Hello(1, 1, 1, producer, 0, ""))

    def _ask(self, said: packets.Packet) -> asyncio.Future[packets.Packet]:
        self._request += 1
        answer = self._answers[self._request] = asyncio.get_running_loop().create_future()
        self.session.receive(Received(said, self._request))
        return answer

    def _handle(self, topic: str, channel: str = "") -> int:
        if (topic, channel) not in self._handles:
            handle = self._handles[topic, channel] = len(self._handles) + 1
            self._ask(packets.Open(handle, topic, channel, {}))
        return self._handles[topic, channel]

    async def put(self, topic: str, sequence: int, body: bytes) -> int:
        frames = encode_messages(Columns([body]), 1)
        answer = await self._ask(packets.Put(self._handle(topic), sequence, 1, frames))
        assert isinstance(answer, packets.Done), answer
        assert answer.placed is not None
        return answer.placed[0]

    async def take(self, world: World, topic: str, most: int) -> list[_Got]:
        """Take what is delivered within a while."""
        self._wanted += most
        self.session.receive(Received(packets.Want(self._handle(topic, _CHANNEL), self._wanted), 0))
        for _ in range(20):
            if len(self._arrived) < most:
                await world.rest()
        taken, self._arrived = self._arrived[:most], self._arrived[most:]
        return taken

    async def claim(self, topic: str, messages: dict[int, str]) -> tuple[list[_Got], list[str]]:
        """Claim messages that an earlier owner has delivered; return those held again, and those found settled."""
        held = tuple(Held(offset, offset + 1, 1, 1) for offset in sorted(messages))
        answer = await self._ask(packets.Resume(self._handle(topic, _CHANNEL), self._epoch - 1, held))
        assert isinstance(answer, packets.Done), answer
        facts = answer.facts or {}
        numbers = {first + at: number + at for first, number, count in facts["held"] for at in range(count)}
        got = [_Got(messages[offset], offset, number) for offset, number in numbers.items()]
        return got, [name for offset, name in messages.items() if offset not in {*numbers, *facts["elsewhere"]}]

    def _acks(self, topic: str, those: Sequence[_Got]) -> packets.Ack:
        ranges = tuple(Range(each.offset, each.delivery, 1) for each in those)
        return packets.Ack(self._handle(topic, _CHANNEL), self._epoch, ranges)

    async def ack(self, topic: str, got: _Got) -> None:
        answer = await self._ask(self._acks(topic, [got]))
        assert isinstance(answer, packets.Done), answer

    async def transact(self, topic: str, those: Sequence[_Got], into: str, sequence: int, body: bytes) -> bool:
        """Ack and put in one transaction; return whether it was committed."""
        put = packets.Put(self._handle(into), 0, 1, encode_messages(Columns([body]), 1))
        acks = (self._acks(topic, those),) if those else ()
        return isinstance(await self._ask(packets.Txn(sequence, acks, (put,))), packets.Done)

    async def leave(self) -> None:
        self.session.receive(Received(packets.Bye(), 0))
        await self.session.end()

    # --- the owner's wire

    def welcomed(self) -> None:
        """Its packets come whole."""

    def send(self, said: packets.Packet, request: int = 0) -> None:
        if request:
            self._answers.pop(request).set_result(said)
        elif isinstance(said, packets.Deliver):
            for batch in decode_messages(said.frames, said.first):
                for offset, body in enumerate(batch.columns.bodies, batch.first):
                    name = id_of(body)
                    assert name is not None, body
                    self._arrived.append(_Got(name, offset, said.delivery + offset - said.first))

    send_soon = send

    def process(self, said: int) -> int:
        """It is no real one."""
        return said

    def early(self, request: int) -> Callable[[ClientPutResult, int], None]:
        """Its puts are answered by who has synced them."""

        def answer(put: ClientPutResult, first: int) -> None:
            self.send(packets.Done((first, put.messages)), request)
            put.answered = True

        return answer

    def answered(self, put: ClientPutResult) -> bool:
        """All is done by one thread here."""
        return put.answered

    clogged = False

    async def writable(self) -> None:
        """It always takes what is sent."""

    def end(self) -> None:
        """It ends with the test's."""


class _Unanswered:
    """What clients have asked for and no owner has answered.

    Attributes:
        puts: the topic of each message that was put, by its name.
        acks: the topic and the name of each message that was acked.
        transactions: by the name of what they put.
        log: the offset of each message that the present owner has found, by its topic and name.
    """

    def __init__(self) -> None:
        self.puts: dict[str, str] = {}
        self.acks: dict[tuple[str, str], None] = {}
        self.transactions: dict[str, Committing] = {}
        self.log: dict[tuple[str, str], int] = {}

    def look_at(self, note: object) -> None:
        """Take in the next note."""
        match note:
            case Putting(topic, names) if names[0].startswith(_MARK):
                self.puts[names[0]] = topic
            case Put(_, names) if names:
                self.puts.pop(names[0], None)
            case _Acking(topic, _, name):
                self.acks[topic, name] = None
            case Settled(topic, _, name):
                self.acks.pop((topic, name), None)
            case Committed(_, puts) if puts:
                self.transactions.pop(puts[0][1], None)
            case Committing(_, puts) if puts and puts[0][1].startswith(_COMMITTED):
                self.transactions[puts[0][1]] = note
            case Found(topics):
                self.log = {(topic, name): at for topic, found in topics.items() for at, name in found.log.items()}
            case _:
                return


class _Clients:
    """All clients of a store."""

    def __init__(self, world: World, store: aiodq.Store) -> None:
        self._world = world
        self._store = store
        self._owning = _Owning(store, 2 * world.life + 2)
        self._clients: dict[int, _Client] = {}

    async def put(self, topic: str, producer: int) -> None:
        """Put a message by a client that began in this life."""
        name, _ = self._world.message(f"{_MARK}{10 * self._world.life + producer}", _SIZE)
        await self._put(topic, name)

    async def ack(self, topic: str, producer: int, count: int) -> None:
        """Take up to so many messages by a client of this life, and ack each."""
        client = self._client(10 * self._world.life + producer)
        for got in await client.take(self._world, topic, count):
            await self._ack(client, topic, got)
            await self._world.rest()

    async def _ack(self, client: _Client, topic: str, got: _Got) -> None:
        self._world.note(_Acking(topic, _CHANNEL, got.name))
        await client.ack(topic, got)
        self._world.note(Settled(topic, _CHANNEL, got.name))

    async def transact(self, topic: str, into: str, producer: int, count: int) -> None:
        """Take up to so many messages by a client of this life, and ack them and put one in one transaction."""
        producer += 10 * self._world.life
        client = self._client(producer)
        got = await client.take(self._world, topic, count)
        name, _ = self._world.message(f"{_COMMITTED}{producer}", _SIZE)
        acks = tuple((topic, _CHANNEL, each.name) for each in got)
        await self._transact(got, Committing(acks, ((into, name),)), topic)

    async def _transact(self, got: Sequence[_Got], note: Committing, topic: str) -> None:
        into, name = note.puts[0]
        producer, _, number = name.removeprefix(_COMMITTED).split(":")
        # What is not held is not settled by it: then it is done only if it was committed before.
        whole = len(got) == len(note.acks)
        if whole:
            self._world.note(note)
        those = got if whole else [_Got("", 0, 0)]
        body = body_of(name, _SIZE)
        done = await self._client(int(producer)).transact(topic, those, into, int(number), body)
        assert done or not whole
        if done:
            self._world.note(Committing(note.acks, note.puts))
            self._world.note(Committed(note.acks, note.puts))
            await self._world.find(self._store, [(into, name)])

    async def repeat(self) -> None:
        """Repeat, in order, what was not answered before the owner was killed."""
        unanswered = _Unanswered()
        for operation in self._world.trace:
            note = operation.label if isinstance(operation, Marked) else None
            unanswered.look_at(note.note if isinstance(note, Outliving) else note)
        await asyncio.gather(*(self._put(topic, name) for name, topic in unanswered.puts.items()))
        for topic, name in unanswered.acks:
            await self._ack_again(topic, name, unanswered.log)
        for transaction in unanswered.transactions.values():
            await self._commit_again(transaction, unanswered.log)

    async def _ack_again(self, topic: str, name: str, log: dict[tuple[str, str], int]) -> None:
        if (topic, name) not in log:
            return  # settled, and deleted since
        client = self._client(10 * self._world.life + 9)
        got, settled = await client.claim(topic, {log[topic, name]: name})
        for each in settled:
            # The client is told that its ack counts, by an owner that has found it so.
            self._world.note(_Acking(topic, _CHANNEL, each))
            self._world.note(Settled(topic, _CHANNEL, each))
        for one in got:
            await self._ack(client, topic, one)

    async def _commit_again(self, note: Committing, log: dict[tuple[str, str], int]) -> None:
        topic = note.acks[0][0] if note.acks else ""
        producer = int(note.puts[0][1].removeprefix(_COMMITTED).split(":")[0])
        claimed = {log[topic, name]: name for _, _, name in note.acks if (topic, name) in log}
        got, _ = await self._client(producer).claim(topic, claimed) if claimed else ([], [])
        await self._transact(got, note, topic)

    async def _put(self, topic: str, name: str) -> None:
        producer, _, number = name.removeprefix(_MARK).split(":")
        self._world.note(Putting(topic, (name,)))
        offset = await self._client(int(producer)).put(topic, int(number), body_of(name, _SIZE))
        put = Put(topic, (name,), (offset,))
        self._world.note(put if self._owning.engine.topics[topic].durably else Outliving(topic, put))

    def _client(self, producer: int) -> _Client:
        if producer not in self._clients:
            self._clients[producer] = _Client(self._owning, producer)
        return self._clients[producer]

    async def end(self) -> None:
        """Let all of them be gone."""
        await asyncio.gather(*(client.leave() for client in self._clients.values()))


@asynccontextmanager
async def clients(world: World, store: aiodq.Store) -> AsyncIterator[_Clients]:
    """Serve the clients that there are, as an owner does that has just opened a store."""
    engine = store._store_engine
    for topic in engine.topics.values():
        if isinstance(topic.log, TopicLog):
            await engine.threads.call(topic.log.recall)
    found = _Clients(world, store)
    try:
        await found.repeat()
        yield found
    finally:
        await found.end()


async def puts_of_clients(world: World) -> None:
    """Clients of a shared store put, and put again what a killed owner has not answered: each put counts once."""
    for _ in range(2):
        async with world.store(aiodq.StoreOptions(segment_bytes=700)) as store:
            queue = world.queue(store, "jobs")
            async with clients(world, store) as those:
                await asyncio.gather(*(_put_some(world, those, producer) for producer in (1, 2)))
                await asyncio.gather(_put_some(world, those, 3), _take_some(world, queue))


async def puts_of_clients_through_memory(world: World) -> None:
    """As before, beside the owner's own puts, where none waits for a sync and most are stored in write windows."""
    with (
        mock.patch.multiple(
            "aiodq.storage.log.preallocation", _PAGE=64, _FIRST_WINDOW=1, _SMALL=300, _MOST=9000, GRANULARITY=1
        ),
        mock.patch("aiodq.storage.log.active_segment.INDEX_STRIDE", 100),  # as often is a window asked for
    ):
        for _ in range(2):
            async with world.store(aiodq.StoreOptions(sync="os", segment_bytes=3000)) as store:
                queue = world.queue(store, "jobs")
                async with clients(world, store) as those:
                    await asyncio.gather(*(_put_some(world, those, producer) for producer in (1, 2)))
                    await world.write(queue, "p", 300)
                    await world.sync(queue)
                    await asyncio.gather(*(_put_some(world, those, producer) for producer in (2, 3)))
                    await world.write(queue, "p", 40)


async def work_of_clients(world: World) -> None:
    """Clients of a shared store put, ack and commit transactions, and repeat what a killed owner has not answered."""
    for _ in range(2):
        async with world.store(aiodq.StoreOptions(segment_bytes=700)) as store:
            world.queue(store, "jobs")
            world.queue(store, "done")
            async with clients(world, store) as those:
                await asyncio.gather(*(_put_some(world, those, producer) for producer in (1, 2)))
                await asyncio.gather(those.ack("jobs", 3, 2), those.transact("jobs", "done", 4, 2))
                await asyncio.gather(
                    those.transact("jobs", "done", 4, 1), those.ack("jobs", 3, 1), those.put("jobs", 1)
                )


async def _put_some(world: World, those: _Clients, producer: int) -> None:
    """Put two at once, and then another one."""
    await asyncio.gather(*(those.put("jobs", producer) for _ in range(2)))
    await world.rest()
    await those.put("jobs", producer)


async def _take_some(world: World, queue: aiodq.Queue) -> None:
    for _ in range(min(5, queue.qsize())):
        await world.ack(await queue.get())
        await world.rest()
