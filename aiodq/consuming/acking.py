"""`Channel.ack_many`: settles several messages of one channel in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.engine.channel.lease.held_runs import HeldRuns, held_runs, is_in
from aiodq.errors import AlreadySettledError, InvalidOptionTypeError, NotInFlightError
from aiodq.message import Message
from aiodq.values import several, shown_typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.channel.open_channel import OpenChannel

__all__ = ["ack_all", "list_messages", "own_delivery"]


def ack_all(channel_engine: OpenChannel[Message], messages: Iterable[Message]) -> None:
    """Settle messages of a channel: all of them, or none if one cannot be settled.

    Raises:
        AlreadySettledError: one was settled before, or is given twice.
        NotInFlightError: one is no longer in flight, or is another channel's.
        InvalidOptionError: these are no messages; a `TypeError` too.
    """
    found = list_messages(messages)
    runs, apart = _divided(channel_engine, found)
    claimed: dict[int, tuple[Message, int]] = {}
    for message in apart:
        delivery = _delivery(channel_engine, message)
        if message.offset in claimed or is_in(message._index, runs.get(message._run, ())):  # noqa: SLF001 - its place in its lease
            raise AlreadySettledError(f"message {message.offset} of {message.topic!r} is named twice; none was settled")
        claimed[message.offset] = message, delivery
    channel_engine.ack_many([(offset, delivery) for offset, (_, delivery) in claimed.items()])
    for lease, those in runs.items():
        for first, count in those:
            channel_engine.ack_run(lease, first, count)
    settled: Sequence[InFlight] = found
    for one in settled:
        one._store_ref = None  # noqa: SLF001 - it is settled here instead of by its own methods
    for message in apart:
        message._committed()  # noqa: SLF001 - as above
    channel_engine.held_by_task.settled(found)


def list_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the given messages as a list.

    Raises:
        InvalidOptionError: a single value was given, or one that cannot be iterated over; also a `TypeError`.
    """
    found = several(messages)
    if found is None:
        raise InvalidOptionTypeError(
            f"ack_many takes a list of messages, not {shown_typed(messages)}: write await message.ack() for one"
        )
    return list(found)


def _divided(channel_engine: OpenChannel[Message], messages: list[Message]) -> tuple[HeldRuns, list[Message]]:
    """Return the runs of consecutive messages of leases, and all other messages."""
    if list(map(type, messages)).count(Message) != len(messages):
        return {}, messages
    return held_runs(messages, lambda lease: lease.channel_engine is channel_engine)


def _delivery(channel_engine: OpenChannel[Message], message: object) -> int:
    if not isinstance(message, Message):
        raise InvalidOptionTypeError(
            f"what is acked is a message, not {shown_typed(message)}: write "
            "ack_many(messages) with what `await channel.get_many(100)` gave"
        )
    delivery = own_delivery(channel_engine, message)
    channel_engine.check(message.offset, delivery)
    return delivery


def own_delivery(channel_engine: OpenChannel[Message], message: Message) -> int:
    """Return the delivery number of a message that this channel has handed out.

    Raises:
        AlreadySettledError: settled before.
        NotInFlightError: it is another channel's, or was only looked at.
    """
    its, delivery = message._claim()  # noqa: SLF001 - as in `ack_all`
    if its is not channel_engine:
        raise NotInFlightError(
            f"message {message.offset} was handed out by {its.place}, not by {channel_engine.place}; none was settled"
        )
    return delivery
