"""A thread pool with one queue. It is between a put and its sync, so every step counts.

`ThreadPoolExecutor` makes a future with a lock and a condition for each piece of work, which is not needed here. In
one run on a busy machine, with one `fdatasync` at a time of blocks already allocated: 131 microseconds through these
threads, 162 through an executor. The way without a thread is `"aio"` of `aiodq.engine.loop.sync_backend`.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet, finalize

from aiodq.engine.loop.greenlets import queue_among_threads

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    Errand: TypeAlias = "tuple[Callable[[Any], object], Any]"

__all__ = ["ThreadPool"]

_POOLS: Final[WeakSet[ThreadPool]] = WeakSet()


class ThreadPool:
    """Up to `most` threads, created as needed. A pool that is garbage collected ends its threads."""

    def __init__(self, most: int, name: str) -> None:
        """Start without a thread.

        Args:
            most: the most threads there may be.
            name: the prefix of their names.
        """
        self._most = most
        self._name = name
        self._queue: queue.SimpleQueue[Errand | None] = queue_among_threads()
        # As many entries as threads wait for work. Appending and popping are atomic, so that no lock is needed.
        self._idle: list[None] = []
        self._threads: list[threading.Thread] = []
        self._ended = False
        finalize(self, self._queue.put, None).atexit = False
        _POOLS.add(self)

    def submit(self, function: Callable[[Any], object], argument: object) -> None:
        """Call `function(argument)` in a thread. It must not raise.

        Raises:
            RuntimeError: after `shutdown`, or if there is no thread and the system gives none; it may still be called.
        """
        if self._ended:
            raise RuntimeError("no work is accepted after shutdown")
        self._queue.put((function, argument))
        try:
            self._idle.pop()
        except IndexError:
            if len(self._threads) < self._most:
                self._start()

    def _start(self) -> None:
        # A daemon: otherwise the interpreter would wait for it before `_end_all` could tell it to end. And taken by its
        # module, where gevent replaces it, even after this was imported.
        thread = threading.Thread(
            target=_serve, args=(self._queue, self._idle), name=f"{self._name}_{len(self._threads)}", daemon=True
        )
        # INVARIANT: whatever interrupts this, a thread that runs is one that `shutdown` waits for.
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            if not thread.is_alive():
                self._threads.remove(thread)
            if not self._threads:  # else one of these will do the work
                raise

    def shutdown(self, *, wait: bool = True) -> None:
        """End the threads once they have done all their work. Called in one of them, it waits for the others."""
        self._ended = True
        self._queue.put(None)
        if wait:
            for thread in self._threads:
                # The last handle of a store may be collected in any thread, also in one of these.
                if thread is not threading.current_thread() and thread.is_alive():
                    thread.join()


def _serve(errands: queue.SimpleQueue[Errand | None], idle: list[None]) -> None:
    while (errand := errands.get()) is not None:
        function, argument = errand
        function(argument)
        # A waiting thread must not keep a store alive.
        del errand, function, argument
        idle.append(None)
    errands.put(None)  # the next thread ends, too


def _end_all() -> None:
    for pool in list(_POOLS):
        with suppress(RuntimeError):
            pool.shutdown()


atexit.register(_end_all)
