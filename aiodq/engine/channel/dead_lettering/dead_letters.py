"""Dead-lettering: a message that is given up is put into a dead-letter topic and settled, in one transaction."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from aiodq.awaited import mark_retrieved, twice
from aiodq.engine.batch.put_batch import Accepted, accepted_cost
from aiodq.engine.channel.addressed import FOR
from aiodq.engine.loop.futures import as_failure, begin_later, settle, tell_all
from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.errors import AiodqError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.format.frame import Batch

__all__ = ["HEADERS", "DeadLetter", "DeadLetterOffice", "LetterBox", "send_dead_letter"]

T = TypeVar("T")

HEADERS: Final = (
    "aiodq-topic",
    "aiodq-channel",
    "aiodq-offset",
    "aiodq-attempts",
    "aiodq-reason",
    "aiodq-error",
    "aiodq-time",
)
"""The headers added to those of a dead letter. Without an exception there is no `aiodq-error`."""


class DeadLetter(NamedTuple):
    """A message that is given up.

    Attributes:
        target: the dead-letter topic.
        topic, channel: where it was given up.
        batch: the message, as a batch of one.
        held: the number by which its channel holds it.
        attempts: how often it was delivered.
        reason: as text.
        error: type and text of the exception that the last attempt ended with, or empty.
    """

    target: str
    topic: str
    channel: str
    batch: Batch
    held: int
    attempts: int
    reason: str
    error: str = ""

    def accepted(self, now_ns: int) -> tuple[Accepted, bytes]:
        """Return the dead letter as a message to be put, at that wall time."""
        columns = self.batch.columns
        moment = datetime.fromtimestamp(now_ns / 1_000_000_000, UTC).isoformat(timespec="milliseconds")
        values = self.topic, self.channel, str(self.batch.first), str(self.attempts), self.reason, self.error, moment
        # A dead letter that is given up in its turn has the headers of this time only.
        own = {
            name: text
            for name, text in (columns.headers[0] if columns.headers else {}).items()
            if name not in HEADERS and name != FOR
        }
        headers = own | {
            name: text for name, text in zip(HEADERS, values, strict=True) if text or name != "aiodq-error"
        }
        tag = columns.tags[0] if columns.tags else None
        key = columns.keys[0] if columns.keys else None
        return Accepted(tag, key, headers), columns.bodies[0]


def send_dead_letter(
    state: ChannelState, letter: DeadLetter, post: Callable[[DeadLetter, Callable[[Exception | None], None]], None],
    failed: Callable[[], None],
) -> asyncio.Future[None]:  # fmt: skip
    """Have a message that is held settled with its dead letter; return a future of that.

    Args:
        state: the state of its channel.
        letter: the dead letter.
        post: puts the dead letter and settles its message, and reports the outcome.
        failed: has the message redelivered later.
    """
    put: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        settle(put, None, error)
        mark_retrieved(put)  # the caller need not wait
        if error is not None and state.delivery(letter.batch.first) == letter.held:
            failed()

    post(letter, done)
    return put


def _refused(letter: DeadLetter, full: QueueFull) -> StorageError:
    """Return the error for giving up a message while a dead-letter topic with the policy `"reject"` is full."""
    error = StorageError(
        f"the dead-letter topic {letter.target!r} could not take message {letter.batch.first} of {letter.topic!r} now: "
        f"{full}; the message is redelivered",
        retriable=True,
    )
    error.__cause__ = full
    return error


class LetterBox(Protocol):
    """The way into a dead-letter topic: `aiodq.engine.topic.puts.put_buffer.PutBuffer` is one."""

    async def enter(self, accept: Callable[[], T]) -> T:
        """Accept a message as soon as there is room, after those that came before."""
        ...

    def reserve(self, messages: int, cost: int, *, pressing: bool) -> None:
        """Count messages before they are accepted; `pressing`: even if nothing more is accepted from outside."""
        ...


class DeadLetterOffice:
    """Has dead letters put into their topics, and waits for room if there is none."""

    def __init__(self, clock: Clock, fail: Callable[[BaseException], None]) -> None:
        """Start with no dead letters; `fail` stops the store."""
        self._clock = clock
        self._fail = fail
        self._under_way: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()

    def send(
        self, letter: DeadLetter, put_buffer: LetterBox, commit: Callable[[Accepted, bytes, int], Awaitable[None]],
        done: Callable[[Exception | None], None],
    ) -> None:  # fmt: skip
        """Put a dead letter and settle its message; `done` is called once that is durable, or with the error.

        Args:
            letter: the dead letter.
            put_buffer: the way into its topic.
            commit: puts it, for which room is reserved at that cost in bytes, and settles its message, in one
                transaction.
            done: called once.
        """
        task = begin_later(self._put(letter, put_buffer, commit))
        self._under_way.add(task)
        self._waiting.add(task)
        twice(task.add_done_callback, partial(self._ended, letter, done))

    async def _put(
        self, letter: DeadLetter, put_buffer: LetterBox, commit: Callable[[Accepted, bytes, int], Awaitable[None]]
    ) -> None:
        message, body = letter.accepted(self._clock.now_ns())
        cost = accepted_cost(message, body)
        await put_buffer.enter(partial(put_buffer.reserve, 1, cost, pressing=True))
        self._waiting -= {asyncio.current_task()}
        # CRASH: the letter is put and its message settled, or neither: both are one record of the transaction log.
        await commit(message, body, cost)

    def _ended(self, letter: DeadLetter, done: Callable[[Exception | None], None], task: asyncio.Task[None]) -> None:
        """Report the outcome, also of a task that was cancelled before its first step."""
        if task not in self._under_way:
            return
        self._under_way.discard(task)
        self._waiting.discard(task)
        if task.cancelled():
            done(QueueShutDown("the store was closed before the dead letter was put"))
            return
        error = task.exception()
        if isinstance(error, QueueFull):
            done(_refused(letter, error))
        elif error is None or isinstance(error, AiodqError):
            done(error)
        else:  # whatever it is, Ctrl-C too, the store stops and all waiters are failed
            tell_all(as_failure(error), [lambda _: self._fail(error), done])

    async def close(self) -> None:
        """Stop. A message whose dead letter still waits for room is redelivered after the next open."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
