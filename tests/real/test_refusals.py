"""What the system does not permit, for real: read-only mounts, another user, a limit on files and on their size."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
from tests.processes import ROOT, WATCHDOG
from tests.real.mounts import bound_read_only
from tests.system.support import bodies, drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Record = Callable[[str, Any], None]

NOBODY: Final = 65534


def script(source: str, *arguments: object, limit: tuple[str, int] | None = None, seconds: float = WATCHDOG) -> str:
    """Run a script, with one of the system's limits perhaps; return what it prints. A hang is a failure."""
    if limit is not None:
        name, most = limit
        source = f"import resource\nresource.setrlimit(resource.{name}, ({most}, {most}))\n{source}"
    command = [sys.executable, "-c", source, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env=environment, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Give a directory that another user reaches, too.

    `tmp_path` is none: whenever a run begins, pytest takes from others what it is in, for all runs of this user.
    """
    if os.geteuid() != 0:
        # Root passes every permission, and another user cannot give files away: it takes root to have two of them.
        pytest.skip("needs a process that becomes another user, and only root can")
    with tempfile.TemporaryDirectory() as name:
        for directory in (Path(name), *Path(name).parents):
            if not directory.stat().st_mode & stat.S_IXOTH:
                directory.chmod(directory.stat().st_mode | stat.S_IXOTH)
        yield Path(name)


async def fill(path: Path, number: int) -> None:
    async with aiodq.open_queue(path) as queue:
        await queue.put_many([b"%d" % n for n in range(number)])
        await (await queue.get()).ack()


async def left(path: Path) -> list[bytes]:
    async with aiodq.open_queue(path) as queue:
        await queue.topic.settle_in()
        return bodies(drain(queue))


async def test_a_read_only_mount_is_refused_in_so_many_words_and_can_be_read(tmp_path: Path) -> None:
    store = tmp_path / "store"
    await fill(store, 5)
    (tmp_path / "bare").mkdir()
    with (
        bound_read_only(store, tmp_path / "mounted") as mounted,
        bound_read_only(tmp_path / "bare", tmp_path / "empty") as empty,
    ):
        for place, path in ((mounted, mounted), (empty, empty / "below")):
            with pytest.raises(aiodq.ReadOnlyError, match=str(place)) as refused:
                await aiodq.open(path)
            assert not refused.value.retriable
        reader = aiodq.open_reader(mounted)
        assert [message.body for message in reader.topic("queue").scan()] == [b"0", b"1", b"2", b"3", b"4"]
    assert await left(store) == [b"1", b"2", b"3", b"4"]


AS_SOMEBODY_ELSE = """
import asyncio, os, sys
import aiodq

def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

def descriptors():
    # What another user is shown of /proc/self ends with the change of user.
    return sum(is_open(number) for number in range(256))

async def main():
    async with aiodq.open_queue(sys.argv[2]) as queue:
        await queue.put(b"ours")
    # From here on the interpreter's own files may be out of reach: all that is needed has been imported.
    os.setgroups([])
    os.setresgid(*[int(sys.argv[1])] * 3)
    os.setresuid(*[int(sys.argv[1])] * 3)
    before = descriptors()
    for path in sys.argv[3:]:
        try:
            async with aiodq.open_queue(path) as queue:
                await queue.put(b"in")
                print("opened", end=" ")
        except aiodq.ReadOnlyError as error:
            print(error.errno, end=" ")
    print(descriptors() - before)

asyncio.run(main())
"""


async def test_another_user_s_store_is_refused_and_stays_as_it_was(reachable: Path) -> None:
    theirs, half, open_to_all = reachable / "theirs", reachable / "half", reachable / "open"
    await fill(theirs, 3)
    await fill(half, 3)
    half.chmod(0o777)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    refused = (theirs, half, reachable / "new")
    said = script(AS_SOMEBODY_ELSE, NOBODY, reachable / "root's", *refused, open_to_all / "new")
    assert said == "13 13 13 opened 0"
    assert await left(theirs) == await left(half) == [b"1", b"2"]
    assert not (reachable / "new").exists()


async def test_a_read_only_mount_of_a_shared_store_is_refused_unless_its_owner_may_write(tmp_path: Path) -> None:
    store = tmp_path / "store"
    await fill(store, 5)
    with bound_read_only(store, tmp_path / "mounted") as mounted:
        with pytest.raises(aiodq.ReadOnlyError, match=str(mounted)):
            await aiodq.open(mounted, mode="shared")
        with pytest.raises(aiodq.OwnerLostError):
            await aiodq.open(mounted, mode="client", failover=0.1)
        async with (
            aiodq.open_queue(store, mode="shared") as owner,
            aiodq.open_queue(mounted, mode="shared", failover=WATCHDOG) as beside,
        ):
            assert await beside.put(b"5") == 5
            await owner.aclose()
            with pytest.raises(aiodq.ReadOnlyError, match=str(mounted)):
                await beside.put(b"6")
    assert await left(store) == [b"1", b"2", b"3", b"4", b"5"]


AS_ANOTHER_USER: Final = """
import asyncio, os, sys
import aiodq, aiodq.shared.handles.shared_store, anyio._backends._asyncio

# From here on the interpreter's own files may be out of reach: all that is needed has been imported.
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
"""
"""The beginning of a script that runs as the user whose number is its first argument."""

SHARED_AS_SOMEBODY_ELSE = f"""{AS_ANOTHER_USER}
async def main():
    for path in sys.argv[2:]:
        for mode in ("shared", "client"):
            try:
                async with aiodq.open_queue(path, mode=mode, failover=60) as queue:
                    await queue.put(b"in")
                    print("opened", end=" ")
            except aiodq.StorageError as error:
                print(type(error).__name__, error.errno, "run as one user" in str(error), end=" ")

asyncio.run(main())
"""


async def test_another_user_s_shared_store_is_refused_and_its_owner_is_not_disturbed(reachable: Path) -> None:
    theirs, half = reachable / "theirs", reachable / "half"
    async with (
        aiodq.open_queue(theirs, mode="shared") as first,
        aiodq.open_queue(half, mode="shared") as second,
    ):
        for queue in (first, second):
            await queue.put(b"0")
        half.chmod(0o777)
        said = await asyncio.to_thread(script, SHARED_AS_SOMEBODY_ELSE, NOBODY, theirs, half)
        assert said == " ".join(["ReadOnlyError 13 True"] * 4)
        for queue in (first, second):
            assert await queue.put(b"1") == 1
    assert await left(theirs) == await left(half) == [b"0", b"1"]


ALONE_AS_SOMEBODY_ELSE = f"""{AS_ANOTHER_USER}
async def main():
    for path in sys.argv[2:]:
        try:
            await aiodq.open(path)
        except aiodq.StoreLockedError as error:
            print("alone" if "for itself" in str(error) else "shared" if "shares it" in str(error) else error, end=" ")

asyncio.run(main())
"""


async def test_another_user_is_told_truly_whether_a_store_is_shared(reachable: Path) -> None:
    """Another user may read the store, but not connect to its owner."""
    shared, alone = reachable / "shared", reachable / "alone"
    async with aiodq.open_queue(shared, mode="shared") as first, aiodq.open_queue(alone) as second:
        for queue in (first, second):
            await queue.put(b"0")
        for path in (shared, alone):
            path.chmod(0o755)
            (path / "LOCK").chmod(0o666)
        assert await asyncio.to_thread(script, ALONE_AS_SOMEBODY_ELSE, NOBODY, shared, alone) == "shared alone"


AS_ITS_USER = """
import asyncio, os, sys
import aiodq

async def put(path, *modes):
    for mode in modes:
        async with aiodq.open_queue(path, mode=mode, failover=60) as queue:
            await queue.put(b"theirs")
            await (await queue.get()).ack()
            print("opened", end=" ")

async def main():
    # As above: all that is needed is imported by then.
    async with aiodq.open_queue(sys.argv[2], mode="shared"):
        await put(sys.argv[2], "client")
    os.setgroups([])
    os.setresgid(*[int(sys.argv[1])] * 3)
    os.setresuid(*[int(sys.argv[1])] * 3)
    await put(sys.argv[3], *sys.argv[4:])

asyncio.run(main())
"""


async def test_what_root_makes_in_a_user_s_store_is_that_user_s(reachable: Path) -> None:
    store = reachable / "theirs"
    store.mkdir()
    os.chown(store, NOBODY, NOBODY)
    async with aiodq.open_queue(store, mode="shared") as queue:
        await queue.put_many([b"1", b"2", b"3"])
        await (await queue.get()).ack()
        said = await asyncio.to_thread(script, AS_ITS_USER, NOBODY, reachable / "root's", store, "shared", "client")
        assert said == "opened opened opened", "root serves whose the store is"
        made = [store, *store.rglob("*")]
        assert {each.lstat().st_uid for each in made} == {each.lstat().st_gid for each in made} == {NOBODY}
    assert [each.name for each in store.rglob("*") if each.lstat().st_uid != NOBODY] == []
    said = await asyncio.to_thread(script, AS_ITS_USER, NOBODY, reachable / "root's", store, "exclusive", "shared")
    assert said == "opened opened opened"


LIMITED = """
import asyncio, hashlib, os, random, signal, sys
import aiodq

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
rng = random.Random(int(sys.argv[2]))

async def main():
    refused = acked = 0
    async with aiodq.open(sys.argv[1], aiodq.StoreOptions(segment_bytes=200_000)) as store:
        topic = store.topic("t")
        channel = topic.channel("c")
        await topic.settle_in()
        while refused < 20:
            body = rng.randbytes(rng.randrange(10, 9_000))
            end = topic.end_offset
            try:
                offset = await (topic.put_many([body, body]) if rng.random() < 0.3 else topic.put(body))
            except aiodq.DiskFullError as error:
                assert error.errno == 27, error
                assert topic.end_offset == end
                refused += 1
            else:
                for _ in range(1 if isinstance(offset, int) else 2):
                    print(hashlib.sha256(body).hexdigest())
            if refused and rng.random() < 0.3 and channel.qsize():
                await (await channel.get()).ack()
                acked += 1
    print(acked)

asyncio.run(main())
"""


def test_a_file_that_may_not_grow_takes_half_a_write_and_nothing_is_lost(
    tmp_path: Path, seed: int, record_property: Record
) -> None:
    rng = random.Random(seed)
    trials = 4
    for number in range(trials):
        path, limit = tmp_path / str(number), rng.randrange(20_000, 90_000)
        *put, acked = script(LIMITED, path, seed + number, limit=("RLIMIT_FSIZE", limit)).split()
        assert limit // 2 < max(file.stat().st_size for file in path.rglob("*.seg")) <= limit
        *there, last = asyncio.run(after_all(path))
        assert last == b"after all"
        assert [hashlib.sha256(body).hexdigest() for body in there] == put[int(acked) :]
    record_property("trials", trials * 20)


async def after_all(path: Path) -> list[bytes]:
    """Put one more message, and return what is there."""
    async with aiodq.open(path) as store:
        topic = store.topic("t")
        await topic.put(b"after all")
        assert topic.stats().damages == 0
        return bodies(drain(topic.channel("c")))


WITHOUT_DESCRIPTORS = """
import asyncio, os, random, resource, sys
import aiodq

rng = random.Random(int(sys.argv[2]))

def number(): return len(os.listdir("/proc/self/fd"))

async def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with aiodq.open(sys.argv[1]) as store:
        await store.queue("q").put(b"before")
    before, refused = number(), 0
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    while refused < int(sys.argv[3]):
        # The loop's own descriptors are open; what is left is for the store's, or runs out in the middle of it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + rng.randint(1, 12), soft), hard))
        try:
            async with asyncio.timeout(30), aiodq.open(sys.argv[1]) as store:
                for name in "ab":
                    await store.topic(f"t{rng.randrange(20)}").put(b"x")
                    store.queue("q").get_nowait().release()
        except aiodq.QueueEmpty:
            continue
        except aiodq.StorageError as error:
            assert error.errno == 24 and (error.retriable or isinstance(error, aiodq.StoreFailedError)), repr(error)
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(refused, number() - before)

asyncio.run(main())
"""


def refused_descriptors(path: Path, seed: int, number: int) -> list[int]:
    seconds = max(number / 100, 1) * WATCHDOG
    said = script(WITHOUT_DESCRIPTORS, path, seed, number, limit=("RLIMIT_NOFILE", 64), seconds=seconds)
    return [int(word) for word in said.split()]


def test_no_descriptor_is_left_by_failures_for_want_of_them(tmp_path: Path, seed: int, record_property: Record) -> None:
    assert refused_descriptors(tmp_path / "store", seed, 40) == [40, 0]
    assert asyncio.run(left_in(tmp_path / "store")) == [b"before"]
    record_property("trials", 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_descriptor_is_left_by_a_thousand_failures_for_want_of_them(
    tmp_path: Path, seed: int, record_property: Record
) -> None:
    assert refused_descriptors(tmp_path / "store", seed, 1000) == [1000, 0]
    record_property("trials", 1000)


async def left_in(path: Path) -> list[bytes]:
    async with aiodq.open(path) as store:
        queue = store.queue("q")
        await queue.topic.settle_in()
        return bodies(drain(queue))


REPAIRED_AS_SOMEBODY_ELSE = """
import os, sys
from aiodq.cli.commands.check import repair, verify

verify(sys.argv[2])  # which imports all that is needed
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
print(*(command(sys.argv[2]) for command in (verify, repair, verify)))
"""


async def test_a_repair_says_what_it_may_not_touch_and_does_the_rest(reachable: Path) -> None:
    store = reachable / "store"
    await fill(store, 5)
    description = store / "queue" / "topic.json"
    description.write_bytes(b"{")
    for path in (store, *store.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    journal = next(store.rglob("journal"))
    os.chown(journal, 0, 0)
    journal.chmod(0o600)
    said = script(REPAIRED_AS_SOMEBODY_ELSE, NOBODY, store).splitlines()
    assert said[-1] == "1 1 1"
    assert "1 thing done, 1 left alone" in said
    assert "1 damage, which aiodq repair leaves to you" in said[-2]
    assert any(line.startswith(f"{journal}: left alone") for line in said)
    os.chown(journal, NOBODY, NOBODY)
    assert await left(store) == [b"1", b"2", b"3", b"4"]
