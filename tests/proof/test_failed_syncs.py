"""Every sync of a workload fails once: nobody is told a lie, nothing goes on, and opening again heals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

import pytest

import aiodq
from aiodq.testing import Fault, FaultPlan
from aiodq.testing.faults import Pages
from tests.proof.ledger import Ledger
from tests.proof.oracle import Recoverer, check, judge
from tests.proof.world import World, found_in, run_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.testing import Call
    from aiodq.testing.faults import Pages as PagesType

    Record = Callable[[str, object], None]

OPTIONS = aiodq.StoreOptions(segment_bytes=3000)
ERRORS = ("EIO", "ENOSPC", "EDQUOT")


async def two_hundred_operations(world: World) -> None:
    """Puts and acks, so many that segments roll and go; after a failure, nothing may succeed any more."""
    async with world.store(OPTIONS) as store:
        queue = world.queue(store, "jobs")
        try:
            for number in range(100):
                await world.put(queue, "p", 40)
                if number % 2:
                    await world.ack(await queue.get())
        except aiodq.StoreFailedError:
            await nothing_goes_on(queue)
            raise


async def nothing_goes_on(queue: aiodq.Queue) -> None:
    for body in (b"again", b"and again"):
        with pytest.raises(aiodq.StoreFailedError):
            await queue.put(body)
        await asyncio.sleep(1.0)
    with pytest.raises(aiodq.StoreFailedError):
        await queue.topic.sync()


def count_of(call: Call) -> int:
    """Return how many such calls the workload makes."""
    world = World(1)
    run_world(world, two_hundred_operations)
    return world.fs.calls[call]


def faults(call: Call, errors: tuple[str, ...], step: int, first: int) -> Iterator[Fault]:
    kinds: tuple[PagesType, ...] = get_args(Pages) if call == "sync" else ("dropped",)
    for number, at in enumerate(range(1 + first % step, count_of(call) + 1, step)):
        for error in errors:
            yield Fault(call, at, error, pages=kinds[number % len(kinds)])


def try_fault(fault: Fault, recoverer: Recoverer) -> list[str]:
    """Let one sync fail; open again in the same process, then cut the power; return what is wrong."""
    world = World(1, plan=FaultPlan([fault]))
    try:
        run_world(world, two_hundred_operations)
    except aiodq.StoreFailedError:
        world.fs.plan.clear()
    else:
        return [f"{fault} was not noticed"]
    assert world.fs.trace is not None
    before = Ledger.of(world.fs.trace)
    wrong: list[str] = []

    async def again(world: World) -> None:
        async with world.store(OPTIONS) as store:
            wrong.extend(check(before, await found_in(store)))
            await world.put(world.queue(store, "jobs"), "q", 40)

    run_world(world, again)
    after = Ledger.of(world.fs.trace)
    wrong += judge(after, recoverer.open(world.fs.durable()))
    return [f"{what} after {fault}" for what in wrong]


def try_all(found: Iterator[Fault], record_property: Record) -> None:
    with Recoverer() as recoverer:
        results = [try_fault(fault, recoverer) for fault in found]
    record_property("trials", len(results))
    assert results
    assert [what for result in results for what in result] == []


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_failed_sync_ends_the_store_and_costs_nothing(call: Call, seed: int, record_property: Record) -> None:
    try_all(faults(call, ("EIO",), 9, seed), record_property)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_every_sync_that_fails_ends_the_store_and_costs_nothing(call: Call, record_property: Record) -> None:
    try_all(faults(call, ERRORS, 1, 0), record_property)
