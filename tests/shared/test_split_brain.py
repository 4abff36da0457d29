"""There is one owner, whatever is done to the lock, the directory and the processes."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiodq
from aiodq.engine.store import watch
from aiodq.shared.client import owner_report
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.storage.io.lock import LOCK_NAME, LockHolder, lock_holder
from tests.figures import figure
from tests.processes import killed_at_last
from tests.shared.child import TOPIC
from tests.shared.ledger import crowd
from tests.shared.support import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = Callable[[str, Any], None]

SMALL = aiodq.StoreOptions(sync="os", segment_bytes=4096)


@pytest.mark.parametrize(
    ("processes", "each"),
    [(8, 5), pytest.param(50, -(-figure("opens") // 50), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
    ids=["few", "many"],
)
def test_of_many_who_open_at_once_one_owns(tmp_path: Path, processes: int, each: int, record_property: Record) -> None:
    with crowd(tmp_path / "s") as opening:
        for number in range(processes):
            opening.tell("open", f"p{number}", each)
        opening.wait(lambda: len(opening.children) == processes)
        opening.tell("go")
        opening.wait(lambda: all(child.opened for child in opening.children.values()))
        owner = opening.owner()
        assert set().union(*(child.owners for child in opening.children.values())) == {owner.pid}
        opening.end_all()
    opening.check()
    offsets = [offset for child in opening.children.values() for offset in child.put.values()]
    assert sorted(offsets) == list(range(processes * each))
    record_property("trials", processes * each)


def test_an_owner_that_is_stopped_and_goes_on_is_still_the_only_one(tmp_path: Path, seed: int) -> None:
    """Meanwhile its LOCK is deleted, and others look for it."""
    rng = random.Random(seed)
    with crowd(tmp_path / "s") as children:
        for number in range(3):
            children.start(f"p{number}")
        for number in range(4):
            children.wait_for_more(rng.randint(1, 150))
            owner = children.owner()
            os.kill(owner.pid, signal.SIGSTOP)
            (tmp_path / "s" / LOCK_NAME).unlink(missing_ok=True)
            children.start(f"q{number}")
            time.sleep(rng.random() * 0.3)  # for others to try
            os.kill(owner.pid, signal.SIGCONT)
            assert lock_holder(str(tmp_path / "s")) == LockHolder(owner.pid)
            if number % 2:
                children.end(owner, signal.SIGKILL)
        children.end_all()
    children.check()


async def test_without_its_lock_file_a_store_is_found_and_is_nobody_elses(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", mode="shared") as owner:
        await owner.queue(TOPIC).put(b"a")
        (tmp_path / "s" / LOCK_NAME).unlink()
        async with aiodq.open(tmp_path / "s", mode="shared") as other:
            assert await other.queue(TOPIC).put(b"b") == 1
            assert other._remote.owner is None  # type: ignore[attr-defined]  # of a store that is shared
        with pytest.raises(aiodq.StoreLockedError):
            await aiodq.open(tmp_path / "s")
    async with aiodq.open(tmp_path / "s") as alone:
        assert [message.body async for message in alone.topic(TOPIC).scan()] == [b"a", b"b"]


async def test_a_directory_that_has_another_name_by_now_is_another_store(tmp_path: Path) -> None:
    path, moved = tmp_path / "s", tmp_path / "moved"
    owner = await aiodq.open(path, SMALL, mode="shared")
    client = await aiodq.open(path, SMALL, mode="shared", failover=0.5)
    acked = {await client.queue(TOPIC).put(b"first")}
    path.rename(moved)
    async with aiodq.open(path, SMALL, mode="shared") as another:
        assert await another.queue(TOPIC).put(b"other") == 0
        with pytest.raises(aiodq.StorageError, match="renamed"):
            async with asyncio.timeout(PATIENCE):
                while True:
                    acked.add(await client.queue(TOPIC).put(b"mine" * 100))
        assert await another.queue(TOPIC).put(b"again") == 1
        assert [message.body async for message in another.topic(TOPIC).scan()] == [b"other", b"again"]
    for store in (client, owner):
        with suppress(aiodq.StorageError):
            await store.aclose()
    async with aiodq.open(moved, SMALL, mode="shared") as again:
        assert acked <= {message.offset async for message in again.topic(TOPIC).scan()}
    async with aiodq.open(path, SMALL) as other:
        assert [message.body async for message in other.topic(TOPIC).scan()] == [b"other", b"again"]


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_client_reads_nothing_of_another_store_at_its_path(tmp_path: Path, *, replaced: bool) -> None:
    path, moved = tmp_path / "s", tmp_path / "moved"
    owner = await aiodq.open(path, SMALL, mode="shared")
    client = await aiodq.open(path, SMALL, mode="client")
    queue = client.queue(TOPIC)
    await queue.put_many([b"mine", b"too"])
    path.rename(moved)
    if replaced:
        async with aiodq.open(path, SMALL) as another:
            await another.queue(TOPIC).put_many([b"other", b"and"])
    with pytest.raises(aiodq.StoreNotFoundError, match="renamed"):
        _ = [message async for message in queue.scan()]
    with pytest.raises(aiodq.StoreNotFoundError, match="renamed"):
        await queue.read(0)
    if replaced:
        path.rename(tmp_path / "other")
    moved.rename(path)
    assert [message.body async for message in queue.scan()] == [b"mine", b"too"]
    assert (await queue.read(0)).body == b"mine"
    await client.aclose()
    await owner.aclose()


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_directory_that_was_deleted_takes_no_more_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Literal["exclusive", "shared"], again: bool
) -> None:
    monkeypatch.setattr(watch, "_INTERVAL", 0.02)
    path = tmp_path / "s"
    options = aiodq.StoreOptions(sync="os")  # no file is opened for long, which would tell as well
    owner = await aiodq.open(path, options, mode=mode)
    other = owner if mode == "exclusive" else await aiodq.open(path, options, mode="client")
    queues = [each.queue(TOPIC) for each in {owner, other}]
    for queue in queues:
        await queue.put(b"a")
    shutil.rmtree(path)
    if again:
        path.mkdir()
    for queue in queues:
        with pytest.raises(aiodq.StorageError, match=r"was deleted|removed"):
            async with asyncio.timeout(PATIENCE):
                while True:
                    await queue.put(b"b")
        await asyncio.sleep(0)
    assert not owner.health()
    assert "was deleted" in str(owner.health().reasons) or "removed" in str(owner.health().reasons)
    for store in {other, owner}:
        with suppress(aiodq.StorageError):
            await store.aclose()
    assert not path.exists() or not list(path.iterdir())


def _emptied(path: Path) -> None:
    """Delete what `rm -rf` deletes where a segment is made in the topic's directory meanwhile."""
    for each in path.rglob("*"):
        if not each.is_dir() and each.suffix != ".seg":
            each.unlink()


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_directory_that_was_emptied_takes_no_more_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Literal["exclusive", "shared"]
) -> None:
    for module, name in (watch, "_INTERVAL"), (owner_report, "_LOOK"):
        monkeypatch.setattr(module, name, 0.02)
    options = aiodq.StoreOptions(sync="os")
    stores = [await aiodq.open(tmp_path / "s", options, mode=mode)]
    stores += [] if mode == "exclusive" else [await aiodq.open(tmp_path / "s", options, mode=mode)]
    queues = [store.queue(TOPIC) for store in stores]
    await queues[0].put(b"a")
    places = [store._remote.link._place for store in stores if isinstance(store, SharedStore)]
    await until(lambda: all(place._filled for place in places))
    _emptied(tmp_path / "s")
    for queue in queues:
        with pytest.raises(aiodq.StorageError, match="was deleted while the store was open"):
            async with asyncio.timeout(PATIENCE):
                while True:
                    await queue.put(b"b")
                    await asyncio.sleep(0)
    for store in stores:
        with suppress(aiodq.StorageError):
            await store.aclose()
    assert not [each for each in (tmp_path / "s").rglob("*") if not each.is_dir() and each.suffix != ".seg"]


async def test_a_directory_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "s", tmp_path / "moved"
    owner = await aiodq.open(path, SMALL, mode="shared")
    async with aiodq.open(path, SMALL, mode="shared") as client:
        queue = client.queue(TOPIC)
        await queue.put(b"a")
        path.rename(moved)
        with suppress(aiodq.StorageError):
            await owner.aclose()
        with pytest.raises(aiodq.StoreNotFoundError, match="renamed"):
            async with asyncio.timeout(PATIENCE):
                await queue.put(b"b")
        assert not path.exists()
        moved.rename(path)
        async with asyncio.timeout(PATIENCE):
            while await put_or_not(queue) is None:
                await asyncio.sleep(0.01)


async def put_or_not(queue: aiodq.Queue) -> int | None:
    try:
        return await queue.put(b"c")
    except aiodq.StoreNotFoundError:
        return None


@pytest.mark.slow_on_uvloop  # whom it is about are other processes
@pytest.mark.parametrize("owns", [True, False], ids=["owner", "client"])
async def test_a_child_that_a_killed_process_leaves_keeps_nothing_of_it(tmp_path: Path, *, owns: bool) -> None:
    """Neither the store, nor the socket at which nobody accepts any more, nor what the process had in hand."""
    holder = None if owns else await aiodq.open(tmp_path / "s", mode="shared")
    command = [sys.executable, "-m", "tests.shared.forking", str(tmp_path / "s")]
    with killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = {await asyncio.to_thread(parent.stdout.readline) for _ in range(2)}
        assert said == {"the child may not\n", "the parent holds 0 and puts 1\n"}
        parent.kill()
        parent.wait()
        async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path / "s", mode="shared") as store:
            message = await store.queue(TOPIC).get()
            assert (message.offset, message.attempts) == (0, 1)
            await message.ack()
            assert (await store.queue(TOPIC).get()).body == b"another"
        assert parent.stdin is not None
        parent.stdin.close()
        assert await asyncio.to_thread(parent.stdout.read) == "", "the child has lived until now"
    if holder is not None:
        await holder.aclose()
