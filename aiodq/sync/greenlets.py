"""gevent and eventlet replace threads by greenlets, all of which share one thread of the system."""

from __future__ import annotations

import _thread
import asyncio
from types import BuiltinFunctionType
from typing import TYPE_CHECKING

from aiodq.running import loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["factory_for_thread", "threads_are_greenlets"]


def threads_are_greenlets() -> bool:
    """Return whether a new thread would be a greenlet."""
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def factory_for_thread() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that makes the event loop of a thread; in a greenlet, it has to leave turns to the others."""
    # uvloop waits in the system. asyncio waits by a selector, which was replaced as threads were.
    return asyncio.SelectorEventLoop if threads_are_greenlets() else loop_factory()
