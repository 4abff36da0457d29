"""The queue through which everything reaches an ioLoop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiodq.engine.futures import settle
from aiodq.engine.topic.requests import BatchWritten, Operation, Request, SyncWanted

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RequestQueue"]


class RequestQueue(asyncio.Queue[Request]):
    """An unbounded queue that answers for the ioLoop once that has ended.

    Attributes:
        over: what it answers then; None before.
        hear: called before something comes.
    """

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.over: Exception | None = None
        self.hear: Callable[[], None] = lambda: None

    def put_nowait(self, request: Request) -> None:
        """Put a request."""
        self.hear()
        super().put_nowait(request)

    def check(self) -> None:
        """Raise what it answers, if it is over."""
        if self.over is not None:
            raise self.over

    def ask(self, request: Operation | SyncWanted) -> None:
        """Put a request that somebody waits for."""
        if self.over is None:
            self.put_nowait(request)
        else:
            _refuse(request, self.over)

    def close(self, error: Exception) -> None:
        """Answer everything here, and everything asked later, with `error`."""
        self.over = self.over or error
        while not self.empty():
            _refuse(self.get_nowait(), error)


def _refuse(request: Request, error: Exception) -> None:
    if isinstance(request, Operation):
        request.finish(None, error)
    elif isinstance(request, SyncWanted):
        settle(request.done, None, error)
    elif isinstance(request, BatchWritten):
        for part in (*request.result.parts, *request.result.failed):
            part.fail(error)
