"""Waiting for another owner to release a store."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

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


class _Attempt(Generic[T]):
    """An attempt to open a store in a thread, where it goes on to its end even if its caller is cancelled."""

    def __init__(self, path: str, opening: Callable[[], T]) -> None:
        self.path = path
        self._opening = opening
        self._ended = False

    def run(self) -> T:
        """Make the attempt; in a thread."""
        try:
            return self._opening()
        finally:
            with _MUTEX:
                self._ended = True
                _GIVEN_UP.discard(self)

    def give_up(self) -> None:
        """Have the attempt release the store itself, unless it has ended."""
        with _MUTEX:
            if not self._ended:
                _GIVEN_UP.add(self)


_MUTEX: Final = threading.RLock()
"""Held while those that were given up are changed or looked at; a fork waits for that, or the child never has it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_MUTEX.acquire, after_in_parent=_MUTEX.release, after_in_child=_MUTEX.release)

_GIVEN_UP: Final[weakref.WeakSet[_Attempt[Any]]] = weakref.WeakSet()
"""Attempts whose callers were cancelled, and which may have the store until they end."""


def _passing(path: str) -> bool:
    """Return whether a cancelled attempt of this process may still hold the store."""
    with _MUTEX:
        return any(attempt.path == path for attempt in _GIVEN_UP)


async def when_unlocked(
    path: str, call: Callable[[Callable[[], T]], Awaitable[T]], opening: Callable[[], T], wait: float
) -> T:
    """Return what `opening` returns; it is repeated for up to `wait` seconds while another owner has the store.

    A cancelled opening of this process does not count as an owner: this waits for its end.

    Args:
        path: the store's directory.
        call: runs a function in a thread.
        opening: opens the store; it blocks, and closes what it opened if its caller was cancelled.
        wait: seconds.

    Raises:
        StoreLockedError: the other owner still has it.

    Cancellation: no further attempt is made.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + wait, _FIRST
    while True:
        passing = _passing(path)  # before the attempt: it may let go between the refusal and a look
        attempt = _Attempt(path, opening)
        try:
            return await call(attempt.run)
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        except StoreLockedError as error:
            left = deadline - loop.time()
            if passing or _passing(path):
                left = max(left, _FIRST)
            elif left <= 0 < wait:
                text = f"{error.message}; waited {wait:g} s for it"
                raise StoreLockedError(text, error.path, pid=error.pid) from error
            elif left <= 0:
                raise
        await _sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)
