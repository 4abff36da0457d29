"""Graceful stop of deliveries: nothing more is handed out, and running handlers get some time."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from aiodq.awaited import shielded
from aiodq.engine.monitoring.log import Log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

__all__ = ["Stoppable", "StoppableChannel", "handling", "stop_channels"]

_LOG: Final = Log("aiodq.delivery")
_CLEANUP: Final = 5.0
"""Seconds in which a cancelled handler is to end; one that resists cancellation is not waited for any longer."""

_STOPS: Final[set[asyncio.Task[None]]] = set()


class Stoppable(Protocol):
    """A running consumer."""

    def cut(self) -> None:
        """Cancel the handlers; their messages are released once they have ended."""
        ...

    def let_go(self) -> int:
        """Release the messages of handlers that have not ended; return the number of those handlers."""
        ...


class StoppableChannel(Protocol):
    """A channel whose deliveries are to stop: `aiodq.engine.channel.channel_engine.ChannelEngine` is one."""

    consumers: set[Stoppable]

    @property
    def place(self) -> str:
        """The channel and its topic, for messages."""
        ...

    def shut_down(self, *, immediate: bool) -> None:
        """Hand out nothing more."""
        ...

    async def idle(self, *, handlers_only: bool = False) -> None:
        """Wait until no message is processed any more."""
        ...


class _Handling(NamedTuple):
    channel_engine: StoppableChannel
    task: asyncio.Task[Any] | None


_HANDLING: Final[ContextVar[_Handling | None]] = ContextVar("_HANDLING", default=None)


def handling(channel_engine: StoppableChannel) -> None:
    """Note that this task, and whatever it starts, processes a message of the channel."""
    _HANDLING.set(_Handling(channel_engine, asyncio.current_task()))


def _within(channel_engines: Collection[StoppableChannel]) -> bool:
    """Return whether the caller is a handler of one of these channels; it cannot wait for its own end."""
    found = _HANDLING.get()
    return (
        found is not None
        and found.channel_engine in channel_engines
        and found.task is not None
        and not found.task.done()
    )


async def stop_channels(
    channel_engines: Collection[StoppableChannel], grace: float, then: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Hand out nothing more, wait for running handlers, cancel them after `grace` seconds, and call `then`.

    If called by a handler of one of the channels, it does not wait.

    Cancellation: the stop goes on in a task of its own.
    """
    for channel_engine in channel_engines:
        channel_engine.shut_down(immediate=True)
    task = asyncio.get_running_loop().create_task(_stop(channel_engines, grace, then))
    _STOPS.add(task)
    task.add_done_callback(_STOPS.discard)
    if _within(channel_engines):
        task.add_done_callback(_complain)
    else:
        await shielded(task)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("a stop that a handler had asked for failed", exc_info=error)


async def _stop(
    channel_engines: Collection[StoppableChannel], grace: float, then: Callable[[], Awaitable[None]] | None
) -> None:  # fmt: skip
    if not await _idle(channel_engines, grace):
        await _cut(channel_engines, grace)
    if then is not None:
        await then()


async def _cut(channel_engines: Collection[StoppableChannel], grace: float) -> None:
    consumers = [
        (channel_engine, consumer) for channel_engine in channel_engines for consumer in channel_engine.consumers
    ]
    for channel_engine, consumer in consumers:
        _LOG.warning("%s: handlers are cancelled after a grace of %g s", channel_engine.place, grace)
        consumer.cut()
    await _idle([channel_engine for channel_engine, _ in consumers], _CLEANUP, handlers_only=True)
    for channel_engine, consumer in consumers:
        if count := consumer.let_go():
            _LOG.error(
                "%s: %d handlers go on though they were cancelled; their messages are redelivered",
                channel_engine.place,
                count,
            )


async def _idle(channel_engines: Collection[StoppableChannel], seconds: float, *, handlers_only: bool = False) -> bool:
    """Wait until no message is processed; return whether that took at most this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            for channel_engine in channel_engines:
                await channel_engine.idle(handlers_only=handlers_only)
    except TimeoutError:
        return False
    return True
