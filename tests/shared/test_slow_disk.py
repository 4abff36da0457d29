"""What a slow disk is asked, it is asked in a thread: the event loop waits for none of it, whoever owns the store."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import aiodq
from aiodq.engine.stats import stats_publisher
from aiodq.storage.state.owner_stats import FIGURES
from aiodq.testing import WrappedFileSystem
from tests.shared.support import PATIENCE, QUICK, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.opening import Mode
    from aiodq.testing import Call

T = TypeVar("T")


class Asked(WrappedFileSystem):
    """A disk that notes what the loop itself asks of it, but for writes into the page cache and closed files."""

    def __init__(self) -> None:
        super().__init__()
        self.on_the_loop: list[tuple[Call, str]] = []

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        if threading.current_thread() is threading.main_thread() and call not in {"write", "close"}:
            self.on_the_loop.append((call, path))
        return super().passing(call, path, perform, *args)


async def _used(store: aiodq.Store) -> None:
    jobs = store.topic("jobs")
    await jobs.put_many([b"a", b"b", b"c"])
    channel = jobs.channel("all")
    await channel.ack_many(await channel.get_many(2))
    await channel.seek("earliest")
    assert (await channel.get()).body == b"a"
    assert [message.body async for message in jobs.scan()] == [b"a", b"b", b"c"]
    assert (await jobs.read(1)).body == b"b"
    assert await jobs.offset_at(datetime.now(UTC)) == 3
    await store.delete_topic("jobs")


async def test_a_client_asks_the_disk_nothing_on_its_loop(tmp_path: Path) -> None:
    disk = Asked()
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, QUICK, mode="shared"):
        async with aiodq.open(tmp_path, QUICK, mode="client", fs=disk) as store:
            await _used(store)
        assert not disk.on_the_loop


async def test_a_client_that_finds_no_owner_asks_the_disk_nothing_on_its_loop(tmp_path: Path) -> None:
    disk = Asked()
    async with aiodq.open(tmp_path, QUICK) as store:
        await store.topic("jobs").put(b"a")
    with pytest.raises(aiodq.OwnerLostError):
        await aiodq.open(tmp_path, QUICK, mode="client", failover=0.01, fs=disk)
    assert not disk.on_the_loop


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
async def test_an_owner_asks_the_disk_nothing_on_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(stats_publisher, "_INTERVAL", 0.001)
    disk = Asked()
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, QUICK, mode=mode, fs=disk) as store:
        await _used(store)
        await store.queue("left").put(b"a")
        await store.queue("left").get()
        await until((tmp_path / FIGURES).exists)
    assert not (tmp_path / FIGURES).exists()
    assert not disk.on_the_loop
