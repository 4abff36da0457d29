"""Clients of a store that is shared, in the simulated machine: all but the socket between them and the owner.

They are other processes: they live on when the owner is killed, and put again what was not answered.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.requests.claims import Claims
from aiodq.shared.requests.made_changes import MadeChanges
from aiodq.shared.requests.waiting_bytes import WaitingBytes
from aiodq.shared.server.session import Session
from aiodq.storage.log.topic_log import TopicLog
from aiodq.testing import Marked
from aiodq.wire import packets
from aiodq.wire.frames import encode_messages
from aiodq.wire.stream import Received
from tests.proof.bodies import body_of
from tests.proof.ledger import Outliving, Put, Putting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.shared.requests.placing import Placing, Underway
    from aiodq.shared.requests.serving import Client
    from aiodq.storage.log.producer_table import Origin
    from tests.proof.world import World

__all__ = ["clients", "puts_of_clients", "puts_of_clients_through_memory"]

_MARK = "o"
"""With which the name of a message of a client begins; then comes its producer."""

_SIZE = 40
_LARGEST = 1 << 20


class _Owning:
    """What a session asks of who owns the store, as `aiodq.shared.server.owner.Owner`."""

    def __init__(self, store: aiodq.Store) -> None:
        self.engine: StoreEngine = store._store_engine
        self.store = store
        self.pid = 1
        self.own = 0
        self.epoch = 1
        self.largest = _LARGEST
        self.putting: Underway = {}
        self.transacting: dict[Origin, asyncio.Task[Any]] = {}
        self.waiting = WaitingBytes()
        self.changes = MadeChanges()
        self.clients: Sequence[Client] = ()

    def lends_to(self, client: packets.Hello) -> None:
        """Nobody waits for it."""

    def came_back(self, client: packets.Hello) -> None:
        """As above."""

    def claims(self, _place: str) -> Claims:
        """Nobody claims anything."""
        return Claims()

    async def reclaimed(self) -> None:
        """There was no owner before."""

    def failed(self) -> None:
        """Nobody opens the store anew."""

    def moved(self, place: str) -> None:
        """Nobody holds anything."""


class _Client:
    """One client, and what it hears."""

    def __init__(self, owning: _Owning, producer: int) -> None:
        self.session = Session(owning, self)
        self._answers: dict[int, asyncio.Future[packets.Packet]] = {}
        self._request = 0
        self._handles: dict[str, int] = {}
        self._ask(packets.Hello(1, 1, 1, producer, 0, ""))

    def _ask(self, said: packets.Packet) -> asyncio.Future[packets.Packet]:
        self._request += 1
        answer = self._answers[self._request] = asyncio.get_running_loop().create_future()
        self.session.receive(Received(said, self._request))
        return answer

    async def put(self, topic: str, sequence: int, body: bytes) -> int:
        if topic not in self._handles:
            self._handles[topic] = len(self._handles) + 1
            self._ask(packets.Open(self._handles[topic], topic, "", {}))
        frames = encode_messages(Columns([body]), 1)
        answer = await self._ask(packets.Put(self._handles[topic], sequence, 1, frames))
        assert isinstance(answer, packets.Done), answer
        assert answer.placed is not None
        return answer.placed[0]

    # --- the owner's wire

    def welcomed(self) -> None:
        """Its packets come whole."""

    def send(self, said: packets.Packet, request: int = 0) -> None:
        if request:
            self._answers.pop(request).set_result(said)

    send_soon = send

    def early(self, request: int) -> Callable[[Placing, int], None]:
        """Its puts are answered by who has synced them."""

        def answer(put: Placing, first: int) -> None:
            self.send(packets.Done((first, put.messages)), request)
            put.answered = True

        return answer

    def answered(self, put: Placing) -> bool:
        """All is done by one thread here."""
        return put.answered

    clogged = False

    async def writable(self) -> None:
        """It always takes what is sent."""

    def end(self) -> None:
        """It ends with the test's."""


class _Clients:
    """All clients of a store."""

    def __init__(self, world: World, store: aiodq.Store) -> None:
        self._world = world
        self._owning = _Owning(store)
        self._clients: dict[int, _Client] = {}

    async def put(self, topic: str, producer: int) -> None:
        """Put a message by a client that began in this life."""
        name, _ = self._world.message(f"{_MARK}{10 * self._world.life + producer}", _SIZE)
        await self._put(topic, name)

    async def repeat(self) -> None:
        """Put again, in order, what was not answered before the owner was killed."""
        waiting: dict[str, str] = {}
        for operation in self._world.trace:
            note = operation.label if isinstance(operation, Marked) else None
            note = note.note if isinstance(note, Outliving) else note
            if isinstance(note, Putting) and note.names[0].startswith(_MARK):
                waiting[note.names[0]] = note.topic
            elif isinstance(note, Put):
                waiting.pop(note.names[0] if note.names else "", None)
        await asyncio.gather(*(self._put(topic, name) for name, topic in waiting.items()))

    async def _put(self, topic: str, name: str) -> None:
        producer, _, number = name.removeprefix(_MARK).split(":")
        client = self._clients.get(int(producer))
        if client is None:
            client = self._clients[int(producer)] = _Client(self._owning, int(producer))
        self._world.note(Putting(topic, (name,)))
        offset = await client.put(topic, int(number), body_of(name, _SIZE))
        put = Put(topic, (name,), (offset,))
        self._world.note(put if self._owning.engine.topics[topic].durably else Outliving(topic, put))

    async def end(self) -> None:
        """Let all of them be gone."""
        await asyncio.gather(*(client.session.end() for client in self._clients.values()))


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


async def _put_some(world: World, those: _Clients, producer: int) -> None:
    """Put two at once, and then another one."""
    await asyncio.gather(*(those.put("jobs", producer) for _ in range(2)))
    await world.rest()
    await those.put("jobs", producer)


async def _take_some(world: World, queue: aiodq.Queue) -> None:
    for _ in range(min(5, queue.qsize())):
        await world.ack(await queue.get())
        await world.rest()
