"""What a mutant is, and all of them by name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.proof.explore import Case, explore
from tests.proof.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from tests.proof.explore import Violation

Patch: TypeAlias = "AbstractContextManager[object]"

__all__ = ["MUTANTS", "Mutant", "Patch", "mutant"]

_FEW: Final = (10, 20)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A safeguard, a patch that takes it away, and the workloads that rely on it."""

    name: str
    patch: Callable[[], Patch]
    workloads: tuple[str, ...]

    def found(self, workload: str, seeds: Iterable[int]) -> Violation | None:
        """Return the first violation that shows in one of its workloads under any of these seeds.

        A few moments are looked at first: most mutants show at many of them, and few only late in a trace.
        """
        with self.patch():
            for seed, moments in product(seeds, (*_FEW, 0)):
                case = Case(workload, seed, nested=1, lives=5, moments=moments)
                result = explore(case, WORKLOADS[workload], enough=1)
                if result.violations:
                    return result.violations[0]
        return None


MUTANTS: dict[str, Mutant] = {}


def mutant(*workloads: str) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Add a patch to those that have to be noticed in these workloads."""

    def add(patch: Callable[[], Patch]) -> Callable[[], Patch]:
        name = patch.__name__.replace("_", " ")
        MUTANTS[name] = Mutant(name, patch, workloads)
        return patch

    return add
