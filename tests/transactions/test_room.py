"""Transactions that put into several bounded topics: room is taken in all of them at once, or in none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.committing import reserved_room
from tests.channels.support import Machine, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiodq.opening import Mode


@pytest.fixture
async def store(machine: Machine) -> AsyncIterator[aiodq.Store]:
    async with machine.store(max_messages=1) as opened:
        yield opened


async def put_into(store: aiodq.Store, body: bytes, *topics: str, ack: aiodq.Message | None = None) -> None:
    async with store.transaction() as tx:
        if ack is not None:
            tx.ack(ack)
        for topic in topics:
            tx.put(topic, body)


def waiting(queue: aiodq.Queue) -> int:
    return len(queue.topic._engine.put_buffer._waiting.line)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_one_that_is_refused_for_lack_of_room_leaves_no_empty_topic(tmp_path: Path, mode: Mode) -> None:
    options = aiodq.StoreOptions(max_messages=1, overflow="reject")
    async with aiodq.open(tmp_path, mode=mode) as store:
        await store.queue("full", options=options).put(b"full")
        with pytest.raises(aiodq.QueueFull):
            await soon(put_into(store, b"x", "a", "full", "z"))
        assert store.topics() == ["full"]
        assert {path.name for path in tmp_path.iterdir()}.isdisjoint({"a", "z"})
        await soon(store.queue("full").purge())
        await soon(put_into(store, b"x", "a", "full", "z"))
        assert store.topics() == ["a", "full", "z"]


async def test_one_whose_message_is_taken_away_leaves_no_empty_topic(store: aiodq.Store) -> None:
    full, other = store.queue("full"), store.queue("other")
    await full.put(b"full")
    await other.put(b"x")
    message = await other.get()
    waits = asyncio.ensure_future(put_into(store, b"x", "a", "full", ack=message))
    await until(lambda: waiting(full))
    await other.purge()
    await full.purge()
    with pytest.raises(aiodq.NotInFlightError):
        await soon(waits)
    assert store.topics() == ["full", "other"]


@pytest.mark.parametrize("plain", [False, True])
async def test_who_makes_room_in_one_may_put_into_the_other(store: aiodq.Store, *, plain: bool) -> None:
    a, b = store.queue("a"), store.queue("b")
    await b.put(b"full")
    message = await b.get()
    both = asyncio.ensure_future(put_into(store, b"both", "a", "b"))
    await until(lambda: waiting(b))
    if plain:
        await soon(a.put(b"from b"))
        await message.ack()
    else:
        await soon(put_into(store, b"from b", "a", ack=message))
    assert not both.done()
    await (await soon(a.get())).ack()
    await soon(both)
    assert (ready(a), ready(b)) == ([b"both"], [b"both"])


async def test_workers_in_a_ring_never_wait_for_each_other(machine: Machine) -> None:
    """Each takes from one topic, and puts into the next two; what comes round three times has arrived."""
    async with machine.store(max_messages=3) as store:
        names = ["a", "b", "c"]
        for name in names:
            await store.queue(name).put(b"1")

        async def work(number: int) -> None:
            async for message in store.queue(names[number]):
                following = [names[(number + step) % 3] for step in (1, 2)] if len(message.body) < 4 else []
                await put_into(store, message.body + b"1", *following[: 1 + number % 2], ack=message)

        workers = [asyncio.ensure_future(work(number)) for number in (0, 1, 2, 0, 1, 2)]
        await until(lambda: not any(store.queue(name).depth for name in names))
        assert not any(worker.done() for worker in workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def test_it_gets_its_turn_where_others_put_all_the_time(store: aiodq.Store) -> None:
    a, b = store.queue("a"), store.queue("b")

    async def put_always(queue: aiodq.Queue) -> None:
        while True:
            await queue.put(b"plain")

    busy = [asyncio.ensure_future(put_always(queue)) for queue in (a, b) for _ in range(3)]
    await until(lambda: waiting(a) == waiting(b) == 2)
    both = asyncio.ensure_future(put_into(store, b"both", "a", "b"))
    for _ in range(100):
        for queue in (a, b):
            await (await soon(queue.get())).ack()
            await asyncio.sleep(0)
    assert both.done()
    for task in (both, *busy):
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


async def test_others_put_while_it_waits_for_what_never_comes(
    store: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserved_room, "_HELD_LONGEST", 0.001)
    a, b = store.queue("a"), store.queue("b")
    for queue in (a, b):
        await queue.put(b"full")
    both = asyncio.ensure_future(put_into(store, b"both", "a", "b"))
    await until(lambda: waiting(a))
    plain = [asyncio.ensure_future(a.put(b"plain")) for _ in range(20)]
    for _ in plain:
        await (await soon(a.get())).ack()
    await soon(asyncio.gather(*plain))
    assert not both.done()
    both.cancel()
    await asyncio.gather(both, return_exceptions=True)
    await (await a.get()).ack()
    await soon(a.put(b"there is room"))


async def test_nothing_is_dropped_in_one_while_there_is_no_room_in_the_other(machine: Machine) -> None:
    async with machine.store(max_messages=1) as store:
        b = store.queue("b")
        a = store.queue("a", options=aiodq.StoreOptions(max_messages=1, overflow="drop_oldest"))
        for queue in (a, b):
            await queue.put(b"full")
        both = asyncio.ensure_future(put_into(store, b"both", "a", "b"))
        await until(lambda: waiting(b))
        assert a.stats().dropped == 0
        await (await b.get()).ack()
        await soon(both)
        assert (ready(a), ready(b)) == ([b"both"], [b"both"])
