"""Work that needs a topic's log for itself, one thing after the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiodq.engine.requests import BatchOpen
from aiodq.errors import AiodqError, StoreFailedError

if TYPE_CHECKING:
    import asyncio

    from aiodq.engine.host import IoLoopHost
    from aiodq.engine.requests import Operation, Request

__all__ = ["OperationQueue"]


class OperationQueue:
    """The operations of one ioLoop.

    Attributes:
        running: one is; nothing else may touch the log.
    """

    def __init__(self, host: IoLoopHost, inbox: asyncio.Queue[Request]) -> None:
        """Begin empty; the ioLoop hears of the end of an operation through `inbox`."""
        self.running: bool = False
        self._host = host
        self._inbox = inbox
        self._waiting: deque[Operation] = deque()

    def add(self, operation: Operation) -> None:
        """Queue an operation."""
        self._waiting.append(operation)

    def waits_for(self, taken: int) -> bool:
        """Return whether an operation is next once what was taken from the open batch so far is written."""
        return bool(self._waiting) and taken >= self._waiting[0].after

    def wake(self, taken: int) -> None:
        """Have the ioLoop look again where an operation is next: a batch that no sync follows brings no event."""
        if self.waits_for(taken):
            self._inbox.put_nowait(BatchOpen())

    def may_start(self, written: int) -> bool:
        """Return whether what has to come before the next operation is written."""
        return bool(self._waiting) and written >= self._waiting[0].after

    def start_next(self, written: int) -> bool:
        """Start the next operation if what has to come before it is written; the log is at rest."""
        if not self.may_start(written):
            return False
        self.running = True
        operation = self._waiting.popleft()
        self._host.offload.start(operation.work, lambda result, error: self._ended(operation, result, error))
        return True

    def _ended(self, operation: Operation, result: object, error: BaseException | None) -> None:
        self.running = False
        operation.finish(
            result, error if error is None or isinstance(error, Exception) else StoreFailedError(str(error))
        )
        if isinstance(error, Exception) and not (
            isinstance(error, AiodqError) and not isinstance(error, StoreFailedError)
        ):
            self._host.fail(error)
        self._inbox.put_nowait(BatchOpen())

    def fail(self, error: Exception) -> None:
        """Tell whoever waits."""
        while self._waiting:
            self._waiting.popleft().finish(None, error)
