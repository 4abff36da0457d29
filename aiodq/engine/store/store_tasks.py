"""The tasks of an open store: what it does by itself until it is closed, and the ioLoops of its topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from aiodq.engine.loop.futures import first_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["StoreTasks", "Work"]


class Work(NamedTuple):
    """What is done while a store is open, and as it ends.

    Attributes:
        own: what the store does beside its topics; each returns only once it is cancelled.
        topics: the engines whose ioLoops end with the store, topics that are being deleted included.
        last: called once all of that has ended, unless the loop is ending.
        release: releases everything, in whatever way the store ends. Blocking, as no task is left to wait for.
    """

    own: tuple[Callable[[], Awaitable[None]], ...]
    topics: Callable[[], Iterable[TopicEngine]]
    last: Callable[[], Awaitable[None]]
    release: Callable[[], None]


class StoreTasks:
    """One task that owns all others. If it is cancelled, as the loop is ending, it saves what was accepted."""

    __slots__ = ("_fail", "_task", "_unbegun", "_wanted")

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """Start with no tasks; `fail` stops the store."""
        self._fail = fail
        self._task: asyncio.Task[None] | None = None
        self._unbegun: dict[Callable[[], Awaitable[None]], Coroutine[Any, Any, None]] = {}
        self._wanted: asyncio.Queue[TopicEngine | None] = asyncio.Queue()

    @property
    def cancelled(self) -> bool:
        """Whether the loop is ending: what was accepted is saved, and there is no time for more."""
        return self._task is not None and self._task.cancelling() > 0

    def start(self, work: Work, name: str) -> None:
        """Start the task that owns all others, under that name."""
        self._task = asyncio.get_running_loop().create_task(self._run(work), name=name)

    def begin(self, engine: TopicEngine) -> None:
        """Begin the ioLoop of a topic soon, but not before `start`."""
        self._wanted.put_nowait(engine)

    async def end(self) -> BaseException | None:
        """Wait until all tasks have ended; return what the task that owns them has raised."""
        self._wanted.put_nowait(None)
        if self._task is None:
            return None
        await asyncio.wait([self._task])
        return None if self._task.cancelled() else self._task.exception()

    async def _run(self, work: Work) -> None:
        ended: list[asyncio.Task[None]] = []
        try:
            async with anyio.create_task_group() as tasks:
                for run in work.own:
                    tasks.start_soon(self._noted, run)
                try:
                    while (engine := await self._wanted.get()) is not None:
                        self._begin(engine)
                        await asyncio.sleep(0)  # of thousands of topics, not all begin in one turn of the loop
                finally:
                    for engine in work.topics():
                        ended += engine.io_loop.end()
                tasks.cancel_scope.cancel()
            await work.last()
        except (Exception, BaseExceptionGroup) as error:
            self._fail(first_of(error))  # Ctrl-C, too: the processes of a shared store find another owner
            if not isinstance(error, Exception):
                raise
        finally:
            if ended:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(ended)
            for coroutine in self._unbegun.values():
                coroutine.close()  # else Python complains, at the end of a program that failed, that it was not awaited
            work.release()

    def _begin(self, engine: TopicEngine) -> None:
        try:
            engine.io_loop.begin()
        except Exception as error:  # noqa: BLE001 - as in `_guarded`
            self._fail(error)

    def _noted(self, run: Callable[[], Awaitable[None]]) -> Coroutine[Any, Any, None]:
        self._unbegun[run] = coroutine = self._guarded(run)
        return coroutine

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        del self._unbegun[run]
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and all waiters are failed
            self._fail(error)
