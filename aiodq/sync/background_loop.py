"""The event loop in a thread of its own, and the calls that other threads run on it and wait for."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from aiodq.awaited import shielded
from aiodq.engine.loop.greenlets import left_as_they_are, threads_are_greenlets
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, StorageError, WrongContextError
from aiodq.running import loop_factory, loop_runs_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["BackgroundLoop", "Turn"]

T = TypeVar("T")

_LONGEST_SLEEP: Final = 0.5
"""Seconds after which a thread that waits looks whether a signal has come."""

_ADVICE: Final = re.compile(r"\bawait (?=[a-z_.]+\()|(?<=`)async (?=with )")
"""What a call or a block that an error's text advises begins with where it is asynchronous."""


class Turn(Generic[T]):
    """A call that a thread runs on the loop and waits for."""

    __slots__ = (
        "_awaits",
        "_context",
        "_exit",
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
        loop: BackgroundLoop,
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
        self._exit: BaseException | None = None
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
            self._task = self._loop.loop.create_task(self._awaited(found), context=self._context)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised in the waiter
            self.end(None, error)
            return
        self._loop.running.add(self)
        self._task.add_done_callback(self._ended)

    async def _awaited(self, found: Awaitable[T]) -> T:
        try:
            return await _awaited(found)
        except (SystemExit, KeyboardInterrupt) as error:
            # A function of the waiter's raised it, and it ends what the waiter does; in a task it would end the loop.
            self._exit = error
            raise asyncio.CancelledError from error

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._loop.running.discard(self)
        if task.cancelled():
            self.end(None, self._exit or asyncio.CancelledError())
            self._exit = None
        elif (error := task.exception()) is not None:
            self.end(None, error)
        else:
            self.end(task.result(), None)

    def end(self, result: T | None, error: BaseException | None) -> None:
        """Wake the waiter."""
        if self.over:
            return
        if isinstance(error, AiodqError) and type(error).__module__.startswith("aiodq."):  # not one of a caller's own
            _put_in_blocking_words(error)
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


class BackgroundLoop:
    """The loop of one store, and its thread: what these and the handles share.

    The thread refers to no handle, so that handles can be dropped.

    Attributes:
        path: the store's directory.
        pid: the process that made it.
        loop: the event loop.
        thread: its thread.
        running: the calls in progress that are awaited.
        consuming: how many `consume` are in progress.
        ended: whether the loop has ended, or never began.
        dropped: whether all handles are gone.
    """

    def __init__(self, path: str) -> None:
        """Make the loop of a store's directory; `start` runs it."""
        self.path: Final = path
        self.pid: Final = os.getpid()
        self.loop: Final = _new_loop()
        self.running: Final[set[Turn[Any]]] = set()
        self.consuming: int = 0
        self.ended: bool = False
        self.dropped: bool = False
        self._kept: Final[set[asyncio.Task[Any]]] = set()
        self._inbox: Final[deque[Callable[[], None]]] = deque()
        self._stop = asyncio.Event()
        self._taken = threading.Lock()
        """Taken for good by who has the loop: its thread, or who closes it as no thread has it."""
        # A daemon: otherwise the interpreter would wait for it before `aiodq.sync.loop_thread` could end it.
        self.thread: Final = threading.Thread(target=self._serve, name=f"aiodq {path}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            StorageError: the system refused a thread.
            WrongContextError: threads are greenlets, and the loop of another store runs in one, or can in none.
        """
        hindrance = _hindrance_among_greenlets() if threads_are_greenlets() else None
        if hindrance is not None:
            self._close_unused()
            raise WrongContextError(hindrance)
        try:
            self.thread.start()
        except BaseException as cause:
            if not self._close_unused():
                self.post(self.stop)  # interrupted while it waited for the thread, which has begun
            if (interruption := _interruption(cause)) is not None:
                raise interruption from None
            raise StorageError(f"no thread is free: {cause}", self.path) from cause

    def drop(self) -> None:
        """End the loop once everything on it has ended, as all handles are gone. From any thread, without waiting."""
        self.dropped = True
        if not self._close_unused():  # unless an interruption came before `start`
            self.post(self.stop)

    def _close_unused(self) -> bool:
        """Close the loop if its thread does not have it; return whether that is so."""
        if not self._taken.acquire(blocking=False):
            return False
        self.ended = True
        self.loop.close()
        return True

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
            try:
                callback = self._inbox.popleft()
            except IndexError:  # at the end: its poster has taken it back meanwhile
                return
            callback()

    def _serve(self) -> None:
        if not self._taken.acquire(blocking=False):
            return
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


def _put_in_blocking_words(error: AiodqError) -> None:
    """Have the calls that an error's text advises written as they are here: it comes from the asyncio objects."""
    error.args = tuple(_ADVICE.sub("", arg) if isinstance(arg, str) else arg for arg in error.args)


def _interruption(error: BaseException) -> BaseException | None:
    """Return what has interrupted the start of a thread; None if the system refused it."""
    if not isinstance(error, RuntimeError):
        return error
    # An interruption just after `threading` has released a lock makes it release that once more, which fails.
    return error.__context__ if "lock" in str(error) else None


def _closed() -> QueueShutDown:
    return QueueShutDown("the store is closed")


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
