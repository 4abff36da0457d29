"""Work that needs a topic's log for itself, one thing after the other."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from aiodq.engine.futures import as_failure, tell_all
from aiodq.errors import AiodqError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.requests import Operation

__all__ = ["ExclusiveWork"]


class ExclusiveWork:
    """The operations of one ioLoop.

    Attributes:
        running: one is; nothing else may touch the log.
        waiting: those that come next.
    """

    def __init__(self, host: TopicEngineHost, wake: Callable[[], None]) -> None:
        """Begin empty; `wake` has the ioLoop look again."""
        self.running: bool = False
        self._host = host
        self._wake = wake
        self.waiting: deque[Operation] = deque()

    def add(self, operation: Operation) -> None:
        """Queue an operation."""
        self.waiting.append(operation)

    @property
    def busy(self) -> bool:
        """Whether one runs or waits."""
        return self.running or bool(self.waiting)

    def waits_for(self, taken: int) -> bool:
        """Return whether an operation is next once what was taken from the open batch so far is written."""
        return bool(self.waiting) and taken >= self.waiting[0].after

    def wake(self, taken: int) -> None:
        """Have the ioLoop look again where an operation is next: a batch that no sync follows brings no event."""
        if self.waits_for(taken):
            self._wake()

    def may_start(self, written: int) -> bool:
        """Return whether what has to come before the next operation is written."""
        return bool(self.waiting) and written >= self.waiting[0].after

    def start_next(self, written: int) -> bool:
        """Start the next operation if what has to come before it is written; the log is at rest."""
        if not self.may_start(written):
            return False
        self.running = True
        operation = self.waiting.popleft()
        try:
            self._host.threads.start(operation.work, lambda result, error: self._ended(operation, result, error))
        except Exception:
            self.waiting.appendleft(operation)
            raise
        return True

    def wait_here(self, seconds: float) -> bool:
        """Hold the loop until a sync, or something that threads do, has ended; see `SyncBackend.wait_here`."""
        return self._host.syncs.wait_here(seconds)

    def _ended(self, operation: Operation, result: object, error: BaseException | None) -> None:
        self.running = False
        told = error if error is None or isinstance(error, AiodqError) else as_failure(error)
        try:
            operation.finish(result, told)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            told = as_failure(raised)
            tell_all(told, [partial(operation.finish, None)])
        if isinstance(told, StoreFailedError):
            self._host.fail(told)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Tell whoever waits."""
        waiting, self.waiting = self.waiting, deque()
        tell_all(error, [partial(operation.finish, None) for operation in waiting])
