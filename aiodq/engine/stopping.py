"""Ending deliveries gently: nothing new is handed out, and what is under way gets some time."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from aiodq.engine.outlet import Outlet

__all__ = ["Stoppable", "handling", "stop_channels"]

_LOG: Final = logging.getLogger("aiodq.delivery")
_CLEANUP: Final = 5.0
"""Seconds in which a handler that was cancelled is to end; nobody waits for one that does not let itself be."""

_STOPS: Final[set[asyncio.Task[None]]] = set()


class Stoppable(Protocol):
    """A consumer under way."""

    def cut(self) -> None:
        """Cancel the handlers; their messages are released once they have ended."""
        ...

    def let_go(self) -> int:
        """Release what handlers have that go on all the same; return how many those are."""
        ...


class _Handling(NamedTuple):
    outlet: Outlet[Any]
    task: asyncio.Task[Any] | None


_HANDLING: Final[ContextVar[_Handling | None]] = ContextVar("_HANDLING", default=None)


def handling(outlet: Outlet[Any]) -> None:
    """Note that this task works off a message of the channel, and whatever it starts does so for it."""
    _HANDLING.set(_Handling(outlet, asyncio.current_task()))


def _within(outlets: Collection[Outlet[Any]]) -> bool:
    """Return whether the caller is a handler of one of these channels: it cannot wait for its own end."""
    found = _HANDLING.get()
    return found is not None and found.outlet in outlets and found.task is not None and not found.task.done()


async def stop_channels(
    outlets: Collection[Outlet[Any]], grace: float, then: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Hand out nothing more, wait for what is under way, after `grace` seconds cancel it, and do `then`.

    Within a handler of one of them nothing is waited for.

    Cancellation: it goes on in a task of its own.
    """
    for outlet in outlets:
        outlet.shut_down(immediate=True)
    task = asyncio.get_running_loop().create_task(_stop(outlets, grace, then))
    _STOPS.add(task)
    task.add_done_callback(_STOPS.discard)
    if _within(outlets):
        task.add_done_callback(_complain)
    else:
        await asyncio.shield(task)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("a stop that a handler had asked for failed", exc_info=error)


async def _stop(
    outlets: Collection[Outlet[Any]], grace: float, then: Callable[[], Awaitable[None]] | None
) -> None:  # fmt: skip
    if not await _idle(outlets, grace):
        await _cut(outlets, grace)
    if then is not None:
        await then()


async def _cut(outlets: Collection[Outlet[Any]], grace: float) -> None:
    consumers = [(outlet, consumer) for outlet in outlets for consumer in outlet.consumers]
    for outlet, consumer in consumers:
        _LOG.warning("%s: handlers are cancelled after a grace of %g s", outlet.place, grace)
        consumer.cut()
    await _idle([outlet for outlet, _ in consumers], _CLEANUP, handlers_only=True)
    for outlet, consumer in consumers:
        if count := consumer.let_go():
            _LOG.error(
                "%s: %d handlers go on though they were cancelled; their messages come again", outlet.place, count
            )


async def _idle(outlets: Collection[Outlet[Any]], seconds: float, *, handlers_only: bool = False) -> bool:
    """Wait until nobody works on anything; return whether that was within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            for outlet in outlets:
                await outlet.idle(handlers_only=handlers_only)
    except TimeoutError:
        return False
    return True
