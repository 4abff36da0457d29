"""Exclusive work: operations that need exclusive use of a topic's log, one after the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiodq.engine.loop.futures import as_failure, tell_all
from aiodq.errors import AiodqError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.commit.request_queue import Operation

__all__ = ["ExclusiveWork"]


class ExclusiveWork:
    """The operations of one ioLoop.

    Attributes:
        running: whether one runs; nothing else may touch the log.
        waiting: the operations that come next.
    """

    def __init__(self, host: TopicEngineHost, wake: Callable[[], None]) -> None:
        """Start empty; `wake` gives the ioLoop a turn."""
        self.running: bool = False
        self._host = host
        self._wake = wake
        self.waiting: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """Queue an operation."""
        self.waiting.append(operation)

    @property
    def busy(self) -> bool:
        """Whether one runs or waits."""
        return self.running or bool(self.waiting)

    def comes_after(self, serial: int) -> bool:
        """Return whether the first waiting operation comes right after this batch."""
        return serial >= self.waiting[0].after

    def wake(self, taken: int) -> None:
        """Give the ioLoop a turn if an operation is next: a batch that needs no sync causes no other event."""
        if self.comes_after(taken):
            self._wake()

    def start_next(self, written: int) -> bool:
        """Start the first waiting operation if the batches before it are written; the log is at rest."""
        if not self.comes_after(written):
            return False
        self.running = True
        operation = self.waiting.pop(0)
        try:
            self._host.threads.start(operation.work, lambda result, error: self._ended(operation, result, error))
        except BaseException:
            self.waiting.insert(0, operation)
            raise
        return True

    def wait_here(self, seconds: float) -> bool:
        """Block the loop until a sync, or other work of a thread, has ended; see `SyncBackend.wait_here`."""
        return self._host.syncs.wait_here(seconds)

    def _ended(self, operation: Operation, result: object, error: BaseException | None) -> None:
        self.running = False
        told = error if error is None or isinstance(error, AiodqError) else as_failure(error)
        try:
            operation.finish(result, told)
        except BaseException as raised:
            told = as_failure(raised)  # whatever it is, the store stops and all waiters are failed
            tell_all(told, [partial(operation.finish, None)])
            if not isinstance(raised, Exception):
                raise
        if isinstance(told, StoreFailedError):
            self._host.fail(told)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Fail the operations that wait."""
        waiting, self.waiting = self.waiting, []
        tell_all(error, [partial(operation.finish, None) for operation in waiting])
