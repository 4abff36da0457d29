"""Blocking work off the loop, and the remedy for a loop so busy that the worker never gets the interpreter back."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from aiodq.engine.futures import settle
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.thread_pool import ThreadPool
from aiodq.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

__all__ = ["BACKEND", "WorkerThreads"]

P = ParamSpec("P")
T = TypeVar("T")

BACKEND: Final = "thread"
"""What waits for a sync, as `StoreOptions.sync_backend` names it; `"auto"` comes to it: see `thread_pool`."""

_WORKERS: Final = 8
_NUDGE_SECONDS: Final = 0.002
_PAUSE: Final = 0.0001


class _Errand:
    """What a thread is to do, unless it was given up, and who is told."""

    __slots__ = ("function", "report")

    def __init__(self, function: Callable[[], Any], report: Callable[[Any, BaseException | None], None]) -> None:
        self.function: Callable[[], Any] | None = function
        self.report = report


class WorkerThreads:
    """The store's worker threads.

    A thread that comes back from a sync needs the interpreter's lock. A loop that runs callback after callback gives it
    up only every few milliseconds, and then often to nobody's good; measured, a durable put took a hundred times longer
    beside such a loop. So while something is outstanding for more than 2 ms, a callback of the loop sleeps for 0.1 ms:
    long enough for the thread to report.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None = None,
        fail: Callable[[Exception], None] | None = None,
    ) -> None:
        """Use `executor`'s threads, or up to 8 of its own, made as they are needed.

        Args:
            loop: where to report.
            executor: the threads.
            fail: told what a report raises, after which nobody knows who still waits for what.
        """
        self._loop = loop
        self._fail = fail
        self._executor: Executor | ThreadPool = executor or ThreadPool(_WORKERS, "aiodq")
        self._outstanding = 0
        self._nudging = False

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns, run in a thread.

        Cancellation: the function goes on to its end.
        """
        done: asyncio.Future[T] = self._loop.create_future()

        self.start(lambda: function(*args, **kwargs), partial(settle, done))
        return await done

    def start(self, function: Callable[[], T], report: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `function` in a thread; `report` is then called on the loop with its result or its exception."""
        errand = _Errand(function, report)
        try:
            self._executor.submit(self._work, errand)
        except RuntimeError as cause:
            # Threads that there are already may find it all the same.
            errand.function = None
            ended = "shutdown" in str(cause)
            error = QueueShutDown("the store is closed") if ended else StorageError(f"no thread is free: {cause}")
            error.__cause__ = cause
            report(None, error)
            return
        self._outstanding += 1
        if not self._nudging:
            self._nudging = True
            self._loop.call_later(_NUDGE_SECONDS, self._nudge)

    def _work(self, errand: _Errand) -> None:
        result, error = None, None
        function = errand.function
        if function is None:
            return
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - it is handed to who waits, whatever it is
            error = raised
        # A loop that was closed meanwhile has nobody left to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._report, errand.report, result, error)

    def _report(
        self, report: Callable[[T | None, BaseException | None], None], result: T | None, error: BaseException | None
    ) -> None:
        self._outstanding -= 1
        try:
            report(result, error)
        except Exception as raised:
            if self._fail is None:
                raise
            self._fail(raised)

    def _nudge(self) -> None:
        if not self._outstanding:
            self._nudging = False
            return
        time.sleep(_PAUSE)
        self._loop.call_later(_NUDGE_SECONDS, self._nudge)

    def shutdown(self, *, wait: bool = True) -> None:
        """End the threads once everything they were given is done: files are closed there, too."""
        self._executor.shutdown(wait=wait)
