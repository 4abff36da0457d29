"""What is done to a channel while its next owner still waits for those who hold its messages: it leaves them alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiodq
from aiodq.shared.connection.finding.rendezvous import listen
from aiodq.testing import FakeClock
from aiodq.wire.packets import Ack, Call, Done, Held, Ping, Range, Resume
from tests.shared.support import RawClient, owned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiodq.shared.server.owner import Owner

BEFORE = 99
"""The epoch of the owner that was killed."""


class Scene:
    """The next owner, and a client that holds message 0 of the topic `held` since the one before."""

    def __init__(self, store: aiodq.Store, owner: Owner, client: RawClient) -> None:
        self.store = store
        self.owner = owner
        self.client = client

    async def begin(self, said: Call) -> int:
        """Ask the owner, and give it the time to answer at once."""
        request = self.client.send(said)
        await self.client.ask(Ping(1))
        for _ in range(50):
            await asyncio.sleep(0)
        return request

    async def acks_what_it_holds(self) -> None:
        done = await self.client.ask(Resume(2, BEFORE, (Held(0, 5, 1, 1),)))
        assert isinstance(done, Done)
        facts = done.facts or {}
        assert facts["elsewhere"] == []
        [(_, number, _)] = facts["held"]
        assert await self.client.ask(Ack(2, self.owner.epoch, (Range(0, number, 1),))) == Done()

    async def answer(self, request: int) -> object:
        """Let the time be over in which messages may be claimed; return the answer."""
        self.owner._look_for_late()
        done = await self.client.answer(request)
        assert isinstance(done, Done)
        return (done.facts or {})["result"]


@asynccontextmanager
async def held(path: Path, clock: FakeClock | None = None) -> AsyncIterator[Scene]:
    listen(str(path)).sock.close()  # as a kill leaves it
    async with owned(path, reclaim=3600, clock=clock) as (store, owner):
        client = await RawClient.connected(path)
        await client.hello()
        await client.open(1, "held")
        await client.open(2, "held", "default")
        yield Scene(store, owner, client)
        await client.close()


async def test_a_letter_in_hand_is_not_put_back(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        queue = store.queue("jobs", aiodq.ChannelOptions(dead_letter="held"))
        store.queue("held")
        await queue.put_many([b"0", b"1"])
        for message in await queue.get_many(2):
            await message.reject("unwanted")
    async with held(tmp_path / "s") as scene:
        requeueing = await scene.begin(Call("requeue_dead", {"topic": "held"}))
        await scene.acks_what_it_holds()
        assert await scene.answer(requeueing) == 1
        assert [message.body async for message in scene.store.topic("jobs").scan(2)] == [b"1"]


async def test_letters_in_hand_are_not_listed_nor_put_back_by_their_offsets(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        queue = store.queue("jobs", aiodq.ChannelOptions(dead_letter="held"))
        store.queue("held")
        await queue.put(b"0")
        await (await queue.get()).reject("unwanted")
    async with held(tmp_path / "s") as scene:
        listing = await scene.begin(Call("letters", {"topic": "held", "from": 0}))
        requeueing = await scene.begin(Call("requeue_these", {"topic": "held", "offsets": [0]}))
        await scene.acks_what_it_holds()
        assert await scene.answer(listing) == {"offsets": [], "next": None}
        assert await scene.client.answer(requeueing) == Done(None, {"result": 0})


async def test_a_look_at_the_next_message_settles_none_that_is_in_hand_and_has_expired(tmp_path: Path) -> None:
    clock = FakeClock()
    async with aiodq.open(tmp_path / "s", clock=clock) as store:
        queue = store.queue("held")
        await queue.put(b"0", ttl=10)
        await queue.put(b"1")
    async with held(tmp_path / "s", clock) as scene:
        clock.advance(20)
        peeking = await scene.begin(Call("peek", {"handle": 2}))
        await scene.acks_what_it_holds()
        assert await scene.answer(peeking) == 1
        assert scene.store.queue("held").stats().expired == 0
