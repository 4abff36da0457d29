"""The exploration as jobs for several processes, and what each guarantee makes of their results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Final

from tests.proof.explore import Case, explore
from tests.proof.guarantees import GUARANTEES
from tests.proof.mutants import MUTANTS
from tests.proof.table import TEETH
from tests.proof.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Container

    from tests.proof.table import Report

__all__ = ["KILLED", "Cut", "Noticed", "count_cut", "count_noticed", "cut", "killing", "notice", "wanting"]

_SHARED: Final = frozenset({"many producers", "written while syncing"})
"""Workloads in which several puts share a sync."""

_PUTTING: Final = frozenset(
    {
        "single puts", "the first message", "put many", "synced now and then", "unsynced tails",
        "larger than a sector", "written through memory", "puts of clients through memory",
    }
)  # fmt: skip
KILLED: Final = tuple(WORKLOADS)
"""Workloads in which processes are killed."""

_CHANGING: Final = frozenset(
    {
        "several topics", "a namesake", "topics come and go", "channels come and go", "stored options",
        "pauses and options of channels",
    }
)  # fmt: skip
"""Workloads in which topics or channels are deleted, or options are changed."""

_SETTLING: Final = frozenset(WORKLOADS) - _SHARED - _PUTTING
"""Workloads in which messages are acked, requeued or purged."""

_KINDS: Final = {
    "resurrected": "G4",
    "phantom": "G5",
    "duplicate": "G5",
    "order": "G5",
    "unstable": "G7",
    "deletion": "G32",
    "options": "G32",
    "early": "G16",
}
"""Whose violation it is, by its first word; G1's otherwise."""

_SEEDS: Final = 40
"""So many are tried before a mutant counts as unnoticed."""

_MISTAKES: Final = ("TypeError", "NameError", "AttributeError", "ImportError", "values to unpack")
"""What a mutant raises that does not fit the code that it was made of any more."""


@dataclass(slots=True)
class Cut:
    """What a case came to."""

    case: Case
    states: int
    nested: int
    seconds: float
    violations: list[tuple[str, str]] = field(default_factory=list)


def cut(case: Case) -> Cut:
    """Explore a case."""
    begun = time.perf_counter()
    result = explore(case, WORKLOADS[case.workload])
    found = [(_KINDS.get(violation.what.partition(":")[0], "G1"), str(violation)) for violation in result.violations]
    return Cut(case, len(result.distinct), result.nested, time.perf_counter() - begun, found)


def count_cut(report: Report, done: Cut) -> None:
    """Count a case for every guarantee that it tries."""
    if done.case.kills:
        report.add("G3", trials=done.states, seconds=done.seconds, problems=[what for _, what in done.violations])
        return
    shared = done.case.workload in _SHARED
    of = {"G1": done.states, "G5": done.states, "G7": done.nested}
    of |= {"G2": done.states} if shared else {}
    of |= {"G4": done.states} if done.case.workload in _SETTLING else {}
    of |= {"G32": done.states} if done.case.workload in _CHANGING else {}
    for name, trials in of.items():
        mine = [what for kind, what in done.violations if kind == name]
        report.add(name, trials=trials, seconds=done.seconds / len(of), problems=mine)


def wanting(report: Report, only: Container[str]) -> list[str]:
    """Return the workloads that these guarantees still need states of."""
    short = {each.name for each in GUARANTEES if each.name in only and report.tallies[each.name].trials < each.states}
    if short & {"G1", "G5", "G7"}:
        return list(WORKLOADS)
    of = {"G2": _SHARED, "G4": _SETTLING, "G32": _CHANGING}
    return [name for name in WORKLOADS if any(name in of.get(guarantee, ()) for guarantee in short)]


def killing(report: Report, only: Container[str]) -> list[str]:
    """Return the workloads of which processes still have to be killed."""
    wanted = next(each.states for each in GUARANTEES if each.name == "G3")
    return list(KILLED) if "G3" in only and report.tallies["G3"].trials < wanted else []


@dataclass(slots=True)
class Noticed:
    """What became of a mutant: the violation that showed it, and how often that came again; or the test that failed."""

    mutant: str
    seconds: float
    violation: str = ""
    case: str = ""
    repeated: int = 0
    repeats: int = 0
    test: str = ""

    @property
    def broken(self) -> bool:
        """Whether only a mistake in the patch was noticed, such as a call of what has other arguments by now."""
        return any(error in self.violation for error in _MISTAKES)

    @property
    def by(self) -> str:
        """What noticed it."""
        return self.test or (f"workload {self.case.partition('/')[0]!r}" if self.case else "nothing")


def notice(name: str, seed: int, repeats: int) -> Noticed:
    """Look for a mutant in its workloads, and repeat what showed it; where none does, run the test that is named."""
    begun = time.perf_counter()
    mutant = MUTANTS[name]
    tries = product(range(seed, seed + _SEEDS), mutant.workloads)
    found = next((violation for one, workload in tries if (violation := mutant.found(workload, [one]))), None)
    if found is None:
        test = mutant.test if mutant.test and mutant.fails() else ""
        return Noticed(name, time.perf_counter() - begun, test=test)
    noticed = Noticed(name, 0.0, str(found), str(found.case), repeats=repeats)
    with mutant.patch():
        for _ in range(repeats):
            again = explore(Case.parse(noticed.case), WORKLOADS[found.case.workload], enough=1)
            noticed.repeated += [str(each) for each in again.violations[:1]] == [noticed.violation]
    noticed.seconds = time.perf_counter() - begun
    return noticed


def count_noticed(report: Report, done: Noticed) -> None:
    """Count a mutant: it has to have been noticed, and each time again."""
    missed = [] if done.violation or done.test else [f"not noticed: {done.mutant}"]
    missed += [f"does not fit the code: {done.mutant}: {done.violation}"] if done.broken else []
    report.add(TEETH, trials=1, seconds=done.seconds, problems=missed)
    report.mutants.append((done.mutant, done.by, done.seconds))
    if done.violation:
        times = f"{done.repeated} of {done.repeats} times"
        wrong = [] if done.repeated == done.repeats else [f"{done.mutant}: --case '{done.case}' repeated {times}"]
        report.add("G26", trials=done.repeats, problems=wrong)
