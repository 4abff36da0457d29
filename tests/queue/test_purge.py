"""Purging a topic or one channel: what goes, what comes afterwards, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    CHANGES,
    Camera,
    Tasks,
    crash_image,
    drain,
    fill,
    numbered,
    odd_files,
    outcome,
    queue,
    ready_now,
    segments,
    soon,
    store,
    take,
    turns,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestTopic:
    async def test_everything_goes(self, path: Path) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, numbered(40))
            assert await jobs.purge() == 40
            assert (jobs.depth, jobs.qsize(), jobs.empty(), jobs.begin_offset, jobs.end_offset) == (0, 0, True, 40, 40)
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            await jobs.sync()
            assert len(segments(path)) == 1

    async def test_of_nothing(self, path: Path) -> None:
        async with queue(path) as jobs:
            assert await jobs.purge() == 0
            await jobs.put(b"a")
            await drain(jobs)
            assert await jobs.purge() == 0
        async with store(path) as opened:
            assert await opened.topic("unborn").purge() == 0

    async def test_what_is_in_flight_goes_too(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
            held = await take(jobs, 3)
            await held[0].ack()
            await held[1].nack()
            assert await jobs.purge() == 4
            assert (jobs.in_flight(), jobs.depth) == (0, 0)
            with pytest.raises(aiodq.NotInFlightError):
                await held[2].ack()
            await jobs.put(b"new")
            message = jobs.get_nowait()
            assert (message.body, message.offset, message.attempts) == (b"new", 5, 1)

    async def test_the_queue_goes_on_in_order(self, path: Path) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            for start in (0, 100, 200):
                await fill(jobs, numbered(30, start))
                await take(jobs, 3)
                await jobs.purge()
            await fill(jobs, numbered(30, 300))
            assert await drain(jobs) == numbered(30, 300)

    async def test_of_every_channel_at_once(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            one, other = topic.channel("one"), topic.channel("other")
            await fill(topic, numbered(6))
            await (await one.get()).ack()
            await other.get()
            assert await topic.purge() == 6
            assert (one.depth, other.depth, other.in_flight()) == (0, 0, 0)
            await topic.put(b"new")
            assert ready_now(one) == ready_now(other) == [b"new"]

    async def test_without_channels(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(6))
            assert await topic.purge() == 6
            await topic.put(b"new")
            assert (await soon(topic.channel("c").get())).body == b"new"

    async def test_what_was_accepted_before_goes_and_what_comes_after_stays(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            before = tasks.start(jobs.put(b"before"))
            await gate.wait()
            also = jobs.put_nowait(b"also before")
            purging = tasks.start(jobs.purge())
            await turns()
            after = tasks.start(jobs.put(b"after"))
            await turns()
            gate.open()
            assert await soon(purging) == 2
            assert [await soon(before), await soon(also), await soon(after)] == [0, 1, 2]
            assert ready_now(jobs) == [b"after"]

    async def test_who_waits_for_room_may_go_on(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2) as jobs:
            await fill(jobs, numbered(2))
            putting = [tasks.start(jobs.put(body)) for body in (b"a", b"b")]
            await turns()
            await jobs.purge()
            await soon(asyncio.gather(*putting))
            assert sorted(ready_now(jobs)) == [b"a", b"b"]

    async def test_beside_consumers_and_producers(self, path: Path) -> None:
        async with queue(path, segment_bytes=1000, sync="os") as jobs:
            got: list[int] = []

            async def consume() -> None:
                async for message in jobs:
                    got.append(int(message.body))
                    await asyncio.sleep(0)
                    try:
                        message.ack_nowait()
                    except aiodq.NotInFlightError:
                        continue

            consuming = asyncio.create_task(consume())
            for number in range(300):
                await jobs.put(b"%d" % number)
                if number % 50 == 49:
                    await jobs.purge()
            await soon(jobs.join())
            jobs.shutdown()
            await soon(consuming)
            assert got == sorted(set(got))
            assert jobs.depth == 0

    async def test_reopened_it_is_empty(self, path: Path) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, numbered(20))
            await jobs.purge()
        for number in range(3):
            async with queue(path) as jobs:
                assert (jobs.depth, jobs.topic_stats().damages) == (0, 0)
                assert await jobs.put(b"a") == 20 + number
                await jobs.purge()
        assert odd_files(path) == []

    async def test_a_crash_afterwards_brings_nothing_back(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=300) as jobs:
            await fill(jobs, numbered(20))
            await take(jobs, 5)
            await jobs.purge()
            crash_image(path, tmp_path / "empty", fs)
            await jobs.put(b"new")
            crash_image(path, tmp_path / "one", fs)
        for name, expected in (("empty", []), ("one", [b"new"])):
            async with queue(tmp_path / name) as jobs:
                assert (jobs.depth, jobs.topic_stats().damages) == (len(expected), 0)
                assert ready_now(jobs) == expected

    async def test_a_crash_in_the_middle_leaves_all_or_nothing(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        camera = Camera(fs, path, tmp_path, *CHANGES)
        async with queue(path, fs=fs, segment_bytes=300) as jobs:
            await fill(jobs, numbered(20))
            for message in await take(jobs, 8):
                if message.offset % 2:
                    await message.ack()
            fs.add(camera)
            await jobs.purge()
            await jobs.sync()
            fs.heal()
        rest = [body for number, body in enumerate(numbered(20)) if number >= 8 or number % 2 == 0]
        seen = set()
        for copy in camera.copies:
            async with queue(copy) as jobs:
                found = ready_now(jobs)
                assert found in (rest, [])
                seen.add(bool(found))
                assert jobs.topic_stats().damages == 0
        assert seen == {True, False}

    @pytest.mark.parametrize("kind", ["write", "create", "rename", "truncate", "remove"])
    async def test_what_fails_leaves_all_or_nothing(self, path: Path, kind: str) -> None:
        """Every call of a kind in turn: either it says so and all is there, or it was done."""
        for at in range(1, 50):
            fs = WatchedFileSystem()
            async with queue(path.with_name(f"store{at}"), fs=fs, segment_bytes=300) as jobs:
                await fill(jobs, numbered(12))
                fault = fs.fail(errno.ENOSPC, kind, at=at, times=1)
                try:
                    await soon(jobs.purge())
                except aiodq.DiskFullError:
                    assert jobs.depth == 12
                    assert await drain(jobs) == numbered(12)
                else:
                    assert jobs.depth == 0
                hits = fault.hits
                fs.heal()
                await jobs.put(b"new")
                assert ready_now(jobs) == [b"new"]
                await soon(jobs.sync())
            if not hits:
                return
        pytest.fail("there is no end to it")

    async def test_cancelled_it_is_done_all_the_same(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            gate = fs.gate("rename", match="topic.json")
            purging = tasks.start(jobs.purge())
            await gate.wait()
            purging.cancel()
            await asyncio.wait([purging])
            gate.open()
            await jobs.put(b"new")
            assert ready_now(jobs) == [b"new"]

    async def test_of_a_deleted_topic(self, path: Path, tasks: Tasks) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            await topic.put(b"a")
            await opened.delete_topic("a")
            purging = tasks.start(topic.purge())
            await asyncio.wait([purging], timeout=20)
            assert isinstance(outcome(purging), aiodq.QueueShutDown)

    async def test_a_dead_segment_goes_at_the_next_open(self, path: Path) -> None:
        """Purged, and killed before the files were deleted: nobody will ever read them."""
        fs = WatchedFileSystem()
        async with store(path, fs=fs, segment_bytes=300) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(20))
            fs.fail(errno.EIO, "remove", match=".seg")
            await topic.purge()
            await soon(topic.sync())
        assert len(segments(path, "a")) > 3
        async with store(path, segment_bytes=300, sync_interval=0.01) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(20))
            await soon(topic.sync())
            assert all(int(found.stem) >= 20 for found in segments(path, "a"))


class TestChannel:
    async def test_only_that_channels_backlog_goes(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            one, other = topic.channel("one"), topic.channel("other")
            await fill(topic, numbered(5))
            held = await take(one, 2)
            assert await one.purge() == 5
            assert (one.depth, one.in_flight(), other.depth) == (0, 0, 5)
            with pytest.raises(aiodq.NotInFlightError):
                await held[0].ack()
            await topic.put(b"new")
            assert ready_now(one) == [b"new"]
            assert ready_now(other) == [*numbered(5), b"new"]
        async with store(path) as opened:
            topic = opened.topic("a")
            assert ready_now(topic.channel("one")) == [b"new"]
            assert ready_now(topic.channel("other")) == [*numbered(5), b"new"]

    async def test_it_is_durable_when_it_returns(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(5))
            await channel.purge()
            crash_image(path, tmp_path / "image", fs)
        async with store(tmp_path / "image") as opened:
            assert opened.topic("a").channel("c").depth == 0

    async def test_what_was_accepted_before_goes_too(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            receipts = [topic.put_nowait(body) for body in numbered(5)]
            assert await soon(channel.purge()) == 5
            assert all(receipt.done() for receipt in receipts)
            assert channel.depth == 0
