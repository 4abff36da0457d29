"""`Channel.consume`: calls a handler for each message and settles the message by how the handler ended."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import CapacityLimiter, to_thread

from aiodq.consuming.calling import Call
from aiodq.engine.channel.dead_lettering.failure_causes import Consequence, cause_of, described, reason_of
from aiodq.engine.monitoring.log import Log
from aiodq.engine.monitoring.one_line import one_line
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, NotInFlightError, StorageError
from aiodq.options import Backoff, next_wait
from aiodq.outcomes import Reject, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.consuming.calling import InThread
    from aiodq.consuming.handlers import Handler
    from aiodq.engine.channel.open_channel import OpenChannel
    from aiodq.message import Message

__all__ = ["Consumer"]

_LOG: Final = Log("aiodq.delivery")
_WAIT: Final = Backoff()
"""The waits for a channel without a backoff, and between two reads while the disk cannot be read."""


class Consumer:
    """One call of `Channel.consume`.

    Each of its workers processes one message at a time. The handler runs in a task of its own, so that it cannot end
    the worker, even if it cancels its own task. Cancellation from outside reaches the worker.
    """

    def __init__(
        self,
        channel_engine: OpenChannel[Message],
        check: Callable[[], None],
        handler: Handler,
        *,
        concurrency: int,
        timeout: float | None,
        renew: bool,
        on_error: Callable[[Message, BaseException], object] | None,
        in_thread: InThread | None = None,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            channel_engine: the channel's engine.
            check: raises if the channel cannot be used.
            handler: the handler; for this and the next four arguments, see `Channel.consume`.
            concurrency: the number of workers.
            timeout: seconds that a handler may take, or None.
            renew: whether messages are kept from timing out while their handlers run.
            on_error: called after each failed attempt.
            in_thread: calls a plain handler in a thread; None: in one of `concurrency` threads of anyio.
        """
        self._where = channel_engine.place
        self._channel_engine = channel_engine
        self._store_ref = channel_engine.store_ref()
        self._check = check
        self._handler = handler.call
        self._in_thread: InThread | None = None
        if handler.threaded:
            self._in_thread = in_thread or partial(to_thread.run_sync, limiter=CapacityLimiter(concurrency))
        self._concurrency = concurrency
        self._timeout = timeout
        self._renew = renew
        self._on_error = on_error
        self._workers: list[asyncio.Task[None]] = []
        self._under_way: dict[Call, Message] = {}

    async def run(self) -> None:
        """Work until the channel is shut down or `cut` is called.

        Raises:
            StoreFailedError: the store has stopped.

        Cancellation: the handlers are cancelled, and their messages released.
        """
        self._channel_engine.consumers.add(self)
        try:
            async with asyncio.TaskGroup() as workers:
                self._workers = [workers.create_task(self._work()) for _ in range(self._concurrency)]
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # all workers get the same error
        finally:
            self._channel_engine.consumers.discard(self)
            self._channel_engine.wake()

    def cut(self) -> None:
        """See `Stoppable`. Workers that end like this make neither the others nor `run` fail."""
        for worker in self._workers:
            worker.cancel()

    def let_go(self) -> int:
        """See `Stoppable`."""
        for message in self._under_way.values():
            message._given_back(None)  # noqa: SLF001 - a consumer settles its messages
        return len(self._under_way)

    async def _work(self) -> None:
        while (message := await self._next()) is not None:
            await self._attempt(message)

    async def _next(self) -> Message | None:
        """Return the next message; None at the end."""
        misses = 0
        while True:
            try:
                return self._channel_engine.take_next(self._store_ref) or await self._channel_engine.get(
                    self._store_ref
                )
            except QueueShutDown:
                return None
            except StorageError as error:
                # Raises if the store has failed. Otherwise the read is retried: no message is lost.
                self._check_store()
                misses += 1
                wait = _WAIT.seconds(misses, 0.5)
                _LOG.error("%s gives no message, asked again in %.3g s: %s", self._where, wait, one_line(str(error)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._channel_engine.ending.wait()

    def _put_off(self, message: Message) -> bool:
        """Defer a message that was in flight when its process died; return whether it was deferred.

        Such a message may have killed the process. Delivered at once, it would kill this one too, and each time all
        other messages in flight would lose an attempt, until they have none left. So each of these messages waits
        first, while other messages are processed, and then only one of them is processed at a time.
        """
        state, backoff = self._channel_engine.state, self._channel_engine.options.backoff or _WAIT
        if state is None or not state.orphans:
            return False
        waited = state.orphans.get(message.offset)
        if waited is None:
            return False
        if waited and self._channel_engine.crash_suspects.admit(message, asyncio.get_running_loop().time()):
            return False
        state.orphans[message.offset] = True
        wait = next_wait(backoff, 1 if waited else message.attempts - 1)
        with suppress(NotInFlightError):
            message.nack_nowait(wait, count_attempt=False)
        if not waited:
            self._say(message, Consequence(f"again in {wait:.3g} s"), "its process ended while it was in flight")
        return True

    def _acquit(self, message: Message) -> None:
        """Note that a message was processed, successfully or not, and the process survived it."""
        self._channel_engine.crash_suspects.acquit(message)
        if self._channel_engine.state is not None and self._channel_engine.state.orphans:
            self._channel_engine.state.orphans.pop(message.offset)

    async def _attempt(self, message: Message) -> None:
        if self._put_off(message):
            return
        if self._channel_engine.options.auto_ack:
            message.ack_nowait()
        elif self._channel_engine.counting:
            self._channel_engine.note_deliveries()
        message._consumed(_WAIT)  # noqa: SLF001 - as above
        renewed = self._renew and not message.settled
        if renewed:
            message._renew()  # noqa: SLF001 - as above
        call: Call | None = None
        try:
            # It raises what ends the program, where tasks begin at once (`asyncio.eager_task_factory`).
            call = Call(self._channel_engine, self._handler, message, in_thread=self._in_thread)
            self._under_way[call] = message
            error = await call.wait(self._timeout)
            await self._settle(message, error, late=call.late)
        except BaseException:
            # Cancelled, or the store has failed, or the process ends. If the handler returned, its message is acked.
            if call is not None and await call.end():
                message._done()  # noqa: SLF001 - as above
            message._given_back(None)  # noqa: SLF001 - as above
            raise
        finally:
            if call is not None:
                del self._under_way[call]
            self._acquit(message)
            if renewed:
                message._renew_no_more()  # noqa: SLF001 - as above
        if error is not None:
            await self._tell(message, error)
        await call.thread_ended()

    async def _settle(self, message: Message, error: BaseException | None, *, late: bool) -> None:
        if error is not None:
            note = f", the last for longer than {self._timeout:g} s" if late else ""
            consequence = message._failed(error, note)  # noqa: SLF001 - as above
            self._log(message, error, consequence)
        elif not message.settled:
            try:
                await message.ack()
            except AiodqError as refusal:
                self._check_store()
                self._log(message, refusal, Consequence("its handler was done with it"))

    def _check_store(self) -> None:
        """Raise if the store has failed. If it was closed, that is a normal end: there is no next message."""
        with suppress(QueueShutDown):
            self._check()

    def _log(self, message: Message, error: BaseException, consequence: Consequence) -> None:
        """Write a log line; with the traceback if there is no further attempt."""
        told = not isinstance(error, Reject) or error.__cause__ is not None
        self._say(message, consequence, _line(error), error if consequence.final and told else None)

    def _say(self, message: Message, consequence: Consequence, what: str, error: BaseException | None = None) -> None:
        _LOG.warning(
            "message %d of %s, attempt %d: %s; %s",
            message.offset,
            self._where,
            message.attempts,
            what,
            consequence.text,
            exc_info=error,
            extra={
                "topic": message.topic,
                "channel": message.channel,
                "offset": message.offset,
                "attempt": message.attempts,
                "next": consequence.text,
            },
        )

    async def _tell(self, message: Message, error: BaseException) -> None:
        """Call `on_error`. Its result, or an exception, changes nothing."""
        if self._on_error is None or isinstance(error, (Retry, Reject)):
            return
        call = Call(self._channel_engine, self._on_error, message, error)
        try:
            failure = await call.wait()
        except BaseException:
            await call.end()
            raise
        if failure is not None:
            _LOG.error("on_error failed with message %d of %s", message.offset, self._where, exc_info=failure)


def _line(error: BaseException) -> str:
    """Return a line that describes the exception with which a handler ended."""
    if isinstance(error, Reject):
        reason = reason_of(error)
        text = f"rejected: {reason}" if reason else "rejected"
    elif isinstance(error, Retry):
        text = "to be tried again" + (f", {cause}" if (cause := cause_of(error).error) else "")
    else:
        text = described(error)
    return one_line(text)
