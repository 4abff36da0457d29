"""What was committed on its way into a topic: in order, and however long the disk is full."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.engine.signals import QueueShutDown
from aiodq.errors import AiodqError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.engine.ioloop import IoLoop
    from aiodq.format.columns import Columns

__all__ = ["Feeder"]

_RETRY: Final = 0.25
"""Seconds between two attempts on a full disk."""


class Feeder:
    """One per topic that transactions put into.

    What comes while puts are under way waits for all of them: were one to fail and a later one not, they would change
    places.
    """

    def __init__(self, ioloop: IoLoop) -> None:
        """Begin with nothing to do."""
        self._ioloop = ioloop
        self._waiting: deque[Columns] = deque()
        self._under_way: int = 0
        self._failed: list[tuple[int, Columns]] = []
        self._error: BaseException | None = None
        self._idlers: list[asyncio.Future[None]] = []

    def add(self, several: Iterable[Columns]) -> None:
        """Put these, each all or not at all."""
        self._waiting.extend(several)
        if self._error is None:
            self._start()

    def _start(self) -> None:
        if self._under_way or not self._waiting or self._ioloop.stopped:
            return
        self._error = None
        parts, self._waiting = self._waiting, deque()
        self._under_way = len(parts)
        for number, columns in enumerate(parts):
            self._ioloop.intake.accept_committed(columns).add_done_callback(partial(self._ended, number, columns))

    def _ended(self, number: int, columns: Columns, waiter: asyncio.Future[range]) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if waiter.cancelled() else waiter.exception()
        if error is not None:
            self._failed.append((number, columns))
            self._error = error
        if not self._under_way:
            self._round_ended()

    def _round_ended(self) -> None:
        failed, self._failed = sorted(self._failed, key=lambda item: item[0]), []
        self._waiting.extendleft(columns for _, columns in reversed(failed))
        error = self._error
        if error is None and self._waiting:
            self._start()
            return
        if isinstance(error, AiodqError) and not isinstance(error, (StoreFailedError, QueueShutDown)):
            asyncio.get_running_loop().call_later(_RETRY, self._start)
        idlers, self._idlers = self._idlers, []
        for idler in idlers:
            if not idler.done():
                idler.set_result(None)

    async def idle(self) -> None:
        """Wait until everything is in the log.

        Raises:
            StorageError: it could not be put yet; that is tried again and again.

        Cancellation: nothing changes.
        """
        while self._under_way or (self._waiting and self._error is None and not self._ioloop.stopped):
            idler: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idlers.append(idler)
            await idler
        if isinstance(self._error, AiodqError):
            raise self._error
