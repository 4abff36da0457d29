"""A loop whose tasks begin at once: a dead letter is put, or is not and is said not to be, as the store closes."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.channels.support import soon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.channels.support import Machine

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 is the first with eager tasks"),
    pytest.mark.asyncio(loop_factories=["asyncio"]),  # uvloop does not take asyncio's factory from 3.13 on
]


@pytest.fixture(autouse=True)
async def _eager() -> AsyncIterator[None]:
    if sys.version_info < (3, 12):
        raise AssertionError("it is skipped")
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    yield
    loop.set_task_factory(None)


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_letter_is_put_or_refused_as_the_store_closes(machine: Machine, turns: int) -> None:
    async with machine.jobs(dead_letter="dead") as jobs:
        await jobs.put(b"x")
        rejecting = asyncio.create_task((await jobs.get()).reject())
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not rejecting.done()
    (refused,) = await soon(asyncio.gather(rejecting, return_exceptions=True))
    assert isinstance(refused, aiodq.QueueShutDown) == (turns == 0)
    async with machine.store() as store:
        jobs, dead = store.queue("jobs"), store.topic("dead")
        assert (jobs.depth, dead.end_offset) == ((1, 0) if refused else (0, 1))
