"""One ordered log and its channels, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aiodq.sync.channel import Channel
from aiodq.sync.message import Message
from aiodq.sync.producer import Producer
from aiodq.sync.spans import in_pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from datetime import datetime

    from aiodq import message, topic
    from aiodq.options import ChannelOptions, StoreOptions
    from aiodq.stats import TopicStats
    from aiodq.sync.loop_thread import LoopThread

__all__ = ["Topic"]


class Topic(Producer):
    """One ordered log, and the channels that read it. Made by `Store.topic`. Any number of threads may use it."""

    def __init__(self, loop_thread: LoopThread, inner: topic.Topic) -> None:
        """Made by the store."""
        self._loop_thread = loop_thread
        self._topic = self._producer = inner

    def __repr__(self) -> str:
        """Say which it is, whether it is open, what it holds, and where."""
        return self._loop_thread.show(self._topic)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._topic.name

    def sync(self) -> None:
        """Wait until everything accepted before is on disk, whatever the policy, and every ack before too.

        Raises:
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: it will be all the same.
        """
        self._loop_thread.run(self._topic.sync)

    @property
    def options(self) -> StoreOptions:
        """The options that hold for the topic."""
        return self._topic.options

    def configure(self, options: StoreOptions) -> None:
        """Let the topic go by other options from now on: those that concern its data are on disk when this returns.

        Nothing is deleted by them before. They count as named for the topic, in this process and in later ones.

        Args:
            options: all of them, not only those that change.

        Raises:
            InvalidOptionError: these are no `StoreOptions`.
            MissingExtraError: a codec is not installed.
            QueueShutDown: the store is closed.
            StorageError: they could not be written; those before hold.
            StoreFailedError: the store has stopped.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._topic.configure, options)

    # --- channels

    def channel(self, name: str, options: ChannelOptions | None = None) -> Channel:
        """Return a channel, created when first named; its creation is durable before any later `put` returns.

        Args:
            name: as a topic's.
            options: the channel's, which are kept on disk; None names none: those that were named before hold, or the
                defaults. `start` counts only when it is new.

        Raises:
            InvalidNameError: no such name may be.
            InvalidOptionError: these are no `ChannelOptions`, and a `TypeError` too; the dead-letter topic is this
                one; or other options were named for it before, since the store was opened.
            QueueShutDown: the store is closed.
        """
        return Channel(self._loop_thread, self._loop_thread.call(self._topic.channel, name, options))

    def channels(self) -> list[str]:
        """Return the names of the channels."""
        return self._loop_thread.look(self._topic.channels)

    def delete_channel(self, name: str) -> None:
        """Delete a channel for good; segments that only it held back may go. One that is not there is fine.

        Whoever waits there gets `QueueShutDown`. Named again, it is a new channel.

        Args:
            name: the channel's.

        Raises:
            InvalidNameError: no such name may be.
            QueueShutDown: the store is closed.
            StorageError: as mapped from the system's error.
            StoreFailedError: the store has stopped.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._topic.delete_channel, name)

    # --- looking

    def read(self, offset: int) -> Message:
        """Return the message at an offset without consuming it.

        Args:
            offset: as `put` gave it: from `begin_offset` to before `end_offset`.

        Raises:
            InvalidOptionError: it is no offset; a `TypeError` too.
            OffsetError: there is none: not yet written, deleted, or lost to damage.
            QueueShutDown: the store is closed.
            StorageError: it could not be read.

        Interrupted: nothing changes.
        """
        return Message(self._loop_thread, self._loop_thread.run(self._topic.read, offset))

    def scan(self, start: int | None = None, stop: int | None = None, *, reverse: bool = False) -> Iterator[Message]:
        """Iterate over the messages from `start` to before `stop`, without consuming them.

        Args:
            start: an offset; None for the earliest kept.
            stop: an offset; None for the end at the time of the call.
            reverse: from the newest to the oldest.

        Raises:
            InvalidOptionError: `start` or `stop` is no offset; a `TypeError` too.
            QueueShutDown: the store is closed.
            StorageError: something could not be read. Damage is skipped.

        Interrupted: nothing changes.
        """
        scan = self._loop_thread.call(self._topic.scan, start, stop, reverse=reverse)
        found = cast("AsyncGenerator[message.Message, None]", scan)
        return (Message(self._loop_thread, each) for each in in_pages(self._loop_thread, found))

    def offset_at(self, moment: datetime) -> int:
        """Return the first offset put at `moment` or later; the end where all are older.

        Args:
            moment: with a time zone.

        Raises:
            InvalidOptionError: without one, or no `datetime`.
            QueueShutDown: the store is closed.
            StorageError: the log could not be read.

        Interrupted: nothing changes.
        """
        return self._loop_thread.run(self._topic.offset_at, moment)

    # --- the rest

    def settle_in(self) -> None:
        """Wait until everything accepted before is visible to channels, and channels named before are durable.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: the files of the topic or of a channel could not be made; the next put tries again.
            StoreFailedError: the store has stopped.

        Interrupted: nothing changes.
        """
        self._loop_thread.run(self._topic.settle_in)

    def purge(self) -> int:
        """Drop everything accepted so far from the log and from every channel; return how many messages that were.

        After a crash all of it is gone or none.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it was not done.
            StoreFailedError: the store has stopped.

        Interrupted: it is done all the same.
        """
        return self._loop_thread.run(self._topic.purge)

    def pause(self) -> None:
        """Deliver nothing to any channel from now on; messages gather.

        It takes effect at once, and is durable when this returns: a topic stays paused over a restart.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._topic.pause)

    def resume(self) -> None:
        """Deliver again, to those channels that are not paused themselves; as `pause`.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is done all the same.
        """
        self._loop_thread.run(self._topic.resume)

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

    def stats(self) -> TopicStats:
        """Return the topic's numbers. No I/O."""
        return self._loop_thread.look(self._topic.stats)
