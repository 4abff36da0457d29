"""Whose a transaction is outlives power cuts and kills as the transaction does: said again, it is done once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from aiodq.engine.transactions.participants import AckRun
from aiodq.format.columns import Columns
from aiodq.format.transactions import Origin
from aiodq.storage.state.transactions.transaction_origins import ORIGINS
from aiodq.testing import SimulatedFileSystem
from tests.transactions.test_recovery import shown
from tests.watching.support import at_hand, flip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.testing import Image
    from tests.channels.support import Machine

LANE = 1 << 40
SAID = (Origin(7, 1), Origin(8, 1), Origin(7, 2), Origin(7, LANE + 1), Origin(8, 2), Origin(7, 3))
JOBS = 9


async def prepared(machine: Machine) -> None:
    """Have a store with jobs, and two topics that are there."""
    async with machine.store() as store:
        await store.queue("jobs").put_many([b"%d" % number for number in range(JOBS)])
        for name in ("a", "b"):
            await store.queue(name).topic.settle_in()


async def say(machine: Machine, said: Sequence[Origin]) -> None:
    """Have these done, those that are not yet; the file of transactions is emptied now and then."""
    async with machine.store() as store:
        committer = store._store_engine.committer
        for number, origin in enumerate(said):
            if not committer.knows(origin):
                settlement, delivery = (message := await store.queue("jobs").get())._claim()
                held = AckRun(
                    store._store_engine.topics["jobs"], settlement, message.offset, message.offset + 1, delivery
                )
                puts = [(store._store_engine.topics[name], Columns([b"%d" % number]), 64) for name in ("a", "b")]
                await committer.commit([held], puts, lambda _: None, origin)
                message._committed()
            if number % 2:
                async with store._store_engine.without_transactions():
                    pass


async def check(machine: Machine, image: Image) -> None:
    """Say everything again to what a power cut has left, and look that each is done once."""
    machine.fs = SimulatedFileSystem(image)
    await say(machine, SAID)
    async with machine.store() as store:
        for name in ("a", "b"):
            assert sorted(await shown(store, name)) == [b"%d" % number for number in range(len(SAID))]
        assert store.queue("jobs").depth == JOBS - len(SAID)


@pytest.mark.slow_on_uvloop  # what a disk keeps is the same on each loop
async def test_whenever_the_power_is_cut_what_is_said_again_is_done_once(machine: Machine, seed: int) -> None:
    await prepared(machine)
    recorded = machine.fs = SimulatedFileSystem(machine.fs.durable(), record=True)
    await say(machine, SAID)
    for _, image in random.Random(seed).sample(list(recorded.power_cuts(seed, 2)), 25):
        await check(machine, image)


@pytest.mark.slow_on_uvloop  # what a disk keeps is the same on each loop
async def test_nor_is_it_twice_where_owners_are_killed_before_that(machine: Machine, seed: int) -> None:
    await prepared(machine)
    rng = random.Random(seed)
    recorded = machine.fs = SimulatedFileSystem(machine.fs.durable(), record=True)
    await say(machine, SAID[:4])
    assert recorded.trace is not None
    begun, trace = recorded.laid_out, list(recorded.trace)
    for killed in rng.sample(range(begun, len(trace)), 5):
        again = machine.fs = SimulatedFileSystem.resume(trace[: killed + 1], record=True)
        await say(machine, SAID[: rng.randint(0, 4)])
        cuts = [image for number, image in again.power_cuts(seed, 2) if number > killed]
        for image in rng.sample(cuts, min(4, len(cuts))):
            await check(machine, image)


async def test_damage_to_the_file_is_set_aside_counted_and_told(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await prepared(machine)
    await say(machine, SAID[:2])
    path, aside = f"/s/{ORIGINS}", f"/s/{ORIGINS}.damaged-000000000000"
    flip(machine.fs, path, 30)
    damaged = machine.fs.image()[path]
    with caplog.at_level("INFO", logger="aiodq.store"):
        async with machine.store() as store:
            (event,) = at_hand(store.events())
            assert (event.kind, event.topic) == ("damage", None)
            assert aside in event.text
    assert machine.fs.image()[aside] == damaged
    assert ", 1 damage" in caplog.text
    async with machine.store() as store:
        assert not at_hand(store.events())
