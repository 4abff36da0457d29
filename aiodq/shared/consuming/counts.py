"""A channel's message counts, as known to a process that does not own the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodq.shared.consuming.placed_puts import PlacedPuts
    from aiodq.wire.packets import Figures

__all__ = ["Counts"]


class Counts:
    """The owner's last counts, corrected by what this process has done since.

    The owner's counts come over the same connection as its other packets, in order. So they include what this process
    did before they were sent; what it did since is counted here.

    Attributes:
        version: how many times the owner has sent counts.
        end: up to where its last counts include what was put.
    """

    def __init__(self, placed: PlacedPuts) -> None:
        """Start without counts; `placed` is what this process has put into the topic."""
        self.version: int = 0
        self.end: int = placed.end
        self._received: tuple[int, int, int] = (0, 0, 0)
        self._placed = placed
        self._delivered = self._released = self._settled = 0

    def assume(self, ready: int, flying: int, deferred: int) -> None:
        """Start with the owner's last report on the whole store, until it sends counts."""
        self._received = ready, flying, deferred
        self._placed.counted(self.depth)

    def reset(self) -> None:
        """Drop the local corrections, as another owner sends the counts from now on."""
        self._delivered = self._released = self._settled = 0

    def receive(self, figures: Figures) -> None:
        """Take over counts from the owner."""
        self.version += 1
        self._received = figures.ready, figures.flying, figures.deferred
        self.end = figures.end
        self.reset()
        self._placed.counted(self.depth)

    def delivered(self, count: int) -> None:
        """Note messages delivered to this process."""
        self._delivered += count
        self._placed.grew(count)  # of others' puts, more may come than were ready by the last counts

    def settled(self, count: int, *, back: bool) -> None:
        """Note messages that left this process: settled, or ready again (`back`)."""
        self._settled += count
        self._released += count * back

    @property
    def ready(self) -> int:
        """The number of messages that may be delivered."""
        here = self._placed.since(self.end)
        return max(self._received[0] + here + self._released - self._delivered, 0)

    @property
    def flying(self) -> int:
        """The number of messages in flight."""
        return max(self._received[1] + self._delivered - self._settled, 0)

    @property
    def deferred(self) -> int:
        """The number of deferred messages."""
        return self._received[2]

    @property
    def depth(self) -> int:
        """The number of messages that are not settled."""
        return self.ready + self.flying + self.deferred
