"""Writers beside a live owner, and beside each other: what one does at the wrong moment costs the others nothing."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import aiodq
from aiodq.engine.store.opening import adopt_without_owner
from aiodq.format.columns import Columns
from aiodq.storage.bulk import commits
from aiodq.storage.bulk.adoption import adopt_pending
from aiodq.storage.bulk.commit_lock import lock_commits
from aiodq.storage.bulk.commits import COMMITS, STAGING, Commit, CommitKey, commit_staged, discard_staged, read_commits
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.filesystem import locked
from aiodq.storage.log.staged_segments import move_in
from aiodq.testing import WrappedFileSystem
from tests.bulk.support import STORE, left, load, numbered, shown, staged
from tests.queue.support import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.testing import Call
    from tests.channels.support import Machine

T = TypeVar("T")

DAY = 86_400


class RemovingFileSystem(WrappedFileSystem):
    """Lets a writer remove its empty directory just before that is synced."""

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        staged = call == "sync_directory" and STAGING in path and not path.endswith(STAGING)
        if staged and os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)
        return super().passing(call, path, perform, *args)


def test_a_directory_that_its_writer_removes_meanwhile(tmp_path: Path) -> None:
    staging = tmp_path / STAGING / "w"
    staging.mkdir(parents=True)
    (tmp_path / "t").mkdir()
    (staging / "one.seg").write_bytes(b"x")
    move_in(RemovingFileSystem(), str(tmp_path / "t"), [(str(staging / "one.seg"), 5)])
    assert [path.name for path in (tmp_path / "t").iterdir()] == [f"{5:020d}.seg"]
    assert not staging.exists()


async def test_a_writers_directory_stays_while_a_commit_of_it_is_taken_over(machine: Machine) -> None:
    async with machine.store():
        pass
    key = CommitKey("w", 1)
    load(machine, key, {"t": numbered(2)})
    commit = read_commits(machine.fs, STORE).pending[0]
    for name in left(machine):
        machine.fs.remove(f"{STORE}/{STAGING}/w/{name}")
    discard_staged(machine.fs, STORE, commit.key.name)
    assert machine.fs.is_directory(f"{STORE}/{STAGING}/w")


async def test_an_owner_that_opens_the_store_before_a_task_has_its_first_row(machine: Machine) -> None:
    """It removes what is empty, as a write beside this one does that takes over its own rows."""
    async with machine.store():
        pass
    writer = StagingWriter(machine.fs, machine.clock, STORE, "w", segment_bytes=1000)
    async with machine.store():
        assert not machine.fs.exists(f"{STORE}/{STAGING}/w")
    writer.put("t", Columns(numbered(1)))
    topics = {topic: tuple(files) for topic, files in writer.finish().items()}
    assert commit_staged(machine.fs, STORE, Commit(CommitKey("w"), topics, machine.clock.now_ns()))
    async with machine.store() as store:
        assert await shown(store.topic("t")) == numbered(1)


async def test_a_directory_that_is_removed_whenever_it_is_made(machine: Machine) -> None:
    async with machine.store():
        pass
    writer = StagingWriter(machine.fs, machine.clock, STORE, "w", segment_bytes=1000)
    make = machine.fs.make_directory

    def unmade(path: str) -> None:
        make(path)
        machine.fs.remove_directory(path)

    machine.fs.remove_directory(f"{STORE}/{STAGING}/w")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine.fs, "make_directory", unmade)
        with pytest.raises(aiodq.StorageError):
            writer.put("t", Columns(numbered(1)))


async def test_what_another_writer_of_that_name_removed_is_not_committed(machine: Machine) -> None:
    async with machine.store():
        pass
    commit = staged(machine, "w", {"t": numbered(2)})
    discard_staged(machine.fs, STORE, "w")
    with pytest.raises(aiodq.StorageError, match="what was staged is gone"):
        commit_staged(machine.fs, STORE, commit)
    assert read_commits(machine.fs, STORE).commits == []
    assert load(machine, commit.key, {"t": numbered(2)}), "the name can be used again"


@pytest.mark.parametrize("over", ["commit", "abort"])
async def test_a_late_attempt_of_a_task_leaves_nothing(machine: Machine, over: str) -> None:
    """Another attempt was faster, so that the write is over before this one is done; it is told so."""
    async with machine.store():
        pass
    late = StagingWriter(machine.fs, machine.clock, STORE, "w", segment_bytes=1000)
    late.put("t", Columns(numbered(1)))
    if over == "commit":
        load(machine, CommitKey("w", once=True), {"t": numbered(20)})
    else:
        discard_staged(machine.fs, STORE, "w")
    async with machine.store():
        late.put("t", Columns(numbered(20)))
        with pytest.raises(aiodq.StorageError, match="its write was committed or given up meanwhile"):
            late.finish()
        late.discard()
        assert left(machine) == []


@pytest.mark.parametrize("tidied", ["commit", "abort"])
async def test_what_another_writer_of_that_name_commits_meanwhile_is_not_removed(
    machine: Machine, tidied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a query whose checkpoint was copied, or whose driver was given up and goes on."""
    monkeypatch.setattr("aiodq.storage.io.filesystem._PAUSES", ())
    async with machine.store():
        pass
    one, two = (staged(machine, "w", {"t": numbered(2)}) for _ in range(2))
    listdir, refused = machine.fs.listdir, list[aiodq.StoreLockedError]()

    def meanwhile(path: str) -> list[str]:
        found = listdir(path)
        if path.endswith(f"{STAGING}/w") and len(read_commits(machine.fs, STORE).pending) == begun and not refused:
            try:
                commit_staged(machine.fs, STORE, Commit(CommitKey("w", 2), two.topics, two.time_ns))
            except aiodq.StoreLockedError as error:
                refused.append(error)
        return found

    begun = int(tidied == "commit")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine.fs, "listdir", meanwhile)
        if tidied == "commit":
            assert commit_staged(machine.fs, STORE, Commit(CommitKey("w", 1), one.topics, one.time_ns))
        else:
            discard_staged(machine.fs, STORE, "w")
    needed = {file.file for commit in read_commits(machine.fs, STORE).pending for file in commit.topics["t"]}
    assert needed <= set(left(machine))
    assert refused


async def test_what_was_staged_long_ago_is_not_swept_while_it_is_being_committed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.store():
        pass
    commit = staged(machine, "long", {"jobs": [b"a"]})
    machine.clock.advance(2 * DAY)
    writes = commits.write_commit

    def late(*those: Any) -> None:
        """Have somebody else open the store just before the commit is written."""
        adopt_pending(machine.fs, STORE, machine.clock.now_ns(), _no_topic)
        writes(*those)

    with monkeypatch.context() as patched:
        patched.setattr(commits, "write_commit", late)
        assert commit_staged(machine.fs, STORE, commit)
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"a"]
    assert left(machine) == []


def test_what_was_staged_long_ago_is_swept_by_one_who_adopts_without_an_owner(machine: Machine) -> None:
    machine.fs.make_directory(STORE)
    assert commit_staged(machine.fs, STORE, staged(machine, "one", {"jobs": [b"a"]}))
    staged(machine, "dead", {"jobs": [b"b"]})
    machine.clock.advance(2 * DAY)
    assert adopt_without_owner(machine.fs, machine.clock, STORE, None)
    assert left(machine) == []


def _no_topic(name: str) -> TopicLog:
    raise AssertionError(f"nothing was committed for {name}")


async def test_what_is_committed_stays_so_though_nothing_can_be_tidied_up(machine: Machine) -> None:
    async with machine.store():
        pass
    commit = staged(machine, "w", {"t": numbered(2)})
    listdir = machine.fs.listdir

    def refusing(path: str) -> list[str]:
        if path.endswith(COMMITS) and machine.fs.exists(f"{path}/{commit.key.file}"):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return listdir(path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine.fs, "listdir", refusing)
        assert commit_staged(machine.fs, STORE, commit)
    assert [one.key for one in read_commits(machine.fs, STORE).pending] == [commit.key]


async def test_one_topic_that_cannot_be_keeps_neither_the_store_shut_nor_others_waiting(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("u").put(b"a")
    machine.fs.open(f"{STORE}/notes", create=True).close()
    load(machine, CommitKey("poison"), {"notes": numbered(1)})
    load(machine, CommitKey("sound"), {"t": numbered(2)})
    async with machine.store() as store:
        assert await shown(store.topic("t")) == numbered(2)
        load(machine, CommitKey("later"), {"t": numbered(1, b"later")})
        await until(lambda: store.topic("t").end_offset == 3)


async def test_all_of_a_commit_is_taken_over_or_nothing(machine: Machine) -> None:
    async with machine.store():
        pass
    commit = staged(machine, "w", {"a": numbered(2), "b": numbered(2)})
    commit_staged(machine.fs, STORE, Commit(CommitKey("w"), commit.topics, commit.time_ns))
    machine.fs.remove(f"{STORE}/{STAGING}/w/{commit.topics['b'][0].file}")
    async with machine.store() as store:
        assert store.topics() == []


async def test_who_opens_a_store_waits_for_a_writer_that_owns_it_for_a_moment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.store():
        pass
    held = [lock_commits(machine.fs, STORE), locked(machine.fs, STORE)]

    def paused(_: float) -> None:
        while held:
            held.pop().release()

    monkeypatch.setattr("aiodq.storage.io.filesystem.time", SimpleNamespace(sleep=paused))
    async with machine.store() as store:
        assert held == []
        held.append(lock_commits(machine.fs, STORE))
        assert load(machine, CommitKey("w"), {"t": numbered(1)}), "a writer waits for another one as well"
        await until(lambda: store.topic("t").end_offset == 1)


async def test_for_another_owner_nobody_waits(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    async with machine.store():
        monkeypatch.setattr("aiodq.storage.io.filesystem.time", SimpleNamespace(sleep=waits.append))
        with pytest.raises(aiodq.StoreLockedError):
            async with machine.store():
                pass
    assert waits == []
