"""Packets that a link sends in the next turn of the loop, or before anything else that it sends."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.futures import ready_to_wake

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outbox"]

_FRAMES: Final = 30
"""Frames of Python that sending takes: acks are counted, and sent in a packet."""

_DEEP: Final = 100
"""Frames before the end of the stack from which on it is checked whether there are `_FRAMES`."""


class Outbox(list["Callable[[], None]"]):
    """Calls that each send a packet to the owner, in order."""

    def soon(self, send: Callable[[], None]) -> None:
        """Call `send` in the next turn of the loop, or before anything else is sent: the order is kept."""
        if not self:
            asyncio.get_running_loop().call_soon(self._send_all)
        self.append(send)

    def flush(self) -> None:
        """Send all of it now, before something else.

        Raises:
            RecursionError: the stack has no room for it; it is sent in the next turn.
        """
        if not self:
            return
        try:
            sys._getframe(sys.getrecursionlimit() - _DEEP)  # noqa: SLF001 - it costs no frames, of which each is counted
        except ValueError:
            self._send_all()
        else:
            ready_to_wake(_FRAMES)
            self._send_all()

    def _send_all(self) -> None:
        waiting = self.copy()
        self.clear()
        for send in waiting:
            send()
