"""Backups of a store that many processes use: the owner makes them, whoever asks."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.backup import Backup
from aiodq.storage.io.filesystem import OsFileSystem
from tests.shared.support import PATIENCE, QUICK, two, until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("who", [0, 1], ids=["owner", "client"])
async def test_whoever_asks_gets_one_of_all(tmp_path: Path, who: int) -> None:
    async with two(tmp_path / "s", QUICK) as stores:
        for number, store in enumerate(stores):
            jobs = store.queue("jobs")
            await jobs.put_many([b"%d" % number] * 10)
            for message in await jobs.get_many(4):
                await message.ack()
        found = await stores[who].backup(tmp_path / "b")
        assert found == aiodq.BackupReport(str(tmp_path / "b"), 1, 20, found.bytes)
        with pytest.raises(aiodq.NotAStoreError, match="something is there already"):
            await stores[who].backup(tmp_path / "b")
        with pytest.raises(aiodq.InvalidOptionError):
            await stores[who].backup("~")
    async with aiodq.open(tmp_path / "b", mode="shared", create=False) as backup:
        jobs = backup.queue("jobs")
        await jobs.refresh()
        assert jobs.depth == 12
        assert sorted(message.body for message in await jobs.get_many(20)) == [b"0"] * 2 + [b"1"] * 10


async def test_one_that_no_client_waits_for_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, there, copy_log = threading.Event(), threading.Event(), Backup.copy_log

    def held(backup: Backup, log: Any) -> None:
        there.set()
        assert go.wait(PATIENCE)
        copy_log(backup, log)

    monkeypatch.setattr(Backup, "copy_log", held)
    async with two(tmp_path / "s", QUICK) as (_, client):
        await client.topic("jobs").put(b"a")
        asking = asyncio.create_task(client.backup(tmp_path / "b"))
        await until(there.is_set)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await client.topic("jobs").put(b"b")  # after which the owner knows of it
        go.set()
        await until(lambda: not (tmp_path / "b.aiodq-tmp").exists())
        assert not (tmp_path / "b").exists()
        assert (await client.backup(tmp_path / "b")).messages == 2


async def test_a_name_of_any_bytes_is_the_owners_too(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        await client.topic("jobs").put(b"a")
        target = str(tmp_path / "b\udcff ü")
        assert (await client.backup(target)).path == target


async def test_one_begins_anew_whose_place_another_that_is_given_up_has_just_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = OsFileSystem.lock, list[str]()

    def late(self: OsFileSystem, path: str) -> Any:
        if path.startswith(str(tmp_path / "b")) and not removed:
            removed.append(path)
            self.remove_directory(path)
        return lock(self, path)

    async with aiodq.open(tmp_path / "s", QUICK) as store:
        await store.queue("jobs").put(b"x")
        monkeypatch.setattr(OsFileSystem, "lock", late)
        assert (await store.backup(tmp_path / "b")).messages == 1
    assert removed
