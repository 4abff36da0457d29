"""An owner that ends on a device that fails: it can delete nothing, not even its socket's name."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.store_layout import SOCKET
from aiodq.testing import WatchedFileSystem
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES])
async def test_an_owner_that_cannot_delete_its_socket_lets_its_clients_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Clients that nobody told of the end would wait for an answer for ever."""
    path = tmp_path / "s"
    owner = await aiodq.open(path, QUICK, mode="shared")
    client = await aiodq.open(path, QUICK, mode="client", failover=0.1)
    queue = client.queue("jobs")
    await queue.put(b"a")
    unlink, refused = os.unlink, []

    def refusing(name: str | os.PathLike[str]) -> None:
        if os.path.basename(name) == SOCKET:
            refused.append(name)
            raise OSError(number, os.strerror(number), name)
        unlink(name)

    monkeypatch.setattr(os, "unlink", refusing)
    async with asyncio.timeout(PATIENCE):
        await owner.aclose()
        with pytest.raises(aiodq.OwnerLostError):
            while True:
                await queue.put(b"b")
        assert refused
        await client.aclose()
        monkeypatch.undo()
        async with aiodq.open(path, QUICK, mode="shared") as again:
            assert (await again.queue("jobs").get()).body == b"a"


async def test_of_a_store_that_has_failed_no_channel_is_said_to_be_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next owner is: one line says so of the store, and not another one of each channel that somebody waits for."""
    owner = await aiodq.open(tmp_path, QUICK, mode="shared")
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, QUICK, mode="shared") as other:
        queues = [other.queue(name) for name in "abc"]
        getting = [asyncio.create_task(queue.get()) for queue in queues]
        for queue in queues:
            await queue.refresh()
        owner._store_engine.owner.engine.fail(RuntimeError("of this test"))  # type: ignore[attr-defined]  # it is shared
        for queue in queues:
            await queue.put(b"a")
        assert [(await each).body for each in getting] == [b"a"] * 3
        with suppress(aiodq.StoreFailedError):
            await owner.aclose()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1, said


@pytest.mark.parametrize("noticed", [False, True])
async def test_a_store_that_has_failed_is_opened_again_though_its_files_cannot_be_closed_properly(
    tmp_path: Path, *, noticed: bool
) -> None:
    """As on a device that is gone, where a close says what a write did not."""
    fs, unhandled = WatchedFileSystem(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, mode="shared", fs=fs) as store:
        async with store.transaction() as tx:
            tx.put("jobs", b"a")
            tx.put("done", b"a")
        closing = fs.fail(errno.EIO, "close", match="#transactions", times=1)
        owner = store._store_engine.owner  # type: ignore[attr-defined]  # it is shared
        owner.engine.fail(RuntimeError("of this test"))
        if noticed:  # as an owner does by itself in time
            owner.failed()
        assert await store.topic("jobs").put(b"b") > 0
        assert closing.hits
        assert [message.body async for message in store.topic("jobs").scan()][-1] == b"b"
        del owner
        gc.collect()
        await asyncio.sleep(0)
    assert not unhandled
