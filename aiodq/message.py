"""The message that a consumer gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, SupportsIndex

from aiodq.awaited import shielded
from aiodq.delivery.leases import ACKED, APART, MEASURED, SETTLED
from aiodq.engine.batch.validation import span_ns
from aiodq.engine.channel.dead_lettering.failure_causes import Consequence, Handling, cause_of, reason_of
from aiodq.engine.channel.lease.in_flight import InFlight, message_of
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.engine.channel.settling_channel import SettlingChannel
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.transactions.task_transactions import Joinable
from aiodq.errors import (
    AlreadySettledError,
    InvalidMessageError,
    InvalidMessageTypeError,
    NotInFlightError,
    OwnerLostError,
    OwnerStalledError,
    StoreFailedError,
)
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.onlyasync import AsyncBlock
from aiodq.options import Backoff, next_wait
from aiodq.outcomes import Reject, Retry
from aiodq.transaction import Transaction
from aiodq.values import check_flag, shown_typed

__all__ = ["Message", "look_at", "pieces_of"]


_IN_A_TURN: Final = 250
"""Messages that a scan yields in one turn of the loop: two milliseconds' work, and the caller's comes to it."""

_NO_ATTEMPT: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end the task or the program rather than the attempt: they do not count as an attempt."""
_NOT_DONE: Final = (NotInFlightError, OwnerLostError, OwnerStalledError)
"""Exceptions by which the owner of a shared store refuses a settlement, or does not answer: it is not settled here."""


class Message(AsyncBlock, InFlight):
    """A message handed to a consumer, in flight until it is settled.

    `async with message` acks it on success, requeues it on an exception, and releases it (as if it had never been
    delivered) when the task is cancelled. Inside the block of `Store.transaction` it joins the transaction instead of
    acking. `Retry` and `Reject` choose what happens to the message; every exception is passed on. A message that is not
    settled within the channel's `visibility_timeout` is redelivered; messages in flight at a crash are redelivered when
    the store is next opened.

    Attributes:
        body: the bytes that were put.
    """

    __slots__ = ()

    _run: MessageLease
    _handling: Handling

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> str | tuple[Any, ...]:
        """Copy or pickle a message, which is allowed if it was only looked at.

        Raises:
            TypeError: it was handed out by a channel.
        """
        if self._run.channel_engine is not None:
            return super().__reduce_ex__(protocol)
        return object.__reduce_ex__(self, protocol)

    @property
    def attempts(self) -> int:
        """1 at the first delivery. With `max_attempts`, a delivery during which the process died counts too."""
        return self._run.attempts

    @property
    def channel(self) -> str:
        """The name of its channel; empty for a message that was only looked at."""
        channel_engine = self._run.channel_engine
        return "" if channel_engine is None else channel_engine.name

    @property
    def _delivery(self) -> int:
        return self._run.number + self._index

    @property
    def _settled(self) -> bool:
        return self._run.marks[self._index] >= ACKED

    @property
    def _channel_engine(self) -> SettlingChannel | None:
        return self._run.channel_engine

    async def ack(self) -> None:
        """Settle the message: it is never delivered again once this returns.

        The settling takes effect when called; the return waits until it is as durable as the store's `sync` policy
        makes it. `ack_nowait` does not wait. As FIN in NSQ, but on disk.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile: it timed out, or by a purge.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
            DiskFullError: settled, but not durably so; it will be once there is space.
            StoreFailedError: the store has stopped; after opening again the message may be redelivered.
            OwnerLostError, OwnerStalledError: in a shared store: no owner has answered yet. The ack is repeated
                automatically; calling this again waits for it.

        Cancellation: settled anyway, durable with the next commit; a crash before that redelivers. If a task made of
            this is cancelled before its first step, nothing is settled.
        """
        self.ack_nowait()
        run = self._run
        if (channel_engine := run.channel_engine) is not None:
            try:
                await channel_engine.commit(run, self._index)
            except _NOT_DONE:
                run.marks[self._index] = APART
                raise

    def _ack_otherwise(self) -> None:
        """Ack a message that is measured or has an entry of its own; otherwise raise why it cannot be acked."""
        run, channel_engine = self._run, self._take()
        channel_engine.check_context()
        if run.marks[self._index] == MEASURED:
            channel_engine.ack_run(run, self._index, 1)
            self._store_ref = None
        else:
            channel_engine.ack(self.offset, self._delivery)
            self._committed()

    async def nack(self, delay: float | timedelta | None = None, *, count_attempt: bool = True) -> None:
        """Requeue the message: it is ready again at once or after a delay, in offset order, ahead of newer ones.

        As REQ in NSQ, but the due time is on disk with the next commit, within milliseconds; this does not wait for it,
        and a crash before that redelivers at once. If the channel's `max_attempts` is reached, the message is given up
        instead.

        Args:
            delay: seconds, or a `timedelta`; None: as the channel's `backoff` says, or at once without one.
            count_attempt: whether this delivery counts in `attempts` of the next one.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
            InvalidMessageError: a negative delay; nothing changed.
            InvalidOptionError: `count_attempt` is neither True nor False; a `TypeError` too. Nothing changed.

        Cancellation: requeued anyway.
        """
        self.nack_nowait(delay, count_attempt=count_attempt)
        await asyncio.sleep(0)

    def nack_nowait(self, delay: float | timedelta | None = None, *, count_attempt: bool = True) -> None:
        """Requeue, as `nack`.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
            InvalidMessageError: a negative delay; nothing changed.
            InvalidOptionError: `count_attempt` is neither True nor False; a `TypeError` too. Nothing changed.
        """
        wait = span_ns(delay, "delay")
        check_flag("count_attempt", count_attempt)
        channel_engine = self._take()
        attempts = self.attempts if count_attempt else self.attempts - 1
        channel_engine.nack(self._batch(), self._delivery, attempts, wait)
        self._committed()

    async def reject(self, reason: str = "") -> None:
        """Give the message up: it goes to the channel's dead-letter topic, with headers that say where from and why.

        The headers are `aiodq-topic`, `aiodq-channel`, `aiodq-offset`, `aiodq-attempts`, `aiodq-reason` and
        `aiodq-time`, besides its own headers; and if an exception was the cause, `aiodq-error`, its type and text.
        Without a dead-letter topic the message is dropped and counted as dead, as durably as an ack. The letter is put
        and the message settled in one transaction, and this returns once that is durable: no crash leaves the message
        in both topics, or in none.

        Args:
            reason: as text, truncated to 1 KiB.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
            InvalidMessageError: the reason is not a text; nothing changed.
            StorageError: the dead-letter topic could not take it now; the message is redelivered.
            OwnerLostError, OwnerStalledError: in a shared store: no owner has answered yet. It is repeated
                automatically; calling this again waits for it.

        Cancellation: rejected anyway.
        """
        if not isinstance(reason, str):
            raise InvalidMessageTypeError(f"reason is a text, not {shown_typed(reason)}: write reject(str(reason))")
        channel_engine = self._take()
        rejected = channel_engine.reject(self._batch(), self._delivery, self.attempts, reason)
        self._committed()
        try:
            # CRASH: a dead letter's transaction settles the message, so it is the only thing to wait for.
            await (channel_engine.committed() if rejected is None else shielded(rejected))
        except _NOT_DONE:
            self._run.marks[self._index] = APART
            raise

    async def touch(self, extend: float | timedelta | None = None) -> None:
        """Restart the message's timeout, for work that takes long. As TOUCH in NSQ, without a limit.

        Args:
            extend: seconds from now, or a `timedelta`; None for the channel's `visibility_timeout`.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it has timed out already.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
            InvalidMessageError: a negative time; nothing changed.

        Cancellation: completed anyway.
        """
        span = span_ns(extend, "extend")
        self._take().touch(self.offset, self._delivery, span)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[Self]:
        """Keep the message from timing out as long as the block lasts, for work of unknown length.

        ```python
        async with message, message.renewing():
            await work_that_may_take_hours(message)
        ```

        At the end of the block its `visibility_timeout` starts again. This costs one check per timeout. `consume` does
        it automatically. It needs a running event loop: in a shared store, a process that blocks its loop for longer
        than the timeout loses the messages that it holds, and their acks raise `NotInFlightError`. Do such work in a
        thread.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it has timed out already.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.

        Cancellation: the block is cancelled; the message may time out from then on.
        """
        self._take().check(self.offset, self._delivery)
        self._renew()
        try:
            yield self
        finally:
            self._renew_no_more()

    def _own_handling(self) -> Handling | None:
        """Return the `_handling` of a message that `consume` processes; None for any other message."""
        return getattr(self, "_handling", None)

    def _consumed(self, backoff: Backoff) -> None:
        """Note that `consume` processes the message, so that it waits after a failure in any block."""
        self._handling = Handling(backoff)

    def _renew(self) -> None:
        """Keep the message from timing out, until `_renew_no_more` was called as many times."""
        self._take().renew(self._run.number + self._index)

    def _renew_no_more(self) -> None:
        run = self._run
        channel_engine = run.channel_engine
        if (
            channel_engine is not None
            and channel_engine.renew_no_more(run.number + self._index)
            and run.marks[self._index] < ACKED
            and not channel_engine.transactions.host.inherited
            and channel_engine.holds(self.offset, self._delivery)
        ):
            channel_engine.touch(self.offset, self._delivery, None)

    def release(self) -> None:
        """Requeue the message as if it had never been delivered.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
        """
        channel_engine = self._take()
        channel_engine.release(self._batch(), self._delivery, self.attempts)
        self._committed()

    def _standing(self) -> str:
        channel_engine = self._channel_engine
        if channel_engine is None:
            return " only looked at"
        held = channel_engine.holds(self.offset, self._delivery)
        standing = "settled" if self._settled else "in flight" if held else "taken away"
        return f" {standing} in {self.channel!r}, attempt {self.attempts}"

    @property
    def settled(self) -> bool:
        """Whether it was acked, requeued or released."""
        return self._settled

    async def __aenter__(self) -> Self:
        """Return the message."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle the message unless the block did: ack it, requeue it after an exception, or release it if cancelled.

        In a transaction's block of the same task, it joins the transaction instead of being acked, and an exception
        abandons the transaction. A forked child that ends in the block leaves the message to the parent, which has it.
        """
        transactions = None if self._channel_engine is None else self._channel_engine.transactions
        if transactions is not None and transactions.host.inherited:
            if error is None:
                transactions.host.check()  # the block's work was done in the child: it does not count for the parent
            return
        transaction = None if transactions is None else transactions.current()
        if error is not None:
            if transaction is not None:
                transaction.end(error)
            self._given_back(error)
        elif not self._settled:
            await (self.ack() if transaction is None else self._join(transaction))

    async def _join(self, transaction: Joinable) -> None:
        try:
            transaction.join(self)
        except BaseException as error:
            self._given_back(error)
            raise

    def transaction(self) -> Transaction:
        """Return a transaction that acks the message when it commits: `async with message.transaction() as tx`.

        After an exception in the block, or if the commit fails, the message is requeued, and after a cancellation
        released, as `async with message` does.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it was only looked at.
        """
        return Transaction(self._take().transactions.host, self)

    def _claim(self) -> tuple[SettlingChannel, int]:
        """Return the channel and the delivery number by which a transaction settles the message; for `Transaction`.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: it was only looked at.
        """
        return self._take(), self._delivery

    def _committed(self) -> None:
        """Note that its consumer has settled the message."""
        self._run.marks[self._index] = SETTLED
        self._store_ref = None

    def _given_back(self, error: BaseException | None) -> None:
        """Requeue the message, if it is still in flight here; its blocks, transactions and `consume` call this.

        Args:
            error: the exception that ended the attempt. With None, or an exception that ends the task or the program,
                it does not count as an attempt.
        """
        if error is not None and not isinstance(error, _NO_ATTEMPT):
            self._failed(error)
        elif not self._settled:
            with suppress(NotInFlightError, QueueShutDown, StoreFailedError):
                self.release()

    def _failed(self, error: BaseException, note: str = "") -> Consequence:
        """Settle the message after a failed attempt, unless it is settled; return what follows.

        Args:
            error: the exception that ended the attempt.
            note: see `Cause.note`.
        """
        handling = self._own_handling()
        if not self._settled:
            try:
                consequence = self._rejected(error) if isinstance(error, Reject) else self._retried(error, note)
            except (NotInFlightError, QueueShutDown, StoreFailedError):
                # That it was taken away meanwhile must not hide the exception under way.
                return Consequence("it was taken away meanwhile")
            self._committed()
            if handling is not None:
                handling.consequence = consequence
            return consequence
        return (handling and handling.consequence) or Consequence("it was settled before that")

    def _retried(self, error: BaseException, note: str) -> Consequence:
        channel_engine, handling = self._take(), self._own_handling()
        wait = None
        if isinstance(error, Retry):
            try:
                wait = span_ns(error.delay, "delay")
            except InvalidMessageError as invalid:  # it was set after it was checked: a failure as any other
                error = invalid
        if wait is None and handling is not None and channel_engine.options.backoff is None:
            wait = span_ns(next_wait(handling.backoff, self.attempts), "a delay")
        waits = channel_engine.nack(self._batch(), self._delivery, self.attempts, wait, cause_of(error, note))
        return self._given_up() if waits is None else Consequence(f"again in {waits / 1_000_000_000:.3g} s")

    def _rejected(self, rejection: Reject) -> Consequence:
        self._take().reject(self._batch(), self._delivery, self.attempts, reason_of(rejection), cause_of(rejection))
        return self._given_up()

    def _given_up(self) -> Consequence:
        topic = self._take().options.dead_letter
        return Consequence("given up and dropped" if topic is None else f"given up, into {topic!r}", final=True)

    def _done(self) -> None:
        """Ack the message if it is not settled and can be, without waiting for the commit."""
        if not self._settled:
            with suppress(NotInFlightError, QueueShutDown, StoreFailedError):
                self.ack_nowait()

    def _take(self) -> SettlingChannel:
        if self._run.marks[self._index] >= ACKED:
            raise AlreadySettledError(
                f"message {self.offset} of {self.topic!r} was settled before: ack, nack, reject or the end of "
                "`async with message` settles it, once"
            )
        channel_engine = self._run.channel_engine
        if channel_engine is None:
            raise NotInFlightError(
                f"message {self.offset} of {self.topic!r} was only looked at, by read, scan or peek: "
                "what `await channel.get()` gives can be settled"
            )
        return channel_engine

    def _batch(self) -> Batch:
        """Return the message as a batch of one, so that requeueing does not keep its neighbours in memory."""
        expiries, headers = self._run.expiries, self.headers
        columns = Columns(
            [self.body],
            tags=None if self.tag is None else [self.tag],
            keys=None if self.key is None else [self.key],
            headers=[headers] if headers else None,
            expiries=None if expiries is None else [expiries[self._index]],
        )
        return Batch(self.offset, self.timestamp_ns, columns)


def look_at(topic: str, batch: Batch, number: int, attempts: int = 0) -> Message:
    """Return the message at an index of a batch; it can be looked at, but not settled."""
    lease = MessageLease.of_one(topic, batch, number, attempts=attempts)
    return message_of(Message, lease, 0, batch.columns.bodies[number])


def pieces_of(batch: Batch) -> list[range]:
    """Return the indexes of a batch's messages in groups: a scan yields one group in each turn of the event loop."""
    indexes = range(len(batch.columns.bodies))
    return [indexes[begin : begin + _IN_A_TURN] for begin in indexes[::_IN_A_TURN]]
