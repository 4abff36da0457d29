"""An event loop in a thread of its own, and how other threads have something done there and wait for it."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import warnings
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakSet

from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, StorageError, WrongContextError
from aiodq.running import loop_factory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.message import Message

__all__ = ["LoopThread", "refuse_running_loop", "wait_for_dropped"]

P = ParamSpec("P")
T = TypeVar("T")


class _Turn(Generic[T]):
    """Something that a thread wants done on the loop, and waits for."""

    __slots__ = (
        "_awaits",
        "_context",
        "_function",
        "_given_up",
        "_loop",
        "_signal",
        "_task",
        "_undo",
        "error",
        "over",
        "result",
    )

    def __init__(
        self,
        loop: _Loop,
        function: Callable[[], Any],
        *,
        awaits: bool,
        undo: Callable[[T], object] | None = None,
    ) -> None:
        """Prepare.

        Args:
            loop: where it is done.
            function: what is done.
            awaits: what that returns is awaited, and gives the result; else it is the result.
            undo: called on the loop with a result that nobody has got, as who waited for it was interrupted.
        """
        self.over: bool = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._loop = loop
        self._function: Callable[[], Any] | None = function
        self._awaits = awaits
        self._undo = undo
        self._given_up = False
        self._task: asyncio.Task[T] | None = None
        self._context = copy_context()
        self._signal = threading.Lock()
        self._signal.acquire()

    # --- in the thread that wants it

    def wait(self) -> T:
        """Have it done, and wait for the end; return the result, or raise the error.

        Interrupted (a signal's handler raises): it is cancelled as a task is, and its result, if it has one all the
        same, undone; then the interruption goes on. A second one does not wait for that.

        Raises:
            QueueShutDown: the loop has ended.
        """
        try:
            if self._loop.post(self.begin):
                self._signal.acquire()
            else:
                self.error = _closed()
        except BaseException:
            if self._loop.post(self.give_up) and not self.over:
                self._signal.acquire()
            raise
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else it would hold on to this frame, and the frame to it
        return cast("T", self.result)  # it is over, and an error was raised above

    # --- on the loop

    def begin(self) -> None:
        """Do it, or begin to."""
        function, self._function = self._function, None
        if function is None:
            return
        if self._loop.ended:
            self.end(None, _closed())
            return
        try:
            found = self._context.run(function)
            if not self._awaits:
                self.end(found, None)
                return
            self._task = self._loop.loop.create_task(_awaited(found), context=self._context)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where somebody waits
            self.end(None, error)
            return
        self._loop.running.add(self)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._loop.running.discard(self)
        if task.cancelled():
            self.end(None, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.end(None, error)
        else:
            self.end(task.result(), None)

    def end(self, result: T | None, error: BaseException | None) -> None:
        """Tell who waits."""
        if self.over:
            return
        self.result, self.error = result, error
        self.over = True
        if self._given_up:
            self._take_back()
        self._signal.release()

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self._given_up = True
        if self.over:
            self._take_back()
        elif self._task is None:
            self._function = None  # the interruption was faster than the wish
            self.end(None, asyncio.CancelledError())
        else:
            # INVARIANT: later than its first step, so that what takes effect when called has taken effect.
            self._loop.loop.call_soon(self._task.cancel)

    def _take_back(self) -> None:
        undo, self._undo = self._undo, None
        if undo is None or self.error is not None:
            return
        found = undo(cast("T", self.result))
        if isawaitable(found):
            self._loop.keep(found)


async def _awaited(found: Awaitable[T]) -> T:
    # What is a future already goes on though nobody waits for it any more.
    return await (asyncio.shield(found) if isinstance(found, asyncio.Future) else found)


class _Loop:
    """What the thread and the handles share. The thread has no handle, so that those can be dropped."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.pid: Final = os.getpid()
        self.loop: Final = loop_factory()()
        self.running: Final[set[_Turn[Any]]] = set()
        self.consuming = 0
        self.ended = False
        self.dropped = False
        self._kept: Final[set[asyncio.Task[Any]]] = set()
        self._inbox: Final[deque[Callable[[], None]]] = deque()
        self._stop = asyncio.Event()
        # A daemon: else the interpreter would wait for it before `_close_all` could tell it to end.
        self.thread: Final = threading.Thread(target=self._serve, name=f"aiodq {path}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            StorageError: the system gives none.
        """
        try:
            self.thread.start()
        except RuntimeError as cause:
            self.ended = True
            self.loop.close()
            raise StorageError(f"no thread is free: {cause}", self.path) from cause

    def post(self, callback: Callable[[], None]) -> bool:
        """Have something called on the loop; return False where it has ended. From any thread, and without waiting."""
        self._inbox.append(callback)
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._take_in)
        if not self.ended:
            return True
        # INVARIANT: each callback is taken out by one: by who posted it after the end, or by the loop at its end.
        try:
            self._inbox.remove(callback)
        except ValueError:
            return True
        return False

    def stop(self) -> None:
        """End the loop once everything on it has come to its end."""
        self._stop.set()

    def keep(self, work: Awaitable[object]) -> None:
        """Do something that nobody waits for."""
        task = self.loop.create_task(_awaited(work))
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def _take_in(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _serve(self) -> None:
        try:
            self.loop.run_until_complete(self._until_stopped())
        finally:
            self.ended = True
            for turn in list(self.running):
                turn.end(None, _closed())
            self._take_in()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        this = asyncio.current_task()
        while others := asyncio.all_tasks() - {this}:
            await asyncio.wait(others)


_LOOPS: Final[WeakSet[_Loop]] = WeakSet()
_HANDLES: Final[WeakSet[LoopThread]] = WeakSet()
_REGISTRY: Final = threading.Lock()
"""Held while either of them is changed or gone through."""


class LoopThread:
    """The thread of one store, held by everything that its user has of it; dropped, it closes the store and ends.

    Attributes:
        transactions: of each thread, the transaction whose block it is in.
    """

    def __init__(self, path: str) -> None:
        """Start a thread for the store of a directory."""
        self._loop = _Loop(path)
        self._close: Callable[[], Awaitable[None]] | None = None
        self.transactions: _Transactions = _Transactions()
        self._loop.start()
        with _REGISTRY:
            _LOOPS.add(self._loop)
            _HANDLES.add(self)

    def __del__(self) -> None:
        """End the thread, once the store is closed, which its own handles see to."""
        loop = self._loop
        if loop.pid == os.getpid():
            loop.dropped = True
            loop.post(loop.stop)

    def own(self, close: Callable[[], Awaitable[None]]) -> None:
        """Keep what closes the store, for the end of the interpreter."""
        self._close = close

    def end(self) -> None:
        """End the thread, as the store was not opened."""
        self._loop.post(self._loop.stop)

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have a coroutine function run on the loop, and wait for what it returns or raises.

        Raises:
            WrongContextError: an event loop runs in this thread, or the store was opened before a fork.
            QueueShutDown: the loop has ended, as the store is closed.
        """
        self._check()
        return _Turn[T](self._loop, partial(function, *args, **kwargs), awaits=True).wait()

    def take(self, function: Callable[[], Awaitable[T]], undo: Callable[[T], object]) -> T:
        """As `run`, with what undoes a result that an interrupted caller has not got."""
        self._check()
        return _Turn(self._loop, function, awaits=True, undo=undo).wait()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, of a function that returns at once."""
        self._check()
        return _Turn[T](self._loop, partial(function, *args, **kwargs), awaits=False).wait()

    def look(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, of a function that only looks, which it does after the end, too."""
        if not self._loop.ended:
            with suppress(QueueShutDown):
                return self.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def show(self, thing: object) -> str:
        """Return how something shows itself, wherever that is asked for."""
        if self._loop.pid != os.getpid() or _loop_runs_here():
            return repr(thing)
        return self.look(repr, thing)

    def _check(self) -> None:
        if self._loop.pid != os.getpid():
            raise WrongContextError(
                "this store was opened before a fork, and is the parent's: open one in the child after the fork"
            )
        refuse_running_loop()

    def post(self, function: Callable[[], Awaitable[object]]) -> None:
        """Have something done that nobody waits for. From any thread, also the loop's own."""
        loop = self._loop
        if loop.pid == os.getpid():
            loop.post(lambda: None if loop.ended else loop.keep(function()))

    def began_to_consume(self) -> None:
        """Somebody's handlers run from now on. On the loop."""
        self._loop.consuming += 1

    def consumes_no_more(self) -> None:
        """They have ended. On the loop."""
        self._loop.consuming -= 1

    def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close the store, and end the thread.

        The thread goes on for as long as handlers run that nobody can stop; that is not waited for.

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
        """The interpreter ends: close the store if its user has not, and say so."""
        if self._close is None or self._loop.ended or self._loop.pid != os.getpid():
            return
        with suppress(AiodqError):
            self.close(self._close)
        warnings.warn(f"store was never closed [{self._loop.path}]", ResourceWarning, 2, source=self)


class OpenTransaction(Protocol):
    """A transaction whose block a thread is in."""

    def takes(self, message: Message) -> bool:
        """Return whether a message's own block joins."""
        ...

    def settle(self, message: Message, error: BaseException | None) -> None:
        """A message's own block has ended with this. On the loop."""
        ...


class _Transactions(threading.local):
    """See `LoopThread.transactions`."""

    current: OpenTransaction | None = None


def _closed() -> QueueShutDown:
    return QueueShutDown("the store is closed")


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_notebook() -> bool:
    """Return whether a cell of a notebook runs here: its kernel's loop waits for each cell in any case."""
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None


def refuse_running_loop() -> None:
    """Raise where an event loop runs that would be blocked.

    Raises:
        WrongContextError: it runs in this thread.
    """
    if _loop_runs_here() and not _in_notebook():
        raise WrongContextError(
            "an event loop runs in this thread, and aiodq.sync would block it: use aiodq.open with `async with` and "
            "`await` here, or call this from a thread, as by asyncio.to_thread"
        )


def wait_for_dropped(path: str) -> None:
    """Wait for a store of this directory that was dropped rather than closed, as by a notebook's cell run again."""
    with _REGISTRY:
        loops = list(_LOOPS)
    for loop in loops:
        if loop.dropped and loop.path == path and loop.pid == os.getpid():
            loop.thread.join()


def _close_all() -> None:
    with _REGISTRY:
        handles = list(_HANDLES)
    for handle in handles:
        handle.close_at_exit()


# Runs before what `aiodq.engine.thread_pool` registered, as it is imported later; the store needs its threads.
atexit.register(_close_all)
