"""`Channel.ack_many`: settles several messages of one channel in one call."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Final

from aiodq.delivery.leases import APART, HELD, MEASURED, indexes
from aiodq.engine.channel.lease.in_flight import neighbours
from aiodq.errors import AlreadySettledError, InvalidOptionTypeError, NotInFlightError
from aiodq.message import Message
from aiodq.values import several, shown_typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aiodq.engine.channel.handing import HandingChannel
    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["ack_all", "list_messages", "own_delivery"]

_COMPILED: Final = not isinstance(neighbours, FunctionType)


def ack_all(channel_engine: HandingChannel[Message], messages: Iterable[Message]) -> None:
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
        first, count = runs.get(message._run, (0, 0))  # noqa: SLF001 - as in `_divided`
        if message.offset in claimed or first <= message._index < first + count:  # noqa: SLF001 - as above
            raise AlreadySettledError(f"message {message.offset} of {message.topic!r} is named twice; none was settled")
        claimed[message.offset] = message, delivery
    channel_engine.ack_many([(offset, delivery) for offset, (_, delivery) in claimed.items()])
    for lease, (first, count) in runs.items():
        channel_engine.ack_run(lease, first, count)
    settled: Sequence[InFlight] = found
    for one in settled:
        one._store_ref = None  # noqa: SLF001 - it is settled here instead of by its own methods
    for message in apart:
        message._committed()  # noqa: SLF001 - as above


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


def _divided(
    channel_engine: HandingChannel[Message], messages: list[Message]
) -> tuple[dict[MessageLease, tuple[int, int]], list[Message]]:
    """Return the runs of consecutive messages of a lease, as `get_many` gives them, and all other messages.

    A run is checked and settled as a whole, which is much faster than message by message.
    """
    runs: dict[MessageLease, tuple[int, int]] = {}
    if list(map(type, messages)).count(Message) != len(messages):
        return runs, messages
    apart: list[Message] = []
    for lease, first, at, stop in (_counted if _COMPILED else _compared)([*messages]):
        count, marks = stop - at, lease.marks
        offset, held = lease.first + first, marks.count(HELD, first, first + count)
        if (
            lease.channel_engine is channel_engine
            and lease not in runs
            and (
                held + marks.count(MEASURED, first, first + count) == count
                or (
                    marks.count(APART, first, first + count) == count
                    and channel_engine.holds_all(offset, offset + count, lease.number + first)
                )
            )
        ):
            runs[lease] = first, count
        else:
            apart += messages[at:stop]
    return runs, apart


def _counted(messages: list[InFlight], at: int = 0) -> Iterator[tuple[MessageLease, int, int, int]]:
    """Yield what `_compared` does, from an index on, message by message: the fastest way if it is compiled."""
    while at < len(messages):
        stop = neighbours(messages, at)
        yield messages[at]._run, messages[at]._index, at, stop  # noqa: SLF001 - as in `ack_all`
        at = stop


def _compared(messages: list[InFlight]) -> Iterator[tuple[MessageLease, int, int, int]]:
    """Yield, for each run of messages that are neighbours in a lease: the lease, its first index, and its list index.

    Compares all of them at once: the fastest way if it is not compiled.
    """
    leases: list[MessageLease] = [each._run for each in messages]  # noqa: SLF001 - as in `ack_all`
    places = [each._index for each in messages]  # noqa: SLF001 - as above
    at, end = 0, len(messages)
    while at < end:
        lease, first = leases[at], places[at]
        stop = min(at + len(lease.marks) - first, end)
        count = stop - at
        if leases[at:stop].count(lease) != count or places[at:stop] != indexes(first, first + count):
            break  # these are not neighbours as from `get_many`: compare one by one
        yield lease, first, at, stop
        at = stop
    yield from _counted(messages, at)


def _delivery(channel_engine: HandingChannel[Message], message: object) -> int:
    if not isinstance(message, Message):
        raise InvalidOptionTypeError(
            f"what is acked is a message, not {shown_typed(message)}: write "
            "ack_many(messages) with what `await channel.get_many(100)` gave"
        )
    delivery = own_delivery(channel_engine, message)
    channel_engine.check(message.offset, delivery)
    return delivery


def own_delivery(channel_engine: HandingChannel[Message], message: Message) -> int:
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
