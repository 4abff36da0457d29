"""What an owner may have done before it was gone: who cannot find another one is not told that it was refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import pytest

import aiodq
from aiodq.shared.connection.finding.owner_search import OwnerSearch
from aiodq.shared.encoding.remote_errors import undecided
from aiodq.testing import WatchedFileSystem
from tests.shared.support import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


async def put(store: aiodq.Store) -> None:
    await store.topic("jobs").put(b"b")


async def commit(store: aiodq.Store) -> None:
    async with store.transaction() as tx:
        tx.put("jobs", b"b")
        tx.put("done", b"b")


async def delete(store: aiodq.Store) -> None:
    await store.delete_topic("done")


async def full(_search: OwnerSearch) -> NoReturn:
    """Fail as the opening of a store does in a process that would be its next owner."""
    raise aiodq.DiskFullError("no space left", "jobs", errno=28, retriable=True)


@pytest.mark.parametrize("kind", [aiodq.StoreLockedError, aiodq.CorruptionError, aiodq.DiskFullError])
def test_no_reason_why_nobody_else_owns_the_store_is_one_why_a_call_was_refused(kind: type[aiodq.StorageError]) -> None:
    told = undecided(kind("as it is so", "s"), "s")
    assert type(told) is aiodq.OwnerLostError
    assert str(told).endswith("no other one is found: as it is so [s]")


def test_of_what_keeps_others_from_owning_the_store_the_file_is_named_that_is_another_than_the_store() -> None:
    assert str(undecided(aiodq.StorageError("as it is so", "s/jobs"), "s")).endswith("as it is so [s/jobs] [s]")
    assert str(undecided(aiodq.CorruptionError("as it is so", "s", 8), "s")).endswith("as it is so [s at byte 8] [s]")


@pytest.mark.parametrize("kind", [aiodq.OwnerLostError, aiodq.OwnerStalledError, aiodq.StoreFailedError])
def test_what_says_that_nobody_knows_is_told_as_it_is(kind: type[aiodq.StorageError]) -> None:
    told = undecided(kind("as it is so", "s"), "s")
    assert (type(told), str(told)) == (kind, str(kind("as it is so", "s")))


@pytest.mark.parametrize("settle", ["ack", "ack_many", "reject"])
async def test_a_settlement_that_an_owner_may_have_done_may_be_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settle: str
) -> None:
    fs = WatchedFileSystem()
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, mode="shared", fs=fs),
        aiodq.open(tmp_path, mode="client") as client,
    ):
        jobs = client.queue("jobs")
        await jobs.put(b"a")
        message = await jobs.get()
        calls: dict[str, Callable[[], Awaitable[None]]]
        calls = {"ack": message.ack, "ack_many": lambda: jobs.ack_many([message]), "reject": message.reject}
        slow = fs.gate("sync", "sync_directory", "rename")
        calling = asyncio.ensure_future(calls[settle]())
        try:
            await slow.wait()
            monkeypatch.setattr(OwnerSearch, "find", full)
            client._remote.link._wire.abort()  # type: ignore[attr-defined]  # as below
            with pytest.raises(aiodq.OwnerLostError, match=r"went before it answered.*no space left"):
                await calling
            monkeypatch.undo()
        finally:
            slow.open()
        await until(lambda: client._remote.link.failure is None)  # type: ignore[attr-defined]
        await calls[settle]()
        await jobs.refresh()
        assert (jobs.depth, jobs.in_flight()) == (0, 0)


@pytest.mark.parametrize("call", [put, commit, delete])
async def test_what_an_owner_may_have_done_is_not_said_to_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[aiodq.Store], Awaitable[None]]
) -> None:
    fs = WatchedFileSystem()
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, mode="shared", fs=fs) as owner,
        aiodq.open(tmp_path, mode="client") as client,
    ):
        for name in ("jobs", "done"):
            await client.topic(name).put(b"a")
        slow = fs.gate("sync", "sync_directory", "rename")
        calling = asyncio.ensure_future(call(client))
        try:
            await slow.wait()
            monkeypatch.setattr(OwnerSearch, "find", full)
            client._remote.link._wire.abort()  # type: ignore[attr-defined]  # it is one of a store that is shared
            with pytest.raises(aiodq.OwnerLostError, match=r"went before it answered.*no space left"):
                await calling
            with pytest.raises(aiodq.DiskFullError):  # it was never sent
                await client.topic("jobs").put(b"c")
            monkeypatch.undo()
        finally:
            slow.open()
        await until(lambda: client._remote.link.failure is None)  # type: ignore[attr-defined]
        await client.topic("jobs").put(b"d")
        there = [message.body async for message in owner.topic("jobs").scan()]
        assert there == ([b"a", b"d"] if call is delete else [b"a", b"b", b"d"])
