"""`Channel.ack_many`: settles several messages of one channel in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from aiodq.engine.channel.lease.claim import Claim, is_claimed
from aiodq.engine.channel.lease.held_runs import HeldRuns, held_runs, is_in
from aiodq.errors import AlreadySettledError, InvalidOptionTypeError, NotInFlightError
from aiodq.format.many import all_are
from aiodq.message import Message
from aiodq.values import several, shown_typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.channel.open_channel import OpenChannel

__all__ = ["ack_all", "list_messages", "own_delivery"]

_Alone: TypeAlias = tuple[Message, int]


def ack_all(channel_engine: OpenChannel[Message], messages: Iterable[Message]) -> None:
    """Settle messages of a channel: all of them, or none if one cannot be settled.

    Raises:
        AlreadySettledError: one was settled before, or is given twice.
        NotInFlightError: one is no longer in flight, or is another channel's.
        InvalidOptionError: these are no messages; a `TypeError` too.
    """
    found = list_messages(messages)
    claim, apart = _claimed(channel_engine, found)
    claim.settle()
    if apart is not None:
        _settle_apart(channel_engine, *apart)
    settled: Sequence[InFlight] = found
    for one in settled:
        one._store_ref = None  # noqa: SLF001 - it is settled here instead of by its own methods
    channel_engine.held_by_task.settled(found)


def _claimed(
    channel_engine: OpenChannel[Message], messages: list[Message]
) -> tuple[Claim[Message], tuple[HeldRuns, dict[int, _Alone]] | None]:
    """Return a claim of these messages, and those that are not in it as `_checked` does.

    Raises:
        As for `ack_all`.
    """
    claim: Claim[Message] = Claim(channel_engine)
    try:
        try:
            claim.take(messages)
        except (AttributeError, TypeError, IndexError):
            # One of them is no message, which `_checked` says. To ask each for its type first takes longer.
            claim.give_back()
            claim = Claim(channel_engine)
            claim.others = messages
        return claim, _checked(channel_engine, claim.others) if claim.others else None
    except BaseException:
        claim.give_back()
        raise


def _checked(channel_engine: OpenChannel[Message], messages: list[Message]) -> tuple[HeldRuns, dict[int, _Alone]]:
    """Return the runs of messages that are in no claim, and all others by offset: each with its delivery number.

    Raises:
        As for `ack_all`.
    """
    runs: HeldRuns = {}
    if all_are(messages, Message):
        runs, messages = held_runs(messages, lambda lease: lease.channel_engine is channel_engine)
    alone: dict[int, _Alone] = {}
    for message in messages:
        if isinstance(message, Message) and is_claimed(message):
            raise _named_twice(message)
        delivery = _delivery(channel_engine, message)
        if message.offset in alone or is_in(message._index, runs.get(message._run, ())):  # noqa: SLF001 - its place in its lease
            raise _named_twice(message)
        alone[message.offset] = message, delivery
    return runs, alone


def _settle_apart(channel_engine: OpenChannel[Message], runs: HeldRuns, alone: dict[int, _Alone]) -> None:
    """Settle what `_checked` has returned."""
    channel_engine.ack_many([(offset, delivery) for offset, (_, delivery) in alone.items()])
    for lease, those in runs.items():
        for first, count in those:
            channel_engine.ack_run(lease, first, count)
    for message, _ in alone.values():
        message._committed()  # noqa: SLF001 - as in `ack_all`


def _named_twice(message: Message) -> AlreadySettledError:
    return AlreadySettledError(f"message {message.offset} of {message.topic!r} is named twice; none was settled")


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
        alike = its.place == channel_engine.place
        whose = "which was deleted or is another store's" if alike else f"not by {channel_engine.place}"
        raise NotInFlightError(f"message {message.offset} was handed out by {its.place}, {whose}; none was settled")
    return delivery
