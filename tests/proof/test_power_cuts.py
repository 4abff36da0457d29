"""A sample of what `python -m tests.proof` runs in full: every workload, a few states at each moment."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.proof.cuts import KILLED, notice
from tests.proof.explore import Case, explore
from tests.proof.mutants import MUTANTS
from tests.proof.workloads import WORKLOADS
from tests.proof.world import World, run_world

if TYPE_CHECKING:
    from aiodq.testing import Operation, Ordering

pytestmark = pytest.mark.timeout(600)  # a step that hangs is noticed by itself, and a case has very many

ROOT = Path(__file__).resolve().parents[2]
ORDERINGS: tuple[Ordering, ...] = ("posix", "ext4")


@pytest.mark.drawn("name", 16)
@pytest.mark.parametrize("name", WORKLOADS)
def test_no_power_cut_breaks_a_promise(name: str, seed: int) -> None:
    # `python -m tests.proof` tries each with both.
    ordering = Random(f"{name}:{seed}").choice(ORDERINGS)
    result = explore(Case(name, seed, ordering, states=3, nested=2, lives=1, moments=5), WORKLOADS[name])
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.states


@pytest.mark.drawn("name", 16)
@pytest.mark.parametrize("name", KILLED)
def test_no_kill_and_power_cut_after_it_breaks_a_promise(name: str, seed: int) -> None:
    ordering = Random(f"{seed}:{name}").choice(ORDERINGS)
    case = Case(name, seed, ordering, states=2, nested=1, lives=1, moments=6, kills=1)
    result = explore(case, WORKLOADS[name])
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.states


def test_what_an_owner_that_was_killed_had_only_moved_in_is_there_after_a_power_cut() -> None:
    case = Case("bulk loads", 3824875896, "posix", states=2, nested=1, lives=1, moments=6, kills=2)
    assert explore(case, WORKLOADS[case.workload]).violations == []


def test_what_a_read_took_for_damage_counts_only_once_it_was_found_on_disk() -> None:
    case = Case("the newest segment", 3158367454, "posix", states=2, nested=1, lives=1, moments=6, kills=2)
    assert explore(case, WORKLOADS[case.workload]).violations == []


@pytest.mark.parametrize("number", range(5))
def test_a_safeguard_taken_away_is_noticed(number: int, seed: int) -> None:
    # `python -m tests.proof --only teeth` takes each of them away.
    names = [name for name, mutant in MUTANTS.items() if mutant.workloads]
    done = notice(Random(f"{seed}").sample(names, number + 1)[number], 1, repeats=0)
    assert done.by != "nothing", done.mutant


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_something_that_is_there(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.workloads or mutant.test
    assert set(mutant.workloads) <= WORKLOADS.keys()
    assert not mutant.test or (ROOT / mutant.test.partition("::")[0]).exists()
    with mutant.patch():
        pass


@pytest.mark.parametrize("name", ["many producers", "written while syncing", "puts and acks"])
def test_the_same_seed_leaves_the_same_trace(name: str, seed: int) -> None:
    def trace() -> list[Operation]:
        world = World(seed)
        run_world(world, WORKLOADS[name].program)
        assert world.fs.trace is not None
        return world.fs.trace

    assert trace() == trace()


@pytest.mark.parametrize(
    ("workload", "times"),
    [("put many", 3), ("many producers", 1), pytest.param("many producers", 3, marks=pytest.mark.slow)],
)
def test_a_violation_repeats_from_what_it_prints_each_time(workload: str, times: int) -> None:
    mutant = MUTANTS["puts are acknowledged before the sync"]
    found = mutant.found(workload, seeds=range(1, 40))
    assert found is not None
    with mutant.patch():
        for _ in range(times):
            again = explore(Case.parse(str(found.case)), WORKLOADS[found.case.workload], enough=1)
            assert str(again.violations[0]) == str(found)
