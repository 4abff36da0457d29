"""The read-ahead of a channel: the batch in use, those read ahead, and after them the log's tail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.engine.reading.small_batches import merged
from aiodq.engine.reading.tail_cache import batch_cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.reading.tail_cache import TailCache
    from aiodq.format.frame import Batch
    from aiodq.storage.read.frame_results import Continuation
    from aiodq.storage.read.log_reader import ReadResult

__all__ = ["ReadAhead"]

_LEAST: Final = 256 * 1024
_MOST: Final = 1024 * 1024
_A_READ: Final = 64 * 1024
"""Bytes for which a read counts at least: it opens a file, perhaps."""

_MESSAGES: Final = 2500
"""Messages in a piece, within these bounds in bytes: decoding more in a thread keeps the loop waiting for the GIL."""


class ReadAhead:
    """The messages one channel has read ahead.

    Attributes:
        cost: bytes of memory taken now.
        epoch: changes whenever what is read ahead becomes void.
        fetching: whether a read was asked for and has not come yet.
        piece: bytes of the log to read at a time.
        continuation: where the last read ended.
        rest_cost: the part of the cost for what that read left for the next one.
        read_here: bytes read on the event loop so far, from the page cache; a short read takes as long as `_A_READ`.
    """

    def __init__(
        self, tail: TailCache, read_now: Callable[[int, Continuation | None], ReadResult],
        read_cached: Callable[[int, int, Continuation | None], ReadResult | None], want: Callable[[], None], *,
        lost: Callable[[int, int], None], limit: Callable[[], int],
    ) -> None:  # fmt: skip
        """Start empty.

        Args:
            tail: the topic's newest messages.
            read_now: reads a little from disk at once.
            read_cached: likewise, up to a number of bytes, if they are in the page cache; otherwise returns None.
            want: asks the prefetching reader to look at `fetch_offset`.
            lost: called with the number of messages found to be lost, and the offset of the first.
            limit: returns the bytes of memory for what is read ahead.
        """
        self.cost: int = 0
        self.epoch: int = 0
        self.fetching: bool = False
        self.piece: int = _LEAST
        self.continuation: Continuation | None = None
        self.rest_cost: int = 0
        self.read_here: int = 0
        self._tail = tail
        self._read_now = read_now
        self._read_cached = read_cached
        self._in_memory = True
        self._want = want
        self._lost = lost
        self._limit = limit
        self._current: Batch | None = None
        # Each with its cost in memory.
        self._ahead: list[tuple[Batch, int]] = []

    @property
    def limit(self) -> int:
        """Bytes of memory for what is read ahead."""
        return self._limit()

    def fresh(self, state: ChannelState, *, cold: bool) -> tuple[Batch, int] | None:
        """Return the next message never handed out, as a batch and an index in it, or None if none is in memory.

        Args:
            state: the channel's.
            cold: read a little from disk at once instead of leaving it to the prefetching reader.
        """
        while (offset := state.fresh()) < state.log.visible:
            batch = self._current
            if batch is None or not batch.first <= offset < batch.stop:
                batch = self._current = self._find(state, offset)
            if batch is not None:
                return batch, offset - batch.first
            if state.fresh() != offset or self._read_on(state):
                continue  # what was in memory begins after a gap, or more of it is there now
            if not cold:
                self.request(state)
                return None
            self.feed(state, self._read_now(offset, self.continuation), offset)
        self._current = None
        return None

    def _find(self, state: ChannelState, offset: int) -> Batch | None:
        ahead = self._ahead
        while ahead and ahead[0][0].stop <= offset:
            self.cost -= ahead.pop(0)[1]
        if not ahead:
            return self._tail.find(offset)
        batch, cost = ahead[0]
        if batch.first > offset:
            self._lose(state, offset, batch.first)
            return None
        del ahead[0]
        self.cost -= cost
        if self.cost * 2 < self.limit and not self._in_memory:
            self._current = batch  # the next read starts after it
            if not self._read_on(state):
                self.request(state)
        return batch

    def _read_on(self, state: ChannelState) -> bool:
        """Continue reading from the page cache; return whether there was anything.

        As long as the page cache has the data, nothing is read before it is needed: that takes no longer, and no thread
        takes the GIL from the loop.
        """
        offset = None if self.fetching else self.fetch_offset(state)
        if offset is None:
            return False
        result = self._read_cached(offset, min(self.piece, self.limit - self.cost), self.continuation)
        self._in_memory = result is not None and result.next > offset
        if result is not None:
            self.read_here += max(result.bytes_read, _A_READ)
            self.feed(state, result, offset)
        return self._in_memory

    def request(self, state: ChannelState) -> None:
        """Ask for more to be read ahead, if there is more and it is not in memory."""
        if not self.fetching and self.fetch_offset(state) is not None:
            self._want()
            self.fetching = True

    def fetch_offset(self, state: ChannelState) -> int | None:
        """Return the offset to read from next, or None if nothing needs to be read."""
        # INVARIANT: with nothing to hand out it reads on, whatever the last read left: otherwise it never would.
        if self._ahead and self.cost >= self.limit:
            return None
        if self._ahead:
            offset = self._ahead[-1][0].stop
        else:
            offset = state.fresh()
            if self._current is not None and self._current.first <= offset < self._current.stop:
                offset = self._current.stop
        if offset >= state.log.visible or self._tail.find(offset) is not None:
            return None
        return offset

    def feed(self, state: ChannelState, result: ReadResult, offset: int) -> None:
        """Append what was read from `offset` on to what is in memory; offsets missing in it are lost."""
        self._continue_at(result.continuation)
        self.piece = min(max(_MESSAGES * result.bytes_read // max(result.next - offset, 1), _LEAST), _MOST)
        for batch in merged(result.batches):
            self._lose(state, offset, batch.first)
            offset = max(offset, batch.stop)
            cost = batch_cost(batch)
            self._ahead.append((batch, cost))
            self.cost += cost
        self._lose(state, offset, result.next)

    def _continue_at(self, continuation: Continuation | None) -> None:
        rest_cost = sum(map(batch_cost, continuation.rest)) if continuation else 0
        if continuation is not None and rest_cost * 4 > self.limit:
            continuation, rest_cost = continuation._replace(rest=()), 0
        self.continuation = continuation
        self.cost += rest_cost - self.rest_cost
        self.rest_cost = rest_cost

    def _lose(self, state: ChannelState, start: int, stop: int) -> None:
        lost = state.lose(start, stop)
        if lost:
            self._lost(lost, start)

    def clear(self) -> None:
        """Forget what is in memory."""
        self.epoch += 1
        self.continuation = self._current = None
        self._ahead.clear()
        self.cost = self.rest_cost = 0
