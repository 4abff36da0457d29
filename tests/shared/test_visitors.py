"""Who has a store open."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.visitors import ask_visitors, visitors

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_owner_tells_who_is_there_and_what_they_hold(tmp_path: Path) -> None:
    async with (
        aiodq.open_queue(tmp_path, mode="shared") as owner,
        aiodq.open_queue(tmp_path, mode="client") as client,
    ):
        await client.put_many([b"a", b"b", b"c"])
        held = await client.get_many(2)
        mine = await owner.get()
        facts = await ask_visitors(str(tmp_path))
        assert facts["owner"]["pid"] == os.getpid()
        assert [one["pid"] for one in facts["clients"]] == [os.getpid()] * 2  # and not who asks
        assert sorted(sum(one["holds"].values()) for one in facts["clients"]) == [1, 2]
        await client.ack_many(held)
        await mine.ack()
        facts = await ask_visitors(str(tmp_path))
        assert [one["holds"] for one in facts["clients"]] == [{}, {}]


async def test_a_loop_that_is_blocked_is_late() -> None:
    asking = asyncio.ensure_future(visitors(1, (), asking=0))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 0.3)
    assert (await asking)["owner"]["lag"] > 0.1


async def test_nobody_is_there(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path):
        with pytest.raises(aiodq.OwnerLostError):
            await ask_visitors(str(tmp_path))
