"""The segment writer: encodes the ioLoop's batches, writes them inline if small, and rolls segments off the loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.engine.batch.put_batch import Part, columns_cost
from aiodq.engine.loop.futures import settle
from aiodq.engine.loop.on_demand import OnDemand
from aiodq.errors import AiodqError, StorageError, StoreFailedError
from aiodq.format.codecs import CODEC_NONE
from aiodq.storage.log.active_segment import WRITE_BYTES, cuts

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.engine.batch.put_batch import Waiter
    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.format.columns import Columns
    from aiodq.storage.log.topic_log import TopicLog

_LARGE: Final = 1 << 20
"""Bytes above which encoding or writing at once would hold up the event loop for more than a millisecond."""

_MANY: Final = 256
"""Parts above which encoding them at once would: two milliseconds or three, however small they are."""

__all__ = ["SegmentWriter", "Written", "write_blocking"]


@dataclass(slots=True)
class Written:
    """The result of writing a batch.

    Attributes:
        parts: the parts that are in the log now, in order.
        failed: those that are not.
        error: why they failed.
    """

    parts: list[Part] = field(default_factory=list)
    failed: list[Part] = field(default_factory=list)
    error: AiodqError | None = None


class SegmentWriter:
    """Writes one batch at a time.

    Attributes:
        log: the log to write to.
        worker: writes what takes longer than a step.
        rolling: whether the log is being rolled; nothing else may touch its segments, nor sync them.
        syncing: whether a sync is in flight; no segment is rolled meanwhile.
    """

    def __init__(
        self, log: TopicLog | None, clock: Clock, threads: WorkerThreads, report: Callable[[int, Written], None]
    ) -> None:
        """Write to `log`; if None, it has to be set before the first batch. `report` gets each result."""
        self.log = log
        self.worker: OnDemand = OnDemand(self._run)
        self._batch: tuple[int, list[Part]] | None = None
        self._report = report
        self._clock = clock
        self._threads = threads
        self._sync_over: asyncio.Future[None] | None = None
        self.rolling: bool = False
        self.syncing: bool = False

    def sync_ended(self) -> None:
        """Note that no sync is in flight any more."""
        self.syncing = False
        if self._sync_over is not None:
            settle(self._sync_over, None, None)

    def begin(self, serial: int, parts: list[Part]) -> None:
        """Write a batch in later turns of the loop, and report it under its serial number."""
        self._batch = serial, parts
        self.worker.want()

    async def _run(self) -> None:
        while self._batch is not None:
            (serial, parts), self._batch = self._batch, None
            self._report(serial, await self.write(parts))

    def write_at_once(self, parts: list[Part]) -> Written | None:
        """Write a small batch within the caller's step; return None if that takes longer.

        That is so if the batch is long, the segment has to roll, or its file has to be opened again.
        """
        log = self._opened()
        try:
            if self._append(log, parts):
                return Written(parts)
            if not log.ready or len(parts) > _MANY or sum(part.cost for part in parts) > WRITE_BYTES:
                return None
            if not all(self._stage(log, part) for part in parts):
                log.rollback()
                return None
            log.flush()
            log.commit()
        except AiodqError as error:
            log.rollback()
            return Written(failed=parts, error=error)
        return Written(parts)

    def _append(self, log: TopicLog, parts: list[Part]) -> bool:
        """Write a batch of one plain message, if it is one and fits in."""
        part = parts[0] if len(parts) == 1 else None
        if part is None or len(part.columns.bodies) != 1 or part.cost > WRITE_BYTES:
            return False
        if part.atomic and part.origin is None:
            return False
        if log.options.codec != CODEC_NONE or not part.columns.plain:
            return False
        time_ns = self._clock.now_ns()
        offset = log.append(part.columns.bodies[0], time_ns, zeros_ahead=True, origin=part.origin)
        if offset < 0:
            return False
        part.first, part.time_ns = offset, time_ns
        return True

    def _stage(self, log: TopicLog, part: Part) -> bool:
        time_ns = self._clock.now_ns()
        part.first = -1
        for columns in cuts(part.columns, atomic=part.atomic):
            span = log.stage(columns, time_ns, atomic=part.atomic, origin=part.origin)
            if span is None:
                part.first = -1
                return False
            if part.first < 0:
                part.first, part.time_ns = span[0], time_ns
        return True

    async def write(self, parts: list[Part]) -> Written:
        """Write a batch, part by part.

        At most about 256 KiB, and 256 parts, are encoded and written in one turn of the loop. A larger part that may
        not be split over segments is encoded and written by a thread: nothing else touches the log meanwhile.
        """
        log = self._opened()
        try:
            if not log.ready:
                await self._threads.call(log.wake)
            for number, part in enumerate(parts, 1):
                await self._write_part(part)
                if not number % _MANY:
                    await self._flush(log)
                    await asyncio.sleep(0)
            await self._flush(log)
            log.commit()
        except (AiodqError, ValueError) as error:
            log.rollback()
            self.rolling = False
            cause = error if isinstance(error, AiodqError) else StorageError(str(error), log.directory)
            return _split(parts, log.end, cause)
        return Written(parts)

    def _opened(self) -> TopicLog:
        if self.log is None:
            raise StoreFailedError("a batch came before the topic's files were created")
        return self.log

    async def _write_part(self, part: Part) -> None:
        log, time_ns = self._opened(), self._clock.now_ns()
        part.first = -1
        for columns in cuts(part.columns, atomic=part.atomic):
            large = columns is part.columns and part.cost > _LARGE
            stage = partial(log.stage, columns, time_ns, atomic=part.atomic, origin=part.origin, pausing=large)
            span = await self._threads.call(stage) if large else stage()
            if span is None:
                await self._roll(log)
                span = await self._threads.call(stage) if large else stage()
            if span is None:
                raise StorageError("a fresh segment has no room for the message", log.directory)
            if part.first < 0:
                part.first, part.time_ns = span[0], time_ns
            if log.staged_bytes >= WRITE_BYTES:
                await self._flush(log)
                await asyncio.sleep(0)

    async def _flush(self, log: TopicLog) -> None:
        if log.staged_bytes > _LARGE:
            await self._threads.call(log.flush)
        else:
            log.flush()

    async def _roll(self, log: TopicLog) -> None:
        await self._flush(log)
        log.commit()
        self.rolling = True
        if self.syncing:
            self._sync_over = asyncio.get_running_loop().create_future()
            await self._sync_over
            self._sync_over = None
        await self._threads.call(log.roll)
        self.rolling = False


def _split(parts: list[Part], end: int, error: AiodqError) -> Written:
    """Separate what was committed before the failure from what was not."""
    result = Written(error=error)
    for part in parts:
        count = len(part.columns.bodies)
        kept = min(max(end - part.first, 0), count) if part.first >= 0 else 0
        if kept == count:
            result.parts.append(part)
        elif kept == 0 or part.atomic:
            result.failed.append(part)
        else:
            columns = part.columns
            result.parts.append(_cut_part(part, columns.slice(0, kept), part.waiters[:kept]))
            result.failed.append(_cut_part(part, columns.slice(kept, count), part.waiters[kept:]))
    return result


def _cut_part(part: Part, columns: Columns, waiters: list[Waiter]) -> Part:
    return Part(columns, waiters, atomic=False, first=part.first, time_ns=part.time_ns, cost=columns_cost(columns))


def write_blocking(log: TopicLog, parts: list[Part], clock: Clock) -> None:
    """Write and sync batches without a loop, whatever the writer did with them before. Blocking.

    Raises:
        StorageError: they could not be written.
    """
    log.rollback()
    for part in parts:
        count = len(part.columns.bodies)
        kept = min(log.end - part.first, count) if 0 <= part.first < log.end else 0
        if kept == count:
            continue
        if not kept:
            part.first = -1
        rest = part.columns.slice(kept, count) if kept else part.columns
        for columns in cuts(rest, atomic=part.atomic):
            time_ns = clock.now_ns()
            span = log.stage(columns, time_ns, atomic=part.atomic, origin=part.origin)
            if span is None:
                log.flush()
                log.commit()
                log.roll()
                span = log.stage(columns, time_ns, atomic=part.atomic, origin=part.origin)
            if part.first < 0 and span is not None:
                part.first = span[0]
    log.flush()
    log.commit()
    log.sync()
