"""Transactions: acks and puts that take effect together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast

from aiodq.delivery.range_set import RangeSet
from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.validation import no_body
from aiodq.engine.channel.addressed import FOR
from aiodq.engine.channel.lease.held_runs import held_runs, mark_settled
from aiodq.engine.channel.lease.in_flight import InFlight
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.engine.channel.settling_channel import SettlingChannel
from aiodq.engine.transactions.participants import AckRun, Channel, Topic, joined_runs
from aiodq.engine.transactions.pending_puts import Checked, PendingPuts, cost_of, in_columns
from aiodq.engine.transactions.task_transactions import Joinable, TransactionHost
from aiodq.errors import (
    AlreadySettledError,
    InvalidMessageTypeError,
    InvalidOptionTypeError,
    MessageSizeError,
    NotInFlightError,
    WrongContextError,
)
from aiodq.format.layout import BytesLike
from aiodq.names import check_topic_name
from aiodq.onlyasync import AsyncBlock
from aiodq.values import several, shown_typed

__all__ = ["Held", "Transaction"]


class Held(Protocol):
    """A message that a transaction can settle: an `aiodq.Message` in flight."""

    @property
    def topic(self) -> str:
        """The name of its topic."""
        ...

    @property
    def offset(self) -> int:
        """Its offset there."""
        ...

    @property
    def settled(self) -> bool:
        """Whether it was acked, requeued or released."""
        ...

    def _claim(self) -> tuple[SettlingChannel, int]:
        """Return the channel and the delivery number by which the transaction settles it."""
        ...

    def _given_back(self, error: BaseException | None) -> None:
        """Requeue it, if it is still in flight here, as the transaction did not commit, for this reason."""
        ...


_AT_ONCE: Final = 5000
"""Messages marked as settled in one turn of the event loop: a millisecond's work."""

_SHORT: Final = 16
"""Messages in a run, as a mean, below which sorting the runs pays; no more than these are taken in the order given."""


def _in_order(runs: Iterable[AckRun]) -> list[AckRun]:
    """Return runs in the order of their offsets, those of a channel together."""
    channels: dict[Channel, list[AckRun]] = {}
    for run in runs:
        channels.setdefault(run.channel_engine, []).append(run)
    return [run for those in channels.values() for run in sorted(those, key=attrgetter("start"))]


class Transaction(AsyncBlock):
    """Acks and puts over any channels and topics of a store, all or nothing through any crash: `Store.transaction`.

    ```python
    async with store.transaction() as tx:
        tx.ack(message)
        tx.put("invoices", body)
    ```

    Nothing takes effect before the block ends. When the block has ended without an error, everything in it is durable,
    under any `sync` policy, and what was put is visible. That costs one sync, which transactions that commit together
    share. After an exception in the block nothing is done: the messages to be acked are still in flight. A worker that
    acks a message and puts its results in one transaction processes each message exactly once, as far as the store is
    concerned, however often the worker is killed.

    ```python
    async with store.transaction() as tx:
        async with await jobs.get() as job:  # joins: its success is `tx.ack(job)`
            tx.put("invoices", work(job))
    ```

    A message's own `async with` inside the block, in the same task, joins the transaction. If the message's block ends
    with an exception, nothing of the transaction is done, even if the exception is caught before it leaves the
    transaction's block. Messages that joined are then requeued, as by their own blocks. An explicit `await
    message.ack()` in the block is not part of the transaction: it acks at once. Nor is a message's block in another
    task, even one that was started inside the transaction's block; but such a task may call `tx.ack` and `tx.put`.
    Messages of another store are acked by their own blocks. Transactions of one store do not nest in one task. `async
    with message.transaction() as tx` is the short form for one message.

    In a topic with `max_messages`, the messages that a transaction acks make room for those that it puts: a worker that
    acks a message of a full topic and puts one into the same topic does not wait, not even for puts that wait for
    room already. This holds if the transaction acks as many messages in every channel of the topic. In a topic with
    several channels, or with `max_bytes`, its puts wait for room like any put. A worker whose own acks are the only
    ones would then wait for ever; with `overflow="reject"` it gets `QueueFull` instead. While a transaction waits for
    room in one topic, it reserves none in another, or for a second at most: the consumer that makes the room may itself
    have to put there.

    How it works, and what else it costs: `aiodq.format.transactions`. The bodies are written twice, first to the
    store's transaction log, then to their topics.
    """

    store_ref: object = None
    """The reference that keeps the store open."""

    def __init__(self, host: TransactionHost, own: Held | None = None) -> None:
        """Called by `Store.transaction` and `Message.transaction`; `own` is a message that joins at the start."""
        self._host = host
        self._own = own
        self._messages: list[Held] = []
        self._runs: list[AckRun] = []
        self._offsets: dict[Channel, RangeSet] = {}
        self._engines: dict[Channel, Topic] = {}
        self._joined: list[Held] = []
        self._taken: Sequence[Held] = ()
        self._puts: dict[str, PendingPuts] = {}
        self._cost = self._largest = 0
        self._task: asyncio.Task[Any] | None = None
        self._entered = self._over = False
        self._hindrance: BaseException | None = None

    def __repr__(self) -> str:
        """Show its state and contents."""
        standing = "over" if self._over else "under way" if self._entered else "not begun"
        puts = sum(pending.count for pending in self._puts.values())
        return f"<Transaction {standing}, {len(self._messages)} to ack, {puts} to put [{self._host.path}]>"

    def ack(self, message: Held) -> None:
        """Settle a message when the transaction commits.

        Raises:
            AlreadySettledError: settled before, or in this transaction.
            NotInFlightError: no longer in flight, or of another store.
            WrongContextError: outside the block, or after a message's block in it ended with an exception.
        """
        self.ack_many((message,))

    def ack_many(self, messages: Iterable[Held]) -> None:
        """Settle messages when the transaction commits: all of them, or none if this raises.

        Raises:
            AlreadySettledError: one was settled before, or in this transaction, or is given twice.
            NotInFlightError: one is no longer in flight, or of another store.
            WrongContextError: as for `ack`.
        """
        self._check()
        found = several(messages)
        if found is None:
            raise InvalidOptionTypeError(
                f"ack_many takes a list of messages, not {shown_typed(messages)}: write tx.ack(message) for one"
            )
        self._add_messages(list(found))

    def _add_messages(self, messages: list[Held]) -> None:
        runs = self._runs_of(messages)
        offsets = self._offsets_with(runs)
        if offsets is None:
            message = self._named_twice(messages)
            raise AlreadySettledError(f"message {message.offset} of {message.topic!r} is in the transaction already")
        for run in runs:
            run.channel_engine.check_all(run.start, run.stop, run.delivery)
        self._messages += messages
        self._runs += runs
        self._offsets.update(offsets)

    def _runs_of(self, messages: list[Held]) -> list[AckRun]:
        """Return the runs that messages form, in which they are checked, committed and written.

        Raises:
            AlreadySettledError, NotInFlightError: as for `ack`.
            InvalidOptionError: one is no message; also a `TypeError`.
        """
        if len(messages) <= _SHORT or not all(issubclass(kind, InFlight) for kind in set(map(type, messages))):
            return list(joined_runs(map(self._run_of, messages)))
        by_lease, apart = held_runs(cast("list[InFlight]", messages), self._is_ours)
        runs = [self._run_in(lease, first, count) for lease, places in by_lease.items() for first, count in places]
        runs += [self._run_of(message) for message in cast("list[Held]", apart)]
        return list(joined_runs(_in_order(runs) if len(runs) * _SHORT > len(messages) else runs))

    def _is_ours(self, lease: MessageLease) -> bool:
        return lease.channel_engine is not None and self._engine_of(lease.topic, lease.channel_engine) is not None

    def _run_in(self, lease: MessageLease, first: int, count: int) -> AckRun:
        channel_engine = cast("SettlingChannel", lease.channel_engine)  # as `_is_ours` found
        start = lease.first + first
        return AckRun(self._engines[channel_engine], channel_engine, start, start + count, lease.number + first)

    def _run_of(self, message: Held) -> AckRun:
        if not hasattr(type(message), "_claim"):
            raise InvalidOptionTypeError(
                f"what is acked is a message, not {shown_typed(message)}: write "
                "tx.ack(message) with what `await channel.get()` gave"
            )
        channel_engine, delivery = message._claim()  # noqa: SLF001 - the transaction settles it instead of the message
        engine, offset = self._engine_of(message.topic, channel_engine), message.offset
        if engine is None:
            raise NotInFlightError(f"message {offset} of {message.topic!r} is not in flight in this store")
        return AckRun(engine, channel_engine, offset, offset + 1, delivery)

    def _engine_of(self, topic: str, channel_engine: Channel) -> Topic | None:
        """Return the engine of a channel's topic; None if it is not of this store."""
        engine = self._engines.get(channel_engine)
        if engine is None:
            engine = self._host.topics.get(topic)
            if engine is None or engine.channel_engines.get(channel_engine.name) is not channel_engine:
                return None
            self._engines[channel_engine] = engine
        return engine

    def _offsets_with(self, runs: Iterable[AckRun]) -> dict[Channel, RangeSet] | None:
        """Return the offsets, by channel, that the transaction then settles; None if one comes twice."""
        ranges: dict[Channel, list[tuple[int, int]]] = {}
        for _, channel_engine, start, stop, _ in runs:
            ranges.setdefault(channel_engine, []).append((start, stop))
        offsets: dict[Channel, RangeSet] = {}
        for channel_engine, those in ranges.items():
            before = self._offsets.get(channel_engine)
            offsets[channel_engine] = RangeSet() if before is None else before.copy()
            if not offsets[channel_engine].add_all(those):
                return None
        return offsets

    def _named_twice(self, messages: Iterable[Held]) -> Held:
        """Return the first of these messages that is in the transaction, or before it among them."""
        there: set[tuple[Channel, int]] = set()
        for message in messages:
            channel_engine, _ = message._claim()  # noqa: SLF001 - as above
            place = channel_engine, message.offset
            if place in there or self._settles(*place):
                return message
            there.add(place)
        raise ValueError("none is named twice")

    def _settles(self, channel_engine: Channel, offset: int) -> bool:
        return channel_engine in self._offsets and offset in self._offsets[channel_engine]

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
        if isinstance(body, Draft):
            raise InvalidMessageTypeError(no_body(body))
        self._put(topic, (body,), Draft(b"", tag, key, headers, delay, ttl))

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

        They are checked before this returns, which blocks the event loop: less than a millisecond for a thousand
        bodies, or drafts with bodies of `bytes`. Put very many in several calls, and yield to the event loop between.

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
        self._put(topic, bodies, Draft(b"", tag, key, headers, delay, ttl))

    def _put(self, topic: str, bodies: Iterable[BytesLike | Draft], common: Draft) -> None:
        self._check()
        topic = check_topic_name(topic, self._host.topics)
        pending = self._puts.get(topic) or PendingPuts(self._host.engine(topic))
        self._add(topic, pending, pending.engine.put_buffer.accepted_many(bodies, common))

    def _add(self, topic: str, pending: PendingPuts, added: Checked) -> None:
        cost = cost_of(added)
        if self._cost + cost > self._largest:
            raise MessageSizeError(
                f"a transaction holds up to {self._largest} bytes of messages, with their keys, tags and headers; put "
                "them in several"
            )
        if added:
            self._cost += cost
            pending.add(added, cost)
            self._puts[topic] = pending

    def _put_for(self, channel: str, topic: str, body: bytes, draft: Draft) -> None:
        """Put a message with a draft's tag, key and headers that one channel alone gets; for `aiodq.requeue`."""
        self._check()
        topic = check_topic_name(topic, self._host.topics)
        pending = self._puts.get(topic) or PendingPuts(self._host.engine(topic))
        buffer = pending.engine.put_buffer
        accepted = buffer.accepted(draft)
        addressed = accepted._replace(headers={**(accepted.headers or {}), FOR: channel})
        self._add(topic, pending, [(addressed, buffer.body(body))])

    def _ack_taken(self, messages: Sequence[Held]) -> None:
        """Settle messages that only the caller holds, and which it releases after an error; for `aiodq.requeue`."""
        self._taken = messages
        self.ack_many(messages)

    def _check(self) -> None:
        self._host.check()
        if not self._entered or self._over:
            raise WrongContextError("a transaction is used inside its `async with` block, and once")
        self._check_unhindered()

    def _check_unhindered(self) -> None:
        if self._hindrance is not None:
            raise WrongContextError(
                "a message's block in this transaction ended with an exception, so nothing of the transaction is done; "
                "let the exception out of the transaction's block, or begin a transaction for each message"
            ) from self._hindrance

    # --- called by a message's own `async with` block

    def _join(self, message: Held) -> None:
        """Settle a message when the transaction commits; requeue it if the transaction does not commit.

        Raises:
            As for `ack`, except that a message that is already in the transaction is accepted.
        """
        self._check()
        run = self._run_of(message)
        if self._settles(run.channel_engine, run.start):
            run.channel_engine.check_all(run.start, run.stop, run.delivery)
        else:
            self._add_messages([message])
        self._joined.append(message)

    def _end(self, error: BaseException) -> None:
        """Abandon the transaction, as a message's block in it ended with an exception; requeue what joined."""
        self._hindrance = self._hindrance or error
        self._give_back(error)

    def _give_back(self, error: BaseException) -> None:
        joined, self._joined = self._joined, []
        for message in joined:
            message._given_back(error)  # noqa: SLF001 - as in `_run_of`

    # --- the block

    async def __aenter__(self) -> Self:
        """Begin the transaction.

        Raises:
            WrongContextError: it was begun before, or this task is in another transaction's block of this store.
            AlreadySettledError, NotInFlightError: of `Message.transaction`: the message cannot be acked.
        """
        if self._entered:
            raise WrongContextError("a transaction is used once")
        self._task = self._host.transactions.enter(Joinable(self._join, self._end))
        self._entered, self._largest = True, self._host.committer.largest
        if self._own is not None:
            try:
                self._join(self._own)
            except BaseException:
                self._leave()
                raise
        return self

    def _leave(self) -> None:
        self._over = True
        self._host.transactions.leave(self._task)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; after an exception in the block, drop everything.

        Raises:
            NotInFlightError: a message is no longer in flight: it timed out, or by a seek, or the block has settled it
                by itself as well. Nothing was done.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Nothing was done.
            QueueShutDown: the store is closed. Nothing was done.
            DiskFullError: nothing was done; retrying is safe.
            WrongContextError: a message's block in it ended with an exception that was caught. Nothing was done.
            StorageError: a topic that is put into cannot be created, for example because a file lies in its place, or
                cannot be used. Nothing was done.
            StoreFailedError: the store has stopped; after it is opened again, all of it is done, or nothing.

        Cancellation: before the writer takes it, nothing is done. After that it is committed, although the caller is
        cancelled.
        """
        self._leave()
        if self._host.inherited:
            if error is None:
                self._host.check()  # what was done here does not pass for done
            return
        if error is not None:
            self._give_back(error)
            return
        try:
            self._check_unhindered()
            await self._commit()
        except BaseException as hindrance:
            # If the commit goes on though its caller was cancelled, its messages are held until it has ended.
            self._give_back(hindrance)
            raise

    async def _commit(self) -> None:
        if not (self._messages or self._puts):
            return
        self._host.check()
        messages, ours = self._messages, (*self._joined, *self._taken)

        def ended(error: BaseException | None) -> None:
            if error is None:
                mark_settled(cast("list[InFlight]", messages))
                return
            for message in ours:
                message._given_back(None)  # noqa: SLF001 - as in `_run_of`

        puts = await in_columns(self._puts.values())
        try:
            await self._host.committer.commit(self._runs, puts, ended)
        except NotInFlightError as error:
            apart = next((message for message in messages if message.settled), None)
            if apart is None:
                raise
            name = f"message {apart.offset} of {apart.topic!r}"
            text = f"{name} was settled apart from the transaction, after it had been acked in it; nothing was done"
            raise NotInFlightError(text) from error
        try:
            # Freed in pieces: freeing very many objects at once holds up the event loop as well.
            while len(messages) > _AT_ONCE:
                mark_settled(cast("list[InFlight]", messages[-_AT_ONCE:]))
                del messages[-_AT_ONCE:]
                await asyncio.sleep(0)
        finally:
            ended(None)
