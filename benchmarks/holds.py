"""For how long the event loop is held up at most by what is done at once: `python -m benchmarks holds --help`.

Counted is the processor's time of the loop's thread in one callback, which other processes do not disturb. The garbage
collector is off, as its pauses go by what else the program has in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from asyncio.events import Handle
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

from rich.console import Console
from rich.table import Table

import aiodq
from benchmarks.environment import describe
from benchmarks.harness import median

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    Work = Callable[[aiodq.Store, int], AsyncIterator[None]]

__all__ = ["WORKS", "main", "measure"]

BODY = bytes(100)
MIB = 1 << 20
AFTERWARDS = 1.2
"""Seconds in which comes what follows by itself: flushes, journals, retention."""
OPTIONS = aiodq.StoreOptions(sync="interval", sync_interval=0.2, memory_bytes=256 * MIB)
CHANNEL = aiodq.ChannelOptions(max_in_flight=1 << 30)
HELD: Final[list[object]] = []
"""What somebody has until nobody looks: to let go of very many takes its time, too."""


class Longest:
    """The longest callback so far, seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at each callback of a loop of asyncio's in the block."""
        run = Handle._run  # noqa: SLF001 - there is no other place in which all callbacks come by

        def timed(handle: Handle) -> None:
            began = time.thread_time()
            run(handle)
            self.seconds = max(self.seconds, time.thread_time() - began)

        with mock.patch.object(Handle, "_run", timed):
            yield


# --- what is done: up to its `yield` it is prepared


async def _taken(store: aiodq.Store, count: int) -> tuple[aiodq.Channel, list[aiodq.Message]]:
    channel = store.topic("t").channel("c", CHANNEL)
    await store.topic("t").put_many([BODY] * count)
    messages: list[aiodq.Message] = []
    while len(messages) < count:
        messages += await channel.get_many(count - len(messages))
    return channel, messages


async def put_many(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`put_many` of bodies."""
    bodies = [BODY] * count
    yield
    await store.topic("t").put_many(bodies)


async def put_drafts(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`put_many` of drafts with a tag and a header."""
    drafts = [aiodq.Draft(BODY, tag="t", headers={"a": "b"}) for _ in range(count)]
    HELD.append(drafts)
    yield
    await store.topic("t").put_many(drafts)


async def put_delayed(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`put_many` with a delay, and all become due at once."""
    store.topic("t").channel("c", CHANNEL)
    await store.topic("t").put(BODY)
    drafts = [aiodq.Draft(BODY, delay=AFTERWARDS / 2) for _ in range(count)]
    HELD.append(drafts)
    yield
    await store.topic("t").put_many(drafts)


async def put_large(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`put` of 16 MiB."""
    body = bytes(16 * MIB if count > 1 else 1)
    yield
    await store.topic("t").put(body)


async def get_many(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`get_many` of all, from memory."""
    channel = store.topic("t").channel("c", CHANNEL)
    await store.topic("t").put_many([BODY] * count)
    yield
    await channel.get_many(count)


async def iterate(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`async for` with `ack_nowait`, from memory."""
    channel = store.topic("t").channel("c", CHANNEL)
    await store.topic("t").put_many([BODY] * count)
    yield
    async for message in channel:
        message.ack_nowait()
        if message.offset == count - 1:
            break


async def ack_many(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`ack_many` of all: the call, which does it at once, and what follows."""
    channel, messages = await _taken(store, count)
    yield
    await channel.ack_many(messages)


async def ack_some(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """What follows when every other message was acked by `ack_nowait`."""
    _, messages = await _taken(store, count)
    for message in messages[::2]:
        message.ack_nowait()
    yield
    await asyncio.sleep(0)


async def nack_some(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """What follows when every tenth message was nacked."""
    _, messages = await _taken(store, count)
    for message in messages[::10]:
        message.nack_nowait()
    yield
    await asyncio.sleep(0)


async def nack_all(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """What follows when all were nacked with a delay, which ends for all in one moment."""
    _, messages = await _taken(store, count)
    for message in messages:
        message.nack_nowait(AFTERWARDS / 2)
    yield
    await asyncio.sleep(0)


async def time_out(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """All are in flight, time out in one moment, and are taken again by `get_many`."""
    channel = store.topic("t").channel("late", replace(CHANNEL, visibility_timeout=AFTERWARDS))
    await store.topic("t").put_many([BODY] * count)
    HELD.append(await channel.get_many(count))
    yield
    await asyncio.sleep(AFTERWARDS)
    HELD.append(await channel.get_many(count))


async def transaction(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """A transaction of half as many acks, in order, and a fifth as many puts: its end, and what follows."""
    _, messages = await _taken(store, count // 2)
    tx = store.transaction()
    await tx.__aenter__()
    HELD.append(messages)
    tx.ack_many(messages)
    tx.put_many("made", [BODY] * (count // 5))
    yield
    await tx.__aexit__(None, None, None)


async def scattered_transaction(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """A transaction that acks every other one of a fifth as many."""
    _, messages = await _taken(store, count // 5)
    tx = store.transaction()
    await tx.__aenter__()
    HELD.append(messages)
    tx.ack_many(messages[::2])
    yield
    await tx.__aexit__(None, None, None)


async def purge(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """`purge` with all of it in flight."""
    channel, messages = await _taken(store, count)
    yield
    await channel.purge()
    messages.clear()


async def expire(store: aiodq.Store, count: int) -> AsyncIterator[None]:
    """Every other message's time to live ends, at once."""
    store.topic("t").channel("c", CHANNEL)
    ttl = AFTERWARDS / 2
    await store.topic("t").put_many([aiodq.Draft(BODY, ttl=ttl + 3600 * (n % 2)) for n in range(count)])
    yield
    await asyncio.sleep(0)


WORKS: Final[dict[str, Work]] = {
    (work.__doc__ or work.__name__).rstrip("."): work
    for work in (
        put_many, put_drafts, put_delayed, put_large, get_many, iterate, ack_many, ack_some, nack_some, nack_all,
        time_out, transaction, scattered_transaction, purge, expire,
    )
}  # fmt: skip


async def _measure(path: Path, work: Work, count: int) -> float:
    longest = Longest()
    async with aiodq.open(path, OPTIONS) as store:
        await store.topic("t").put(BODY)
        await store.topic("t").channel("c", CHANNEL).ack_many([await store.topic("t").channel("c").get()])
        steps = work(store, count)
        await anext(steps)
        await asyncio.sleep(OPTIONS.sync_interval if isinstance(OPTIONS.sync_interval, float) else 0.0)
        gc.collect()
        with longest.watching():
            await asyncio.sleep(0)
            async for _ in steps:
                raise RuntimeError("a work has one yield")
            await asyncio.sleep(AFTERWARDS)
    return longest.seconds


def measure(directory: Path, work: Work, count: int) -> float:
    """Return for how many seconds of the processor's the loop was held up at most while this was done, of so many."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="aiodq-bench-") as place:
        gc.disable()
        try:
            return asyncio.run(_measure(Path(place) / "store", work, count))
        finally:
            gc.enable()
            HELD.clear()


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks holds", description=(__doc__ or "").partition(":")[0])
    add = parser.add_argument
    add("--messages", type=int, default=100_000, help="that something is done with at once (default: %(default)s)")
    add("--rounds", type=int, default=3, help="each with a store of its own (default: %(default)s)")
    add("--quick", action="store_true", help="few messages, once: does it run?")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    given = parser.parse_args(argv)
    count, rounds = (100, 1) if given.quick else (given.messages, given.rounds)
    for name, value in describe(given.dir.resolve(), "asyncio").items():
        print(f"{name}: {value}", file=sys.stderr)
    figures: dict[str, list[float]] = {name: [] for name in WORKS}
    for _ in range(rounds):
        for name, work in WORKS.items():
            figures[name].append(measure(given.dir, work, count))
    table = Table(f"{count:,} messages at once", "ms", "most of all rounds")
    for name, seconds in figures.items():
        table.add_row(name, f"{median(seconds) * 1000:.1f}", f"{max(seconds) * 1000:.1f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0
