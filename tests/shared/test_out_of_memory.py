"""A process that has no memory for what it sends: nobody takes what follows for the rest of what was not sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.server.client_connection import ClientConnection
from tests.shared.support import PATIENCE, QUICK, two

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.shared.connection.wires.packet_protocol import PacketProtocol

_LONG = b"x" * 100_000


class Scarce:
    """A transport that sends only half of the next long piece, as the memory for the rest is missing."""

    def __init__(self, transport: Any, short: Callable[[], bool]) -> None:
        self._transport = transport
        self._short = short

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if len(data) > len(_LONG) and self._short():
            self._transport.write(data[: len(data) // 2])
            raise MemoryError
        self._transport.write(data)


def scarce(monkeypatch: pytest.MonkeyPatch, end: type[PacketProtocol]) -> list[int]:
    """Have these ends of connections run out of memory once for each item of the list that is returned."""
    missing = list[int]()
    made = end.connection_made

    def connection_made(self: PacketProtocol, transport: Any) -> None:
        made(self, Scarce(transport, lambda: bool(missing and missing.pop())))

    monkeypatch.setattr(end, "connection_made", connection_made)
    return missing


@pytest.mark.parametrize("times", [1, 3])
async def test_who_has_no_memory_to_send_a_put_is_told_and_puts_and_gets_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    missing = scarce(monkeypatch, SocketWire)
    async with asyncio.timeout(PATIENCE), two(tmp_path, QUICK) as (owner, client):
        queue = client.queue("jobs")
        assert await queue.put(b"0") == 0
        for _ in range(times):
            missing.append(1)
            with pytest.raises(MemoryError):
                await queue.put(_LONG)
            await queue.refresh()
        assert await queue.put(b"1") == 1
        assert [message.body for message in await queue.get_many(2)] == [b"0", b"1"]
        assert await queue.put(_LONG) == 2
        await owner.queue("jobs").refresh()
        assert owner.queue("jobs").depth == 3


async def test_an_owner_that_has_no_memory_to_send_a_message_gives_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = scarce(monkeypatch, ClientConnection)
    async with asyncio.timeout(PATIENCE), two(tmp_path, QUICK) as (owner, client):
        await owner.queue("jobs").put_many([_LONG, b"1"])
        missing.append(1)
        queue = client.queue("jobs")
        for body in (_LONG, b"1"):
            message = await queue.get()
            assert message.body == body
            await message.ack()
        assert not missing
        await owner.queue("jobs").refresh()
        assert owner.queue("jobs").depth == 0
