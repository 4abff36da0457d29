"""`aiodq demo`: the command around the demonstration, and its closing table."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter, validators
from rich.table import Table

from aiodq.cli.arguments import Place, whole
from aiodq.cli.demo.progress import narrator
from aiodq.cli.demo.run import Demonstration, Outcome
from aiodq.cli.demo.sources import Library, standard_library
from aiodq.cli.exits import DONE, WRONG, CommandError
from aiodq.cli.loop import run_command
from aiodq.cli.show import counted, human_bytes, print_json, rate, stdout

__all__ = ["demo"]

AtLeastOne = Annotated[int, Parameter(converter=whole, validator=validators.Number(gte=1))]


def demo(
    *,
    store: Place | None = None,
    producers: AtLeastOne = 8,
    consumers: AtLeastOne = 8,
    keep: bool = False,
    limit: AtLeastOne | None = None,
    json: bool = False,
) -> int:
    """Kill a process in the middle of its work, and prove that nothing acknowledged is lost.

    Producers in another process put every line of Python's standard library, each put synced to disk. Half-way that
    process is killed with SIGKILL. The store is opened again, the producers continue after the last stored line, and
    consumers take and ack everything. The result is compared with the sources: the exit code is 1 if a line was lost,
    changed, out of its producer's order, stored twice, or delivered after its ack.

    Args:
        store: a new directory for the store, which is kept; by default a temporary one is used.
        producers: how many producers put at the same time.
        consumers: how many consumers take at the same time.
        keep: do not remove the temporary store.
        limit: the most lines to put.
        json: print the figures as JSON.
    """
    library = Library(standard_library(), producers, limit)
    if not library.lines:
        raise CommandError(f"there is not one line of Python below {standard_library()}")
    with _directory(store, keep=keep) as path:
        return run_command(_run(path, library, consumers, limit, json=json))


async def _run(path: str, library: Library, consumers: int, limit: int | None, *, json: bool) -> int:
    async with narrator(library.lines) as told:
        outcome = await Demonstration(path, library, consumers=consumers, limit=limit, told=told).run()
    if json:
        print_json(_fields(outcome, library))
    else:
        _print(outcome, library, consumers)
    return DONE if outcome.ok else WRONG


@contextmanager
def _directory(store: str | None, *, keep: bool) -> Iterator[str]:
    """Give the store a place; take it away at the end unless it shall stay."""
    if store is not None:
        if os.path.exists(store) and (not os.path.isdir(store) or os.listdir(store)):
            raise CommandError(f"{store} is there already; the demonstration wants a directory of its own")
        path, keep = os.path.abspath(store), True
    else:
        path = tempfile.mkdtemp(prefix="aiodq-demo-")
    try:
        yield path
    finally:
        if keep:
            sys.stderr.write(f"the store is kept: {path}\n")
        else:
            shutil.rmtree(path, ignore_errors=True)


def _fields(outcome: Outcome, library: Library) -> dict[str, Any]:
    verdict, figures = outcome.verdict, asdict(outcome.figures)
    figures["acknowledged"] = sum(outcome.figures.acknowledged)
    return {
        "ok": outcome.ok,
        "files": library.files,
        "lines": library.lines,
        **figures,
        "redelivered": verdict.redelivered,
        "lost": verdict.count("lost") + outcome.recovery.count("lost"),
        "duplicates": verdict.count("stored twice"),
        "wrong": {kind: outcome.recovery.count(kind) + count for kind, count in verdict.counts.items()},
        "problems": [asdict(problem) for problem in (*outcome.recovery.problems, *verdict.problems)],
        "digest": verdict.digest,
    }


def _print(outcome: Outcome, library: Library, consumers: int) -> None:
    console = stdout()
    table = Table(title="aiodq demo", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(outcome, library, consumers):
        table.add_row(name, text)
    console.print(table)
    for when, verdict in (("after the kill", outcome.recovery), ("in the end", outcome.verdict)):
        for problem in verdict.problems:
            where = f" (message {problem.offset})" if problem.offset >= 0 else ""
            console.print(f"{when}: {problem.kind}: {problem.where}{where}")
    if outcome.figures.not_acked:
        console.print(f"{counted(outcome.figures.not_acked, 'message')} not acked, the store says")
    if outcome.figures.damages:
        console.print(f"{counted(outcome.figures.damages, 'damage')} in the store; see aiodq verify")
    console.print("proved: everything that was acknowledged was delivered" if outcome.ok else "NOT PROVED")


def _rows(outcome: Outcome, library: Library, consumers: int) -> Iterator[tuple[str, str]]:
    figures, verdict, lines = outcome.figures, outcome.verdict, library.lines
    size = figures.taken_bytes * lines / max(figures.taken, 1)
    acknowledged = sum(figures.acknowledged)
    yield "put", f"{lines:,} lines of {library.files:,} files by {len(library.shares)} producers, synced"
    yield "", f"{rate(lines, figures.put_time):,.0f} messages/s, {human_bytes(rate(size, figures.put_time))}/s"
    yield "fsyncs", f"{figures.fsyncs:,}, {rate(lines, figures.fsyncs):,.0f} messages each"
    yield "SIGKILL", f"with {acknowledged:,} lines acknowledged, {figures.consumed:,} consumed"
    yield "recovered", f"{figures.recovered:,} messages in {figures.opening * 1000:.0f} ms"
    yield "", f"{acknowledged:,} acknowledged, {figures.recovered - acknowledged:,} stored before anyone was told"
    yield "consumed", f"{figures.taken:,} deliveries to {consumers} consumers, acked"
    yield (
        "",
        (
            f"{rate(figures.taken, figures.taken_time):,.0f} messages/s, "
            f"{human_bytes(rate(figures.taken_bytes, figures.taken_time))}/s"
        ),
    )
    yield "redelivered", f"{verdict.redelivered:,}, in flight at the kill"
    yield "duplicates", f"{verdict.count('stored twice'):,}"
    yield "lost", f"{outcome.recovery.count('lost') + verdict.count('lost'):,}"
    wrong = sum(verdict.counts.values()) - verdict.count("lost") - verdict.count("stored twice")
    yield "changed, out of order", f"{wrong:,}"
    yield "digest", verdict.digest
    same = all(source == came for source, came in verdict.digests)
    yield "", "the sources' and the consumers' are the same" if same else "THE SOURCES' IS ANOTHER"
