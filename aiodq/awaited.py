"""What may be awaited, and what a task may be made of; and the end of what perhaps nobody awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from aiodq.uncopied import Uncopied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = ["Awaited", "UnderWay", "mark_retrieved"]

T = TypeVar("T")
R = TypeVar("R")


class Awaited(Uncopied, Coroutine[Any, Any, T]):
    """A base class of awaitables that `asyncio.create_task` takes, too, which takes nothing but coroutines.

    Unlike a coroutine, it need not be awaited, and may be several times.
    """

    __slots__ = ("_stepped",)

    def _steps(self) -> Coroutine[Any, Any, T]:
        """Return what a task that is made of this steps through."""
        return _result_of(self)

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - as of any coroutine
        """Go on; for the task that is made of this."""
        return self._step(lambda steps: steps.send(value))

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as of any coroutine
        """Go on with an exception; for the task that is made of this."""
        return self._step(lambda steps: steps.throw(*error))

    def close(self) -> None:
        """Wait no more; for the tasks that are made of this."""
        for steps in getattr(self, "_stepped", {}).values():
            steps.close()

    def _step(self, step: Callable[[Coroutine[Any, Any, T]], R]) -> R:
        """Take a step for the task that runs now: each waits for itself."""
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
    """Mark the error of a future as retrieved, if it has one: asyncio complains of those that nobody has waited for."""
    if not done.cancelled():
        done.exception()


async def _result_of(awaited: Awaitable[T]) -> T:
    return await awaited


class UnderWay(Awaited[T]):
    """Waits for what is done anyway, whoever waits and is cancelled."""

    __slots__ = ("_task",)

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        """Begin the work."""
        # INVARIANT: no user gets this task: one that is cancelled before its first step does nothing.
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(mark_retrieved)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for its end."""
        return asyncio.shield(self._task).__await__()
