"""A topic with very many channels is purged a few of them in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import aiodq
from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.topic.retention.purge import _AT_ONCE
from tests.channels.support import Machine, soon, until

if TYPE_CHECKING:
    import pytest

EARLIEST = aiodq.ChannelOptions(start="earliest")
MANY = 3 * _AT_ONCE + 7


async def test_many_channels_are_purged_in_several_turns(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, purge, purged = 0, ChannelState.purge, Counter[int]()

    def noted(state: ChannelState, *between: int) -> int:
        purged[turn] += 1
        return purge(state, *between)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(ChannelState, "purge", noted)
    async with machine.store() as store:
        topic = store.topic("t")
        channels = [topic.channel(f"c{number}", EARLIEST) for number in range(MANY)]
        await topic.put_many([b"old"] * 3)
        held = [await channel.get() for channel in (channels[0], channels[-1])]
        counting = asyncio.create_task(count_turns())
        purging = asyncio.create_task(topic.purge())
        await until(lambda: purged)
        assert not purging.done()
        topic.put_nowait(b"new")
        channels.append(topic.channel("late", EARLIEST))
        assert await soon(purging) == 3
        counting.cancel()
        assert max(purged.values()) <= _AT_ONCE
        assert len(purged) >= MANY / _AT_ONCE
        assert not any(message.held for message in held)
        for channel in channels:
            assert (await soon(channel.get())).body == b"new"
            assert channel.qsize() == 0
        assert [segment.body async for segment in topic.scan()] == [b"new"]


async def test_a_store_that_closes_meanwhile_is_purged(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    purge, purged = ChannelState.purge, list[ChannelState]()

    def noted(state: ChannelState, *between: int) -> int:
        purged.append(state)
        return purge(state, *between)

    monkeypatch.setattr(ChannelState, "purge", noted)
    async with machine.store() as store:
        topic = store.topic("t")
        for number in range(MANY):
            topic.channel(f"c{number}", EARLIEST)
        await topic.put_many([b"old"] * 3)
        purging = asyncio.create_task(topic.purge())
        await until(lambda: purged)
        await soon(store.aclose())
        await soon(asyncio.gather(purging, return_exceptions=True))
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put(b"new")
        for number in range(MANY):
            assert (await soon(topic.channel(f"c{number}", EARLIEST).get())).body == b"new"
