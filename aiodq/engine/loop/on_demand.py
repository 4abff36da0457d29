"""A worker that has a task only while there is something to do, as most of a thousand topics are idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["OnDemand"]


class OnDemand:
    """Runs one coroutine function whenever `want` was called; the function returns once there is nothing left to do.

    What is most frequent may be done in a callback of the loop instead, as a task takes a turn of the loop more.

    If `want` fails because the caller's stack is exhausted, the next call starts the work. A task that slept until
    there is something to do would be lost then: the future that wakes it would be done, but the task not woken.
    """

    __slots__ = ("_asked", "_fail", "_loop", "_run", "_soon", "_task", "_without_task")

    def __init__(self, run: Callable[[], Awaitable[None]], without_task: Callable[[], bool] | None = None) -> None:
        """Run nothing before `begin`. Must be called on the loop.

        Args:
            run: does what there is to do.
            without_task: tries to do it in a callback of the loop; returns False if `run` has to do it.
        """
        self._loop = asyncio.get_running_loop()
        self._run = run
        self._without_task = without_task
        # Whether the callback is still to come.
        self._soon = False
        self._fail: Callable[[BaseException], None] | None = None
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, fail: Callable[[BaseException], None]) -> None:
        """Run from now on; `fail` gets an exception that ends it."""
        self._fail = fail
        if self._asked:
            self.want()

    def want(self) -> None:
        """Run in a later turn of the loop, unless it runs already: then it finds the new work itself."""
        if self._fail is None:
            self._asked = True
        elif self._task is not None and not self._task.done():
            return
        elif self._without_task is None:
            self._start(self._fail)
        elif not self._soon:
            self._loop.call_soon(self._try)
            self._soon = True

    def _try(self) -> None:
        if not self._soon or self._fail is None or self._without_task is None:
            return
        self._soon = False
        try:
            if not self._without_task():
                self._start(self._fail)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _start(self, fail: Callable[[BaseException], None]) -> None:
        working = self._work(fail)
        try:
            # As `begin_later` does: nothing of it runs on the caller's stack.
            self._task = asyncio.Task(working, loop=self._loop)
        except BaseException:
            working.close()
            raise

    def go_on(self) -> None:
        """Run again if an interrupt, as of Ctrl-C, came before the first line, where uvloop has most of them."""
        if self._soon or (self._task is not None and self._task.done()):
            self._soon = False
            self.want()

    async def _work(self, fail: Callable[[BaseException], None]) -> None:
        try:
            await self._run()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._task = None

    def end(self) -> asyncio.Task[None] | None:
        """Stop; return the task that is cancelled for that, if there is one."""
        self._fail = None
        if self._task is not None:
            self._task.cancel()
        return self._task
