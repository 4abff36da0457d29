"""Links and files in the place of a store's directories: never taken for nothing, nor followed."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.cli.app import run
from aiodq.format.columns import Columns
from aiodq.storage.bulk.adoption import adopt
from aiodq.storage.bulk.commits import (
    COMMITS,
    STAGING,
    Commit,
    CommitKey,
    commit_staged,
    discard_staged,
    read_commits,
    sweep_staged,
)
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.holds import HOLDS, Hold, write_hold
from aiodq.storage.state.transactions.parked_transactions import ASIDE
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS
from aiodq.testing import FakeClock, WatchedFileSystem
from tests.storage.logs import open_log
from tests.storage.stores import a_store

if TYPE_CHECKING:
    from pathlib import Path

DIRECTORIES = [COMMITS, STAGING, HOLDS, ASIDE]
DAY_NS = 86_400 * 10**9


async def loaded(path: Path) -> None:
    """Make a store for which something was staged and committed two days ago, with every directory of its own."""
    async with aiodq.open(path) as store:
        await store.queue("jobs").put(b"first")
    fs, clock = OsFileSystem(), FakeClock(now_ns=time.time_ns() - 2 * DAY_NS)
    writer = StagingWriter(fs, clock, str(path), "load", segment_bytes=1000)
    writer.put("jobs", Columns([b"second"]))
    topics = {topic: tuple(files) for topic, files in writer.finish().items()}
    assert commit_staged(fs, str(path), Commit(CommitKey("load", once=True), topics, clock.now_ns()))
    write_hold(fs, str(path), "reader", Hold({"jobs": 0}))
    (path / ASIDE).mkdir()


def replaced(path: Path, name: str, how: str) -> Path:
    """Put a link to it, or a file, where something was; return where that is now."""
    kept = path.parent / f"{path.name}.kept"
    os.rename(path / name, kept)
    if how == "link":
        (path / name).symlink_to(kept)
    else:
        (path / name).write_bytes(b"")
    return kept


def tree(path: Path) -> set[str]:
    return {str(found) for found in path.rglob("*") if found.name != "LOCK"}


@pytest.mark.parametrize("how", ["link", "file"])
@pytest.mark.parametrize("name", DIRECTORIES)
async def test_what_lies_in_the_place_of_a_directory_stops_the_opening_and_nothing_is_swept(
    name: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, fs = tmp_path / "s", OsFileSystem()
    await loaded(store)
    kept = replaced(store, name, how)
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(aiodq.StorageError, match="move it away") as caught:
            await aiodq.open(store)
        assert caught.value.path == str(store / name)
    with pytest.raises(aiodq.StorageError, match="move it away"):
        repair_store(str(store), fs)
    found = [(found.path, found.by_hand) for found in verify_store(str(store), fs).damages]
    assert (str(store / name), True) in found
    assert run(["verify", str(store)]) == 1
    assert "aiodq repair leaves" in capsys.readouterr().out
    assert tree(tmp_path) == before
    (store / name).unlink()
    os.rename(kept, store / name)
    assert verify_store(str(store), fs).ok
    async with aiodq.open(store) as opened:
        assert [message.body async for message in opened.topic("jobs").scan()] == [b"first", b"second"]


@pytest.mark.parametrize("name", [TRANSACTIONS, "#origins"])
@pytest.mark.parametrize("how", ["link", "directory"])
async def test_a_file_of_the_store_s_that_is_none_is_reported(name: str, how: str, tmp_path: Path) -> None:
    store = tmp_path / "s"
    await loaded(store)
    if how == "link":
        (store / name).unlink(missing_ok=True)
        (store / name).symlink_to(tmp_path)
    else:
        (store / name).unlink(missing_ok=True)
        (store / name).mkdir()
    with pytest.raises(aiodq.StorageError, match=str(store / name)):
        await aiodq.open(store)
    found = [(found.path, found.by_hand) for found in verify_store(str(store), OsFileSystem()).damages]
    assert found == [(str(store / name), True)]


@pytest.mark.parametrize("how", ["link", "directory", "pipe"])
def test_a_lock_that_no_owner_takes_is_reported_and_left_alone(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, fs = tmp_path / "s", OsFileSystem()
    a_store(store)
    lock = store / LOCK_NAME
    lock.unlink(missing_ok=True)
    if how == "link":
        lock.symlink_to(tmp_path / "elsewhere")
    elif how == "directory":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    with pytest.raises(aiodq.NotAStoreError, match="remove it if no one owns the store"):
        repair_store(str(store), fs)
    (found,) = verify_store(str(store), fs).damages
    assert (found.path, found.by_hand) == (str(lock), True)
    assert run(["verify", str(store)]) == 1
    assert "remove it if no one does" in " ".join(capsys.readouterr().out.split())
    assert lock.is_symlink() or lock.exists()


PLACES = [(name, how) for name in ("t/channels", "t/channels/one") for how in ("link", "file")]


@pytest.mark.parametrize(("name", "how"), [("t", "link"), *PLACES])  # beside a topic any file may lie
def test_what_lies_in_the_place_of_a_topic_or_channel_is_reported_and_left_alone(
    name: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s"
    a_store(store)
    replaced(store, name, how)
    found = [(found.path, found.by_hand) for found in verify_store(str(store), OsFileSystem()).damages]
    assert (str(store / name), True) in found
    for _ in range(2):
        assert run(["repair", str(store)]) == 1
        assert f"{store / name}: left alone: " in " ".join(capsys.readouterr().out.split())


def test_verify_reports_channels_that_may_not_be_looked_at(tmp_path: Path) -> None:
    a_store(tmp_path)
    fs = WatchedFileSystem()
    fs.fail(errno.EACCES, "is_directory", "exists", match="channels/")
    found = [(found.path, found.by_hand) for found in verify_store(str(tmp_path), fs).damages]
    assert found == [(str(tmp_path / "t" / "channels" / "one"), True)]
    with pytest.raises(aiodq.ReadOnlyError):
        fs.fail(errno.EACCES, "is_directory", match=str(tmp_path))
        verify_store(str(tmp_path), fs)


@pytest.mark.parametrize("behind", ["a directory", "nothing"])
async def test_a_link_in_the_place_of_a_writer_s_directory_is_not_followed(behind: str, tmp_path: Path) -> None:
    store, fs = tmp_path / "s", OsFileSystem()
    await loaded(store)
    kept = replaced(store, f"{STAGING}/load", "link")
    if behind == "nothing":
        kept = kept.rename(tmp_path / "elsewhere")
    before = tree(tmp_path)
    for opening in (aiodq.open(store), aiodq.open(store, mode="shared")):
        with pytest.raises(aiodq.StorageError, match="move it away") as caught:
            await opening
        assert caught.value.path == str(store / STAGING / "load")
    with pytest.raises(aiodq.StorageError, match="move it away"):
        repair_store(str(store), fs)
    found = [(found.path, found.by_hand) for found in verify_store(str(store), fs).damages if found.by_hand]
    assert found == [(str(store / STAGING / "load"), True)]
    discard_staged(fs, str(store), "load")
    assert tree(tmp_path) == before
    (store / STAGING / "load").unlink()
    os.rename(kept, store / STAGING / "load")
    (store / STAGING / "a file").touch()
    async with aiodq.open(store) as opened:
        assert [message.body async for message in opened.topic("jobs").scan()] == [b"first", b"second"]


async def test_a_link_that_comes_while_the_store_is_open_is_not_followed(tmp_path: Path) -> None:
    store, fs = tmp_path / "s", OsFileSystem()
    await loaded(store)
    replaced(store, f"{STAGING}/load", "link")
    (commit,) = read_commits(fs, str(store)).pending
    before = tree(tmp_path)
    log = open_log(store / "jobs", fs)
    try:
        with pytest.raises(aiodq.StorageError, match="move it away"):
            adopt(log, str(store), commit, "jobs")
        sweep_staged(fs, str(store), time.time_ns())
    finally:
        log.close()
    assert tree(tmp_path) == before
