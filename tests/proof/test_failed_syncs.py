"""Every sync of a workload fails once: nobody is told a lie, nothing goes on, and opening again heals."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, get_args
from unittest import mock

import pytest

import aiodq
from aiodq.storage.bulk.commits import CommitKey
from aiodq.testing import Fault, FaultPlan
from aiodq.testing.faults import Pages
from tests.proof.ledger import Ledger
from tests.proof.oracle import Recoverer, check, judge
from tests.proof.world import World, found_in, run_world

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.testing import Call
    from tests.proof.world import Program

    Record = Callable[[str, object], None]

OPTIONS = aiodq.StoreOptions(segment_bytes=3000)
SMALL = aiodq.StoreOptions(segment_bytes=700)
ERRORS = ("EIO", "ENOSPC", "EDQUOT")
CALLS: tuple[Call, ...] = ("sync", "sync_directory")
COPIES = "/copies"
A_WHILE = 3.0
"""Seconds in which a store deletes what is settled and adopts what was loaded."""


class SparedError(Exception):
    """A sync failed that was not the store's own, and the store went on."""


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


async def every_operation(world: World) -> None:
    """Whatever makes a store sync, once: the ways to put and to settle, options, loads, backups, and deletions.

    Raises:
        SparedError: what failed was a sync of a backup's copy, or of a loader's own files.
    """
    with mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 3):
        async with world.store(SMALL) as store:
            queue = world.queue(store, "jobs")
            other = world.channel(queue.topic, "other")
            try:
                await put_and_settle(world, store, queue, other)
                await give_up_and_requeue(world, store)
                await change_settings(world, queue)
                await load(world, queue)
                await back_up(world, store, queue)
                await delete(world, store, queue, other)
            except aiodq.StoreFailedError:
                await nothing_goes_on(queue)
                raise


async def put_and_settle(world: World, store: aiodq.Store, queue: aiodq.Queue, other: aiodq.Channel) -> None:
    await world.put(queue, "p")
    await world.put_many(queue, "m", 7, 60)
    for channel in (queue, other):
        for _ in range(4):
            await world.ack(await channel.get())
    for _ in range(2):
        await world.transact(store, [await queue.get()], {"made": 1, "log": 1})


async def give_up_and_requeue(world: World, store: aiodq.Store) -> None:
    """Give up a message, and requeue it, in a topic of its own: that it is settled later no ledger could tell."""
    channel = world.channel(store.topic("mail"), "work", dead_letter="dead")
    world.queue(store, "dead")
    await world.put(store.topic("mail"), "letter")
    await world.reject(await channel.get(), "dead")
    await asyncio.sleep(A_WHILE)
    await world.requeue(store, "dead")


async def change_settings(world: World, queue: aiodq.Queue) -> None:
    topic = queue.topic
    for paused in (True, False):
        await world.pause(topic, "other", paused=paused)
    await world.configure(topic, "other", aiodq.ChannelOptions(max_attempts=9))
    await world.choose(topic, aiodq.StoreOptions(segment_bytes=900, max_messages=500))
    for _ in range(3):
        await world.put(topic, "p")
    await world.seek(queue, "jobs", topic.end_offset - 2)


async def load(world: World, queue: aiodq.Queue) -> None:
    try:  # the loader has the disk for itself: the loop stands still
        world.load(CommitKey("stream", 0), {"jobs": 2, "new": 1}, 40)
    except aiodq.StorageError as error:
        await goes_on(world, queue)
        raise SparedError from error
    await asyncio.sleep(A_WHILE)


async def back_up(world: World, store: aiodq.Store, queue: aiodq.Queue) -> None:
    world.fs.make_directory(COPIES)
    try:
        await store.backup(f"{COPIES}/one")
    except aiodq.StorageError as error:
        if not error.path.startswith(COPIES):
            raise
        await goes_on(world, queue)
        raise SparedError from error


async def goes_on(world: World, queue: aiodq.Queue) -> None:
    world.fs.plan.clear()
    await world.put(queue, "p")


async def delete(world: World, store: aiodq.Store, queue: aiodq.Queue, other: aiodq.Channel) -> None:
    """Delete a channel, segments, a backlog, and a topic."""
    world.channel(queue.topic, "third")
    for _ in range(4):
        await world.put(queue, "p", 200)
    await world.close_channel(queue.topic, "third")
    for channel in (queue, other):
        await settle(world, channel)
    await asyncio.sleep(A_WHILE)
    await world.put(store.queue("dead"), "p")
    await world.purge(store.queue("dead"))
    await world.delete(store, "made")
    await world.put(queue, "p")


async def settle(world: World, channel: aiodq.Channel) -> None:
    while channel.qsize():
        await world.ack(await channel.get())


async def nothing_goes_on(queue: aiodq.Queue) -> None:
    for body in (b"again", b"and again"):
        with pytest.raises(aiodq.StoreFailedError):
            await queue.put(body)
        await asyncio.sleep(1.0)
    with pytest.raises(aiodq.StoreFailedError):
        await queue.topic.sync()


PROGRAMS: dict[Program, int] = {two_hundred_operations: 40, every_operation: 90}
"""The ordinary run lets one of so many syncs fail in each."""


def faults_of(program: Program, seed: int, call: Call) -> list[Fault]:
    """Return a fault for each such call that a program makes, and each error; what a failed sync leaves takes turns."""
    world = World(seed)
    run_world(world, program)
    kinds: tuple[Pages, ...] = get_args(Pages) if call == "sync" else ("dropped",)
    at_each = range(1, world.fs.calls[call] + 1)
    return [Fault(call, at, error, pages=kinds[at % len(kinds)]) for at in at_each for error in ERRORS]


class _AlsoAtClose(FaultPlan):
    """Faults after each of which the next close of that file fails, too, or of one in that directory."""

    def enter(self, call: Call, path: str) -> Fault | None:
        hit = super().enter(call, path)
        if hit is not None and hit.call in CALLS:
            self.add(Fault("close", 1, match=path.rpartition(",")[0] or path))
        return hit


def try_fault(
    program: Program, seed: int, fault: Fault, recoverer: Recoverer, plan: type[FaultPlan] = FaultPlan
) -> list[str]:
    """Let one sync fail; open again in the same process, then cut the power; return what is wrong."""
    world = World(seed, plan=plan([fault]))
    wrong: list[str] = []
    try:
        run_world(world, program)
    except (aiodq.StoreFailedError, SparedError):
        world.fs.plan.clear()
    else:
        wrong.append("it was not noticed")
    before = Ledger.of(world.trace)

    async def again(world: World) -> None:
        async with world.store(OPTIONS) as store:
            wrong.extend(check(before, await found_in(store)))
            await world.put(world.queue(store, "jobs"), "q", 40)

    run_world(world, again)
    wrong += judge(Ledger.of(world.trace), recoverer.open(world.fs.durable()))
    return [f"{what} after {fault} in {program.__name__} with seed {seed}" for what in wrong]


def try_all(
    program: Program, seed: int, faults: Sequence[Fault], record_property: Record, plan: type[FaultPlan] = FaultPlan
) -> None:
    with Recoverer() as recoverer:
        results = [try_fault(program, seed, fault, recoverer, plan) for fault in faults]
    record_property("trials", len(results))
    assert results
    assert [what for result in results for what in result] == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_failed_sync_ends_the_store_and_costs_nothing(
    program: Program, call: Call, seed: int, record_property: Record
) -> None:
    faults = faults_of(program, seed, call)
    try_all(program, seed, Random(seed).sample(faults, len(faults) // PROGRAMS[program]), record_property)


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_can_neither_be_synced_nor_closed_ends_the_store(
    call: Call, seed: int, record_property: Record
) -> None:
    faults = faults_of(every_operation, seed, call)
    chosen = Random(seed).sample(faults, len(faults) // PROGRAMS[every_operation] // 2)
    try_all(every_operation, seed, chosen, record_property, _AlsoAtClose)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plan", [FaultPlan, _AlsoAtClose])
@pytest.mark.parametrize("made_with", [1, 2])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_sync_that_fails_ends_the_store_and_costs_nothing(
    program: Program, call: Call, made_with: int, record_property: Record, plan: type[FaultPlan]
) -> None:
    try_all(program, made_with, faults_of(program, made_with, call), record_property, plan)
