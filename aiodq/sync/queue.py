"""`queue.Queue` with a disk."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from aiodq import queue
from aiodq.by_name import CONFIGURE_QUEUE
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import InvalidOptionTypeError
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.stats import TopicStats
from aiodq.sync.channel import Channel
from aiodq.sync.loop_thread import LoopThread
from aiodq.sync.message import Message
from aiodq.sync.topic import Topic, TopicAccess
from aiodq.values import shown_typed

__all__ = ["Queue"]

_SLACK: Final = 16
"""Settled messages that a thread's list may hold before it is cleaned up."""


class _Held(threading.local):
    """The unsettled messages of each thread, for `task_done()` without a message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._most = _SLACK

    def note(self, message: Message) -> None:
        """Note that this thread has taken a message."""
        messages = self.messages
        while messages and messages[-1].settled:
            messages.pop()
        messages.append(message)
        if len(messages) > self._most:
            messages[:] = [each for each in messages if not each.settled]
            self._most = 2 * len(messages) + _SLACK

    def last(self) -> Message | None:
        """Return the message that this thread took last and still holds, or None."""
        while self.messages and not self.messages[-1].held:
            self.messages.pop()
        return self.messages[-1] if self.messages else None


class Queue(TopicAccess, Channel):
    """A topic with one channel, under the names of `queue.Queue` and `asyncio.Queue`, for any number of threads.

    The difference: `get` returns a `Message`, and a message stays until it is acked. Everything of `Topic` and
    `Channel` is here too. Made by `aiodq.sync.open_queue` and `Store.queue`.
    """

    def __init__(self, loop_thread: LoopThread, inner: queue.Queue, *, owns: bool = False) -> None:
        """Made by the store. `owns`: the queue has the store to itself, and closes it."""
        inner._held_by_task = None  # noqa: SLF001 - holders are noted by thread
        super().__init__(loop_thread, inner)
        self._queue = self._producer = inner
        self._topic = inner.topic
        self._held = _Held()
        self._owns = owns

    def __repr__(self) -> str:
        """Show its name, whether it is open, its backlog, and the store."""
        return self._loop_thread.show(self._queue)

    @property
    def topic(self) -> Topic:
        """The topic that the queue reads and writes."""
        return Topic(self._loop_thread, self._topic)

    @property
    def maxsize(self) -> int:
        """The bound of the backlog in messages, 0 for none: `max_messages` of the options.

        It limits all unsettled messages (`depth`), including those in flight or deferred: room comes with acks, not
        with gets.
        """
        return self._queue.maxsize

    def full(self) -> bool:
        """Return whether a put would have to wait or be refused now: `depth` counts, not `qsize`."""
        return self._loop_thread.look(self._queue.full)

    def _handed(self, message: Message) -> None:
        self._held.note(message)

    def task_done(self, message: Message | None = None) -> None:
        """Ack a message, durable with the next commit.

        Args:
            message: which one; None acks the one that the calling thread got last and that is neither settled nor
                taken away.

        Raises:
            ValueError: None, and the calling thread holds no message of this queue.
            InvalidOptionError: it is not a message; also a `TypeError`.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
            AlreadySettledError, NotInFlightError: as `Message.ack`; also if another queue or channel handed it out.
        """
        if message is not None and not isinstance(message, Message):
            raise InvalidOptionTypeError(
                f"task_done takes the message that get() gave, not {shown_typed(message)}: write "
                "task_done(message), or task_done() for what this thread got last"
            )
        message = message or self._held.last()
        if message is None:
            self._loop_thread.call(self._queue.check)
            raise ValueError(
                "task_done() called too many times: this thread holds no message of this queue. Where one thread gets "
                "and another settles, name the message: task_done(message)"
            )
        self._loop_thread.call(self._queue.task_done, message._message)  # noqa: SLF001 - the same, for threads

    def shutdown(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - the signature of queue.Queue
        """Refuse puts from now on; getters continue until nothing is ready, or end at once if `immediate`.

        Unlike `queue.Queue`, `immediate` drops nothing: what is left is delivered when the store is next opened.

        Raises:
            InvalidOptionError: `immediate` is neither True nor False; a `TypeError` too. Nothing was done.
        """
        with suppress(QueueShutDown):  # the store is closed, and so is the queue
            self._loop_thread.call(self._queue.shutdown, immediate)

    @CONFIGURE_QUEUE
    def configure(self, options: ChannelOptions | StoreOptions) -> None:
        """Apply other options from now on: `ChannelOptions` to the queue's channel, `StoreOptions` to its topic.

        They are on disk when this returns, and nothing is deleted or settled by them before that. They count as given,
        in this process and later ones.

        Args:
            options: all of them, not only those that change; `start` is ignored.

        Raises:
            InvalidOptionError: these are neither, or the dead-letter topic is this one.
            MissingExtraError: a codec is not installed.
            QueueShutDown: the store is closed.
            StorageError: they could not be written; the old ones apply.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._queue.configure, options)

    def topic_stats(self) -> TopicStats:
        """Return the statistics of the topic; `stats` returns those of the channel."""
        return self._loop_thread.look(self._topic.stats)

    # --- the end

    def close(self) -> None:
        """Close the store if the queue has it to itself (`aiodq.sync.open_queue`), otherwise shut the queue down.

        Raises:
            StoreFailedError: what was accepted could not be made durable.

        Interrupted: it continues; calling it again waits for the same end.
        """
        if self._owns:
            self._loop_thread.close(self._queue.aclose)
        else:
            self.shutdown()

    def __enter__(self) -> Self:
        """Return the queue.

        Raises:
            QueueShutDown: its store is closed.
            WrongContextError: an event loop runs in this thread, or the store was opened before a fork.
        """
        self._loop_thread.run(self._queue.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; in a child that was forked in the block, leave the queue to the parent."""
        if not self._loop_thread.inherited:
            self.close()
