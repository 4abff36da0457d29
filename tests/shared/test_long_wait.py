"""The warning of who opens a shared store beside a process that has it for itself."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.shared.client import long_wait
from aiodq.shared.connection.finding.rendezvous import is_served
from aiodq.shared.server.owner import Owner
from tests.shared.support import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

SILENT = "aiodq.shared.client.long_wait._SILENT"


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def opened(path: Path, mode: Any) -> None:
    await (await aiodq.open(path, mode=mode, failover=PATIENCE)).aclose()


async def test_who_waits_for_an_exclusive_owner_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SILENT, 0.01)
    own = await aiodq.open(tmp_path / "s")
    async with asyncio.timeout(PATIENCE):
        opening = asyncio.create_task(opened(tmp_path / "s", "shared"))
        await until(lambda: warned(caplog))
        await asyncio.sleep(0.05)
        await own.aclose()
        await opening  # it has waited
    [text] = warned(caplog)
    assert text.startswith(f"process {os.getpid()}, which is this one, has {tmp_path / 's'} for itself")
    assert 'in mode "exclusive"' in text
    assert f"up to {PATIENCE:g} s" in text
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.name == "aiodq.store"
    assert record.__dict__["store"] == str(tmp_path / "s")


async def test_a_client_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SILENT, 0.01)
    async with aiodq.open(tmp_path / "s"), asyncio.timeout(PATIENCE):
        opening = asyncio.create_task(opened(tmp_path / "s", "client"))
        await until(lambda: warned(caplog))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    assert len(warned(caplog)) == 1


async def test_who_waits_for_an_owner_that_nobody_is_is_told_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SILENT, 0.01)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(aiodq.StorageError):
            await aiodq.open(path, mode="client", failover=0.1)
    assert warned(caplog) == []


async def test_an_owner_that_serves_others_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SILENT, 0.001)
    looks: list[bool] = []

    def look(directory: str) -> bool:
        looks.append(is_served(directory))
        return looks[-1]

    async with aiodq.open(tmp_path / "s", mode="shared"):
        monkeypatch.setattr(long_wait, "is_served", look)
        waiting = asyncio.create_task(long_wait.warn_of_long_wait(str(tmp_path / "s"), PATIENCE, lambda: False))
        await until(lambda: len(looks) > 2)
        waiting.cancel()
    assert all(looks)
    assert warned(caplog) == []


async def test_an_opening_that_takes_long_itself_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SILENT, 0.001)
    start = Owner.start

    async def slowly(owner: Owner) -> None:
        await asyncio.sleep(0.05)  # such as for a long recovery
        await start(owner)

    monkeypatch.setattr(Owner, "start", slowly)
    await opened(tmp_path / "s", "shared")
    assert warned(caplog) == []


async def test_no_warning_comes_once_the_opening_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SILENT, PATIENCE)
    own = await aiodq.open(tmp_path / "s")
    with pytest.raises(aiodq.StoreLockedError, match='in mode "exclusive"'):
        await aiodq.open(tmp_path / "s", mode="shared", failover=0.05)
    await asyncio.sleep(0)
    assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("aiodq wait")]
    await own.aclose()
    assert warned(caplog) == []
