"""Appends committed messages to a topic, in order; while the disk is full, it retries until there is room."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from aiodq.awaited import twice
from aiodq.engine.batch.put_batch import columns_cost
from aiodq.engine.loop.futures import release, wait_in
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, StoreFailedError, again

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.format.columns import Columns

__all__ = ["TopicAppender"]

_MOST_AT_ONCE: Final = 256
"""Transactions whose messages are put, and reported as put, in one turn of the loop: about a millisecond."""

_RETRY: Final = 0.25
"""Seconds between two attempts while the disk is full."""


@dataclass(slots=True)
class _Item:
    """A transaction's puts into the topic.

    Attributes:
        columns: the messages.
        cost: their cost in bytes of memory.
        tried: called once the first attempt to append them has ended; None after that.
        counted: whether the appender counts them as pending in the topic's put buffer.
    """

    columns: Columns
    cost: int
    tried: Callable[[], None] | None
    counted: bool

    def tell(self) -> None:
        """Call `tried`, the first time only."""
        tried, self.tried = self.tried, None
        if tried is not None:
            tried()


class TopicAppender:
    """Appends committed messages to one topic; one per topic that transactions put into.

    Messages that are added while others are being appended wait until all of those have ended. Otherwise an earlier one
    could fail and a later one succeed, and their order would change.

    INVARIANT: what waits here counts as pending in the topic's put buffer, as it did when its room was reserved.
    """

    def __init__(self, engine: TopicEngine) -> None:
        """Begin with nothing to do."""
        self._engine = engine
        self._waiting: deque[_Item] = deque()
        self._under_way: int = 0
        self._failed: list[tuple[int, _Item]] = []
        self._error: BaseException | None = None
        self._idlers: dict[asyncio.Future[None], None] = {}

    def add(self, columns: Columns, tried: Callable[[], None] | None = None, *, reserved: int | None = None) -> None:
        """Append these messages, all of them or none.

        Args:
            columns: the messages.
            tried: called when they are in the log, or have to wait for room on the disk.
            reserved: the bytes of memory already reserved for them; None: nothing was reserved.
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
        self._error = None
        self._under_way = min(len(self._waiting), _MOST_AT_ONCE)
        for number in range(self._under_way):
            item = self._waiting.popleft()
            waiter = self._engine.put_buffer.accept_committed(item.columns, item.cost)
            if item.tried is not None:  # on a retry it stays counted: in between, other puts would take its room
                self._count_no_longer(item)
            twice(waiter.add_done_callback, self._engine.guarded(partial(self._ended, number, item)))

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
        if self._engine.forgotten:
            self.give_up()
        error = self._error
        if error is None and self._waiting:
            self._start()
            return
        self._tell_all()
        if isinstance(error, AiodqError) and not isinstance(error, (StoreFailedError, QueueShutDown)):
            twice(partial(asyncio.get_running_loop().call_later, _RETRY), self._engine.guarded(self._start))
        release(self._idlers)

    def _tell_all(self) -> None:
        for item in self._waiting:
            item.tell()

    def give_up(self) -> None:
        """Drop messages that wait for room on the disk, as the topic is being deleted."""
        self._tell_all()
        given_up, self._waiting = self._waiting, deque()
        for item in given_up:
            self._count_no_longer(item)
        if not (self._under_way or isinstance(self._error, StoreFailedError)):
            self._error = None

    def fail(self, error: Exception) -> None:
        """Fail the callers that wait in `idle`."""
        self._error = self._error or error
        release(self._idlers, error)

    async def idle(self) -> None:
        """Wait until everything is in the log.

        Raises:
            StorageError: it could not be appended yet; it is retried until it can.

        Cancellation: nothing changes.
        """
        while self._under_way or (self._waiting and self._error is None and not self._engine.stopped):
            await wait_in(self._idlers)
        if isinstance(self._error, AiodqError):
            raise again(self._error)
