"""What each hop of a put costs whose store another process owns: `python -m benchmarks hops --help`.

Both processes note when they pass a point, by the system's clock. A step is from one point to the next. Of many puts,
one after the other, the fastest tenth says what a step costs where nothing else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from rich.console import Console
from rich.table import Table

import aiodq
from aiodq.cli.output import whole_output
from aiodq.engine.topic.commit.io_loop import IoLoop
from aiodq.engine.topic.commit.syncer import Syncer
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.server.client_connection import ClientConnection
from aiodq.shared.server.early_answers import EarlyAnswers
from aiodq.storage.io.filesystem import OsFile
from benchmarks.environment import describe
from benchmarks.harness import percentile
from benchmarks.workers import ROOT, loop_factory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

__all__ = ["STEPS", "main", "steps_of"]

STEPS: Final[dict[str, dict[tuple[str, str], str]]] = {
    "shared": {
        ("sends", "comes"): "the socket, and the owner's loop wakes up",
        ("comes", "starts"): "the owner reads, decodes and writes the put",
        ("starts", "syncs"): "a thread wakes up",
        ("syncs", "synced"): "the device",
        ("synced", "answers"): "the thread comes back",
        ("answers", "hears"): "it answers over the socket, and the other loop wakes up",
        ("hears", "sends"): "the task is told, and puts the next one",
    },
    "exclusive": {
        ("starts", "syncs"): "a thread wakes up",
        ("syncs", "synced"): "the device",
        ("synced", "ends"): "the thread comes back, and the loop wakes up",
        ("ends", "starts"): "the task is told, and the next put is written",
    },
}
"""What lies between two points that follow each other, by the mode of the store."""

PATIENCE: Final = 120.0


class _Stamps:
    """When which point was passed."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, str]] = []
        self._patches = ExitStack()

    def at(self, owner: type[Any], name: str, before: str, after: str = "") -> None:
        """Note when a method begins, and when it has ended."""
        plain, noted = getattr(owner, name), self.noted

        def noting(*args: object, **named: object) -> object:
            noted.append((monotonic_ns(), before))
            result = plain(*args, **named)
            if after:
                noted.append((monotonic_ns(), after))
            return result

        self._patches.enter_context(mock.patch.object(owner, name, noting))


async def _take_part(path: str, mode: Literal["shared", "exclusive"], puts: int) -> list[tuple[int, str]]:
    """Put so many, or own the store until nobody needs it any more; return when which point was passed."""
    stamps = _Stamps()
    stamps.at(Syncer, "start", "starts")
    stamps.at(OsFile, "sync", "syncs", "synced")
    stamps.at(IoLoop, "synced", "ends")
    stamps.at(ClientConnection, "data_received", "comes")
    stamps.at(EarlyAnswers, "send", "answers")
    stamps.at(SocketWire, "data_received", "hears")
    stamps.at(SocketWire, "send", "sends")
    # By a thread: what the kernel does by itself has no steps that could be seen from here.
    async with aiodq.open(path, aiodq.StoreOptions(sync_backend="thread"), mode=mode) as store:
        queue = store.queue("queue")
        for _ in range(puts and 100):
            await queue.put(bytes(100))
        stamps.noted.clear()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(puts):
            await queue.put(bytes(100))
    return stamps.noted


def steps_of(mode: str, noted: list[tuple[int, str]]) -> dict[str, list[float]]:
    """Return how long each step took, in microseconds, of the puts that passed all points in order."""
    names = STEPS[mode]
    points = [point for point, _ in names]
    found: dict[str, list[float]] = {what: [] for what in names.values()}
    passed = sorted((at, point) for at, point in noted if point in points)
    for first in range(len(passed) - len(points)):
        run = passed[first : first + len(points) + 1]
        if [point for _, point in run] == [*points, points[0]]:
            for (at, _), (then, _), what in zip(run, run[1:], found, strict=False):
                found[what].append((then - at) / 1000)
    return found


def measure(directory: Path, mode: str, puts: int, loop: str) -> dict[str, list[float]]:
    """Put so many, one after the other; return how long each step took, in microseconds."""
    command = [sys.executable, "-m", "benchmarks.hops", str(directory), mode, loop]
    noted: list[tuple[int, str]] = []
    with ExitStack() as stack:
        members: list[subprocess.Popen[str]] = []
        for count in [0, puts] if mode == "shared" else [puts]:
            member = stack.enter_context(
                subprocess.Popen(  # noqa: S603 - it is this program
                    [*command, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
                )
            )
            members.append(member)
            assert member.stdout is not None
            if member.stdout.readline() != "ready\n":
                raise RuntimeError("a process did not open the store")
        for member in reversed(members):
            said, _ = member.communicate("go\n", timeout=PATIENCE)
            if member.returncode:
                raise RuntimeError(f"a process ended with {member.returncode}")
            noted += [(at, point) for at, point in json.loads(said)]
    return steps_of(mode, noted)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hops", description=(__doc__ or "").partition(":")[0])
    add = parser.add_argument
    add("--puts", type=int, default=10_000, help="one after the other (default: %(default)s)")
    add("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop (default: %(default)s)")
    add("--quick", action="store_true", help="few puts: does it run?")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    given = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name, value in describe(given.dir.resolve(), given.loop).items():
        print(f"{name}: {value}", file=sys.stderr)
    for mode in STEPS:
        with tempfile.TemporaryDirectory(dir=given.dir, prefix="aiodq-bench-") as place:
            found = measure(Path(place) / "store", mode, 50 if given.quick else given.puts, given.loop)
        if not all(found.values()):
            raise RuntimeError(f"no put passed all points in order: {', '.join(point for point, _ in STEPS[mode])}")
        table = Table(f"a put, {mode}, microseconds", "fastest tenth", "median")
        for what, took in found.items():
            table.add_row(what, f"{percentile(took, 0.1):.1f}", f"{percentile(took, 0.5):.1f}")
        whole = [sum(each) for each in zip(*found.values(), strict=True)]
        table.add_row("together", f"{percentile(whole, 0.1):.1f}", f"{percentile(whole, 0.5):.1f}")
        console.print(table)
    return 0


def _child() -> None:
    path, mode, loop, puts = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory(loop)[1]) as runner:
        noted = runner.run(_take_part(path, "shared" if mode == "shared" else "exclusive", int(puts)))
    with whole_output():
        print(json.dumps(noted))


if __name__ == "__main__":
    _child()
