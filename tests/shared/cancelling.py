"""Calls whose caller is cancelled after so many turns of the loop, and what is to be left of them."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

import aiodq
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

Doing: TypeAlias = "Callable[[Case], Coroutine[Any, Any, list[bytes] | None]]"
Where = Literal["alone", "owner", "client"]
How = Literal["once", "twice", "again and again", "at its time"]

HOWS: list[How] = ["once", "twice", "again and again", "at its time"]

BODIES = [b"%d" % number for number in range(8)]


@dataclass
class Case:
    """A store with `BODIES` in its topic `jobs`, in which something is cancelled.

    Attributes:
        store: in which the cancelled caller is.
        other: the store of somebody else: of another process, or the same where there is only one.
        turns: after which it is cancelled.
        how: in which way.
        begun: whether the cancelled caller has taken its first step.
        seen: what somebody else counted last.
    """

    store: aiodq.Store
    other: aiodq.Store
    turns: int
    how: How
    path: Path
    begun: bool = False
    seen: tuple[int, int, int] | None = None

    @property
    def queue(self) -> aiodq.Queue:
        """Return the caller's queue."""
        return self.store.queue("jobs")

    @property
    def others(self) -> aiodq.Queue:
        """Return somebody else's queue."""
        return self.other.queue("jobs")

    async def cancelled(self, doing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something in a task that is cancelled after so many turns, if it has not ended; return the task."""
        scope = anyio.CancelScope()
        span = asyncio.timeout(None)

        async def call() -> Any:
            self.begun = True
            if self.how == "again and again":
                with scope:
                    return await doing
                raise asyncio.CancelledError
            if self.how == "at its time":
                try:
                    async with span:
                        return await doing
                except TimeoutError:
                    raise asyncio.CancelledError from None
            return await doing

        calling = asyncio.ensure_future(call())
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if not calling.done():
            self._cancel(calling, scope, span)
            if self.how == "twice":
                await asyncio.sleep(0)
                calling.cancel()
        await asyncio.wait([calling])
        if not self.begun:
            doing.close()
        return calling

    def _cancel(self, calling: asyncio.Task[Any], scope: anyio.CancelScope, span: asyncio.Timeout) -> None:
        if self.begun and self.how == "again and again":
            scope.cancel()
        elif self.begun and self.how == "at its time":
            span.reschedule(0)
        else:
            calling.cancel()

    async def settled(self, ready: int, flying: int = 0, deferred: int = 0) -> None:
        """Wait until somebody else counts so many messages."""
        while (found := await self._counts()) != (ready, flying, deferred):
            await asyncio.sleep(0.002)
            self.seen = found

    async def _counts(self) -> tuple[int, int, int]:
        await self.others.refresh()
        return self.others.qsize(), self.others.in_flight(), self.others.deferred()


def result_of(calling: asyncio.Task[Any], otherwise: Any = None) -> Any:
    """Return what a call returned, or what stands for it if it was cancelled."""
    return otherwise if calling.cancelled() else calling.result()


async def cancel_in(doing: Doing, where: Where, how: How, turns: int, path: Path) -> None:
    """Cancel something in a store; then somebody else gets what is to be left, in order, and all of it ends."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    what = f"{doing.__name__} {where}, cancelled {how} after {turns} turns"
    before = asyncio.all_tasks()
    async with aiodq.open(path, QUICK) as store:
        await store.queue("jobs").put_many(BODIES)
    case: Case | None = None
    left: list[bytes] | None = None
    found = list[bytes]()
    try:
        async with asyncio.timeout(PATIENCE):
            owner = await aiodq.open(path, QUICK, mode="exclusive" if where == "alone" else "shared")
            client = owner if where == "alone" else await aiodq.open(path, QUICK, mode="client")
            stores = (owner, client) if where == "owner" else (client, owner)
            case = Case(*stores, turns, how, path)
            left = await doing(case)
            if not isinstance(left, list):
                left = None
            else:
                await case.settled(len(left))
                while len(found) < len(left):
                    message = await case.others.get()
                    found.append(message.body)
                    await message.ack()
                await asyncio.gather(case.queue.join(), case.others.join())
            await client.aclose()
            await owner.aclose()
    except TimeoutError:
        raise AssertionError(f"{what}: stuck with {found} of {left}, {getattr(case, 'seen', None)}") from None
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    assert left is None or found == left, what
    async with aiodq.open(path, QUICK) as store:
        assert left is None or store.queue("jobs").depth == 0, what
    rest = [task for task in asyncio.all_tasks() - before if not task.done()]
    if rest:
        await asyncio.wait(rest, timeout=5)
    assert not [task for task in rest if not task.done()], what
    del case
    gc.collect(0)
    assert not reported, f"{what}: {reported}"
