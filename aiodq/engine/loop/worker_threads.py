"""Blocking work off the loop, and a remedy for a loop so busy that no worker thread gets the GIL."""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from aiodq.engine.loop.futures import settle
from aiodq.engine.loop.thread_pool import ThreadPool
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import StorageError, StoreFailedError

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
"""Seconds of processor time that a loop spends without a report of outstanding work before it is nudged."""


class _Errand:
    """Work for a thread, unless it was given up, and the callback for its result."""

    __slots__ = ("function", "report", "then")

    def __init__(
        self,
        function: Callable[[], Any],
        report: Callable[[Any, BaseException | None], None],
        then: Callable[[], None] | None,
    ) -> None:
        self.function: Callable[[], Any] | None = function
        self.report = report
        self.then = then


class WorkerThreads:
    """The store's worker threads.

    A thread that returns from a sync needs the GIL. A loop that runs callback after callback releases it only every few
    milliseconds, and often takes it back at once: a durable put then took a hundred times longer. So while work is
    outstanding, and the loop has run for more than 1 ms since the last report, a callback on the loop sleeps for
    0.1 ms, which is long enough for the thread to report. A loop that waits is left alone.

    Attributes:
        fail: stops the store: called with a `StoreFailedError` of work, whatever its caller makes of that, and with the
            exception of a report, after which some callers might wait for ever. None as long as there is none to stop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        """Use `executor`'s threads, or up to 8 of its own, created as needed.

        Args:
            loop: the loop on which to report.
            executor: the threads.
        """
        self._loop = loop
        self.fail: Callable[[BaseException], None] | None = None
        self._executor: Executor | ThreadPool = executor or ThreadPool(_WORKERS, "aiodq")
        self._ended: queue.SimpleQueue[Report] = queue.SimpleQueue()  # by its module, as in `ThreadPool`
        self._outstanding = 0
        self._all_done: asyncio.Future[None] | None = None
        self._nudging = False
        self._spent = 0.0

    @property
    def own(self) -> bool:
        """Whether the threads are the store's own, not those of a given executor."""
        return isinstance(self._executor, ThreadPool)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns, run in a thread.

        Cancellation: the function goes on to its end.
        """
        done: asyncio.Future[T] = self._loop.create_future()
        self.start(lambda: function(*args, **kwargs), partial(settle, done))
        return await done

    def start(
        self,
        function: Callable[[], T],
        report: Callable[[T | None, BaseException | None], None],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Run `function` in a thread; `report` is then called on the loop with its result or its exception.

        Args:
            function: what blocks.
            report: see above.
            then: called by the thread if `function` returns, when the report can be had by `tell_ended`, and before the
                loop is woken for it. It must not raise.
        """
        errand = _Errand(function, report, then)
        try:
            self._executor.submit(self._work, errand)
        except RuntimeError as cause:
            # A thread that exists already may take it anyway.
            errand.function = None
            if isinstance(cause, RecursionError):
                raise  # the caller's stack is exhausted, so nothing can be reported on it
            # An interpreter that ends refuses threads to stores that are open, too.
            ended = "shutdown" in str(cause) and "interpreter" not in str(cause)
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
        except BaseException as raised:  # noqa: BLE001 - it is handed to the waiting caller, whatever it is
            error = raised
        self._ended.put((errand.report, result, error))
        if errand.then is not None and error is None:
            errand.then()
        # If the loop was closed meanwhile, there is nothing to report to.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell_next)

    def _tell_next(self, seconds: float = 0.0) -> bool:
        """Report the work that ended first, waiting for it up to a time; return whether any has ended."""
        try:
            try:
                tell, result, error = self._ended.get(seconds > 0, seconds or None)
            except queue.Empty:
                return False  # it was reported while the loop was blocked for it
            self._outstanding -= 1
            if not self._outstanding and self._all_done is not None:
                settle(self._all_done, None, None)
            self._spent = time.thread_time()
            # INVARIANT: the store has stopped before anybody is told that it is unknown what is on disk.
            if self.fail is not None and isinstance(error, StoreFailedError):
                self.fail(error)
            tell(result, error)
        except BaseException as raised:
            if self.fail is not None:
                self.fail(raised)
            if self.fail is None or not isinstance(raised, Exception):
                raise
        return True

    def tell_ended(self) -> None:
        """Report what has ended. On the loop, which may not have been woken for it yet."""
        more = not self._ended.empty()
        while more:
            more = self._tell_next()

    def wait_here(self, seconds: float) -> bool:
        """Block the loop until started work has ended, and report it; return whether any has.

        Only for a caller that wants a result at once and cannot wait otherwise. With a given executor, which may need
        the loop, this does not wait.
        """
        return bool(self.own and self._outstanding) and self._tell_next(max(seconds, 0.0))

    def _nudge(self) -> None:
        if not self._outstanding:
            self._nudging = False
            return
        self._tell_next()  # a Ctrl-C may have replaced the callback that a thread has scheduled
        if (spent := time.thread_time()) - self._spent >= _HOGGED:
            self._spent = spent
            time.sleep(_PAUSE)
        self._loop.call_later(_NUDGE_SECONDS, self._nudge)

    async def over(self) -> None:
        """Wait until all work has ended that was started; `shutdown` then blocks for nothing.

        Cancellation: nothing changes.
        """
        while self._outstanding:
            self._all_done = self._loop.create_future()
            await self._all_done

    def shutdown(self, *, wait: bool = True) -> None:
        """End the threads once all their work is done: closing files is part of it."""
        self._executor.shutdown(wait=wait)
