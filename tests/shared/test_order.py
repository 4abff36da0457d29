"""In which order an owner begins, and what waited for one is said to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiodq
from aiodq.storage.log.topic_log import TopicLog
from aiodq.storage.store_layout import SOCKET
from tests.shared.support import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

QUICK = aiodq.StoreOptions(sync="os")


async def test_what_waited_is_put_before_anything_newer_and_in_its_order(tmp_path: Path) -> None:
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="client") as client:
        queue = client.queue("jobs")
        await queue.put(b"first")
        await owner.aclose()
        waited = []
        for number in range(6):
            waited.append(asyncio.create_task(queue.put(b"waited %d" % number)))
            await asyncio.sleep(0.005)  # each goes by itself
        async with aiodq.open(tmp_path / "s", QUICK, mode="shared"), asyncio.timeout(PATIENCE):
            await client._store_engine.link.call("store")  # type: ignore[attr-defined]  # it is connected then
            newer = asyncio.create_task(queue.put(b"newer"))
            assert await asyncio.gather(*waited) == list(range(1, 7))
            assert await newer == 7


async def test_nobody_finds_an_owner_that_does_not_know_yet_what_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
    plain, seen = TopicLog.recall, []

    def recall(log: TopicLog) -> None:
        seen.append((tmp_path / "s" / SOCKET).exists())
        plain(log)

    monkeypatch.setattr(TopicLog, "recall", recall)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared"):
        assert (tmp_path / "s" / SOCKET).exists()
    assert seen == [False]
