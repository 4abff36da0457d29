"""What a process holds while owners change, said step by step by an owner that is none."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.rendezvous import listen
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Ack, Call, Deliver, Done, Hello, Message, Open, Ping, Pong, Resume, Want, Welcome
from aiodq.wire.stream import PacketReader, encode_packet
from tests.shared.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Owner:
    """Gives the first client message 0, and is gone; the next time it gives message 1 before it answers RESUME."""

    def __init__(self) -> None:
        self.epoch = 0
        self.acked: list[tuple[int, int]] = []
        self._channel = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.epoch += 1
        epoch, packets = self.epoch, PacketReader()
        while data := await reader.read(1 << 16):
            for said, request in packets.feed(data):
                for answer, number in self._answers(said, request, epoch):
                    writer.write(encode_packet(answer, number))
                if epoch == 1 and isinstance(said, Want):
                    await writer.drain()
                    writer.close()
                    return
        writer.close()

    def _deliver(self, offset: int) -> tuple[Message, int]:
        return Deliver(self._channel, 1, offset, 100 + offset, encode_messages(Columns([b"%d" % offset]), 1)), 0

    def _left(self) -> object:
        return [[0, 7, 1]]

    def _answers(self, said: Message, request: int, epoch: int) -> list[tuple[Message, int]]:
        answer: Message | None = Done() if request else None
        match said:
            case Hello():
                answer = Welcome(1, os.getpid(), epoch, 1 << 20, 0)
            case Open():
                self._channel = said.handle if said.channel else self._channel
            case Ping():
                answer = Pong(said.token)
            case Resume():
                return [self._deliver(1), (Done(None, {"held": self._left()}), request)]
            case Ack():
                self.acked += [(each.first, each.delivery) for each in said.ranges]
            case Call():
                facts = {"topics": [], "more": False} if said.name == "store" else None
                answer = Done(None, {"result": facts}) if said.name != "ended" else None
            case Want() if epoch == 1:
                return [self._deliver(0)]
        return [] if answer is None else [(answer, request)]


class Confused(Owner):
    """Answers RESUME with what is no answer."""

    def _left(self) -> object:
        return 5


@asynccontextmanager
async def served(path: Path, owner: Owner) -> AsyncIterator[None]:
    """Have an owner at a store that nobody has open."""
    async with aiodq.open(path) as store:
        await store.queue("jobs").put(b"x")
    listening = listen(str(path))
    server = await asyncio.start_unix_server(owner.talk, sock=listening.sock)
    try:
        yield
    finally:
        server.close()
        listening.close()


async def test_what_comes_before_an_owner_has_said_what_is_held_stays_in_hand(tmp_path: Path) -> None:
    owner = Owner()
    async with (
        served(tmp_path / "s", owner),
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path / "s", mode="client") as client,
    ):
        queue = client.queue("jobs")
        first = await queue.get()
        second = await queue.get()
        assert (first.body, second.body, owner.epoch) == (b"0", b"1", 2)
        await first.ack()
        await second.ack()
    assert sorted(owner.acked) == [(0, 7), (1, 101)]


async def test_who_settles_what_an_owner_says_nothing_of_is_told_in_words(tmp_path: Path) -> None:
    async with served(tmp_path / "s", Confused()), asyncio.timeout(PATIENCE):
        client = await aiodq.open(tmp_path / "s", mode="client", failover=5)
        first = await client.queue("jobs").get()
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to RESUME"):
            await first.ack()
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to RESUME"):
            await client.aclose()
