"""The tasks that wait for a message, woken in order of arrival."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from aiodq.engine.loop.futures import MOST_AT_ONCE, ready_to_wake, settle_all

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WaitQueue"]


class WaitQueue:
    """A FIFO queue of waiting tasks.

    Attributes:
        line: one future for each task. A cancelled task is removed in constant time.
    """

    __slots__ = ("_passed_on", "line")

    def __init__(self, passed_on: Callable[[], None]) -> None:
        """Start empty.

        Args:
            passed_on: called when other tasks are to be woken, because a woken task was cancelled, or because there
                are too many to be woken in one turn of the loop.
        """
        self.line: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._passed_on = passed_on

    async def wait(self) -> None:
        """Wait to be woken.

        Cancellation: the wake-up goes to the next.
        """
        waiter = asyncio.get_running_loop().create_future()
        self.line[waiter] = None
        try:
            await waiter
        except BaseException:
            waiter.cancel()
            if waiter in self.line:
                del self.line[waiter]
            elif not waiter.cancelled():
                self._passed_on()
            raise

    def wake(self, number: int) -> None:
        """Wake up to `number` tasks. If there are very many, `passed_on` wakes the others in a later turn."""
        if number > 0 and self.line:
            ready_to_wake()
        if number > MOST_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._passed_on)
            number = MOST_AT_ONCE
        while number > 0 and self.line:
            waiter, _ = self.line.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                number -= 1

    def fail_next(self, error: Exception) -> None:
        """Raise `error` in the task that has waited longest."""
        while self.line:
            waiter, _ = self.line.popitem(last=False)
            if not waiter.done():
                waiter.set_exception(error)
                return

    def end(self, error: Exception) -> None:
        """Raise `error` in all waiting tasks."""
        waiters = list(self.line)
        self.line.clear()
        settle_all(waiters, error)
