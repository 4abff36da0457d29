"""go-diskqueue, NSQ's disk queue, measured by a program that is given. benchmarks/README.md has what it is asked."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import HANG, Durability, External, Guarantee, Operation, Sample

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness import Case

__all__ = ["parse", "subjects"]

TAKING = frozenset({Operation.GET, Operation.ITERATE, Operation.GET_MANY})


def subjects(program: Path) -> list[External]:
    """Return go-diskqueue with and without a sync each message."""
    again = Guarantee("again since the last sync", "again since the last sync")
    return [
        External(
            name="go-diskqueue",
            package="godiskqueue",
            durability=Durability.KERNEL,
            promise="in the kernel; fsync at close; nothing is acked",
            blocking=True,
            operations=TAKING | {Operation.PUT, Operation.PUT_MANY},
            put=Guarantee("kept", "lost: what the kernel had not written"),
            take=again,
            run=partial(_run, program=program, put="put"),
        ),
        External(
            name="go-diskqueue syncEvery=1",
            package="godiskqueue",
            durability=Durability.SYNCED,
            promise="data and position fsynced at each put",
            blocking=True,
            operations=frozenset({Operation.PUT}),
            run=partial(_run, program=program, put="put-synced"),
        ),
    ]


def _run(case: Case, size: int, count: int, directory: Path, *, program: Path, put: str) -> Sample:
    """Ask for one measurement."""
    asked = {
        "workload": "get" if case.operation in TAKING else put,
        "size": size,
        "count": count,
        "producers": case.unit if case.operation is Operation.PUT else 1,
        "dir": directory,
    }
    words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(  # noqa: S603 - the program that the command line names
        [str(program), *words], capture_output=True, text=True, timeout=2 * HANG, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"it ended with {done.returncode}")
    return parse(done.stdout)


def parse(answer: str) -> Sample:
    """Return the figure in what the program printed."""
    try:
        told = json.loads(answer)
        messages, seconds = int(told["messages"]), float(told["seconds"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not what a program for --go-diskqueue prints: {answer[:80]!r}") from error
    if messages <= 0 or seconds <= 0:
        raise ValueError(f"nothing was measured: {answer.strip()[:80]}")
    return Sample(seconds, {"ops/s": messages / seconds})
