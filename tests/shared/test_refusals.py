"""Who cannot have a store is told in which way another process has it, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io.lock import LOCK_NAME
from tests.processes import killed_at_last

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

HOLDER = """
import asyncio, sys, aiodq

async def main():
    async with aiodq.open(sys.argv[1], mode=sys.argv[2]):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def held(path: Path, mode: str) -> Iterator[int]:
    """Have another process open a store; give its number."""
    command = [sys.executable, "-c", HOLDER, str(path), mode]
    with killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child.pid


@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_who_wants_a_store_alone_that_others_share_is_told_so(tmp_path: Path) -> None:
    """Also where the owner's pid is this process's own, as the first one's of another container."""
    with held(tmp_path / "s", "shared") as pid:
        for wait in (0.0, 0.05):
            with pytest.raises(aiodq.StoreLockedError, match=f"process {pid} owns the store and shares it") as raised:
                await aiodq.open(tmp_path / "s", wait=wait)
            assert raised.value.pid == pid
            assert 'mode="shared"' in str(raised.value)
            assert ("waited 0.05 s" in str(raised.value)) is bool(wait)
        async with aiodq.open(tmp_path / "s", mode="client") as store:
            await store.queue("jobs").put(b"x")
        record = (tmp_path / "s" / LOCK_NAME).read_text()
        (tmp_path / "s" / LOCK_NAME).write_text(record.replace(str(pid), f"{os.getpid()}"))
        with pytest.raises(aiodq.StoreLockedError, match=f"process {os.getpid()} owns the store and shares it"):
            await aiodq.open(tmp_path / "s")
        (tmp_path / "s" / LOCK_NAME).write_text("")  # as where another user may not read it
        with pytest.raises(aiodq.StoreLockedError, match=r"^another process owns the store and shares it"):
            await aiodq.open(tmp_path / "s")


@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_who_shares_a_store_that_another_process_has_alone_is_told_so(tmp_path: Path) -> None:
    modes: list[Literal["client", "shared", "exclusive"]] = ["client", "shared", "exclusive"]
    with held(tmp_path / "s", "exclusive") as pid:
        for mode in modes:
            with pytest.raises(aiodq.StoreLockedError, match=f"process {pid}.*has.*for itself") as raised:
                await aiodq.open(tmp_path / "s", mode=mode, failover=0.05)
            assert raised.value.pid == pid
            assert 'mode="shared"' in str(raised.value)


async def test_a_client_of_a_store_that_nobody_has_open_is_told_so(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s"):
        pass
    with pytest.raises(aiodq.OwnerLostError, match='"client" never owns it'):
        await aiodq.open(tmp_path / "s", mode="client", failover=0.05)
