"""What of taking a message is aiodq's, and what any Python program pays: `python -m benchmarks taking --help`.

Counted is the processor's time of all threads, per message. Beside aiodq stand loops of a few lines that do what no
design in Python can leave out: they read no disk, check nothing, and remember nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from io import BytesIO
from itertools import repeat, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

import aiodq
from benchmarks.environment import describe
from benchmarks.growth import without
from benchmarks.harness import median
from benchmarks.workers import loop_factory, run_as

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    Part = Callable[[Path, int], Coroutine[object, object, None]]

__all__ = ["PARTS", "main"]

BODY = bytes(100)
RUN = 1000
"""Messages in a run: what is taken at once, and what shares an object that marks what is settled."""
OPTIONS = aiodq.StoreOptions(sync="os")


class Lease:
    """What the messages of a run share, in a loop that only stands for aiodq."""

    __slots__ = ("bodies", "marks")

    def __init__(self) -> None:
        """Start a run."""
        self.bodies = list(map(BytesIO(BODY * RUN).read, repeat(len(BODY), RUN)))
        self.marks = bytearray(RUN)


class Message:
    """The least that a message can be which has a body, and which is settled by one of its methods."""

    __slots__ = ("body", "index", "lease", "store")

    body: bytes
    index: int
    lease: Lease
    store: object

    def ack_nowait(self) -> None:
        """Mark it."""
        lease = self.lease
        if lease.marks[self.index] == 0:
            lease.marks[self.index] = 1
            self.store = None


async def _yielded(count: int) -> AsyncIterator[object]:
    for _ in range(count):
        yield BODY


async def _made(count: int) -> AsyncIterator[Message]:
    now = time.monotonic
    for _ in range(0, count, RUN):
        lease = Lease()
        for index in range(RUN):
            now()
            message = Message()
            message.lease, message.index, message.body, message.store = lease, index, lease.bodies[index], lease
            yield message


async def yielded(_path: Path, count: int) -> None:
    """An `async for` over a generator that yields one and the same object."""
    async for _ in _yielded(count):
        continue


async def made(_path: Path, count: int) -> None:
    """And each time a new one with four attributes, for which the clock is read."""
    async for _ in _made(count):
        continue


async def marked(_path: Path, count: int) -> None:
    """And it has a method that is called, and marks it."""
    async for message in _made(count):
        message.ack_nowait()


async def iterate(path: Path, count: int) -> None:
    """aiodq: `async for` with `ack_nowait`, from disk."""
    async with aiodq.open_queue(path, OPTIONS) as queue:
        async for message in queue:
            message.ack_nowait()
            count -= 1
            if not count:
                return


async def listed(_path: Path, count: int) -> None:
    """Lists of 1,000 such objects, made at once and marked at once."""
    for _ in range(0, count, RUN):
        lease = Lease()
        messages = list(starmap(Message, repeat((), RUN)))
        for index, message in enumerate(messages):
            message.lease, message.index, message.body, message.store = lease, index, lease.bodies[index], lease
        for message in messages:
            message.store = None
        lease.marks = bytearray(b"\1") * RUN


async def get_many(path: Path, count: int) -> None:
    """aiodq: `get_many(1000)` with `ack_many`, from disk."""
    async with aiodq.open_queue(path, OPTIONS) as queue:
        while count > 0:
            messages = await queue.get_many(min(count, RUN))
            await queue.ack_many(messages)
            count -= len(messages)


async def listed_uncollected(path: Path, count: int) -> None:
    """The lists without Python's cyclic garbage collection."""
    await _uncollected(listed, path, count)


async def get_many_uncollected(path: Path, count: int) -> None:
    """aiodq: `get_many(1000)` with `ack_many` without it."""
    await _uncollected(get_many, path, count)


async def _uncollected(part: Part, path: Path, count: int) -> None:
    gc.disable()
    try:
        await part(path, count)
    finally:
        gc.enable()


PARTS: Final[dict[str, Part]] = {
    (part.__doc__ or part.__name__).rstrip("."): part
    for part in (yielded, made, marked, iterate, listed, get_many, listed_uncollected, get_many_uncollected)
}


async def _fill(path: Path, count: int) -> None:
    async with aiodq.open_queue(path, OPTIONS) as queue:
        for _ in range(0, count, RUN):
            await queue.put_many([BODY] * RUN)


def measure(directory: Path, part: Part, count: int, loop: Callable[[], asyncio.AbstractEventLoop]) -> float:
    """Return the nanoseconds of CPU that each of so many messages took, a multiple of a thousand."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="aiodq-bench-") as place:
        path = Path(place) / "store"
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(_fill(path, count))
            gc.collect()
            began = time.process_time()
            runner.run(part(path, count))
            return (time.process_time() - began) / count * 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks taking", description=(__doc__ or "").partition(":")[0])
    add = parser.add_argument
    add("--messages", type=int, default=300_000, help="in each measurement (default: %(default)s)")
    add("--rounds", type=int, default=7, help="all parts in turn (default: %(default)s)")
    add("--quick", action="store_true", help="few messages, once: does it run?")
    add("--compiled", type=Path, metavar="PYTHON", help="measure in an interpreter whose aiodq is compiled")
    add("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop (default: %(default)s)")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    words = sys.argv[2:] if argv is None else list(argv)
    given = parser.parse_args(words)
    if given.compiled is not None:
        return run_as(given.compiled, "benchmarks.taking", without(words, "--compiled"))
    count, rounds = (RUN, 1) if given.quick else (-(-given.messages // RUN) * RUN, given.rounds)
    loop, factory = loop_factory(given.loop)
    for name, value in describe(given.dir.resolve(), loop).items():
        print(f"{name}: {value}", file=sys.stderr)
    figures: dict[str, list[float]] = {name: [] for name in PARTS}
    for _ in range(rounds):
        for name, part in PARTS.items():
            figures[name].append(measure(given.dir, part, count, factory))
    table = Table("compiled" if aiodq.__compiled__ else "pure Python", "ns a message", "least", "most")
    for name, spans in figures.items():
        table.add_row(name, *(f"{span:,.0f}" for span in (median(spans), min(spans), max(spans))))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0
