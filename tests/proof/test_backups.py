"""Backups of what the workloads do, while they do it, and what a power cut leaves of them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aiodq.testing import Disk
from tests.proof.backups import BackedUp, BackingUp, held_against
from tests.proof.clients import clients
from tests.proof.explore import Case, explore
from tests.proof.oracle import Recoverer
from tests.proof.workloads import WORKLOADS
from tests.proof.world import World, run_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.testing import Image, Ordering

ORDERINGS: tuple[Ordering, ...] = ("posix", "ext4")
MANY = 20
MOMENTS = 2
STATES = 3


def images(world: BackingUp, random: Random, count: int) -> Iterator[tuple[Image, int]]:
    """Yield disks as the power may be cut, each with how long the trace was: often when a backup was just there."""
    ends = [at for backup in world.backups if backup.ended for at in range(backup.ended - 3, backup.ended + 1)]
    moments = {random.randrange(len(world.trace)) for _ in range(count)}
    moments |= set(random.sample(ends, min(len(ends), count)))
    disk = Disk(random.choice(ORDERINGS))
    for number, operation in enumerate(world.trace):
        disk.apply(operation)
        if number in moments:
            for image in disk.cuts(random, STATES):
                yield image, number + 1


def try_backups(name: str, random: Random, moments: int = MOMENTS) -> None:
    """Back up what a workload does, and hold each backup against what was promised, also after power cuts."""
    world = BackingUp(random.getrandbits(32))
    run_world(world, WORKLOADS[name].program)
    with Recoverer() as recoverer:
        for backup in world.backups:
            assert held_against(recoverer, world, backup, world.fs.image()) == []
        for image, until in images(world, random, moments):
            for backup in world.backups:
                assert held_against(recoverer, world, backup, image, until) == []


@pytest.mark.drawn("name", 16)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_backup_holds_all_that_was_promised_when_it_began(name: str, seed: int) -> None:
    try_backups(name, Random(f"{name}:{seed}"))


def test_a_backup_may_hold_or_not_what_a_client_acked_while_it_was_made() -> None:
    world = World(0)
    moments: list[int] = []

    async def ack_before_it_is_copied(world: World) -> None:
        async with world.store() as store:
            world.queue(store, "jobs")
            async with clients(world, store) as those:
                await those.put("jobs", 1)
                moments.append(len(world.trace))
                await those.ack("jobs", 2, 1)
                moments.append(len(world.trace))
                await store.backup("/backup")

    run_world(world, ack_before_it_is_copied)
    before, after = moments
    with Recoverer() as recoverer:
        image = world.fs.image()
        assert held_against(recoverer, world, BackedUp("/backup", before, after), image) == []
        assert held_against(recoverer, world, BackedUp("/backup", after, after), image) == []
        lost = ["lost: ['o1:0:1'] for channel default (topic jobs)"]
        assert held_against(recoverer, world, BackedUp("/backup", before, before), image) == lost


@pytest.mark.slow
@pytest.mark.parametrize("number", range(MANY))
@pytest.mark.parametrize("name", WORKLOADS)
def test_many_backups_hold_all_that_was_promised_when_they_began(name: str, number: int, seed: int) -> None:
    try_backups(name, Random(f"{name}:{seed}:{number}"), moments=6)


@pytest.mark.parametrize("number", range(4))
def test_a_store_loses_nothing_by_being_backed_up(number: int, seed: int) -> None:
    random = Random(seed)
    name, kills = random.sample(list(WORKLOADS), number + 1)[number], number % 2
    case = Case(name, random.getrandbits(32), random.choice(ORDERINGS), states=2, nested=1, moments=8, kills=kills)
    result = explore(case, WORKLOADS[name], make=BackingUp)
    assert not result.violations, "\n".join(map(str, result.violations))
