"""Transactions of a thread: acks and puts that are done together or not at all."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import ref

from aiodq import message, transaction
from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.validation import list_bodies
from aiodq.errors import WrongContextError
from aiodq.format.layout import BytesLike
from aiodq.sync.loop_thread import LoopThread, OpenTransaction
from aiodq.uncopied import Uncopied
from aiodq.values import several

__all__ = ["Transaction", "inner_messages"]


class Held(Protocol):
    """What a transaction can settle: an `aiodq.sync.Message` in flight."""

    @property
    def held(self) -> bool:
        """Whether its holder may still settle it."""
        ...


class Transaction(Uncopied):
    """Acks and puts over any channels and topics of a store, all or nothing through any crash: `Store.transaction`.

    ```python
    with store.transaction() as tx:
        tx.ack(message)
        tx.put("invoices", body)
    ```

    Nothing happens before the block ends. When it returns, all of it is durable, under any `sync` policy. An exception
    in the block undoes everything: messages to be acked are still in flight.

    A message's own `with` inside the block, in the same thread, joins the transaction. If the message's block ends with
    an exception, so does the transaction, even if the exception is caught in between. An explicit settlement
    (`message.ack()`) is not part of it, nor is what another thread does; that thread may call `tx.ack` and
    `tx.put`. Transactions of one store do not nest in one thread. `with message.transaction() as tx` is the short form
    for one message. More: `aiodq.Transaction`.
    """

    _begun = False

    def __init__(self, loop_thread: LoopThread, inner: transaction.Transaction) -> None:
        """Made by `Store.transaction` and `Message.transaction`."""
        self._loop_thread = loop_thread
        self._transaction = inner
        self._over = False

    def __del__(self) -> None:
        """Drop everything, where Ctrl-C came instead of the end of the block, before that was asked of the loop."""
        if self._begun:
            self._loop_thread.post(partial(_abandon, self._transaction))

    def __repr__(self) -> str:
        """Show its state and contents."""
        return repr(self._transaction)

    def ack(self, message: Held) -> None:
        """Settle a message when the transaction commits.

        Raises:
            AlreadySettledError: settled before, or in this transaction.
            NotInFlightError: no longer in flight, or of another store.
            QueueShutDown: the store is closed.
            WrongContextError: outside the block, or after a message's block in it ended with an exception.
        """
        self.ack_many((message,))

    def ack_many(self, messages: Iterable[Held]) -> None:
        """Settle messages when the transaction commits: all of them, or none if this raises.

        Raises:
            AlreadySettledError: one was settled before, or in this transaction, or is given twice.
            NotInFlightError: one is no longer in flight, or of another store.
            InvalidOptionError: these are not messages; also a `TypeError`.
            QueueShutDown: the store is closed.
            WrongContextError: as for `ack`.
        """
        self._loop_thread.call(self._transaction.ack_many, inner_messages(messages))

    def put(
        self,
        topic: str,
        body: BytesLike,
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Put a message into a topic when the transaction commits.

        What a transaction puts into one topic is stored there together, in this order.

        Args:
            topic: its name; it is created if it does not exist.
            body: the message.
            tag: as for `Topic.put`.
            key: as for `Topic.put`.
            headers: as for `Topic.put`.
            delay: as for `Topic.put`, counted from this call.
            ttl: as for `Topic.put`, counted from this call.

        Raises:
            InvalidNameError, MessageSizeError, InvalidMessageError: it cannot be stored like that.
            QueueShutDown: the store is closed.
            WrongContextError: as for `ack`.
        """
        self._loop_thread.call(
            self._transaction.put, topic, body, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl
        )

    def put_many(
        self,
        topic: str,
        bodies: Iterable[BytesLike | Draft],
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Put messages into a topic when the transaction commits: all of them, or none if this raises.

        Args:
            topic: its name; it is created if it does not exist.
            bodies: bytes-like, or `Draft` objects with a tag, key, headers, delay and ttl of their own.
            tag: as for `Topic.put`, for those that are not drafts.
            key: as for `Topic.put`, for those that are not drafts.
            headers: as for `Topic.put`, for those that are not drafts.
            delay: as for `Topic.put`, for those that are not drafts, counted from this call.
            ttl: as for `Topic.put`, for those that are not drafts, counted from this call.

        Raises:
            As for `put`.
        """
        put_many, given = self._transaction.put_many, list_bodies(bodies)
        self._loop_thread.call(put_many, topic, given, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl)

    def __enter__(self) -> Self:
        """Begin the transaction.

        Raises:
            WrongContextError: it was begun before, or this thread is in another transaction's block of this store.
            AlreadySettledError, NotInFlightError: of `Message.transaction`: the message cannot be acked.
            QueueShutDown: the store is closed.
        """
        transactions = self._loop_thread.transactions
        this: ref[OpenTransaction] = ref(self)
        if transactions.current is not None:
            raise WrongContextError(
                "this thread is in a transaction of this store already, and transactions do not nest: use that one, or "
                "begin the other in a thread of its own"
            )
        self._loop_thread.take(self._transaction.__aenter__, _abandon)
        self._begun = True
        transactions.begun = this
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; after an exception in the block, drop everything. One in a forked child changes nothing.

        Raises:
            NotInFlightError: a message was taken away meanwhile: timed out or sought past. Nothing was done.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Nothing was done.
            QueueShutDown: the store is closed. Nothing was done.
            DiskFullError: nothing was done; retrying is safe.
            WrongContextError: a message's block in it ended with an exception that was caught, or the block ends
                without one in a forked child. Nothing was done.
            StorageError: a topic that is put into cannot be created or used. Nothing was done.
            StoreFailedError: the store has stopped; opened again, all of it was done, or nothing.

        Interrupted: before the writer takes it, nothing is done; after that it is committed, and only the caller does
        not know.
        """
        self._over = True
        if error is None:
            self._loop_thread.run(self._transaction.__aexit__, None, None, None)
        elif not self._loop_thread.inherited:
            self._loop_thread.leave(self._transaction.__aexit__, kind, error, trace)
        self._begun = False

    # --- what the thread and a message's own block ask

    @property
    def over(self) -> bool:
        """Whether its block has ended, in whichever thread."""
        return self._over

    def takes(self, message: message.Message) -> bool:
        """Return whether a message's block joins: one that was only read has nothing to settle."""
        return bool(message.channel)

    def settle(self, message: message.Message, error: BaseException | None) -> None:
        """Handle the end of a message's block in this one: settle it here, or end this with the error. On the loop."""
        if error is None and message.settled:
            return
        try:
            if error is None:
                self._transaction._join(message)  # noqa: SLF001 - as `aiodq.Message` does, for a task
            else:
                self._transaction._end(error)  # noqa: SLF001 - as above
        except BaseException as hindrance:
            message._given_back(hindrance)  # noqa: SLF001 - as above
            raise
        if error is not None:
            message._given_back(error)  # noqa: SLF001 - as above


async def _abandon(inner: transaction.Transaction) -> None:
    """End a transaction whose block an interrupted caller has not begun, or has left without its end."""
    await inner.__aexit__(CancelledError, CancelledError(), None)


def inner_messages(messages: Iterable[Held]) -> list[message.Message]:
    """Return the inner messages; anything else is left for the engine to refuse."""
    given = several(messages)
    inner: Any = messages if given is None else [getattr(each, "_message", each) for each in given]
    found: list[message.Message] = inner
    return found
