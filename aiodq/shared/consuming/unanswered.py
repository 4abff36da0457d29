"""Acks and rejections that no owner has answered: their outcome is unknown."""

from __future__ import annotations

from typing import Final

from aiodq.errors import NotInFlightError
from aiodq.shared.consuming.sent_settlements import SentSettlement

__all__ = ["Unanswered"]

_MOST: Final = 10_000
"""Messages of which it is remembered."""


class Unanswered(dict[int, SentSettlement]):
    """The unanswered acks and rejections of a channel, by message number; their callers may call again.

    A repeated call does not settle the message again: it waits for the answer to the first call.
    """

    def note(self, settling: SentSettlement) -> None:
        """Remember an ack or a rejection."""
        self.update((number, settling) for each in settling.numbers for number in each)
        while len(self) > _MOST:
            del self[next(iter(self))]

    def find(self, number: int, *, rejected: bool = False) -> SentSettlement | None:
        """Return the ack of a message, or its rejection, if no owner has answered it."""
        settling = self.get(number)
        return settling if settling is not None and settling.rejects is rejected else None

    def take(self, number: int, *, rejected: bool = False) -> SentSettlement | None:
        """Return what `find` does, as the message is acked or rejected again."""
        settling = self.find(number, rejected=rejected)
        if settling is not None:
            del self[number]
        return settling

    def refusal(self, offset: int, number: int) -> NotInFlightError:
        """Return the error for another call than the unanswered one."""
        done, verb = ("rejected", "reject") if self[number].rejects else ("acked", "ack")
        return NotInFlightError(f"message {offset} was {done} before: {verb} it again to wait for the owner's answer")
