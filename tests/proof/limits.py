"""A limit of real time for what must not hang: simulated time stands still in what spins or waits for a lock."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["HungError", "limit"]

_AGAIN = 1.0


class HungError(KeyboardInterrupt):
    """Something did not end in time. An interrupt, as those alone go through an event loop and all of its tasks."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `HungError` out of what takes longer, and again each second while that is being tidied up.

    What was limited already stays so. Outside the main thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    over = False

    def interrupt(_: int, __: FrameType | None) -> None:
        nonlocal over
        over = True
        raise HungError(f"no end within {seconds:g} seconds")

    begun = time.monotonic()
    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    except Exception as error:
        if over:  # what is interrupted may fail otherwise as it is tidied up
            raise HungError(f"no end within {seconds:g} seconds") from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 0.001), interval)
