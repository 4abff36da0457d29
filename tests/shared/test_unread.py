"""A client that does not read what it is sent, as one that was stopped: the owner keeps little for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiodq.shared.server import client_connection
from aiodq.shared.server import owner as owner_module
from aiodq.wire.packets import Call, Done, Figures
from tests.shared.support import RawClient, owned, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from aiodq.shared.server.owner import Owner

BURST = 100
PUTS = 30
LITTLE = 1 << 16


def connection_of(owner: Owner) -> Any:
    [connection] = owner._connections
    return connection


async def fill(client: RawClient, owner: Owner) -> list[int]:
    """Ask without reading until the owner cannot send any more; return the requests."""
    client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a ReadTransport as well
    asked: list[int] = []
    while not connection_of(owner).clogged:
        asked += [client.send(Call("store", {"after": ""})) for _ in range(BURST)]
        await asyncio.sleep(0)
    return asked


async def test_what_it_asks_is_not_read_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "_MOST_UNREAD", LITTLE)
    async with owned(tmp_path) as (_, owner):
        client = await RawClient.connected(tmp_path)
        await client.hello()
        asked = await fill(client, owner)
        transport = connection_of(owner)._transport
        for _ in range(BURST):
            if not transport.is_reading():
                break
            asked += [client.send(Call("store", {"after": ""})) for _ in range(BURST)]
            await asyncio.sleep(0)
        assert not transport.is_reading()
        connection = connection_of(owner)
        await until(lambda: not connection.session._in_progress._tasks)  # what had arrived is still answered
        before = transport.get_write_buffer_size()
        for _ in range(10):
            asked += [client.send(Call("store", {"after": ""})) for _ in range(BURST)]
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() == before
        other = await RawClient.connected(tmp_path)
        await other.hello(8)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # likewise
        for request in asked:
            assert isinstance(await client.answer(request), Done)
        await other.close()
        await client.close()


async def test_counts_wait_until_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_FIGURES", 0.001)
    async with owned(tmp_path) as (store, owner):
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs")
        asked = await fill(client, owner)
        connection = connection_of(owner)
        # What has arrived is still answered, however long that takes.
        await until(lambda: connection.reader.packets == client.number and not connection.session._in_progress._tasks)
        transport = connection._transport
        before = transport.get_write_buffer_size()
        for _ in range(PUTS):
            await store.topic("jobs").put(b"x")
            await asyncio.sleep(0.002)
        assert transport.get_write_buffer_size() == before
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # likewise
        for request in asked:
            await client.answer(request)
        newest = 0
        while newest < PUTS:
            newest = (await client.hear(Figures)).end
        await client.close()
