"""Waiting for another owner to release a store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from aiodq.errors import StoreLockedError, WrongContextError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["running_loop", "when_unlocked"]

T = TypeVar("T")

_sleep = asyncio.sleep

_FIRST: Final = 0.02
_LONGEST: Final = 0.25
"""Seconds between two attempts: the system has no cancellable wait for a lock."""


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        WrongContextError: no asyncio event loop is running.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongContextError(
            "no asyncio event loop is running here: open a store within aiodq.run(main()) or "
            "asyncio.run(main()); trio is not supported"
        ) from None


async def when_unlocked(attempt: Callable[[], Awaitable[T]], wait: float) -> T:
    """Return what `attempt` returns; it is repeated for up to `wait` seconds while another owner has the store.

    Raises:
        StoreLockedError: the other owner still has it.

    Cancellation: no further attempt is made.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + wait, _FIRST
    while True:
        try:
            return await attempt()
        except StoreLockedError as error:
            left = deadline - loop.time()
            if left <= 0 < wait:
                text = f"{error.message}; waited {wait:g} s for it"
                raise StoreLockedError(text, error.path, pid=error.pid) from error
            if left <= 0:
                raise
        await _sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)
