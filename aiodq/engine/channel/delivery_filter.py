"""Which messages a channel delivers: those with its tags, for it, due, and whose time to live has not ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiodq.engine.channel.addressed import FOR
from aiodq.engine.clock_timer import monotonic_ns

if TYPE_CHECKING:
    from aiodq.clock import Clock
    from aiodq.engine.lifetimes import Lifetimes
    from aiodq.format.columns import Columns
    from aiodq.format.frame import Batch

__all__ = ["NEVER", "DeliveryFilter"]

NEVER = sys.maxsize
"""The moment at which nothing ends."""


class DeliveryFilter:
    """One per channel.

    Attributes:
        tags: those of the messages that are wanted; None where all are.
    """

    __slots__ = ("_clock", "_lifetimes", "_name", "tags")

    def __init__(self, name: str, lifetimes: Lifetimes, clock: Clock) -> None:
        """Want everything that is for the channel of this name."""
        self.tags: frozenset[str] | None = None
        self._name = name
        self._lifetimes = lifetimes
        self._clock = clock

    def is_for_others(self, columns: Columns, number: int) -> bool:
        """Return whether the message is for another channel, or has none of the tags that are wanted."""
        if columns.headers is not None and columns.headers[number].get(FOR, self._name) != self._name:
            return True
        return self.tags is not None and (columns.tags is None or columns.tags[number] not in self.tags)

    def others(self, columns: Columns, number: int, count: int) -> int:
        """Return how many of so many neighbours from `number` on are for others, up to the first that is not."""
        return next((at for at in range(count) if not self.is_for_others(columns, number + at)), count)

    def is_over(self, batch: Batch, number: int, now: int) -> bool:
        """Return whether the message's time to live has ended."""
        expiries = batch.columns.expiries
        if expiries is None or not expiries[number]:
            return False
        put = batch.time_ns if batch.columns.times is None else batch.columns.times[number]
        return self._lifetimes.end(batch.first + number, put, expiries[number]) <= now

    def deliverable(self, batch: Batch, number: int, count: int) -> tuple[int, int]:
        """Return how many of so many neighbours from `number` on may be delivered as they are, and until when.

        It is those before the first that is for others, names this channel in a header that is not to be seen, is not
        due, or is over. The moment is the first at which the time to live of one ends, monotonic nanoseconds.
        """
        columns, tags, until = batch.columns, self.tags, NEVER
        if tags is not None:
            theirs = columns.tags
            count = 0 if theirs is None else next((at for at in range(count) if theirs[number + at] not in tags), count)
        if (headers := columns.headers) is not None:
            count = next((at for at in range(count) if FOR in headers[number + at]), count)
        if (dues := columns.dues) is not None:
            wall = self._clock.now_ns()
            count = next((at for at in range(count) if dues[number + at] > wall), count)
        if columns.expiries is not None and count:
            put = batch.time_ns if columns.times is None else max(columns.times[number : number + count])
            expiries = columns.expiries[number : number + count]
            count, until = self._lifetimes.left(batch.first + number, put, expiries, monotonic_ns(self._clock))
        return count, until
