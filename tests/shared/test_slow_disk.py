"""What a slow disk is asked, it is asked in a thread: the event loop waits for none of it, whoever owns the store."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import aiodq
from aiodq.engine.stats import stats_publisher
from aiodq.shared.connection.finding import rendezvous
from aiodq.shared.server import owner as owner_module
from aiodq.shared.server.noted_clients import NotedClients
from aiodq.storage.state.owner_stats import FIGURES
from aiodq.storage.store_layout import SOCKET
from aiodq.testing import WrappedFileSystem
from aiodq.wire.packets import Done, Open, Want
from tests.shared.support import PATIENCE, QUICK, RawClient, two, until

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


class Held:
    """A call that is held up until `go` is set, or notes that the loop itself has made it."""

    def __init__(self, call: Callable[..., T]) -> None:
        self.call = call
        self.there, self.go = threading.Event(), threading.Event()
        self.on_the_loop = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            self.on_the_loop += 1
        else:
            self.there.set()
            assert self.go.wait(PATIENCE)
        return self.call(*args, **named)


async def test_who_begins_to_get_messages_holds_up_nobody_while_the_disk_is_slow_to_note_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(NotedClients._write)
    async with two(tmp_path, QUICK) as (owner, client):
        await client.queue("jobs").put_many([b"a", b"b"])
        message = await client.queue("jobs").get()
        monkeypatch.setattr(NotedClients, "_write", lambda *args: held(*args))  # noqa: PLW0108 - a method is passed itself
        another = await RawClient.connected(tmp_path)
        await another.hello()
        opening = another.send(Open(2, "jobs", "default", {}))
        another.send(Want(2, 1))
        await until(lambda: held.there.is_set() or held.on_the_loop)
        try:
            await message.ack()
            await owner.queue("jobs").put(b"c")
            await client.queue("jobs").refresh()
            assert client.queue("jobs").qsize() == 2, "what the next owner could not know of is not given"
        finally:
            held.go.set()
        assert isinstance(await another.answer(opening), Done)
        assert [body for *_, body in await another.take(2, 1, 1)] == [b"b"]
        await another.close()
    assert not held.on_the_loop


async def test_an_owner_begins_to_listen_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(rendezvous.listen)
    monkeypatch.setattr(owner_module, "listen", held)
    monkeypatch.setattr(owner_module, "_LOOK", 0.001)
    held.go.set()
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, QUICK, mode="shared"):
        held.there.clear()
        (tmp_path / SOCKET).unlink()
        await until(held.there.is_set)
        async with aiodq.open(tmp_path, mode="client") as client:
            assert await client.queue("jobs").put(b"a") == 0
    assert not held.on_the_loop


async def test_an_owner_reads_what_the_last_one_left_and_looks_for_its_socket_and_deletes_it_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        (kind, name, Held(getattr(kind, name)))
        for kind in (NotedClients, rendezvous.Listening)
        for name in {"read", "read_epoch", "is_found", "close"} & vars(kind).keys()
    ]
    monkeypatch.setattr(owner_module, "_LOOK", 0.001)
    for kind, name, held in asked:
        held.go.set()
        monkeypatch.setattr(kind, name, lambda *args, held=held, **named: held(*args, **named))
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, QUICK, mode="shared"):
        await until(lambda: all(held.there.is_set() or held.on_the_loop for _, name, held in asked if name != "close"))
    assert not (tmp_path / SOCKET).exists()
    assert [name for _, name, held in asked if held.on_the_loop] == []
    assert len(asked) == 4


async def test_who_gives_up_opening_a_store_as_it_begins_to_listen_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(rendezvous.listen)
    with monkeypatch.context() as patch:
        patch.setattr(owner_module, "listen", held)
        opening = asyncio.create_task(aiodq.open(tmp_path, QUICK, mode="shared").__aenter__())
        await until(lambda: held.there.is_set() or held.on_the_loop)
        opening.cancel()
        await asyncio.sleep(0)
        held.go.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
    assert not held.on_the_loop
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, QUICK, mode="shared") as store:
        await store.queue("jobs").put(b"a")
        assert (await store.queue("jobs").get()).body == b"a"
