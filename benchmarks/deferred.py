"""How punctual messages are that were put with a delay, among a million: `python -m benchmarks.deferred --help`."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import aiodq
from benchmarks.environment import describe
from benchmarks.harness import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

FAR = 3600.0
"""Seconds in which those are due that only wait; the rest is due while it is measured."""
TOGETHER = 1000
"""Messages in one put."""
AHEAD = 2.0
"""Seconds from the last put to the first moment."""


async def measure(path: Path, messages: int, due: int, seconds: float, rng: random.Random) -> dict[str, list[float]]:
    """Return by how many seconds each delivery came after its moment, and timers of the loop at the same moments."""
    late: dict[str, list[float]] = {"aiodq": [], "the loop's own timer": []}
    loop = asyncio.get_running_loop()
    async with aiodq.open_queue(path) as queue:
        for at in range(0, messages - due, TOGETHER):
            count = min(TOGETHER, messages - due - at)
            await queue.put_many([aiodq.Draft(b"waits", delay=FAR + rng.random() * FAR) for _ in range(count)])
        start = time.time() + AHEAD
        moments = sorted(start + rng.random() * seconds for _ in range(due))
        for at in range(0, due, TOGETHER):
            now = time.time()
            some = moments[at : at + TOGETHER]
            await queue.put_many([aiodq.Draft(b"%d" % round(one * 1e9), delay=one - now) for one in some])
        if time.time() > start:
            raise RuntimeError(f"putting {due:,} messages took more than {AHEAD:g} s: ask for fewer")
        timers = late["the loop's own timer"]
        skew = loop.time() - time.time()
        for one in moments:
            loop.call_at(one + skew, note, timers, one)
        for _ in range(due):
            message = await queue.get()
            note(late["aiodq"], int(message.body) / 1e9)
            message.ack_nowait()
        if queue.deferred() != messages - due:
            raise RuntimeError(f"{queue.deferred():,} are deferred, not {messages - due:,}")
    return late


def note(late: list[float], moment: float) -> None:
    """Add by how many seconds it is past this moment."""
    late.append(time.time() - moment)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deferred", description="How late deferred messages are."
    )
    add = parser.add_argument
    add("--messages", type=int, default=1_000_000, help="that wait (default: %(default)s)")
    add("--due", type=int, default=10_000, help="of them while it is measured (default: %(default)s)")
    add("--seconds", type=float, default=10.0, help="in which these are due (default: %(default)s)")
    add("--rounds", type=int, default=3, help="each with a store of its own (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    given = parser.parse_args(argv)
    for name, value in describe(given.dir.resolve(), "asyncio").items():
        print(f"{name}: {value}", file=sys.stderr)
    rng, rounds = random.Random(given.seed), []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.dir, prefix="aiodq-bench-") as directory:
            path = Path(directory) / "store"
            rounds.append(asyncio.run(measure(path, given.messages, given.due, given.seconds, rng)))
    title = f"{given.due:,} due among {given.messages:,} deferred, {given.rounds} rounds"
    table = Table("late, ms", "p50", "p99", "most of all rounds", title=title)
    for name in rounds[0]:
        medians = [statistics.median(percentile(late[name], part) for late in rounds) for part in (0.5, 0.99)]
        most = max(max(late[name]) for late in rounds)
        table.add_row(name, *(f"{figure * 1000:.1f}" for figure in (*medians, most)))
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
