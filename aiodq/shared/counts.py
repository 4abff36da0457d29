"""How many messages a channel has, as far as a process knows that does not own the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodq.wire.packets import Figures

__all__ = ["Counts"]


class Counts:
    """What the owner has said last, and what this process has done since.

    The owner says it before and behind whatever else it says, over one connection: so what was done here before it was
    said is in it, and what was done since is counted here.

    Attributes:
        heard_of: how often the owner has said it.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.heard_of: int = 0
        self._said: tuple[int, int, int] = (0, 0, 0)
        self._end = 0
        self._placed: list[range] = []
        self._delivered = self._released = self._settled = 0

    def reset(self) -> None:
        """Another owner says it from now on; what is known is from before."""
        self._delivered = self._released = self._settled = 0

    def heard(self, said: Figures) -> None:
        """The owner has said how many there are."""
        self.heard_of += 1
        self._said = said.ready, said.flying, said.deferred
        self._end = said.end
        self._placed = [each for each in self._placed if each.stop > said.end]
        self.reset()

    def placed(self, offsets: range) -> None:
        """This process's messages are in the log."""
        if offsets.stop > self._end:
            self._placed.append(offsets)

    def delivered(self, count: int) -> None:
        """So many are in this process's hands."""
        self._delivered += count

    def settled(self, count: int, *, back: bool) -> None:
        """So many are out of its hands: settled, or ready again."""
        self._settled += count
        self._released += count * back

    @property
    def ready(self) -> int:
        """Messages that may be delivered."""
        here = sum(each.stop - max(each.start, self._end) for each in self._placed)
        return max(self._said[0] + here + self._released - self._delivered, 0)

    @property
    def flying(self) -> int:
        """Messages in flight."""
        return max(self._said[1] + self._delivered - self._settled, 0)

    @property
    def deferred(self) -> int:
        """Messages that wait for a moment."""
        return self._said[2]
