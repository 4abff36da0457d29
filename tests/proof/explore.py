"""Every moment of a trace, many legal states each: the store is opened on each of them and held against the ledger."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from aiodq.testing import Disk, Marked
from tests.proof.ledger import Found, Ledger
from tests.proof.oracle import Recoverer, judge, same
from tests.proof.world import World, run_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.testing import Image, Operation, Ordering
    from tests.proof.oracle import Opened
    from tests.proof.workloads import Workload

__all__ = ["Case", "Result", "Violation", "explore", "sample"]


@dataclass(frozen=True, slots=True)
class Case:
    """What to explore, and how far. It prints as what `python -m tests.proof --case` takes.

    Attributes:
        workload: its name.
        seed: decides everything.
        ordering: see `aiodq.testing.disk`.
        states: at each moment of a trace.
        nested: at how many of them a second power cut comes while the store is opened again.
        lives: how often the machine goes on from one of the states, with a trace of its own.
        moments: about how many of each trace are looked at; 0 for all.
    """

    workload: str
    seed: int
    ordering: Ordering = "posix"
    states: int = 4
    nested: int = 3
    lives: int = 2
    moments: int = 0

    def __str__(self) -> str:
        numbers = (self.states, self.nested, self.lives, self.moments)
        return "/".join(map(str, (self.workload, self.seed, self.ordering, *numbers)))

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that printed so."""
        workload, seed, ordering, *numbers = text.split("/")
        if ordering not in {"posix", "ext4"}:
            raise ValueError(f"no ordering is called {ordering!r}")
        known: Ordering = "posix" if ordering == "posix" else "ext4"
        states, nested, lives, moments = map(int, numbers)
        return cls(workload, int(seed), known, states, nested, lives, moments)


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: in which case, where in the trace, and how."""

    case: Case
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.what}\n    at {self.where} of --case '{self.case}'"


@dataclass(slots=True)
class Result:
    """What an exploration came to: states opened, distinct ones among them, nested ones among them, and violations."""

    states: int = 0
    nested: int = 0
    distinct: set[bytes] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Add another's."""
        self.states += other.states
        self.nested += other.nested
        self.distinct |= other.distinct
        self.violations += other.violations


def explore(case: Case, workload: Workload, *, enough: int = 5) -> Result:
    """Run a workload and cut the power at every moment, until `enough` violations were found."""
    return _Exploration(case, workload, enough).run()


class _Exploration:
    def __init__(self, case: Case, workload: Workload, enough: int) -> None:
        self._case = case
        self._workload = workload
        self._enough = enough
        self._random = Random(str(case))
        self._result = Result()

    def run(self) -> Result:
        with Recoverer() as recoverer:
            image: Image | None = None
            for life in range(self._case.lives):
                trace = self._live(image, life)
                if trace is None:
                    break
                image = self._cut(recoverer, trace, life)
                if len(self._result.violations) >= self._enough:
                    break
        return self._result

    def _live(self, image: Image | None, life: int) -> list[Operation] | None:
        world = World(self._random.getrandbits(32), image=image, ordering=self._case.ordering, life=life)
        try:
            run_world(world, self._workload.program)
        except Exception as error:  # noqa: BLE001 - whatever it is, a program that only uses aiodq did not expect it
            self._report(f"life {life}", f"the program failed: {error!r}")
            return None
        assert world.fs.trace is not None
        return world.fs.trace

    def _cut(self, recoverer: Recoverer, trace: list[Operation], life: int) -> Image:
        """Open every state of a trace; return one of them for the next life."""
        disk, ledger = Disk(self._case.ordering), Ledger()
        chosen: list[Image] = []
        # INVARIANT: until a later life has said what it found, the ledger knows nothing to hold a state against.
        begun = not life
        for number, operation in enumerate(trace):
            promised = isinstance(operation, Marked)
            if isinstance(operation, Marked):
                ledger.take(operation.label)
                begun = begun or isinstance(operation.label, Found)
            disk.apply(operation)
            # What was promised since an operation is held against what that operation left, not only the next one.
            if not begun or (promised and number + 1 < len(trace) and isinstance(trace[number + 1], Marked)):
                continue
            if self._case.moments and self._random.random() * len(trace) > self._case.moments:
                continue
            where = f"life {life}, operation {number} ({type(operation).__name__})"
            for image in disk.cuts(self._random, self._case.states):
                self._state(recoverer, image, ledger, where)
                if not disk.settled and ledger.open:
                    chosen.append(image)
            if len(self._result.violations) >= self._enough:
                break
        # The later ones: a life that goes on from an empty store is like the one before.
        return self._random.choice(chosen[len(chosen) // 2 :]) if chosen else next(disk.cuts(self._random, 1))

    def _state(self, recoverer: Recoverer, image: Image, ledger: Ledger, where: str) -> None:
        digest = _digest(image, ledger.notes)
        if digest in self._result.distinct:
            return
        self._result.distinct.add(digest)
        nested = self._random.random() < 0.05 and self._case.nested > 0
        opened = recoverer.open(image, record=nested)
        self._result.states += 1
        for what in judge(ledger, opened):
            self._report(where, what)
        if opened.error is not None:
            return
        if self._random.random() < 0.4:
            self._again(recoverer, opened, opened.sure, f"{where}, then everything unsynced lost")
        if nested:
            self._nested(recoverer, opened, where)

    def _nested(self, recoverer: Recoverer, opened: Opened, where: str) -> None:
        assert opened.fs.trace is not None
        ordering, limit = self._case.ordering, self._case.nested
        for number, image in sample(self._random, opened.fs.trace, opened.fs.laid_out, ordering, limit):
            self._result.nested += 1
            self._again(recoverer, opened, image, f"{where}, then operation {number} of opening it")

    def _again(self, recoverer: Recoverer, first: Opened, image: Image, where: str) -> None:
        """Open a second time: it has to show the same."""
        second = recoverer.open(image)
        if second.error is not None:
            self._report(where, f"recovery failed: {second.error!r}")
        elif not same(first.found, second.found):
            self._report(where, f"unstable: first {first.found}, then {second.found}")

    def _report(self, where: str, what: str) -> None:
        self._result.violations.append(Violation(self._case, where, what))


def sample(
    random: Random, trace: list[Operation], first: int, ordering: Ordering, limit: int
) -> Iterator[tuple[int, Image]]:
    """Yield a few states of a trace, each at another moment from its `first` operation on."""
    moments = range(first, len(trace))
    chosen = set(random.sample(moments, min(limit, len(moments))))
    disk = Disk(ordering)
    for number, operation in enumerate(trace):
        disk.apply(operation)
        if number in chosen:
            for image in disk.cuts(random, random.choice((1, 2, 3))):
                last = image
            yield number, last


def _digest(image: Image, notes: int) -> bytes:
    found = hashlib.blake2b(str(notes).encode(), digest_size=16)
    for path, data in sorted(image.items()):
        found.update(path.encode())
        found.update(b"/" if data is None else hashlib.blake2b(data, digest_size=16).digest())
    return found.digest()
