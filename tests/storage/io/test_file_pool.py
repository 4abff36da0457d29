"""Files that are closed while they are idle: nothing is forgotten, nothing is hidden, and descriptors never run out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from aiodq.storage.io import file_pool as pool
from aiodq.storage.io.file_pool import PooledFile, PooledFileSystem, is_ready
from aiodq.testing import WatchedFileSystem
from tests.processes import ROOT, WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File
    from aiodq.testing import Gate


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_limit", lambda: 3)


@pytest.fixture
def spy() -> WatchedFileSystem:
    return WatchedFileSystem()


@pytest.fixture
def fs(spy: WatchedFileSystem) -> Iterator[PooledFileSystem]:
    files = PooledFileSystem(spy, frozenset({"careless"}))
    yield files
    files.retire()


def held_up(gate: Gate) -> None:
    """Wait until somebody is."""
    end = time.monotonic() + WATCHDOG
    while not gate.reached and time.monotonic() < end:
        time.sleep(0.001)
    assert gate.reached


def made(fs: PooledFileSystem, directory: Path, *names: str) -> list[File]:
    files = []
    for name in names:
        file = fs.open(str(directory / name), create=True)
        file.write_at([name.encode()], 0)
        file.sync()
        files.append(file)
    return files


def below(fs: PooledFileSystem, directory: Path) -> tuple[PooledFile, File]:
    """Return a file and what is open for it."""
    (file,) = made(fs, directory, "f")
    assert isinstance(file, PooledFile)
    assert file.file is not None
    return file, file.file


def test_no_more_are_open_and_all_can_be_used(fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path) -> None:
    names = [f"f{number:02}" for number in range(20)]
    files = made(fs, tmp_path, *names)
    assert spy.open_files == 3
    for _ in range(2):
        for name, file in zip(names, files, strict=True):
            assert file.read_at(10, 0) == name.encode()
            file.write_at([b"!"], 3)
            file.write_at([name.encode()], 0)
            file.truncate(3)
            assert file.size() == 3
            assert spy.open_files <= 3
    for file in files:
        file.close()
        file.close()
    assert spy.open_files == 0
    with pytest.raises(OSError, match="descriptor"):
        files[0].size()


def test_the_least_lately_used_goes_first_and_before_it_what_is_synced(fs: PooledFileSystem, tmp_path: Path) -> None:
    first, second, third = made(fs, tmp_path, "a", "b", "c")
    first.write_at([b"more"], 0)
    third.read_at(1, 0)
    made(fs, tmp_path, "d")
    assert [is_ready(file) for file in (first, second, third)] == [True, False, True]
    second.read_at(1, 0)
    assert [is_ready(file) for file in (first, second, third)] == [True, True, False]


def test_what_is_written_is_synced_before_it_is_closed(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path
) -> None:
    files = made(fs, tmp_path, "a", "b", "c")
    for file in files:
        file.write_at([b"unsynced"], 0)
    since = len(spy.passed)
    made(fs, tmp_path, "d")
    assert [os.path.basename(call.path) for call in spy.named("sync", since=since)] == ["a", "d"]
    files[0].read_at(1, 0)
    since = len(spy.passed)
    made(fs, tmp_path, "e")
    assert [os.path.basename(call.path) for call in spy.named("sync", since=since)] == ["e"]


def test_what_is_written_beside_a_sync_is_not_taken_for_synced(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path
) -> None:
    (file,) = made(fs, tmp_path, "a")
    file.write_at([b"first"], 0)
    gate = spy.gate("sync", match=str(tmp_path / "a"))
    thread = threading.Thread(target=file.sync)
    thread.start()
    held_up(gate)
    file.write_at([b"second"], 5)
    gate.open()
    thread.join()
    spy.heal()
    since = len(spy.passed)
    for number in range(4):
        made(fs, tmp_path, f"b{number}")
    assert "a" not in [os.path.basename(call.path) for call in spy.named("sync", since=since)]  # others go first
    assert isinstance(file, PooledFile)
    assert file.dirty


def test_what_nobody_relies_on_is_not_synced(fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path) -> None:
    (file,) = made(fs, tmp_path, "careless")
    file.write_at([b"late, never early"], 0)
    since = len(spy.passed)
    made(fs, tmp_path, "a", "b", "c")
    assert not is_ready(file)
    assert [os.path.basename(call.path) for call in spy.named("sync", since=since)] == ["a", "b", "c"]
    assert file.read_at(100, 0) == b"late, never early"


@pytest.mark.parametrize("kind", ["sync", "close"])
def test_an_error_at_closing_is_told_to_all_who_rely_on_it(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    files = made(fs, tmp_path, "a", "b", "c")
    for file in files:
        file.write_at([b"unsynced"], 0)
    if kind == "sync":
        spy.fail(errno.EIO, "sync", match=str(tmp_path / "a"), times=1)
    else:
        real = os.close

        def failing(fd: int) -> None:
            real(fd)
            monkeypatch.setattr(os, "close", real)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "close", failing)
    made(fs, tmp_path, "d")
    assert not is_ready(files[0])
    for _ in range(2):
        for use in (files[0].sync, lambda: files[0].write_at([b"x"], 0), lambda: files[0].truncate(0)):
            with pytest.raises(OSError, match="Input/output"):
                use()
    assert files[0].read_at(8, 0) == b"unsynced"
    with pytest.raises(OSError, match="Input/output"):
        files[0].close()
    for file in files[1:]:
        file.sync()


def test_a_file_that_somebody_changed_meanwhile_is_not_used(fs: PooledFileSystem, tmp_path: Path) -> None:
    (file,) = made(fs, tmp_path, "a")
    made(fs, tmp_path, "b", "c", "d")
    with open(tmp_path / "a", "ab") as other:
        other.write(b"from somebody else")
    with pytest.raises(OSError, match="another program") as caught:
        file.write_at([b"x"], 0)
    assert caught.value.errno == errno.ESTALE
    with pytest.raises(OSError, match="another program"):
        file.sync()


def test_a_file_that_cannot_be_looked_at_when_it_is_opened_again_is_not_left_open(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path
) -> None:
    (file,) = made(fs, tmp_path, "a")
    made(fs, tmp_path, "b", "c", "d")
    assert not is_ready(file)
    spy.fail(errno.EIO, "size", match=str(tmp_path / "a"), times=5)
    for _ in range(5):
        with pytest.raises(OSError, match="Input/output"):
            file.read_at(1, 0)
        assert spy.open_files <= 3
    assert file.read_at(1, 0) == b"a"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_an_idle_file_is_synced_also_where_no_descriptor_is_free(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path, error: int
) -> None:
    (file,) = made(fs, tmp_path, "a")
    made(fs, tmp_path, "b", "c", "d")
    assert not is_ready(file)
    spy.fail(error, "open", match=str(tmp_path / "a"))
    file.sync()
    with pytest.raises(OSError, match="open files"):
        file.write_at([b"x"], 0)


def test_a_file_in_use_is_not_closed(fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path) -> None:
    (file,) = made(fs, tmp_path, "a")
    gate = spy.gate("read", match=str(tmp_path / "a"))
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(file.read_at(1, 0)))
    thread.start()
    held_up(gate)
    made(fs, tmp_path, "b", "c", "d", "e")
    assert is_ready(file)
    gate.open()
    thread.join()
    assert found == [b"a"]


def test_where_no_descriptor_is_free_one_is_made_so(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path
) -> None:
    made(fs, tmp_path, "a", "b")
    spy.fail(errno.EMFILE, "create", "listdir", "sync_directory", times=1)
    made(fs, tmp_path, "c")
    assert spy.open_files == 2
    spy.fail(errno.ENFILE, "listdir", times=1)
    assert fs.listdir(str(tmp_path)) == ["a", "b", "c"]
    assert spy.open_files == 1
    spy.fail(errno.EMFILE, "listdir")
    with pytest.raises(OSError, match="open files"):
        fs.listdir(str(tmp_path))


def test_used_by_many_threads(fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(12)]
    files = made(fs, tmp_path, *names)
    wrong: list[object] = []

    def work(turn: int) -> None:
        for number in range(60):
            name, file = names[(number * 5 + turn) % 12], files[(number * 5 + turn) % 12]
            file.write_at([name.encode()], 0)
            if number % 7 == 0:
                file.sync()
            if file.read_at(len(name), 0) != name.encode():
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for file in files:
        file.close()
    assert spy.open_files == 0


MANY = """
import asyncio, os, resource, sys
import aiodq
from aiodq.testing import WatchedFileSystem

path, topics, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
names = [f"t{number}" for number in range(topics)]

async def main():
    fs = WatchedFileSystem()  # it syncs nothing to the device, which is not what is tried here
    async with aiodq.open(path, fs=fs) as store:
        for turn in range(2):
            for start in range(0, topics, 200):
                some = names[start : start + 200]
                if not turn:
                    for name in some:
                        store.queue(name)
                await asyncio.gather(*(store.topic(name).put_many([b"%d" % turn, name.encode()]) for name in some))
                fs.passed.clear()
        for name in names[:: max(topics // 50, 1)]:
            message = await store.queue(name).get()
            assert message.body == b"0"
            await message.ack()
        assert len(os.listdir("/proc/self/fd")) < limit
    async with aiodq.open(path, fs=fs) as store:
        for number, name in enumerate(names):
            queue = store.queue(name)
            first = [] if number % max(topics // 50, 1) == 0 else [b"0"]
            assert queue.qsize() == 4 - (not first), (name, queue.qsize())
            if number % max(topics // 300, 1) == 0:
                messages = await queue.get_many(4)
                assert [message.body for message in messages] == [*first, name.encode(), b"1", name.encode()]
                for message in messages:
                    message.ack_nowait()
        fs.passed.clear()
    assert fs.open_files == 0
    print("done")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("topics", "limit"), [(120, 40), pytest.param(10_000, 256, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_many_topics_with_few_descriptors(topics: int, limit: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path / "store"), str(topics), str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]


def crowd_out(fs: PooledFileSystem, directory: Path) -> None:
    """Use so many others that those before are closed."""
    directory.mkdir(exist_ok=True)
    for name in "abc":
        (file,) = made(fs, directory, name)
        file.write_at([b"!"], 0)


def test_what_is_written_without_a_lock_is_synced_before_it_is_closed(
    fs: PooledFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = made(fs, tmp_path, "f")
    assert isinstance(file, PooledFile)
    assert file.file is not None
    assert file.write_alone(b"22", 0) == 2
    assert file in fs.clean, "nobody had reason to look"
    synced: list[bool] = []
    monkeypatch.setattr(file.file, "sync", lambda: synced.append(True))
    crowd_out(fs, tmp_path)
    crowd_out(fs, tmp_path / "again")
    assert file.file is None
    assert synced == [True]
    assert file.write_alone(b"3", 0) == -1, "it is to be opened first, which takes a lock"
    assert file.read_at(2, 0) == b"22"
    assert file.write_alone(b"3", 1) == 1
    assert file.read_at(2, 0) == b"23"
    file.close()
    assert file.write_alone(b"4", 0) == -1


def test_a_sync_does_not_cover_what_is_written_without_a_lock_while_it_runs(
    fs: PooledFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, open_file = below(fs, tmp_path)
    sync = open_file.sync

    def and_meanwhile() -> None:
        sync()
        assert file.write_alone(b"2", 0) == 1

    monkeypatch.setattr(open_file, "sync", and_meanwhile)
    file.sync()
    assert file.dirty


def test_no_file_is_closed_amid_a_write_that_locks_nothing(
    fs: PooledFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, open_file = below(fs, tmp_path)
    write_at = open_file.write_at

    def crowded(buffers: Sequence[BytesLike], position: int) -> int:
        for name in ("one", "two", "three"):
            crowd_out(fs, tmp_path / name)
        assert file.file is open_file
        return write_at(buffers, position)

    monkeypatch.setattr(open_file, "write_at", crowded)
    assert file.write_alone(b"2", 0) == 1
    assert file.read_at(1, 0) == b"2"


def test_an_owner_that_closes_waits_for_a_write_that_locks_nothing(
    fs: PooledFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, open_file = below(fs, tmp_path)
    write_at, closing = open_file.write_at, threading.Thread(target=file.close)

    def slow(buffers: Sequence[BytesLike], position: int) -> int:
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        return write_at(buffers, position)

    monkeypatch.setattr(open_file, "write_at", slow)
    assert file.write_alone(b"2", 0) == 1
    closing.join()
    assert file.closed


def test_an_owner_that_waits_for_such_a_write_waits_for_who_closes_the_file_meanwhile_too(
    fs: PooledFileSystem, tmp_path: Path
) -> None:
    (file,) = made(fs, tmp_path, "f")
    assert isinstance(file, PooledFile)
    file.writing = True
    closing = threading.Thread(target=file.close)
    closing.start()
    while not file.closed:
        time.sleep(0.001)
    with fs.mutex:
        file.writing = False
        file.used = False
        assert file.claimed()
    closing.join(0.05)
    assert closing.is_alive()
    file.lay_down()
    fs.settled(file)
    closing.join()
    assert file.file is None


class Kernel:
    """What syncs by itself: knows which files it was given, and refuses them if told to."""

    def __init__(self) -> None:
        self.given: list[File] = []
        self.refuses = False

    def submit(self, file: File) -> None:
        if self.refuses:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.given.append(file)


def begun(fs: PooledFileSystem, directory: Path) -> tuple[PooledFile, Kernel]:
    """Return a file that holds something, and of which a sync has begun that goes on by itself."""
    (file,) = made(fs, directory, "f")
    assert isinstance(file, PooledFile)
    file.write_at([b"2"], 0)
    assert file in fs.dirty
    kernel = Kernel()
    assert file.begin_sync(kernel.submit)
    assert kernel.given == [file.file]
    return file, kernel


@pytest.mark.parametrize("synced", [True, False])
def test_a_sync_that_goes_on_by_itself_counts_once_it_has_ended(
    fs: PooledFileSystem, tmp_path: Path, *, synced: bool
) -> None:
    file, _ = begun(fs, tmp_path)
    assert file in fs.dirty
    file.end_sync(synced=synced)
    assert (file in fs.clean, file in fs.dirty, file.dirty) == (synced, not synced, not synced)


def test_what_is_written_during_a_sync_that_goes_on_by_itself_is_not_covered(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path
) -> None:
    file, _ = begun(fs, tmp_path)
    file.write_at([b"3"], 0)
    file.end_sync(synced=True)
    assert file in fs.dirty
    before = spy.calls["sync"]
    crowd_out(fs, tmp_path)
    assert file.file is None
    # Each of the three others is synced when it is made.
    assert spy.calls["sync"] == before + 4


def test_what_is_written_once_such_a_sync_was_submitted_is_not_covered(fs: PooledFileSystem, tmp_path: Path) -> None:
    (file,) = made(fs, tmp_path, "f")
    assert isinstance(file, PooledFile)
    assert file.begin_sync(lambda _: file.write_alone(b"2", 0))
    file.end_sync(synced=True)
    assert (file.dirty, file in fs.dirty) == (True, True)


def test_a_file_that_is_laid_down_during_such_a_sync_is_opened_again(fs: PooledFileSystem, tmp_path: Path) -> None:
    file, kernel = begun(fs, tmp_path)
    crowd_out(fs, tmp_path)
    assert file.file is None
    assert not file.begin_sync(kernel.submit)
    file.end_sync(synced=True)
    assert file.read_at(1, 0) == b"2"
    assert file in fs.clean
    file.close()
    file.end_sync(synced=True)
    assert file not in fs.clean


def test_a_sync_that_is_not_begun_changes_nothing(fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path) -> None:
    (file,) = made(fs, tmp_path, "f")
    assert isinstance(file, PooledFile)
    file.write_at([b"2"], 0)
    kernel = Kernel()
    kernel.refuses = True
    assert not file.begin_sync(kernel.submit)
    assert file.dirty
    before = spy.calls["sync"]
    file.sync()
    assert spy.calls["sync"] == before + 1
    kernel.refuses = False
    file.close()
    assert not file.begin_sync(kernel.submit)


def test_a_failure_that_is_known_is_told_by_the_sync_itself(
    fs: PooledFileSystem, spy: WatchedFileSystem, tmp_path: Path
) -> None:
    (file,) = made(fs, tmp_path, "f")
    assert isinstance(file, PooledFile)
    file.write_at([b"2"], 0)
    spy.fail(errno.EIO, "sync", match=str(tmp_path / "f"), times=1)
    crowd_out(fs, tmp_path)
    file.read_at(1, 0)
    assert file.ready
    assert not file.begin_sync(Kernel().submit)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.sync()
