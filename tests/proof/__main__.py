"""The proof: `python -m tests.proof [--quick] [--only G7,teeth] [--figure NAME=N] [--seed N] [--jobs N] [--case TEXT]`.

The full form takes most of an hour on two processors. Exit code 1: a promise was broken, a mutant was not noticed, or
something was not tried.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

from tests.figures import FIGURES, variable
from tests.proof.cuts import KILLED, count_cut, count_noticed, cut, killing, notice, wanting
from tests.proof.explore import Case, explore
from tests.proof.guarantees import GUARANTEES
from tests.proof.mutants import MUTANTS
from tests.proof.suite import run_sample, run_tests
from tests.proof.table import TEETH, Report
from tests.proof.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.testing import Ordering

_ORDERINGS: Final[tuple[Ordering, ...]] = ("posix", "ext4")
_QUICK_SECONDS: Final = 28.0
_QUICK_MUTANTS: Final = 20
_REPEATS: Final = 10
_ROUNDS: Final = 40
_ROWS: Final = frozenset({TEETH, *(guarantee.name for guarantee in GUARANTEES)})


def _rows(text: str) -> frozenset[str]:
    rows = frozenset(text.split(","))
    if not rows <= _ROWS:
        raise argparse.ArgumentTypeError(f"no row is called {', '.join(sorted(rows - _ROWS))}")
    return rows


def _figure(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if name not in FIGURES or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"write NAME=N, with a name among {', '.join(FIGURES)}")
    return name, int(number)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description="Try every guarantee.")
    parser.add_argument("--quick", action="store_true", help="a sample, in less than a minute")
    parser.add_argument("--seed", type=int, help="decides everything random; drawn, and printed, without")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--only", type=_rows, default=_ROWS, help="rows of the table, with commas between them")
    parser.add_argument("--figure", type=_figure, action="append", default=[], help="how often: kills=100, for one")
    parser.add_argument("--case", type=Case.parse, help="repeat one case, as a violation prints it")
    return parser.parse_args(argv)


def repeat(case: Case) -> int:
    """Run one case again, and print what is wrong."""
    result = explore(case, WORKLOADS[case.workload])
    for violation in result.violations:
        print(violation)
    print(f"{result.states:,} states, {result.nested:,} nested, {len(result.violations)} violations")
    return bool(result.violations)


class _Run:
    """Work for several processes; whatever ends is counted here, in one thread."""

    def __init__(self, jobs: int) -> None:
        self.report = Report()
        self._processes = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        self._threads = ThreadPoolExecutor(jobs)
        self._under_way: dict[Future[Any], Callable[[Any], object]] = {}

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._processes.shutdown(cancel_futures=True)

    def cut(self, workload: str, seed: int, orderings: Sequence[Ordering] = _ORDERINGS, **how: int) -> None:
        for ordering in orderings:
            future = self._processes.submit(cut, Case(workload, seed, ordering, **how))
            self._under_way[future] = lambda done: count_cut(self.report, done)

    def mutants(self, names: Iterable[str], seed: int, repeats: int) -> None:
        for name in names:
            future = self._processes.submit(notice, name, seed, repeats)
            self._under_way[future] = lambda done: count_noticed(self.report, done)

    def tests(self, run: Callable[[Report], object]) -> None:
        """Run pytest; it counts by itself, on a report of its own."""

        def counted() -> Report:
            run(own := Report())
            return own

        self._under_way[self._threads.submit(counted)] = self.report.merge

    def finish(self, what: str) -> None:
        """Wait for everything that is under way."""
        total, told = len(self._under_way), len(self.report.problems)
        while self._under_way:
            done, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
            for future in done:
                self._under_way.pop(future)(future.result())
            _progress(f"{what}: {total - len(self._under_way)} of {total}, {len(self.report.problems)} problems")
        if not sys.stderr.isatty():
            found = self.report.problems[told:]
            print(f"{what}: {total} done, {len(found)} problems", *found, sep="\n", file=sys.stderr, flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def quick(run: _Run, seed: int) -> None:
    """Run a sample of everything."""
    run.tests(partial(run_sample, seconds=_QUICK_SECONDS, seed=seed))
    noticed = [name for name, mutant in MUTANTS.items() if mutant.workloads]
    # Some seeds find one sooner than others; this one finds all of them soon.
    run.mutants(random.Random(seed).sample(noticed, _QUICK_MUTANTS), 1, repeats=0)
    for number, name in enumerate(WORKLOADS):
        run.cut(name, seed, [_ORDERINGS[(seed + number) % 2]], states=3, nested=4, moments=8)
    for number, name in enumerate(KILLED):
        run.cut(name, seed, [_ORDERINGS[(seed + number) % 2]], states=2, nested=1, lives=1, moments=6, kills=2)
    run.finish("quick")


def full(run: _Run, seed: int, only: frozenset[str]) -> None:
    """Run everything for these rows, and the exploration until each guarantee among them has its states."""
    for guarantee in GUARANTEES:
        if guarantee.tests and guarantee.name in only:
            run.tests(partial(run_tests, tests=guarantee.tests, seed=seed))
    run.finish("tests")
    if TEETH in only:
        run.mutants(MUTANTS, 1, _REPEATS)
        run.finish("mutants")
    for number in range(_ROUNDS):
        names, killed = wanting(run.report, only), killing(run.report, only)
        for name in names:
            run.cut(name, seed + number, states=6, nested=4, lives=3)
        for name in killed:
            run.cut(name, seed + number, states=3, nested=2, lives=1, moments=10, kills=12)
        run.finish(f"power cuts, round {number + 1}")
        if not names and not killed:
            break


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return the exit code."""
    options = _arguments(argv)
    if options.case is not None:
        return repeat(options.case)
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    os.environ.update({variable(name): str(number) for name, number in options.figure})
    print(f"seed {seed}, {options.jobs} jobs", file=sys.stderr)
    begun = time.perf_counter()
    run = _Run(options.jobs)
    try:
        if options.quick:
            quick(run, seed)
        else:
            full(run, seed, options.only)
    finally:
        run.close()
    _progress("")
    sample = options.quick or options.only != _ROWS
    return conclude(run.report, seed, time.perf_counter() - begun, sample=sample)


def conclude(report: Report, seed: int, seconds: float, *, sample: bool) -> int:
    """Print the table and all that is to be said about it; return the exit code."""
    if report.mutants:
        print(report.render_mutants(), end="\n\n")
    print(report.render(seed))
    print(f"\n{seconds:,.0f} seconds; the times above add up what ran side by side.")
    for reason in sorted(report.reasons):
        print(f"skipped: {reason}")
    for problem in report.problems:
        print(f"\n{problem}")
    untried = report.untried()
    if untried:
        print(f"\nnot tried: {', '.join(untried)}")
    return int(bool(report.problems) or (bool(untried) and not sample))


if __name__ == "__main__":
    sys.exit(main())
