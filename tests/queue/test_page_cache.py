"""A backlog that the system has in memory is read in the step that needs it, and what it has not, by a thread."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.reading.prefetch_reader import PrefetchingReader
from aiodq.storage.io.filesystem import OsFile
from aiodq.testing import WrappedFileSystem
from tests.queue.support import bodies_of, numbered, soon

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from aiodq.engine.reading.prefetch_reader import Prefetched
    from aiodq.storage.io.filesystem import FileSystem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in its page cache")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PrefetchingReader]:
    """Return who was asked to have a thread read, once for each time."""
    found: list[PrefetchingReader] = []
    want = PrefetchingReader.want

    def watched(self: PrefetchingReader, source: Prefetched) -> None:
        found.append(self)
        want(self, source)

    monkeypatch.setattr(PrefetchingReader, "want", watched)
    return found


def queue(path: Path, fs: FileSystem | None = None, **options: Any) -> AbstractAsyncContextManager[aiodq.Queue]:
    """Return a queue whose files are the machine's own, without anything before them but what is asked for."""
    return aiodq.open_queue(path, aiodq.StoreOptions(sync="os", **options), fs=fs)


async def backlog(path: Path, bodies: list[bytes], **options: Any) -> None:
    """Leave these on disk, in many segments."""
    async with queue(path, segment_bytes=1 << 14, **options) as jobs:
        for start in range(0, len(bodies), 100):
            await jobs.put_many(bodies[start : start + 100])
    have_in_memory(path)


def have_in_memory(path: Path) -> None:
    """Have the system read these files, of which a busy one may have given pages back since they were written."""
    for segment in path.rglob("*.seg"):
        segment.read_bytes()


async def taken(path: Path, count: int, **options: Any) -> list[bytes]:
    """Return what somebody gets who acks at once: one by one, and many at a time."""
    found: list[bytes] = []
    async with queue(path, **options) as jobs:
        async for message in jobs:
            found.append(message.body)
            message.ack_nowait()
            if len(found) == count // 2:
                break
        while len(found) < count:
            messages = await soon(jobs.get_many(300))
            found += bodies_of(messages)
            await jobs.ack_many(messages)
    return found


@pytest.mark.usefixtures("cached_path")
async def test_no_thread_reads_what_is_there(path: Path, asked: list[PrefetchingReader]) -> None:
    bodies = numbered(5000)
    await backlog(path, bodies)
    assert await taken(path, 5000) == bodies
    assert not asked


async def test_what_is_read_on_the_way_is_not_read_ahead(path: Path) -> None:
    bodies = [number.to_bytes(4, "big") * 256 for number in range(5000)]
    await backlog(path, bodies)
    async with queue(path) as jobs:
        assert (await soon(jobs.get())).body == bodies[0]
        # One segment of some hundred: what follows is needed later, and takes no longer then.
        assert jobs.topic_stats().bytes_read < 1 << 17


@pytest.mark.parametrize("cached", ["never", "not the first half", "by turns"])
async def test_a_thread_reads_what_is_not(
    path: Path, asked: list[PrefetchingReader], monkeypatch: pytest.MonkeyPatch, cached: str
) -> None:
    """Whoever reads, all come, once and in order: also to who takes many, which reads a little at once for itself."""
    bodies = numbered(20_000)
    await backlog(path, bodies)
    read, calls = OsFile.read_cached, 0

    def sometimes(self: OsFile, size: int, position: int) -> bytes | None:
        nonlocal calls
        calls += 1
        there = {"never": False, "not the first half": calls > 20, "by turns": calls % 3 > 0}[cached]
        return read(self, size, position) if there else None

    monkeypatch.setattr(OsFile, "read_cached", sometimes)
    assert await taken(path, 20_000) == bodies
    assert asked


async def test_in_order_from_a_file_system_that_does_not_tell(path: Path, asked: list[PrefetchingReader]) -> None:
    bodies = numbered(20_000)
    await backlog(path, bodies)
    assert await taken(path, 20_000, fs=WrappedFileSystem(), memory_bytes=1 << 16) == bodies
    assert asked


async def test_what_takes_long_is_left_to_a_thread(path: Path, asked: list[PrefetchingReader]) -> None:
    large = [b"a" * (4 << 20), b"b" * (5 << 20)]
    async with queue(path) as jobs:
        await jobs.put_many(large)
    async with queue(path) as jobs:
        assert bodies_of([await soon(jobs.get()) for _ in large]) == large
    assert asked


@pytest.mark.usefixtures("cached_path")
async def test_a_thread_reads_a_long_put_only_to_see_that_it_is_complete(
    path: Path, asked: list[PrefetchingReader]
) -> None:
    bodies = [bytes([number]) * (16 << 10) for number in range(256)] * 2
    async with queue(path) as jobs:
        await jobs.put_many(bodies)
    have_in_memory(path)
    async with queue(path) as jobs:
        assert bodies_of([await soon(jobs.get()) for _ in bodies]) == bodies
        assert jobs.topic_stats().bytes_read < 1.2 * sum(map(len, bodies)), "each piece begins where the last one ended"
    assert len(asked) == 1


async def test_others_have_their_turn_while_many_large_ones_are_taken(
    path: Path, asked: list[PrefetchingReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [bytes([number]) * (16 << 10) for number in range(250)] * 2
    read = 0

    def in_memory(self: OsFile, size: int, position: int) -> bytes | None:
        nonlocal read
        data = os.pread(self.descriptor, size, position)
        read += len(data)
        return data if len(data) == size else None

    monkeypatch.setattr(OsFile, "read_cached", in_memory)
    async with queue(path) as jobs:
        for start in range(0, 500, 50):
            await jobs.put_many(bodies[start : start + 50])
    async with queue(path) as jobs:
        await jobs.get()
        getting = asyncio.create_task(jobs.get_many(499))
        longest = 0
        while not getting.done():
            read = 0
            await asyncio.sleep(0)
            longest = max(longest, read)
        assert bodies_of(await getting) == bodies[1:]
        assert not asked
        assert longest < sum(map(len, bodies)) / 2, "a few milliseconds at a time"


async def test_so_is_what_is_compressed(path: Path, asked: list[PrefetchingReader]) -> None:
    pytest.importorskip("zstandard")
    bodies = [b"%d" % number * 100 for number in range(2000)]
    await backlog(path, bodies, compression="zstd")
    assert await taken(path, 2000) == bodies
    assert asked


async def test_what_is_damaged_costs_no_more_than_by_a_thread(path: Path) -> None:
    await backlog(path, numbered(5000))
    segment = sorted(path.rglob("*.seg"))[2]
    data = bytearray(segment.read_bytes())
    data[1000] ^= 1
    segment.write_bytes(data)

    async def found(fs: FileSystem | None, name: str) -> tuple[list[bytes], int]:
        async with queue(path, fs) as jobs:
            channel = jobs.channel(name, aiodq.ChannelOptions(start="earliest"))
            bodies: list[bytes] = []
            while not bodies or bodies[-1] != b"%d" % 4999:
                messages = await soon(channel.get_many(5000))
                bodies += bodies_of(messages)
                await channel.ack_many(messages)
                await asyncio.sleep(0)
            return bodies, channel.stats().lost

    there = await found(None, "a")
    assert there == await found(WrappedFileSystem(), "b")
    assert there[1] > 0
    assert len(there[0]) == 5000 - there[1]
