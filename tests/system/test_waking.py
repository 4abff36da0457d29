"""Nothing waits for the engine's tick: in simulated time a tick every hour would show."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.options import SyncPolicy

HOUR = 3600.0
MOST_STEPS = 60
POLICIES: tuple[SyncPolicy, ...] = ("always", "interval", "os")


async def opened(policy: SyncPolicy) -> aiodq.Store:
    fs = SimulatedFileSystem()
    executor = SimulatedExecutor(asyncio.get_running_loop(), fs, 1)
    options = aiodq.StoreOptions(sync=policy, sync_interval=HOUR)
    return await aiodq.open("/store", options, fs=fs, clock=FakeClock(), executor=executor)


def takes_no_time(work: Callable[[], Awaitable[object]]) -> None:
    """Calls of the file system take some milliseconds; a tick comes after an hour."""

    async def main() -> None:
        await work()
        assert asyncio.get_running_loop().time() < HOUR

    run(main)


@pytest.mark.parametrize("policy", POLICIES)
def test_closing_beside_a_cancelled_first_put_does_not_wait_for_the_tick(policy: SyncPolicy, seed: int) -> None:
    """After a third of the steps, others under each policy."""

    async def work() -> None:
        for number in random.Random(f"{seed} {policy}").sample(range(MOST_STEPS), MOST_STEPS // 3):
            store = await opened(policy)
            put = asyncio.create_task(store.topic("t").put(b"x"))
            for _ in range(number):
                await asyncio.sleep(0)
            put.cancel()
            await asyncio.wait([put])
            await store.aclose()

    takes_no_time(work)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_wants_the_log_for_itself_follows_a_put_without_waiting_for_the_tick(policy: SyncPolicy) -> None:
    async def work() -> None:
        store = await opened(policy)
        topic = store.topic("t")
        await topic.put(b"first")
        topic.put_nowait(b"a")
        await topic.settle_in()
        topic.put_nowait(b"b")
        assert topic.channel("c", aiodq.ChannelOptions(start=0)).name == "c"
        topic.put_nowait(b"c")
        assert await topic.purge() == 4
        cancelled = asyncio.create_task(topic.put(b"withdrawn"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await topic.sync()
        topic.put_nowait(b"d")
        await store.aclose()

    takes_no_time(work)
