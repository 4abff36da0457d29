"""Blocking work off the loop, and the remedy for a loop so busy that the worker never gets the interpreter back."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from aiodq.engine.futures import settle
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.thread_pool import ThreadPool
from aiodq.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

    Report: TypeAlias = "tuple[Callable[[Any, BaseException | None], None], object, BaseException | None]"

__all__ = ["WorkerThreads"]

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS: Final = 8
_NUDGE_SECONDS: Final = 0.002
_PAUSE: Final = 0.0001
_HOGGED: Final = 0.001
"""Seconds of the processor's time that a loop spends without a report of what is outstanding, before it is nudged."""


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
    beside such a loop. So while something is outstanding, and the loop has run for more than 1 ms since anything was
    reported, a callback of it sleeps for 0.1 ms: long enough for the thread to report. A loop that waits is left alone.
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
        self._ended: SimpleQueue[Report] = SimpleQueue()
        self._outstanding = 0
        self._nudging = False
        self._spent = 0.0

    @property
    def own(self) -> bool:
        """Whether the threads are the store's own, not an executor's that it was given."""
        return isinstance(self._executor, ThreadPool)

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
            self._spent = time.thread_time()
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
        self._ended.put((errand.report, result, error))
        # A loop that was closed meanwhile has nobody left to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell_next)

    def _tell_next(self, seconds: float = 0.0) -> bool:
        """Report what has ended first, waiting for it; return whether anything has."""
        try:
            tell, result, error = self._ended.get(seconds > 0, seconds)
        except Empty:
            return False  # it was reported while the loop was held for it
        self._outstanding -= 1
        self._spent = time.thread_time()
        try:
            tell(result, error)
        except Exception as raised:
            if self._fail is None:
                raise
            self._fail(raised)
        return True

    def wait_here(self, seconds: float) -> bool:
        """Hold the loop until something that was started has ended, and report it; return whether anything has.

        Only for what somebody wants at once who cannot wait otherwise. With an executor of somebody else's, which may
        need the loop, nothing is waited for.
        """
        return bool(self.own and self._outstanding) and self._tell_next(max(seconds, 0.0))

    def _nudge(self) -> None:
        if not self._outstanding:
            self._nudging = False
            return
        if (spent := time.thread_time()) - self._spent >= _HOGGED:
            self._spent = spent
            time.sleep(_PAUSE)
        self._loop.call_later(_NUDGE_SECONDS, self._nudge)

    def shutdown(self, *, wait: bool = True) -> None:
        """End the threads once everything they were given is done: files are closed there, too."""
        self._executor.shutdown(wait=wait)
