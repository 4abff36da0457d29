"""Running a command on an event loop, uvloop if it is installed; signals end the command in order."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from aiodq.cli.exits import INTERRUPTED
from aiodq.running import loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType

__all__ = ["Aside", "raising_at_signals", "run_command"]

T = TypeVar("T")


def run_command(command: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end and return its exit code. SIGINT, SIGTERM and SIGHUP cancel it, so stores are closed.

    Under `nohup`, SIGHUP stays ignored.

    Raises:
        Exception: what the command raises; of a group, the first.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_until_signalled(command))
        except ExceptionGroup as group:
            raise _first_of(group) from group


def _first_of(error: Exception) -> Exception:
    return _first_of(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _ending() -> list[signal.Signals]:
    """Return the signals that end a command, besides SIGINT."""
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def raising_at_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise in the block, as SIGINT does: a command without a loop leaves nothing half done.

    In another thread than the main one, which alone can receive signals, this does nothing.

    Raises:
        SystemExit: there was one; the exit code is that of the signal.
    """

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(INTERRUPTED + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in _ending()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _until_signalled(command: Coroutine[Any, Any, int]) -> int:
    caught: list[int] = []
    task = asyncio.ensure_future(command)

    def end(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGINT, *_ending()):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not caught:
            raise
        return INTERRUPTED + caught[0]


class Aside:
    """A thread for calls that may block for ever on a terminal or a pipe; one call at a time.

    It is a daemon, unlike an executor's threads: a read from an idle terminal must not keep the process from ending. So
    the calls must hold no lock of Python: they use file descriptors, never `sys.stdout`.
    """

    def __init__(self) -> None:
        """Start it. Must be called on the loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[Callable[[], object], asyncio.Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="aiodq aside", daemon=True).start()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread once its call is over, whenever that is."""
        self._calls.put(None)

    async def call(self, function: Callable[[], T]) -> T:
        """Return what the function returns.

        Raises:
            Exception: what it raises.

        Cancellation: the call goes on, and its result is dropped.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((function, future))
        return await future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            result: object = None
            error: BaseException | None = None
            try:
                result = function()
            except Exception as cause:  # noqa: BLE001 - it is the caller's
                error = cause
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
