"""The filter of what a channel delivers: messages with its tags, not addressed to another channel, due, unexpired."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiodq.delivery.leases import HELD, SKIPPED
from aiodq.engine.channel.addressed import FOR
from aiodq.engine.loop.clock_timer import monotonic_ns

if TYPE_CHECKING:
    from aiodq.clock import Clock
    from aiodq.engine.lifetimes import Lifetimes
    from aiodq.format.columns import Columns
    from aiodq.format.frame import Batch

__all__ = ["NEVER", "DeliveryFilter"]

NEVER = sys.maxsize
"""The moment of what never expires."""


class DeliveryFilter:
    """The filter of one channel.

    Attributes:
        tags: the tags of the messages to deliver; None for all.
    """

    __slots__ = ("_clock", "_lifetimes", "_name", "tags")

    def __init__(self, name: str, lifetimes: Lifetimes, clock: Clock) -> None:
        """Accept everything that is not addressed to another channel than this one."""
        self.tags: frozenset[str] | None = None
        self._name = name
        self._lifetimes = lifetimes
        self._clock = clock

    def is_for_others(self, columns: Columns, number: int) -> bool:
        """Return whether the message is addressed to another channel, or has none of the wanted tags."""
        if columns.headers is not None and columns.headers[number].get(FOR, self._name) != self._name:
            return True
        return self.tags is not None and (columns.tags is None or columns.tags[number] not in self.tags)

    def others(self, columns: Columns, number: int, count: int) -> int:
        """Return how many of the next `count` messages from `number` on are for others, up to the first that is not."""
        return next((at for at in range(count) if not self.is_for_others(columns, number + at)), count)

    def is_over(self, batch: Batch, number: int, now: int) -> bool:
        """Return whether the message has expired."""
        expiries = batch.columns.expiries
        if expiries is None or not expiries[number]:
            return False
        put = batch.time_ns if batch.columns.times is None else batch.columns.times[number]
        return self._lifetimes.end(batch.first + number, put, expiries[number]) <= now

    def deliverable(self, batch: Batch, number: int, count: int) -> tuple[int, int]:
        """Return how many of the next `count` messages from `number` on may be delivered as they are, and until when.

        The run ends before the first message that is for others, has the hidden header that names this channel, is not
        due, or has expired. The moment is the first at which one of the run expires, in monotonic nanoseconds.
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

    def leave_out(self, batch: Batch, number: int, marks: bytearray) -> int:
        """Mark those of the messages from `number` on as `SKIPPED` that have no wanted tag; return until when it holds.

        The marks are cut after the last message that may be delivered as it is, and before the first that has to be
        handled by itself: it is not due or has expired, or its hidden header names a channel. The moment is that of
        `deliverable`.

        Args:
            batch: a batch.
            number: which of its messages is the first; it may be delivered as it is.
            marks: one for each message: `HELD` or, if it is not to be looked at, `GAP`.
        """
        columns, tags, until, stop = batch.columns, self.tags, NEVER, len(marks)
        if (dues := columns.dues) is not None:
            wall = self._clock.now_ns()
            stop = next((at for at in range(stop) if dues[number + at] > wall and marks[at] == HELD), stop)
        if tags is not None and (theirs := columns.tags) is not None:
            for at, tag in enumerate(theirs[number : number + stop]):
                if tag not in tags and marks[at] == HELD:
                    marks[at] = SKIPPED
        if (headers := columns.headers) is not None:
            stop = next((at for at in range(stop) if FOR in headers[number + at] and marks[at] == HELD), stop)
        if columns.expiries is not None:
            times = () if columns.times is None else columns.times[number : number + stop]
            put = max(times, default=batch.time_ns)
            expiries = [columns.expiries[number + at] if marks[at] == HELD else 0 for at in range(stop)]
            stop, until = self._lifetimes.left(batch.first + number, put, expiries, monotonic_ns(self._clock))
        del marks[marks.rfind(HELD, 0, stop) + 1 :]
        return until
