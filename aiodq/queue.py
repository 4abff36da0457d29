"""`asyncio.Queue` with a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aiodq.channel import Channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from datetime import datetime, timedelta
    from types import TracebackType

    from aiodq.engine.batch import Draft
    from aiodq.engine.receipt import Receipt
    from aiodq.format.layout import BytesLike
    from aiodq.message import Message
    from aiodq.stats import TopicStats
    from aiodq.topic import Topic

__all__ = ["Queue"]


class Queue(Channel):
    """A topic with one channel, under the names of `asyncio.Queue` as of Python 3.13.

    `get` returns a `Message`, and a message stays until it is acked: that is the difference. Everything of `Topic` and
    `Channel` is here too. Made by `aiodq.open_queue` and `Store.queue`.
    """

    def __init__(self, topic: Topic, channel: Channel, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Made by the store. `close` is given where the queue has the store to itself."""
        super().__init__(channel._ioloop, channel._outlet)  # noqa: SLF001 - one class in two
        self._topic = topic
        self._note = self._outlet.taken.note
        self._close = close

    def _described(self) -> str:
        return f"Queue {self._ioloop.name!r}"

    @property
    def topic(self) -> Topic:
        """The topic that the queue reads and writes."""
        return self._topic

    @property
    def maxsize(self) -> int:
        """The bound of the backlog in messages, 0 for none."""
        return self._ioloop.options.max_messages or 0

    def full(self) -> bool:
        """Return whether a put would have to wait or be refused now."""
        return self._ioloop.intake.full()

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
        """See `Topic.put`.

        Raises:
            As there.

        Cancellation: as there.
        """
        return await self._topic.put(body, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl)

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
        """See `Topic.put_many`.

        Raises:
            As there.

        Cancellation: as there.
        """
        return await self._topic.put_many(bodies, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl)

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
        """See `Topic.put_nowait`.

        Raises:
            As there.
        """
        return self._topic.put_nowait(body, tag=tag, key=key, headers=headers, delay=delay, ttl=ttl)

    async def sync(self) -> None:
        """See `Topic.sync`.

        Raises:
            As there.

        Cancellation: as there.
        """
        await self._topic.sync()

    async def read(self, offset: int) -> Message:
        """See `Topic.read`.

        Raises:
            As there.

        Cancellation: as there.
        """
        return await self._topic.read(offset)

    def scan(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[Message]:
        """See `Topic.scan`.

        Raises:
            As there.
        """
        return self._topic.scan(start, stop, reverse=reverse)

    async def offset_at(self, moment: datetime) -> int:
        """See `Topic.offset_at`.

        Raises:
            As there.

        Cancellation: as there.
        """
        return await self._topic.offset_at(moment)

    async def purge(self) -> int:
        """See `Topic.purge`.

        Raises:
            As there.

        Cancellation: as there.
        """
        return await self._topic.purge()

    @property
    def begin_offset(self) -> int:
        """The first offset kept."""
        return self._topic.begin_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last message written."""
        return self._topic.end_offset

    @property
    def durable_offset(self) -> int:
        """Everything below this offset survives a power cut."""
        return self._topic.durable_offset

    def topic_stats(self) -> TopicStats:
        """Return the numbers of the topic; `stats` gives those of the channel."""
        return self._topic.stats()

    def task_done(self, message: Message | None = None) -> None:
        """Ack a message, durable with the next commit.

        Args:
            message: which; None acks the one that the calling task got last and that is neither settled nor taken
                away, as asyncio's callers get and settle in one task.

        Raises:
            ValueError: None, and the calling task holds no message of this queue.
            AlreadySettledError, NotInFlightError: as `Message.ack`.
        """
        if message is None:
            message = self._outlet.taken.last()
        if message is None:
            raise ValueError(
                "task_done() called too many times: this task holds no message of this queue. Where one task gets and "
                "another settles, name the message: task_done(message)"
            )
        message.ack_nowait()

    def _handed(self, message: Message) -> Message:
        outlet = self._outlet
        if outlet.options.auto_ack:
            message.ack_nowait()
            return message
        if outlet.counting:
            outlet.note_deliveries()
        self._note(message)
        return message

    def shutdown(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - asyncio's signature
        """Refuse puts from now on; getters go on until nothing is ready, or end at once if `immediate`.

        Unlike asyncio's, `immediate` drops nothing: what is left comes when the store is next opened.
        """
        self._ioloop.intake.shut_down()
        self._outlet.shut_down(immediate=immediate)

    async def aclose(self) -> None:
        """Close the store if the queue has it to itself (`aiodq.open_queue`), else shut the queue down.

        Raises:
            StoreFailedError: what was accepted could not be made durable.

        Cancellation: it goes on in the store's own task; awaiting again is safe.
        """
        self.shutdown()
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> Self:
        """Return the queue."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()
