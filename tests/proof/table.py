"""What a run came to: for each guarantee the trials, the violations, the time; and all of it as one table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.proof.guarantees import GUARANTEES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["TEETH", "Report", "Tally"]

TEETH = "teeth"
"""The row of the mutants."""

_MEANINGS = {guarantee.name: guarantee.what for guarantee in GUARANTEES} | {TEETH: "a safeguard taken away is noticed"}


@dataclass(slots=True)
class Tally:
    """A row: how often something was tried, how often it failed, how many seconds that took, what was not tried."""

    trials: int = 0
    violations: int = 0
    seconds: float = 0.0
    skipped: int = 0


@dataclass(slots=True)
class Report:
    """Everything that was found.

    Attributes:
        tallies: by guarantee.
        problems: what failed, in full.
        reasons: why tests were skipped.
        mutants: each with what noticed it, and the seconds that took.
    """

    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    problems: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    mutants: list[tuple[str, str, float]] = field(default_factory=list)

    def add(self, name: str, *, trials: int = 0, seconds: float = 0.0, problems: Iterable[str] = ()) -> None:
        """Count trials of a guarantee, and what was wrong in them."""
        tally = self.tallies[name]
        tally.trials += trials
        tally.seconds += seconds
        for problem in problems:
            tally.violations += 1
            self.problems.append(f"{name}: {problem}")

    def skip(self, name: str, reason: str) -> None:
        """Count a test that could not be run here."""
        self.tallies[name].skipped += 1
        self.reasons.add(reason)

    def merge(self, other: Report) -> None:
        """Add another's."""
        for name, tally in other.tallies.items():
            mine = self.tallies[name]
            mine.trials += tally.trials
            mine.violations += tally.violations
            mine.seconds += tally.seconds
            mine.skipped += tally.skipped
        self.problems += other.problems
        self.reasons |= other.reasons
        self.mutants += other.mutants

    def untried(self) -> list[str]:
        """Return the guarantees for which nothing was tried."""
        return [guarantee.name for guarantee in GUARANTEES if not self.tallies[guarantee.name].trials]

    def render(self, seed: int) -> str:
        """Return the table, in Markdown that reads well as it is."""
        head = ("", "guarantee", "trials", "violations", "skipped", "seed", "seconds")
        rows = [head]
        for name, what in _MEANINGS.items():
            tally = self.tallies[name]
            numbers = (f"{tally.trials:,}", f"{tally.violations:,}", f"{tally.skipped:,}")
            rows.append((name, what, *numbers, str(seed), f"{tally.seconds:,.1f}"))
        return _aligned(rows)

    def render_mutants(self) -> str:
        """Return which mutant was noticed by what, likewise."""
        rows = [(name, by, f"{seconds:.1f}") for name, by, seconds in sorted(self.mutants)]
        return _aligned([("mutant", "noticed by", "seconds"), *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = 2  # columns of words; those of numbers go to the right
    lines = [
        " | ".join(cell.ljust(width) if at < left else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    rule = " | ".join("-" * width if at < left else "-" * (width - 1) + ":" for at, width in enumerate(widths))
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))
