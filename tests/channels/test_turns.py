"""However much of a backlog is not to be delivered, others have their turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.channel import loop_turn
from aiodq.engine.channel.acks import settlement, undeliverable
from aiodq.engine.channel.acks.out_of_turn import MOST_LETTERS, OutOfTurn
from aiodq.engine.channel.source import requeue_cache
from aiodq.engine.channel.source.delivery_filter import DeliveryFilter
from aiodq.engine.loop.freeing import free_gradually
from tests.channels.support import counts, ready, soon, until

if TYPE_CHECKING:
    from tests.channels.support import Machine

MANY = 1000


@pytest.mark.parametrize("how", ["get", "get_many", "get_nowait", "async for", "timeout"])
async def test_what_is_unwanted_is_passed_over_a_little_at_a_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(loop_turn, "LONGEST_TURN", -1.0)  # a turn is over as soon as it has begun
    monkeypatch.setattr(DeliveryFilter, "others", lambda *_: 1)  # as where unwanted ones do not stand together
    turns, over = 0, asyncio.Event()

    async def count() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)

    async with machine.jobs(tags=["yes"]) as jobs:
        await jobs.put_many([*(aiodq.Draft(b"", tag="no") for _ in range(200)), aiodq.Draft(b"last", tag="yes")])
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        if how in {"get", "timeout"}:
            message = await soon(jobs.get() if how == "get" else jobs.get(timeout=5))
        elif how == "get_many":
            (message,) = await soon(jobs.get_many(10))
        elif how == "get_nowait":
            message = jobs.get_nowait()  # who does not wait is told what there is
            assert turns == 1
        else:
            message = await soon(anext(aiter(jobs)))
        over.set()
        await counting
        assert message.body == b"last"
        assert turns >= 200 or how == "get_nowait"
        assert counts(jobs) == (0, 1, 0)
        assert jobs.stats().filtered == 200


async def behind_expired(machine: Machine, number: int) -> None:
    """Put so many messages whose time is over by now, and one behind them."""
    async with machine.store() as store:
        await store.topic("jobs").put_many([aiodq.Draft(b"", ttl=5) for _ in range(number)])
        await store.topic("jobs").put(b"last")
    machine.clock.advance(6)


async def test_no_more_letters_are_on_their_way_than_may_be(machine: Machine) -> None:
    await behind_expired(machine, MANY)
    async with machine.jobs(dead_letter="dead") as jobs:
        out_of_turn, most, found = jobs._channel_engine.undeliverable.out_of_turn, 0, list[bytes]()
        while not found:
            found = ready(jobs)
            await jobs.peek()
            most = max(most, out_of_turn.letters)
            await asyncio.sleep(0)
        await until(lambda: jobs.stats().expired == MANY)
        assert most == MOST_LETTERS
        assert found == [b"last"]


async def test_whoever_waits_has_what_is_behind_the_letters(machine: Machine) -> None:
    await behind_expired(machine, MANY)
    async with machine.jobs(dead_letter="dead") as jobs:
        assert (await soon(jobs.get())).body == b"last"


class Busy(OutOfTurn):
    """From the beginning, so that nothing is given up before the test has looked."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = MOST_LETTERS


async def test_whoever_waits_looks_again_once_a_letter_is_put(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await behind_expired(machine, 1)
    monkeypatch.setattr(undeliverable, "OutOfTurn", Busy)
    async with machine.jobs(dead_letter="dead") as jobs:
        engine = jobs._channel_engine
        getting = asyncio.ensure_future(jobs.get())
        await until(lambda: engine.waits)
        engine.undeliverable._posted(asyncio.get_running_loop().create_future())
        assert (await soon(getting)).body == b"last"
        engine.undeliverable.out_of_turn.letters = 0


async def test_what_is_large_is_freed_some_in_each_turn() -> None:
    old: list[list[int] | dict[int, int]] = [list(range(MANY)), dict.fromkeys(range(MANY), 0)]
    for each in old:
        free_gradually(each)
    assert [len(each) for each in old] == [MANY, MANY], "not at once"
    while any(len(each) > 32 for each in old):
        before = [len(each) for each in old]
        await asyncio.sleep(0)
        assert all(0 <= was - len(each) <= 32 for was, each in zip(before, old, strict=True))
        assert before != [len(each) for each in old]


async def test_a_seek_leaves_what_is_forgotten_to_later_turns(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    for module in (settlement, requeue_cache):
        monkeypatch.setattr(module, "free_gradually", lambda old: left.append(len(old)))
    async with machine.jobs() as jobs:
        await jobs.put_many([aiodq.Draft(b"", delay=60 + number) for number in range(MANY)])
        await until(lambda: len(jobs._channel_engine.source.requeue_cache.batches) == MANY)
        await jobs.seek("earliest")
        assert left.count(MANY) == 2, "what is in memory, and the due times"
        assert counts(jobs) == (0, 0, MANY)
