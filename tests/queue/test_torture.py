"""Many producers and consumers at once, as diskqueue's TestDiskQueueTorture, through restarts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import odd_files, options, queue, ready_now, soon, store, turns

if TYPE_CHECKING:
    from pathlib import Path


class Torture:
    """Four producers, four consumers; what was put, and what was got."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.put: set[bytes] = set()
        self.got: Counter[bytes] = Counter()
        self.acked: set[bytes] = set()

    async def produce(self, jobs: aiodq.Queue, name: int, count: int) -> None:
        for number in range(count):
            body = b"%d-%d-" % (name, number) + bytes(self.rng.choice([0, 10, 300, 5000]))
            kind = self.rng.random()
            if kind < 0.2:
                more = [body, body + b"!"]
                await jobs.put_many(more)
                self.put |= set(more)
            elif kind < 0.4:
                receipt = None
                while receipt is None:
                    try:
                        receipt = jobs.put_nowait(body)
                    except aiodq.QueueFull:
                        await asyncio.sleep(0)
                await receipt
                self.put.add(body)
            else:
                await jobs.put(body)
                self.put.add(body)

    async def consume(self, jobs: aiodq.Queue) -> None:
        with suppress(aiodq.QueueShutDown):
            while True:
                for message in await jobs.get_many(self.rng.randint(1, 5)):
                    await turns(self.rng.randrange(3))
                    kind = self.rng.random()
                    if kind < 0.1:
                        await message.nack()
                    elif kind < 0.2:
                        message.release()
                    else:
                        self.got[message.body] += 1
                        self.acked.add(message.body)
                        if kind < 0.6:
                            await message.ack()
                        else:
                            message.ack_nowait()


@pytest.mark.parametrize("policy", ["always", "interval", "os"])
@pytest.mark.parametrize("bound", [None, 20])
async def test_every_message_is_acked_once(path: Path, policy: str, bound: int | None, seed: int) -> None:
    torture = Torture(seed)
    fs = WatchedFileSystem()
    async with queue(
        path, fs=fs, sync=policy, sync_every=50, segment_bytes=20_000, max_messages=bound, memory_bytes=1 << 16
    ) as jobs:
        consuming = [asyncio.create_task(torture.consume(jobs)) for _ in range(4)]
        await soon(asyncio.gather(*(torture.produce(jobs, name, 60) for name in range(4))))
        await soon(jobs.join())
        assert (jobs.depth, jobs.qsize(), jobs.in_flight()) == (0, 0, 0)
        assert jobs.topic_stats().pending == 0
        jobs.shutdown()
        await soon(asyncio.gather(*consuming))
    assert set(torture.got) == torture.put
    assert set(torture.got.values()) == {1}
    assert fs.open_files == 0
    assert odd_files(path) == []
    async with queue(path) as jobs:
        assert jobs.depth == 0


async def test_count_close_reopen_and_read_exactly_that_many(path: Path, seed: int) -> None:
    """diskqueue's: producers until told to stop, close, reopen; depth is what was acknowledged, so is what comes."""
    torture = Torture(seed)
    jobs = await aiodq.open_queue(path, options(segment_bytes=50_000), fs=WatchedFileSystem())
    producing = [asyncio.create_task(torture.produce(jobs, name, 10**9)) for name in range(4)]
    while len(torture.put) < 300:
        await asyncio.sleep(0.001)
    await soon(jobs.aclose())
    ended = await asyncio.gather(*producing, return_exceptions=True)
    assert all(isinstance(error, aiodq.QueueShutDown) for error in ended)
    async with queue(path) as jobs:
        assert jobs.depth >= len(torture.put)
        depth = jobs.depth
        found = ready_now(jobs)
        assert len(found) == len(set(found)) == depth
        assert torture.put <= set(found)


async def test_through_restarts_nothing_acked_comes_again_and_nothing_put_is_lost(path: Path, seed: int) -> None:
    torture = Torture(seed)
    for life in range(5):
        async with queue(path, sync="interval", segment_bytes=20_000) as jobs:
            before = {body for body in torture.put if body not in torture.acked}
            assert jobs.depth == len(before)
            consuming = [asyncio.create_task(torture.consume(jobs)) for _ in range(4)]
            await soon(asyncio.gather(*(torture.produce(jobs, life * 4 + name, 20) for name in range(4))))
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)
    async with queue(path) as jobs:
        assert sorted(ready_now(jobs)) == sorted(torture.put - torture.acked)
    assert set(torture.got.values()) <= {1}


async def test_many_topics_and_channels_at_once(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with store(path, sync="os", segment_bytes=2000) as opened:
        topics = [opened.topic(f"t{number}") for number in range(5)]
        channels = [topic.channel(f"c{number}") for topic in topics for number in range(3)]
        got: Counter[str] = Counter()

        async def produce(topic: aiodq.Topic) -> None:
            for number in range(60):
                await topic.put(b"%d" % number)
                await turns(rng.randrange(3))

        async def consume(channel: aiodq.Channel) -> None:
            for number in range(60):
                message = await channel.get()
                assert message.body == b"%d" % number
                await message.ack()
                got[f"{message.topic}/{message.channel}"] += 1

        await soon(asyncio.gather(*map(produce, topics), *map(consume, channels)))
        assert len(got) == 15
        assert set(got.values()) == {60}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["always", "interval", "os"])
async def test_every_message_is_acked_once_for_long(path: Path, policy: str, seed: int) -> None:
    torture = Torture(seed)
    jobs = await aiodq.open_queue(path, options(sync=policy, segment_bytes=200_000, memory_bytes=1 << 18))
    consuming = [asyncio.create_task(torture.consume(jobs)) for _ in range(4)]
    await asyncio.gather(*(torture.produce(jobs, name, 5000) for name in range(4)))
    await jobs.join()
    await jobs.aclose()
    await asyncio.gather(*consuming)
    assert set(torture.got) == torture.put
    assert set(torture.got.values()) == {1}
