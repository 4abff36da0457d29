"""A loop whose tasks begin at once: what a task finds at its first step was written down before it was made."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import aiodq

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 is the first with eager tasks"),
    pytest.mark.asyncio(loop_factories=["asyncio"]),  # uvloop does not take asyncio's factory from 3.13 on
]


async def test_puts_that_find_room_and_puts_that_wait_for_it(tmp_path: Path) -> None:
    if sys.version_info < (3, 12):
        raise AssertionError("it is skipped")
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    bounded = aiodq.StoreOptions(max_messages=2)
    async with (
        aiodq.open(tmp_path, mode="shared") as owner,
        aiodq.open(tmp_path, mode="client") as client,
    ):
        for store in (owner, client):
            queue = store.queue("jobs", options=bounded)
            await asyncio.gather(queue.put(b"0", tag="t"), queue.put(b"1", delay=0))
            withdrawn, waiting = asyncio.create_task(queue.put(b"2")), asyncio.create_task(queue.put(b"3"))
            await asyncio.sleep(0.05)
            withdrawn.cancel()
            await asyncio.wait([withdrawn])
            assert withdrawn.cancelled()
            bodies = []
            for _ in range(3):
                async with await queue.get() as message:
                    bodies.append(message.body)
            await waiting
            assert bodies == [b"0", b"1", b"3"]
    asyncio.get_running_loop().set_task_factory(None)
