"""Where a store is at home: the event loop that opened it, as it is looked at for each message."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["BY_THREAD", "NOWHERE", "HomeLoop"]

BY_THREAD: Final = sys.version_info < (3, 12)
"""Whether `HomeLoop.thread` and `is_running` are cheaper to look at than which loop runs here: until Python 3.12, that
asks the system each time for the number of the process."""


class HomeLoop:
    """One per store. Whoever looks runs on it where its thread is this one, and it is running.

    Attributes:
        loop: the event loop; for `NOWHERE` something that none is.
        thread: the thread that the loop runs in; 0 in a forked child, and for `NOWHERE`: no thread is.
        is_running: the loop's.
    """

    __slots__ = ("is_running", "loop", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Must be called on the loop."""
        self.loop: object = self if loop is None else loop
        self.thread: int = 0 if loop is None else get_ident()
        self.is_running: Callable[[], bool] = bool if loop is None else loop.is_running

    def leave(self) -> None:
        """Be nobody's home any more, in a forked child: it has the parent's thread, to all appearance."""
        self.thread = 0


NOWHERE: Final = HomeLoop(None)
"""Where nothing runs."""
