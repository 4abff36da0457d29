"""What it costs to wait for more acks before they are written: with very many topics, each does so for itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiodq.engine.channel.acks import ack_persister
from tests.channels.support import Machine, soon, until

if TYPE_CHECKING:
    import pytest

    import aiodq


async def test_a_timer_is_enough_to_wait_for_more(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put(b"1")
    await jobs.topic.settle_in()
    message = await jobs.get()
    await jobs.topic.sync()
    before = asyncio.all_tasks()
    message.ack_nowait()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    await until(lambda: not jobs.topic._engine._persister._dirty)


async def test_who_awaits_an_ack_does_not_wait_for_more(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    first, second = await jobs.get_many(2)
    first.ack_nowait()
    await asyncio.sleep(0)
    await second.ack()
    assert jobs.depth == 0
    await until(lambda: not jobs.topic._engine._persister._dirty)


async def test_what_nobody_waits_for_is_written_together_also_after_someone_has_waited(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_persister, "_LULL", 3600)
    async with machine.jobs() as jobs:
        await jobs.put_many([b"x"] * 10)
        first, *others = await jobs.get_many(10)
        await soon(first.ack())
        before = machine.fs.calls["write"]
        for message in others:
            message.ack_nowait()
            await asyncio.sleep(0)
        assert machine.fs.calls["write"] == before
        await soon(jobs.sync())
        assert machine.fs.calls["write"] == before + 1
