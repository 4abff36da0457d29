"""The requeue cache: redelivered messages in memory, as far as there is room; others are read from the log when due."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aiodq.delivery.range_set import among
from aiodq.engine.channel.addressed import FOR
from aiodq.engine.loop.freeing import free_gradually
from aiodq.engine.reading.tail_cache import BATCH_OVERHEAD, batch_cost
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.delivery.range_set import RangeSet

__all__ = ["RequeueCache"]


class RequeueCache:
    """Messages by offset, each as a batch of its own, so that it does not keep its neighbours in memory.

    Attributes:
        batches: the messages.
    """

    __slots__ = ("_cost", "batches")

    def __init__(self) -> None:
        """Start empty."""
        self.batches: dict[int, Batch] = {}
        self._cost = 0

    def __contains__(self, offset: int) -> bool:
        """Return whether the message is in memory."""
        return offset in self.batches

    def get(self, offset: int) -> Batch | None:
        """Return a message, or None if it has to be read."""
        return self.batches.get(offset)

    def is_simple(self, offset: int) -> bool:
        """Return whether the message is in memory, has no time to live, and no hidden header."""
        batch = self.batches.get(offset)
        if batch is None:
            return False
        headers, expiries = batch.columns.headers, batch.columns.expiries
        return (headers is None or FOR not in headers[0]) and (expiries is None or not expiries[0])

    def take_all(self, offsets: range) -> Batch:
        """Remove and return neighbours that are in memory, as one batch."""
        parts = [self.batches.pop(offset) for offset in offsets]
        self._cost -= sum(map(batch_cost, parts)) + BATCH_OVERHEAD * len(parts)
        times = [part.time_ns for part in parts]
        columns = Columns.joined([part.columns for part in parts])
        return Batch(offsets.start, times[0], replace(columns, times=times))

    def keep(self, batch: Batch, limit: int | None = None) -> None:
        """Keep a batch of one message, unless more than `limit` bytes are kept already."""
        if limit is None or self._cost <= limit:
            self.discard(batch.first)
            self.batches[batch.first] = batch
            self._cost += batch_cost(batch) + BATCH_OVERHEAD

    def keep_of(self, batch: Batch, offsets: Iterable[int], limit: int | None = None) -> None:
        """Keep these messages of a batch, unless more than `limit` bytes are kept already."""
        for offset in offsets:
            if limit is not None and self._cost > limit:
                return
            number = offset - batch.first
            columns = batch.columns.slice(number, number + 1)
            time_ns = batch.time_ns if columns.times is None else columns.times[0]
            self.keep(Batch(offset, time_ns, columns))

    def discard(self, offset: int) -> None:
        """Drop a message."""
        batch = self.batches.pop(offset, None)
        if batch is not None:
            self._cost -= batch_cost(batch) + BATCH_OVERHEAD

    def discard_within(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Drop the messages of these ranges."""
        for start, stop in ranges:
            for offset in among(self.batches, start, stop):
                self.discard(offset)

    def discard_settled(self, floor: int, settled: RangeSet) -> None:
        """Drop the settled messages: those below `floor` or in `settled`."""
        for offset in [offset for offset in self.batches if offset < floor or offset in settled]:
            self.discard(offset)

    def clear(self) -> None:
        """Drop everything."""
        free_gradually(self.batches)
        self.batches = {}
        self._cost = 0
