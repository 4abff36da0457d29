"""Putting messages from threads: what a topic and a queue have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from aiodq import producer
from aiodq.by_name import known_as
from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.validation import list_bodies
from aiodq.format.layout import BytesLike
from aiodq.sync.loop_thread import LoopThread
from aiodq.sync.receipt import Receipt
from aiodq.sync.spans import seconds, within
from aiodq.uncopied import Uncopied

__all__ = ["Producer"]


@known_as("Topic")
class Producer(Uncopied):
    """Puts messages into a topic: the base of `Topic` and `Queue`. Any number of threads may use it at once."""

    _loop_thread: LoopThread
    _producer: producer.Producer

    def put(
        self,
        body: BytesLike,
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> int:
        """Store a message and return its offset, once it is as durable as the store's `sync` policy says.

        Under `"always"` that is after fdatasync; puts of several threads that wait together share one. If the queue
        is `full`, it waits for room if the policy is `"block"`, or if `"drop_oldest"` may drop nothing, as messages in
        flight take up the room.

        Args:
            body: the message: `bytes`, `bytearray` or `memoryview`; text as `text.encode()`.
            tag: a short text that channels may filter by, up to 64 KiB; None for none.
            key: bytes that name what the message is about, up to 1 MiB; None for none.
            headers: text by text, up to 1 MiB in all; None for none.
            delay: seconds, or a `timedelta`, before which it is not delivered; the due time is kept on disk.
            ttl: seconds, or a `timedelta`, counted from now, after which it is no longer delivered.
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Returns:
            The message's offset: its number in the queue, from 0.

        Raises:
            TimeoutError: it took longer; as if interrupted.
            MessageSizeError: smaller or larger than the options allow; nothing was written.
            InvalidMessageError: it cannot be stored like that, also a `TypeError` if a part has a wrong type; nothing
                was written.
            QueueFull: the bound is reached and the policy is `"reject"`.
            QueueShutDown: shut down, or the store is closed.
            DiskFullError: no space; nothing was written, and later puts may succeed.
            StoreFailedError: the store has stopped, its cause in `__cause__`.

        Interrupted: before the writer takes its batch, the message is not stored; after that it is, and only the caller
        does not know.
        """
        put, wait = self._producer.put, seconds(timeout)
        if wait is None:
            return self._loop_thread.run(put, body, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl)
        return self._loop_thread.run(
            lambda: within(wait, put(body, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl))
        )

    def put_many(
        self,
        bodies: Iterable[BytesLike | Draft],
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> range:
        """Store messages as one atomic batch and return their offsets: after a crash all of it is there, or none.

        Args:
            bodies: bytes-like, or `Draft` objects with a tag, key, headers, delay and ttl of their own.
            tag: for those that are not drafts: a short text that channels may filter by; None for none.
            key: for those that are not drafts: bytes that name what the message is about.
            headers: for those that are not drafts: text by text.
            delay: for those that are not drafts: seconds, or a `timedelta`, before which they are not delivered.
            ttl: for those that are not drafts: seconds, or a `timedelta`, from now, after which they expire.
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Returns:
            Their offsets, which are consecutive.

        Raises:
            TimeoutError: it took longer; as if interrupted.
            MessageSizeError, InvalidMessageError: one of them cannot be stored like that; nothing was written.
            QueueFull: the bound is reached and the policy is `"reject"`.
            QueueShutDown: shut down, or the store is closed.
            DiskFullError: no space; nothing was written, and later puts may succeed.
            StoreFailedError: the store has stopped, its cause in `__cause__`.

        Interrupted: before the writer takes the batch, none is stored; after that all are, and only the caller does not
        know.
        """
        put_many, given, wait = self._producer.put_many, list_bodies(bodies), seconds(timeout)
        return self._loop_thread.run(
            lambda: within(wait, put_many(given, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl))
        )

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
        """Accept a message into the buffer; `receipt.result()` gives its offset once it is durable.

        Args:
            body: the message: `bytes`, `bytearray` or `memoryview`; text as `text.encode()`.
            tag: a short text that channels may filter by, up to 64 KiB; None for none.
            key: bytes that name what the message is about, up to 1 MiB; None for none.
            headers: text by text, up to 1 MiB in all; None for none.
            delay: seconds, or a `timedelta`, before which it is not delivered; the due time is kept on disk.
            ttl: seconds, or a `timedelta`, counted from now, after which it is no longer delivered.

        Raises:
            QueueFull: no room now.
            MessageSizeError: smaller or larger than the options allow; nothing was accepted.
            InvalidMessageError: it cannot be stored like that, also a `TypeError` if a part has a wrong type; nothing
                was accepted.
            QueueShutDown: shut down, or the store is closed.
            StoreFailedError: the store has stopped.
        """
        put_nowait = self._producer.put_nowait
        accepted = self._loop_thread.call(
            lambda: put_nowait(body, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl)
        )
        return Receipt(self._loop_thread, accepted)
