"""What was committed on its way into a topic: in order, and however long the disk is full."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from aiodq.engine.futures import settle
from aiodq.engine.put_batch import columns_cost
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.transactions.participants import Topic
    from aiodq.format.columns import Columns

__all__ = ["TopicAppender"]

_RETRY: Final = 0.25
"""Seconds between two attempts on a full disk."""


@dataclass(slots=True)
class _Item:
    """What a transaction puts into the topic.

    Attributes:
        columns: the messages.
        cost: their bytes of memory.
        tried: who is told once it was tried.
        counted: whether it counts among what is pending in the topic, besides what the topic counts of itself.
    """

    columns: Columns
    cost: int
    tried: Callable[[], None] | None
    counted: bool

    def tell(self) -> None:
        """Tell, the first time."""
        tried, self.tried = self.tried, None
        if tried is not None:
            tried()


class TopicAppender:
    """One per topic that transactions put into.

    What comes while puts are under way waits for all of them: were one to fail and a later one not, they would change
    places.

    INVARIANT: what waits here counts among what is pending in the topic, as it did when its room was reserved.
    """

    def __init__(self, engine: Topic) -> None:
        """Begin with nothing to do."""
        self._engine = engine
        self._waiting: deque[_Item] = deque()
        self._under_way: int = 0
        self._failed: list[tuple[int, _Item]] = []
        self._error: BaseException | None = None
        self._idlers: list[asyncio.Future[None]] = []

    def add(self, columns: Columns, tried: Callable[[], None] | None = None, *, reserved: int | None = None) -> None:
        """Put these, all or not at all.

        Args:
            columns: what is put.
            tried: called when they are in the log, or have to wait for room there.
            reserved: bytes of memory for which they have room already; None: they were not counted so far.
        """
        cost = columns_cost(columns) if reserved is None else reserved
        item = _Item(columns, cost, tried, counted=reserved is not None)
        self._count(item)
        self._waiting.append(item)
        if self._error is None:
            self._start()
        else:
            item.tell()

    def _count(self, item: _Item) -> None:
        if not item.counted:
            item.counted = True
            self._engine.put_buffer.pending += len(item.columns.bodies)
            self._engine.put_buffer.cost += item.cost

    def _count_no_longer(self, item: _Item) -> None:
        if item.counted:
            item.counted = False
            self._engine.put_buffer.unreserve(len(item.columns.bodies), item.cost)

    def _start(self) -> None:
        if self._under_way or not self._waiting:
            return
        if self._engine.stopped:
            self._tell_all()
            return
        again, self._error = self._error is not None, None
        items, self._waiting = self._waiting, deque()
        self._under_way = len(items)
        for number, item in enumerate(items):
            waiter = self._engine.put_buffer.accept_committed(item.columns)
            if not again:  # else it would count for a moment nowhere each time that fails, and others come in
                self._count_no_longer(item)
            waiter.add_done_callback(self._engine.guarded(partial(self._ended, number, item)))

    def _ended(self, number: int, item: _Item, waiter: asyncio.Future[range]) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if waiter.cancelled() else waiter.exception()
        if error is None:
            self._count_no_longer(item)
        else:
            self._count(item)
            self._failed.append((number, item))
            self._error = error
        item.tell()
        if not self._under_way:
            self._round_ended()

    def _round_ended(self) -> None:
        failed, self._failed = sorted(self._failed, key=itemgetter(0)), []
        self._waiting.extendleft(item for _, item in reversed(failed))
        error = self._error
        if error is None and self._waiting:
            self._start()
            return
        self._tell_all()
        if isinstance(error, AiodqError) and not isinstance(error, (StoreFailedError, QueueShutDown)):
            asyncio.get_running_loop().call_later(_RETRY, self._engine.guarded(self._start))
        idlers, self._idlers = self._idlers, []
        for idler in idlers:
            if not idler.done():
                idler.set_result(None)

    def _tell_all(self) -> None:
        for item in self._waiting:
            item.tell()

    def forget(self) -> None:
        """Give up what waits for room."""
        self._tell_all()
        given_up, self._waiting = self._waiting, deque()
        for item in given_up:
            self._count_no_longer(item)
        if not self._under_way:
            self._error = None

    def fail(self, error: Exception) -> None:
        """Tell who waits for everything to be in the log."""
        self._error = self._error or error
        idlers, self._idlers = self._idlers, []
        for idler in idlers:
            settle(idler, None, error)

    async def idle(self) -> None:
        """Wait until everything is in the log.

        Raises:
            StorageError: it could not be put yet; that is tried again and again.

        Cancellation: nothing changes.
        """
        while self._under_way or (self._waiting and self._error is None and not self._engine.stopped):
            idler: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idlers.append(idler)
            await idler
        if isinstance(self._error, AiodqError):
            raise self._error
