"""Expirations: messages are settled when their time to live ends, wherever they are in the backlog."""

from __future__ import annotations

import asyncio
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiodq.awaited import twice
from aiodq.delivery.end_times import EndTimes
from aiodq.delivery.range_set import RangeSet
from aiodq.engine.loop.clock_timer import ClockTimer, monotonic_ns
from aiodq.format.columns import Flags
from aiodq.storage.read.expiring import expiring_from, expiring_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.engine.topic.whole_topic import WholeTopic
    from aiodq.format.frame import Batch
    from aiodq.storage.read.expiring import Expiring

__all__ = ["Expirations"]

_AT_ONCE: Final = 500
"""The most parts of a batch entered in one turn of the loop: about a millisecond's work."""

_AGAIN: Final = 1_000_000_000
"""Nanoseconds after which a failed read from disk is retried."""


class Expirations:
    """The expirations of one topic, for all its channels.

    New messages are entered as they come. Stored ones are read by a thread, piece by piece, if segments say that they
    hold messages with a time to live: after opening, and from the offset at which a channel begins or to which it is
    moved, as that may be before messages that expired long ago.
    """

    def __init__(self, engine: WholeTopic) -> None:
        """Start with nothing entered."""
        self._engine = engine
        self._to_enter: list[Iterator[Expiring]] = []
        self._not_before = 0
        self._works: list[Callable[[], None]] = []
        self._reading = self._entering = self._stored = False
        self.opened()

    # Made once a message may expire: in most topics none does.

    @cached_property
    def _ends(self) -> EndTimes:
        return EndTimes()

    @cached_property
    def _to_read(self) -> RangeSet:
        return RangeSet()

    @cached_property
    def _timer(self) -> ClockTimer:
        return ClockTimer(self._engine.clock, self._rung)

    def _rung(self) -> None:
        self._engine.guarded(self._ring)()

    def opened(self) -> None:
        """Check the topic's new log for times to live."""
        self._stored = any(segment.flags & Flags.EXPIRIES for segment in self._engine.log.segments)

    def note(self, batch: Batch) -> None:
        """Enter a batch that is now visible and has messages with a time to live."""
        self._to_enter.append(expiring_in(batch))
        if not self._entering:
            self._enter()

    def look_from(self, offset: int) -> None:
        """Read what is stored from this offset on, as a channel delivers from there."""
        if (self._stored or self._engine.lifetimes.seen) and offset < self._engine.visible:
            self._to_read.add(offset, self._engine.visible)
            self._read()

    def in_turn(self, work: Callable[[], None]) -> None:
        """Do some work of a channel in a later turn of the loop: one channel in each turn, however many there are."""
        self._works.append(work)
        if len(self._works) == 1:
            twice(asyncio.get_running_loop().call_soon, self._engine.guarded(self._work))

    def _work(self) -> None:
        work = self._works.pop(0)
        if self._works:
            twice(asyncio.get_running_loop().call_soon, self._engine.guarded(self._work))
        work()

    def stop(self) -> None:
        """Settle nothing more."""
        if "_timer" in vars(self):
            self._timer.stop()
        self._to_enter.clear()

    def _enter(self) -> None:
        """Enter some of the parts, and the others in later turns of the loop."""
        self._entering, left = False, _AT_ONCE
        now, end = monotonic_ns(self._engine.clock), self._engine.lifetimes.end
        while self._to_enter and left:
            entered = 0
            for first, number, put, expiry in islice(self._to_enter[0], left):
                self._ends.add(first, first + number, end(first, put, expiry), now)
                entered += 1
            if entered < left:
                del self._to_enter[0]
            left -= entered
        if self._to_enter:
            self._entering = True
            twice(asyncio.get_running_loop().call_soon, self._engine.guarded(self._enter))
        else:
            self._read()
        self._ring()

    def _ring(self) -> None:
        """Tell the channels what has expired, and set the timer for the rest."""
        if self._engine.stopped:
            return
        ended = self._ends.take(monotonic_ns(self._engine.clock), _AT_ONCE)
        if ended:
            for channel_engine in list(self._engine.channel_engines.values()):
                channel_engine.undeliverable.ended(ended)
        if (rest := self._ends.take_rest()) is not None:
            self._to_read.add(*rest)
        self._read()
        if (moment := self._ends.next()) is not None:
            self._timer.set(moment)

    def _read(self) -> None:
        """Read the next piece, once everything read before is entered."""
        if self._reading or self._to_enter or not self._to_read or self._engine.stopped:
            return
        if monotonic_ns(self._engine.clock) < self._not_before:
            self._timer.set(self._not_before)
            return
        self._reading = True
        start, stop = next(iter(self._to_read))
        self._to_read.discard_below(stop)
        piece = partial(expiring_from, view=self._engine.view(), offset=start)
        self._engine.reader.start_look(piece, partial(self._have_read, start, stop))

    def _have_read(
        self, start: int, stop: int, found: tuple[list[Expiring], int] | None, _: Exception | None
    ) -> None:  # fmt: skip
        self._reading = False
        if self._engine.stopped:
            return
        if found is None:
            # The getters of these messages get the error of the disk.
            self._to_read.add(start, stop)
            self._not_before = monotonic_ns(self._engine.clock) + _AGAIN
            self._timer.set(self._not_before)
            return
        parts, following = found
        self._to_read.add(following, stop)
        self._to_enter.append(iter(parts))
        if not self._entering:
            self._enter()
