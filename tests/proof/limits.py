"""A limit of real time for what must not hang: simulated time stands still in what spins or waits for a lock.

A busy machine is no hang: what got less of the processor than it may use has four times as long.
"""

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
_PATIENCE = 4
"""Times as long for what waits, or is kept from the processor."""


class HungError(KeyboardInterrupt):
    """Something did not end in time. An interrupt, as those alone go through an event loop and all of its tasks."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `HungError` out of what takes longer, and again each second while that is being tidied up.

    Longer is that many seconds of the processor, or four times as many of waiting. What was limited already stays so.
    Outside the main thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    over = False

    def interrupt(_: int, __: FrameType | None) -> None:
        nonlocal over
        starved = time.process_time() - used < seconds and time.monotonic() - begun < _PATIENCE * seconds
        if starved and not over:
            return
        over = True
        raise HungError(f"no end within {seconds:g} seconds")

    begun = time.monotonic()
    used = time.process_time()
    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, min(_AGAIN, seconds))
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
