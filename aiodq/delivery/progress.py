"""How far a channel has come, which its journal records: what is settled, and how often the rest was delivered."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from aiodq.delivery.range_set import RangeSet
from aiodq.delivery.unnoted import Unnoted

if TYPE_CHECKING:
    from aiodq.delivery.attempts import Attempts

__all__ = ["Progress"]


class Progress:
    """The progress of one channel.

    Attributes:
        floor: the offset below which everything is settled.
        settled: the settled offsets above it.
        attempts: how often messages that are not settled were delivered.
        unnoted: what of all this is not on disk yet.
    """

    __slots__ = ("attempts", "floor", "settled", "unnoted")

    def __init__(self, floor: int, settled: RangeSet, attempts: Attempts) -> None:
        """Start with what is noted on disk."""
        self.floor: int = floor
        self.settled: RangeSet = settled
        self.attempts: Attempts = attempts
        self.unnoted: Unnoted = Unnoted(floor)

    def delivered(self, offsets: range, attempts: int) -> None:
        """Note how often messages were delivered, this time included."""
        if len(offsets) == 1:
            self.attempts.noted[offsets.start] = attempts
        else:
            self.attempts.noted.update(offsets, repeat(attempts))
        self.unnoted.deliveries += offsets

    def settle(self, start: int, stop: int) -> None:
        """Settle messages from `start` to `stop`."""
        if self.attempts.before.size:
            self.attempts.before.discard_range(start, stop)
        self.settle_plain(start, stop)

    def settle_plain(self, start: int, stop: int) -> None:
        """Settle messages delivered at most once, which have no number of attempts but the noted ones."""
        if self.attempts.noted.size:
            self.attempts.noted.discard_range(start, stop)
        if start == self.floor and (not self.settled or self.settled.last <= stop):
            self.floor = stop
            self.settled.clear()
            return
        self.settled.add(start, stop)
        self.unnoted.acks.append((start, stop))
        if start == self.floor:
            self._advance()

    def settle_runs(self, edges: list[int]) -> None:
        """Settle ranges of messages that were in flight, as `settle_plain`: each start and its stop, in order."""
        # INVARIANT: messages in flight are not settled yet.
        self.settled.add_new(edges)
        for start, stop in zip(edges[0::2], edges[1::2], strict=True) if self.attempts.noted.size else ():
            self.attempts.noted.discard_range(start, stop)
        self.unnoted.acks += zip(edges[0::2], edges[1::2], strict=True)
        if edges[0] == self.floor:
            self._advance()

    def _advance(self) -> None:
        self.floor = self.settled.next_missing(self.floor)
        self.settled.discard_below(self.floor)

    def covers(self, start: int, stop: int) -> bool:
        """Return whether everything from `start` to `stop` is settled."""
        return stop <= self.floor or self.settled.covers(max(start, self.floor), stop)

    def seek(self, offset: int) -> None:
        """Continue at an offset: everything below it is settled; everything else counts as never delivered."""
        self.floor, self.settled = offset, RangeSet()
        self.attempts.clear()
        self.all_noted()
        self.unnoted.seek = offset

    def all_noted(self) -> None:
        """Clear what is not noted yet: a checkpoint holds it instead."""
        self.unnoted.clear(self.floor)

    def renote(self) -> None:
        """Note everything again, as the last notes did not reach the disk."""
        attempts = self.attempts
        self.unnoted = Unnoted.everything(self.floor, self.settled, attempts.before, attempts.noted)
