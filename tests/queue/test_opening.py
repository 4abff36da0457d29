"""Whether a store is made, waiting for one that somebody else has, and the messages for those who open it wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import math
import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

import anyio
import pytest

import aiodq
from aiodq.storage.io.filesystem import name_exists
from aiodq.testing import SimulatedFileSystem, WatchedFileSystem
from tests.processes import killed_at_last
from tests.queue.support import Tasks, queue, ready_now, soon, store, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aiodq.storage.io.filesystem import FileSystem

OWNER = """
import asyncio, sys
import aiodq

async def main():
    async with aiodq.open_queue(sys.argv[1]) as queue:
        await queue.put(b"from the owner")
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("closed", flush=True)

asyncio.run(main())
"""


@contextlib.contextmanager
def owner(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run another process that has the store open until a line comes."""
    command = [sys.executable, "-c", OWNER, str(path)]
    with killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        yield child


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event that is set when an attempt to open has ended in vain."""
    waiting = asyncio.Event()

    async def noticed(delay: float) -> None:
        waiting.set()
        await asyncio.sleep(delay)

    monkeypatch.setattr("aiodq.engine.lock_wait._sleep", noticed)
    return waiting


async def test_a_store_has_its_lock_durably_before_it_has_a_topic() -> None:
    disk = SimulatedFileSystem()
    async with aiodq.open("/s", fs=disk):
        # After a power cut, a half-created topic in a directory without it would be anything.
        assert "/s/LOCK" in disk.durable()


class TestCreate:
    @pytest.mark.parametrize("opening", [aiodq.open, aiodq.open_queue])
    async def test_a_missing_path_is_not_made(self, path: Path, opening: Callable[..., Any]) -> None:
        path = path / "deeper"
        with pytest.raises(aiodq.StoreNotFoundError, match=r"nothing under this path.*create=False.*mounted") as caught:
            await opening(path, create=False)
        assert caught.value.path == str(path)
        assert not path.exists()

    @pytest.mark.parametrize("inside", [(), ("lost+found",)])
    async def test_an_empty_directory_is_not_made_a_store(self, path: Path, inside: tuple[str, ...]) -> None:
        path.mkdir()
        for name in inside:
            (path / name).mkdir()
        with pytest.raises(aiodq.StoreNotFoundError, match=r"this directory is empty.*create=False.*mounted"):
            await aiodq.open(path, create=False)
        assert os.listdir(path) == list(inside)

    async def test_a_store_is_opened_also_without_a_topic(self, path: Path) -> None:
        async with store(path):
            pass
        async with aiodq.open(path, create=False) as opened:
            await opened.topic("a").put(b"1")
        async with aiodq.open(path, create=False) as opened:
            assert opened.topics() == ["a"]

    async def test_a_copy_without_its_lock_is_a_store(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        (path / "LOCK").unlink()
        async with aiodq.open_queue(path, create=False) as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_what_is_no_store_is_said_to_be_none(self, path: Path) -> None:
        path.mkdir()
        (path / "README").write_text("mine")
        with pytest.raises(aiodq.NotAStoreError):
            await aiodq.open(path, create=False)

    async def test_a_file_is_no_store(self, path: Path) -> None:
        path.write_text("mine")
        with pytest.raises(aiodq.NotAStoreError, match="no directory"):
            await aiodq.open(path, create=False)

    @pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
    async def test_a_file_does_not_become_one(self, path: Path, mode: Any) -> None:
        path.write_text("mine")
        with pytest.raises(aiodq.NotAStoreError, match="no directory") as caught:
            await aiodq.open(path, mode=mode)
        assert caught.value.path == str(path)
        assert path.read_text() == "mine"


class TestStoresInStores:
    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    @pytest.mark.parametrize("name", ["jobs", "#staging", "jobs#deleted", "jobs/inner", "jobs/more/inner"])
    async def test_a_store_is_not_opened_in_what_is_anothers_own(self, path: Path, name: str, mode: Any) -> None:
        async with aiodq.open(path) as store:
            await store.topic("jobs").put(b"x")
        there = (path / name).exists()
        with pytest.raises(aiodq.NotAStoreError, match="outside") as caught:
            await aiodq.open(path / name, mode=mode)
        assert caught.value.path == str(path / name)
        assert f"of the store {path}," in str(caught.value)
        assert (path / name).exists() == there

    async def test_nor_is_one_that_is_there(self, path: Path, tmp_path: Path) -> None:
        for place in (path, tmp_path / "other"):
            async with aiodq.open(place) as store:
                await store.topic("jobs").put(b"x")
        (tmp_path / "other").rename(path / "jobs" / "other")
        with pytest.raises(aiodq.NotAStoreError, match="inside 'jobs' of the store"):
            await aiodq.open(path / "jobs" / "other")

    async def test_beside_the_topics_of_another_it_is(self, path: Path) -> None:
        async with aiodq.open(path) as store, aiodq.open(path / "inner") as inner:
            assert await store.topic("jobs").put(b"x") == 0
            assert await inner.topic("jobs").put(b"y") == 0
            with pytest.raises(aiodq.StorageError):
                await store.topic("inner").put(b"z")
            with pytest.raises(aiodq.AiodqError):
                await store.delete_topic("inner")
        for place, body in ((path, b"x"), (path / "inner", b"y")):
            async with aiodq.open(place) as store:
                assert [message.body async for message in store.topic("jobs").scan()] == [body]

    async def test_one_without_a_topic_is_still_a_store(self, path: Path) -> None:
        async with aiodq.open(path):
            pass
        async with aiodq.open(path / "inner") as inner:
            await inner.topic("jobs").put(b"y")
        async with aiodq.open(path) as store:
            assert store.topics() == []
            await store.topic("jobs").put(b"x")

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    async def test_so_is_one_whose_last_topic_was_deleted_beside_a_strangers_file(self, path: Path, mode: Any) -> None:
        async with aiodq.open(path) as store:
            await store.topic("jobs").put(b"x")
            (path / "README").write_text("mine")
            await store.delete_topic("jobs")
        assert aiodq.open_reader(path).topics() == []
        async with aiodq.open(path, create=False, mode=mode) as store:
            assert await store.topic("jobs").put(b"y") == 0
        assert (path / "README").read_text() == "mine"

    @pytest.mark.parametrize("written", [b"", b"17\n", b" -", b" x\nhost\n"])
    async def test_another_programs_lock_makes_no_store(self, path: Path, written: bytes) -> None:
        path.mkdir()
        (path / "LOCK").write_bytes(written)
        (path / "CURRENT").write_text("mine")
        with pytest.raises(aiodq.NotAStoreError, match="holds no topic"):
            await aiodq.open(path)
        assert (path / "LOCK").read_bytes() == written
        async with aiodq.open(path / "queue") as store:
            await store.topic("jobs").put(b"x")


class TestWaiting:
    async def test_the_error_names_the_owner_and_says_what_to_do(self, path: Path) -> None:
        with owner(path) as child:
            with pytest.raises(aiodq.StoreLockedError) as caught:
                await aiodq.open(path)
            assert caught.value.pid == child.pid
            wanted = (f"process {child.pid} on ", "aiodq.open(path, wait=seconds)", "or stop it", 'mode="shared"')
            for words in wanted:
                assert words in str(caught.value)

    async def test_opened_once_the_owner_lets_go(self, path: Path, tasks: Tasks, refused: asyncio.Event) -> None:
        with owner(path) as child:
            opening = tasks.start(aiodq.open_queue(path, wait=timedelta(minutes=1))._open())
            await soon(refused.wait())
            assert not opening.done()
            child.communicate(b"\n", timeout=60)
            jobs = await soon(opening)
            assert ready_now(jobs) == [b"from the owner"]
            await jobs.aclose()

    async def test_opened_once_the_owner_is_killed(self, path: Path, tasks: Tasks, refused: asyncio.Event) -> None:
        with owner(path) as child:
            opening = tasks.start(aiodq.open_queue(path, wait=3600)._open())
            await soon(refused.wait())
            child.kill()
            jobs = await soon(opening)
            assert ready_now(jobs) == [b"from the owner"]
            await jobs.aclose()

    async def test_cancelled_while_it_waits(self, path: Path, tasks: Tasks, refused: asyncio.Event) -> None:
        with owner(path) as child:
            opening = tasks.start(aiodq.open(path, wait=60)._open())
            await soon(refused.wait())
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await soon(opening)
            child.communicate(b"\n", timeout=60)
        async with aiodq.open(path) as opened:
            assert opened.topics() == ["queue"]

    async def test_an_open_that_was_cancelled_here_is_waited_for(
        self, path: Path, tasks: Tasks, refused: asyncio.Event
    ) -> None:
        async with store(path) as opened:
            await opened.topic("jobs").put(b"a")
        fs = WatchedFileSystem()
        gate = fs.gate("open", match="topic.json")
        opening = tasks.start(aiodq.open(path, fs=fs)._open())
        await gate.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(opening)
        again = tasks.start(aiodq.open(path)._open())
        await soon(refused.wait())
        gate.open()
        opened = await soon(again)
        with pytest.raises(aiodq.StoreLockedError, match="use that object"):
            await aiodq.open(path)
        await opened.aclose()
        assert fs.open_files == 0

    async def test_the_time_is_over(self, path: Path) -> None:
        async with store(path):
            with pytest.raises(aiodq.StoreLockedError, match=r"waited 0\.01 s") as caught:
                await aiodq.open(path, wait=0.01)
        assert caught.value.pid == os.getpid()

    async def test_the_loop_is_free_meanwhile_and_attempts_are_few(
        self, path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float] = []

        async def quick(delay: float) -> None:
            pauses.append(delay)
            await asyncio.sleep(0)

        monkeypatch.setattr("aiodq.engine.lock_wait._sleep", quick)
        async with aiodq.open(path) as first:
            opening = tasks.start(aiodq.open(path, wait=3600)._open())
            await until(lambda: len(pauses) >= 10)
            assert await first.topic("a").put(b"the owner goes on") == 0
        second = await soon(opening)
        await second.aclose()
        assert pauses[:10] == sorted(pauses[:10])
        assert pauses[0] >= 0.01
        assert max(pauses) == pauses[9] >= 0.1

    async def test_a_close_lets_the_one_in_this_process_in_that_waits(self, path: Path, tasks: Tasks) -> None:
        first = await aiodq.open_queue(path)
        await first.put(b"a")
        opening = tasks.start(aiodq.open_queue(path, wait=60)._open())
        await asyncio.sleep(0)
        await first.aclose()
        second = await soon(opening)
        assert ready_now(second) == [b"a"]
        await second.aclose()

    @pytest.mark.parametrize("wait", [-1, math.nan, math.inf, "30", None, True, timedelta(seconds=-1)])
    async def test_what_is_no_time_to_wait(self, path: Path, wait: Any) -> None:
        for opening in (aiodq.open, aiodq.open_queue):
            with pytest.raises(aiodq.InvalidOptionError, match=r"wait is a .*write wait=30 or wait=timedelta"):
                opening(path, wait=wait)

    async def test_create_is_a_truth_value(self, path: Path) -> None:
        with pytest.raises(aiodq.InvalidOptionError, match=r"create is True or False, not 'no'"):
            aiodq.open(path, create="no")  # type: ignore[arg-type]  # a user's slip


class TestMessages:
    async def test_two_opens_in_one_process(self, path: Path) -> None:
        async with store(path):
            with pytest.raises(aiodq.StoreLockedError) as caught:
                await aiodq.open(path)
            assert caught.value.pid == os.getpid()
            assert f"open in process {os.getpid()} on " in str(caught.value)
            assert "which is this one: use that object, close it first" in str(caught.value)
            assert "await store.aclose()" in str(caught.value)

    @pytest.mark.parametrize("given", ["~", "~/jobs", "~nobody/jobs"])
    async def test_a_tilde_is_not_taken_for_a_directory(self, given: str, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.chdir(tmp_path)
        for opening in (aiodq.open, aiodq.open_queue, aiodq.open_reader):
            with pytest.raises(aiodq.InvalidOptionError, match=r"os\.path\.expanduser\('~"):
                opening(given)
        assert os.listdir() == []

    async def test_a_directory_that_is_called_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        async with aiodq.open_queue("./~jobs") as jobs:
            await jobs.put(b"a")
        async with aiodq.open_queue("~jobs") as jobs:
            assert ready_now(jobs) == [b"a"]

    @pytest.mark.parametrize("name", ["topic", "queue", "aclose", "path"])
    async def test_a_store_that_was_not_awaited(self, path: Path, name: str) -> None:
        with pytest.raises(aiodq.NotAwaitedError) as caught:
            getattr(aiodq.open(path), name)
        call = f"aiodq.open({str(path)!r})"
        assert str(caught.value) == (
            f'{call} is not open yet: write "async with {call} as store:" or "store = await {call}", '
            f"and then store.{name}"
        )
        assert not path.exists()

    @pytest.mark.parametrize("name", ["put", "get", "put_nowait", "qsize", "consume"])
    async def test_a_queue_that_was_not_awaited(self, path: Path, name: str) -> None:
        with pytest.raises(aiodq.NotAwaitedError, match=rf"queue = await aiodq\.open_queue.*and then queue\.{name}$"):
            getattr(aiodq.open_queue(path), name)

    async def test_iterating_over_a_queue_that_was_not_awaited(self, path: Path) -> None:
        opening: Any = aiodq.open_queue(path)
        with pytest.raises(aiodq.NotAwaitedError, match="and then async for message in queue"):
            async for _ in opening:
                pass

    async def test_an_attribute_that_neither_has(self, path: Path) -> None:
        for opening in (aiodq.open(path), aiodq.open_queue(path)):
            for name in ("putt", "_private", "__len__"):
                assert not hasattr(opening, name)
            with pytest.raises(AttributeError, match="'putt'") as caught:
                getattr(opening, "putt")  # noqa: B009 - a user's slip that a type checker would find
            assert not isinstance(caught.value, aiodq.NotAwaitedError)
            await self.opened_and_closed(opening)

    async def opened_and_closed(self, opening: Any) -> None:
        async with opening:
            pass

    @pytest.mark.parametrize("call", ["open", "open_queue"])
    def test_one_that_is_never_awaited_warns(self, path: Path, call: str) -> None:
        with pytest.warns(RuntimeWarning, match=rf"aiodq\.{call}\('.*'\) was never awaited"):
            getattr(aiodq, call)(path)
            gc.collect()
        assert not path.exists()

    async def test_one_that_failed_to_open_does_not_warn(self, path: Path) -> None:
        path.write_text("mine")
        with warnings.catch_warnings(record=True, action="always") as caught:
            with pytest.raises(aiodq.StorageError):
                await aiodq.open(path)
            with pytest.raises(aiodq.StorageError):
                async with aiodq.open_queue(path):
                    pass
            with pytest.raises(aiodq.StorageError):
                aiodq.open("")
            gc.collect()
        assert caught == []

    def test_without_asyncio_as_under_trio(self, path: Path) -> None:
        with pytest.raises(aiodq.WrongContextError, match=r"no asyncio event loop .* asyncio\.run\(main\(\)\).* trio"):
            aiodq.open_queue(path)._open().send(None)
        assert not path.exists()

    async def test_from_another_thread(self, path: Path) -> None:
        async with store(path) as opened:
            topic, told = opened.topic("a"), list[Exception]()

            def elsewhere() -> None:
                try:
                    topic.put_nowait(b"a")
                except aiodq.WrongContextError as error:
                    told.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert "asyncio.run_coroutine_threadsafe(topic.put(body), loop).result()" in str(told[0])
            loop = asyncio.get_running_loop()
            advised = await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(topic.put(b"a"), loop).result())
            assert advised == 0

    async def test_from_another_loop(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")

            async def elsewhere() -> None:
                await topic.put(b"a")

            with pytest.raises(aiodq.WrongContextError, match=r"opened on another event loop .* asyncio\.run"):
                await asyncio.to_thread(asyncio.run, elsewhere())


async def test_somebody_else_makes_the_directory_meanwhile(tmp_path: Path) -> None:
    """As of several workers, of which each finds none and makes it."""
    path = tmp_path / "s"

    def look(fs: FileSystem, name: str) -> bool:
        path.mkdir(exist_ok=True)
        return name_exists(fs, name)

    with mock.patch("aiodq.engine.store.opening.name_exists", look):
        async with aiodq.open(path) as opened:
            await opened.queue("jobs").put(b"a")


async def test_each_directory_is_synced_once_however_many_topics_are_opened(path: Path) -> None:
    async with store(path) as opened:
        for topic in "abcde":
            await opened.queue(topic).put(b"x")
    fs = WatchedFileSystem()
    async with store(path, fs=fs):
        synced = Counter(each.path for each in fs.named("sync_directory"))
    for topic in "abcde":
        assert (synced[f"{path / topic}"], synced[f"{path / topic / 'channels'}"]) == (1, 1)
    assert synced[f"{path}"] == 1


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_what_cannot_be_loaded_for_want_of_descriptors_is_told_when_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Literal["exclusive", "shared"]
) -> None:
    """The first store of a process loads a part of anyio; afterwards it would be the open store that stops."""

    def exhausted() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "anyio/_backends")

    with monkeypatch.context() as patched:
        patched.setattr(anyio, "create_task_group", exhausted)
        with pytest.raises(aiodq.StorageError, match="too many open files") as caught:
            await aiodq.open(tmp_path / "s", mode=mode)
    assert caught.value.errno == errno.EMFILE
    assert caught.value.path == str(tmp_path / "s")
    async with aiodq.open(tmp_path / "s", mode=mode) as opened:
        assert await opened.topic("jobs").put(b"a") == 0


EXHAUSTED = """
import asyncio, os, resource, sys
import aiodq

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    for mode in ("shared", "client", "exclusive"):
        try:
            await aiodq.open(sys.argv[1], mode=mode)
        except aiodq.StorageError as error:
            print(mode, error.errno, error.path)
    for descriptor in taken:
        os.close(descriptor)
    for mode in ("exclusive", "shared"):
        async with aiodq.open(sys.argv[1], mode=mode) as store:
            print(await store.topic("jobs").put(b"a"))

asyncio.run(main())
"""


def test_a_process_without_descriptors_is_told_so_in_every_mode(tmp_path: Path) -> None:
    """What is loaded only for a shared store cannot be loaded either."""
    path = tmp_path / "s"
    path.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", EXHAUSTED, str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        [mode, str(errno.EMFILE)] for mode in ("shared", "client", "exclusive")
    ]
    assert all(str(path) in line for line in lines[:3])
    assert lines[3:] == ["0", "1"]
