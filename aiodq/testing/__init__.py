"""Helpers for tests of services that use aiodq: a disk that fails and loses power, and a clock that stands still.

A store in memory, for unit tests::

    async with aiodq.testing.memory_queue() as jobs:
        await jobs.put(b"resize cat.png")

A failing call, and what is left after a power cut::

    fs = SimulatedFileSystem(plan=FaultPlan.parse("write@7:ENOSPC"))
    async with aiodq.open("/shop", fs=fs, clock=FakeClock()) as store:
        ...
    async with aiodq.open("/shop", fs=fs.power_cut(seed=1)) as store:
        ...

The same for every moment of a run, and for many states that a power cut at that moment may leave::

    fs = SimulatedFileSystem(record=True)
    ...                                            # use it; fs.mark(x) notes what was promised by now
    for operations, files in fs.power_cuts(seed=1):
        fs.trace[:operations]                      # what came before, the marks among it
        async with aiodq.open("/shop", fs=SimulatedFileSystem(files)) as store:
            ...

`WatchedFileSystem` watches, delays or fails calls of the machine's own disk, or of any other file system;
`WrappedFileSystem` is for anything else that may happen to a call.

Everything random takes a seed and repeats from it. `run` and `SimulatedExecutor` simulate the event loop and the
store's threads, too, so that a whole run repeats.
"""

from aiodq.testing.clock import FakeClock
from aiodq.testing.disk import (
    STALE,
    Disk,
    Dropped,
    Image,
    Made,
    Marked,
    Operation,
    Ordering,
    Removed,
    Renamed,
    Synced,
    Truncated,
    Wrote,
)
from aiodq.testing.faults import CALLS, Call, Fault, FaultPlan, Pages
from aiodq.testing.filesystem import SimulatedFileSystem
from aiodq.testing.loop import SimulatedExecutor, SimulatedLoop, StalledError, run
from aiodq.testing.memory import memory_queue, memory_store
from aiodq.testing.watched import Failing, Gate, Passed, WatchedFileSystem
from aiodq.testing.wrapped import WrappedFile, WrappedFileSystem

__all__ = [
    "CALLS",
    "STALE",
    "Call",
    "Disk",
    "Dropped",
    "Failing",
    "FakeClock",
    "Fault",
    "FaultPlan",
    "Gate",
    "Image",
    "Made",
    "Marked",
    "Operation",
    "Ordering",
    "Pages",
    "Passed",
    "Removed",
    "Renamed",
    "SimulatedExecutor",
    "SimulatedFileSystem",
    "SimulatedLoop",
    "StalledError",
    "Synced",
    "Truncated",
    "WatchedFileSystem",
    "WrappedFile",
    "WrappedFileSystem",
    "Wrote",
    "memory_queue",
    "memory_store",
    "run",
]
