"""What a process does while its connection is cut, or the store's owner closes, after so many turns of the loop."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.shared.connection import in_turns
from aiodq.shared.connection.wires import packet_protocol
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Doing = Callable[[aiodq.Store, aiodq.Queue], Awaitable[list[bytes]]]

BODIES = [b"%d" % number for number in range(8)]
TURNS = 60
EARLY = 6
"""Turns in which most of it is on its way."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every turn be over with its first step."""
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    monkeypatch.setattr(packet_protocol, "LONGEST_TURN", 0.0)


# Each of these returns what is to be left, in this order; what it puts comes behind what was there.


async def put(store: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    for body in (b"8", b"9"):
        await queue.put(body)
    assert await store.queue("new").put(b"x") == 0
    return [*BODIES, b"8", b"9"]


async def put_at_once(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    first, many = queue.put_nowait(b"8"), asyncio.ensure_future(queue.put_many([b"9", b"10"]))
    given_up = asyncio.ensure_future(queue.put(b"11"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await first, await many) == (8, range(9, 11))
    await asyncio.wait([given_up])
    kept = [message.body async for message in queue.scan(8)]
    assert kept in ([b"8", b"9", b"10"], [b"8", b"9", b"10", b"11"])
    return BODIES + kept


async def ack(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    for body in BODIES[:3]:
        message = await queue.get()
        assert message.body == body
        await message.ack()
    return BODIES[3:]


async def ack_many(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    messages = await queue.get_many(4)
    assert [message.body for message in messages] == BODIES[: len(messages)]
    await queue.ack_many(messages)
    return BODIES[len(messages) :]


async def ack_nowait(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    got = list[bytes]()
    async for message in queue:
        got.append(message.body)
        message.ack_nowait()
        if len(got) == 6:
            break
    assert got == BODIES[:6]
    return BODIES[6:]


async def nack(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    await (await queue.get()).nack()
    message = await queue.get()
    assert (message.body, message.attempts) == (b"0", 2)
    await message.touch()
    message.release()
    assert (await queue.get()).body == b"0"
    return BODIES


async def reject(store: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    await queue.configure(aiodq.ChannelOptions(dead_letter="dead"))
    for body in BODIES[:2]:
        message = await queue.get()
        assert message.body == body
        await message.reject("no")
    assert [letter.body async for letter in store.topic("dead").scan()] == BODIES[:2]
    return BODIES[2:]


async def transact(store: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    for body in BODIES[:2]:
        async with store.transaction() as tx, await queue.get() as message:
            assert message.body == body
            tx.put("out", message.body)
    assert [message.body async for message in store.topic("out").scan()] == BODIES[:2]
    return BODIES[2:]


async def call(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    await queue.pause()
    await queue.sync()
    await queue.resume()
    held = await queue.get()
    await queue.seek(3)
    assert (await queue.get()).body == b"3"
    assert held.body == b"0"
    return BODIES[3:]


async def join(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    joining = asyncio.ensure_future(queue.join())
    for body in BODIES:
        message = await queue.get()
        assert message.body == body
        message.ack_nowait()
    await joining
    return []


async def get_less(_: aiodq.Store, queue: aiodq.Queue) -> list[bytes]:
    got = set[bytes]()
    for turns in range(5):
        getting = asyncio.ensure_future(queue.get())
        for _turn in range(turns):
            await asyncio.sleep(0)
        getting.cancel()
        await asyncio.wait([getting])
        if not getting.cancelled():
            getting.result().ack_nowait()
            got.add(getting.result().body)
    return [body for body in BODIES if body not in got]


ALL: list[Doing] = [put, put_at_once, ack, ack_many, ack_nowait, nack, reject, transact, call, join, get_less]


async def do_while(doing: Doing, trouble: str, turns: int, path: Path) -> None:
    """Do something in a client, with this trouble after so many turns; compare what is left."""
    async with aiodq.open(path, QUICK) as store:
        await store.queue("jobs").put_many(BODIES)
    mode: Any = "client" if trouble == "cut" else "shared"
    async with asyncio.timeout(PATIENCE):
        owner = await aiodq.open(path, QUICK, mode="shared")
        client = await aiodq.open(path, QUICK, mode=mode)

        async def make_trouble() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            if trouble == "cut":
                client._store_engine.link._wire.abort()  # type: ignore[attr-defined]  # it stands in its place
            else:
                await owner.aclose()

        making = asyncio.ensure_future(make_trouble())
        left = await doing(client, client.queue("jobs"))
        await making
        await client.aclose()
        await owner.aclose()
    async with aiodq.open(path) as store:
        queue, found = store.queue("jobs"), list[bytes]()
        while queue.qsize():
            found.append((await queue.get()).body)
    assert found == left, f"{trouble} after {turns} turns"


@pytest.mark.parametrize("trouble", ["cut", "close"])
@pytest.mark.parametrize("doing", ALL)
async def test_nothing_is_lost_nor_done_twice_nor_in_another_order(
    doing: Doing, trouble: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    turns = rng.randrange(EARLY) if rng.random() < 0.5 else rng.randrange(EARLY, TURNS)
    await do_while(doing, trouble, turns, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["cut", "close"])
@pytest.mark.parametrize("doing", ALL)
async def test_nothing_is_lost_nor_done_twice_whichever_turn_it_is(doing: Doing, trouble: str, tmp_path: Path) -> None:
    for turns in range(TURNS):
        await do_while(doing, trouble, turns, tmp_path / f"{turns}")
