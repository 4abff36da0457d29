"""The deferred messages of a channel: looked at without being taken, and given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Final

from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.format.frame import Batch
from aiodq.message import Message, look_at
from aiodq.storage.read.log_reader import LogReader

__all__ = ["DeferredMessage", "cancel_deferred", "look_at_deferred"]

_PAGE: Final = 64
"""The most deferred messages handled in one turn of the event loop."""

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
    """Yield the messages deferred at the first step, the earliest due first; one at a time is in memory."""
    if channel_engine.state is None:
        await engine.settle_in(channel_engine.name)
    state, read = channel_engine.state, None
    if state is None:
        engine.check()
        return
    order = state.deferred.in_order()
    while page := list(islice(order, _PAGE)):
        for offset, due in page:
            engine.check()
            if state.deferred.due(offset) != due:
                continue
            batch = read = await _batch(engine, channel_engine, offset, read)
            if batch is None or state.deferred.due(offset) != due:
                continue  # lost to damage, which is reported when it is due; or no longer deferred
            wall, now = channel_engine.times()
            message = look_at(engine.name, batch, offset - batch.first, state.attempts(offset))
            yield DeferredMessage(message, _EPOCH + timedelta(microseconds=(wall + due - now) // 1000))
        await asyncio.sleep(0)


async def _batch(
    engine: TopicEngine, channel_engine: ChannelEngine[Message], offset: int, last: Batch | None
) -> Batch | None:
    """Return the batch that holds a message, perhaps the `last` one; None if the message is lost."""
    if last is not None and last.first <= offset < last.stop:
        return last
    found = channel_engine.source.in_memory(offset)
    if found is not None:
        return found
    result = await engine.reader.look(partial(LogReader.read, view=engine.view(), offset=offset, max_bytes=1))
    return next((batch for batch in result.batches if batch.first <= offset < batch.stop), None)


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
