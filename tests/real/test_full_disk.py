"""A disk that is full to the last byte, again and again: consuming goes on, and so do puts once there is space."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
from aiodq.storage.log.topic_log import TopicLog
from aiodq.testing import WatchedFileSystem
from tests.queue.support import until
from tests.real.mounts import small_disk
from tests.system.support import bodies, descriptors_under, drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aiodq import Channel, Store

    Record = Callable[[str, Any], None]

OPTIONS: Final = aiodq.StoreOptions(segment_bytes=64 << 10, memory_bytes=256 << 10)
EARLIEST: Final = aiodq.ChannelOptions(start="earliest", max_in_flight=1_000_000)
FAST, SLOW = "fast", "slow"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1M") as mounted:
        yield mounted


class Ballast:
    """A file of somebody else's, on the same disk."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def fill(self) -> None:
        """Leave not a byte."""
        with self._path.open("ab", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
        disk = os.statvfs(self._path)
        assert disk.f_bavail == 0

    def remove(self) -> None:
        """Give everything back."""
        self._path.unlink()


class Cycle:
    """Fills a disk and works it off: what was put and not acked is there, and nothing else."""

    def __init__(self, disk: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = disk / "store"
        self.ballast = Ballast(disk)
        self.waiting: dict[str, deque[bytes]] = {FAST: deque(), SLOW: deque()}
        self.full = self.acked = 0

    async def fill(self, store: Store) -> None:
        """Put until the disk is full, then have the rest of it taken by somebody else."""
        topic = store.topic("t")
        while True:
            end = topic.end_offset
            many = [self.rng.randbytes(self.rng.randrange(100, 3000)) for _ in range(self.rng.choice((1, 1, 5)))]
            try:
                await topic.put_many(many)
            except aiodq.DiskFullError as error:
                assert error.retriable
                assert topic.end_offset == end
                break
            for queue in self.waiting.values():
                queue.extend(many)
        self.full += 1
        self.ballast.fill()
        log = topic._engine.log
        assert isinstance(log, TopicLog)
        with pytest.raises(aiodq.DiskFullError):
            await topic.put(bytes(20_000))  # more than the write that failed half-way has left behind

    async def put(self, store: Store, size: int) -> None:
        """Put what there is room for."""
        body = self.rng.randbytes(size)
        await store.topic("t").put(body)
        for queue in self.waiting.values():
            queue.append(body)

    async def consume(self, channel: Channel, number: int) -> None:
        """Take and ack, durably, on whatever disk there is."""
        queue = self.waiting[channel.name]
        for _ in range(min(number, len(queue))):
            message = await channel.get(timeout=60)
            assert message.body == queue[0]
            await message.ack()
            queue.popleft()
            self.acked += 1

    async def look_at_a_copy(self, target: Path) -> None:
        """Hold against the model what a crash at this moment leaves."""
        shutil.copytree(self.path, target)
        async with aiodq.open(target, OPTIONS) as store:
            topic = store.topic("t")
            for name, queue in self.waiting.items():
                channel = topic.channel(name, EARLIEST)
                await topic.settle_in()
                assert channel.depth == len(queue)
                assert bodies([await channel.get(timeout=60) for _ in queue]) == list(queue)
            assert topic.stats().damages == 0
        shutil.rmtree(target)

    async def run(self, elsewhere: Path) -> None:
        """Fill, consume, close, open, consume, and fill again, all while the disk is full."""
        async with aiodq.open(self.path, OPTIONS) as store:
            fast, slow = (store.topic("t").channel(name, EARLIEST) for name in (FAST, SLOW))
            await self.fill(store)
            # The other channel pins every segment: nothing of the disk is given back by this.
            await self.consume(fast, self.rng.randrange(len(self.waiting[FAST]) + 1))
            await self.look_at_a_copy(elsewhere)
        async with aiodq.open(self.path, OPTIONS) as store:
            topic = store.topic("t")
            fast, slow = (topic.channel(name, EARLIEST) for name in (FAST, SLOW))
            await self.consume(fast, 1_000_000)
            await self.consume(slow, len(self.waiting[SLOW]) - self.rng.randrange(20))
            await until(lambda: topic.stats().segments <= 2)
            await self.put(store, 3000)
            self.ballast.remove()
        await self.look_at_a_copy(elsewhere)


async def cycles(disk: Path, seed: int, number: int, elsewhere: Path) -> Cycle:
    cycle = Cycle(disk, seed)
    for _ in range(number):
        await cycle.run(elsewhere)
    assert cycle.full == number
    assert descriptors_under(disk) == []
    return cycle


async def test_a_full_disk_is_worked_off_and_filled_again(
    disk: Path, tmp_path: Path, seed: int, record_property: Record
) -> None:
    cycle = await cycles(disk, seed, 5, tmp_path / "copy")
    record_property("trials", cycle.full)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_full_disk_is_worked_off_and_filled_again_a_hundred_times(
    disk: Path, tmp_path: Path, seed: int, record_property: Record
) -> None:
    cycle = await cycles(disk, seed, 100, tmp_path / "copy")
    record_property("trials", cycle.full)


@pytest.mark.parametrize("sync", ["os", "interval"])
async def test_what_is_stored_through_memory_ends_with_an_error_on_a_full_disk(tmp_path: Path, sync: Any) -> None:
    options = replace(OPTIONS, sync=sync, segment_bytes=8 << 20)
    with small_disk(tmp_path / "disk", "48M") as disk:
        put = 0
        async with aiodq.open_queue(disk / "store", options) as queue:
            for put in range(5000):
                await queue.put(b"%07d" % put * 14)
            put += 1
            Ballast(disk).fill()
            with pytest.raises(aiodq.DiskFullError):
                while True:
                    await queue.put(b"%07d" % put * 14)
                    put += 1
            assert put > 5000, "what was written ahead is full first"
        async with aiodq.open_queue(disk / "store", options) as queue:
            assert [message.body async for message in queue.topic.scan()] == [b"%07d" % n * 14 for n in range(put)]


async def test_acks_go_on_until_a_full_disk_is_empty(disk: Path, tmp_path: Path) -> None:
    """Many small messages, each acked by itself: far more than the space in reserve holds."""
    async with aiodq.open(disk / "store", OPTIONS) as store:
        topic = store.topic("t")
        fast, slow = (topic.channel(name, EARLIEST) for name in (FAST, SLOW))
        number = len(await topic.put_many([b"%d" % n for n in range(3000)]))
        Ballast(disk).fill()
        for _ in range(number):
            await (await fast.get(timeout=60)).ack()
        shutil.copytree(disk / "store", tmp_path / "copy")
        assert slow.depth == number
    async with aiodq.open(tmp_path / "copy", OPTIONS) as store:
        topic = store.topic("t")
        await topic.settle_in()
        assert (topic.channel(FAST, EARLIEST).depth, topic.channel(SLOW, EARLIEST).depth) == (0, number)


async def test_a_store_whose_last_segment_is_sealed_opens_on_a_full_disk(disk: Path) -> None:
    """The footer still had room in the segment's last page, and the next segment had none."""
    ballast = Ballast(disk)
    async with aiodq.open(disk / "store", OPTIONS) as store:
        queue = store.queue("t")
        await queue.put(bytes(58_000))
        ballast.fill()
        with pytest.raises(aiodq.DiskFullError):
            await queue.put(bytes(8_000))
    async with aiodq.open(disk / "store", OPTIONS) as store:
        queue = store.queue("t")
        await queue.topic.settle_in()
        for message in drain(queue):
            await message.ack()
        ballast.remove()
        await queue.put(b"after all")


async def test_a_store_that_is_closed_as_soon_as_there_is_space_keeps_its_acks(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put_many([b"a", b"b"])
        message = await queue.get()
        fs.fail(errno.ENOSPC, "write", match="journal")
        with pytest.raises(aiodq.DiskFullError):
            await message.ack()
        fs.heal()
    async with aiodq.open_queue(tmp_path) as queue:
        await queue.topic.settle_in()
        assert bodies(drain(queue)) == [b"b"]
