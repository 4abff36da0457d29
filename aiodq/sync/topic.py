"""One ordered log and its channels, for threads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from datetime import datetime
from typing import cast

from aiodq import message, topic
from aiodq.by_name import CONFIGURE_TOPIC, TOPIC_CHANNEL, known_as
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.stats import TopicStats
from aiodq.sync.channel import Channel
from aiodq.sync.loop_thread import LoopThread
from aiodq.sync.message import Message
from aiodq.sync.producer import Producer
from aiodq.sync.spans import in_pages

__all__ = ["Topic", "TopicAccess"]


@known_as("Topic")
class TopicAccess(Producer):
    """What a topic and a queue have in common: its puts, its log, and all its channels."""

    _topic: topic.Topic

    def sync(self) -> None:
        """Wait until everything accepted before, and every earlier ack, is on disk, whatever the policy.

        Raises:
            StorageError: an ack could not be written, as on a full disk; it stands, and is tried again.
            QueueShutDown: the store is closed.
            StoreFailedError: the store has stopped.

        Interrupted: it will be on disk anyway.
        """
        self._loop_thread.run(self._topic.sync)

    # --- channels

    @TOPIC_CHANNEL
    def channel(self, name: str, options: ChannelOptions | None = None) -> Channel:
        """Return a channel, created on first use; its creation is durable before any later `put` returns.

        Args:
            name: as for a topic; a queue's own is `default`.
            options: the channel's, which are stored; with None, those given before apply, or the defaults. `start`
                counts only for a new channel; unless it says otherwise, one that is not the topic's first starts at the
                end.

        Raises:
            InvalidNameError: the name is invalid.
            InvalidOptionError: these are not `ChannelOptions`, also a `TypeError`; the dead-letter topic is this one;
                or other options were given for it before, since the store was opened.
            QueueShutDown, StoreFailedError: the store is closed, or has stopped.
        """
        return Channel(self._loop_thread, self._loop_thread.call(self._topic.channel, name, options))

    def channels(self) -> list[str]:
        """Return the names of the channels; a queue's own is `default`."""
        return self._loop_thread.look(self._topic.channels)

    def delete_channel(self, name: str) -> None:
        """Delete a channel for good; segments that only it held back may go. A missing one is fine.

        Calls that wait there raise `QueueShutDown`. If the name is used again, it is a new channel.

        Args:
            name: the channel's.

        Raises:
            InvalidNameError: the name is invalid.
            QueueShutDown: the store is closed.
            StorageError: as mapped from the system's error.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._topic.delete_channel, name)

    # --- reading

    def read(self, offset: int) -> Message:
        """Return the message at an offset without consuming it.

        Args:
            offset: as returned by `put`: from `begin_offset` to before `end_offset`.

        Raises:
            InvalidOptionError: it is not an offset; also a `TypeError`.
            OffsetError: there is none: not yet written, deleted, or lost to damage.
            QueueShutDown: the store is closed.
            StorageError: it could not be read.

        Interrupted: nothing changes.
        """
        return Message(self._loop_thread, self._loop_thread.run(self._topic.read, offset))

    def scan(self, start: int | None = None, stop: int | None = None, *, reverse: bool = False) -> Iterator[Message]:
        """Iterate over the messages from `start` to before `stop`, without consuming them.

        Messages that retention deletes before they are read are left out: their offsets are missing.

        Args:
            start: an offset; None for the earliest kept.
            stop: an offset; None for the end at the time of the call.
            reverse: from the newest to the oldest.

        Raises:
            InvalidOptionError: `start` or `stop` is negative, or not an offset; then also a `TypeError`.
            QueueShutDown: the store is closed.
            StorageError: something could not be read. Damage is skipped, and reported.

        Interrupted: nothing changes.
        """
        scan = self._loop_thread.call(self._topic.scan, start, stop, reverse=reverse)
        found = cast("AsyncGenerator[message.Message, None]", scan)
        return (Message(self._loop_thread, each) for each in in_pages(self._loop_thread, found))

    def offset_at(self, moment: datetime) -> int:
        """Return the first offset put at `moment` or later; the end if all are older.

        Args:
            moment: with a time zone.

        Raises:
            InvalidOptionError: it has none, or is not a `datetime`.
            QueueShutDown: the store is closed.
            StorageError: the log could not be read.

        Interrupted: nothing changes.
        """
        return self._loop_thread.run(self._topic.offset_at, moment)

    def purge(self) -> int:
        """Drop everything accepted so far from the log and from every channel; return the number of messages.

        After a crash all of it is gone or none.

        Raises:
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown: the store is closed.
            StorageError: it was not done.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        return self._loop_thread.run(self._topic.purge)

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
        """The offset below which everything survives a power cut."""
        return self._topic.durable_offset


class Topic(TopicAccess):
    """One ordered log, and the channels that read it. Made by `Store.topic`. Any number of threads may use it."""

    def __init__(self, loop_thread: LoopThread, inner: topic.Topic) -> None:
        """Made by the store."""
        self._loop_thread = loop_thread
        self._topic = self._producer = inner

    def __repr__(self) -> str:
        """Show its name, whether it is open, its contents, and the store."""
        return self._loop_thread.show(self._topic)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._topic.name

    @property
    def options(self) -> StoreOptions:
        """The options that apply to the topic."""
        return self._topic.options

    @CONFIGURE_TOPIC
    def configure(self, options: StoreOptions) -> None:
        """Apply other options to the topic from now on: those that concern its data are on disk when this returns.

        Nothing is deleted by them before that. They count as given for the topic, in this process and later ones.

        Args:
            options: all of them, not only those that change.

        Raises:
            InvalidOptionError: these are not `StoreOptions`.
            MissingExtraError: a codec is not installed.
            QueueShutDown: the store is closed.
            StorageError: they could not be written; the old ones apply.
            StoreFailedError: the store has stopped.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._topic.configure, options)

    def settle_in(self) -> None:
        """Wait until everything accepted before is visible to channels, and channels created before are durable.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: the files of the topic or of a channel could not be created; the next put tries again.
            StoreFailedError: the store has stopped.

        Interrupted: nothing changes.
        """
        self._loop_thread.run(self._topic.settle_in)

    def pause(self) -> None:
        """Deliver nothing to any channel from now on; messages accumulate.

        It takes effect at once, and is durable when this returns: a topic stays paused across a restart.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._topic.pause)

    def resume(self) -> None:
        """Deliver again, to channels that are not paused themselves; durable as `pause` is.

        Raises:
            QueueShutDown: the store is closed.
            StorageError: it could not be written.

        Interrupted: it is completed anyway.
        """
        self._loop_thread.run(self._topic.resume)

    def stats(self) -> TopicStats:
        """Return the topic's statistics. No I/O."""
        return self._loop_thread.look(self._topic.stats)
