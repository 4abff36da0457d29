"""Cases, subjects, and the interleaved rounds that compare them.

A *subject* is one library in one setting; a *case* is one thing to do with it. For each case and body size all subjects
are measured in turn, round after round, so that what the machine does meanwhile falls on all of them alike. A ratio is
the median of the ratios within each round, not the ratio of two medians. Each subject has a process of its own, so that
none is slowed by what another one left in memory.
"""

from __future__ import annotations

import asyncio
import enum
import gc
import io
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
    "KEPT",
    "LATENCIES",
    "RATE",
    "TAKING",
    "Case",
    "Durability",
    "External",
    "Guarantee",
    "Metric",
    "Operation",
    "Result",
    "Sample",
    "Session",
    "Setting",
    "Settings",
    "Subject",
    "Trial",
    "interleave",
    "measure_once",
    "median",
    "percentile",
    "ratio",
]

BATCH = 1000
"""Bodies in one `put_many`."""

MAX_BYTES = 128 * 2**20
"""Most that one measurement writes, so that the kernel's write-back of one subject is not the next one's noise."""

PILOT_SHARE = 0.5
"""A pilot run shorter than this share of the target says too little: what a queue does once may take most of it."""

PILOT_STEP = 20.0
"""Most by which a pilot run is larger than the one before."""

FEW = 50
"""Operations of the first pilot run."""

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
    GET_MANY = enum.auto()
    ACK = enum.auto()
    PUT_GET = enum.auto()
    MOVE = enum.auto()
    TIMED_PUT = enum.auto()
    LAG = enum.auto()


TAKING = frozenset({Operation.GET, Operation.ITERATE, Operation.GET_MANY, Operation.ACK})
"""What takes messages of a backlog and puts none."""


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

    async def take_many(self, count: int) -> None:
        """Take and settle `count` messages, `BATCH` a call where the library has such a call."""
        await self.consume(count)

    async def ack_each(self, count: int) -> None:
        """Be one consumer that waits until each ack is as durable as the subject promises, `count` times."""
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


@dataclass(frozen=True)
class Guarantee:
    """What is left of a call that returned."""

    kill: str
    """After a SIGKILL of the process that called."""
    power: str
    """After a power cut."""


KEPT = Guarantee("kept", "kept")


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
    put: Guarantee = KEPT
    """Of a message that was put."""
    take: Guarantee | None = None
    """Of the removal of a message that was taken and settled; None is as `put`."""
    ack: Guarantee | None = None
    """Of acks that were waited for, of one message or of many; None is as `take`."""
    interpreter: str | None = None
    """The Python that runs it; None is the one that runs the benchmarks."""
    known_as: str | None = None
    """The name that the subject has in that interpreter, where it is another one than here."""

    def guarantee(self, operation: Operation) -> Guarantee:
        """Return what is left of what a case measures."""
        take = self.take or self.put
        if operation in {Operation.ACK, Operation.GET_MANY}:
            return self.ack or take
        return take if operation in TAKING else self.put


def _not_here(_path: Path) -> AbstractAsyncContextManager[Session]:
    raise io.UnsupportedOperation("another program opens it")


@dataclass(frozen=True, kw_only=True)
class External(Subject):
    """A program that measures itself."""

    open: Callable[[Path], AbstractAsyncContextManager[Session]] = _not_here
    run: Callable[[Case, int, int, Path], Sample]
    """Measures a case with bodies of a size and about so many operations in an empty directory."""


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
    against: str | None = None
    """The aiodq subject that all others are compared with; None is the one that promises what the other one does."""
    headline: str = ""
    """What a summary calls it; cases without are measured only when they are asked for."""

    def accepts(self, subject: Subject) -> bool:
        """Tell whether `subject` can take part."""
        return self.operation in subject.operations and subject.durability in self.durabilities


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how one subject is measured, in its own process."""

    directory: Path
    seconds: float
    loop_factory: Callable[[], asyncio.AbstractEventLoop]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How all subjects are measured, from the process that compares them."""

    rounds: int
    seconds: float
    measure: Callable[[Case, Subject, int, int], Sample]
    """Measures a subject once, with bodies of a size and about so many operations."""
    pilot: bool = True
    """Find out first how many operations take about `seconds`; without, `FEW` are measured."""


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

    def baseline(self, subject: Subject, package: str = "aiodq") -> Subject | None:
        """Return the aiodq subject that the case names, or the one that promises what `subject` does, if measured."""
        for other in self.subjects:
            alike = other.durability is subject.durability
            chosen = alike if self.case.against is None else (other.known_as or other.name) == self.case.against
            if other.package == package and chosen and other.name in self.samples:
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
                if settings.pilot:
                    counts[subject.name] = _scaled(result, counts[subject.name], sample, settings.seconds, most=2.0)
        advance()
    return result


def _pilot(result: Result, subject: Subject, settings: Settings) -> int:
    """Find the number of operations that takes about `settings.seconds`."""
    case = result.case
    count = case.unit * -(-FEW // case.unit)
    if case.timed or not settings.pilot:
        return count
    while (sample := _attempt(result, subject, count, settings)) is not None:
        larger = _scaled(result, count, sample, settings.seconds, most=PILOT_STEP)
        if sample.elapsed >= PILOT_SHARE * settings.seconds or larger == count:
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
        return settings.measure(result.case, subject, result.size, count)
    except Exception as error:  # noqa: BLE001 - one subject's failure, of whatever type, is a line in the report
        result.failures[subject.name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        result.samples.pop(subject.name, None)
        return None


def measure_once(case: Case, subject: Subject, size: int, count: int, setting: Setting) -> Sample:
    """Measure once, in a new directory and a new event loop."""
    gc.collect()
    body = random.Random(size).randbytes(size)
    with (
        tempfile.TemporaryDirectory(prefix="aiodq-bench-", dir=setting.directory) as name,
        asyncio.Runner(loop_factory=setting.loop_factory) as runner,
    ):
        path = Path(name)
        if case.prefilled:
            runner.run(asyncio.wait_for(_prefill(subject, path, body, count), HANG))
            # What the backlog left dirty is not the measurement's to write.
            for file in path.rglob("*"):
                _sync(file)
        trial = _trial(case, subject, path, body, count=count, seconds=setting.seconds)
        sample = runner.run(asyncio.wait_for(trial, HANG))
    # Files just deleted are still in the journal: commit them now, not within the next subject's first sync.
    _sync(setting.directory)
    return sample


async def _trial(case: Case, subject: Subject, path: Path, body: bytes, *, count: int, seconds: float) -> Sample:
    """Measure `case` once in the queue at `path`."""
    async with subject.open(path) as session:
        if not case.prefilled:
            await session.put(body)  # what a queue does at its first put only is not what is measured
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
