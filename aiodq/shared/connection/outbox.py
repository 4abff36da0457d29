"""What a link is to say in the next turn of the loop, or before anything else."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.futures import ready_to_wake

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Unsaid"]

_FRAMES: Final = 30
"""Frames in which all of it is said: acks are counted, and sent in a packet."""

_DEEP: Final = 100
"""Frames before the end of the stack from which on it is seen whether there are as many."""


class Unsaid(list["Callable[[], None]"]):
    """Calls that say something to the owner, in order."""

    def soon(self, say: Callable[[], None]) -> None:
        """Call `say` in the next turn of the loop, or before anything else is sent: the order is kept."""
        if not self:
            asyncio.get_running_loop().call_soon(self._say_all)
        self.append(say)

    def say(self) -> None:
        """Say all of it before something else.

        Raises:
            RecursionError: the stack has no room for it; it is said in the next turn.
        """
        if not self:
            return
        try:
            sys._getframe(sys.getrecursionlimit() - _DEEP)  # noqa: SLF001 - it costs no frames, of which each is counted
        except ValueError:
            self._say_all()
        else:
            ready_to_wake(_FRAMES)
            self._say_all()

    def _say_all(self) -> None:
        those = self.copy()
        self.clear()
        for say in those:
            say()
