"""Every moment of a trace, many legal states each: the store is opened on each of them and held against the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final

from aiodq.testing import Disk, Made, Marked, Removed, Renamed, Wrote
from tests.proof.ledger import Found, Ledger
from tests.proof.limits import HungError, limit
from tests.proof.oracle import Recoverer, digest_of, judge, judge_found, same
from tests.proof.restarts import go_on
from tests.proof.world import World, run_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.testing import Image, Operation, Ordering
    from tests.proof.oracle import Opened
    from tests.proof.workloads import Workload
    from tests.proof.world import Program

__all__ = ["Case", "Result", "Violation", "begun", "explore", "sample"]

_LONGEST: Final = 30.0
"""Real seconds after which a program, or an opening, counts as hanging."""

_KEPT: Final = 200
"""States of a trace of which one is drawn for the next life: all of them would take gigabytes."""

_OF_NAMES: Final = (Made, Renamed, Removed)
_AT_A_NAME: Final = 0.4
_KILLED_AGAIN: Final = 0.25
_WHILE_OPENING: Final = 0.7
_REPEATED: Final = 0.3
_HALF_A_WRITE: Final = 0.5
_PAGE: Final = 4096
"""How often a process is killed once more, and that while it opens the store; how often the next one does what the
first did; how often the call that is under way has done a part of its work; and in what parts."""


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
        kills: how often a process is killed at some moment of the trace, and another one goes on with all that it
            wrote, synced or not, before the power is cut; with none, the power is cut at once.
    """

    workload: str
    seed: int
    ordering: Ordering = "posix"
    states: int = 4
    nested: int = 3
    lives: int = 2
    moments: int = 0
    kills: int = 0

    def __str__(self) -> str:
        numbers = (self.states, self.nested, self.lives, self.moments, self.kills)
        return "/".join(map(str, (self.workload, self.seed, self.ordering, *numbers)))

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that printed so."""
        workload, seed, ordering, *numbers = text.split("/")
        if ordering not in {"posix", "ext4"}:
            raise ValueError(f"no ordering is called {ordering!r}")
        known: Ordering = "posix" if ordering == "posix" else "ext4"
        return cls(workload, int(seed), known, *map(int, numbers))


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


def explore(case: Case, workload: Workload, *, enough: int = 5, make: type[World] = World) -> Result:
    """Run a workload and cut the power at every moment, until `enough` violations were found."""
    return _Exploration(case, workload, enough, make).run()


class _Exploration:
    def __init__(self, case: Case, workload: Workload, enough: int, make: type[World]) -> None:
        self._case = case
        self._make = make
        self._workload = workload
        self._enough = enough
        self._random = Random(str(case))
        self._result = Result()
        self._at = "the beginning"

    def run(self) -> Result:
        try:
            with Recoverer() as recoverer:
                if self._case.kills:
                    self._kill(recoverer)
                else:
                    self._cut_lives(recoverer)
        except HungError as error:
            self._report(self._at, f"hung: {error}")
        return self._result

    @property
    def _enough_found(self) -> bool:
        return len(self._result.violations) >= self._enough

    def _cut_lives(self, recoverer: Recoverer) -> None:
        image: Image | None = None
        for life in range(self._case.lives):
            world = self._live(self._world(life, image=image), self._workload.program, f"life {life}")
            if world is None:
                break
            image = self._cut(recoverer, world, f"life {life}", begun=not life)
            if self._enough_found:
                break

    def _kill(self, recoverer: Recoverer) -> None:
        """Kill a process at some moments of its trace, let others go on with what it wrote, and cut their power."""
        first = self._live(self._world(0), self._workload.program, "life 0")
        for _ in range(self._case.kills if first else 0):
            world, where = first, "life 0"
            # Now and then the next one is killed, too: most of the time while it opens the store.
            while world is not None and (world is first or self._random.random() < _KILLED_AGAIN):
                killed, at = self._killed(world)
                where += f", killed at {at}"
                program = self._workload.program if self._random.random() < _REPEATED else go_on
                world = self._live(self._world(world.life + 1, killed=killed), program, where)
            if world is not None:
                self._cut(recoverer, world, where, begun=True)
            if self._enough_found:
                break

    def _killed(self, world: World) -> tuple[list[Operation], int]:
        """Return what a process had done when it was killed, and how many operations that are."""
        trace, first = world.trace, world.fs.laid_out
        names = [n + 1 for n in range(first, len(trace) - 1) if isinstance(trace[n], _OF_NAMES)]
        opened = next((n for n in range(first, len(trace)) if _is_found(trace[n])), len(trace) - 1)
        last = opened if world.life and self._random.random() < _WHILE_OPENING else len(trace) - 1
        # Often between a change of a name and the sync of its directory: there are few such moments.
        named = [n for n in names if n <= last] if self._random.random() < _AT_A_NAME else []
        at = self._random.choice(named) if named else self._random.randint(first, last)
        done, following = trace[:at], trace[at]
        if isinstance(following, Wrote) and self._random.random() < _HALF_A_WRITE:
            done += begun(following, self._random)
        return done, at

    def _world(self, life: int, *, image: Image | None = None, killed: list[Operation] | None = None) -> World:
        seed = self._random.getrandbits(32)
        return self._make(seed, image=image, ordering=self._case.ordering, life=life, killed=killed)

    def _live(self, world: World, program: Program, where: str) -> World | None:
        self._at = where
        try:
            with limit(_LONGEST):
                run_world(world, program)
        except Exception as error:  # noqa: BLE001 - whatever it is, a program that only uses aiodq did not expect it
            self._report(where, f"the program failed: {error!r}")
            return None
        return world

    def _cut(self, recoverer: Recoverer, world: World, where: str, *, begun: bool) -> Image:
        """Open every state of a trace, or some; return one of them for the next life.

        Until a later life has said what it found, there is nothing to hold a state against, unless the process before
        it was killed, and not the power cut: then its promises stand.
        """
        trace, first = world.trace, world.fs.laid_out if world.killed else 0
        disk, ledger = Disk(self._case.ordering), Ledger()
        chosen: list[Image] = []
        looked = False
        moments = self._case.moments / (len(trace) - first) if self._case.moments else 1
        for number, operation in enumerate(trace):
            promised = isinstance(operation, Marked)
            if isinstance(operation, Marked):
                if world.killed and number >= first and isinstance(operation.label, Found):
                    ledger.outlive()
                    for what in judge_found(ledger, operation.label.topics, operation.label.damages):
                        self._report(f"{where}, and opened again", what)
                ledger.take(operation.label)
                begun = begun or isinstance(operation.label, Found)
            disk.apply(operation)
            # What was promised since an operation is held against what that operation left, not only the next one.
            if not begun or (promised and number + 1 < len(trace) and isinstance(trace[number + 1], Marked)):
                continue
            if number < first or self._random.random() > moments:
                continue
            at = f"{where}, operation {number} ({type(operation).__name__})"
            chosen += self._states(recoverer, disk, ledger, at)
            if len(chosen) > _KEPT:
                del chosen[::2]
            looked = True
            if self._enough_found:
                break
        if begun and not looked:  # so were the moments drawn
            chosen += self._states(recoverer, disk, ledger, f"{where}, its end")
        # The later ones: a life that goes on from an empty store is like the one before.
        return self._random.choice(chosen[len(chosen) // 2 :]) if chosen else next(disk.cuts(self._random, 1))

    def _states(self, recoverer: Recoverer, disk: Disk, ledger: Ledger, where: str) -> Iterator[Image]:
        """Open what a cut may leave at this moment; yield what a next life may go on from."""
        for image in disk.cuts(self._random, self._case.states):
            self._state(recoverer, image, ledger, where)
            if not disk.settled and ledger.open:
                yield image

    def _state(self, recoverer: Recoverer, image: Image, ledger: Ledger, where: str) -> None:
        digest = digest_of(image) + ledger.notes.to_bytes(4)
        if digest in self._result.distinct:
            return
        self._result.distinct.add(digest)
        nested = self._random.random() < 0.05 and self._case.nested > 0
        opened = self._open(recoverer, image, where, record=nested)
        self._result.states += 1
        for what in judge(ledger, opened):
            self._report(where, what)
        if opened.error is not None:
            return
        if self._random.random() < 0.4:
            self._again(recoverer, opened, opened.sure, f"{where}, then everything unsynced lost")
        if nested:
            self._nested(recoverer, opened, where)

    def _open(self, recoverer: Recoverer, image: Image, where: str, *, record: bool = False) -> Opened:
        self._at = where
        with limit(_LONGEST):
            return recoverer.open(image, record=record)

    def _nested(self, recoverer: Recoverer, opened: Opened, where: str) -> None:
        assert opened.fs.trace is not None
        ordering, limit = self._case.ordering, self._case.nested
        for number, image in sample(self._random, opened.fs.trace, opened.fs.laid_out, ordering, limit):
            self._result.nested += 1
            self._again(recoverer, opened, image, f"{where}, then operation {number} of opening it")

    def _again(self, recoverer: Recoverer, first: Opened, image: Image, where: str) -> None:
        """Open a second time: it has to show the same."""
        second = self._open(recoverer, image, where)
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


def begun(write: Wrote, random: Random) -> list[Wrote]:
    """Return what is there of a write in the middle of which the process was killed."""
    size, at = len(write.data), write.position
    if not write.stored:
        # A signal ends a write between two pages.
        page = random.randrange(0, at % _PAGE + size, _PAGE)
        data = write.data[: max(page - at % _PAGE, 0)]
        return [replace(write, data=data)] if data else []
    # Memory is copied in pieces and in any order: the last one often comes first.
    piece, share = random.choice((1, 8, 32, 64)), random.choice((0.1, 0.5, 0.9))
    starts = [start for start in range(0, size, piece) if random.random() < share]
    return [replace(write, position=at + start, data=write.data[start : start + piece]) for start in starts]


def _is_found(operation: Operation) -> bool:
    return isinstance(operation, Marked) and isinstance(operation.label, Found)
