"""Cases, subjects, and the interleaved rounds that compare them.

A *subject* is one library in one setting; a *case* is one thing to do with it. For each case and body size all subjects
are measured in turn, round after round, so that what the machine does meanwhile falls on all of them alike. A ratio is
the median of the ratios within each round, not the ratio of two medians.
"""

from __future__ import annotations

import asyncio
import enum
import gc
import os
import random
import statistics
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

__all__ = [
    "BATCH",
    "LATENCIES",
    "RATE",
    "Case",
    "Durability",
    "Metric",
    "Operation",
    "Result",
    "Sample",
    "Session",
    "Settings",
    "Subject",
    "Trial",
    "interleave",
    "median",
    "percentile",
    "ratio",
]

BATCH = 1000
"""Bodies in one `put_many`."""

MAX_BYTES = 128 * 2**20
"""Most that one measurement writes, so that the kernel's write-back of one subject is not the next one's noise."""

PILOT_SHARE = 0.1
"""A pilot run shorter than this share of the target says too little about the speed."""

HANG = 60.0
"""Seconds after which a measurement counts as hung."""


class Durability(enum.Enum):
    """What a `put` that returned is safe from; only subjects of one kind are compared with each other."""

    SYNCED = "synced before return"
    DEFERRED = "synced later"
    KERNEL = "never synced"


class Operation(enum.Enum):
    """What a case needs from a subject."""

    PUT = enum.auto()
    PUT_MANY = enum.auto()
    GET = enum.auto()
    ITERATE = enum.auto()
    PUT_GET = enum.auto()
    MOVE = enum.auto()
    TIMED_PUT = enum.auto()
    LAG = enum.auto()


class Session(ABC):
    """An open queue of one subject. Subclasses override what their library does in a better way."""

    @abstractmethod
    async def put(self, body: bytes) -> None:
        """Put one message, as durable as the subject promises."""

    @abstractmethod
    async def take(self) -> None:
        """Take the oldest message and settle it."""

    async def put_many(self, bodies: list[bytes]) -> None:
        """Put all of `bodies`, in one call where the library has one."""
        for body in bodies:
            await self.put(body)

    async def produce(self, body: bytes, count: int) -> None:
        """Be one producer: put `body` `count` times."""
        for _ in range(count):
            await self.put(body)

    async def consume(self, count: int) -> None:
        """Take and settle `count` messages, one call each."""
        for _ in range(count):
            await self.take()

    async def iterate(self, count: int) -> None:
        """Take and settle `count` messages the way the library likes best."""
        await self.consume(count)

    async def put_get(self, body: bytes, count: int) -> None:
        """Put one message and take it, `count` times."""
        for _ in range(count):
            await self.put(body)
            await self.take()


class MovingSession(Session):
    """A session of a library that has transactions over two queues."""

    @abstractmethod
    async def move(self, count: int) -> None:
        """Take a message, settle it and put another into a second queue, all or nothing, `count` times."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One library in one setting."""

    name: str
    package: str
    durability: Durability
    promise: str
    """What exactly is safe when a put returns, in a few words."""
    blocking: bool
    """Its calls block the event loop; nothing else runs until they return."""
    operations: frozenset[Operation]
    open: Callable[[Path], AbstractAsyncContextManager[Session]]
    """Opens the queue in a directory that is there, new or with an earlier session's backlog."""


@dataclass(frozen=True)
class Metric:
    """A measured quantity; `unit` is `"ops/s"` (more is better) or `"s"` (less is better)."""

    name: str
    unit: str
    resolution: float = 0.0
    """Smaller figures cannot be told apart."""

    @property
    def more_is_better(self) -> bool:
        """Tell whether a larger figure wins."""
        return self.unit == "ops/s"


RATE = (Metric("ops/s", "ops/s"),)
LATENCIES = (Metric("p50", "s"), Metric("p99", "s"))


@dataclass(frozen=True)
class Trial:
    """What one measurement works with."""

    session: Session
    body: bytes
    count: int
    seconds: float
    blocking: bool


@dataclass(frozen=True)
class Sample:
    """The outcome of one measurement: its length in seconds and a figure for each metric, by name."""

    elapsed: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to measure."""

    name: str
    summary: str
    operation: Operation
    run: Callable[[Trial], Awaitable[Sample]]
    metrics: tuple[Metric, ...] = RATE
    durabilities: frozenset[Durability] = frozenset(Durability)
    unit: int = 1
    """The number of operations is a multiple of this."""
    prefilled: bool = False
    """Starts with a backlog, written by an earlier session."""
    timed: bool = False
    """Runs for a given time instead of a number of operations; only for the smallest body."""

    def accepts(self, subject: Subject) -> bool:
        """Tell whether `subject` can take part."""
        return self.operation in subject.operations and subject.durability in self.durabilities


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure."""

    directory: Path
    rounds: int
    seconds: float
    loop_factory: Callable[[], asyncio.AbstractEventLoop]


@dataclass
class Result:
    """All samples of one case at one body size. A subject that failed has a reason and no samples."""

    case: Case
    size: int
    subjects: list[Subject]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def figures(self, subject: Subject, metric: Metric) -> list[float]:
        """Return one figure for each round."""
        return [sample.values[metric.name] for sample in self.samples.get(subject.name, [])]

    def baseline(self, subject: Subject) -> Subject | None:
        """Return the aiodq subject that promises what `subject` promises, if it was measured."""
        for other in self.subjects:
            if other.package == "aiodq" and other.durability is subject.durability and other.name in self.samples:
                return other
        return None


def median(figures: Sequence[float]) -> float:
    """Return the middle figure."""
    return statistics.median(figures)


def percentile(figures: Sequence[float], share: float) -> float:
    """Return the figure that `share` (0 to 1) of all figures do not exceed, by nearest rank."""
    ranked = sorted(figures)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def ratio(ours: Sequence[float], theirs: Sequence[float], metric: Metric) -> float:
    """Return how many times better ours is, as the median over the rounds; above 1 ours wins."""
    better, worse = (ours, theirs) if metric.more_is_better else (theirs, ours)
    floor = metric.resolution
    return median([max(above, floor) / max(below, floor) for above, below in zip(better, worse, strict=True)])


def interleave(
    case: Case, size: int, subjects: list[Subject], settings: Settings, advance: Callable[[], object]
) -> Result:
    """Measure `subjects` in turn, round after round; call `advance` after the pilots and after each round."""
    result = Result(case, size, subjects)
    counts = {subject.name: _pilot(result, subject, settings) for subject in subjects}
    advance()
    for turn in range(settings.rounds):
        shift = turn % max(1, len(subjects))
        for subject in subjects[shift:] + subjects[:shift]:
            sample = _attempt(result, subject, counts[subject.name], settings)
            if sample is not None:
                result.samples.setdefault(subject.name, []).append(sample)
                counts[subject.name] = _scaled(result, counts[subject.name], sample, settings.seconds, most=2.0)
        advance()
    return result


def _pilot(result: Result, subject: Subject, settings: Settings) -> int:
    """Find the number of operations that takes about `settings.seconds`."""
    case = result.case
    count = case.unit * -(-50 // case.unit)
    if case.timed:
        return count
    while (sample := _attempt(result, subject, count, settings)) is not None:
        short = sample.elapsed < PILOT_SHARE * settings.seconds
        larger = _scaled(result, count, sample, settings.seconds, most=20.0 if short else 1 / PILOT_SHARE)
        if not short or larger == count:
            return larger
        count = larger
    return count


def _scaled(result: Result, count: int, sample: Sample, seconds: float, *, most: float) -> int:
    """Return a count that comes nearer to `seconds`, changed by at most `most` times either way."""
    case = result.case
    if case.timed:
        return count
    factor = min(most, max(1 / most, seconds / max(sample.elapsed, 1e-9)))
    wanted = min(count * factor, MAX_BYTES / max(result.size, 1))
    return case.unit * max(1, round(wanted / case.unit))


def _attempt(result: Result, subject: Subject, count: int, settings: Settings) -> Sample | None:
    """Measure once; a subject that fails is out of this case, and the reason is kept."""
    if subject.name in result.failures:
        return None
    try:
        return _measure(result.case, subject, result.size, count, settings)
    except Exception as error:  # noqa: BLE001 - one subject's failure, of whatever type, is a line in the report
        result.failures[subject.name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        result.samples.pop(subject.name, None)
        return None


def _measure(case: Case, subject: Subject, size: int, count: int, settings: Settings) -> Sample:
    """Measure once, in a new directory and a new event loop."""
    gc.collect()
    body = random.Random(size).randbytes(size)
    with (
        tempfile.TemporaryDirectory(prefix="aiodq-bench-", dir=settings.directory) as name,
        asyncio.Runner(loop_factory=settings.loop_factory) as runner,
    ):
        path = Path(name)
        if case.prefilled:
            runner.run(asyncio.wait_for(_prefill(subject, path, body, count), HANG))
            # What the backlog left dirty is not the measurement's to write.
            for file in path.rglob("*"):
                _sync(file)
        trial = _trial(case, subject, path, body, count=count, seconds=settings.seconds)
        sample = runner.run(asyncio.wait_for(trial, HANG))
    # Files just deleted are still in the journal: commit them now, not within the next subject's first sync.
    _sync(settings.directory)
    return sample


async def _trial(case: Case, subject: Subject, path: Path, body: bytes, *, count: int, seconds: float) -> Sample:
    """Measure `case` once in the queue at `path`."""
    async with subject.open(path) as session:
        return await case.run(Trial(session, body, count, seconds, subject.blocking))


async def _prefill(subject: Subject, path: Path, body: bytes, count: int) -> None:
    """Write a backlog and close the queue."""
    async with subject.open(path) as session:
        for start in range(0, count, BATCH):
            await session.put_many([body] * min(BATCH, count - start))


def _sync(path: Path) -> None:
    """Fsync one file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
