"""Acking several messages again whose acks no owner has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.delivery.leases import APART
from aiodq.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.shared.consuming.remote_settlement import RemoteSettlement
    from aiodq.shared.consuming.sent_settlements import SentSettlement, Together

__all__ = ["ack_again", "acked_before", "not_answered"]


def acked_before(channel: RemoteSettlement, messages: Iterable[object]) -> dict[Message, SentSettlement]:
    """Return those of these messages that were acked before without an answer, with what settles them."""
    found: dict[Message, SentSettlement] = {}
    for message in messages if channel.unanswered else ():
        engine: object = message._channel_engine if isinstance(message, Message) else None  # noqa: SLF001 - its other half
        if isinstance(message, Message) and engine is channel:
            settling = None if message.settled else channel.unanswered.find(message._delivery)  # noqa: SLF001 - as above
            if settling is not None:
                found[message] = settling
    return found


def ack_again(channel: RemoteSettlement, before: Iterable[Message]) -> None:
    """Note that these are acked, as `acked_before` has returned them."""
    for message in before:
        channel.unanswered.take(message._delivery)  # noqa: SLF001 - as above
        message._committed()  # noqa: SLF001 - as above


def not_answered(channel: RemoteSettlement, messages: Iterable[Message], acked: Together) -> None:
    """Note that no owner has answered, so that the messages may be acked again."""
    for settling in acked.those:
        channel.unanswered.note(settling)
    for message in messages:
        message._run.marks[message._index] = APART  # noqa: SLF001 - as above
