"""The home loop of a store: the event loop that opened it, in a form that is cheap to check for each message."""

from __future__ import annotations

import asyncio
import sys
from asyncio import _get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import WrongContextError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BY_THREAD", "NOWHERE", "HomeLoop", "task_of"]

BY_THREAD: Final = sys.version_info < (3, 12)
"""Whether checking `HomeLoop.thread` and `is_running` is cheaper than asking which loop runs here: until Python 3.12,
that asks the system for the process's number each time."""

task_of: Final[Callable[[Any], asyncio.Task[Any] | None]] = (
    vars(asyncio.tasks)["_current_tasks"].get if BY_THREAD else asyncio.current_task
)
"""`asyncio.current_task` of a loop: until Python 3.12, that is a function in Python around this look-up."""


class HomeLoop:
    """The home loop of one store. A caller runs on it if its thread is this one, and the loop is running.

    Attributes:
        loop: the event loop; in a forked child and for `NOWHERE` an object that is no loop.
        thread: the thread in which the loop runs; 0, which no thread has, in a forked child and for `NOWHERE`.
        is_running: the loop's method.
        forked: whether this is a forked child, where no caller runs on it.
    """

    __slots__ = ("forked", "is_running", "loop", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start with the running loop, or None for no loop. Must be called on the loop."""
        self.loop: object = self if loop is None else loop
        self.thread: int = 0 if loop is None else get_ident()
        self.is_running: Callable[[], bool] = bool if loop is None else loop.is_running
        self.forked: bool = False

    def check(self) -> None:
        """Raise if the caller does not run on it.

        Raises:
            WrongContextError: it is on another loop, in another thread, or in a forked child.
        """
        if get_ident() == self.thread and self.is_running() if BY_THREAD else _get_running_loop() is self.loop:
            return
        if self.forked:
            raise WrongContextError(
                "this store was opened before a fork, and is the parent's: open one in the child after the fork, "
                "once the parent has closed its own"
            )
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongContextError(
                "this store is to be used on the event loop that opened it, not from another thread or without a loop: "
                "have a web framework call an `async def`, as it calls plain functions in threads; from a thread of "
                "your own, asyncio.run_coroutine_threadsafe(topic.put(body), loop).result()"
            ) from None
        if here is not self.loop:
            raise WrongContextError(
                "this store was opened on another event loop than the one that runs here: open it in the "
                "asyncio.run(...) that uses it, and once for each"
            )

    def leave(self) -> None:
        """Belong to no thread and no loop any more: in a forked child, the parent's appear to be its own."""
        self.thread = 0
        self.loop = self
        self.forked = True


NOWHERE: Final = HomeLoop(None)
"""A home that no caller runs on."""
