"""What is asked of an ioLoop, and the turns in which it does that."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiodq.engine.futures import settle
from aiodq.engine.topic.requests import Operation, Request

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["RequestQueue"]


class RequestQueue:
    """Has the ioLoop take a turn whenever there is something to do, and answers for it once it has ended.

    A turn is a callback of the event loop: whatever comes before it runs is done in the same one.

    Attributes:
        over: what is answered once the ioLoop has ended; None before.
        asked: what was asked for and not taken yet.
        hear: called whenever a turn is asked for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None]) -> None:
        """Begin with nothing asked; `turn` is called from `begin` on."""
        self.over: Exception | None = None
        self.hear: Callable[[], None] = lambda: None
        self._loop = loop
        self._turn = turn
        self.asked: deque[Request] = deque()
        self._begun = self._woken = False

    def begin(self) -> None:
        """Let the ioLoop take its turns; the first one now."""
        self._begun = True
        self._woken = False
        self.wake()

    def end(self) -> None:
        """Let it take no more."""
        self._begun = False

    def wake(self) -> None:
        """Have the ioLoop take a turn, soon: something may be done now."""
        self.hear()
        if not self._woken:
            self._woken = True
            if self._begun:
                self._loop.call_soon(self._take_turn)

    def turn_now(self) -> None:
        """Have it take a turn at once; not to be called within one."""
        self.hear()
        if self._begun:
            self._turn()

    def _take_turn(self) -> None:
        self._woken = False
        if self._begun:
            self._turn()

    def check(self) -> None:
        """Raise what it answers, if it is over."""
        if self.over is not None:
            raise self.over

    def ask(self, request: Request) -> None:
        """Ask for something that somebody waits for."""
        if self.over is None:
            self.asked.append(request)
            self.wake()
        else:
            _refuse(request, self.over)

    def close(self, error: Exception) -> None:
        """Answer everything here, and everything asked later, with `error`."""
        self.over = self.over or error
        while self.asked:
            _refuse(self.asked.popleft(), error)


def _refuse(request: Request, error: Exception) -> None:
    if isinstance(request, Operation):
        request.finish(None, error)
    else:
        settle(request.done, None, error)
