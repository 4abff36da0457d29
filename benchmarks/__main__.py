"""Run the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import growth, holds, hops, report, shared, subjects, summary, taking
from benchmarks.cases import CASES, HEADLINES
from benchmarks.environment import IN_MEMORY, describe
from benchmarks.harness import Case, Result, Settings, Subject, interleave
from benchmarks.subjects import godiskqueue
from benchmarks.workers import Workers, loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Part = tuple[Case, int, list[Subject]]
"""A case, the bytes in a body, and who takes part."""

WIDE = 200
"""Columns of a table that goes to a file or a pipe."""

QUICK_SECONDS = 0.02
"""Length of a measurement that only shows that it runs."""

OTHERS = {
    "growth": growth.main,
    "holds": holds.main,
    "hops": hops.main,
    "shared": shared.main,
    "summary": summary.main,
    "taking": taking.main,
}
"""What else this command does, by its first word."""


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = kind.__name__
    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure aiodq and its peers.",
        epilog="`python -m benchmarks growth` measures what growth costs, `python -m benchmarks holds` for how long "
        "the event loop is held up, `python -m benchmarks shared` what it costs "
        "that many processes share a store, `python -m benchmarks hops` of which steps a put is made up there, "
        "`python -m benchmarks taking` what of a message's cost is Python's, "
        "`python -m benchmarks summary FILE` makes tables and a picture of what --json kept.",
    )
    add = parser.add_argument
    add("--rounds", type=_positive(int), default=5, help="rounds over all subjects (default: %(default)s)")
    add("--seconds", type=_positive(float), default=0.3, help="length of one measurement (default: %(default)s)")
    add("--all", action="store_true", help="also the cases that are no headlines: latencies, a busy loop, transactions")
    add("--quick", action="store_true", help="one short round of everything: does it run? Its figures mean nothing")
    add("--compiled", type=Path, metavar="PYTHON", help="an interpreter whose aiodq is compiled: it takes part, too")
    add("--go-diskqueue", type=Path, metavar="PROGRAM", help="a program that measures go-diskqueue: see README.md here")
    add("--case", action="append", default=[], help="only cases, of all, whose name contains this; may be repeated")
    add("--subject", action="append", default=[], help="only subjects whose name contains this; may be repeated")
    add("--size", type=_positive(int), action="append", help="bytes in a body; may be repeated (default: 100)")
    add("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop (default: %(default)s)")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    add("--markdown", action="store_true", help="print Markdown instead of tables")
    add("--list", action="store_true", help="list cases and subjects, measure nothing")
    return parser


def _chosen(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(part in name for part in wanted)


def _at_hand(arguments: argparse.Namespace) -> tuple[list[Subject], dict[str, str]]:
    """Return all subjects, those of other interpreters and programs too, and why others are missing."""
    found, missing = subjects.load()
    if arguments.compiled is not None:
        try:
            found += subjects.compiled(arguments.compiled)
        except (OSError, ValueError) as error:
            missing[subjects.COMPILED] = str(error)
    if arguments.go_diskqueue is not None:
        found += godiskqueue.subjects(arguments.go_diskqueue)
    return found, missing


def _plan(arguments: argparse.Namespace, at_hand: list[Subject]) -> list[Part]:
    """Return each case to run, with its body size and who takes part."""
    sizes = sorted(set(arguments.size or (100,)))
    cases = CASES if arguments.all or arguments.case else HEADLINES
    plan = []
    for case in cases:
        taking_part = [each for each in at_hand if case.accepts(each) and _chosen(each.name, arguments.subject)]
        if taking_part and _chosen(case.name, arguments.case):
            plan += [(case, size, taking_part) for size in (sizes[:1] if case.timed else sizes)]
    return plan


def _prepared(plan: list[Part], missing: dict[str, str]) -> list[Part]:
    """Return the plan without subjects that lack what they need here, and note why."""
    libraries = {each.package for _, _, taking_part in plan for each in taking_part} & set(subjects.LIBRARIES)
    lacking = {library: reason for library in sorted(libraries) if (reason := subjects.prepare(library))}
    missing |= lacking
    left = ((case, size, [each for each in them if each.package not in lacking]) for case, size, them in plan)
    return [part for part in left if part[2]]


def _run(plan: list[Part], settings: Settings, console: Console) -> list[Result]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    results = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(plan) * (settings.rounds + 1))
        for case, size, taking_part in plan:
            progress.update(task, description=f"{case.name} · {size:,} B")
            results.append(interleave(case, size, taking_part, settings, partial(progress.advance, task)))
    return results


def _list(at_hand: list[Subject], console: Console) -> None:
    for case in CASES:
        console.print(f"[bold]{case.name}[/]: {case.summary}")
        for subject in filter(case.accepts, at_hand):
            console.print(f"    {subject.name} ({subject.durability.value}: {subject.promise})")


def _print_header(environment: dict[str, str], missing: dict[str, str], console: Console) -> None:
    for name, value in environment.items():
        console.print(f"[dim]{name}:[/] {escape(value)}", highlight=False)
    if environment["file system"] in IN_MEMORY:
        console.print("[bold red]No disk here: a sync costs nothing. Choose another place with --dir.[/]")
    for library, reason in missing.items():
        console.print(f"[bold yellow]{library}: {escape(reason)}[/]", highlight=False)
    console.print()


def _measure(arguments: argparse.Namespace, plan: list[Part]) -> list[Result]:
    seconds = QUICK_SECONDS if arguments.quick else arguments.seconds
    with Workers(arguments.dir.resolve(), seconds, arguments.loop) as workers:
        settings = Settings(
            rounds=1 if arguments.quick else arguments.rounds,
            seconds=seconds,
            measure=workers.measure,
            pilot=not arguments.quick,
        )
        return _run(plan, settings, Console(stderr=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 1 if a subject failed, 2 if nothing matches."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] and given[0] in OTHERS:
        return OTHERS[given[0]](given[1:])
    arguments = _parser().parse_args(given)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    at_hand, missing = _at_hand(arguments)
    if arguments.list:
        _list(at_hand, console)
        return 0
    plan = _prepared(_plan(arguments, at_hand), missing)
    environment = describe(arguments.dir.resolve(), loop_factory(arguments.loop)[0])
    notes = Console(stderr=True) if arguments.markdown else console
    _print_header(environment, missing, notes)
    if not plan:
        notes.print("Nothing matches.")
        return 2
    results = _measure(arguments, plan)
    if arguments.markdown:
        sys.stdout.write(report.write_markdown(results, environment, missing))
    else:
        report.write_tables(results, console)
        console.print(report.LEGEND)
    if arguments.json is not None:
        report.write_json(arguments.json, results, environment, missing)
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
