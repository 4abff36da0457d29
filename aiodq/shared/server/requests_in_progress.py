"""The requests of a client that are in progress, and their answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import twice
from aiodq.engine.queue_errors import QueueFull
from aiodq.errors import OwnerLostError
from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.wire.packets import Done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aiodq.shared.requests.serving import Owning, Wire

__all__ = ["RequestsInProgress"]

_MOST: Final = 50_000
"""Requests of one client that are not answered yet, from which on the owner refuses more."""


class RequestsInProgress:
    """The requests of one client that are not answered yet."""

    def __init__(self, owner: Owning, wire: Wire) -> None:
        """Start without requests."""
        self._owner = owner
        self._wire = wire
        self._tasks: set[asyncio.Future[None]] = set()
        self._settlements: set[asyncio.Future[None]] = set()
        self._unanswered: set[int] = set()
        # Requests that open and claim what an earlier owner had given: never refused here, as topics, channels and
        # messages have bounds of their own. INVARIANT: no other repeated request is refused because of them.
        self._returning: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raise if there are as many as an owner takes of one client.

        Raises:
            QueueFull: there are.
        """
        if len(self._tasks) + len(self._settlements) - len(self._returning) >= _MOST:
            most = f"{_MOST} requests of this process are not answered yet, the most that an owner takes of one"
            raise QueueFull(f"{most}: wait for some of them first")

    @property
    def settling(self) -> bool:
        """Whether the client waits for the outcome of settlements or claims."""
        return bool(self._settlements)

    def run(
        self, doing: Coroutine[Any, Any, None], *, settling: bool = False, returning: bool = False
    ) -> asyncio.Task[None]:
        """Run something until the session ends."""
        task = asyncio.get_running_loop().create_task(doing)
        for among in (self._settlements if settling else self._tasks, *([self._returning] if returning else ())):
            among.add(task)
            task.add_done_callback(among.discard)
        return task

    def start(
        self, doing: Coroutine[Any, Any, Done], request: int, *, settling: bool = False, returning: bool = False
    ) -> asyncio.Task[None]:
        """Run something that takes longer, and answer.

        Args:
            doing: returns the answer.
            request: the request's number.
            settling: whether it settles or claims messages.
            returning: whether it tells a new owner what an earlier one knew.
        """
        task = self.run(self._answered(doing, request), settling=settling, returning=returning)
        task.add_done_callback(partial(self._over, doing))
        return task

    def _over(self, doing: Coroutine[Any, Any, Done], task: asyncio.Task[None]) -> None:
        doing.close()  # a task that was cancelled before its first turn has not begun to await it
        if not task.cancelled() and (error := task.exception()) is not None:
            # Ctrl-C: `_answered` answers all else. The client is not left waiting: the next owner answers.
            self._owner.engine.fail(error)

    async def _answered(self, doing: Awaitable[Done], request: int) -> None:
        try:
            self._wire.send(await doing, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is not left waiting
            self.fail(error, request)

    def answer_settled(
        self, commit: Callable[[], asyncio.Future[None]], request: int, failure: Exception | None = None
    ) -> None:
        """Answer once settlements are durable, or with an error. Without a task, as each ack comes here."""
        try:
            settled = commit()
        except Exception as error:  # noqa: BLE001 - as in `_answered`
            self.fail(error, request)
        else:
            self._settlements.add(settled)
            self._unanswered.add(request)
            twice(settled.add_done_callback, partial(self._settled, request, failure))

    def _settled(self, request: int, failure: Exception | None, settled: asyncio.Future[None]) -> None:
        self._settlements.discard(settled)
        if settled.cancelled() or request not in self._unanswered:
            return
        error = settled.exception() or failure
        if error is None:
            self._wire.send(Done(), request)
        elif isinstance(error, Exception):
            self.fail(error, request)
        self._unanswered.discard(request)

    def fail(self, error: Exception, request: int) -> None:
        """Answer a request with an error."""
        engine = self._owner.engine
        if not engine.usable:
            # The next owner is to answer.
            if engine.failure is not None:
                self._owner.failed()
            error = OwnerLostError("this owner ends", engine.path)
        if request:
            self._wire.send(fail_of(error), request)

    def end(self) -> list[asyncio.Future[None]]:
        """End all of them; return the tasks to wait for."""
        ending = [*self._tasks, *self._settlements]
        for each in ending:
            each.cancel()
        return ending
