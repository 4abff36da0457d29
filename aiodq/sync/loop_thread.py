"""An event loop in a thread of its own, and how other threads run calls on it and wait for them."""

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
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from aiodq.awaited import shielded
from aiodq.engine.loop.greenlets import left_as_they_are, threads_are_greenlets
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, StorageError, WrongContextError
from aiodq.running import loop_factory, loop_runs_here
from aiodq.uncopied import Uncopied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.message import Message

__all__ = ["LoopThread", "refuse_running_loop", "wait_for_dropped"]

P = ParamSpec("P")
T = TypeVar("T")


_LONGEST_SLEEP: Final = 0.5
"""Seconds after which a thread that waits looks whether a signal has come."""


class _Turn(Generic[T]):
    """A call that a thread runs on the loop and waits for."""

    __slots__ = (
        "_awaits",
        "_context",
        "_function",
        "_given_up",
        "_loop",
        "_note",
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
        note: Callable[[T], object] | None = None,
    ) -> None:
        """Prepare.

        Args:
            loop: the loop it runs on.
            function: the function to call.
            awaits: whether its result is awaited, which then gives the result.
            undo: called on the loop with a result that was lost because the waiter was interrupted.
            note: called with the result by the waiter; if that is interrupted, the result is lost, too.
        """
        self.over: bool = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._loop = loop
        self._function: Callable[[], Any] | None = function
        self._awaits = awaits
        self._undo = undo
        self._note = note
        self._given_up = False
        self._task: asyncio.Task[T] | None = None
        self._context = copy_context()
        self._signal = threading.Lock()
        self._signal.acquire()

    # --- in the calling thread

    def wait(self) -> T:
        """Run the call, and wait for its end; return the result, or raise the error.

        Interrupted (a signal handler raises): it is cancelled as a task is, and if it has a result anyway, that
        is undone; then the interruption propagates. A second one does not wait for that.

        Raises:
            QueueShutDown: the loop has ended.
        """
        try:
            if self._loop.post(self.begin):
                self._sleep()
            else:
                self.error = _closed()
            if self._note is not None and self.error is None:
                self._note(self.result)
        except BaseException:
            if self._loop.post(self.give_up) and not self.over:
                self._sleep()
            raise
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # otherwise it would refer to this frame, and the frame to it
        # INVARIANT: nothing is called from the `try` to here: Python looks for signals at calls, and it would be lost.
        result: T = self.result
        return result

    def _sleep(self) -> None:
        # A signal that comes after Python last looked for one and before the system waits, or that the system gives to
        # another thread, ends no wait. Between two waits Python looks again.
        while not self._signal.acquire(timeout=_LONGEST_SLEEP):
            continue

    # --- on the loop

    def begin(self) -> None:
        """Run the call, or begin to."""
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised in the waiter
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
        """Wake the waiter."""
        if self.over:
            return
        self.result, self.error = result, error
        self.over = True
        if self._given_up:
            self._take_back()
        self._signal.release()

    def give_up(self) -> None:
        """Cancel the call, as its waiter was interrupted."""
        self._given_up = True
        if self.over:
            self._take_back()
        elif self._task is None:
            self._function = None  # the interruption came before the call
            self.end(None, asyncio.CancelledError())
        else:
            # INVARIANT: after its first step, so that what takes effect when called has taken effect.
            self._loop.loop.call_soon(self._task.cancel)

    def _take_back(self) -> None:
        undo, self._undo = self._undo, None
        if undo is None or self.error is not None:
            return
        found = undo(self.result)
        if isawaitable(found):
            self._loop.keep(found)


async def _awaited(found: Awaitable[T]) -> T:
    # A future continues even if its waiter was cancelled.
    return await (shielded(found) if isinstance(found, asyncio.Future) else found)


class _Loop:
    """What the thread and the handles share. The thread refers to no handle, so that handles can be dropped."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.pid: Final = os.getpid()
        self.loop: Final = _new_loop()
        self.running: Final[set[_Turn[Any]]] = set()
        self.consuming = 0
        self.ended = False
        self.dropped = False
        self._kept: Final[set[asyncio.Task[Any]]] = set()
        self._inbox: Final[deque[Callable[[], None]]] = deque()
        self._stop = asyncio.Event()
        # A daemon: otherwise the interpreter would wait for it before `_close_all` could end it.
        self.thread: Final = threading.Thread(target=self._serve, name=f"aiodq {path}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            StorageError: the system refused a thread.
            WrongContextError: threads are greenlets, and the loop of another store runs in one, or can in none.
        """
        hindrance = _hindrance_among_greenlets() if threads_are_greenlets() else None
        if hindrance is not None:
            self.ended = True
            self.loop.close()
            raise WrongContextError(hindrance)
        try:
            self.thread.start()
        except RuntimeError as cause:
            self.ended = True
            self.loop.close()
            raise StorageError(f"no thread is free: {cause}", self.path) from cause

    def post(self, callback: Callable[[], None]) -> bool:
        """Call something on the loop; return False if the loop has ended. From any thread, without waiting."""
        self._inbox.append(callback)
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._take_in)
        if not self.ended:
            return True
        # INVARIANT: each callback is removed once: by its poster after the end, or by the loop at its end.
        try:
            self._inbox.remove(callback)
        except ValueError:
            return True
        return False

    def stop(self) -> None:
        """End the loop once everything on it has ended."""
        self._stop.set()

    def keep(self, work: Awaitable[object]) -> None:
        """Run something without waiting for it."""
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
        self._loop = _Loop(path)
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
            loop.dropped = True
            loop.post(loop.stop)

    def own(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register what closes the store when the interpreter exits."""
        self._close = close

    def end(self) -> None:
        """End the thread, as the store was not opened."""
        self._loop.post(self._loop.stop)

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop, and wait for its result or error.

        Raises:
            WrongContextError: an event loop runs in this thread, or the store was opened before a fork.
            QueueShutDown: the loop has ended, as the store is closed.
        """
        self._check()
        return _Turn[T](self._loop, partial(function, *args, **kwargs), awaits=True).wait()

    def take(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], object],
        note: Callable[[T], object] | None = None,
    ) -> T:
        """Run as `run` does; `undo` takes a result that an interrupted caller has not got, `note` one that it gets."""
        self._check()
        return _Turn(self._loop, function, awaits=True, undo=undo, note=note).wait()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that returns at once on the loop; see `run`."""
        self._check()
        return _Turn[T](self._loop, partial(function, *args, **kwargs), awaits=False).wait()

    def look(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that only reads, on the loop; after the loop's end, call it here."""
        if not self._loop.ended:
            with suppress(QueueShutDown):
                return self.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def show(self, thing: object) -> str:
        """Return the `repr` of something, from any context."""
        if self._loop.pid != os.getpid() or loop_runs_here():
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

    def takes(self, message: Message) -> bool:
        """Return whether a message's own block joins."""
        ...

    def settle(self, message: Message, error: BaseException | None) -> None:
        """Handle the end of a message's own block. On the loop."""
        ...


class _Transactions(threading.local):
    """See `LoopThread.transactions`."""

    current: OpenTransaction | None = None


def _closed() -> QueueShutDown:
    return QueueShutDown("the store is closed")


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


def _new_loop() -> asyncio.AbstractEventLoop:
    # uvloop waits in the system. asyncio waits by a selector, which was replaced as threads were: in a greenlet, that
    # leaves turns to the others.
    return asyncio.SelectorEventLoop() if threads_are_greenlets() else loop_factory()()


def _hindrance_among_greenlets() -> str | None:
    """Return why no event loop can run in a new greenlet, if that is so."""
    left = left_as_they_are()
    if left:
        return (
            f"threads are greenlets here, but {' and '.join(left)} still waits in the system, which would hold up all "
            "of them: replace it as well, as gevent.monkey.patch_all() does"
        )
    if loop_runs_here():
        return (
            "threads are greenlets here, and in all of them together one event loop can run: close the other store "
            "first, or keep all topics in one, or use threads, as `gunicorn -k gthread` does"
        )
    return None


def refuse_running_loop() -> None:
    """Raise if an event loop would be blocked.

    Raises:
        WrongContextError: one runs in this thread.
    """
    if loop_runs_here() and not (_in_notebook() or _in_other_greenlet()):
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
