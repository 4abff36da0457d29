"""A sync whose caller is cancelled: all that was accepted and settled before is synced all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.shared.support import PATIENCE, QUICK, until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
@pytest.mark.parametrize("where", ["alone", "owner", "client"])
async def test_all_is_synced_though_nobody_waits_for_it(tmp_path: Path, where: str, turns: int) -> None:
    fs = WatchedFileSystem()
    mode: Any = "exclusive" if where == "alone" else "shared"
    opening = aiodq.open(tmp_path / "s", QUICK, mode=mode, fs=fs)
    async with opening as store, asyncio.timeout(PATIENCE):
        caller = await aiodq.open(tmp_path / "s", QUICK, mode="client") if where == "client" else store
        queue = caller.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        await queue.sync()
        await queue.put(b"y")
        gate, since = fs.gate("sync", match=".seg"), len(fs.passed)
        message.ack_nowait()
        syncing = asyncio.ensure_future(queue.sync())
        for _ in range(turns):
            await asyncio.sleep(0)
        syncing.cancel()
        await asyncio.wait([syncing])
        gate.open()
        for what in (".seg", "channels"):
            await until(lambda what=what: fs.named("sync", match=what, since=since))  # type: ignore[misc]  # of this turn
        if where == "client":
            await caller.aclose()
