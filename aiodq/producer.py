"""The methods that put messages: common to topics and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

from aiodq.by_name import known_as
from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.put_batch import OVERHEAD, PLAIN, Accepted, plain_lengths
from aiodq.engine.batch.validation import list_bodies
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.topic.commit.group_commit import GIVE_WAY
from aiodq.engine.topic.puts.open_topic import OpenTopic
from aiodq.engine.topic.puts.receipt import Receipt
from aiodq.format.columns import Columns
from aiodq.format.layout import BytesLike
from aiodq.uncopied import Uncopied

__all__ = ["Producer"]

_AT_ONCE: Final = 10_000
"""Bodies checked in one turn of the event loop: about a millisecond's work."""

_FEW: Final = 250
"""The same for messages with more than a body: a draft with headers takes five microseconds or more."""


@known_as("Topic")
class Producer(Uncopied):
    """The base class of topics and queues, which put messages into a topic."""

    _engine: OpenTopic

    async def put(
        self,
        body: BytesLike,
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> int:
        """Store a message and return its offset, once it is as durable as the store's `sync` policy says.

        Under `"always"` that is after fdatasync; puts that wait together share one. If the queue is full, it waits for
        room if the policy is `"block"`, or if `"drop_oldest"` may drop nothing, as messages in flight take up the room.

        Args:
            body: the message: `bytes`, `bytearray` or `memoryview`; text as `text.encode()`.
            tag: a short text that channels may filter by, up to 64 KiB; None for none.
            key: bytes that name what the message is about, up to 1 MiB; None for none.
            headers: text by text, up to 1 MiB in all, but not `aiodq-for`, aiodq's own; None for none.
            delay: seconds, or a `timedelta`, before which it is not delivered; the due time is kept on disk.
            ttl: seconds, or a `timedelta`, counted from now, after which it is no longer delivered, but settled or made
                a dead letter, wherever it is in the backlog. A consumer that holds it at that time keeps it.

        Returns:
            The message's offset: its number in the queue, from 0.

        Raises:
            MessageSizeError: smaller or larger than the options allow; nothing was written.
            InvalidMessageError: it cannot be stored like that; also a `TypeError` if a part has a wrong type. Nothing
                was written.
            QueueFull: the bound is reached and the policy is `"reject"`.
            QueueShutDown: shut down, or the store is closed.
            DiskFullError: no space; nothing was written, and later puts may succeed.
            StoreFailedError: the store has stopped, its cause in `__cause__`.

        Cancellation: before the writer takes the message's batch (if another process owns the store: while it waits for
        room), the message is not stored. After that it is stored, although this call does not return.
        """
        if not (tag is None and key is None and headers is None and delay is None and ttl is None):
            return await self._put_labelled(body, Draft(b"", tag, key, headers, delay, ttl))
        commit = self._engine.group_commit
        if commit.inline:
            offset = commit.put_now(body)
            if offset == GIVE_WAY:
                await asyncio.sleep(0)
                offset = commit.put_now(body, gave_way=True)
            if offset >= 0:
                return offset
        waiter = commit.put_lone(body) if commit.lone else commit.accept(body)
        put_buffer = self._engine.put_buffer
        if waiter is None:
            data = put_buffer.body(body)
            self._engine.check()
            waiter = await put_buffer.enter_one(PLAIN, data)
        try:
            return await waiter
        except asyncio.CancelledError:
            put_buffer.withdrawn()
            raise

    async def _put_labelled(self, body: BytesLike, labels: Draft) -> int:
        """Do as `put`, for a message with more than a body."""
        engine, commit, put_buffer = self._engine, self._engine.group_commit, self._engine.put_buffer
        data, message = put_buffer.body(body), put_buffer.accepted(labels)
        offset = commit.put_labelled_now(message, data)
        if offset == GIVE_WAY:
            await asyncio.sleep(0)
            offset = commit.put_labelled_now(message, data, gave_way=True)
        if offset >= 0:
            return offset
        waiter = commit.put_lone_labelled(message, data)
        if waiter is None:
            engine.check()
            waiter = await put_buffer.enter_one(message, data)
        try:
            return await waiter
        except asyncio.CancelledError:
            put_buffer.withdrawn()
            raise

    async def put_many(
        self,
        bodies: Iterable[BytesLike | Draft],
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> range:
        """Store messages as one atomic batch and return their offsets: after a crash all of them are there, or none.

        Args:
            bodies: bytes-like, or `Draft` objects with a tag, key, headers, delay and ttl of their own.
            tag: for those that are not drafts: a short text that channels may filter by; None for none.
            key: for those that are not drafts: bytes that name what the message is about.
            headers: for those that are not drafts: text by text.
            delay: for those that are not drafts: seconds, or a `timedelta`, before which they are not delivered.
            ttl: for those that are not drafts: seconds, or a `timedelta`, counted from now, after which they are not
                delivered any more.

        Returns:
            Their offsets, which are consecutive.

        Raises:
            MessageSizeError, InvalidMessageError: one of them cannot be stored like that; nothing was written.
            QueueFull: the bound is reached and the policy is `"reject"`.
            QueueShutDown: shut down, or the store is closed.
            DiskFullError: no space; nothing was written, and later puts may succeed.
            StoreFailedError: the store has stopped, its cause in `__cause__`.

        Cancellation: before the writer takes the batch, none is stored. After that all are stored, although this call
        does not return.
        """
        engine = self._engine
        put_buffer = engine.put_buffer
        bodies = list_bodies(bodies)
        if bodies and tag is None and key is None and headers is None and delay is None and ttl is None:
            few = len(bodies) <= _AT_ONCE
            found = plain_lengths(bodies, engine.options) if few else await self._plain_lengths(bodies)
            if found is not None:
                lengths, total = found
                plain_ones = Columns(cast("list[bytes]", bodies), lengths=lengths)
                return await self._put_columns(plain_ones, total + OVERHEAD * len(lengths))
        columns, cost = await self._columns(bodies, put_buffer.accepted(Draft(b"", tag, key, headers, delay, ttl)))
        engine.check()
        if not bodies:
            if put_buffer.shut:
                raise QueueShutDown("the queue was shut down")
            return range(engine.visible, engine.visible)
        return await self._put_columns(columns, cost)

    async def _columns(self, bodies: list[Any], shared: Accepted) -> tuple[Columns, int]:
        """Return messages as they are stored, and their cost; a few in each turn, as very many would block the loop.

        Raises:
            MessageSizeError, InvalidMessageError: one cannot be stored.
        """
        put_buffer = self._engine.put_buffer
        now_ns = put_buffer.moment()
        piece, cost = put_buffer.accepted_columns(bodies[:_FEW], shared, now_ns)
        pieces = [piece]
        for start in range(_FEW, len(bodies), _FEW):
            await asyncio.sleep(0)
            piece, more = put_buffer.accepted_columns(bodies[start : start + _FEW], shared, now_ns)
            pieces.append(piece)
            cost += more
        return Columns.joined(pieces), cost

    async def _plain_lengths(self, bodies: list[Any]) -> tuple[list[int], int] | None:
        """Do as `plain_lengths`, some in each turn of the loop: checking very many at once would block it."""
        options, lengths, total = self._engine.options, list[int](), 0
        for start in range(0, len(bodies), _AT_ONCE):
            some = plain_lengths(bodies[start : start + _AT_ONCE], options)
            if some is None:
                return None
            lengths += some[0]
            total += some[1]
            await asyncio.sleep(0)
        return lengths, total

    async def _put_columns(self, columns: Columns, cost: int) -> range:
        """Do as `put_many`, for messages that were checked and cost so many bytes of memory."""
        engine, put_buffer = self._engine, self._engine.put_buffer
        offset = engine.group_commit.put_many_now(columns, cost)
        if offset == GIVE_WAY:
            await asyncio.sleep(0)
            offset = engine.group_commit.put_many_now(columns, cost, gave_way=True)
        if offset >= 0:
            return range(offset, offset + len(columns.bodies))
        engine.check()
        waiter = await put_buffer.enter_columns(columns, cost)
        try:
            return await waiter
        except asyncio.CancelledError:
            put_buffer.withdrawn()
            raise

    def put_nowait(
        self,
        body: BytesLike,
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> Receipt:
        """Accept a message into the buffer; `await receipt` gives its offset once it is durable.

        Args:
            body: the message: `bytes`, `bytearray` or `memoryview`; text as `text.encode()`.
            tag: a short text that channels may filter by, up to 64 KiB; None for none.
            key: bytes that name what the message is about, up to 1 MiB; None for none.
            headers: text by text, up to 1 MiB in all, but not `aiodq-for`, aiodq's own; None for none.
            delay: seconds, or a `timedelta`, before which it is not delivered; the due time is kept on disk.
            ttl: seconds, or a `timedelta`, counted from now, after which it is not delivered any more.

        Raises:
            QueueFull: there is no room now.
            MessageSizeError: smaller or larger than the options allow; nothing was accepted.
            InvalidMessageError: it cannot be stored like that; also a `TypeError` if a part has a wrong type. Nothing
                was accepted.
            QueueShutDown: shut down, or the store is closed.
            StoreFailedError: the store has stopped.
        """
        if tag is None and key is None and headers is None and delay is None and ttl is None:
            accepted = self._engine.group_commit.accept_nowait(body)
            if accepted is not None:
                return Receipt(accepted, self._engine.loop)
        self._engine.check()
        put_buffer = self._engine.put_buffer
        data = put_buffer.body(body)
        message = put_buffer.accepted(Draft(data, tag, key, headers, delay, ttl))
        return Receipt(put_buffer.accept_nowait(message, data), self._engine.loop)
