"""Power cuts of a recorded device: each is mounted, its store is opened and held against the ledger."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.proof.devices.disk import FILE_SYSTEMS, Blocks, RecordedDisk
from tests.proof.devices.recorder import Flushed, Written
from tests.proof.devices.replay import replay
from tests.proof.ledger import Ledger
from tests.proof.oracle import Recoverer, judge
from tests.proof.workloads import WORKLOADS
from tests.proof.world import PATH, World, run_world

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.testing import Image
    from tests.proof.devices.recorder import Record

__all__ = ["Cuts", "DeviceCase", "cut_device", "workloads"]


@dataclass(frozen=True, slots=True)
class DeviceCase:
    """What to cut, and how often.

    Attributes:
        file_system: its name in `FILE_SYSTEMS`.
        workload: its name.
        seed: decides everything but when the kernel writes.
        moments: so many, each after a record of the device's log.
        states: at each of them.
    """

    file_system: str
    workload: str
    seed: int
    moments: int
    states: int

    def __str__(self) -> str:
        return f"{self.workload!r} on {self.file_system}, seed {self.seed}"


@dataclass(slots=True)
class Cuts:
    """What the cuts of a case came to: how many there were, and what was wrong."""

    states: int = 0
    violations: list[str] = field(default_factory=list)


def workloads() -> list[str]:
    """Return the workloads that can be done to a real disk: all in which none of its calls fails."""
    return [name for name in WORKLOADS if name != "a failed sync"]


def cut_device(case: DeviceCase) -> Cuts:
    """Run a workload on a recorded device, and cut its power."""
    random, cuts = Random(str(case)), Cuts()
    world = World(case.seed)
    run_world(world, WORKLOADS[case.workload].program)
    with RecordedDisk(FILE_SYSTEMS[case.file_system]) as disk, Recoverer() as recoverer:
        begin = disk.position
        notes = replay(world.trace, disk.directory, random, lambda: disk.position)
        log = disk.end()
        moments = sorted(random.choices([record.end for record in log if record.end > begin], k=case.moments))
        for moment, ledger, left in _states(log, notes, moments, case.states, random):
            where = f"{case}, byte {moment} of the log from {begin} on"
            cuts.states += 1
            try:
                with disk.cut(left) as directory:
                    image = _read(directory)
            except OSError as error:
                cuts.violations.append(f"{error}\n    at {where}")
                continue
            cuts.violations += [f"{what}\n    at {where}" for what in judge(ledger, recoverer.open(image))]
    return cuts


def _states(
    log: list[Record], notes: list[tuple[int, object]], moments: Sequence[int], states: int, random: Random
) -> Iterator[tuple[int, Ledger, Blocks]]:
    """Yield what may be left of the device at each moment, and what is promised by then."""
    device, pending, ledger = Blocks(), list[Written](), Ledger()
    records, promises = iter(log), iter(notes)
    record, promise = next(records, None), next(promises, None)
    for moment in moments:
        while record is not None and record.end <= moment:
            if isinstance(record, Flushed):
                for _, position, data in pending:
                    device.write(position, data)
                pending = []
            else:
                pending.append(record)
            record = next(records, None)
        while promise is not None and promise[0] <= moment:
            ledger.take(promise[1])
            promise = next(promises, None)
        for _ in range(states if pending else 1):
            left = device.copy()
            left.write_part(pending, random)
            yield moment, ledger, left


def _read(directory: Path) -> Image:
    """Return the store as the simulated file system takes it."""
    top, image = directory / PATH.lstrip("/"), dict[str, bytes | None]()
    for place, _, names in os.walk(top):
        here = Path(place)
        image[f"/{here.relative_to(directory)}"] = None
        for name in names:
            image[f"/{here.relative_to(directory)}/{name}"] = (here / name).read_bytes()
    return image
