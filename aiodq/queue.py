"""The queue: a topic with one channel and the methods of `asyncio.Queue`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from aiodq.by_name import CONFIGURE_QUEUE, Explained, known_as
from aiodq.channel import Channel
from aiodq.channel_handle import ChannelHandle
from aiodq.consuming.acking import own_delivery
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.topic.puts.open_topic import OpenTopic
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.errors import InvalidOptionTypeError
from aiodq.message import Message
from aiodq.onlyasync import AsyncBlock
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.producer import Producer
from aiodq.stats import TopicStats
from aiodq.topic import Topic
from aiodq.values import check_flag, shown_typed

__all__ = ["Queue", "QueueHandle"]


@known_as("Queue")
class QueueHandle(Producer, ChannelHandle, AsyncBlock):
    """A queue, whichever process owns its store."""

    _engine: OpenTopic
    _topic: Topic
    _close: Callable[[], Awaitable[None]] | None

    def _described(self) -> str:
        return f"Queue {self._engine.name!r}"

    @property
    def topic(self) -> Topic:
        """The topic that the queue reads and writes."""
        return self._topic

    @property
    def maxsize(self) -> int:
        """The bound of the backlog in messages, 0 for none: `max_messages` of the options.

        Unlike in asyncio, all messages that are not settled count: also those in flight or deferred, and those accepted
        but not yet visible. `qsize` counts only ready messages, so a queue may be full with a `qsize` far below
        `maxsize`, even 0: room comes with acks, not with gets.
        """
        return self._engine.options.max_messages or 0

    def full(self) -> bool:
        """Return whether a put would have to wait or be refused now; that depends on `depth`, not on `qsize`."""
        return self._engine.put_buffer.full()

    async def sync(self) -> None:
        """Wait until everything accepted or acked before is on disk, whatever the `sync` policy.

        Raises:
            StorageError: an ack could not be written, as on a full disk; it stands, and is tried again.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is synced anyway.
        """
        await self._topic.sync()

    async def read(self, offset: int) -> Message:
        """Return the message at an offset without consuming it.

        Args:
            offset: as returned by `put`: from `begin_offset` to before `end_offset`.

        Raises:
            OffsetError: there is no such message: not yet written, deleted, or lost to damage.
            StorageError: it could not be read.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: nothing changes.
        """
        return await self._topic.read(offset)

    def scan(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[Message]:
        """Iterate over the messages from `start` to before `stop`, without consuming them.

        Args:
            start: an offset; None for the earliest kept.
            stop: an offset; None for the end at the time of the call.
            reverse: from the newest to the oldest.

        Raises:
            StorageError: something could not be read. Damage is skipped, and reported.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: nothing changes.
        """
        return self._topic.scan(start, stop, reverse=reverse)

    async def offset_at(self, moment: datetime) -> int:
        """Return the offset of the first message put at `moment` or later; `end_offset` if all are older.

        Args:
            moment: with a time zone.

        Raises:
            InvalidOptionError: it has no time zone, or is not a `datetime`.
            StorageError: the log could not be read.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: nothing changes.
        """
        return await self._topic.offset_at(moment)

    async def purge(self) -> int:
        """Drop everything accepted so far, for every channel of the topic; return the number of messages dropped.

        After a crash all of it is gone or none.

        Raises:
            StorageError: nothing was dropped.
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is completed anyway.
        """
        return await self._topic.purge()

    @Explained("queue.channel", ChannelOptions="queue.channel(name, ChannelOptions({}))")
    def channel(self, name: str, options: ChannelOptions | None = None) -> Channel:
        """Return another channel of the queue's topic, which sees every message too; created when first named.

        Args:
            name: 1 to 64 of `[.a-zA-Z0-9_-]`; the queue's own is `default`.
            options: the channel's options from now on, for all its users; None changes nothing. `start` counts only
                when the channel is new: by default it begins at the end, as the queue has a channel already.

        Raises:
            InvalidNameError: the name is not allowed.
            InvalidOptionError: these are not `ChannelOptions`, or this channel cannot have them.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.
        """
        return self._topic.channel(name, options)

    def channels(self) -> list[str]:
        """Return the names of the channels of the queue's topic; the queue's own is `default`."""
        return self._topic.channels()

    async def delete_channel(self, name: str) -> None:
        """Delete a channel of the queue's topic for good; segments kept only for it may be deleted then.

        Calls that wait for its messages raise `QueueShutDown`. If it is named again, it is a new channel.

        Args:
            name: the channel's name; if there is no such channel, nothing is done.

        Raises:
            StorageError: as mapped from the system's error.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is completed anyway.
        """
        await self._topic.delete_channel(name)

    @property
    def begin_offset(self) -> int:
        """The first offset kept."""
        return self._topic.begin_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last message written."""
        return self._topic.end_offset

    @property
    def durable_offset(self) -> int:
        """Everything below this offset survives a power cut."""
        return self._topic.durable_offset

    def topic_stats(self) -> TopicStats:
        """Return the statistics of the topic; `stats` returns those of the channel."""
        return self._topic.stats()

    def task_done(self, message: Message | None = None) -> None:
        """Ack a message, durable with the next commit.

        Args:
            message: the message; None: the one that the calling task got last, of those neither settled nor taken away,
                as with asyncio a task settles what it got. Before Python 3.12, `asyncio.wait_for` runs `get` in another
                task: write `get(timeout=...)` there.

        Raises:
            ValueError: no message was given, and the calling task holds none of this queue.
            InvalidOptionError: it is not a message; also a `TypeError`.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
            AlreadySettledError, NotInFlightError: as for `Message.ack`; also if another queue or channel handed it out.
        """
        if message is not None and not isinstance(message, Message):
            raise InvalidOptionTypeError(
                f"task_done takes the message that get() gave, not {shown_typed(message)}: write "
                "task_done(message), or task_done() for what this task got last"
            )
        if message is None:
            message = self._channel_engine.held_by_task.last()
        if message is None:
            self.check()
            raise ValueError(
                "task_done() called too many times: this task holds no message of this queue. Where one task gets and "
                "another settles, as with asyncio.wait_for before Python 3.12, name the message: task_done(message)"
            )
        own_delivery(self._channel_engine, message)
        message.ack_nowait()

    def shutdown(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - asyncio's signature
        """Refuse puts from now on; `get` works until nothing is ready, or with `immediate` ends at once.

        Unlike in asyncio, `immediate` drops nothing: remaining messages are delivered when the store is next opened.

        Raises:
            InvalidOptionError: `immediate` is neither True nor False; a `TypeError` too. Nothing was done.
            WrongContextError: another event loop, another thread, or a forked child. Nothing was done.
        """
        check_flag("immediate", immediate)
        self._engine.check_context()
        self._engine.put_buffer.shut_down()
        self._channel_engine.shut_down(immediate=immediate)

    async def aclose(self) -> None:
        """Close the store if the queue was opened by `aiodq.open_queue`; otherwise shut the queue down.

        Raises:
            WrongContextError: as for `shutdown`.
            StorageError, StoreFailedError: as for `Store.aclose`.

        Cancellation: it goes on in the store's own task; awaiting again is safe.
        """
        self.shutdown()
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> Self:
        """Return the queue.

        Raises:
            QueueShutDown: its store is closed.
        """
        if self._engine.standing in {"closing", "closed"}:
            self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; in a forked child, where the store is the parent's, do nothing."""
        if not self._channel_engine.transactions.host.inherited:
            await self.aclose()


class Queue(QueueHandle, Channel):
    """A topic with one channel, under the names of `asyncio.Queue` as of Python 3.13.

    `get` returns a `Message`, and a message stays until it is acked: that is the difference. Everything of `Topic` and
    `Channel` is here too. Made by `aiodq.open_queue` and `Store.queue`.
    """

    _engine: TopicEngine
    _channel_engine: ChannelEngine[Message]

    def __init__(self, topic: Topic, channel: Channel, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Called by the store. `close` closes the store, if the queue was opened by `aiodq.open_queue`."""
        super().__init__(channel._engine, channel._channel_engine)  # noqa: SLF001 - a queue is a channel and a topic in one
        self._topic = topic
        self._held_by_task = self._channel_engine.held_by_task
        self._close = close

    @CONFIGURE_QUEUE
    async def configure(self, options: ChannelOptions | StoreOptions) -> None:
        """Change the options of the queue's channel, with `ChannelOptions`, or of its topic, with `StoreOptions`.

        They are on disk when this returns, and nothing is deleted or settled by them before. They count as named, in
        this process and in later ones.

        Args:
            options: all options, not only those that change; `start` is ignored.

        Raises:
            InvalidOptionError: these are neither, or the dead-letter topic is this topic.
            MissingExtraError: a codec is not installed.
            StorageError: they could not be written; the earlier ones stay in effect.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is completed anyway.
        """
        if isinstance(options, StoreOptions):
            await self._topic.configure(options)
        else:
            await super().configure(options)
