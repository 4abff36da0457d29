"""What a channel has before it, since when, and which segments it holds back: told by the owner, and by the files."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import aiodq
from tests.channels.support import soon, until

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.storage.offline.store_reader import TopicSummary

SMALL = aiodq.StoreOptions(segment_bytes=4096)


def look(path: Path) -> TopicSummary:
    return aiodq.open_reader(path).topic("orders").stats()


async def test_a_segment_that_is_held_is_shown_with_who_holds_it(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, SMALL) as store:
        topic = store.topic("orders")
        fast, slow = topic.channel("fast"), topic.channel("slow")
        for _ in range(8):
            await topic.put(bytes(1000))
        held = topic.stats().held
        assert [segment.by for segment in held] == [("fast", "slow")] * len(held)
        assert (held[0].base, held[-1].end, sum(segment.bytes for segment in held) > 4000) == (0, 6, True)
        for _ in range(8):
            await (await soon(fast.get())).ack()
        first = await soon(slow.get())
        for _ in range(7):
            await (await soon(slow.get())).ack()
        await until(lambda: topic.stats().segments == 2)
        (pinned,) = topic.stats().held
        assert (pinned.base, pinned.by) == (0, ("slow",))
        await topic.sync()
        assert look(tmp_path).held == (pinned,)
        await first.ack()
        await until(lambda: topic.stats().held == ())


async def test_who_holds_which_segment_is_exact_whatever_was_settled(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with aiodq.open(tmp_path, SMALL) as store:
        topic = store.topic("orders")
        channels = [topic.channel(name) for name in "dacb"]
        for _ in range(60):
            await topic.put(bytes(rng.choice([100, 1000, 5000])))
        for _ in range(30):
            for channel in channels:
                messages = await soon(channel.get_many(rng.choice([1, 1, 15])))
                await channel.ack_many([message for message in messages if rng.random() < 0.8])
                if channel.qsize() < 20:
                    try:
                        await channel.seek(rng.choice(["earliest", max(topic.begin_offset, 20), 30]))
                    except aiodq.OffsetError:  # retention has deleted it meanwhile
                        await channel.seek("earliest")
            await topic.sync()
            segments = topic._engine.log.segments[:-1]
            states = {name: one.state for name, one in sorted(topic._engine.channel_engines.items()) if one.state}
            by = [
                tuple(name for name, state in states.items() if not state.settled_all(one.base, one.end))
                for one in segments
            ]
            found = [(one.base, one.end, names) for one, names in zip(segments, by, strict=True) if names]
            assert [(one.base, one.end, one.by) for one in topic.stats().held] == found


async def test_the_oldest_is_told_exactly_from_memory_and_from_the_files(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path) as store:
        topic = store.topic("orders")
        channel = topic.channel("work")
        assert channel.stats().oldest_ns is None
        await topic.put(b"1")
        await topic.put(b"2")
        times = [message.timestamp_ns async for message in topic.scan()]
        assert channel.stats().oldest_ns == times[0]
        await (await soon(channel.get())).ack()
        assert channel.stats().oldest_ns == times[1]
        await topic.sync()
        assert look(tmp_path).channels["work"].oldest_ns == times[1]
        await (await soon(channel.get())).ack()
        assert (channel.stats().oldest_ns, look(tmp_path).channels["work"].oldest_ns) == (None, None)
    async with aiodq.open(tmp_path) as store:
        topic = store.topic("orders")
        await topic.put_many([b"3", b"4"])
    async with aiodq.open(tmp_path) as store:
        # Nothing of it was read yet: the oldest of the segment stands for it.
        oldest = store.topic("orders").channel("work").stats().oldest_ns
        assert oldest is not None
        assert oldest <= times[0]


async def test_the_files_tell_what_is_deferred_and_what_came_back(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path) as store:
        topic = store.topic("orders")
        channel = topic.channel("work")
        await topic.put(b"later", delay=3600)
        await topic.put_many([b"1", b"2", b"3"])
        await (await soon(channel.get())).nack(delay=3600)
        await (await soon(channel.get())).nack()
        await topic.sync()
        stats, found = channel.stats(), look(tmp_path).channels["work"]
        assert (stats.depth, stats.deferred) == (found.depth, found.deferred) == (4, 2)
        assert found.returned == 2
