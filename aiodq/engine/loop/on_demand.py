"""A worker that has a task only while there is something to do: of a thousand topics most are idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["OnDemand"]


class OnDemand:
    """Runs one coroutine function whenever that is wanted; it returns once there is nothing left to do.

    It may be wanted on any stack: on one with no room left for the calls, the next caller has it run. A task that slept
    until there is something to do would be lost there, as the future by which it is woken would be done, and it asleep.
    """

    __slots__ = ("_asked", "_fail", "_loop", "_run", "_task")

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run nothing before `begin`. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._run = run
        self._fail: Callable[[BaseException], None] | None = None
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, fail: Callable[[BaseException], None]) -> None:
        """Run from now on; `fail` gets an exception that ends it."""
        self._fail = fail
        if self._asked:
            self.want()

    def want(self) -> None:
        """Run, in a turn of the loop to come, unless it runs already: then it finds by itself what there is to do."""
        if self._fail is None:
            self._asked = True
        elif self._task is None:
            working = self._work(self._fail)
            try:
                # As `begin_later` does: nothing of it runs on the caller's stack.
                self._task = asyncio.Task(working, loop=self._loop)
            except BaseException:
                working.close()
                raise

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
        """Run no more; return the task that is cancelled for that, if there is one."""
        self._fail = None
        if self._task is not None:
            self._task.cancel()
        return self._task
