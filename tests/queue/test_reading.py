"""Where messages come from: memory for who keeps up, the disk in bounded pieces for who is behind; and failures."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import threading
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import Gate, WatchedFileSystem
from tests.queue.support import (
    Tasks,
    bodies_of,
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
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.options import Position


def on_the_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


def live_bodies(size: int) -> int:
    """Return how many bytes of bodies of this size are held in lists: what is read ahead, and what is kept."""
    gc.collect()
    lists = [found for found in gc.get_objects() if type(found) is list]
    return sum(size for found in lists for item in found if type(item) is bytes and len(item) == size)


class TestKeepingUp:
    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_it_reads_nothing_from_disk(self, path: Path, policy: str) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync=policy, segment_bytes=5000) as jobs:
            since = len(fs.passed)
            for number in range(300):
                await jobs.put(b"%d" % number * 20)
                message = await soon(jobs.get())
                assert message.offset == number
                message.ack_nowait()
            assert jobs.topic_stats().bytes_read == 0
            assert fs.named("read", since=since) == []

    async def test_a_little_behind_neither(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=5000) as jobs:
            since = len(fs.passed)
            await fill(jobs, [b"%d" % number * 20 for number in range(200)])
            for number in range(200, 400):
                await jobs.put(b"%d" % number * 20)
                message = await soon(jobs.get())
                assert message.offset == number - 200
                await message.ack()
            assert fs.named("read", since=since) == []

    async def test_requeued_messages_neither(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(20))
            since = len(fs.passed)
            for _ in range(5):
                for message in await take(jobs, 20):
                    await message.nack()
            assert fs.named("read", since=since) == []

    async def test_in_batches(self, path: Path) -> None:
        async with queue(path) as jobs:
            for start in range(0, 5000, 500):
                await jobs.put_many(numbered(500, start))
                assert bodies_of(await jobs.get_many(500)) == numbered(500, start)
                for _ in range(500):
                    jobs.task_done()
            assert jobs.topic_stats().bytes_read == 0


@pytest.mark.slow_on_uvloop  # what is read ahead is counted in bytes, over many segments
class TestFarBehind:
    SIZE = 10_007

    async def backlog(self, path: Path, count: int = 600) -> None:
        async with queue(path, sync="os", segment_bytes=1 << 20) as jobs:
            for number in range(count):
                jobs.put_nowait(number.to_bytes(4, "big") + bytes(self.SIZE - 4))
                if number % 50 == 0:
                    await jobs.sync()

    async def test_what_is_read_ahead_is_bounded(self, path: Path) -> None:
        await self.backlog(path)
        limit = 1 << 20
        async with queue(path, memory_bytes=limit, sync="os") as jobs:
            most = 0
            for number in range(600):
                message = await soon(jobs.get())
                assert int.from_bytes(message.body[:4], "big") == number
                message.ack_nowait()
                if number % 50 == 0:
                    del message
                    most = max(most, live_bodies(self.SIZE))
            assert 0 < most <= limit
            assert jobs.topic_stats().bytes_read > 600 * self.SIZE

    async def test_it_is_bounded_for_all_channels_together(self, path: Path) -> None:
        async with store(path, sync="os", segment_bytes=1 << 20) as opened:
            topic = opened.topic("a")
            for name in range(8):
                topic.channel(f"c{name}")
            for number in range(600):
                topic.put_nowait(number.to_bytes(4, "big") + bytes(self.SIZE - 4))
                if number % 50 == 0:
                    await topic.sync()
        limit = 1 << 20
        async with store(path, memory_bytes=limit, sync="os") as opened:
            topic = opened.topic("a")
            channels = [topic.channel(f"c{name}") for name in range(8)]
            most = 0
            for number in range(200):
                for channel in channels:
                    message = await soon(channel.get())
                    assert int.from_bytes(message.body[:4], "big") == number
                    message.ack_nowait()
                    del message
                if number % 40 == 0:
                    most = max(most, live_bodies(self.SIZE))
            assert 0 < most <= limit

    async def test_who_stays_may_use_what_a_deleted_channel_left(self, path: Path) -> None:
        async with store(path, memory_bytes=1 << 20) as opened:
            topic = opened.topic("t")
            stays, goes = topic.channel("stays"), topic.channel("goes")
            await topic.settle_in()
            read_ahead = stays._channel_engine.source.read_ahead
            assert read_ahead.limit == 1 << 17
            await topic.delete_channel(goes.name)
            assert read_ahead.limit == 1 << 18

    async def test_each_byte_is_read_about_once(self, path: Path) -> None:
        await self.backlog(path, 300)
        async with queue(path, sync="os") as jobs:
            assert len(await drain(jobs)) == 300
            assert jobs.topic_stats().bytes_read <= 1.3 * 300 * self.SIZE

    async def test_messages_larger_than_the_bound_come_all_the_same(self, path: Path) -> None:
        bodies = [bytes([number]) * 300_000 for number in range(12)]
        async with queue(path, segment_bytes=1 << 20) as jobs:
            await jobs.put_many(bodies[:6])
            await fill(jobs, bodies[6:])
        async with queue(path, memory_bytes=1 << 16) as jobs:
            assert await drain(jobs) == bodies

    async def test_puts_go_on_beside_it_and_the_order_holds(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, segment_bytes=50_000) as jobs:
            await jobs.put_many([b"%d" % number * 50 for number in range(500)])
        async with queue(path, segment_bytes=50_000, memory_bytes=1 << 16) as jobs:
            producing = asyncio.create_task(self.produce(jobs, rng))
            for number in range(1000):
                message = await soon(jobs.get()) if rng.random() < 0.7 else await self.cold(jobs)
                assert message.body == b"%d" % number * 50
                message.ack_nowait()
            await producing
            assert jobs.depth == 0

    async def produce(self, jobs: aiodq.Queue, rng: random.Random) -> None:
        for number in range(500, 1000):
            await jobs.put(b"%d" % number * 50)
            await turns(rng.randrange(3))

    async def cold(self, jobs: aiodq.Queue) -> aiodq.Message:
        return await soon(jobs.get()) if jobs.empty() else jobs.get_nowait()

    async def test_opening_reads_no_backlog(self, path: Path) -> None:
        await self.backlog(path)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            assert jobs.depth == 600
            assert not [call for call in fs.named("read", match=".seg") if len(call.data) > 1 << 20]
            assert jobs.topic_stats().bytes_read == 0

    async def test_a_getter_and_its_prefetch_racing_with_a_cold_get(self, path: Path, tasks: Tasks) -> None:
        await self.backlog(path, 100)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.add(Gate(lambda call: call.kind == "read" and call.segment and not on_the_loop()))
            getting = tasks.start(jobs.get())
            await gate.wait()
            first = [jobs.get_nowait() for _ in range(5)]
            gate.open()
            rest = [await soon(getting), *(await take(jobs, 94))]
            found = [int.from_bytes(message.body[:4], "big") for message in (*first, *rest)]
            assert found == list(range(100))

    async def test_a_purge_while_a_read_is_under_way(self, path: Path, tasks: Tasks) -> None:
        await self.backlog(path, 100)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("read", match=".seg")
            getting = tasks.start(jobs.get())
            await gate.wait()
            await soon(jobs.purge())
            await jobs.put(b"new")
            gate.open()
            assert (await soon(getting)).body == b"new"
            assert jobs.depth == 1


class TestFailing:
    @pytest.mark.parametrize(
        ("kind", "error"),
        [("read", errno.EIO), ("read", errno.ENOMEM), ("open", errno.EIO), ("open", errno.ENOMEM)],
    )
    async def test_the_getter_is_told_and_the_next_get_works(self, path: Path, error: int, kind: str) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            fault = fs.fail(error, kind, match=".seg", times=1)
            with pytest.raises(aiodq.StorageError) as caught:
                await soon(jobs.get())
            assert caught.value.errno == error
            assert caught.value.path.endswith(".seg")
            assert not isinstance(caught.value, aiodq.StoreFailedError)
            assert fault.hits == 1
            assert (jobs.qsize(), jobs.in_flight(), jobs.stats().lost) == (30, 0, 0)
            assert await drain(jobs) == numbered(30)

    async def test_where_no_descriptor_is_free_one_of_its_own_is_freed(self, path: Path) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            fault = fs.fail(errno.EMFILE, "open", match=".seg", times=1)
            assert await drain(jobs) == numbered(30)
            assert fault.hits == 1

    async def test_without_waiting_too(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            fs.fail(errno.EIO, "read", match=".seg", times=1)
            with pytest.raises(aiodq.StorageError):
                jobs.get_nowait()
            assert ready_now(jobs) == numbered(3)

    async def test_at_any_read_nothing_is_lost(self, path: Path) -> None:
        async with queue(path, segment_bytes=5000) as jobs:
            await fill(jobs, [b"%d" % number * 30 for number in range(200)])
        for at in range(1, 60):
            fs = WatchedFileSystem()
            async with queue(path, fs=fs, memory_bytes=1 << 16, retention=aiodq.Retention(consumed="keep")) as jobs:
                fault = fs.fail(errno.EIO, "read", match=".seg", at=at, times=1)
                found: list[bytes] = []
                while len(found) < 200:
                    try:
                        found.append((await soon(jobs.get())).body)
                    except aiodq.StorageError as error:
                        assert error.errno == errno.EIO
                assert found == [b"%d" % number * 30 for number in range(200)]
                assert jobs.stats().lost == 0
            if not fault.hits:
                break

    async def test_all_who_wait_are_told(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            fs.fail(errno.EIO, "read", match=".seg")
            getting = [tasks.start(jobs.get()) for _ in range(3)]
            await asyncio.wait(getting, timeout=20)
            assert all(isinstance(outcome(task), aiodq.StorageError) for task in getting)
            await until(lambda: not jobs._channel_engine.source.read_ahead.fetching)  # the last of them asked once more
            fs.heal()
            assert bodies_of(await take(jobs, 3)) == numbered(3)

    async def test_several_at_once_keep_what_they_have(self, path: Path) -> None:
        """What `get_many` took before a read failed is not lost with it."""
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
        for at in range(1, 12):
            fs = WatchedFileSystem()
            async with queue(path, fs=fs, retention=aiodq.Retention(consumed="keep")) as jobs:
                fs.fail(errno.EIO, "read", match=".seg", at=at)
                found: list[bytes] = []
                while len(found) < 30:
                    try:
                        found += bodies_of(await soon(jobs.get_many(30)))
                    except aiodq.StorageError:
                        fs.heal()
                    assert jobs.in_flight() == len(found)
                assert found == numbered(30)

    async def test_damage_is_stepped_over_and_counted(self, path: Path) -> None:
        async with queue(path, segment_bytes=528) as jobs:
            await fill(jobs, [b"<%03d>" % number for number in range(40)])
        first, last = segments(path)[0], segments(path)[-2]
        gone = {0, int(last.stem)}
        for found in (first, last):
            data = bytearray(found.read_bytes())
            data[data.index(b"<%03d>" % int(found.stem))] ^= 1
            found.write_bytes(data)
        async with queue(path) as jobs:
            assert jobs.depth == 40
            assert await drain(jobs) == [b"<%03d>" % number for number in range(40) if number not in gone]
            assert (jobs.depth, jobs.stats().lost) == (0, 2)
            await soon(jobs.join())
        async with queue(path) as jobs:
            assert jobs.depth == 0

    @pytest.mark.parametrize("first_time", ["set aside", "no space"])
    async def test_damaged_bytes_are_set_aside_before_their_segment_goes(self, path: Path, first_time: str) -> None:
        async with queue(path, segment_bytes=528) as jobs:
            await fill(jobs, [b"<%03d>" % number for number in range(40)])
        damaged = segments(path)[1]
        number = int(damaged.stem)
        data = bytearray(damaged.read_bytes())
        at = data.index(b"<%03d>" % number)
        data[at] ^= 1
        damaged.write_bytes(data)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            if first_time == "no space":
                fs.fail(errno.ENOSPC, "create", match="damaged-")
            messages = await take(jobs, 39)
            await until(lambda: jobs.topic_stats().damages == 1)
            assert bool(odd_files(path)) == (first_time == "set aside")
            fs.heal()
            await jobs.ack_many(messages)
            await until(lambda: not damaged.exists())
            assert jobs.topic_stats().damages == 1
        (kept,) = odd_files(path)
        assert kept.startswith(damaged.name)
        assert data[at : at + 5] in (damaged.parent / kept).read_bytes()
        async with queue(path) as jobs:
            assert (jobs.depth, jobs.topic_stats().damages) == (0, 0)

    async def test_what_is_damaged_is_counted_once_however_many_come_to_it(self, path: Path) -> None:
        async with queue(path, segment_bytes=528) as jobs:
            await fill(jobs, [b"<%03d>" % number for number in range(40)])
            others = [jobs.topic.channel(name, aiodq.ChannelOptions(start="earliest")) for name in "abc"]
            await jobs.sync()
        found = segments(path)[1]
        data = bytearray(found.read_bytes())
        data[data.index(b"<%03d>" % int(found.stem))] ^= 1
        found.write_bytes(data)
        async with queue(path) as jobs:
            others = [jobs.topic.channel(name) for name in "abc"]
            for channel in (jobs, *others):
                assert len(await take(channel, 39)) == 39
            await until(lambda: jobs.topic_stats().damages == 1)
            assert [channel.stats().lost for channel in (jobs, *others)] == [1, 1, 1, 1]
            assert len(odd_files(path)) == 1

    async def test_a_getter_that_finds_only_damage_waits(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"<only>")
            await jobs.put(b"<this>")
        found = segments(path)[0]
        data = bytearray(found.read_bytes())
        for body in (b"<only>", b"<this>"):
            data[data.index(body)] ^= 1
        found.write_bytes(data)
        (path / "queue" / "watermark").unlink()
        async with queue(path) as jobs:
            getting, joining = tasks.start(jobs.get()), tasks.start(jobs.join())
            await turns(30)
            await soon(joining)
            assert jobs.depth == 0
            assert not getting.done()
            await jobs.put(b"new")
            assert (await soon(getting)).body == b"new"


@pytest.mark.parametrize("position", ["latest", 0, None], ids=["end", "begin", "purge"])
async def test_what_is_read_to_be_redelivered_is_dropped_where_the_channel_moves(
    path: Path, tasks: Tasks, position: Position | None
) -> None:
    async with aiodq.open_queue(path) as jobs:
        await jobs.put_many(numbered(4))
    fs = WatchedFileSystem()
    async with aiodq.open_queue(path, fs=fs) as jobs:
        source = jobs._channel_engine.source
        for message in await take(jobs, 2):
            await message.nack()
        source.reset()  # as if there had been no room to keep them
        gate = fs.gate("read", match=".seg")
        waiting = tasks.start(jobs.get())
        await soon(gate.wait())
        assert source.missing == [0, 1]
        await soon(jobs.purge() if position is None else jobs.seek(position))
        gate.open()
        if position == 0:
            assert (await soon(waiting)).offset == 0
        await until(lambda: not source.missing)
        assert not source.requeue_cache.batches
