"""What a message costs as the backlog, the channels and the topics grow: `python -m benchmarks growth --help`.

Every store is filled once. Then, round after round, each is opened in turn and the same is done with it: so many puts,
gets and acks. If a put, a get and an ack do nothing for each segment, channel or topic, all of them cost the same.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, TypeVar

import aiodq
from benchmarks.environment import describe
from benchmarks.harness import median
from benchmarks.workers import run_as

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    Clock = Callable[[], float]

__all__ = ["DIMENSIONS", "Dimension", "Figures", "Grown", "Plan", "main", "measure", "table"]

T = TypeVar("T")

BODY = bytes(100)
SEGMENT_BYTES = 64 * 1024
"""Of the segments that a backlog is made of: small, so that a thousand are made within seconds."""
SEGMENT = 500
"""Messages put together to make one such segment: it has no room for twice as many."""
LARGE = 1 << 40
"""A bound that is not reached."""
DRAINED = 8
"""Segments that are consumed from the front of a backlog."""
SETTLING = 5.0
"""Seconds in which a store does what is left to do after opening: each of a thousand topics has something."""
OVERDUE = 0.2
"""Seconds for what came due while the collector ran: once a second all channels are looked at, 4 ms of a thousand."""
IN_TURN = "put, the topics in turn"
TOGETHER = 100
"""Messages in a `put_many`, and between a `get` and its `ack`."""


@dataclass(frozen=True)
class Grown:
    """How large a store is."""

    segments: int = 1
    channels: int = 1
    topics: int = 1
    every: int = 0
    """A channel's tags want one of so many messages; 0: it has none, and wants all."""
    bounded: bool = False
    """With bounds on the backlog's bytes and on age and bytes of what is consumed, none of which is ever reached."""

    def options(self, segment_bytes: int = 100 * 2**20) -> aiodq.StoreOptions:
        """Return the options to open it with."""
        options = aiodq.StoreOptions(sync="os", segment_bytes=segment_bytes)
        if self.bounded:
            keep = aiodq.Retention(consumed="keep", max_age=1e6, max_bytes=LARGE, max_segments=LARGE)
            options = replace(options, max_bytes=LARGE, max_messages=LARGE, retention=keep)
        return options


@dataclass(frozen=True)
class Dimension:
    """One direction to grow in: the stores from the smallest on, by what they have."""

    name: str
    stores: Mapping[int, Grown]

    def up_to(self, largest: int) -> Dimension:
        """Return it without the stores that are larger than that, but with two at least."""
        chosen = [size for number, size in enumerate(self.stores) if number < 2 or size <= largest]
        return Dimension(self.name, {size: self.stores[size] for size in chosen})


DIMENSIONS = (
    Dimension("segments", {count: Grown(segments=count) for count in (1, 10, 100, 1000)}),
    Dimension("bounded", {count: Grown(segments=count, bounded=True) for count in (1, 10, 100, 1000)}),
    Dimension("channels", {count: Grown(channels=count) for count in (1, 10, 100)}),
    Dimension("topics", {count: Grown(topics=count) for count in (1, 100, 1000)}),
    Dimension("filter", {count: Grown(every=count) for count in (1, 2, 10)}),
)


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int
    messages: int
    clock: Clock = perf_counter
    largest: int = sys.maxsize
    settling: float = SETTLING


@dataclass
class Figures:
    """Seconds a message, one figure a round, by what was done and by how large the store was."""

    dimension: str
    seconds: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, size: int, taken: Mapping[str, float]) -> None:
        """Note what one round took."""
        for work, seconds in taken.items():
            self.seconds[work].setdefault(size, []).append(seconds)

    def ratio(self, work: str, size: int) -> float:
        """Return the median, over the rounds, of this size's cost divided by the smallest's."""
        smallest = self.seconds[work][min(self.seconds[work])]
        return median([mine / least for mine, least in zip(self.seconds[work][size], smallest, strict=True)])


def _name(number: int) -> str:
    return f"topic-{number}"


async def fill(path: Path, grown: Grown) -> None:
    """Make a store of this size. Every channel has all of the backlog before it, so nothing of it is deleted."""
    async with aiodq.open(path, grown.options(SEGMENT_BYTES)) as store:
        for number in range(grown.topics):
            topic = store.topic(_name(number))
            for channel in range(grown.channels):
                topic.channel(f"channel-{channel}")
            await topic.put(BODY)
        topic = store.topic(_name(0))
        while topic.stats().segments < grown.segments:
            await topic.put_many([BODY] * SEGMENT)


async def _timed(work: Awaitable[object], messages: int, clock: Clock) -> float:
    """Return the seconds a message that this takes."""
    start = clock()
    await work
    return (clock() - start) / messages


async def _put(topics: Sequence[aiodq.Topic], messages: int) -> None:
    for topic in islice(cycle(topics), messages):
        await topic.put(BODY)


async def _put_batches(topic: aiodq.Topic, count: int) -> None:
    for _ in range(count):
        await topic.put_many([BODY] * TOGETHER)


async def _get_and_ack(channel: aiodq.Channel, messages: int, clock: Clock) -> dict[str, float]:
    """Get some, ack them, and so on: the two are timed apart."""
    getting = acking = 0.0
    for _ in range(messages // TOGETHER):
        start = clock()
        taken = [await channel.get() for _ in range(TOGETHER)]
        between = clock()
        for message in taken[:-1]:
            message.ack_nowait()
        await taken[-1].ack()
        getting += between - start
        acking += clock() - between
    return {"get": getting / messages, "ack": acking / messages}


async def _iterate(channel: aiodq.Channel, messages: int) -> None:
    left = messages
    async for message in channel:
        message.ack_nowait()
        left -= 1
        if not left:
            return


async def use(path: Path, grown: Grown, plan: Plan) -> dict[str, float]:
    """Put, get and ack at the end of the log, behind all that is there; return seconds a message."""
    messages, clock = plan.messages, plan.clock
    # Segments are large now: a roll costs the same in every store, so it is left out of the comparison.
    async with aiodq.open(path, grown.options()) as store:
        every = [store.topic(_name(number)) for number in range(grown.topics)]
        topic = every[0]
        channel = topic.channel("reader", aiodq.ChannelOptions(start="latest"))
        await channel.seek("latest")
        # Whatever a topic does at its first put, and once after opening, is no cost of a message.
        await _put(every, len(every))
        await asyncio.gather(*(one.sync() for one in every))
        await asyncio.sleep(plan.settling)
        # The collector looks at everything seldom, in one go: with a thousand topics whatever that hits would seem to
        # take ten times as long.
        gc.collect()
        gc.freeze()
        await asyncio.sleep(OVERDUE)
        taken = {"put": await _timed(_put([topic], messages), messages, clock)}
        taken["put_many of 100"] = await _timed(_put_batches(topic, messages // TOGETHER), messages, clock)
        turns = len(every) * max(1, messages // len(every))
        taken[IN_TURN] = await _timed(_put(every, turns), turns, clock)
        taken |= await _get_and_ack(channel, messages, clock)
        taken["async for + ack_nowait"] = await _timed(_iterate(channel, messages), messages, clock)
    gc.unfreeze()
    return taken


async def choose(path: Path, grown: Grown, plan: Plan) -> dict[str, float]:
    """Get and ack what a channel wants by its tags; return seconds a message of these."""
    messages, every = plan.messages, grown.every
    async with aiodq.open(path, grown.options()) as store:
        topic = store.topic(_name(0))
        channel = topic.channel("chooser", aiodq.ChannelOptions(start="latest", tags=["wanted"]))
        await channel.seek("latest")
        batch = [aiodq.Draft(BODY, tag="other" if number % every else "wanted") for number in range(every * TOGETHER)]
        for _ in range(2 * messages // TOGETHER):
            await topic.put_many(batch)
        taken = await _get_and_ack(channel, messages, plan.clock)
        return taken | {"async for + ack_nowait": await _timed(_iterate(channel, messages), messages, plan.clock)}


async def drain(path: Path, grown: Grown, clock: Clock) -> dict[str, float]:
    """Consume the oldest segments, which are deleted on the way; return seconds a message."""
    messages = DRAINED * SEGMENT
    async with aiodq.open(path, grown.options()) as store:
        taken = await _timed(_iterate(store.topic(_name(0)).channel("channel-0"), messages), messages, clock)
    return {"drain the oldest 8 segments": taken}


def measure(dimension: Dimension, directory: Path, plan: Plan) -> Figures:
    """Fill the stores of one dimension, then use them in turn, once to warm up and then so many rounds."""
    stores = {size: directory / f"{dimension.name}-{size}" for size in dimension.stores}
    figures = Figures(dimension.name)
    for size, path in stores.items():
        aiodq.run(fill(path, dimension.stores[size]))
    for turn in range(plan.rounds + 1):
        for size, path in rotated(list(stores.items()), turn):
            taken = _once(path, dimension.stores[size], plan)
            if turn:
                figures.add(size, taken)
    if dimension.name != "topics":
        figures.seconds.pop(IN_TURN, None)
    return figures


def _once(path: Path, grown: Grown, plan: Plan) -> dict[str, float]:
    gc.collect()
    if grown.every:
        return aiodq.run(choose(path, grown, plan))
    taken = {}
    if grown.segments > DRAINED:
        drained = path.with_name(f"{path.name}-drained")
        shutil.copytree(path, drained)
        taken = aiodq.run(drain(drained, grown, plan.clock))
        shutil.rmtree(drained)
    return taken | aiodq.run(use(path, grown, plan))


def rotated(items: list[T], turn: int) -> list[T]:
    """Return them with another one first at each turn."""
    shift = turn % len(items)
    return items[shift:] + items[:shift]


def rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    """Yield a table's rows: the cost at each size, and how many times the smallest's it is."""
    for work, by_size in figures.seconds.items():
        costs = [f"{median(by_size[size]) * 1e6:,.2f}" if size in by_size else "" for size in sizes(figures)]
        times = [f"{figures.ratio(work, size):.2f}" for size in sorted(by_size)[1:]]
        yield work, *costs, *[""] * (len(costs) - 1 - len(times)), *times


def sizes(figures: Figures) -> list[int]:
    """Return all sizes, the smallest first."""
    return sorted({size for by_size in figures.seconds.values() for size in by_size})


def table(figures: Figures) -> str:
    """Return the figures of one dimension as Markdown."""
    counts = sizes(figures)
    header = [f"µs a message, {figures.dimension}:", *map("{:,}".format, counts), *map("x at {:,}".format, counts[1:])]
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows(figures)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_json(file: Path, every: Sequence[Figures], environment: Mapping[str, str]) -> None:
    """Write the seconds a message of every single round to `file`."""
    report = {"environment": dict(environment), "seconds": {each.dimension: each.seconds for each in every}}
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description="What growth costs a message.")
    add = parser.add_argument
    add(
        "dimension",
        nargs="*",
        default=[],
        help="segments, bounded, channels, topics, filter (default: all)",
    )
    add("--rounds", type=int, default=7, help="over all stores of a dimension (default: %(default)s)")
    add("--messages", type=int, default=3000, help="of each measurement (default: %(default)s)")
    add("--cpu", action="store_true", help="count the process's processor time: other processes disturb it less")
    add("--quick", action="store_true", help="one short round over small stores: does it run?")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--compiled", type=Path, metavar="PYTHON", help="run in this interpreter, whose aiodq is compiled")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, print Markdown."""
    words = list(sys.argv[1:] if argv is None else argv)
    given = _parser().parse_args(words)
    if given.compiled is not None:
        return run_as(given.compiled, "benchmarks.growth", without(words, "--compiled"))
    plan = Plan(given.rounds, given.messages, process_time if given.cpu else perf_counter)
    if given.quick:
        plan = replace(plan, rounds=1, messages=TOGETHER, largest=10, settling=0)
    environment = describe(given.dir.resolve(), aiodq.run(_loop()))
    environment["aiodq"] = "compiled" if getattr(aiodq, "__compiled__", False) else "pure Python"
    for name, value in environment.items():
        print(f"- {name}: {value}")
    every = []
    for dimension in DIMENSIONS:
        if not given.dimension or dimension.name in given.dimension:
            with tempfile.TemporaryDirectory(dir=given.dir, prefix="aiodq-growth-") as directory:
                every.append(measure(dimension.up_to(plan.largest), Path(directory), plan))
            print(f"\n{table(every[-1])}", end="", flush=True)
    if given.json is not None:
        write_json(given.json, every, environment)
    return 0


def without(words: list[str], option: str) -> list[str]:
    """Return the words of a command line without an option that takes a value."""
    for number, word in enumerate(words):
        if word == option:
            return words[:number] + words[number + 2 :]
        if word.startswith(f"{option}="):
            return words[:number] + words[number + 1 :]
    return words


async def _loop() -> str:
    return type(asyncio.get_running_loop()).__module__


if __name__ == "__main__":
    sys.exit(main())
