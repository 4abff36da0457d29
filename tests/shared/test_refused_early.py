"""An owner that has refused a process before that process's loop looks at the connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.connection.finding import owner_search
from aiodq.shared.connection.finding.rendezvous import connect, listen
from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.wire.stream import encode_packet
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    import socket
    from pathlib import Path


@pytest.mark.parametrize("error", [aiodq.StorageError("too few descriptors"), aiodq.ProtocolError("a stranger")])
async def test_a_refusal_that_is_there_before_the_connection_is_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: aiodq.AiodqError
) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path, QUICK) as store:
        await store.queue("jobs").put(b"x")
    listening = listen(str(path))

    def refused(directory: str) -> socket.socket | None:
        sock = connect(directory)
        if sock is not None:
            owners, _ = listening.sock.accept()
            with owners:
                owners.send(encode_packet(fail_of(error)))
        return sock

    monkeypatch.setattr(owner_search, "connect", refused)
    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(type(error), match=str(error)):
                await aiodq.open(path, mode="client")
    finally:
        listening.close()
