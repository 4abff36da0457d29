"""What takes effect when called and is awaited for its durability does for all of asyncio as a coroutine would."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiodq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


async def in_a_task(made: Any) -> Any:
    return await asyncio.create_task(made)


async def in_a_group(made: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(made)
    return task.result()


async def gathered(made: Any) -> Any:
    return (await asyncio.gather(made, asyncio.sleep(0)))[0]


async def in_time(made: Any) -> Any:
    return await asyncio.wait_for(made, 20)


async def shielded(made: Any) -> Any:
    return await asyncio.shield(made)  # noqa: TID251 - as users call it


async def as_it_is(made: Any) -> Any:
    return await made


async def by_two(made: Any) -> Any:
    first, second = asyncio.create_task(made), asyncio.create_task(made)
    assert await first == await second
    return await made


async def after_a_cancelled(made: Any) -> Any:
    for steps in range(3):
        waiting = asyncio.create_task(made)
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    return await asyncio.create_task(made)


WAYS: list[Callable[[Any], Awaitable[Any]]] = [
    in_a_task, in_a_group, gathered, in_time, shielded, as_it_is, by_two, after_a_cancelled,
]  # fmt: skip


@pytest.fixture(params=["exclusive", "shared"])
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[aiodq.Queue]:
    async with aiodq.open_queue(tmp_path / "s", mode=request.param) as opened:
        await opened.put_many([b"%d" % number for number in range(9)])
        yield opened


@pytest.mark.parametrize("way", WAYS)
async def test_asyncio_takes_it_in_every_way(jobs: aiodq.Queue, way: Callable[[Any], Awaitable[Any]]) -> None:
    offset = await way(jobs.put_nowait(b"9"))
    assert offset == 9
    for place in (jobs, jobs.topic):
        assert await way(place.pause()) is None
        assert await way(place.resume()) is None
    messages = await jobs.get_many(5)
    assert await way(jobs.ack_many(messages)) is None
    assert [message.settled for message in messages] == [True] * 5
    assert await jobs.get_many(9) is not None


async def test_what_refuses_raises_in_its_task(jobs: aiodq.Queue) -> None:
    ephemeral = jobs.topic.channel("late#ephemeral")
    await jobs.topic.settle_in()
    await jobs.topic.delete_channel("late#ephemeral")
    with pytest.raises(aiodq.QueueShutDown):
        await asyncio.create_task(ephemeral.pause())


async def test_it_need_not_be_awaited(jobs: aiodq.Queue) -> None:
    """Unlike a coroutine, of which Python would complain."""
    jobs.ack_many(await jobs.get_many(2))
    jobs.pause()
    jobs.put_nowait(b"x")
    await jobs.sync()
    await jobs.resume()
    assert not jobs.channel("default").paused
