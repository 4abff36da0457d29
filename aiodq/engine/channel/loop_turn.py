"""How long whoever gets messages of a channel has held the event loop since others had their turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LONGEST_TURN", "LoopTurn"]

LONGEST_TURN: Final = 0.001
"""Seconds after which a getter that always finds something gives way to others, also amid a longer batch."""

_WHOLE_BATCH: Final = 1000
"""So many messages one call takes without giving way: whoever returns first has what comes first."""

_LOOK_AFTER: Final = 100
"""Messages of a longer batch after which its call looks whether others are to have their turn."""


class LoopTurn:
    """One per channel.

    Attributes:
        began: when others last had their turn, monotonic seconds.
    """

    __slots__ = ("_monotonic", "began")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Start long over, so that the first getter gives way."""
        self.began: float = 0.0
        self._monotonic = monotonic

    def begin(self) -> float:
        """The event loop goes round: getters in what follows need not give way to others for that. Return the time."""
        self.began = self._monotonic()
        return self.began

    @property
    def is_over(self) -> bool:
        """Whether others are to have their turn."""
        return self._monotonic() - self.began > LONGEST_TURN

    def is_over_amid(self, taken: int, most: int) -> bool:
        """Return whether a call that has taken so many messages, of up to `most`, is to let others have their turn.

        Seldom: whoever gets the next ones meanwhile has them sooner than who gets these.
        """
        return most > _WHOLE_BATCH and taken > _LOOK_AFTER and self.is_over

    async def leave(self) -> float:
        """Let others have their turn; return the time.

        All who come meanwhile do so too, in their order: the first of them begins the next turn.
        """
        before = self.began
        await asyncio.sleep(0)
        return self.begin() if self.began == before else self._monotonic()
