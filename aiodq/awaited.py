"""Awaitables that also work with `asyncio.create_task`, and work that continues if its waiter is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from aiodq.uncopied import Uncopied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = ["Awaited", "UnderWay", "interruption_of", "mark_retrieved", "shielded", "twice"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Awaited(Uncopied, Coroutine[Any, Any, T]):
    """A base class of awaitables that `asyncio.create_task` accepts, although it accepts only coroutines.

    Unlike a coroutine, it need not be awaited, and it may be awaited several times.
    """

    __slots__ = ("_stepped",)

    def _steps(self) -> Coroutine[Any, Any, T]:
        """Return the coroutine that a task made of this runs."""
        return _result_of(self)

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - as of any coroutine
        """Resume; called by the task made of this."""
        return self._step(lambda steps: steps.send(value))

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as of any coroutine
        """Resume with an exception; called by the task made of this."""
        return self._step(lambda steps: steps.throw(*error))

    def close(self) -> None:
        """Stop waiting; called for the tasks made of this."""
        for steps in getattr(self, "_stepped", {}).values():
            steps.close()

    def _step(self, step: Callable[[Coroutine[Any, Any, T]], R]) -> R:
        """Take a step for the running task: each task made of this has a coroutine of its own."""
        task = asyncio.current_task()
        if not hasattr(self, "_stepped"):
            self._stepped: dict[asyncio.Task[Any] | None, Coroutine[Any, Any, T]] = {}
        if task not in self._stepped:
            self._stepped[task] = self._steps()
        try:
            return step(self._stepped[task])
        except BaseException:  # `StopIteration` above all, which carries the result
            del self._stepped[task]
            raise


def mark_retrieved(done: asyncio.Future[Any]) -> None:
    """Mark the error of a future as retrieved, if it has one: asyncio warns of errors that were never retrieved."""
    if not done.cancelled():
        done.exception()


def interruption_of(task: asyncio.Task[Any]) -> KeyboardInterrupt | None:
    """Return the Ctrl-C that ended a task, or None.

    Raises:
        BaseException: what else it ended with, for the loop to report.
    """
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, KeyboardInterrupt):
        return error
    raise error


def twice(schedule: Callable[[Callable[P, object]], object], callback: Callable[P, object]) -> None:
    """Schedule a callback twice, as Ctrl-C may come instead of a call, before its first line: it is then forgotten.

    Args:
        schedule: has the loop call what it is given, as `add_done_callback` of a future does.
        callback: finds nothing to do when it is called again.
    """
    schedule(callback)
    schedule(callback)


def shielded(awaited: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future that ends as `awaited` does; if it is cancelled, `awaited` goes on.

    `asyncio.shield` does this too, but since Python 3.14 it reports an error of what goes on as an unhandled one, also
    where others await it or where the error is that the caller has left.
    """
    if awaited.done():
        return awaited
    waiter: asyncio.Future[T] = awaited.get_loop().create_future()

    def end(awaited: asyncio.Future[T]) -> None:
        if waiter.done():
            mark_retrieved(awaited)  # it was cancelled in this turn of the loop
        elif awaited.cancelled():
            waiter.cancel()
        elif (error := awaited.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(awaited.result())

    twice(awaited.add_done_callback, end)
    waiter.add_done_callback(lambda _: awaited.remove_done_callback(end))
    return waiter


async def _result_of(awaited: Awaitable[T]) -> T:
    return await awaited


class UnderWay(Awaited[T]):
    """Work in a task of its own, which goes on even if those who await it are cancelled."""

    __slots__ = ("_task",)

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        """Begin the work."""
        # INVARIANT: users never get this task: if they cancelled it before its first step, nothing would be done.
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(mark_retrieved)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for its end."""
        return shielded(self._task).__await__()
