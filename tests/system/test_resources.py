"""Descriptors, permissions, names, links, memory: what a store takes of the machine, and what it leaves alone."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest

import aiodq
from aiodq.names import is_ephemeral
from aiodq.storage.state.json_file import encode_checked
from aiodq.testing import CALLS, FakeClock, WatchedFileSystem
from tests.processes import ROOT
from tests.queue.support import until
from tests.system.support import (
    QuickFileSystem,
    bodies,
    descriptors_under,
    drain,
    engine_threads,
    nothing_left,
    open_descriptors,
    run_script,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Files, descriptors and bytes are the same on each loop.
pytestmark = pytest.mark.slow_on_uvloop

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL_SEGMENTS = aiodq.StoreOptions(segment_bytes=2_000)


async def use(path: Path, options: aiodq.StoreOptions | None = None, fs: Any = None) -> None:
    """Do a little of everything: roll, ack, fold, delete segments, read by offset."""
    async with aiodq.open(path, options or SMALL_SEGMENTS, fs=fs or QuickFileSystem()) as store:
        queue = store.queue("t")
        other = queue.topic.channel("other")
        for number in range(6):
            await queue.put_many([bytes([number]) * 500] * 3, tag="x")
        for message in drain(queue)[:12]:
            message.ack_nowait()
        for message in drain(other)[:12]:
            await message.ack()
        await queue.read(queue.end_offset - 1)
        async for _ in queue.scan():
            break
        await queue.purge()
        await queue.put(b"left")


# --- descriptors


async def _cycles(path: Path, number: int) -> None:
    await use(path)
    before = open_descriptors()
    for _ in range(number):
        await use(path)
    assert open_descriptors() == before
    assert engine_threads() == []


async def test_no_descriptor_is_left_by_opening_and_closing(tmp_path: Path) -> None:
    await _cycles(tmp_path, 10)


@pytest.mark.slow
async def test_no_descriptor_is_left_by_a_thousand_cycles(tmp_path: Path) -> None:
    await _cycles(tmp_path, 1000)


async def _refusals(path: Path, kind: str, first: int, stride: int) -> None:
    await use(path)
    before = open_descriptors()
    for number in range(first, 2_000 + stride, stride):
        fs = WatchedFileSystem()
        fault = fs.fail(errno.EMFILE, kind, at=number, times=1)
        with nothing_left():
            try:
                async with asyncio.timeout(30):
                    await use(path, fs=fs)
            except aiodq.AiodqError:
                assert fault.hits
        assert fs.open_files == 0
        assert open_descriptors() == before
        await use(path)
        if not fault.hits:
            return
    pytest.fail("so many calls of a kind?")


@pytest.mark.drawn("kind", 6)
@pytest.mark.parametrize("kind", CALLS)
async def test_no_descriptor_is_left_by_what_the_system_refuses(kind: str, tmp_path: Path, seed: int) -> None:
    """One call of a kind fails: a typed error, nothing left open, and the next opening heals it."""
    await _refusals(tmp_path, kind, 1 + random.Random(f"{seed} {kind}").randrange(10), 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALLS)
async def test_no_descriptor_is_left_by_whatever_the_system_refuses(kind: str, tmp_path: Path) -> None:
    """As above, for each call in turn."""
    await _refusals(tmp_path, kind, 1, 1)


async def test_no_descriptor_is_left_by_refused_openings(tmp_path: Path) -> None:
    foreign, newer, store = tmp_path / "foreign", tmp_path / "newer", tmp_path / "store"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("to whom it may concern")
    await use(newer)
    meta = newer / "t" / "topic.json"
    topic = json.loads(meta.read_text())["topic"] | {"version": 99}
    meta.write_bytes(encode_checked("topic", 99, topic))
    untouched = tree(newer)
    async with aiodq.open(store):
        before = open_descriptors()
        for _ in range(20):
            with pytest.raises(aiodq.StoreLockedError):
                await aiodq.open(store)
            with pytest.raises(aiodq.NotAStoreError):
                await aiodq.open(foreign)
            with pytest.raises(aiodq.FormatVersionError):
                await aiodq.open(newer)
            with pytest.raises(aiodq.StorageError):
                await aiodq.open(meta)
            with pytest.raises(aiodq.StorageError):
                await aiodq.open(tmp_path / "no" / "such" / "parent")
        assert open_descriptors() == before
    assert sorted(os.listdir(foreign)) == ["letter.txt"]
    assert tree(newer) == untouched


TOO_FEW_DESCRIPTORS = """
import asyncio, os, resource, sys
import aiodq

def number(): return len(os.listdir("/proc/self/fd"))

async def main():
    refused = 0
    path = sys.argv[1]
    async with aiodq.open_queue(path) as queue:
        await queue.put_many([b"a", b"b"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = number()
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    for room in range(1, 30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, hard))
        try:
            async with asyncio.timeout(30), aiodq.open_queue(path) as queue:
                assert await queue.put(b"c") >= 2
                await (await queue.get()).nack()
        except aiodq.StorageError as error:
            assert error.retriable and error.errno == 24, repr(error)
            refused += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert number() == before, (room, number(), before)
    async with aiodq.open_queue(path) as queue:
        print(refused, queue.qsize() > 2, queue.topic_stats().damages)

asyncio.run(main())
"""


def test_too_few_descriptors_is_an_error_that_passes(tmp_path: Path) -> None:
    refused, more, damages = run_script(TOO_FEW_DESCRIPTORS, str(tmp_path)).stdout.split()
    assert int(refused) > 0
    assert (more, damages) == ("True", "0")


# --- permissions and names


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
async def test_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    await use(path)
    async with aiodq.open(path, SMALL_SEGMENTS) as store:
        await store.topic("t").put(b"y")
        for directory, directories, files in os.walk(path):
            for name in directories:
                assert mode(os.path.join(directory, name)) == 0o700, name
            for name in files:
                assert mode(os.path.join(directory, name)) == 0o600, name
    assert mode(path) == 0o700


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


HOSTILE = (
    *("", ".", "..", "/", "../x", "a/b", "/etc/passwd", "./a", "a/", "..\\x", "a\0b", "\0", "a\n", "a\nb", " ", "a b"),
    *(
        "x" * 65,
        "x" * 256,
        "x" * 5000,
        "\u0430",
        "\uff41",
        "\u202ea",
        "é",
        "%2e%2e",
        "~",
        "$HOME",
        "a:b",
        "*",
        "\ud800",
    ),
    *("#ephemeral", "a#ephemeral#ephemeral", "a#deleted", "a#EPHEMERAL", "x" * 60 + "#ephemeral"),
)
STRANGE = (
    *("...", "..a", "-rf", ".hidden", "x" * 64, "watermark", "channels", "staging", "journal"),
    *("checkpoint", "con", "a#ephemeral", "LOCK.", "1.damaged-1"),
)
STRANGE_CHANNELS = (*STRANGE, "topic.json", "00000000000000000000.seg", "x.aiodq-tmp", "lock", "LOCK")


def tree(path: Path) -> dict[str, bytes | str]:
    """Return everything below a directory, with its content."""
    found: dict[str, bytes | str] = {}
    for entry in sorted(path.rglob("*")):
        if entry.is_symlink():
            found[str(entry)] = os.readlink(entry)
        else:
            found[str(entry)] = "" if entry.is_dir() else entry.read_bytes()
    return found


async def test_no_hostile_name_reaches_the_disk(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    root = outside / "root"
    outside.mkdir()
    async with aiodq.open(root, fs=QuickFileSystem()) as store:
        await store.topic("t").put(b"x")
        before = tree(tmp_path)
        names: tuple[Any, ...] = (*HOSTILE, None, 5, b"bytes", ("t",))
        for name in names:
            with pytest.raises(aiodq.InvalidNameError):
                store.topic(name)
            with pytest.raises(aiodq.InvalidNameError):
                store.queue(name)
            with pytest.raises(aiodq.InvalidNameError):
                store.topic("t").channel(name)
            with pytest.raises(aiodq.InvalidNameError):
                await store.delete_topic(name)
        assert tree(tmp_path) == before
    assert os.listdir(outside) == ["root"]


async def test_strange_names_are_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    kept = [name for name in STRANGE if not is_ephemeral(name)]
    channels = sorted(STRANGE_CHANNELS)
    async with aiodq.open(root, SMALL_SEGMENTS, fs=QuickFileSystem()) as store:
        for name in STRANGE:
            topic = store.topic(name)
            for channel in channels:
                topic.channel(channel)
            await topic.put(name.encode())
        assert store.topics() == sorted(STRANGE)
        assert store.topic(STRANGE[0]).channels() == channels
    async with aiodq.open(root, SMALL_SEGMENTS, fs=QuickFileSystem()) as store:
        assert store.topics() == sorted(kept)
        for name in kept:
            topic = store.topic(name)
            assert topic.channels() == [channel for channel in channels if not is_ephemeral(channel)]
            assert bodies(drain(topic.channel(name))) == [name.encode()]
            assert topic.stats().damages == 0
        for name in kept[1:]:
            await store.delete_topic(name)
        assert store.topics() == kept[:1]
    assert os.listdir(tmp_path) == ["root"]


async def test_topic_named_as_the_lock_is_refused_in_time(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path) as store:
        lock = (tmp_path / "LOCK").read_bytes()
        with pytest.raises(aiodq.InvalidNameError):
            await store.topic("LOCK").put(b"x")
        await store.topic("t").put(b"y")
        assert (tmp_path / "LOCK").read_bytes() == lock


# --- links

VICTIMS = (
    *("LOCK", "t", "t/topic.json", "t/watermark", "t/channels", "t/channels/default"),
    *("t/channels/default/journal", "t/channels/default/checkpoint", "FIRST", "LAST"),
    *("t/topic.json.aiodq-tmp", "t/channels/default/checkpoint.aiodq-tmp", "NEXT", "new"),
)


@pytest.mark.parametrize("dangling", [False, True], ids=["target", "dangling"])
@pytest.mark.parametrize("victim", VICTIMS)
async def test_no_planted_link_is_followed(victim: str, dangling: bool, tmp_path: Path) -> None:
    """A link in the place of each file and directory: refused with a typed error, or replaced; never followed."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    async with aiodq.open_queue(root, SMALL_SEGMENTS, fs=QuickFileSystem()) as queue:
        topic_directory = next(path for path in root.iterdir() if path.is_dir())
        for number in range(5):
            await queue.put_many([bytes([number]) * 500] * 3)
        next_base = queue.end_offset + 3
    topic_directory.rename(root / "t")
    segments = sorted((root / "t").glob("*.seg"))
    place = {
        "FIRST": segments[0],
        "LAST": segments[-1],
        # Where the next segment will begin: three messages fill one.
        "NEXT": root / "t" / f"{next_base:020d}.seg",
    }.get(victim, root / victim)
    target = outside / "target"
    if os.path.lexists(place) and not dangling:
        shutil.move(place, target)
    elif not dangling:
        target.write_bytes(b"somebody's")
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(target)
    before = tree(outside)

    with nothing_left():
        try:
            async with asyncio.timeout(30), aiodq.open(root, SMALL_SEGMENTS, fs=QuickFileSystem()) as store:
                for name in ("t", "new"):
                    queue = store.queue(name)
                    await queue.topic.settle_in()
                    await queue.put_many([b"z" * 500] * 3)
                    await queue.put_many([b"z" * 500] * 3)
                    await (await queue.get()).ack()
                    await queue.purge()
        except aiodq.AiodqError:
            pass
    assert tree(outside) == before
    assert descriptors_under(tmp_path) == []


# --- memory


def hungry(path: Path, manner: str, total: int, size: int, memory: int) -> list[int]:
    """Return what the process printed (see hungry.py)."""
    command = [sys.executable, "-m", "tests.system.hungry", str(path), manner, *map(str, (total, size, memory))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


SLACK = 32 * MIB
"""What a process may take besides `memory_bytes`: what the consumer holds, what is being written or decoded."""

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
@pytest.mark.drawn("manner", 2)
@pytest.mark.parametrize(
    ("manner", "total", "size", "memory"),
    [
        pytest.param("keeping up", 96 * MIB, 64 * KIB, 16 * MIB, id="keeping-up"),
        pytest.param("far behind", 96 * MIB, 64 * KIB, 16 * MIB, id="far-behind"),
        pytest.param("no consumer", 96 * MIB, 64 * KIB, 16 * MIB, id="no-consumer"),
        pytest.param("flood", 96 * MIB, 16 * KIB, 16 * MIB, id="flood"),
        pytest.param("many channels", 40 * MIB, 64 * KIB, 4 * MIB, id="many-channels"),
    ],
)
def test_memory_does_not_grow_with_the_backlog(manner: str, total: int, size: int, memory: int, tmp_path: Path) -> None:
    """All of it in memory would be twice what there may be; of many channels, as much again for each."""
    (peak,) = hungry(tmp_path, manner, total, size, memory)
    assert peak <= memory + SLACK, f"the peak rose by {peak / MIB:.0f} MiB"


@needs_proc
@pytest.mark.parametrize("manner", ["far behind", "flood"])
def test_memory_of_small_messages_is_counted_with_what_they_cost(manner: str, tmp_path: Path) -> None:
    """A body of 64 bytes takes more than as much again; held, these would take 25 MiB."""
    (peak,) = hungry(tmp_path, manner, 8 * MIB, 64, MIB)
    assert peak <= MIB + SLACK // 2, f"the peak rose by {peak / MIB:.0f} MiB"


@needs_proc
def test_memory_of_opening_does_not_grow_with_the_backlog(tmp_path: Path) -> None:
    hungry(tmp_path, "far behind unread", 64 * MIB, 64 * KIB, 16 * MIB)
    opened, read = hungry(tmp_path, "open", 64 * MIB, 64 * KIB, 16 * MIB)
    assert opened <= SLACK // 4
    assert read <= SLACK // 4


@needs_proc
@pytest.mark.parametrize(
    ("number", "size"),
    [(50_000, 1500), pytest.param(1_000_000, 500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_memory_of_what_is_deferred_goes_by_the_message_not_by_its_size(number: int, size: int, tmp_path: Path) -> None:
    """200 MiB for a million, whatever the bodies are; and the same again for who opens the store."""
    most = 200 * MIB * number // 1_000_000 + SLACK
    (peak,) = hungry(tmp_path, "deferred", number * size, size, 4 * MIB)
    assert peak <= most, f"the peak rose by {peak / MIB:.0f} MiB"
    opened, _ = hungry(tmp_path, "open", number * size, size, 4 * MIB)
    assert opened <= most, f"opening took {opened / MIB:.0f} MiB"


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("manner", ["keeping up", "far behind", "no consumer"])
def test_memory_with_two_gigabytes(manner: str, tmp_path: Path) -> None:
    (peak,) = hungry(tmp_path, manner, 2 * GIB, 64 * KIB, 16 * MIB)
    assert peak <= 16 * MIB + SLACK, f"the peak rose by {peak / MIB:.0f} MiB"


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("manner", ["keeping up", "far behind", "flood", "many channels"])
def test_memory_with_many_small_messages(manner: str, tmp_path: Path) -> None:
    (peak,) = hungry(tmp_path, manner, 32 * MIB, 64, MIB)
    assert peak <= MIB + SLACK * 3 // 4, f"the peak rose by {peak / MIB:.0f} MiB"


async def test_an_idle_topic_has_few_objects_and_little_memory(tmp_path: Path) -> None:
    """Each full collection of Python's garbage holds up the loop by half a microsecond an object."""
    number, options = 40, aiodq.StoreOptions(sync="os")

    async def begin(store: aiodq.Store, name: str) -> None:
        store.topic(name).channel("c")
        await store.topic(name).put(b"x" * 100)

    async with aiodq.open(tmp_path, options, clock=FakeClock()) as store:
        for each in range(number):
            await begin(store, f"before-{each}")
        gc.collect()
        objects = len(gc.get_objects())
        tracemalloc.start(1)
        for each in range(number):
            await begin(store, f"topic-{each}")
        for each in range(number):
            await store.topic(f"topic-{each}").sync()
        gc.collect()
        taken, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects()) - objects
        tracemalloc.stop()
    assert objects / number < 250
    assert taken / number < 33_000


async def test_a_deleted_channel_is_let_go_though_somebody_waited_in_it(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, SMALL_SEGMENTS, fs=QuickFileSystem()) as store:
        topic = store.topic("t")
        await topic.put(b"x")
        channel = topic.channel("c")
        engine = ref(channel._channel_engine)
        getting = [asyncio.create_task(channel.get()) for _ in range(2)]
        await asyncio.wait(getting, return_when=asyncio.FIRST_COMPLETED)
        await topic.delete_channel("c")
        await asyncio.gather(*getting, return_exceptions=True)
        del channel, getting
        await until(lambda: gc.collect() is not None and engine() is None)


async def test_opening_reads_the_ends_of_segments_and_nothing_between(tmp_path: Path) -> None:
    options = aiodq.StoreOptions(segment_bytes=256 * KIB)
    async with aiodq.open_queue(tmp_path, options, fs=QuickFileSystem()) as queue:
        for _ in range(40):
            await queue.put_many([bytes(1000)] * 250)
        segments = queue.topic_stats().segments
        size = queue.topic_stats().disk_bytes
    assert segments >= 40
    last = max((path for path in tmp_path.rglob("*.seg")), key=lambda path: path.name).stat().st_size
    fs = WatchedFileSystem()
    async with aiodq.open_queue(tmp_path, options, fs=fs) as queue:
        read = fs.bytes_read
        assert read <= last + segments * 256 + 32 * KIB < size // 10
        assert queue.qsize() == 10_000
        await queue.get()
        assert fs.bytes_read <= read + MIB
