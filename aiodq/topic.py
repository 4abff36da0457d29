"""The topic: one ordered log and its channels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial

from aiodq.awaited import Awaited
from aiodq.by_name import CONFIGURE_TOPIC, TOPIC_CHANNEL, known_as
from aiodq.channel import Channel
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.loop.futures import to_its_end
from aiodq.engine.stats.topic_stats import topic_stats
from aiodq.engine.store.channel_management import pause_topic
from aiodq.engine.store.store_engine import StoreEngine
from aiodq.engine.topic.puts.open_topic import OpenTopic
from aiodq.engine.topic.retention.retaining_channels import has_retaining_channels
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.errors import OffsetError
from aiodq.message import Message, look_at
from aiodq.names import check_name
from aiodq.options import (
    ChannelOptions,
    StoreOptions,
    check_channel_options,
    check_dead_letter,
    check_store_options,
    time_ns,
)
from aiodq.producer import Producer
from aiodq.scanning import scan_log
from aiodq.starting import known_start, start_offset
from aiodq.stats import TopicStats
from aiodq.storage.read.log_reader import LogReader
from aiodq.values import check_flag, check_offset, check_scan

__all__ = ["Topic", "TopicHandle"]


@known_as("Topic")
class TopicHandle(Producer):
    """A topic, whichever process owns its store; `Topic` adds what needs the log in this process."""

    _engine: OpenTopic

    def __init__(self, engine: OpenTopic, store_ref: object) -> None:
        """Stand for this topic, and keep its store open."""
        self._engine = engine
        self._store_ref = store_ref

    def __repr__(self) -> str:
        """Show its name, state, contents and directory."""
        engine, number = self._engine, len(self._engine.channel_engines)
        offsets = f"offsets {self.begin_offset} to before {self.end_offset}"
        channels = f"{number} channel{'' if number == 1 else 's'}"
        return f"<Topic {self.name!r} {engine.standing}, {offsets}, {channels} [{engine.store}]>"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._engine.name

    @property
    def options(self) -> StoreOptions:
        """The options in effect for the topic.

        In mode "shared" or "client", until the owner has opened it: those named here, or the defaults. The first `put`
        or `get` waits for that, and so does `refresh` of a channel.
        """
        return self._engine.options

    @property
    def begin_offset(self) -> int:
        """The first offset kept; in mode "shared" or "client", as old as counts are: see `Channel.refresh`."""
        return self._engine.log.begin

    @property
    def end_offset(self) -> int:
        """The offset after the last message written; in mode "shared" or "client", as `begin_offset`."""
        return self._engine.log.end

    @property
    def durable_offset(self) -> int:
        """Everything below this offset survives a power cut; in mode "shared" or "client", as `begin_offset`."""
        return self._engine.log.durable


class Topic(TopicHandle):
    """One ordered log, and the channels that read it. Made by `Store.topic`."""

    _engine: TopicEngine

    def __init__(self, store_engine: StoreEngine, engine: TopicEngine) -> None:
        """Called by the store."""
        super().__init__(engine, store_engine.store_ref())
        self._store_engine = store_engine

    async def sync(self) -> None:
        """Wait until everything accepted or acked before is on disk, whatever the `sync` policy.

        Raises:
            StorageError: an ack could not be written, as on a full disk; it stays in effect, and the write is retried.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is synced anyway.
        """
        self._engine.check()
        await self._engine.sync()

    @CONFIGURE_TOPIC
    async def configure(self, options: StoreOptions) -> None:
        """Change the topic's options; those that concern its data are on disk when this returns.

        Nothing is deleted by the new options before they are on disk. They count as named for the topic, in this
        process and in later ones.

        Args:
            options: all options, not only those that change.

        Raises:
            InvalidOptionError: these are not `StoreOptions`.
            MissingExtraError: a codec is not installed.
            StorageError: they could not be written; the earlier ones stay in effect.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is completed anyway.
        """
        check_store_options(options, "await topic.configure({})", optional=False)
        self._engine.check()
        await to_its_end(self._engine.effective_options.configure(options))

    # --- channels

    @TOPIC_CHANNEL
    def channel(self, name: str, options: ChannelOptions | None = None) -> Channel:
        """Return a channel, created when first named; its creation is durable before any later `put` returns.

        Args:
            name: by the same rule as a topic's. A channel whose name ends with `#ephemeral` is in memory. It ends with
                the store, or the owner of a shared one, or when it is deleted, but not with its last consumer; it keeps
                no message from being deleted, and counts those it missed as dropped.
            options: the channel's options, which are stored on disk; None: the options named earlier stay in effect, or
                else the defaults. `start` counts only when the channel is new.

        Raises:
            InvalidNameError: the name is not allowed. Using the channel raises it if the file system ignores case and
                another channel's name differs only in case.
            InvalidOptionError: these are not `ChannelOptions` (also a `TypeError`); the dead-letter topic is this
                topic; or other options were named for the channel before, since the store was opened.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.
        """
        name = check_name(name, "channel")
        check_channel_options(options, f"topic.channel({name!r}, {{}})")
        check_dead_letter(self.name, options)
        self._engine.check()
        return Channel(self._engine, self._open_channel_engine(name, options))

    def _recalled_channel(self, name: str, options: ChannelOptions) -> Channel:
        """Return a channel with the options that it had in the memory of an earlier owner, unless any were named."""
        return Channel(self._engine, self._open_channel_engine(name, options, recalled=True))

    def _open_channel_engine(
        self, name: str, options: ChannelOptions | None, *, recalled: bool = False
    ) -> ChannelEngine[Message]:
        engine, store_engine = self._engine, self._store_engine
        new, first = name not in engine.channel_engines, not has_retaining_channels(engine)
        channel_engine = store_engine.channel_engine(engine, name, Message)
        if options is not None:
            effective = engine.effective_options
            (effective.recall_channel if recalled else effective.channel)(channel_engine, options)
        if new:
            start = None if options is None else options.start
            # Messages accepted before are in the log before the channel is created.
            channel_engine.preview = known_start(start, engine.log.begin, engine.visible + engine.pending, first=first)
            store_engine.create_channel(
                engine, channel_engine, partial(start_offset, store_engine.fs_of(self.name), start, first=first)
            )
        return channel_engine

    def channels(self) -> list[str]:
        """Return the names of the channels."""
        return sorted(self._engine.channel_engines)

    async def delete_channel(self, name: str) -> None:
        """Delete a channel for good, its quarantined bytes included. If it does not exist, do nothing.

        Segments kept only for it may be deleted then.

        Calls that wait for its messages raise `QueueShutDown`. If it is named again, it is a new channel.

        Raises:
            InvalidNameError: the name is not allowed.
            StorageError: as mapped from the system's error. As long as `channels` names it, delete it again.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is completed anyway.
        """
        name = check_name(name, "channel")
        self._engine.check()
        await self._store_engine.deletions.channel(self._engine, name)

    # --- looking

    async def read(self, offset: int) -> Message:
        """Return the message at an offset without consuming it.

        Raises:
            InvalidOptionError: it is not an offset; also a `TypeError`.
            OffsetError: there is no such message: not yet written, deleted, or lost to damage.
            StorageError: it could not be read.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: nothing changes.
        """
        self._engine.check()
        self._engine.note_synced()
        check_offset("offset", offset)
        if not self.begin_offset <= offset < self._engine.visible:
            begin, end = self.begin_offset, self._engine.visible
            held = f"offsets {begin} to {end - 1}" if begin < end else "no message"
            raise OffsetError(f"topic {self.name!r} holds {held}, not offset {offset}")
        read = partial(LogReader.read, view=self._engine.view(), offset=offset, max_bytes=1)
        result = await self._engine.reader.look(read)
        if result.damages:
            self._engine.segment_deletion.met_damage(result.damages)
        for batch in result.batches:
            if batch.first <= offset < batch.stop:
                return look_at(self.name, batch, offset - batch.first)
        raise OffsetError(f"the message at offset {offset} of {self.name!r} is lost to damage or deleted")

    def scan(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[Message]:
        """Iterate over the messages from `start` to before `stop`, without consuming them.

        Messages that retention deletes before they are read are left out: their offsets are missing.

        Args:
            start: an offset; None for the earliest kept.
            stop: an offset; None for the end at the time of the call.
            reverse: from the newest to the oldest.

        Raises:
            InvalidOptionError: `start` or `stop` is negative, or not an offset, or `reverse` not a bool; in the latter
                cases also a `TypeError`.
            StorageError: something could not be read. Damage is skipped, and reported.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.
        """
        self._engine.check()
        self._engine.note_synced()
        check_scan(start, stop)
        check_flag("reverse", reverse)
        high = self._engine.visible if stop is None else min(stop, self._engine.visible)
        low = min(max(self.begin_offset, start or 0), high)
        fs, threads = self._store_engine.fs_of(self.name), self._store_engine.threads
        damaged, view = self._engine.segment_deletion.met_damage, self._engine.view
        return scan_log(self.name, fs, threads, view, range(low, high), reverse=reverse, damaged=damaged)

    async def offset_at(self, moment: datetime) -> int:
        """Return the offset of the first message put at `moment` or later; `end_offset` if all are older.

        Args:
            moment: with a time zone.

        Raises:
            InvalidOptionError: it has no time zone, or is not a `datetime`; in the latter case also a `TypeError`.
            StorageError: the log could not be read.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: nothing changes.
        """
        self._engine.check()
        self._engine.note_synced()
        wanted = time_ns(moment)
        begin, found = -1, 0
        while begin != self.begin_offset:  # if it changes, retention may have deleted what was found: look again
            begin = self.begin_offset
            found = await self._engine.reader.look(
                partial(LogReader.offset_at, view=self._engine.view(), time_ns=wanted)
            )
        return max(found, begin)

    # --- the rest

    async def settle_in(self) -> None:
        """Wait until everything accepted before is visible to channels, and channels named before are durable.

        Raises:
            StorageError: the files of the topic or of a channel could not be created; the next put retries that.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: nothing changes.
        """
        self._engine.check()
        await self._engine.settle_in()

    async def purge(self) -> int:
        """Drop everything accepted so far from the log and from every channel; return the number of messages dropped.

        Like *empty* in NSQ, but atomic: after a crash all of it is gone or none.

        Raises:
            StorageError: nothing was dropped.
            OwnerLostError: of a shared store: its owner ended before it answered; the outcome is unknown.
            QueueShutDown, StoreFailedError: the store is closed or has stopped; or the topic was deleted.

        Cancellation: it is completed anyway.
        """
        self._engine.check()
        return await to_its_end(self._purge())

    async def _purge(self) -> int:
        async with self._engine.without_transactions():
            return await self._engine.purge()

    def pause(self) -> Awaited[None]:
        """Stop deliveries to all channels; messages can still be put and settled.

        It takes effect at once; where another process owns a shared store, once awaited. Await the result for it to be
        durable: a paused topic is still paused after a restart.

        Raises:
            QueueShutDown, StorageError: the store is closed or failed, the topic deleted, or it was not written.

        Cancellation: it becomes durable anyway.
        """
        return pause_topic(self._engine, paused=True)

    def resume(self) -> Awaited[None]:
        """Resume deliveries, to those channels that are not paused themselves; as `pause`.

        Raises:
            QueueShutDown, StorageError: the store is closed or failed, the topic deleted, or it was not written.

        Cancellation: it becomes durable anyway.
        """
        return pause_topic(self._engine, paused=False)

    def stats(self) -> TopicStats:
        """Return the topic's statistics. No I/O."""
        return topic_stats(self._engine)
