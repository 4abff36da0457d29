"""The requests to an ioLoop, their queue, and the turns in which it handles them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiodq.engine.loop.futures import settle
from aiodq.errors import again

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Operation", "Request", "RequestQueue", "SyncWanted"]


@dataclass(slots=True)
class SyncWanted:
    """A request to make everything accepted before durable."""

    done: asyncio.Future[None]


@dataclass(slots=True)
class Operation:
    """A request for work that needs exclusive use of the log: nothing is being written or synced meanwhile.

    Attributes:
        work: done in a thread.
        finish: called on the loop with the result or the error, before anything else happens.
        after: the batch that has to be durable first, by its serial number.
    """

    work: Callable[[], object]
    finish: Callable[[object, Exception | None], None]
    after: int


Request = Operation | SyncWanted


class RequestQueue:
    """Schedules a turn of the ioLoop whenever there is something to do; once the ioLoop has ended, fails all requests.

    A turn is a callback of the event loop: all requests made before it runs are handled in the same turn.

    Attributes:
        over: the error with which requests fail once the ioLoop has ended; None before.
        asked: the requests not taken yet.
        on_wake: called whenever a turn is requested.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None]) -> None:
        """Start without requests; `turn` is called from `begin` on."""
        self.over: Exception | None = None
        self.on_wake: Callable[[], None] = lambda: None
        self._loop = loop
        self._turn = turn
        self.asked: deque[Request] = deque()
        self._begun = self._woken = False

    def begin(self) -> None:
        """Let the ioLoop take its turns, the first one soon."""
        self._begun = True
        self._woken = False
        self.wake()

    def end(self) -> None:
        """Let it take no more turns."""
        self._begun = False

    def wake(self) -> None:
        """Schedule a turn of the ioLoop: something may be done now."""
        self.on_wake()
        if not self._woken:
            if self._begun:
                self._loop.call_soon(self._take_turn)
            self._woken = True

    def turn_now(self) -> None:
        """Take a turn at once; not to be called within one."""
        self.on_wake()
        if self._begun:
            self._turn()

    def turn_anyway(self) -> None:
        """Do as `turn_now`, and let the next wake-up schedule a turn: a Ctrl-C may have replaced a scheduled one."""
        self._woken = False
        self.turn_now()

    def _take_turn(self) -> None:
        self._woken = False
        if self._begun:
            self._turn()

    def check(self) -> None:
        """Raise the error with which requests fail, if there is one."""
        if self.over is not None:
            raise again(self.over)

    def ask(self, request: Request) -> None:
        """Queue a request that a caller waits for."""
        if self.over is None:
            self.asked.append(request)
            self.wake()
        else:
            _refuse(request, self.over)

    def close(self, error: Exception) -> None:
        """Fail all requests, and later ones, with `error`."""
        self.over = self.over or error
        while self.asked:
            _refuse(self.asked.popleft(), error)


def _refuse(request: Request, error: Exception) -> None:
    if isinstance(request, Operation):
        request.finish(None, error)
    else:
        settle(request.done, None, error)
