"""`Channel.ack_many`: settles several messages of one channel in one call."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Final, TypeAlias

from aiodq.delivery.leases import APART, HELD, MEASURED, indexes
from aiodq.engine.channel.lease.in_flight import neighbours
from aiodq.errors import AlreadySettledError, InvalidOptionTypeError, NotInFlightError
from aiodq.message import Message
from aiodq.values import several, shown_typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiodq.engine.channel.handing import HandingChannel
    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["ack_all", "list_messages", "own_delivery"]

_Runs: TypeAlias = "dict[MessageLease, list[tuple[int, int]]]"
"""Runs of messages by lease: the first index of each, and how many follow it with it."""

_Piece: TypeAlias = "tuple[MessageLease, int, int, int]"
"""A lease, the first index in it of messages that follow each other there, and where in a list these begin and end."""

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
        if message.offset in claimed or _is_in(message._index, runs.get(message._run, ())):  # noqa: SLF001 - as in `_divided`
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


def _divided(channel_engine: HandingChannel[Message], messages: list[Message]) -> tuple[_Runs, list[Message]]:
    """Return the runs of consecutive messages of leases, and all other messages.

    A run is checked and settled as a whole, which is much faster than message by message.
    """
    runs: _Runs = {}
    if list(map(type, messages)).count(Message) != len(messages):
        return runs, messages
    apart: list[Message] = []
    pieces, end = (_counted if _COMPILED else _compared)([*messages])
    rest = messages[end:]
    for lease, first, at, stop in pieces:
        if lease in runs:
            rest += messages[at:stop]
        elif _is_held(channel_engine, lease, first, stop - at):
            runs[lease] = [(first, stop - at)]
        else:
            apart += messages[at:stop]
    return runs, [*apart, *_in_no_order(channel_engine, rest, runs)]


def _is_held(channel_engine: HandingChannel[Message], lease: MessageLease, first: int, count: int) -> bool:
    """Return whether these messages of a lease can be settled as a run."""
    stop, marks = first + count, lease.marks
    if lease.channel_engine is not channel_engine:
        return False
    if marks.count(HELD, first, stop) + marks.count(MEASURED, first, stop) == count:
        return True
    offset = lease.first + first
    return marks.count(APART, first, stop) == count and channel_engine.holds_all(
        offset, offset + count, lease.number + first
    )


def _is_in(index: int, runs: Iterable[tuple[int, int]]) -> bool:
    return any(first <= index < first + count for first, count in runs)


def _in_no_order(channel_engine: HandingChannel[Message], messages: list[Message], runs: _Runs) -> list[Message]:
    """Add the runs that messages form which do not follow each other; return those that form none."""
    leases: dict[MessageLease, list[Message]] = {}
    for message in messages:
        leases.setdefault(message._run, []).append(message)  # noqa: SLF001 - as in `ack_all`
    apart: list[Message] = []
    for lease, those in leases.items():
        places = sorted([each._index for each in those])  # noqa: SLF001 - as above
        found, before = _runs_of(places), runs.get(lease, [])
        alone = len(set(places)) == len(places) and not (before and any(_is_in(place, before) for place in places))
        if alone and all(_is_held(channel_engine, lease, first, count) for first, count in found):
            runs[lease] = before + found
        else:
            apart += those
    return apart


def _runs_of(places: list[int]) -> list[tuple[int, int]]:
    """Return the runs of indexes that follow each other: the first, and how many."""
    if places[-1] - places[0] + 1 == len(places):
        return [(places[0], len(places))]
    edges = [at for at in range(1, len(places)) if places[at] - places[at - 1] != 1]
    return [(places[at], stop - at) for at, stop in zip([0, *edges], [*edges, len(places)], strict=True)]


def _counted(messages: list[InFlight]) -> tuple[list[_Piece], int]:
    """Do as `_compared`, with a step for each message: the quickest if it is compiled."""
    pieces: list[_Piece] = []
    at = 0
    while at < len(messages):
        stop = neighbours(messages, at)
        pieces.append((messages[at]._run, messages[at]._index, at, stop))  # noqa: SLF001 - as in `ack_all`
        at = stop
    return pieces, at


def _compared(messages: list[InFlight]) -> tuple[list[_Piece], int]:
    """Return the runs of messages, as `get_many` gives them, and where the first message is that is in none.

    With all of a run compared at once: the quickest otherwise.
    """
    leases: list[MessageLease] = [each._run for each in messages]  # noqa: SLF001 - as in `ack_all`
    places = [each._index for each in messages]  # noqa: SLF001 - as above
    pieces: list[_Piece] = []
    at, end = 0, len(messages)
    while at < end:
        lease, first = leases[at], places[at]
        stop = min(at + len(lease.marks) - first, end)
        count = stop - at
        if leases[at:stop].count(lease) != count or places[at:stop] != indexes(first, first + count):
            break
        pieces.append((lease, first, at, stop))
        at = stop
    return pieces, at


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
