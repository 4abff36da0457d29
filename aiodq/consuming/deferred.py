"""The deferred messages of a channel: looked at without being taken, and given up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Final

from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.format.frame import Batch
from aiodq.message import Message, look_at
from aiodq.storage.read.log_reader import LogReader, LogView

__all__ = ["DeferredMessage", "cancel_deferred", "look_at_deferred"]

_TURN: Final = 64
"""The most deferred messages handled in one turn of the event loop."""

_LONGEST_PAGE: Final = 1000
"""The most deferred messages read at once: those due one after the other may lie anywhere in the log."""

_PAGE_BYTES: Final = 1 << 20
"""About how many bytes of bodies are read at once."""

_READ_BYTES: Final = 1 << 14
"""Bytes of one read: what is due at similar times often lies close together, and to find a place costs as much."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeferredMessage(Message):
    """A message that waits until it is due, as `Channel.deferred_messages` gives it; it is not taken.

    It cannot be settled; `await channel.cancel(message.offset)` gives it up. `attempts` says how often it was
    delivered.

    Attributes:
        due: when it becomes ready, in UTC.
    """

    __slots__ = ("due",)

    def __init__(self, message: Message, due: datetime) -> None:
        """Called by the channel."""
        self._run, self._index = message._run, message._index  # noqa: SLF001 - it is the same message
        self.body: bytes = message.body
        self._store_ref = None
        self.due: datetime = due

    def __getstate__(self) -> object:
        """As in `StoredMessage`."""
        return None, {"_run": self._run, "_index": self._index, "body": self.body, "_store_ref": None, "due": self.due}


async def look_at_deferred(
    engine: TopicEngine, channel_engine: ChannelEngine[Message]
) -> AsyncIterator[DeferredMessage]:
    """Yield the messages deferred at the first step, the earliest due first; some are in memory at a time."""
    if channel_engine.state is None:
        await engine.settle_in(channel_engine.name)
    state = channel_engine.state
    if state is None:
        engine.check()
        return
    order, length = state.deferred.in_order(), _TURN
    while page := list(islice(order, length)):
        engine.check()
        ahead = await _look(engine, channel_engine, sorted(offset for offset, _ in page))
        length = _next_length(ahead.values())
        for number, (offset, due) in enumerate(page, 1):
            engine.check()
            if state.deferred.due(offset) != due:
                continue
            batch = ahead.pop(offset, None) or await _batch(engine, channel_engine, offset)
            if batch is None or state.deferred.due(offset) != due:
                continue  # lost to damage, which is reported when it is due; or no longer deferred
            wall, now = channel_engine.times()
            message = look_at(engine.name, batch, offset - batch.first, state.attempts(offset))
            yield DeferredMessage(message, _EPOCH + timedelta(microseconds=(wall + due - now) // 1000))
            if not number % _TURN:
                await asyncio.sleep(0)


def _next_length(read: Collection[Batch]) -> int:
    """Return how many messages to read next, by the size of these."""
    total = sum(len(batch.columns.bodies[0]) for batch in read)
    return min(max(_PAGE_BYTES * len(read) // max(total, 1), _TURN), _LONGEST_PAGE) if read else _LONGEST_PAGE


async def _batch(engine: TopicEngine, channel_engine: ChannelEngine[Message], offset: int) -> Batch | None:
    """Return a batch that holds a message; None if the message is lost."""
    found = channel_engine.source.in_memory(offset)
    return found or (await _look(engine, channel_engine, [offset])).get(offset)


async def _look(
    engine: TopicEngine, channel_engine: ChannelEngine[Message], offsets: Sequence[int]
) -> dict[int, Batch]:
    """Read messages that are not in memory; return those read, by offset, a batch each.

    Args:
        engine: their topic's.
        channel_engine: their channel's.
        offsets: theirs, in order.
    """
    missing = [offset for offset in offsets if channel_engine.source.in_memory(offset) is None]
    return await engine.reader.look(partial(_read_each, view=engine.view(), offsets=missing)) if missing else {}


def _read_each(reader: LogReader, view: LogView, offsets: Iterable[int]) -> dict[int, Batch]:
    """Read the messages at these offsets, in order, until there are `_PAGE_BYTES` of them. Blocking."""
    found: dict[int, Batch] = {}
    batches: deque[Batch] = deque()
    room = _PAGE_BYTES
    for offset in offsets:
        while batches and batches[0].stop <= offset:
            batches.popleft()
        if not batches:
            batches.extend(reader.read(view, offset, _READ_BYTES).batches)
        if batches and batches[0].first <= offset:
            found[offset] = batches[0].cut(offset, offset + 1)
            room -= len(found[offset].columns.bodies[0])
        if room < 0:
            break
    return found


async def cancel_deferred(engine: TopicEngine, channel_engine: ChannelEngine[Message], offset: int) -> None:
    """Settle a deferred message that is not to be delivered, and wait until that is durable.

    Raises:
        OffsetError: it is not deferred.
    """
    if engine.pending:
        engine.catch_up()
    if channel_engine.state is None:
        await engine.settle_in(channel_engine.name)
    channel_engine.cancel(offset)
    await channel_engine.committed()
