"""gevent and eventlet replace threads by greenlets, all of which share one thread of the system."""

from __future__ import annotations

import _queue
import _thread
import queue
import select
from types import BuiltinFunctionType
from typing import Any

__all__ = ["left_as_they_are", "queue_among_threads", "threads_are_greenlets"]


def threads_are_greenlets() -> bool:
    """Return whether a new thread would be a greenlet."""
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def queue_among_threads() -> queue.SimpleQueue[Any]:
    """Return a queue in which new threads can wait: a greenlet, in one that lets others run meanwhile.

    `gevent.monkey.patch_all(thread=False)` replaces the queue and not the threads: in a thread, its queue fails.
    """
    return queue.SimpleQueue() if threads_are_greenlets() else _queue.SimpleQueue()


def left_as_they_are() -> list[str]:
    """Return the modules by which a greenlet would hold up all others as it waits: they were not replaced as well."""
    waiting = {
        "select": isinstance(select.select, BuiltinFunctionType),
        "queue": queue.SimpleQueue is _queue.SimpleQueue,
    }
    return [name for name, left in waiting.items() if left]
