"""A shared store whose closing goes on though nobody waits for it any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("turns", range(6))
async def test_it_is_waited_for_by_who_opens_the_store_again(tmp_path: Path, turns: int) -> None:
    async with asyncio.timeout(PATIENCE):
        store = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        await store.queue("jobs").put(b"x")
        closing = asyncio.ensure_future(store.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        if not turns:
            await store.aclose()  # it was not begun
        async with aiodq.open(tmp_path / "s", QUICK) as again:
            assert again.queue("jobs").qsize() == 1


async def _settled(message: aiodq.Message, turns: int, how: str) -> bool:
    """Settle a message after some turns of the loop; return whether that was said to be done."""
    for _ in range(turns):
        await asyncio.sleep(0)
    try:
        if how == "ack":
            await message.ack()
        else:
            async with message:
                await asyncio.sleep(0)
    except aiodq.QueueShutDown:
        return False
    return True


@pytest.mark.parametrize("whose", ["owner", "client"])
@pytest.mark.parametrize("how", ["ack", "async with"])
async def test_whose_ack_is_refused_as_the_store_closes_gets_the_message_again_and_nobody_else_does(
    tmp_path: Path, whose: str, how: str
) -> None:
    """Else a caller who undoes what he did, as his ack failed, would have undone it for good."""
    for turns in range(6):
        path = tmp_path / str(turns)
        async with asyncio.timeout(PATIENCE), aiodq.open(path, QUICK, mode="shared") as owner:
            store = owner if whose == "owner" else await aiodq.open(path, mode="client")
            await store.queue("jobs").put_many([b"0", b"1", b"2"])
            held = [await store.queue("jobs").get() for _ in range(3)]
            acks = [asyncio.create_task(_settled(message, turns + more, how)) for more, message in enumerate(held)]
            await store.aclose()
            acked = await asyncio.gather(*acks)
        left = list[bytes]()
        async with aiodq.open(path, QUICK) as again:
            while again.queue("jobs").qsize():
                left.append(again.queue("jobs").get_nowait().body)
        assert left == [message.body for message, done in zip(held, acked, strict=True) if not done], turns


@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_who_consumes_as_the_store_closes_gets_nothing_more(tmp_path: Path, whose: str) -> None:
    """Else it would be closed only once all is consumed, and never if others put meanwhile."""
    acked = 0

    async def consume(queue: aiodq.Queue) -> None:
        nonlocal acked
        async for message in queue:
            await message.ack()
            acked += 1

    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        store = owner if whose == "owner" else await aiodq.open(tmp_path / "s", mode="client")
        await owner.queue("jobs").put_many([b"x"] * 1000)
        consuming = [asyncio.create_task(consume(store.queue("jobs"))) for _ in range(10)]
        while acked < 50:
            await asyncio.sleep(0)
        before = acked
        await store.aclose()
        await asyncio.gather(*consuming, return_exceptions=True)
        assert acked <= before + 200
    async with aiodq.open(tmp_path / "s", QUICK) as again:
        assert again.queue("jobs").qsize() == 1000 - acked
