"""Work of many small steps, done in turns of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BACK_AT_ONCE", "LONGEST_TURN", "in_turns"]

BACK_AT_ONCE: Final = 50
"""Messages given back by one request: each costs the owner about 40 microseconds, and it handles others in between."""

LONGEST_TURN: Final = 0.001
"""Seconds of work in one turn of the loop, before others have theirs."""


def in_turns(steps: Iterator[object]) -> asyncio.Future[None]:
    """Do what can be done within a turn at once, and the rest in the next turns; return a future of the end.

    Cancellation of the future: no further step is done.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _turn(steps, done)
    return done


def _turn(steps: Iterator[object], done: asyncio.Future[None]) -> None:
    if done.cancelled():
        return
    loop = done.get_loop()
    end = loop.time() + LONGEST_TURN
    try:
        for _ in steps:
            if loop.time() >= end:
                loop.call_soon(_turn, steps, done)
                return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised in the waiter
        done.set_exception(error)
    else:
        done.set_result(None)
