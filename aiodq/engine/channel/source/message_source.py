"""The source of a channel's messages: the requeue cache, what was read ahead, the log's tail, the disk."""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Final

from aiodq.engine.channel.source.requeue_cache import RequeueCache
from aiodq.engine.loop.futures import release, wait_in
from aiodq.engine.reading.read_ahead import ReadAhead

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.channel.source.delivery_filter import DeliveryFilter
    from aiodq.engine.reading.prefetch_reader import PrefetchingReader
    from aiodq.engine.reading.tail_cache import TailCache
    from aiodq.format.frame import Batch
    from aiodq.storage.read.log_reader import ReadResult

__all__ = ["MessageSource"]

_AT_ONCE: Final = 64
"""The most redelivered messages read from the log at a time."""

_MOST_KEPT: Final = 500
"""The most deferred messages taken into memory in one turn of the loop."""

_SOON: Final = 1_000_000_000
"""Nanoseconds before they are due at which deferred messages are read."""


class MessageSource:
    """The message source of one channel.

    Attributes:
        read_ahead: the messages read ahead.
        requeue_cache: the redelivered messages in memory.
        missing: the redelivered messages being read, one by one.
    """

    def __init__(
        self,
        channel: ChannelCore,
        tail: TailCache,
        reader: PrefetchingReader,
        supplied: Callable[[Exception | None], None],
    ) -> None:
        """Start with nothing in memory; `supplied` is called when something was read, or could not be read."""
        self.read_ahead: ReadAhead = ReadAhead(
            tail, reader.read_now, reader.read_cached, lambda: reader.want(self), lost=channel.lost, limit=reader.ahead
        )
        self.requeue_cache: RequeueCache = RequeueCache()
        self.missing: list[int] = []
        self._channel = channel
        self._supplied = supplied
        self._tail = tail
        self._reader = reader
        self._waiting: dict[asyncio.Future[None], None] = {}
        # The last answer of `put_at`: of a thousand channels most have not moved since they were last asked.
        self._put_at: tuple[int, int] = (-1, 0)

    def next(self, state: ChannelState, *, cold: bool) -> tuple[Batch, int] | None:
        """Return the next message in memory, as a batch and an index in it.

        Args:
            state: the channel's.
            cold: read a little from disk at once instead of leaving it to the prefetching reader.
        """
        while (offset := state.requeued.first()) is not None and offset <= state.fresh():
            batch = self.in_memory(offset)
            if batch is not None:
                return batch, offset - batch.first
            if not cold:
                self._want_missing(state)
                return None
            self.brought(offset, self._reader.read_now(offset))
        return self.read_ahead.fresh(state, cold=cold)

    def deliver_again(
        self, state: ChannelState, most: int, chosen: DeliveryFilter, deadline: int | None, *, size: int | None = None
    ) -> tuple[Batch, int, int] | None:
        """Hand out neighbours that are redelivered next and in memory, as `ChannelState.deliver_again` does.

        Args:
            state: the channel's.
            most: how many at most.
            chosen: which messages are to be delivered.
            deadline: see there.
            size: bytes that their bodies take together at most; None for any.

        Returns:
            The messages as a batch, the attempts of each, and the first delivery number; None if there are none, or if
            the first one has to be handled by itself.
        """
        first, kept = state.requeued.first(), self.requeue_cache.batches
        if first is None:
            return None
        if first in kept:
            simple = self.requeue_cache.is_simple
            fits = simple if size is None else _within(size, simple, lambda offset: len(kept[offset].columns.bodies[0]))
            found = state.deliver_again(most, fits, deadline)
            return None if found is None else (self.requeue_cache.take_all(found[0]), *found[1:])
        batch = self._tail.find(first)
        if batch is None:
            return None
        count, _ = chosen.deliverable(batch, first - batch.first, min(batch.stop - first, most))
        fits, bodies, begin = range(first, batch.stop).__contains__, batch.columns.bodies, batch.first
        if size is not None:
            fits = _within(size, fits, lambda offset: len(bodies[offset - begin]))
        found = state.deliver_again(count, fits, deadline) if count else None
        if found is None:
            return None
        for offset in found[0] if kept else ():
            self.requeue_cache.discard(offset)
        return batch.cut(found[0].start, found[0].stop), *found[1:]

    def in_memory(self, offset: int) -> Batch | None:
        """Return the batch that holds a message, or None if it is not in memory."""
        return self.requeue_cache.get(offset) or self._tail.find(offset)

    def put_at(self, offset: int) -> int | None:
        """Return when a message was put, nanoseconds since the epoch, or None if it is neither known nor in memory."""
        known, put_ns = self._put_at
        if known == offset:
            return put_ns
        batch = self.in_memory(offset)
        if batch is None:
            return None
        times = batch.columns.times
        put_ns = batch.time_ns if times is None else times[offset - batch.first]
        self._put_at = offset, put_ns
        return put_ns

    def keep_of(self, batch: Batch, offsets: Iterable[int]) -> None:
        """Keep these messages of a batch, as far as there is room."""
        self.requeue_cache.keep_of(batch, offsets, self.read_ahead.limit)

    def keep_deferred(self, batch: Batch, offsets: Sequence[int], at: int = 0) -> None:
        """Keep messages that are due later, a few in each turn of the loop, as far as there is room."""
        state, stop = self._channel.state, at + _MOST_KEPT
        if state is None:
            return
        self.keep_of(batch, [offset for offset in offsets[at:stop] if offset in state.deferred])
        if stop < len(offsets):
            get_running_loop().call_soon(self.keep_deferred, batch, offsets, stop)

    def keep(self, batch: Batch) -> None:
        """Keep a message that is redelivered, if there is room."""
        self.requeue_cache.keep(batch, self.read_ahead.limit)

    def reset(self) -> None:
        """Forget what is in memory."""
        self.read_ahead.clear()
        self.requeue_cache.clear()

    async def was_read(self) -> bool:
        """Wait for what is being read from the log, and return True; return False at once if nothing is.

        Raises:
            StorageError: it could not be read.
            QueueShutDown, StoreFailedError: the channel has ended meanwhile.

        Cancellation: nothing changes.
        """
        if not (self.read_ahead.fetching or self.missing):
            return False
        await wait_in(self._waiting)
        return True

    def end(self, error: Exception) -> None:
        """Raise an error in the tasks that wait for a read."""
        release(self._waiting, error)

    # --- for the prefetching reader

    def fetch_offset(self) -> int | None:
        """Return the offset to read from next, or None if nothing needs to be read."""
        state = self._channel.state
        return None if state is None else self.read_ahead.fetch_offset(state)

    def fetched(self, result: ReadResult | None, offset: int, epoch: int, error: Exception | None = None) -> None:
        """Take what was read from `offset` on; an error goes to those who wait."""
        self.read_ahead.fetching = False
        state = self._channel.state
        if state is not None and result is not None and epoch == self.read_ahead.epoch:
            self.read_ahead.feed(state, result, offset)
        release(self._waiting, error)
        self._supplied(error)

    def prepare(self, state: ChannelState) -> None:
        """Read messages that are due, or due soon, before they are asked for."""
        if len(self.requeue_cache.batches) < _AT_ONCE:
            self._want_missing(state)

    def bring(self, offsets: list[int]) -> None:
        """Read some of these, unless others are being read; `supplied` is called once that is done."""
        if not self.missing:
            self._reader.want(self)
            self.missing = offsets[:_AT_ONCE]

    def _want_missing(self, state: ChannelState) -> None:
        if self.missing:
            return
        wanted = state.requeued.some(_AT_ONCE)
        wanted += state.deferred.soon(_AT_ONCE - len(wanted), _SOON)
        missing = [offset for offset in wanted if offset not in self.requeue_cache and self._tail.find(offset) is None]
        if missing:
            self._reader.want(self)
            self.missing = missing

    def brought(self, offset: int, result: ReadResult) -> None:
        """Take what was read for a missing offset."""
        for batch in result.batches:
            if batch.first <= offset < batch.stop:
                self.requeue_cache.keep_of(batch, [offset])
                return
        state = self._channel.state
        if state is not None and state.lose(offset, offset + 1):
            self._channel.lost(1, offset)

    def all_brought(self, error: Exception | None) -> None:
        """Go on after a read; an error goes to those who wait."""
        self.missing = []
        release(self._waiting, error)
        self._supplied(error)


def _within(size: int, fits: Callable[[int], bool], bytes_of: Callable[[int], int]) -> Callable[[int], bool]:
    """Return a function that says of one offset after the other whether it fits, and is still within so many bytes."""
    left = size

    def fits_within(offset: int) -> bool:
        nonlocal left
        if not fits(offset):
            return False
        left -= bytes_of(offset)
        return left >= 0

    return fits_within
