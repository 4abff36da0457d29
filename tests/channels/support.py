"""A store in memory whose clock is moved by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import aiodq
from aiodq.testing import FakeClock, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")

_TURNS = 1_000
"""Of the loop, after which what has not come to be hangs on a thread."""

PATIENCE = 20.0
"""Seconds after which what should have come counts as never coming. No test waits for it to pass."""


class Machine:
    """A disk and a clock, on which stores are opened one after the other."""

    def __init__(self) -> None:
        self.fs = SimulatedFileSystem()
        self.clock = FakeClock()

    @asynccontextmanager
    async def store(self, **options: Any) -> AsyncIterator[aiodq.Store]:
        async with aiodq.open("/s", aiodq.StoreOptions(**options), fs=self.fs, clock=self.clock) as store:
            yield store

    @asynccontextmanager
    async def jobs(self, **options: Any) -> AsyncIterator[aiodq.Queue]:
        """Open a queue with channel options."""
        async with self.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**options))
            await jobs.topic.settle_in()
            yield jobs

    def crash(self) -> None:
        """Let the next store find the disk as a power cut now leaves it."""
        self.fs = SimulatedFileSystem(self.fs.durable())


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE)


def ready(channel: aiodq.Channel) -> list[bytes]:
    """Take what may be delivered now."""
    found: list[bytes] = []
    while True:
        try:
            found.append(channel.get_nowait().body)
        except aiodq.QueueEmpty:
            return found


def counts(channel: aiodq.Channel) -> tuple[int, int, int]:
    """Return how many are ready, in flight and deferred; together they are the depth."""
    found = channel.qsize(), channel.in_flight(), channel.deferred()
    assert sum(found) == channel.depth
    return found


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until it holds; a thread that must run for that gets its turn even on a busy machine."""
    for _ in range(_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)
