"""How the handles of one store run calls on its event loop, and what becomes of it once they are dropped."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar
from weakref import WeakSet, ref

from aiodq.engine.loop.greenlets import threads_are_greenlets
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, WrongContextError
from aiodq.running import loop_runs_here, trio_runs_here
from aiodq.sync.background_loop import BackgroundLoop, Turn
from aiodq.uncopied import Uncopied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.message import Message

__all__ = ["LoopThread", "refuse_running_loop", "wait_for_dropped"]

P = ParamSpec("P")
T = TypeVar("T")


_LOOPS: Final[WeakSet[BackgroundLoop]] = WeakSet()
_HANDLES: Final[WeakSet[LoopThread]] = WeakSet()
_REGISTRY: Final = threading.RLock()
"""Held while either of the two sets is changed or iterated; a fork waits for that, or the child could never have it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_REGISTRY.acquire, after_in_parent=_REGISTRY.release, after_in_child=_REGISTRY.release)


class LoopThread(Uncopied):
    """The thread of one store, which every handle refers to; once all are dropped, it closes the store and ends.

    Attributes:
        transactions: for each thread, the transaction whose block it is in.
    """

    def __init__(self, path: str) -> None:
        """Start a thread for the store of a directory."""
        self._loop = BackgroundLoop(path)
        self._close: Callable[[], Awaitable[None]] | None = None
        self.transactions: _Transactions = _Transactions()
        self._loop.start()
        with _REGISTRY:
            _LOOPS.add(self._loop)
            _HANDLES.add(self)

    def __del__(self) -> None:
        """End the thread, once the store is closed, which the engine's own handles bring about."""
        loop = getattr(self, "_loop", None)  # None if a signal's handler has raised before there was one
        if loop is not None and loop.pid == os.getpid():
            loop.drop()

    def own(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register what closes the store when the interpreter exits."""
        self._close = close

    def end(self) -> None:
        """End the thread, as the store was not opened."""
        self._loop.post(self._loop.stop)

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop, and wait for its result or error.

        Raises:
            WrongContextError: an event loop, or trio, runs in this thread, or the store was opened before a fork.
            QueueShutDown: the loop has ended, as the store is closed.
        """
        self._check()
        return Turn[T](self._loop, partial(function, *args, **kwargs), awaits=True).wait()

    def leave(self, function: Callable[P, Awaitable[object]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run what a block does at an exception, as `run` does; without waiting for it where that would block a loop.

        A generator that was left in a block is collected in whichever thread, also in that of a loop.
        """
        if _would_block():
            self.post(partial(function, *args, **kwargs))
        else:
            self.run(function, *args, **kwargs)

    def take(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], object],
        note: Callable[[T], object] | None = None,
    ) -> T:
        """Run as `run` does; `undo` takes a result that an interrupted caller has not got, `note` one that it gets."""
        self._check()
        return Turn(self._loop, function, awaits=True, undo=undo, note=note).wait()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that returns at once on the loop; see `run`."""
        self._check()
        return Turn[T](self._loop, partial(function, *args, **kwargs), awaits=False).wait()

    def look(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that only reads, on the loop; after the loop's end, call it here."""
        if not self._loop.ended:
            with suppress(QueueShutDown):
                return self.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def show(self, thing: object) -> str:
        """Return the `repr` of something, from any context."""
        if self._loop.pid != os.getpid() or loop_runs_here() or trio_runs_here():
            return repr(thing)
        return self.look(repr, thing)

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child, which has nothing to end: the store and the thread are the parent's."""
        return self._loop.pid != os.getpid()

    def _check(self) -> None:
        if self.inherited:
            raise WrongContextError(
                "this store was opened before a fork, and is the parent's: open one in the child after the fork"
            )
        refuse_running_loop()

    def post(self, function: Callable[[], Awaitable[object]]) -> None:
        """Run something without waiting for it. From any thread, also the loop's own."""
        loop = self._loop
        if loop.pid == os.getpid():
            loop.post(lambda: None if loop.ended else loop.keep(function()))

    def began_to_consume(self) -> None:
        """Note that a `consume` has begun. On the loop."""
        self._loop.consuming += 1

    def consumes_no_more(self) -> None:
        """Note that a `consume` has ended. On the loop."""
        self._loop.consuming -= 1

    def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close the store, and end the thread.

        The thread continues as long as handlers run, which cannot be stopped; this does not wait for that.

        Args:
            close: closes the store.
        """
        with suppress(QueueShutDown):
            try:
                self.run(close)
            finally:
                consuming = self._loop.consuming
                self._loop.post(self._loop.stop)
            if not consuming:
                self._loop.thread.join()

    def close_at_exit(self) -> None:
        """Close the store when the interpreter exits, with a warning, if its user has not."""
        if self._close is None or self._loop.ended or self._loop.pid != os.getpid():
            return
        with suppress(AiodqError):
            self.close(self._close)
        warnings.warn(f"store was never closed [{self._loop.path}]", ResourceWarning, 2, source=self)


class OpenTransaction(Protocol):
    """A transaction whose block a thread is in."""

    @property
    def over(self) -> bool:
        """Whether its block has ended, in whichever thread."""
        ...

    def takes(self, message: Message) -> bool:
        """Return whether a message's own block joins."""
        ...

    def settle(self, message: Message, error: BaseException | None) -> None:
        """Handle the end of a message's own block. On the loop."""
        ...


class _Transactions(threading.local):
    """See `LoopThread.transactions`.

    A generator that has begun a transaction may be closed or collected in another thread. So a transaction itself knows
    whether it is over, and no thread takes the end of another's for that of its own.

    Attributes:
        begun: refers to the transaction that this thread has begun last.
    """

    begun: ref[OpenTransaction] | None = None

    @property
    def current(self) -> OpenTransaction | None:
        """The transaction whose block this thread is in, or None."""
        last = None if self.begun is None else self.begun()
        return None if last is None or last.over else last


def _in_notebook() -> bool:
    """Return whether a notebook's cell runs here: its kernel's loop waits for each cell in any case."""
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None


def _in_other_greenlet() -> bool:
    """Return whether the loop that runs in this thread of the system is a store's, in another greenlet than this."""
    if not threads_are_greenlets():
        return False
    running, here = asyncio.get_running_loop(), threading.current_thread()
    with _REGISTRY:
        return any(each.loop is running and each.thread is not here for each in _LOOPS)


def _would_block() -> bool:
    """Return whether an event loop, or trio, runs in this thread, which a call would block."""
    return (loop_runs_here() and not (_in_notebook() or _in_other_greenlet())) or trio_runs_here()


def refuse_running_loop() -> None:
    """Raise if an event loop would be blocked.

    Raises:
        WrongContextError: one, or trio, runs in this thread.
    """
    if trio_runs_here():
        raise WrongContextError(
            "trio runs in this thread, and aiodq.sync would block it: call this from a thread, as by "
            "trio.to_thread.run_sync"
        )
    if _would_block():
        raise WrongContextError(
            "an event loop runs in this thread, and aiodq.sync would block it: use aiodq.open with `async with` and "
            "`await` here, or call this from a thread, as by asyncio.to_thread"
        )


def wait_for_dropped(path: str) -> None:
    """Wait for a store of this directory that was dropped rather than closed, as when a notebook cell is run again."""
    with _REGISTRY:
        loops = list(_LOOPS)
    for loop in loops:
        if loop.dropped and loop.path == path and loop.pid == os.getpid():
            loop.thread.join()


def _let_daemons_end() -> None:
    """Print no traceback of a daemon thread that waits in a call while the interpreter exits: it ends in any case."""
    report = threading.excepthook

    def hook(failed: threading.ExceptHookArgs, /) -> None:
        daemon = failed.thread is not None and failed.thread.daemon
        if not (daemon and isinstance(failed.exc_value, QueueShutDown)):
            report(failed)

    threading.excepthook = hook


def _close_all() -> None:
    with _REGISTRY:
        handles = list(_HANDLES)
    if handles:
        _let_daemons_end()
    for handle in handles:
        handle.close_at_exit()


# Runs before what `aiodq.engine.loop.thread_pool` registers, as this is imported later; the store needs its threads.
atexit.register(_close_all)
