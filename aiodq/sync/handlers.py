"""Threads in which `Channel.consume` calls its handler."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HandlerThreads"]


class _Errand(NamedTuple):
    context: Context
    function: Callable[[], object]
    done: asyncio.Future[object]


class HandlerThreads:
    """Threads that live as long as one `consume`, so that a handler can reuse what it keeps per thread.

    They are made as needed, no more than handlers run at once. They are daemons, as nothing can stop a handler and the
    interpreter's exit must not wait for one.

    Attributes:
        exit: the exception with which a handler ends the program, as by `sys.exit`, or None.
    """

    def __init__(self) -> None:
        """Start without threads. To be called by the task that consumes, which is cancelled at an `exit`."""
        self.exit: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._consuming = asyncio.current_task()
        self._idle: list[queue.SimpleQueue[_Errand | None]] = []
        self._number = 0
        self._ended = False

    async def run(self, function: Callable[[], object]) -> object:
        """Call a function in a thread; return what it returns.

        Cancellation: the function runs to its end, unheard.
        """
        errands = self._idle.pop() if self._idle else self._start()
        done: asyncio.Future[object] = self._loop.create_future()
        errands.put(_Errand(copy_context(), function, done))
        return await done

    def end(self) -> None:
        """End each thread once its current call has ended."""
        self._ended = True
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> queue.SimpleQueue[_Errand | None]:
        errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()  # by its module, as in `ThreadPool`
        name = f"aiodq handler {self._number}"
        self._number += 1
        threading.Thread(target=self._serve, args=(errands,), name=name, daemon=True).start()
        return errands

    def _serve(self, errands: queue.SimpleQueue[_Errand | None]) -> None:
        while (errand := errands.get()) is not None:
            result, error = None, None
            try:
                result = errand.context.run(errand.function)
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is passed to the waiter
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._report, errands, errand.done, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del errand, result, error

    def _report(
        self,
        errands: queue.SimpleQueue[_Errand | None],
        done: asyncio.Future[object],
        result: object,
        error: BaseException | None,
    ) -> None:
        if self._ended:
            errands.put(None)
        else:
            self._idle.append(errands)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            # Raised on the loop, it would end the loop.
            self.exit, error = error, asyncio.CancelledError()
            if self._consuming is not None:
                self._consuming.cancel()
        if isinstance(error, StopIteration):
            cause, error = error, RuntimeError("the handler raised StopIteration")  # a future takes none
            error.__cause__ = cause
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
