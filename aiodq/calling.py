"""One call of a handler, in a task of its own, and in a thread too where it is a plain function."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from aiodq.engine.graceful_stop import handling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from aiodq.engine.channel.channel_engine import ChannelEngine

    InThread: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]

__all__ = ["Call"]


class Call:
    """A call that is under way, or over.

    Its task is its own, so that whoever calls knows who cancelled: a handler that cancels itself, or lets out a
    cancellation of its own making, or whatever else does not end the program, ends its task and nobody else's.

    Attributes:
        late: it was cancelled as it took too long, and has not returned all the same.
    """

    def __init__(
        self,
        channel_engine: ChannelEngine[Any],
        function: Callable[..., object],
        *arguments: object,
        in_thread: InThread | None = None,
    ) -> None:
        """Begin.

        Args:
            channel_engine: the channel that is worked off.
            function: what it returns is awaited if it can be.
            arguments: what it is called with.
            in_thread: given for a plain function: what calls it in a thread.
        """
        self.late: bool = False
        self._channel_engine = channel_engine
        self._function = partial(function, *arguments)
        self._in_thread = in_thread
        self._thread: asyncio.Future[object] | None = None
        self._task: asyncio.Task[BaseException | None] = asyncio.create_task(self._run())

    async def _run(self) -> BaseException | None:
        # Returned rather than raised: raised through a cancelled task, a CancelledError loses where it came from.
        handling(self._channel_engine)
        try:
            if self._in_thread is None:
                result = self._function()
            else:
                result = await self._heard(self._in_thread)
            if inspect.isawaitable(result):
                await result
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, also pytest.fail(), the caller is told
            return error
        return None

    async def _heard(self, in_thread: InThread) -> object:
        self._thread = asyncio.ensure_future(in_thread(self._function))
        return await asyncio.shield(self._thread)

    @property
    def over(self) -> bool:
        """Whether it has ended. A thread may go on that nobody listens to any more."""
        return self._task.done()

    def outcome(self) -> BaseException | None:
        """Return what an ended call ended with: an exception, or None where it returned."""
        if self._task.cancelled():
            return asyncio.CancelledError("the handler cancelled its own task")
        return self._task.result()

    async def wait(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end; return what it ended with.

        Args:
            timeout: seconds after which it is cancelled, and ends with `TimeoutError` unless it returns all the same.
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
        error.__cause__ = cut  # its traceback says where the time went
        return error

    async def _ended(self) -> None:
        # As asyncio.wait([self._task]), at a third of its price, which every message would pay.
        waiter = self._task.get_loop().create_future()

        def wake(_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._task.add_done_callback(wake)
        await waiter

    async def end(self) -> bool:
        """Cancel the call and wait until it has ended; return whether it returned all the same.

        Cancellation: no more than that is done; it is for somebody who was cancelled.
        """
        while not self.over:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        return not self._task.cancelled() and self._task.exception() is None and self._task.result() is None

    async def thread_ended(self) -> None:
        """Wait for the thread of a call that has ended before it: nothing can stop a thread."""
        if self._thread is not None and not self._thread.done():
            await asyncio.wait([self._thread])
