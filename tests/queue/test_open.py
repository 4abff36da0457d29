"""Opening: what is made, what is refused, and what is left alone."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.state.channel_files import read_channel
from aiodq.storage.state.watermark import WatermarkFile, read_slot_file
from aiodq.testing import WatchedFileSystem
from tests.queue.support import Tasks, files_under, fill, numbered, queue, ready_now, segments, soon, store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from aiodq.opening import Mode


def promised(path: Path) -> dict[str, bytes]:
    """Return what no failed open may change: all but the owner's note and the watermark, which says the same again."""
    return {name: data for name, data in files_under(path).items() if not name.endswith(("LOCK", "watermark"))}


@pytest.mark.parametrize("seam", ["fs", "clock", "executor"])
async def test_what_cannot_stand_in_for_the_machine_is_refused_before_anything_is_made(path: Path, seam: str) -> None:
    wrong: Any
    for wrong in (4, "os", object()):
        for call in (aiodq.open, aiodq.open_queue):
            with pytest.raises(aiodq.InvalidOptionError, match=f"^{seam} is ") as caught:
                call(path, **{seam: wrong})
            assert isinstance(caught.value, TypeError)
    assert not path.exists()


async def test_a_watermark_of_junk_under_a_right_checksum_leaves_a_store_that_works(path: Path) -> None:
    """Of more messages than an operation of a journal holds it says that they were durable; they are missing."""
    async with queue(path) as jobs:
        await fill(jobs, numbered(3))
    file = path / "queue" / "watermark"
    salt = read_slot_file(WatchedFileSystem(), str(file))[1]
    slots = WatermarkFile(WatchedFileSystem(), str(file))
    slots.write(2**62, salt)
    slots.close()
    for number in range(2):
        async with queue(path) as jobs:
            message = await jobs.get()
            assert message.offset == number
            await message.ack()
            assert await jobs.put(b"later") == 2**62 + number
    image = read_channel(WatchedFileSystem(), str(path / "queue" / "channels" / "default"), 0)
    assert (3, 2**62) in image.image.ranges


class TestMaking:
    async def test_with_makes_a_missing_directory_and_closes_it(self, path: Path) -> None:
        async with aiodq.open_queue(path) as jobs:
            await jobs.put(b"a")
            assert path.is_dir()
        async with aiodq.open(path) as opened:
            assert opened.topics() == ["queue"]

    async def test_await_opens_until_aclose(self, path: Path) -> None:
        jobs = await aiodq.open_queue(path)
        try:
            assert await jobs.put(b"a") == 0
            with pytest.raises(aiodq.StoreLockedError):
                await aiodq.open_queue(path)
        finally:
            await jobs.aclose()
        opened = await aiodq.open(path)
        await opened.aclose()

    async def test_await_then_with(self, path: Path) -> None:
        async with await aiodq.open(path) as opened:
            await opened.topic("a").put(b"1")
        async with await aiodq.open_queue(path) as jobs:
            await jobs.put(b"a")

    async def test_a_directory_that_is_there_and_empty(self, path: Path) -> None:
        path.mkdir()
        async with queue(path) as jobs:
            assert await jobs.put(b"a") == 0

    async def test_nothing_but_the_lock_is_made_before_a_topic_is_used(self, path: Path) -> None:
        async with store(path) as opened:
            opened.topic("named")
            assert opened.topics() == []
        assert os.listdir(path) == ["LOCK"]

    async def test_directories_are_private(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        for found in [path, *path.rglob("*")]:
            assert found.stat().st_mode & 0o777 == (0o700 if found.is_dir() else 0o600), found

    @pytest.mark.parametrize("kind", [str, Path, os.fspath], ids=["str", "Path", "fspath"])
    async def test_kinds_of_path(self, path: Path, kind: Callable[[Path], str | Path]) -> None:
        async with queue(kind(path)) as jobs:
            await jobs.put(b"a")
        assert segments(path)

    @pytest.mark.parametrize("name", ["with space", "100%", "%s%d%n", "ünïcödé", "a#b", "new\nline", "-n", "'\""])
    async def test_odd_names_of_directories(self, tmp_path: Path, name: str) -> None:
        for expected in ([b"a"], [b"a", b"b"]):
            async with queue(tmp_path / name) as jobs:
                await jobs.put(expected[-1])
                assert ready_now(jobs) == expected

    async def test_a_relative_path_from_a_deleted_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "deleted").mkdir()
        monkeypatch.chdir(tmp_path / "deleted")
        (tmp_path / "deleted").rmdir()
        for call in (aiodq.open, aiodq.open_queue, aiodq.open_reader):
            with pytest.raises(
                aiodq.StoreNotFoundError, match="the working directory was deleted: write an absolute one"
            ):
                call("jobs")
        async with aiodq.open(tmp_path / "jobs") as opened:
            await opened.topic("t").put(b"x")

    async def test_a_relative_path_stays_where_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "elsewhere").mkdir()
        async with queue("here", segment_bytes=200) as jobs:
            monkeypatch.chdir(tmp_path / "elsewhere")
            await fill(jobs, numbered(20))
            assert ready_now(jobs) == numbered(20)
        assert len(segments(tmp_path / "here")) > 1
        assert list((tmp_path / "elsewhere").iterdir()) == []

    async def test_through_a_link_it_is_the_same_store(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(path)
        async with queue(path) as jobs:
            await jobs.put(b"a")
            with pytest.raises(aiodq.StoreLockedError):
                await aiodq.open(tmp_path / "link")
        async with queue(tmp_path / "link") as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_a_trailing_slash(self, path: Path) -> None:
        async with queue(f"{path}/") as jobs:
            await jobs.put(b"a")
        assert segments(path)


class TestRefusing:
    @pytest.mark.parametrize("bad", ["", "a\0b"])
    async def test_what_is_no_path(self, bad: str) -> None:
        with pytest.raises(aiodq.StorageError):
            aiodq.open(bad)

    async def test_a_missing_parent(self, tmp_path: Path) -> None:
        with pytest.raises(aiodq.StoreNotFoundError):
            await aiodq.open(tmp_path / "no" / "such")
        assert list(tmp_path.iterdir()) == []

    async def test_a_file(self, path: Path) -> None:
        path.write_text("mine")
        with pytest.raises(aiodq.StorageError):
            await aiodq.open(path)
        assert path.read_text() == "mine"

    @pytest.mark.parametrize("foreign", ["README", "data/x", ".git/config", "a/b.seg.txt"])
    async def test_a_directory_of_something_else(self, path: Path, foreign: str) -> None:
        (path / foreign).parent.mkdir(parents=True)
        (path / foreign).write_text("mine")
        before = files_under(path)
        with pytest.raises(aiodq.NotAStoreError) as caught:
            await aiodq.open_queue(path)
        assert caught.value.path == str(path)
        assert files_under(path) == before

    async def test_a_topic_of_a_newer_version(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
        described = path / "queue" / "topic.json"
        topic = json.loads(described.read_text())["topic"] | {"version": 2, "more": "to come"}
        text = json.dumps(topic, sort_keys=True, separators=(",", ":")).encode()
        described.write_text(json.dumps({"topic": topic, "crc32": f"{zlib.crc32(text):08x}"}))
        await self.refused_untouched(path)

    @pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
    async def test_a_segment_of_a_newer_version(self, path: Path, which: int) -> None:
        async with queue(path, segment_bytes=200) as jobs:
            await fill(jobs, numbered(20))
        found = segments(path)[which]
        data = bytearray(found.read_bytes())
        data[8:10] = (2).to_bytes(2, "little")
        data[60:64] = zlib.crc32(data[:60]).to_bytes(4, "little")
        found.write_bytes(data)
        await self.refused_untouched(path)

    async def test_a_journal_of_a_newer_version(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
        journal = path / "queue" / "channels" / "default" / "journal"
        data = bytearray(journal.read_bytes())
        data[8:12] = (2).to_bytes(4, "little")
        data[20:24] = zlib.crc32(data[:20]).to_bytes(4, "little")
        journal.write_bytes(data)
        await self.refused_untouched(path)

    async def refused_untouched(self, path: Path) -> None:
        before = promised(path)
        fs = WatchedFileSystem()
        for _ in range(2):
            with pytest.raises(aiodq.FormatVersionError) as caught:
                await aiodq.open_queue(path, fs=fs)
            assert caught.value.path.startswith(str(path))
        assert promised(path) == before
        assert fs.open_files == 0

    async def test_an_owned_store_names_its_owner(self, path: Path) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.StoreLockedError) as caught:
                await aiodq.open(path)
            assert caught.value.pid == os.getpid()
            assert caught.value.retriable
            assert str(os.getpid()) in str(caught.value)
            assert await jobs.put(b"the owner goes on") == 0

    async def test_a_store_whose_owner_failed_to_open_is_free(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        fs = WatchedFileSystem()
        fs.fail(errno.EIO, "read", match=".seg")
        with pytest.raises(aiodq.StorageError):
            await aiodq.open(path, fs=fs)
        assert fs.open_files == 0
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]


class TestReadOnly:
    @pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.EPERM])
    async def test_a_missing_store_where_nothing_may_be_written(self, path: Path, error: int) -> None:
        fs = WatchedFileSystem()
        fs.fail(error, "make_directory", "create", "write")
        with pytest.raises(aiodq.ReadOnlyError) as caught:
            await aiodq.open(path, fs=fs)
        assert caught.value.errno == error
        assert not caught.value.retriable
        assert fs.open_files == 0

    async def test_a_store_that_is_there(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
        before = files_under(path / "queue")
        fs = WatchedFileSystem()
        fs.fail(errno.EROFS, "create", "write", "truncate", "rename", "remove", "make_directory")
        with pytest.raises(aiodq.ReadOnlyError):
            await aiodq.open(path, fs=fs)
        assert files_under(path / "queue") == before
        assert fs.open_files == 0

    @pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM])
    async def test_a_directory_that_may_not_be_changed(
        self, path: Path, error: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path.mkdir()
        real = os.open

        def refusing(name: str, flags: int, *args: int, **how: int) -> int:
            if flags & os.O_CREAT:
                raise OSError(error, os.strerror(error), name)
            return real(name, flags, *args, **how)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refusing)
            with pytest.raises(aiodq.ReadOnlyError):
                await aiodq.open(path)
        async with queue(path) as jobs:
            await jobs.put(b"a")


def _each_once() -> Iterator[Any]:
    """Yield every call that may fail with every error that passes: in ordinary runs each error at one of them."""
    kinds = "open", "listdir", "read"
    for number, error in enumerate([errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN, errno.ENOMEM]):
        for kind in kinds:
            marks = () if kind == kinds[number % len(kinds)] else pytest.mark.slow
            yield pytest.param(kind, error, marks=marks, id=f"{kind}-{errno.errorcode[error]}")


PASSING = list(_each_once())


class TestTrouble:
    @pytest.mark.slow_on_uvloop
    @pytest.mark.parametrize(("kind", "error"), PASSING)
    @pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
    async def test_a_passing_error_at_open_is_raised_as_one_and_is_no_damage(
        self, path: Path, kind: str, error: int, stride: int, seed: int
    ) -> None:
        async with queue(path, segment_bytes=200) as jobs:
            await fill(jobs, numbered(20))
        fs = WatchedFileSystem()
        probe = fs.fail(error, kind, at=10_000)
        async with queue(path, fs=fs):
            pass
        before = promised(path)
        for at in range(1 + seed % min(stride, probe.seen), probe.seen + 1, stride):
            fs = WatchedFileSystem()
            fault = fs.fail(error, kind, at=at, times=1)
            try:
                opened = await aiodq.open_queue(path, fs=fs)
            except aiodq.StorageError as raised:
                assert raised.retriable
                assert raised.errno == error
                assert promised(path) == before
            else:
                await opened.aclose()
            assert fault.hits
            assert fs.open_files == 0
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(20)
            assert jobs.topic_stats().damages == 0

    async def test_too_many_open_files_when_a_channel_is_made(self, path: Path) -> None:
        fs = WatchedFileSystem()
        fs.fail(errno.EMFILE, "create", "open", match="channels")
        with pytest.raises(aiodq.StorageError) as caught:
            await soon(aiodq.open_queue(path, fs=fs)._open())
        assert caught.value.errno == errno.EMFILE
        assert caught.value.retriable
        assert fs.open_files == 0
        async with queue(path) as jobs:
            await jobs.put(b"a")
            assert ready_now(jobs) == [b"a"]

    async def test_a_topic_that_could_not_be_made_is_made_by_the_next_put(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            fs.fail(errno.EMFILE, "make_directory", times=1)
            with pytest.raises(aiodq.StorageError) as caught:
                await soon(topic.put(b"lost"))
            assert caught.value.retriable
            assert opened.topics() == []
            assert await soon(topic.put(b"kept")) == 0
            assert [message.body async for message in topic.scan()] == [b"kept"]
        assert fs.open_files == 0

    async def test_a_channel_that_could_not_be_made_says_so_and_is_made_for_the_next_who_asks(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await topic.put(b"1")
            fs.fail(errno.ENOSPC, "create", "write", match="topic.json", times=1)
            lame = topic.channel("c")
            with pytest.raises(aiodq.DiskFullError):
                await soon(lame.get())
            message = await soon(lame.get())
            assert message.body == b"1"
        assert fs.open_files == 0


class TestCancelling:
    async def test_a_cancelled_open_leaves_the_store_free(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        fs = WatchedFileSystem()
        gate = fs.gate("listdir")
        opening = tasks.start(aiodq.open_queue(path, fs=fs))
        await gate.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(opening)
        gate.open()
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]
        assert fs.open_files == 0

    @pytest.mark.parametrize("call", [aiodq.open, aiodq.open_queue])
    async def test_a_task_of_it_may_be_cancelled_at_any_step(
        self, path: Path, call: Callable[[Path], Coroutine[Any, Any, aiodq.Store | aiodq.Queue]]
    ) -> None:
        for steps in (*range(12), 200):
            opening = asyncio.create_task(call(path))
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                await opening.result().aclose()
            async with asyncio.TaskGroup() as group:
                opened = group.create_task(aiodq.open(path, wait=20))
            await opened.result().aclose()


class TestOptions:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"sync": "sometimes"}, {"sync_every": 0}, {"sync_interval": 0}, {"segment_bytes": 0},
            {"min_message_bytes": -1}, {"min_message_bytes": 5, "max_message_bytes": 4}, {"max_message_bytes": 1 << 32},
            {"max_bytes": 0}, {"max_messages": 0}, {"overflow": "explode"}, {"compression": "rar"},
            {"memory_bytes": 1}, {"sync_backend": "magic"},
        ],
        ids=str,
    )  # fmt: skip
    def test_out_of_range(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(aiodq.InvalidOptionError):
            aiodq.StoreOptions(**wrong)

    @pytest.mark.parametrize("wrong", [{"max_in_flight": 0}, {"start": "soon"}, {"start": -1}], ids=str)
    def test_of_a_channel_out_of_range(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(aiodq.InvalidOptionError):
            aiodq.ChannelOptions(**wrong)

    async def test_a_topics_own_options(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a", aiodq.StoreOptions(max_message_bytes=3))
            with pytest.raises(aiodq.MessageSizeError):
                await topic.put(b"1234")
            await opened.topic("b").put(b"1234")
            await topic.put(b"123")

    async def test_a_topics_own_options_where_it_was_there_before(self, path: Path) -> None:
        async with store(path) as opened:
            await opened.topic("a").put(b"1234")
        async with store(path) as opened:
            topic = opened.topic("a", aiodq.StoreOptions(max_message_bytes=3))
            with pytest.raises(aiodq.MessageSizeError):
                await topic.put(b"1234")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_store_is_made_and_what_is_above_it_is_not(path: Path, mode: Mode) -> None:
    text = f"there is no directory {path}, in which to make the store"
    with pytest.raises(aiodq.StoreNotFoundError, match=re.escape(text)) as caught:
        await aiodq.open(path / "store", mode=mode)
    assert caught.value.path == str(path / "store")
    assert not (path / "store").exists()


@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
async def test_below_a_file_there_can_be_no_store(path: Path, mode: Mode) -> None:
    path.write_text("mine")
    with pytest.raises(aiodq.NotAStoreError, match="this is no directory"):
        await aiodq.open(path / "store", mode=mode)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
async def test_every_mode_asks_about_the_volume_where_no_store_may_be_made(path: Path, mode: Mode) -> None:
    for what in "there is nothing under this path", "this directory is empty":
        with pytest.raises(aiodq.StoreNotFoundError, match=f"{what}.*; is its volume mounted"):
            await aiodq.open(path, mode=mode, create=False)
        path.mkdir(exist_ok=True)
