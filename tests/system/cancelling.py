"""Four ways of cancelling an operation at a step of the loop that the test chooses; none of them looks at a clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio

import aiodq
from tests.processes import WATCHDOG
from tests.queue.support import turns
from tests.system.support import QuickFileSystem, bodies, descriptors_under, drain

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq import ChannelOptions, Queue, Store

__all__ = ["KINDS", "MOST_STEPS", "Case", "Kind", "Outcome", "started"]

Kind: TypeAlias = Literal["task", "timeout", "scope", "move_on_after"]
Operation: TypeAlias = Callable[[], Awaitable[Any]]

KINDS: Final[tuple[Kind, ...]] = ("task", "timeout", "scope", "move_on_after")
MOST_STEPS: Final = 400
"""No operation takes so many steps of the loop; one that does hangs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended: with a result, or cancelled."""

    cancelled: bool
    result: Any = None


async def _in_timeout(operation: Operation, scope: asyncio.Timeout) -> Outcome:
    try:
        async with scope:
            return Outcome(cancelled=False, result=await operation())
    except TimeoutError:
        return Outcome(cancelled=True)


async def _in_scope(operation: Operation, scope: anyio.CancelScope) -> Outcome:
    with scope:
        return Outcome(cancelled=False, result=await operation())
    return Outcome(cancelled=True)


async def _plain(operation: Operation) -> Outcome:
    return Outcome(cancelled=False, result=await operation())


def started(kind: Kind, operation: Operation) -> tuple[asyncio.Task[Outcome], Callable[[], object]]:
    """Start an operation in a task of its own; return the task and what cancels it, once it has run a step."""
    if kind == "task":
        task = asyncio.create_task(_plain(operation))
        return task, task.cancel
    if kind == "timeout":
        timeout = asyncio.timeout(None)
        task = asyncio.create_task(_in_timeout(operation, timeout))
        loop = asyncio.get_running_loop()
        return task, lambda: timeout.reschedule(loop.time() - 1)
    scope = anyio.CancelScope() if kind == "scope" else anyio.move_on_after(math.inf)
    task = asyncio.create_task(_in_scope(operation, scope))
    if kind == "scope":
        return task, scope.cancel
    return task, lambda: setattr(scope, "deadline", -math.inf)


async def ended(task: asyncio.Task[Outcome]) -> Outcome:
    """Wait for an operation's end; a hang is a failure."""
    done, _ = await asyncio.wait([task], timeout=WATCHDOG)
    assert done, "the operation hangs"
    return Outcome(cancelled=True) if task.cancelled() else task.result()


class Case:
    """One run: a store of its own, and one operation that is cancelled after step `number`."""

    def __init__(self, path: Path, kind: Kind, number: int) -> None:
        self.path = path
        self.kind = kind
        self.number = number
        self.others: list[asyncio.Task[Any]] = []

    def open(self, **fields: Any) -> aiodq.StoreOpening:
        """Open the store."""
        return aiodq.open(self.path, aiodq.StoreOptions(**fields), fs=QuickFileSystem())

    def open_queue(self, channel: ChannelOptions | None = None, **fields: Any) -> aiodq.QueueOpening:
        """Open a queue."""
        return aiodq.open_queue(self.path, aiodq.StoreOptions(**fields), channel, fs=QuickFileSystem())

    def beside(self, operation: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run something else meanwhile; it must end."""
        task = asyncio.ensure_future(operation)
        assert isinstance(task, asyncio.Task)
        self.others.append(task)
        return task

    async def cancel(self, operation: Operation, meanwhile: Callable[[], object] = lambda: None) -> Outcome:
        """Run the operation, cancel it after the step, and return how it ended."""
        task, cancel = started(self.kind, operation)
        meanwhile()
        await turns(self.number)
        if not task.done():
            cancel()
        return await ended(task)

    async def others_end(self) -> None:
        """Wait for what ran beside it."""
        async with asyncio.timeout(WATCHDOG):
            await asyncio.gather(*self.others)

    async def reopened(self) -> list[bytes]:
        """Return what a queue delivers that is opened again, in order, and that nothing else was left open."""
        assert descriptors_under(self.path) == []
        async with self.open_queue() as queue:
            messages = drain(queue)
            offsets = [message.offset for message in messages]
            assert offsets == sorted(set(offsets))
            stats = queue.topic_stats()
            assert (stats.damages, stats.channels["default"].lost) == (0, 0)
            return bodies(messages)


async def opened_at_last(opening: Callable[[], Awaitable[Any]]) -> Store | Queue:
    """Open what a cancelled opening may still be letting go of."""
    async with asyncio.timeout(WATCHDOG):
        while True:
            with suppress(aiodq.StoreLockedError):
                opened: Store | Queue = await opening()
                return opened
            await asyncio.sleep(0)
