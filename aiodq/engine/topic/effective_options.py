"""The effective options of a topic and its channels, which are on disk before anything is deleted by them.

The first of these that exists is effective: named for the topic in this process; named for it before, and stored; given
to `open`; stored as the defaults with which it was created; the library's. A channel has only the first two and the
last.

INVARIANT: nothing is deleted, dropped or skipped by options that are not durable. While the effective ones differ from
those on disk, retention is suspended, an overflowing topic drops nothing, and a channel whose change could settle
messages delivers none.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import twice
from aiodq.engine.channel.acks.ack_persister import Job
from aiodq.engine.loop.futures import settle
from aiodq.engine.monitoring.reporter import TOPIC
from aiodq.engine.topic.no_log import NoLog
from aiodq.errors import AiodqError, InvalidOptionError, StoreFailedError, again
from aiodq.format.codecs import codec_number
from aiodq.names import is_ephemeral
from aiodq.options import ChannelOptions, StoreOptions, ephemeral
from aiodq.storage.log.topic_log import LogOptions
from aiodq.storage.state.topic.stored_options import StoredOptions, differences, holding, kept, kept_channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.channel.acks.ack_persister import AckPersister
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.creation import Creation
    from aiodq.engine.topic.whole_topic import WholeTopic
    from aiodq.storage.state.topic.stored_options import Differences

__all__ = ["EffectiveOptions", "check_channel"]

_SETTLING: Final = frozenset({"tags", "max_attempts", "dead_letter", "auto_ack"})
"""Fields by which a channel settles unacked messages."""

_NONE: Final = ChannelOptions()

_RETRY: Final = 1.0
"""Seconds after which a topic's options that could not be written are written again, unless a put has that done."""


class EffectiveOptions:
    """The effective options of one topic; called on the loop.

    Attributes:
        named: the options named for this topic in this process, or None.
        acting: whether the effective options are on disk, so that messages may be deleted by them.
    """

    def __init__(self, engine: WholeTopic, creation: Creation, host: TopicEngineHost, persister: AckPersister) -> None:
        """Start with the topic's options, which are those effective without any being named."""
        self.named: StoreOptions | None = None
        self.acting: bool = False
        self._engine = engine
        self._creation = creation
        self._host = host
        self._persister = persister
        self._asked = False
        self._used = self._unwritten = self._retrying = False
        self._coming: StoredOptions | None = None
        self._named_channels: dict[str, ChannelOptions] = {}
        self._coming_channels: dict[str, ChannelOptions] = {}
        # Channels that deliver nothing until their options are on disk: few, among very many.
        self._held: dict[str, ChannelEngine[Any]] = {}
        self._failed: dict[str, Exception] = {}
        self._recalled: dict[str, None] = {}  # the channels, and the topic by an empty name
        self._compare()

    # --- the topic

    @property
    def stored(self) -> bool:
        """Whether the effective options are on disk, as named for the topic."""
        stored = self._stored()
        return self.acting and stored is not None and stored.named

    @property
    def at_rest(self) -> bool:
        """Whether a put has no options to write: the effective ones apply, and no write has failed."""
        return self.acting and not self._unwritten and not self._failed

    def ask(self) -> None:
        """Note that the topic was named without options: once it is used, defaults may act."""
        self._asked = True

    def used(self) -> None:
        """Note that messages were put or settled while no options act."""
        if self._asked and not self._used and not self._host.keeps:
            self._used = True
            self.look()

    def name(self, options: StoreOptions) -> None:
        """Apply these options from now on, as named for this topic.

        Raises:
            InvalidOptionError: others were named before, in this process.
            MissingExtraError: a codec is not installed.
        """
        if self.named is not None and "" not in self._recalled:
            how = "await topic.configure(options)"
            _refuse_others(f"topic {self._engine.name!r}", differences(self.named, options), how)
            return
        self._take(options)
        self.look()

    def recall(self, options: StoreOptions) -> None:
        """Apply options that this topic had in the memory of an earlier owner, until others are named."""
        if self.named is None:
            self.name(options)
            self._recalled[""] = None

    def named_again(self, options: StoreOptions) -> StoreOptions | None:
        """Return the options to name for a client whose options were stored, and may have been changed by others since.

        Args:
            options: theirs; what concerns the data is taken from disk, if it is there.

        Returns:
            None if options are named in this process already, which are at least as new.
        """
        return None if self.named is not None else holding(None, self._stored(), options)

    async def configure(self, options: StoreOptions, change: int = 0) -> None:
        """Make these options durable, with the number of this change, if it has one; then apply them.

        Raises:
            MissingExtraError: a codec is not installed.
            StorageError: they could not be written; the old ones stay effective.

        Cancellation: they are written and applied anyway.
        """
        codec_number(options.compression)
        if not self._creation.exists:
            self._take(options)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(_: object, error: Exception | None) -> None:
            if error is None:
                self._take(options)
            settle(done, None, error)

        # After this, a topic that is being created exists, and a change in progress is written.
        await self._engine.operate(lambda: None)
        self._write(StoredOptions(named=True, options=kept(self._shaped(options))), finish, change)
        await done

    def _shaped(self, options: StoreOptions) -> StoreOptions:
        return ephemeral(options) if is_ephemeral(self._engine.name) else options

    def _take(self, options: StoreOptions) -> None:
        shaped = self._shaped(options)
        codec_number(shaped.compression)
        self._engine.configure(shaped, LogOptions.of(shaped))
        self.named = options
        self._recalled.pop("", None)
        self._compare()

    @property
    def record(self) -> StoredOptions:
        """The options to store when the topic is created."""
        return StoredOptions(named=self.named is not None, options=kept(self._engine.options))

    def _stored(self) -> StoredOptions | None:
        log = self._engine.log
        return None if isinstance(log, NoLog) else log.meta.options

    def _compare(self) -> None:
        """Let the options apply if they are those on disk; a topic without files has nothing to lose."""
        stored = self._stored()
        self.acting = stored is not None and stored.options == kept(self._engine.options)
        self._host.activity.note(self._engine)
        if self.acting:
            self._engine.retain_soon()
            self._engine.put_buffer.freed(even_if_full=True)

    def created(self) -> None:
        """Apply the options that were named, or else those stored, as the topic has files now, and compare."""
        options = self._shaped(holding(self.named, self._stored(), self._host.given))
        self._engine.configure(options, LogOptions.of(options))
        self._compare()
        self.look()

    def look(self) -> None:
        """Write the options that are to be on disk and are not."""
        stored = self._stored()
        # Called in each turn of the ioLoop: finding that nothing is to be written must be quick.
        if stored is not None and self.acting and (stored.named or self.named is None):
            return
        wanted = self._wanted()
        if isinstance(self._engine.log, NoLog) or wanted is None or wanted in {stored, self._coming}:
            return
        self._coming = wanted

        def finish(_: object, error: Exception | None) -> None:
            self._coming = None
            self._unwritten = error is not None
            self._engine.group_commit.hinder()
            if error is None:
                self._compare()
                self.look()  # others may have been named meanwhile
            elif not self._retrying:
                # Else a put that waits for room, which by these options is made by dropping, would wait for ever.
                self._retrying = True
                twice(partial(self._engine.loop.call_later, _RETRY), self._engine.guarded(self._look_again))

        self._write(wanted, finish)

    def _look_again(self) -> None:
        self._retrying = False
        if not self._engine.stopped:
            self.look()

    def _wanted(self) -> StoredOptions | None:
        """Return what is to be on disk, or None to leave it as it is."""
        stored = self._stored()
        if self.named is not None:
            return self.record
        if stored is not None and stored.named:
            return None
        return self.record if self._used else None

    def _write(
        self, record: StoredOptions, finish: Callable[[object, Exception | None], None], change: int = 0
    ) -> None:
        def work() -> Differences:
            log = self._engine.real_log()
            before = StoreOptions() if log.meta.options is None else log.meta.options.options
            log.description.choose(record, change)
            return differences(before, record.options)

        def told(changed: Any, error: Exception | None) -> None:  # noqa: ANN401 - a job's result
            if not (self._unwritten and isinstance(error, AiodqError)):
                self._told(f"topic {self._engine.name!r}", None, changed, error)  # once, however often it is tried
            finish(changed, error)

        self._persister.submit(Job(work, told))

    def _told(self, what: str, channel: str | None, changed: Differences | None, error: Exception | None) -> None:
        reporter, topic = self._host.reporter, self._engine.name
        if isinstance(error, AiodqError) and not isinstance(error, StoreFailedError):
            text = f"{what}: its options cannot be stored ({error}); nothing is deleted by them before they are"
            reporter.warn(TOPIC, text, topic, channel)
        elif changed:
            text = ", ".join(f"{name} from {old!r} to {new!r}" for name, (old, new) in changed.items())
            reporter.note(TOPIC, f"{what}: options changed: {text}", topic, channel)

    @property
    def coming(self) -> bool:
        """Whether options are being written."""
        return self._coming is not None or bool(self._coming_channels)

    def check(self, channel: str | None) -> None:
        """Raise if this channel delivers nothing as its options could not be written; without a name, if any channel.

        Raises:
            StorageError: the error of the last attempt.
        """
        for name, error in self._failed.items():
            if channel in {None, name}:
                raise error

    # --- its channels

    def channel(self, channel_engine: ChannelEngine[Any], options: ChannelOptions) -> None:
        """Apply these options to a channel from now on, as named for it.

        Raises:
            InvalidOptionError: others were named before, in this process.
        """
        if channel_engine.error is not None:
            return  # it is being deleted, and a new channel of its name starts afresh
        named = self._named_channels.get(channel_engine.name)
        if named is not None and channel_engine.name not in self._recalled:
            what = f"channel {channel_engine.name!r} of topic {self._engine.name!r}"
            _refuse_others(what, differences(named, options), "await channel.configure(options)")
            return
        self._recalled.pop(channel_engine.name, None)
        self._named_channels[channel_engine.name] = options
        self.look_at(channel_engine)

    def recall_channel(self, channel_engine: ChannelEngine[Any], options: ChannelOptions) -> None:
        """Apply options that this channel had in the memory of an earlier owner, until others are named."""
        if channel_engine.name not in self._named_channels:
            self.channel(channel_engine, options)
            self._recalled[channel_engine.name] = None

    async def configure_channel(
        self, channel_engine: ChannelEngine[Any], options: ChannelOptions, change: int = 0
    ) -> None:
        """Do as `configure`, for a channel."""
        check_channel(channel_engine)
        if not self._keeps(channel_engine):
            self._take_channel(channel_engine, options)
            return
        await self._engine.settle_in(channel_engine.name)
        check_channel(channel_engine)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: Exception | None) -> None:
            over = error or channel_engine.error
            if over is None:
                self._take_channel(channel_engine, options)
            settle(done, None, over)

        self._write_channel(channel_engine.name, kept_channel(options), finish, change)
        await done

    def _take_channel(self, channel_engine: ChannelEngine[Any], options: ChannelOptions) -> None:
        self._recalled.pop(channel_engine.name, None)
        self._named_channels[channel_engine.name] = options
        self._apply(channel_engine)

    def _keeps(self, channel_engine: ChannelEngine[Any]) -> bool:
        return not is_ephemeral(channel_engine.name) or is_ephemeral(self._engine.name)

    def channel_record(self, name: str) -> ChannelOptions | None:
        """Return the options of a channel to be stored; None if none were named."""
        named = self._named_channels.get(name)
        return None if named is None else kept_channel(named)

    def forget_channel(self, name: str) -> None:
        """Forget a deleted channel; a new one of its name starts afresh."""
        self._recalled.pop(name, None)
        self._named_channels.pop(name, None)
        self._coming_channels.pop(name, None)
        self._failed.pop(name, None)
        self._held.pop(name, None)

    def look_at(self, channel_engine: ChannelEngine[Any]) -> None:
        """Write the options of a channel that are to be on disk and are not; one being created comes here again."""
        self._apply(channel_engine)
        name, wanted = channel_engine.name, self.channel_record(channel_engine.name)
        if channel_engine.state is None or wanted is None or not self._keeps(channel_engine):
            return
        if wanted in (self._stored_channel(name), self._coming_channels.get(name)):
            return
        self._coming_channels[name] = wanted

        def finish(error: Exception | None) -> None:
            if channel_engine.error is not None:
                return  # the entries of this name belong to a new channel
            self._coming_channels.pop(name, None)
            self._failed.pop(name, None)
            if error is None:
                self.look_at(channel_engine)  # others may have been named meanwhile
            elif channel_engine.held:
                self._failed[name] = error
                self._engine.group_commit.hinder()
                channel_engine.end_getters(error)

        self._write_channel(name, wanted, finish)

    def _stored_channel(self, name: str) -> ChannelOptions | None:
        log = self._engine.log
        return None if isinstance(log, NoLog) else log.meta.channel_options.get(name)

    def _apply(self, channel_engine: ChannelEngine[Any]) -> None:
        """Apply the options named for a channel; hold it back as long as it would settle messages by them too early."""
        named = self._named_channels.get(channel_engine.name)
        if named is None:
            return
        early = False
        if channel_engine.state is not None and self._keeps(channel_engine):
            stored = self._stored_channel(channel_engine.name) or _NONE
            early = not _SETTLING.isdisjoint(differences(stored, named))
        if not early:
            channel_engine.configure(named)
        channel_engine.hold_back(held=early)
        if early:
            self._held[channel_engine.name] = channel_engine
        else:
            self._held.pop(channel_engine.name, None)

    def _write_channel(
        self, name: str, record: ChannelOptions, finish: Callable[[Exception | None], None], change: int = 0
    ) -> None:
        def work() -> Differences:
            log = self._engine.real_log()
            before = log.meta.channel_options.get(name, _NONE)
            log.description.choose_for_channel(name, record, change)
            return differences(before, record)

        def told(changed: Any, error: Exception | None) -> None:  # noqa: ANN401 - a job's result
            self._told(f"channel {name!r} of topic {self._engine.name!r}", name, changed, error)
            finish(error)

        self._persister.submit(Job(work, told))

    def again(self) -> None:
        """Retry what could not be written."""
        self.look()
        for channel_engine in [*self._held.values()] if self._held else ():
            self.look_at(channel_engine)


def check_channel(channel_engine: ChannelEngine[Any]) -> None:
    """Raise the error that makes a channel unusable, such as its deletion, if there is one."""
    if channel_engine.error is not None:
        raise again(channel_engine.error)


def _refuse_others(what: str, differing: Differences, how: str) -> None:
    for name, (old, new) in differing.items():
        # In a shared store, perhaps by two processes.
        raise InvalidOptionError(
            f"{what} was named with {name}={old!r} since the store was opened, and now with {name}={new!r}: name the "
            f"same everywhere, or none; {how} changes it"
        )
