"""Run the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import growth, report, subjects
from benchmarks.cases import CASES
from benchmarks.environment import IN_MEMORY, describe
from benchmarks.harness import Case, Result, Settings, Subject, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDE = 200
"""Columns of a table that goes to a file or a pipe."""


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
        epilog="`python -m benchmarks growth --help` tells how to measure what growth costs.",
    )
    add = parser.add_argument
    add("--rounds", type=_positive(int), default=5, help="rounds over all subjects (default: %(default)s)")
    add("--seconds", type=_positive(float), default=0.3, help="length of one measurement (default: %(default)s)")
    add("--case", action="append", default=[], help="only cases whose name contains this; may be repeated")
    add("--subject", action="append", default=[], help="only subjects whose name contains this; may be repeated")
    add("--size", type=_positive(int), action="append", help="bytes in a body; may be repeated (default: 100, 1024)")
    add("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop (default: %(default)s)")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    add("--markdown", action="store_true", help="print Markdown instead of tables")
    add("--list", action="store_true", help="list cases and subjects, measure nothing")
    return parser


def _chosen(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(part in name for part in wanted)


def _loop_factory(name: str) -> tuple[str, Callable[[], asyncio.AbstractEventLoop]]:
    if name == "uvloop":
        try:
            return name, importlib.import_module("uvloop").new_event_loop
        except ModuleNotFoundError:
            return "asyncio (uvloop: not installed)", asyncio.new_event_loop
    return name, asyncio.new_event_loop


def _plan(arguments: argparse.Namespace, at_hand: list[Subject]) -> list[tuple[Case, int, list[Subject]]]:
    """Return each case to run, with its body size and who takes part."""
    sizes = sorted(set(arguments.size or (100, 1024)))
    plan = []
    for case in CASES:
        taking_part = [each for each in at_hand if case.accepts(each) and _chosen(each.name, arguments.subject)]
        if taking_part and _chosen(case.name, arguments.case):
            plan += [(case, size, taking_part) for size in (sizes[:1] if case.timed else sizes)]
    return plan


def _run(plan: list[tuple[Case, int, list[Subject]]], settings: Settings, console: Console) -> list[Result]:
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


def main() -> int:
    """Run what the command line asks for; return 1 if a subject failed, 2 if nothing matches."""
    if sys.argv[1:2] == ["growth"]:
        return growth.main(sys.argv[2:])
    arguments = _parser().parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    at_hand, missing = subjects.load()
    if arguments.list:
        _list(at_hand, console)
        return 0
    plan = _plan(arguments, at_hand)
    loop, factory = _loop_factory(arguments.loop)
    environment = describe(arguments.dir.resolve(), loop)
    notes = Console(stderr=True) if arguments.markdown else console
    _print_header(environment, missing, notes)
    if not plan:
        notes.print("Nothing matches.")
        return 2
    settings = Settings(
        directory=arguments.dir, rounds=arguments.rounds, seconds=arguments.seconds, loop_factory=factory
    )
    results = _run(plan, settings, Console(stderr=True))
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
