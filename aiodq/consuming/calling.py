"""One call of a handler in a task of its own; a plain function also runs in a thread."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiodq.awaited import mark_retrieved, shielded
from aiodq.engine.graceful_stop import handling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from aiodq.engine.graceful_stop import StoppableChannel

    InThread: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]

__all__ = ["Call"]


class Call:
    """A call of a handler, running or ended.

    It runs in a task of its own, so that the caller can tell who cancelled. A handler that cancels itself, or raises
    `CancelledError` or any exception that does not end the program, ends only this task.

    Attributes:
        late: whether it was cancelled because it took too long, and then did not return normally.
    """

    def __init__(
        self,
        channel_engine: StoppableChannel,
        function: Callable[..., object],
        *arguments: object,
        in_thread: InThread | None = None,
    ) -> None:
        """Start the call.

        Args:
            channel_engine: the channel whose message is processed.
            function: the handler; what it returns is awaited if it is awaitable.
            arguments: the arguments of the call.
            in_thread: for a plain function: calls it in a thread.
        """
        self.late: bool = False
        self._channel_engine = channel_engine
        self._function = partial(function, *arguments)
        self._in_thread = in_thread
        self._thread: asyncio.Future[object] | None = None
        self._task: asyncio.Task[BaseException | None] = asyncio.create_task(self._run())

    async def _run(self) -> BaseException | None:
        # Returned, not raised: a CancelledError raised through a cancelled task loses its traceback.
        handling(self._channel_engine)
        try:
            if self._in_thread is None:
                result = self._function()
            else:
                result = await self._in_its_thread(self._in_thread)
            if inspect.isawaitable(result):
                await result
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - any exception, also that of pytest.fail(), is returned to the caller
            return error
        return None

    async def _in_its_thread(self, in_thread: InThread) -> object:
        self._thread = asyncio.ensure_future(in_thread(self._function))
        try:
            return await shielded(self._thread)
        except asyncio.CancelledError:
            self._thread.add_done_callback(mark_retrieved)
            raise

    @property
    def over(self) -> bool:
        """Whether it has ended. Its thread may still run; the thread's result is then ignored."""
        return self._task.done()

    def outcome(self) -> BaseException | None:
        """Return the exception with which the call ended, or None if it returned."""
        if self._task.cancelled():
            return asyncio.CancelledError("the handler cancelled its own task")
        return self._task.result()

    async def wait(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end; return its exception, or None if it returned.

        Args:
            timeout: seconds after which it is cancelled; the result is then `TimeoutError`, unless it still returns.
        """
        if timeout is None:
            await self._ended()
        else:
            await asyncio.wait([self._task], timeout=timeout)
        if self.over:
            return self.outcome()
        self._task.cancel()
        await asyncio.wait([self._task])
        cut = self.outcome()
        if cut is None:
            return None
        self.late = True
        error = TimeoutError(f"the handler took longer than {timeout:g} s")
        error.__cause__ = cut  # the traceback shows where the handler was
        return error

    async def _ended(self) -> None:
        # Does as asyncio.wait([self._task]) at a third of the cost; it runs for every message.
        waiter = self._task.get_loop().create_future()

        def wake(_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._task.add_done_callback(wake)
        await waiter

    async def end(self) -> bool:
        """Cancel the call and wait until it has ended; return whether it returned normally anyway.

        Cancellation: it cancels the call again and goes on waiting; it is meant for a caller that was cancelled.
        """
        while not self.over:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        return not self._task.cancelled() and self._task.exception() is None and self._task.result() is None

    async def thread_ended(self) -> None:
        """Wait for a thread that still runs after its call has ended, as a thread cannot be stopped."""
        if self._thread is not None and not self._thread.done():
            await asyncio.wait([self._thread])
