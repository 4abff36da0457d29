"""The messages that a consumer's thread holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Self

from aiodq import message
from aiodq.consuming import deferred
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, DeliveryError, StoreFailedError
from aiodq.storage.read.stored_message import StoredMessage
from aiodq.sync.loop_thread import LoopThread, OpenTransaction
from aiodq.sync.transaction import Transaction
from aiodq.uncopied import Uncopied

__all__ = ["DeferredMessage", "Message", "give_back"]


class Message(Uncopied, StoredMessage):
    """A message handed to a consumer, in flight until it is settled; any thread may settle it.

    `with message` acks it on success, requeues it on an exception, and releases it (as if it had never been handed out)
    on a `KeyboardInterrupt` or `SystemExit`; inside a transaction's block of the same thread, it joins the transaction
    instead of acking. `Retry` and `Reject` choose another outcome; every exception propagates. A message not settled
    within the channel's `visibility_timeout` is redelivered; one in flight at a crash is redelivered when the store is
    next opened.

    Attributes:
        body: the bytes that were put.
    """

    __slots__ = ("_joined", "_loop_thread", "_message")

    def __init__(self, loop_thread: LoopThread, inner: message.Message) -> None:
        """Made by the channel."""
        self._run, self._index = inner._run, inner._index  # noqa: SLF001 - the same, for threads
        self.body: bytes = inner.body
        self._loop_thread = loop_thread
        self._message = inner
        self._joined: OpenTransaction | None = None

    @property
    def attempts(self) -> int:
        """The number of deliveries, 1 at the first. With `max_attempts`, one that ended with its process counts too."""
        return self._message.attempts

    @property
    def channel(self) -> str:
        """The name of the channel that it came from; empty for a message that was only read."""
        return self._message.channel

    def ack(self) -> None:
        """Settle the message: it is never delivered again once this returns.

        It waits until the settling is as durable as the store's `sync` policy makes it. `ack_nowait` does not wait.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile: timed out or purged.
            QueueShutDown: the store is closed.
            DiskFullError: settled, but not durably until there is space.
            StoreFailedError: the store has stopped; after opening again the message may be redelivered.

        Interrupted: settled anyway, durable with the next commit; a crash before that redelivers.
        """
        self._loop_thread.run(self._message.ack)

    def ack_nowait(self) -> None:
        """Settle the message; durable with the next commit.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed.
        """
        self._loop_thread.call(self._message.ack_nowait)

    def nack(self, delay: float | timedelta | None = None, *, count_attempt: bool = True) -> None:
        """Requeue the message: it is ready again at once or after a delay, in offset order, ahead of newer ones.

        Args:
            delay: seconds, or a `timedelta`; None for the channel's `backoff`, or at once if it has none.
            count_attempt: whether this delivery counts in `attempts` of the next.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            InvalidMessageError: a negative delay; nothing changed.
            InvalidOptionError: `count_attempt` is neither True nor False; a `TypeError` too. Nothing changed.
            QueueShutDown: the store is closed.

        Interrupted: requeued anyway.
        """
        self._loop_thread.run(self._message.nack, delay, count_attempt=count_attempt)

    def nack_nowait(self, delay: float | timedelta | None = None, *, count_attempt: bool = True) -> None:
        """Requeue as `nack` does, which is just as fast here."""
        self.nack(delay, count_attempt=count_attempt)

    def reject(self, reason: str = "") -> None:
        """Reject the message: it goes to the channel's dead-letter topic, with headers that say where from and why.

        See `aiodq.Message.reject` for the headers. It returns once that is durable. No crash leaves the message in
        both topics, or in none.

        Args:
            reason: as text, truncated to 1 KiB.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            InvalidMessageError: the reason is not a text; nothing changed.
            QueueShutDown: the store is closed.
            StorageError: the dead-letter topic could not take it now; the message is redelivered.

        Interrupted: rejected anyway.
        """
        self._loop_thread.run(self._message.reject, reason)

    def touch(self, extend: float | timedelta | None = None) -> None:
        """Restart the message's visibility timeout, for longer work; as often as needed.

        Args:
            extend: seconds from now, or a `timedelta`; None for the channel's `visibility_timeout`.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it had timed out already.
            InvalidMessageError: a negative time; nothing changed.
            QueueShutDown: the store is closed.

        Interrupted: completed anyway.
        """
        self._loop_thread.run(self._message.touch, extend)

    def release(self) -> None:
        """Release the message, as if it had never been handed out.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed.
        """
        self._loop_thread.call(self._message.release)

    @contextmanager
    def renewing(self) -> Iterator[Self]:
        """Keep the message from timing out as long as the block lasts, for work of unknown length.

        ```python
        with message, message.renewing():
            work_that_may_take_hours(message)
        ```

        At the end, its `visibility_timeout` restarts. `consume` does this automatically.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it had timed out already.
            QueueShutDown: the store is closed.
        """
        renewing = self._message.renewing()
        self._loop_thread.run(renewing.__aenter__)
        try:
            yield self
        finally:
            if not self._loop_thread.inherited:
                with suppress(QueueShutDown):
                    self._loop_thread.leave(renewing.__aexit__, None, None, None)

    @property
    def settled(self) -> bool:
        """Whether it was acked, requeued or released."""
        return self._message.settled

    @property
    def held(self) -> bool:
        """Whether its holder may still settle it: neither settled, nor timed out, nor taken away."""
        return self._loop_thread.look(lambda: self._message.held)

    def transaction(self) -> Transaction:
        """Return a transaction that acks the message when it commits: `with message.transaction() as tx`.

        After an exception in the block, or if the commit fails, the message is requeued; after an interruption it is
        released, as with `with message`.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it was only read.
            QueueShutDown: the store is closed.
        """
        return Transaction(self._loop_thread, self._loop_thread.call(self._message.transaction))

    def __enter__(self) -> Self:
        """Return the message."""
        # Not asked for at the end: a generator's block may end in another thread, in the middle of its transaction.
        self._joined = self._loop_thread.transactions.current
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle the message unless the block did: ack, or requeue after an exception, or release if interrupted.

        In a transaction's block of the same thread, `tx.ack` replaces the ack, and an exception ends the
        transaction. An exception in a child that was forked in the block leaves the message to the parent.
        """
        try:
            self._leave(kind, error, trace)
        except AiodqError:
            raise
        except BaseException:
            # If the interruption came before the loop was asked for anything, the message would stay in flight.
            self._loop_thread.post(partial(_release, self._message))
            raise

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction, self._joined = self._joined, None
        if error is not None and self._loop_thread.inherited:
            return
        if transaction is not None and not transaction.over and transaction.takes(self._message):
            self._loop_thread.call(transaction.settle, self._message, error)
        elif error is None:
            self._loop_thread.run(self._message.__aexit__, None, None, None)
        else:
            with suppress(QueueShutDown):
                # The block's exception propagates, and the message is redelivered when the store is next opened.
                self._loop_thread.leave(self._message.__aexit__, kind, error, trace)

    def _standing(self) -> str:
        return self._message._standing()  # noqa: SLF001 - as above


class DeferredMessage(Message):
    """A deferred message, read and not taken: `Channel.deferred_messages`.

    It cannot be settled; `channel.cancel(message.offset)` cancels it. `attempts` is its number of deliveries.

    Attributes:
        due: when it is ready, in UTC.
    """

    __slots__ = ("due",)

    def __init__(self, loop_thread: LoopThread, inner: deferred.DeferredMessage) -> None:
        """Made by the channel."""
        super().__init__(loop_thread, inner)
        self.due: datetime = inner.due


async def _release(inner: message.Message) -> None:
    """Release a message whose block ended without settling it."""
    inner._given_back(None)  # noqa: SLF001 - as above


def give_back(messages: Iterable[Message]) -> None:
    """Release messages that an interrupted caller has not got. On the loop."""
    for each in messages:
        if not each.settled:
            with suppress(DeliveryError, QueueShutDown, StoreFailedError):
                each._message.release()  # noqa: SLF001 - as above
