"""Acks and rejections that no owner has answered: nobody knows what became of the messages."""

from __future__ import annotations

from typing import Final

from aiodq.errors import NotInFlightError
from aiodq.shared.consuming.settlings import Settling

__all__ = ["Unanswered"]

_MOST: Final = 10_000
"""Messages of which it is remembered."""


class Unanswered(dict[int, Settling]):
    """Those of a channel whose callers were told that nobody answers, by message number: they may call again.

    What is called again is not settled anew: it waits for the answer to the first call.
    """

    def note(self, settling: Settling) -> None:
        """Remember an ack or a rejection."""
        self.update((number, settling) for each in settling.numbers for number in each)
        while len(self) > _MOST:
            del self[next(iter(self))]

    def find(self, number: int, *, rejected: bool = False) -> Settling | None:
        """Return the ack of a message, or its rejection, if nobody has answered that."""
        settling = self.get(number)
        return settling if settling is not None and settling.rejects is rejected else None

    def take(self, number: int, *, rejected: bool = False) -> Settling | None:
        """Return what `find` does, as the message is acked or rejected again."""
        settling = self.find(number, rejected=rejected)
        if settling is not None:
            del self[number]
        return settling

    def refusal(self, offset: int, number: int) -> NotInFlightError:
        """Return the error for a call that is not the one that nobody has answered."""
        done, verb = ("rejected", "reject") if self[number].rejects else ("acked", "ack")
        return NotInFlightError(f"message {offset} was {done} before: {verb} it again to wait for the owner's answer")
