"""What it costs that many processes share a store: `python -m benchmarks shared --help`.

Each part compares processes that stay open all the time and are measured in turn, round after round; a ratio is the
median of the ratios within each round. What such a process does is in `sharing`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import subjects
from benchmarks.environment import describe
from benchmarks.harness import median, percentile
from benchmarks.sharing import Participant
from benchmarks.workers import loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["PARTS", "Figures", "Scale", "main"]

PROCESSES: Final = 4
PRODUCERS: Final = 100
"""Of all processes together."""
MANY: Final = f"put, {PROCESSES} processes, {PRODUCERS} producers"
HEAD_START: Final = 0.02
"""Seconds for all processes to hear what is to be done, before they begin at one moment."""
LONGEST: Final = 107
"""Bytes that the path of a Unix socket may have."""
WATCHED: Final = 0.5
"""Seconds after a signal in which the longest put counts."""

SYNCED: Final = "kept; kept"
KERNEL: Final = "kept; lost: what the kernel had not written"


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    seconds: float
    messages: int
    kills: int
    loop: str
    sync_backend: str
    size: int = 100


@dataclass
class Figures:
    """One row: what was measured of one that takes part, beside which other row, and what was aimed at.

    Attributes:
        part: of what it is.
        name: who takes part.
        guarantee: what is left of a put that returned, or of an ack that was waited for, after a SIGKILL of the process
            that asked, and after a power cut.
        unit: of the figures: `/s` where more is better, `ms` where less is.
        beside: the row that it is compared with; none where empty.
        goal: the ratio, or the milliseconds, that is aimed at; None for none.
        figures: one a round, or one a signal.
    """

    part: str
    name: str
    guarantee: str
    unit: str = "/s"
    beside: str = ""
    goal: float | None = None
    figures: list[float] = field(default_factory=list)

    def ratio(self, rows: Sequence[Figures]) -> float | None:
        """Return how many times faster it is than the row beside it, as the median over the rounds."""
        other = next((row for row in rows if row.part == self.part and row.name == self.beside), None)
        if other is None:
            return None
        return median([ours / theirs for ours, theirs in zip(self.figures, other.figures, strict=True)])


# --- those who take part


class _Team:
    """Processes that have one queue open, or one process."""

    def __init__(
        self, row: Figures, scale: Scale, kind: str, given: Sequence[dict[str, Any]], producers: int = 1
    ) -> None:
        self.row, self._scale, self._producers = row, scale, producers
        self.members: list[Participant] = []
        try:
            # The first of them owns a store before the second asks for it.
            for each in given:
                self.members.append(Participant(scale.loop, kind, each))
                self.members[-1].ready()
        except BaseException:
            self.close()
            raise

    def put(self, members: Sequence[Participant]) -> float:
        """Have these put at once for a while; return how many messages a second that is."""
        start = monotonic() + HEAD_START
        stop = start + self._scale.seconds
        share = self._producers // len(members)
        for member in members:
            member.say("put", start=start, stop=stop, producers=share, size=self._scale.size)
        return float(sum(member.answer() for member in members)) / self._scale.seconds

    def put_by_all(self) -> None:
        """Note a round in which all processes put."""
        self.row.figures.append(max(self.put(self.members), 1 / self._scale.seconds))

    def put_by_last(self) -> None:
        """Note a round in which only the last one does, which owns nothing where it is not the only one."""
        self.row.figures.append(max(self.put(self.members[-1:]), 1 / self._scale.seconds))

    def take(self, what: str) -> None:
        """Note a round in which the last one works off a backlog that it has put."""
        last, messages = self.members[-1], self._scale.messages
        last.ask("fill", messages=messages, size=self._scale.size)
        self.row.figures.append(messages / last.ask(what, messages=messages))

    def close(self) -> None:
        """Let all of them end, the owner last."""
        for member in reversed(self.members):
            member.close()


def _interleaved(rounds: int, turns: Sequence[tuple[_Team, Callable[[], None]]]) -> None:
    """Measure in turn, in another order each round, after a first one that does not count."""
    rng, order = random.Random(1), list(turns)
    for number in range(rounds + 1):
        rng.shuffle(order)
        for team, measure in order:
            measure()
            if not number:
                team.row.figures.clear()


def _local(directory: Path, scale: Scale) -> list[dict[str, Any]]:
    return [{"path": str(directory), "mode": "exclusive", "sync": "always", "sync_backend": scale.sync_backend}]


def _sharing(directory: Path, scale: Scale, processes: int, sync: str = "always") -> list[dict[str, Any]]:
    each = {"path": str(directory), "mode": "shared", "sync": sync, "sync_backend": scale.sync_backend}
    return [each] * processes


# --- the parts


def one_producer(directory: Path, scale: Scale, _notes: list[str]) -> list[Figures]:
    """Measure puts of one producer."""
    part = "put, 1 producer"
    with ExitStack() as stack:
        local = _Team(Figures(part, "local", SYNCED), scale, "aiodq", _local(directory / "local", scale))
        stack.callback(local.close)
        row = Figures(part, "shared, from beside the owner", SYNCED, beside="local", goal=0.8)
        remote = _Team(row, scale, "aiodq", _sharing(directory / "shared", scale, 2))
        stack.callback(remote.close)
        _interleaved(scale.rounds, [(local, local.put_by_last), (remote, remote.put_by_last)])
        return [local.row, remote.row]


def many_producers(directory: Path, scale: Scale, notes: list[str]) -> list[Figures]:
    """Measure puts of many producers in several processes."""
    part, one, wide = MANY, f"local, 1 x {PRODUCERS}", f"shared, {PROCESSES} x {PRODUCERS // PROCESSES}"
    with ExitStack() as stack:
        teams: list[_Team] = []

        def add(row: Figures, kind: str, given: Sequence[dict[str, Any]]) -> None:
            team = _Team(row, scale, kind, given, PRODUCERS)
            stack.callback(team.close)
            teams.append(team)

        add(Figures(part, one, SYNCED), "aiodq", _local(directory / "local", scale))
        every = _sharing(directory / "shared", scale, PROCESSES)
        add(Figures(part, wide, SYNCED, beside=one, goal=0.8), "aiodq", every)
        add(Figures(part, f"{wide}, os", KERNEL), "aiodq", _sharing(directory / "os", scale, PROCESSES, "os"))
        for row, kind, given in _peers(directory, stack, notes):
            add(row, kind, given)
        _interleaved(scale.rounds, [(team, team.put_by_all) for team in teams])
        return [team.row for team in teams] + list(_beside_peers(wide, [team.row for team in teams]))


def _peers(directory: Path, stack: ExitStack, notes: list[str]) -> Iterator[tuple[Figures, str, list[dict[str, Any]]]]:
    part = MANY
    for kind, name, guarantee, given in (
        ("huey", f"huey, SQLite FULL, {PROCESSES} x 1", SYNCED, {}),
        ("litequeue", f"litequeue, SQLite FULL, {PROCESSES} x 1", SYNCED, {"synchronous": "FULL"}),
        ("litequeue", f"litequeue, {PROCESSES} x 1", "kept; lost since the last checkpoint", {"synchronous": "NORMAL"}),
    ):
        try:
            __import__(kind)
        except ModuleNotFoundError:
            notes.append(f"{name}: not installed")
            continue
        path = str(directory / f"{name}.db".replace(" ", ""))
        yield Figures(part, name, guarantee), kind, [{"path": path, **given}] * PROCESSES
    reason = _redis_missing(directory / "redis")
    if reason:
        notes.append(f"Redis: {reason}")
        return
    name = f"Redis always, Unix socket, {PROCESSES} x {PRODUCERS // PROCESSES}"
    yield Figures(part, name, SYNCED), "redis", [{"path": _start_redis(directory / "redis", stack)}] * PROCESSES


def _redis_missing(directory: Path) -> str:
    if len(str(directory / "redis.sock")) > LONGEST:
        return f"its socket's path would be longer than {LONGEST} bytes: choose another --dir"
    missing = subjects.load(["redis"])[1]
    return missing.get("redis") or subjects.prepare("redis")


def _start_redis(directory: Path, stack: ExitStack) -> str:
    """Start a server that syncs before it answers; return its socket."""
    from benchmarks.subjects.redis import server_command  # noqa: PLC0415 - its package may not be installed

    directory.mkdir()
    server = subprocess.Popen(server_command(directory, "always"), stdout=subprocess.DEVNULL)  # noqa: S603 - see there

    def end() -> None:
        server.terminate()
        server.wait()

    stack.callback(end)
    path, until = directory / "redis.sock", monotonic() + 20
    while not path.exists() and monotonic() < until:
        sleep(0.01)
    return str(path)


GOALS: Final = {"huey": 10.0, "litequeue": 10.0, "Redis": 2.0}


def _beside_peers(wide: str, rows: Sequence[Figures]) -> Iterator[Figures]:
    """Yield the shared store once more beside each peer, under the policy that promises as much."""
    for row in rows:
        library = row.name.partition(" ")[0].rstrip(",")
        if library in GOALS:
            ours = next(each for each in rows if each.name == (wide if row.guarantee == SYNCED else f"{wide}, os"))
            yield Figures(
                row.part, f"{ours.name}, beside {row.name}", ours.guarantee,
                beside=row.name, goal=GOALS[library], figures=ours.figures,
            )  # fmt: skip


def batches(directory: Path, scale: Scale, _notes: list[str]) -> list[Figures]:
    """Measure how a backlog is worked off."""
    rows: list[Figures] = []
    with ExitStack() as stack:
        local = _Team(Figures(part="", name="", guarantee=""), scale, "aiodq", _local(directory / "local", scale))
        stack.callback(local.close)
        remote = _Team(
            Figures(part="", name="", guarantee=""), scale, "aiodq", _sharing(directory / "shared", scale, 2)
        )
        stack.callback(remote.close)
        for part, what, goal in (
            ("get_many(1000) + ack_many", "batches", 0.5),
            ("async for + ack_nowait", "each", None),
        ):
            local.row = Figures(part, "local", SYNCED if what == "batches" else "again: some ms")
            remote.row = Figures(part, "shared, from beside the owner", local.row.guarantee, beside="local", goal=goal)
            takers = [(team, lambda team=team, what=what: team.take(what)) for team in (local, remote)]
            _interleaved(scale.rounds, takers)
            rows += [local.row, remote.row]
    return rows


def owners(directory: Path, scale: Scale, _notes: list[str]) -> list[Figures]:
    """Measure how long puts wait when the owner goes."""
    part = "the longest put"
    share = {"path": str(directory), "sync": "always", "sync_backend": scale.sync_backend}
    rows = [
        Figures(part, "nobody is sent a signal", SYNCED, "ms"),
        Figures(part, "the owner is killed (SIGKILL)", SYNCED, "ms", goal=300.0),
        Figures(part, "the owner is told to end (SIGTERM)", SYNCED, "ms", goal=50.0),
    ]
    workers = [Participant(scale.loop, "aiodq", {**share, "mode": "shared"}) for _ in range(PROCESSES - 1)]
    asking: list[Participant] = []
    try:
        for worker in workers:
            worker.ready()
        asking.append(Participant(scale.loop, "aiodq", {**share, "mode": "client"}))
        asking[0].ready()
        for _ in range(scale.kills):
            for row, number in zip(rows, (0, signal.SIGKILL, signal.SIGTERM), strict=True):
                row.figures.append(_gap(asking[0], workers, number, scale, share))
    finally:
        for each in (*asking, *workers):
            each.close()
    return rows


def _gap(asking: Participant, workers: list[Participant], number: int, scale: Scale, share: dict[str, Any]) -> float:
    """Send the owner a signal; return the milliseconds of the longest put. Somebody else takes its place."""
    pid = asking.ask("owner")
    gap = asking.ask("gap", pid=pid, number=number, seconds=min(WATCHED, scale.seconds * 2))
    if number:
        ended = next(worker for worker in workers if worker.pid == pid)
        workers.remove(ended)
        ended.ended()
        workers.append(Participant(scale.loop, "aiodq", {**share, "mode": "shared"}))
        workers[-1].ready()
    return float(gap) * 1000


@dataclass(frozen=True)
class Part:
    """Something to be measured, and what that is, in words."""

    measure: Callable[[Path, Scale, list[str]], list[Figures]]
    summary: str


PARTS: Final[dict[str, Part]] = {
    "one": Part(
        one_producer,
        "put, one producer: of the process that has the store to itself, and of one of two that share it, no owner",
    ),
    "many": Part(
        many_producers,
        f"put, {PROCESSES} processes with {PRODUCERS // PROCESSES} producers each, one of which is the owner, beside "
        f"one process with {PRODUCERS}, and beside others; of those whose calls block, one producer a process",
    ),
    "batches": Part(batches, "a backlog is worked off, until all of it is settled, by a process that is not the owner"),
    "owners": Part(
        owners,
        f"how long a put takes at most in the half second from a signal to the owner on; {PROCESSES - 2} others are "
        "left to own the store, and the one that puts only asks",
    ),
}
"""What is measured, by the word that chooses it."""


# --- the report


def _cells(row: Figures, rows: Sequence[Figures]) -> tuple[str, ...]:
    if row.unit == "ms":
        figures = f"p50 {median(row.figures):,.1f} ms", f"p99 {percentile(row.figures, 0.99):,.1f} ms"
        goal = "" if row.goal is None else f"p99 <= {row.goal:g} ms"
        return row.name, row.guarantee, *figures, "", goal
    ratio = row.ratio(rows)
    times = "" if ratio is None else f"{ratio:.2f} x {row.beside}"
    goal = "" if row.goal is None else f">= {row.goal:g} x"
    span = f"{min(row.figures):,.0f} - {max(row.figures):,.0f}"
    return row.name, row.guarantee, f"{median(row.figures):,.0f} /s", span, times, goal


def _print(part: str, rows: Sequence[Figures], console: Console) -> None:
    table = Table(title=part, title_justify="left")
    for name in ("", "after SIGKILL; a power cut", "median", "min - max", "beside", "aimed at"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row, rows))
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks shared",
        description="What it costs that many processes share a store.",
        epilog=" ".join(f"{word}: {part.summary}." for word, part in PARTS.items()),
    )
    add = parser.add_argument
    add("--part", action="append", choices=list(PARTS), default=[], help="what is measured; may be repeated")
    add("--rounds", type=int, default=5, help="over all that take part (default: %(default)s)")
    add("--seconds", type=float, default=0.5, help="length of one measurement of puts (default: %(default)s)")
    add("--messages", type=int, default=200_000, help="of a backlog, by the thousand (default: %(default)s)")
    add("--kills", type=int, default=15, help="owners that are killed, and told to end (default: %(default)s)")
    add("--quick", action="store_true", help="one short round of everything: does it run? Its figures mean nothing")
    add("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop (default: %(default)s)")
    add("--sync-backend", choices=("auto", "thread", "aio"), default="auto", help="of aiodq (default: %(default)s)")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    return parser


def _write_json(file: Path, rows: Sequence[Figures], environment: dict[str, str]) -> None:
    entries = [{**vars(row), "ratio": row.ratio(rows)} for row in rows]
    file.write_text(json.dumps({"environment": environment, "rows": entries}, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, print a table for each part."""
    given = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    scale = Scale(given.rounds, given.seconds, given.messages, given.kills, given.loop, given.sync_backend)
    if given.quick:
        scale = Scale(1, 0.05, 1000, 1, given.loop, given.sync_backend)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    environment = describe(given.dir.resolve(), loop_factory(given.loop)[0])
    for name, value in environment.items():
        console.print(f"{name}: {value}", highlight=False, markup=False)
    rows: list[Figures] = []
    for word, part in PARTS.items():
        if given.part and word not in given.part:
            continue
        directory, notes = Path(tempfile.mkdtemp(dir=given.dir, prefix="aiodq-bench-")), list[str]()
        try:
            found = part.measure(directory, scale, notes)
        finally:
            shutil.rmtree(directory)
        _print(f"{word}: {part.summary}", found, console)
        for note in notes:
            console.print(note, highlight=False, markup=False)
        rows += found
    if given.json is not None:
        _write_json(given.json, rows, environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
