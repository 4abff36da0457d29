"""Calls whose caller is cancelled: what changes something is done all the same, and a question is no longer asked."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.store.deletions import Deletions
from tests.shared.support import PATIENCE, QUICK, two, until

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any

EIGHT = aiodq.ChannelOptions(max_attempts=8)


def change(what: str, store: aiodq.Store) -> Coroutine[Any, Any, object]:
    """Return a call that changes something."""
    topic = store.topic("jobs")
    match what:
        case "seek":
            return topic.channel("c").seek("latest")
        case "purge":
            return topic.purge()
        case "configure":
            return topic.channel("c").configure(EIGHT)
        case "delete_channel":
            return topic.delete_channel("c")
    return store.delete_topic("jobs")


def changed(what: str, owner: aiodq.Store, client: aiodq.Store) -> bool:
    """Return whether both processes know of it."""
    stores = owner, client
    if what == "delete_topic":
        return all("jobs" not in store.topics() for store in stores)
    if what == "delete_channel":
        known = client._store_engine.topics["jobs"].channel_engines
        return "c" not in owner.topic("jobs").channels() and "c" not in known
    channels = [store.topic("jobs").channel("c") for store in stores]
    if what == "configure":
        return channels[1].options == EIGHT
    return channels[1].depth == 0


@pytest.mark.parametrize("what", ["seek", "purge", "configure", "delete_channel", "delete_topic"])
async def test_a_change_is_made_though_its_caller_is_cancelled_behind_a_put(tmp_path: Path, what: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.put_many([b"x"] * 5)
        await topic.channel("c", aiodq.ChannelOptions(start="earliest")).refresh()
        putting = asyncio.ensure_future(topic.put(b"y"))
        await asyncio.sleep(0)
        changing = asyncio.ensure_future(change(what, client))
        await asyncio.sleep(0)
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        await asyncio.gather(putting, return_exceptions=True)
        await until(lambda: changed(what, owner, client))


async def test_a_join_that_times_out_leaves_no_error_that_nobody_retrieves(tmp_path: Path) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"x")
        await queue.refresh()
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.join(), 0.01)
    gc.collect()
    await asyncio.sleep(0)
    assert not reported


async def test_a_join_that_is_cancelled_leaves_no_task_at_the_owner(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        await queue.refresh()
        before = asyncio.all_tasks()
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.join(), 0.01)
        await queue.refresh()
        await until(lambda: not (asyncio.all_tasks() - before - {asyncio.current_task()}))
        joining = asyncio.ensure_future(queue.join())
        async with await queue.get():
            pass
        await joining


@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_a_join_that_is_cancelled_at_once_leaves_nothing_that_waits_for_its_answer(
    tmp_path: Path, turns: int
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        await queue.refresh()
        link = client._remote.link  # type: ignore[attr-defined]  # of a store that is shared
        before = len(link._pending)
        for behind_a_put in (False, True):
            for _ in range(5):
                putting = asyncio.ensure_future(queue.put(b"y")) if behind_a_put else None
                joining = asyncio.ensure_future(queue.join())
                for _ in range(turns):
                    await asyncio.sleep(0)
                joining.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await joining
                if putting is not None:
                    await putting
            await until(lambda: len(link._pending) <= before + 1)  # it may ping the owner


async def test_a_drain_that_is_cancelled_leaves_no_task_at_the_owner(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        before = asyncio.all_tasks()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.drain(), 0.01)
            assert not await client.drain(0.01)
        await queue.refresh()
        await until(lambda: not (asyncio.all_tasks() - before - {asyncio.current_task()}))
        draining = asyncio.ensure_future(client.drain())
        await message.ack()
        assert await draining


@pytest.mark.parametrize("what", ["seek", "purge", "configure"])
async def test_an_owner_that_closes_amid_a_change_leaves_no_error_that_nobody_retrieves(
    tmp_path: Path, what: str
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for steps in range(1, 5):
        async with two(tmp_path / f"s{steps}", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
            await client.topic("jobs").channel("c").refresh()
            changing = asyncio.ensure_future(change(what, client))
            for _ in range(steps):
                await asyncio.sleep(0)
            await owner.aclose()
        await asyncio.gather(changing, return_exceptions=True)
    gc.collect()
    await asyncio.sleep(0)
    assert not reported


@pytest.mark.parametrize("method", ["_delete_channel", "_delete"])
async def test_a_deletion_that_fails_once_its_client_is_gone_leaves_no_error_that_nobody_retrieves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    begun, over = asyncio.Event(), asyncio.Event()

    async def fails(*_: object) -> None:
        begun.set()
        await over.wait()
        raise aiodq.StorageError("Input/output error", "jobs")

    monkeypatch.setattr(Deletions, method, fails)
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        await client.topic("jobs").channel("c").refresh()
        deleting = asyncio.ensure_future(change(method.removeprefix("_"), client))
        await begun.wait()
        await client.aclose()
        await asyncio.gather(deleting, return_exceptions=True)
        over.set()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
    assert not reported


@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_a_pause_that_nobody_awaits_leaves_no_error_that_nobody_retrieves(tmp_path: Path, whose: str) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        store = owner if whose == "owner" else client
        channel = store.topic("jobs").channel("c")
        await channel.refresh()
        channel.pause()
        store.topic("jobs").resume()
        await store.aclose()
    gc.collect()
    await asyncio.sleep(0)
    assert not reported
