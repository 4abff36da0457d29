"""Backups of a store that is in use: what they hold, when they end, and what they leave behind.

What they hold at each moment of each workload, and after power cuts, is tried in `tests/proof/test_backups.py`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest

import aiodq
from aiodq.clock import SystemClock
from aiodq.engine.store.bulk_adoption import Adopting
from aiodq.format.columns import Columns
from aiodq.storage.backup import Backup
from aiodq.storage.bulk.commits import Commit, CommitKey, commit_staged, read_commits
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.testing import Call, Fault, FaultPlan, SimulatedFileSystem, WrappedFileSystem
from tests.system.support import QuickFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

T = TypeVar("T")

PATIENCE = 30.0
SMALL = aiodq.StoreOptions(segment_bytes=500)
BODY = b"x" * 100


class Held:
    """Backups that go no further than to one of their steps, until they are let go.

    Attributes:
        there: set once one is there.
        done: what was done of that step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str, topic: str | None = None) -> None:
        self.there = threading.Event()
        self.done: list[Any] = []
        self._go = threading.Event()
        does = getattr(Backup, step)

        def held(backup: Backup, what: Any) -> None:
            if topic is None or topic == what:
                self.there.set()
                assert self._go.wait(PATIENCE)
            does(backup, what)
            self.done.append(what)

        monkeypatch.setattr(Backup, step, held)

    async def reached(self) -> None:
        """Wait until a backup is there."""
        async with asyncio.timeout(PATIENCE):
            while not self.there.is_set():
                await asyncio.sleep(0.001)

    def let_go(self) -> None:
        """Let all of them go on."""
        self._go.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Backups that wait before they copy a log."""
    found = Held(monkeypatch, "copy_log")
    yield found
    found.let_go()


@pytest.fixture
def held_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Backups that wait before they read the small files of a topic `last`: no log is noted yet."""
    found = Held(monkeypatch, "take_topic_files", "last")
    yield found
    found.let_go()


def segments(store: Path, topic: str = "jobs") -> list[str]:
    return sorted(path.name for path in (store / topic).glob("*.seg"))


async def bodies(path: Path, topic: str = "jobs") -> list[bytes]:
    async with aiodq.open(path, create=False) as store:
        assert store.health().ok
        return [message.body async for message in store.topic(topic).scan()]


async def test_a_backup_is_a_store_with_all_there_was(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", SMALL) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=7))
        other = store.topic("jobs").channel("other")
        await jobs.put_many([b"%d" % number * 100 for number in range(40)], tag="t", headers={"h": "1"})
        await jobs.ack_many(await jobs.get_many(5))
        await (await jobs.get()).nack(3600)
        await (await jobs.get()).nack()
        in_hand = await other.get()
        receipt = store.topic("new").put_nowait(b"accepted")
        found = await store.backup(tmp_path / "b")
        assert await receipt == 0
        await in_hand.ack()
        await jobs.put(b"later")
    assert found == aiodq.BackupReport(str(tmp_path / "b"), 2, 41, found.bytes)
    assert not (tmp_path / "b.aiodq-tmp").exists()
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        assert backup.topics() == ["jobs", "new"]
        jobs = backup.queue("jobs")
        assert (jobs.depth, jobs.deferred(), jobs.end_offset) == (35, 1, 40)
        assert jobs._channel_engine.options.max_attempts == 7
        again = await jobs.get()
        assert (again.offset, again.attempts, again.tag, again.headers) == (6, 2, "t", {"h": "1"})
        assert backup.topic("jobs").channel("other").depth == 40
        assert (await backup.topic("new").read(0)).body == b"accepted"
        assert await jobs.put(b"goes on") == 40


async def test_a_backup_of_a_backup_and_of_nothing(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        assert (await store.backup(tmp_path / "empty")).topics == 0
        await store.topic("jobs").put(b"a")
        await store.backup(tmp_path / "b")
    async with aiodq.open(tmp_path / "b", create=False) as store:
        await store.backup(str(tmp_path / "c"))
    assert await bodies(tmp_path / "c") == [b"a"]
    async with aiodq.open(tmp_path / "empty") as store:
        assert store.topics() == []


async def test_what_is_in_memory_is_not_in_it(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("jobs").put(b"a")
        store.topic("jobs").channel("look#ephemeral")
        await store.topic("gone#ephemeral").put(b"b")
        store.topic("named")
        assert (await store.backup(tmp_path / "b")).topics == 1
    async with aiodq.open(tmp_path / "b", create=False) as store:
        assert (store.topics(), store.topic("jobs").channels()) == (["jobs"], [])


@pytest.mark.parametrize("where", ["file", "directory", "s/inside", "s", "missing/b", "other/#backup"])
@pytest.mark.usefixtures("unshown")
async def test_where_no_backup_is_made(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    async with aiodq.open(tmp_path / "other") as other:
        await other.topic("jobs").put(b"a")
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("jobs").put(b"a")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(aiodq.NotAStoreError) as raised:
            await store.backup(tmp_path / where)
        assert raised.value.path == str(tmp_path / where)
        assert sorted(tmp_path.rglob("*")) == before
        await store.topic("jobs").put(b"b")


@pytest.mark.parametrize("path", [None, 3, b"b", ["b"], "~/b"])
async def test_what_is_no_path_is_refused(tmp_path: Path, path: Any) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        with pytest.raises(aiodq.InvalidOptionError) as raised:
            await store.backup(path)
        assert isinstance(raised.value, TypeError) == (path != "~/b")
        with pytest.raises(aiodq.StorageError):
            await store.backup("")


async def test_what_an_interrupted_backup_has_left_goes(tmp_path: Path) -> None:
    left = tmp_path / "b.aiodq-tmp"
    (left / "jobs").mkdir(parents=True)
    (left / "LOCK").touch()
    (left / "jobs" / "00000000000000000000.seg").write_bytes(b"half")
    (left / "old").touch()
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("jobs").put(b"a")
        await store.backup(tmp_path / "b")
    assert await bodies(tmp_path / "b") == [b"a"]
    assert not (tmp_path / "b" / "old").exists()
    assert not left.exists()


async def test_what_somebody_else_keeps_there_stays(tmp_path: Path) -> None:
    left = tmp_path / "b.aiodq-tmp"
    left.mkdir()
    (left / "letters").write_bytes(b"mine")
    async with aiodq.open(tmp_path / "s") as store:
        with pytest.raises(aiodq.NotAStoreError, match="something else is there"):
            await store.backup(tmp_path / "b")
    assert (left / "letters").read_bytes() == b"mine"


async def test_a_place_that_cannot_be_cleared_is_not_kept() -> None:
    plan = FaultPlan()
    fs = SimulatedFileSystem({"/b.aiodq-tmp": None, "/b.aiodq-tmp/LOCK": b"", "/b.aiodq-tmp/old": b"x"}, plan=plan)
    async with aiodq.open("/s", fs=fs) as store:
        await store.topic("jobs").put(b"a")
        plan.add(Fault("remove", 1, error="EIO", match="old"))
        with pytest.raises(aiodq.StorageError):
            await store.backup("/b")
        assert (await store.backup("/b")).messages == 1


async def test_two_backups_do_not_meet_in_one_place(tmp_path: Path, held: Held) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("jobs").put(b"a")
        first = asyncio.create_task(store.backup(tmp_path / "b"))
        await held.reached()
        second = asyncio.create_task(store.backup(tmp_path / "c"))
        with pytest.raises(aiodq.StoreLockedError, match="another backup is being made there") as refused:
            await store.backup(tmp_path / "b")
        assert refused.value.pid == os.getpid()
        held.let_go()
        await asyncio.gather(first, second)
    assert await bodies(tmp_path / "b") == await bodies(tmp_path / "c") == [b"a"]


def test_a_backup_that_another_one_overtakes_on_its_way_into_a_place_is_told_so(tmp_path: Path) -> None:
    target = str(tmp_path / "b")
    first = Backup(OsFileSystem(), str(tmp_path / "s"), target, lambda: None)

    class Overtaken(OsFileSystem):
        def make_directory(self, path: str) -> None:
            first.begin()
            super().make_directory(path)

    with pytest.raises(aiodq.StoreLockedError, match="another backup"):
        Backup(Overtaken(), str(tmp_path / "s"), target, lambda: None).begin()
    first.discard()
    assert not list(tmp_path.iterdir())


def test_what_is_given_up_is_known_as_a_backups_until_it_is_gone(tmp_path: Path) -> None:
    target, unfinished = str(tmp_path / "b"), tmp_path / "b.aiodq-tmp"
    looks = list[str]()

    class Looking(OsFileSystem):
        def listdir(self, path: str) -> list[str]:
            return sorted(super().listdir(path))  # `LOCK` before the others

        def remove(self, path: str) -> None:
            super().remove(path)
            looks.append(path)
            with pytest.raises(aiodq.StoreLockedError, match="another backup"):
                Backup(OsFileSystem(), str(tmp_path / "s"), target, lambda: None).begin()

    first = Backup(Looking(), str(tmp_path / "s"), target, lambda: None)
    first.begin()
    (unfinished / "jobs").mkdir()
    for name in ("#store", "jobs/topic.json", "old"):
        (unfinished / name).touch()
    first.discard()
    assert len(looks) == 4
    assert not list(tmp_path.iterdir())


async def test_puts_acks_and_transactions_go_on_while_logs_are_copied(tmp_path: Path, held: Held) -> None:
    async with aiodq.open(tmp_path / "s", SMALL) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([BODY] * 12)
        before = segments(tmp_path / "s")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held.reached()
        await jobs.put(b"later")
        async with store.transaction() as transaction:
            transaction.ack(await jobs.get())
            transaction.put("jobs", b"later too")
            transaction.put("made-later", b"a")
        await jobs.ack_many(await jobs.get_many(20))
        await jobs.topic.sync()
        await asyncio.sleep(0.05)  # what deletes consumed segments has had its turns
        assert segments(tmp_path / "s")[: len(before)] == before
        held.let_go()
        assert (await backing).messages == 12
        async with asyncio.timeout(PATIENCE):
            while len(segments(tmp_path / "s")) > 1:
                await asyncio.sleep(0.01)
    assert await bodies(tmp_path / "b") == [BODY] * 12
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        assert (backup.topics(), backup.queue("jobs").depth) == (["jobs"], 12)


async def test_a_topic_that_is_deleted_meanwhile_is_in_it(tmp_path: Path, held: Held) -> None:
    async with aiodq.open(tmp_path / "s", SMALL) as store:
        await store.topic("jobs").put_many([BODY] * 12)
        await store.topic("jobs").purge()
        await store.topic("jobs").put(b"a")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held.reached()
        deleting = asyncio.create_task(store.delete_topic("jobs"))
        store.topic("other").put_nowait(b"b")
        await asyncio.wait([deleting], timeout=0.05)
        assert not deleting.done()
        held.let_go()
        await asyncio.gather(backing, deleting)
        assert store.topics() == ["other"]
    assert await bodies(tmp_path / "b") == [b"a"]


async def test_a_topic_that_is_deleted_and_put_into_anew_amid_the_backup_is_in_it_as_it_was(
    tmp_path: Path, held_before: Held
) -> None:
    async with aiodq.open(tmp_path / "s") as store, asyncio.timeout(PATIENCE):
        await store.topic("jobs").put(b"a")
        await store.topic("last").put(b"b")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held_before.reached()
        deleting = asyncio.create_task(store.delete_topic("jobs"))
        await asyncio.sleep(0)
        putting = asyncio.create_task(store.topic("jobs").put(b"anew"))
        await asyncio.sleep(0)
        held_before.let_go()
        assert (await asyncio.gather(backing, deleting, putting))[2] == 0
    assert [await bodies(tmp_path / each) for each in ("s", "b")] == [[b"anew"], [b"a"]]


@pytest.mark.parametrize("what", ["purge", "seek", "delete_channel", "backup"])
async def test_what_changes_a_topic_that_waits_for_a_deletion_keeps_nobody_waiting(
    tmp_path: Path, held: Held, what: str
) -> None:
    async with aiodq.open(tmp_path / "s") as store, asyncio.timeout(PATIENCE):
        await store.topic("jobs").put(b"a")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held.reached()
        deleting = asyncio.create_task(store.delete_topic("jobs"))
        await asyncio.sleep(0)
        topic = store.topic("jobs")
        channel, putting = topic.channel("c"), asyncio.create_task(topic.put(b"anew"))
        await asyncio.sleep(0)
        changes: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "purge": topic.purge,
            "seek": lambda: channel.seek("latest"),
            "delete_channel": lambda: topic.delete_channel("c"),
            "backup": lambda: store.backup(tmp_path / "c"),
        }
        changing = asyncio.create_task(changes[what]())
        await asyncio.wait([changing], timeout=0.02)
        async with store.transaction() as transaction:
            transaction.put("other", b"b")
        held.let_go()
        await asyncio.gather(backing, deleting, changing, putting)
        assert topic.end_offset == 1


@pytest.mark.parametrize("how", ["cancel", "timeout", "scope"])
async def test_a_backup_that_nobody_waits_for_is_given_up(tmp_path: Path, held: Held, how: str) -> None:
    async with aiodq.open(tmp_path / "s", SMALL) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([BODY] * 12)
        if how == "cancel":
            backing = asyncio.create_task(store.backup(tmp_path / "b"))
            await held.reached()
            backing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await backing
        elif how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await store.backup(tmp_path / "b")
        else:
            with anyio.move_on_after(0.2):
                await store.backup(tmp_path / "b")
        held.let_go()
        async with asyncio.timeout(PATIENCE):
            while (tmp_path / "b.aiodq-tmp").exists():
                await asyncio.sleep(0.001)
        assert not (tmp_path / "b").exists()
        await store.backup(tmp_path / "b")
        await jobs.ack_many(await jobs.get_many(12))
        async with asyncio.timeout(PATIENCE):
            while len(segments(tmp_path / "s")) > 1:
                await asyncio.sleep(0.01)
    assert len(await bodies(tmp_path / "b")) == 12


async def test_closing_ends_a_backup(tmp_path: Path, held: Held) -> None:
    store = await aiodq.open(tmp_path / "s")
    await store.topic("jobs").put(b"a")
    backing = asyncio.create_task(store.backup(tmp_path / "b"))
    await held.reached()
    closing = asyncio.create_task(store.aclose())
    deleting = asyncio.create_task(store.delete_topic("jobs"))
    await asyncio.sleep(0.01)
    held.let_go()
    with pytest.raises(aiodq.QueueShutDown):
        await backing
    await closing
    with suppress(aiodq.QueueShutDown):
        await deleting
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
    with pytest.raises(aiodq.QueueShutDown):
        await store.backup(tmp_path / "b")


def test_a_loop_that_ends_amid_a_backup_ends(tmp_path: Path, held: Held) -> None:
    async def main() -> None:
        store = await aiodq.open(tmp_path / "s")
        await store.topic("jobs").put(b"a")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held.reached()
        asyncio.get_running_loop().call_later(0.05, held.let_go)
        threading.Timer(0.2, held.let_go).start()
        backing.add_done_callback(lambda task: task.cancelled() or task.exception())

    with pytest.warns(ResourceWarning, match="never closed"):
        asyncio.run(main())
        gc.collect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
    assert asyncio.run(bodies(tmp_path / "s")) == [b"a"]


@pytest.mark.parametrize("call", ["write", "sync", "rename", "create", "sync_directory", "make_directory"])
async def test_a_disk_that_refuses_leaves_no_backup(call: Call) -> None:
    plan = FaultPlan()
    fs = SimulatedFileSystem(plan=plan)
    async with aiodq.open("/s", SMALL, fs=fs) as store:
        await store.queue("jobs").put_many([BODY] * 12)
        plan.add(Fault(call, 1, error="ENOSPC", match="/b"))
        with pytest.raises(aiodq.DiskFullError):
            await store.backup("/b")
        assert not [path for path in fs.image() if path.startswith("/b")]
        await store.topic("jobs").put(b"goes on")
        await store.backup("/b")
    async with aiodq.open("/b", fs=fs, create=False) as store:
        assert store.queue("jobs").depth == 13


async def test_a_file_of_the_store_that_does_not_close_well_leaves_no_backup() -> None:
    plan = FaultPlan()
    fs = SimulatedFileSystem(plan=plan)
    async with aiodq.open("/s", fs=fs) as store:
        await store.queue("jobs").put(b"x")
        plan.add(Fault("close", 1, match="/s/jobs/0"))
        with pytest.raises(aiodq.StorageError, match="the device reported"):
            await store.backup("/b")
        await store.queue("jobs").put(b"y")
    assert not [path for path in fs.image() if path.startswith("/b")]


async def test_all_in_it_is_durable_once_it_is_there() -> None:
    fs = SimulatedFileSystem()
    async with aiodq.open("/s", SMALL, fs=fs) as store:
        await store.queue("jobs").put_many([BODY] * 12)
        await store.backup("/b")
        left = SimulatedFileSystem(fs.durable())
    async with aiodq.open("/b", fs=left, create=False) as store:
        assert store.queue("jobs").depth == 12


class Meeting(WrappedFileSystem):
    """A disk on which the first syncs below a directory end when as many are under way."""

    def __init__(self, directory: str, syncs: int) -> None:
        super().__init__(QuickFileSystem())
        self._directory, self._left = directory, syncs
        self._barrier = threading.Barrier(syncs)

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        if call == "sync" and path.startswith(self._directory) and self._left:
            self._left -= 1
            self._barrier.wait(PATIENCE)
        return super().passing(call, path, perform, *args)


async def test_several_threads_sync_what_was_copied(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", SMALL, fs=Meeting(str(tmp_path / "b"), 4)) as store:
        for number in range(5):
            await store.topic(f"t{number}").put(BODY)
        assert (await store.backup(tmp_path / "b")).topics == 5


async def test_what_is_settled_before_the_moment_comes_again_and_is_there(tmp_path: Path, held_before: Held) -> None:
    async with aiodq.open(tmp_path / "s", SMALL) as store:
        jobs = store.queue("jobs")
        for _ in range(12):
            await jobs.put(BODY)
        await store.topic("last").put(b"a")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held_before.reached()
        before = segments(tmp_path / "s")
        async with asyncio.timeout(PATIENCE):
            while "jobs" not in held_before.done:
                await asyncio.sleep(0.001)
            await jobs.ack_many(await jobs.get_many(12))
            while not jobs._engine.segment_deletion.undeleted:
                await asyncio.sleep(0.001)
        await jobs.put(b"because of it")
        held_before.let_go()
        assert (await backing).messages < 14
        assert len(before) > 1
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        jobs = backup.queue("jobs")
        assert [message.body for message in await jobs.get_many(20)] == [BODY] * 12 + [b"because of it"]
        assert backup.stats().topics["jobs"].damages == 0


async def test_a_transaction_is_in_it_whole_or_not_at_all(tmp_path: Path, held_before: Held) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        async with store.transaction() as transaction:
            transaction.ack(await jobs.get())
            transaction.put("last", b"done a")
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        await held_before.reached()

        async def commit() -> None:
            async with store.transaction() as transaction:
                transaction.ack(await jobs.get())
                transaction.put("last", b"done b")

        committing = asyncio.create_task(commit())
        await asyncio.wait([committing], timeout=0.05)
        held_before.let_go()
        await asyncio.gather(backing, committing)
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        assert [message.body async for message in backup.topic("last").scan()] == [b"done a"]
        assert backup.queue("jobs").get_nowait().body == b"b"


async def test_a_bulk_load_is_in_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimulatedFileSystem()
    monkeypatch.setattr("aiodq.engine.store.bulk_adoption._INTERVAL", 0.001)
    take_topic_files, loaded = Backup.take_topic_files, threading.Event()

    def load(number: int) -> None:
        writer = StagingWriter(fs, SystemClock(), "/s", "w", segment_bytes=1000)
        writer.put("jobs", Columns([b"load %d" % number]))
        staged = {topic: tuple(files) for topic, files in writer.finish().items()}
        assert commit_staged(fs, "/s", Commit(CommitKey("w", number), staged, SystemClock().now_ns()))

    def later(backup: Backup, name: str) -> None:
        take_topic_files(backup, name)
        if not loaded.is_set():
            load(2)
            time.sleep(0.05)  # as long as fifty looks of the owner's
            loaded.set()

    monkeypatch.setattr(Backup, "take_topic_files", later)
    async with aiodq.open("/s", fs=fs) as store:
        await store.topic("jobs").put(b"a")
        load(1)
        await store.backup("/b")
        async with asyncio.timeout(PATIENCE):
            while store.topic("jobs").end_offset < 3:
                await asyncio.sleep(0.001)
    async with aiodq.open("/b", fs=fs, create=False) as backup:
        assert [message.body async for message in backup.topic("jobs").scan()] == [b"a", b"load 1"]
        assert [commit.key.number for commit in read_commits(fs, "/b").commits] == [1]


async def test_a_bulk_load_that_cannot_be_adopted_yet_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimulatedFileSystem()

    async def adopts_nothing(_: object) -> None:
        raise aiodq.DiskFullError("the disk is full", "/s")

    async with aiodq.open("/s", fs=fs) as store:
        await store.topic("jobs").put(b"a")
        with monkeypatch.context() as patches:
            patches.setattr(Adopting, "look", adopts_nothing)
            writer = StagingWriter(fs, SystemClock(), "/s", "w", segment_bytes=1000)
            writer.put("jobs", Columns([b"load"]))
            staged = {topic: tuple(files) for topic, files in writer.finish().items()}
            assert commit_staged(fs, "/s", Commit(CommitKey("w", 1), staged, SystemClock().now_ns()))
            await store.backup("/b")
    async with aiodq.open("/b", fs=fs, create=False) as backup:
        assert [message.body async for message in backup.topic("jobs").scan()] == [b"a", b"load"]


async def test_a_topic_that_cannot_be_used_is_no_reason_to_leave_it_out(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("jobs").put(b"a")
        await store.topic("fine").put(b"a")
    (tmp_path / "s" / "jobs" / "topic.json").rename(tmp_path / "kept")
    (tmp_path / "s" / "jobs" / "topic.json").mkdir()
    async with aiodq.open(tmp_path / "s") as store:
        with pytest.raises(aiodq.StorageError, match=r"topic\.json"):
            await store.backup(tmp_path / "b")
        await store.topic("fine").put(b"b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "s"]


async def test_what_was_only_accepted_is_in_it(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(sync="os")) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b", b"c"])
        (await jobs.get()).ack_nowait()
        jobs.put_nowait(b"d")
        await store.backup(tmp_path / "b")
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        assert [message.body for message in await backup.queue("jobs").get_many(9)] == [b"b", b"c", b"d"]


class Hanging(WrappedFileSystem):
    """A disk on which no file of one backup can be made until `go` is set."""

    def __init__(self, target: Path) -> None:
        super().__init__()
        self.there, self.go = threading.Event(), threading.Event()
        self._files = f"{target}.aiodq-tmp/"

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        if call == "create" and path.startswith(self._files):
            self.there.set()
            assert self.go.wait(PATIENCE)
        return super().passing(call, path, perform, *args)


async def test_a_backup_whose_disk_hangs_holds_up_no_transaction_ack_or_deletion_of_what_is_not_in_it(
    tmp_path: Path,
) -> None:
    disk = Hanging(tmp_path / "b")
    async with aiodq.open(tmp_path / "s", fs=disk) as store, asyncio.timeout(PATIENCE):
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        await (await jobs.get()).ack()
        backing = asyncio.create_task(store.backup(tmp_path / "b"))
        async with asyncio.timeout(PATIENCE):
            while not disk.there.is_set():
                await asyncio.sleep(0.001)
        try:
            async with asyncio.timeout(PATIENCE / 2):
                async with store.transaction() as transaction:
                    transaction.ack(await jobs.get())
                    transaction.put("later", b"c")
                await store.topic("later").channel("x").seek("earliest")
                await store.delete_topic("later")
                await store.topic("jobs").delete_channel("none")
        finally:
            disk.go.set()
        assert (await backing).messages == 2
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        assert backup.topics() == ["jobs"]
        assert (await backup.queue("jobs").get()).body == b"b"


@pytest.mark.parametrize("room", [0, 200])
async def test_small_files_that_are_too_large_to_be_kept_in_memory_are_in_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("aiodq.storage.backup._MOST_TAKEN", room)
    async with aiodq.open(tmp_path / "s") as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        await (await jobs.get()).ack()
        report = await store.backup(tmp_path / "b")
    files = [path for path in (tmp_path / "b").rglob("*") if path.is_file() and path.name != "LOCK"]
    assert report.bytes == sum(path.stat().st_size for path in files)
    async with aiodq.open(tmp_path / "b", create=False) as backup:
        assert [message.body for message in await backup.queue("jobs").get_many(2)] == [b"b"]
