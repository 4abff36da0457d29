"""The demonstration's producers and consumers."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiodq.engine.queue_errors import QueueFull
from aiodq.options import ChannelOptions, Retention, StoreOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.channel import Channel
    from aiodq.cli.demo.sources import Share
    from aiodq.message import Message
    from aiodq.topic import Topic

__all__ = [
    "CHANNEL",
    "TOPIC",
    "channel_options",
    "consume",
    "produce",
    "store_options",
    "take_and_hold",
]

TOPIC: Final = "lines"
CHANNEL: Final = "readers"
_CONSUMED_AT_ONCE: Final = 200
_PUT_AT_ONCE: Final = 400
_SEGMENT_BYTES: Final = 16 << 20


def store_options() -> StoreOptions:
    """Return the demonstration's: every put is synced. Segments are small, so that they roll, and kept, to look at."""
    return StoreOptions(sync="always", segment_bytes=_SEGMENT_BYTES, retention=Retention(consumed="keep"))


def channel_options(consumers: int) -> ChannelOptions:
    """Return options under which that many consumers never wait for one another's acks."""
    return ChannelOptions(start="earliest", max_in_flight=2 * _CONSUMED_AT_ONCE * consumers)


async def produce(
    topic: Topic,
    share: Share,
    number: int,
    reached: Callable[[int, int], None],
    *,
    start: int = 0,
    stop: int | None = None,
) -> None:
    """Put one producer's lines in order.

    Producers with an even number put atomic batches, those with an odd one many single messages that wait together.

    Args:
        topic: where to.
        share: the lines.
        number: the producer's.
        reached: told (producer, position) once all before that position is durable.
        start: the position to begin at.
        stop: the position to end before; None for all.
    """
    stop = len(share) if stop is None else stop
    # A small share, too, is put in several steps, so that there is something between its beginning and its end.
    step = min(_PUT_AT_ONCE, max(stop // 16, 1))
    messages = islice(share.messages(start), stop - start)
    put = _put_batch if number % 2 == 0 else _put_singly
    while batch := list(islice(messages, step)):
        await put(topic, batch)
        start += len(batch)
        reached(number, start)


async def _put_batch(topic: Topic, batch: list[bytes]) -> None:
    await topic.put_many(batch)


async def _put_singly(topic: Topic, batch: list[bytes]) -> None:
    receipts = []
    for body in batch:
        try:
            receipts.append(topic.put_nowait(body))
        except QueueFull:
            # So many producers that the write buffer is full: wait for room.
            await topic.put(body)
    for receipt in receipts:
        await receipt


async def consume(
    channel: Channel, took: Callable[[list[Message]], None], acked: Callable[[list[Message]], None]
) -> None:
    """Take messages and ack them until cancelled.

    Args:
        channel: where from.
        took: told what was taken, at once.
        acked: told the same when its acks are durable.
    """
    while True:
        messages = await channel.get_many(_CONSUMED_AT_ONCE)
        took(messages)
        for message in messages[:-1]:
            message.ack_nowait()
        await messages[-1].ack()
        acked(messages)


async def take_and_hold(channel: Channel, took: Callable[[list[Message]], None]) -> None:
    """Take messages and never ack them, like a consumer that is processing them when the process dies."""
    took(await channel.get_many(_CONSUMED_AT_ONCE))
    await asyncio.get_running_loop().create_future()
