"""What these tests share: a store of two processes in one, and a client that says exactly what it is told to."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.connection.finding.rendezvous import connect, process_of
from aiodq.shared.server import client_connection
from aiodq.shared.server.owner import Owner
from aiodq.wire.frames import decode_messages, encode_messages
from aiodq.wire.packets import Deliver, Fail, Hello, Open, Put, Want, Welcome
from aiodq.wire.stream import PacketReader, encode_packet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from aiodq.clock import Clock
    from aiodq.wire.packets import Packet

T = TypeVar("T")

PATIENCE = 30.0
NO_PROCESS = 2**31 - 1
"""The pid of a process that has ended: what it held comes again at once."""
NO_SOCKET = socket.socket()
NO_SOCKET.close()
QUICK = aiodq.StoreOptions(sync="os")
TIME = 1_700_000_000_000_000_000


@contextmanager
def as_said() -> Iterator[None]:
    """Have owners believe a `RawClient` that it is no process: its socket belongs to this one."""

    def process(sock: socket.socket, said: int) -> int:
        return said if said == NO_PROCESS else process_of(sock, said)

    with mock.patch.object(client_connection, "process_of", process):
        yield


class RawClient:
    """One connection. `said` is what nobody has asked for yet, in the order in which it came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.packets = PacketReader()
        self.packets.largest = 1 << 26
        self.answers: dict[int, Packet] = {}
        self.said: list[Packet] = []
        self.number = 0
        self.epoch = 0

    @classmethod
    async def connected(cls, directory: Path) -> RawClient:
        """Connect, trying again until somebody listens."""
        async with asyncio.timeout(PATIENCE):
            while (sock := connect(str(directory))) is None:
                await asyncio.sleep(0.005)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, said: Packet) -> int:
        """Say something; return the request's number."""
        self.number += 1
        self.writer.write(encode_packet(said, self.number))
        return self.number

    async def answer(self, request: int) -> Packet:
        """Return the answer to a request."""
        async with asyncio.timeout(PATIENCE):
            while request not in self.answers:
                await self._hear()
        return self.answers.pop(request)

    async def _hear(self) -> None:
        data = await self.reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("the owner is gone")
        for said, request in self.packets.feed(data):
            if request:
                self.answers[request] = said
            else:
                self.said.append(said)

    async def ask(self, said: Packet) -> Packet:
        """Say something and return the answer."""
        return await self.answer(self.send(said))

    async def hear(self, kind: type[T]) -> T:
        """Return the next packet of a kind that nobody asked for."""
        async with asyncio.timeout(PATIENCE):
            while not (found := [each for each in self.said if isinstance(each, kind)]):
                await self._hear()
        self.said.remove(found[0])
        return found[0]

    async def hello(self, producer: int = 7, *, pid: int = NO_PROCESS) -> Welcome:
        """Introduce oneself."""
        welcome = await self.ask(Hello(1, 1, pid, producer, 0, "test"))
        assert isinstance(welcome, Welcome), welcome
        self.epoch = welcome.epoch
        return welcome

    async def open(self, handle: int, topic: str, channel: str = "") -> None:
        """Name a topic or channel."""
        answer = await self.ask(Open(handle, topic, channel, {}))
        assert not isinstance(answer, Fail), answer

    def put(self, handle: int, sequence: int, bodies: Sequence[bytes]) -> int:
        """Begin to put; return the request's number."""
        return self.send(Put(handle, sequence, len(bodies), encode_messages(Columns(list(bodies)), TIME)))

    async def take(self, handle: int, total: int, count: int) -> list[tuple[int, int, bytes]]:
        """Want so many in all; return offset, delivery number and body of the next `count`."""
        self.send(Want(handle, total))
        found: list[tuple[int, int, bytes]] = []
        while len(found) < count:
            said = await self.hear(Deliver)
            for batch in decode_messages(said.frames, said.first):
                first = said.delivery + batch.first - said.first
                found += zip(range(batch.first, batch.stop), range(first, first + 10**6), batch.columns.bodies)  # noqa: B905
        return found

    async def close(self) -> None:
        """Be gone."""
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


async def joined(directory: Path, producer: int = 7) -> RawClient:
    """Return a client that has opened the topic `jobs` as handle 1, and its default channel as 2."""
    client = await RawClient.connected(directory)
    await client.hello(producer)
    await client.open(1, "jobs")
    await client.open(2, "jobs", "default")
    return client


@asynccontextmanager
async def owned(
    directory: Path, options: aiodq.StoreOptions | None = None, *, reclaim: float = 1.0, clock: Clock | None = None
) -> AsyncIterator[tuple[aiodq.Store, Owner]]:
    """Own a store and serve it."""
    async with aiodq.open(directory, options, clock=clock) as store:
        owner = Owner(store._store_engine, reclaim=reclaim)
        await owner.start()
        try:
            yield store, owner
        finally:
            await owner.close()


@asynccontextmanager
async def two(
    path: Path, options: aiodq.StoreOptions | None = None, *, clock: Clock | None = None
) -> AsyncIterator[tuple[aiodq.Store, aiodq.Store]]:
    """Give a store twice: whose owner is here, by whose clock it goes, and one that asks it."""
    async with (
        aiodq.open(path, options, mode="shared", clock=clock) as owner,
        aiodq.open(path, options, mode="client") as client,
    ):
        yield owner, client


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


async def counts(queue: aiodq.Channel) -> tuple[int, int, int]:
    await queue.refresh()
    return queue.qsize(), queue.in_flight(), queue.deferred()


async def cut(link: Any) -> None:
    """Cut a client's connection, and wait until there is another one."""
    before = link._wire
    before.abort()
    await until(lambda: link._ready and link._wire is not before)
