"""Many channels on one log, and many gaps in one channel: what is stored grows with neither more than it must."""

from __future__ import annotations

import random
import resource
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.channels.support import soon

if TYPE_CHECKING:
    from pathlib import Path

BODY = 1000


def disk_bytes(path: Path, pattern: str) -> int:
    """Return the bytes in these files, but for the zeros written ahead."""
    return sum(len(file.read_bytes().rstrip(bytes(1))) for file in path.rglob(pattern))


async def test_ten_channels_store_each_body_once(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path) as store:
        topic = store.topic("orders")
        channels = [topic.channel(f"c{number}") for number in range(10)]
        await topic.settle_in()
        for _ in range(20):
            await topic.put_many([bytes(BODY)] * 20)
            for channel in channels:
                for _ in range(20):
                    (await soon(channel.get())).ack_nowait()
        await topic.sync()
        written = disk_bytes(tmp_path, "*.seg")
        assert 400 * BODY <= written < 400 * BODY * 1.1
        # Nothing of it is left in journals but where each channel is, and all was handed over from memory.
        assert disk_bytes(tmp_path, "journal") <= 10 * 16_384
        assert topic.stats().bytes_read == 0


async def test_what_is_settled_at_random_is_kept_as_gaps(tmp_path: Path, seed: int) -> None:
    await settle_at_random(tmp_path, seed, 30_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_of_a_million_settled_at_random_only_the_gaps_are_kept(tmp_path: Path, seed: int) -> None:
    await settle_at_random(tmp_path, seed, 1_000_000)


async def settle_at_random(path: Path, seed: int, count: int) -> None:
    """Ack all but a hundred, in any order: the state must be as small as the gaps, in memory and on disk."""
    rng = random.Random(seed)
    options = aiodq.ChannelOptions(max_in_flight=count, visibility_timeout=None)
    async with aiodq.open(path) as store:
        topic = store.topic("orders")
        channel = topic.channel("work", options)
        for _ in range(count // 1000):
            await topic.put_many([b"x"] * 1000)
        messages = [message for _ in range(count // 1000) for message in await get_all(channel, 1000)]
        kept = {message.offset for message in rng.sample(messages, 100)}
        rng.shuffle(messages)
        for message in messages:
            if message.offset not in kept:
                message.ack_nowait()
        del messages
        await topic.sync()
        state = topic._engine.channel_engines["work"].state
        assert state is not None
        assert len(list(state.settled)) <= len(kept)
        assert channel.depth == len(kept)
    assert disk_bytes(path, "checkpoint") <= 100 + 16 * (len(kept) + 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with aiodq.open(path) as store:
        channel = store.topic("orders").channel("work", options)
        found = {message.offset for message in await get_all(channel, len(kept))}
        assert found == kept
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def get_all(channel: aiodq.Channel, count: int) -> list[aiodq.Message]:
    messages: list[aiodq.Message] = []
    while len(messages) < count:
        messages += await soon(channel.get_many(count - len(messages)))
    return messages
