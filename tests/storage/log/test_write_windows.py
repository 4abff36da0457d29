"""Write windows: small puts that are stored in memory the file is mapped to, and what becomes of them."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io import mounts
from aiodq.storage.io.file_pool import PooledFile
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.log import preallocation
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import Fault, FaultPlan, SimulatedFileSystem
from tests.processes import killed_at_last

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File

MAPS = Path("/proc/self/maps")
BODIES = [b"%07d" % number * 14 for number in range(4000)]
"""About half a megabyte of frames: windows from 64 KiB on, of 256 KiB each."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="there are write windows on Linux only")


def in_place(path: Path) -> bool:
    """Return whether there are windows on that file system."""
    return mounts.file_system_type(path.stat().st_dev) in {"ext2", "ext3", "ext4", "tmpfs"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a place of a store where windows may be."""
    if not in_place(tmp_path):
        pytest.skip("the temporary directory's file system copies on write, or nobody tells which it is")
    return tmp_path / "store"


def windows(path: Path) -> list[str]:
    """Return the lines about the store's files, of what this process has mapped."""
    return [line for line in MAPS.read_text().splitlines() if str(path) in line and line.endswith(".seg")]


async def put_each(queue: aiodq.Queue, bodies: list[bytes]) -> None:
    for body in bodies:
        await queue.put(body)


async def bodies_in(path: Path | str, fs: SimulatedFileSystem | None = None) -> list[bytes]:
    """Return what the next owner finds."""
    async with aiodq.open_queue(path, fs=fs) as queue:
        return [message.body async for message in queue.topic.scan()]


@linux
@pytest.mark.parametrize("sync", ["os", "interval"])
async def test_small_puts_are_stored_in_one_and_read_at_once(path: Path, sync: str) -> None:
    async with aiodq.open_queue(path, aiodq.StoreOptions(sync=sync)) as queue:  # type: ignore[arg-type]
        await put_each(queue, BODIES[:100])
        assert not windows(path), "a small topic has none"
        await put_each(queue, BODIES[100:])
        (window,) = windows(path)
        assert " rw-s " in window
        assert [message.body async for message in queue.topic.scan()] == BODIES
        begin, end = (int(number, 16) for number in window.split()[0].split("-"))
        assert 64 * 1024 <= end - begin <= 264 * 1024
        (segment,) = path.rglob("*.seg")
        assert BODIES[-1] in segment.read_bytes()
        await queue.topic.sync()
    assert not windows(path)
    assert BODIES[-1] in segment.read_bytes()[-200:], "the zeros are gone"
    assert verify_store(str(path), OsFileSystem()).ok
    assert await bodies_in(path) == BODIES


@linux
async def test_where_a_put_waits_for_its_sync_there_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aiodq.open_queue(path) as queue:
        for start in range(0, 4000, 1000):
            await asyncio.gather(*map(queue.put, BODIES[start : start + 1000]))
        assert not windows(path)
    async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os")) as queue:
        await put_each(queue, BODIES[:1000])
        assert windows(path)
    monkeypatch.setattr(preallocation, "_FIRST_WINDOW", 0)
    async with aiodq.open_queue(path) as queue:
        await queue.put(b"x", key=b"k")  # the first, as nobody knows yet how often it is synced
        await queue.put_many(BODIES[:1000])
        await queue.put(b"x")
        assert not windows(path)


@linux
async def test_what_was_put_outlives_the_process(path: Path) -> None:
    code = """if True:
    import aiodq, asyncio, sys

    async def main():
        async with aiodq.open_queue(sys.argv[1], aiodq.StoreOptions(sync="os")) as queue:
            for number in range(1_000_000):
                await queue.put(b"%07d" % number * 14)
                if number % 100 == 99:
                    print(number + 1, flush=True)

    asyncio.run(main())
    """
    with killed_at_last([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        told = 0
        while told < 3000:
            told = int(child.stdout.readline())
        child.kill()
        child.wait()
        told = max([told, *map(int, child.stdout.read().split(b"\n")[:-1])])
    found = await bodies_in(path)
    assert found == [b"%07d" % number * 14 for number in range(len(found))]
    assert len(found) >= told


@linux
@pytest.mark.parametrize("kind", ["xfs", "btrfs", "nfs4", "overlay", None])
async def test_a_file_system_that_copies_on_write_has_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    # The same number was another file system's before.
    async with aiodq.open_queue(path.parent / "before", aiodq.StoreOptions(sync="os")) as queue:
        await put_each(queue, BODIES[:1000])
        assert windows(path.parent / "before")
    path.mkdir()
    device = path.stat().st_dev
    line = f"27 1 {os.major(device)}:{os.minor(device)} / / rw - {kind} /dev/x rw\n" if kind else ""
    (path.parent / "mounts").write_text(line)
    monkeypatch.setattr(mounts, "_MOUNTS", str(path.parent / "mounts"))
    async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os")) as queue:
        await put_each(queue, BODIES)
        assert not windows(path)
    assert await bodies_in(path) == BODIES


@linux
async def test_one_store_has_few_and_the_busy_topics_have_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.storage.io.file_pool.MOST_WINDOWS", 3)
    async with aiodq.open(path, aiodq.StoreOptions(sync="os")) as store:
        topics = [store.topic(f"t{number}") for number in range(5)]
        for topic in topics:
            for body in BODIES[:1000]:
                await topic.put(body)
        assert [line.split("/")[-2] for line in sorted(windows(path), key=lambda line: line.split("/")[-2])] == [
            "t2", "t3", "t4",
        ]  # fmt: skip
        for body in BODIES[1000:]:
            await topics[0].put(body)
        assert {line.split("/")[-2] for line in windows(path)} == {"t0", "t3", "t4"}
        assert [message.body async for message in topics[0].scan()] == BODIES


@linux
async def test_a_file_that_was_closed_while_it_was_idle_is_written_on(path: Path) -> None:
    async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os")) as queue:
        await put_each(queue, BODIES[:1000])
        file = queue.topic._engine.log.active._file  # type: ignore[union-attr]
        assert isinstance(file, PooledFile)
        assert windows(path)
        while not file.claimed():
            assert not file.users
        file.lay_down()
        file._fs.settled(file)
        assert not windows(path)
        await put_each(queue, BODIES[1000:])
    assert await bodies_in(path) == BODIES


async def test_segments_that_roll_are_as_full_and_sealed_as_ever(path: Path) -> None:
    async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os", segment_bytes=200_000)) as queue:
        await put_each(queue, BODIES)
        *sealed, _ = sorted(path.rglob("*.seg"))
        assert [190_000 < segment.stat().st_size <= 200_000 for segment in sealed] == [True, True]
    assert verify_store(str(path), OsFileSystem()).ok
    assert await bodies_in(path) == BODIES


async def test_batches_and_single_ones_by_turns(path: Path) -> None:
    async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os")) as queue:
        for start in range(0, 4000, 100):
            await put_each(queue, BODIES[start : start + 50])
            await queue.put_many(BODIES[start + 50 : start + 99])
            await queue.put(BODIES[start + 99], key=b"k")
    assert await bodies_in(path) == BODIES


@pytest.mark.parametrize(("at", "short"), [(1, 0), (2, 60)])
async def test_what_a_write_that_failed_left_is_cut_off_and_the_window_with_it(at: int, short: int) -> None:
    plan = FaultPlan()
    fs = SimulatedFileSystem(plan=plan)
    async with aiodq.open_queue("/store", aiodq.StoreOptions(sync="os"), fs=fs) as queue:
        await put_each(queue, BODIES[:1000])
        plan.add(Fault("write", at, "ENOSPC", short=short, match=".seg"))
        put = 0
        for body in BODIES[1000:1010]:
            try:
                await queue.put(body)
            except aiodq.DiskFullError:
                continue
            put += 1
        assert put == 9
        await put_each(queue, BODIES[1010:])
    found = await bodies_in("/store", fs)
    assert found == [body for body in BODIES if body != BODIES[999 + at]]


async def test_where_there_is_no_room_for_zeros_puts_go_on_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, tried = SimulatedFileSystem(), 0

    def full(file: File, buffers: Sequence[BytesLike], position: int) -> int:
        nonlocal tried
        tried += 1
        file.write_at([memoryview(buffers[0])[:5000]], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(preallocation, "write_all", full)
    async with aiodq.open_queue("/store", aiodq.StoreOptions(sync="os"), fs=fs) as queue:
        put = 0
        while not tried:
            await queue.put(BODIES[put])
            put += 1
        (segment,) = (data for name, data in fs.image().items() if name.endswith(".seg") and data is not None)
        assert BODIES[put - 1] in segment[-200:], "what was written ahead is given back"
        await put_each(queue, BODIES[put:])
    assert tried == 1
    assert await bodies_in("/store", fs) == BODIES
