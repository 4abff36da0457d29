"""Helpers for futures and tasks: settling, waiting in line, and work that outlives its caller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiodq.awaited import mark_retrieved, shielded, twice
from aiodq.errors import AiodqError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

__all__ = [
    "MOST_AT_ONCE",
    "as_failure",
    "begin_later",
    "ended",
    "first_of",
    "ready_to_wake",
    "release",
    "settle",
    "settle_all",
    "surely",
    "tell_all",
    "to_its_end",
    "wait_in",
]

T = TypeVar("T")

MOST_AT_ONCE: Final = 1000
"""Futures settled in one turn of the loop: a millisecond's work."""

_FRAMES: Final = 12
"""Frames that the loop needs to take a callback of a future; it is written in Python."""


def ready_to_wake(frames: int = _FRAMES) -> None:
    """Raise unless the stack has room for waking a task: an error in the middle of that would lose the wake-up.

    A future that is set on an exhausted stack is done, but its callbacks are lost, and the task that awaits it is never
    woken.

    Raises:
        RecursionError: nothing has happened; the waiters stay in line.
    """
    if frames:
        ready_to_wake(frames - 1)


def settle(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Set a future's result, or its error if there is one; a cancelled future is left alone."""
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


def surely(done: asyncio.Future[T], then: Callable[[asyncio.Future[T]], object]) -> None:
    """Call `then` with a future once that is done, also if Ctrl-C comes instead of the call, or amid it.

    Args:
        done: the future.
        then: called again after a Ctrl-C, so that it has to find what it has done already.
    """
    left = [then]

    def call(done: asyncio.Future[T]) -> None:
        for each in left:
            each(done)
        left.clear()

    twice(done.add_done_callback, call)


def begin_later(doing: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return a task that begins in a later turn of the loop, even if the loop starts its tasks eagerly.

    It is for work that must not run, or call anything back, before its caller has returned.
    """
    # Not made by the loop: its factory (`asyncio.eager_task_factory`) would run the first step here.
    return asyncio.Task(doing, loop=asyncio.get_running_loop())


async def to_its_end(doing: Coroutine[Any, Any, T]) -> T:
    """Return what `doing` returns.

    Cancellation: it goes on to its end, and its error is then not reported as never retrieved.
    """
    task = asyncio.ensure_future(doing)
    task.add_done_callback(mark_retrieved)
    return await shielded(task)


async def ended(doing: Coroutine[Any, Any, T]) -> T:
    """Return what `doing` returns, once it has ended: for what a caller that was cancelled has to leave as it was.

    Cancellation: it goes on, and this ends after it. A scope of anyio cancels in each turn of the loop.
    """
    task = asyncio.ensure_future(doing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        mark_retrieved(task)
        raise cancelled
    return task.result()


async def wait_in(line: dict[asyncio.Future[None], None]) -> None:
    """Wait in line until `release` is called.

    Cancellation: the line is left.
    """
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    line[waiter] = None
    try:
        await waiter
    finally:
        line.pop(waiter, None)


def release(line: dict[asyncio.Future[None], None], error: Exception | None = None) -> None:
    """Release all waiters in line, or raise `error` in them. The line is empty when this returns."""
    if line:
        ready_to_wake()
        waiters = list(line)
        line.clear()
        settle_all(waiters, error)


def settle_all(waiters: Sequence[asyncio.Future[None]], error: Exception | None = None, begin: int = 0) -> None:
    """Settle futures from index `begin` on, in order; if there are very many, some in each turn of the loop."""
    stop = begin + MOST_AT_ONCE
    if stop < len(waiters):
        waiters[stop].get_loop().call_soon(settle_all, waiters, error, stop)
    for waiter in waiters[begin:stop]:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def first_of(error: BaseException) -> BaseException:
    """Return the first error in a group of errors, or in groups of groups; an error that is no group itself."""
    return first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def as_failure(error: BaseException, path: str = "") -> StoreFailedError:
    """Return the error of a store that stops for this reason; `error` is its cause."""
    if isinstance(error, StoreFailedError):
        return error
    reason = str(error) if isinstance(error, AiodqError) else f"{type(error).__name__}: {error}"
    failure = StoreFailedError(f"the store stopped: {reason}", path)
    failure.__cause__ = error
    return failure


def tell_all(error: Exception, those: Iterable[Callable[[Exception], object]]) -> None:
    """Pass an error to each callback, even if one of them raises: the error then has a note of that."""
    for tell in those:
        try:
            tell(error)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the others have to be told
            error.add_note(f"while this was reported: {type(raised).__name__}: {raised}")
