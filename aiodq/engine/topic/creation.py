"""The creation of a topic's files and channels: if it fails, waiting puts are refused, and it is retried later."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.engine.loop.futures import settle
from aiodq.engine.topic.no_log import NoLog
from aiodq.errors import AiodqError, StorageError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.engine.topic.whole_topic import WholeTopic
    from aiodq.options import ChannelOptions
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["Creation", "NewChannel"]


class NewChannel(Protocol):
    """A channel to be created: `aiodq.engine.store.channel_management` has one."""

    name: str
    begin: int | None
    durable: bool
    made: str

    def open(self, log: TopicLog) -> None:
        """Create its files. Blocking."""
        ...

    def discard(self) -> None:
        """Close what was opened, as the channel was not recorded. Blocking."""
        ...

    def record(self) -> ChannelOptions | None:
        """Return the options that were named for it."""
        ...

    def finish(self, error: Exception | None) -> None:
        """Take over the new channel, or its error; on the loop."""
        ...


_MOST_AT_ONCE: Final = 256
"""Channels of a group, which are told in one turn of the loop that they are there: two or three milliseconds."""


class _ChannelGroup:
    """Channels created together: the topic's description is written once for all of them."""

    def __init__(self, engine: WholeTopic, first: NewChannel) -> None:
        """Start with one; others may `join` until a thread starts to create them."""
        self._engine = engine
        self._mutex = threading.Lock()
        self._closed = False
        self._channels = [first]
        self._errors: dict[str, Exception] = {}

    def join(self, channel: NewChannel) -> bool:
        """Add another channel, unless it is too late or there are many; return whether it was added."""
        with self._mutex:
            if self._closed or len(self._channels) >= _MOST_AT_ONCE:
                return False
            self._channels.append(channel)
            return True

    def make(self) -> None:
        """Create the channels. One that fails does not prevent the others. Blocking."""
        with self._mutex:
            self._closed = True
        log = self._engine.real_log()
        opened: list[NewChannel] = []
        try:
            for channel in self._channels:
                with self._blaming(channel):
                    channel.open(log)
                    opened.append(channel)
            noted = {one.name: (one.begin or 0, one.record()) for one in opened if one.durable}
            with self._blaming(*(one for one in opened if one.durable)):
                if noted:
                    log.description.add_channels(noted, {one.name: one.made for one in opened if one.name in noted})
        except BaseException:
            for channel in opened:
                channel.discard()
            raise
        for channel in opened:
            if channel.name in self._errors:
                channel.discard()

    @contextmanager
    def _blaming(self, *channels: NewChannel) -> Iterator[None]:
        try:
            yield
        except StoreFailedError:
            raise
        except AiodqError as error:
            self._errors |= dict.fromkeys([channel.name for channel in channels], error)

    def made(self, _: object, error: Exception | None) -> None:
        """Tell each channel its outcome."""
        with self._mutex:
            self._closed = True
        # INVARIANT: a channel that was told of its creation is told nothing else if finishing the next one fails.
        while self._channels:
            channel = self._channels[0]
            channel.finish(error or self._errors.get(channel.name))
            del self._channels[0]


class Creation:
    """The creation of one topic's files and channels.

    If a put returned before a new channel exists, the channel might never get the message, as messages that all other
    channels have consumed may be deleted. So no put returns before all channels exist.

    Attributes:
        exists: whether the topic has files, or they are being created.
        error: the error of the last attempt.
        failed: whether the last attempt failed.
    """

    def __init__(self, engine: WholeTopic, make_log: Callable[[], TopicLog], *, exists: bool) -> None:
        """Create what is missing of this topic; `make_log` creates its files."""
        self.exists: bool = exists
        self.error: Exception = StorageError("the topic has no files yet", engine.name, retriable=True)
        self.failed: bool = False
        self._engine = engine
        self._make_log = make_log
        self._channels: dict[str, tuple[Callable[[], None], Exception]] = {}
        self._group: tuple[_ChannelGroup, tuple[object, ...]] | None = None

    @property
    def at_rest(self) -> bool:
        """Whether no failed channel waits for a retry."""
        return not self._channels

    def create(self) -> None:
        """Create the topic's files, unless that was asked for already."""
        if not self.exists:
            self.exists = True
            self._engine.submit(self._make_log, self._made, after=0)

    def _made(self, log: TopicLog, error: Exception | None) -> None:
        self.failed = error is not None
        if error is None:
            self._engine.created(log)
        else:
            # The next put or channel tries again.
            self.exists = False
            self.error = error
            self._engine.refuse(error)

    def refused(self, error: Exception) -> None:
        """Note that the topic could not be created before it was named here."""
        self.failed, self.error = True, error

    async def made(self) -> None:
        """Wait until the topic has files; create them if it has none.

        Raises:
            StorageError: they could not be created.

        Cancellation: they are created anyway.
        """
        self._engine.check()
        if not isinstance(self._engine.log, NoLog):
            return
        self.create()
        done: asyncio.Future[TopicLog] = asyncio.get_running_loop().create_future()
        self._engine.submit(self._engine.real_log, lambda log, error: settle(done, log, error), after=0)
        await done

    def make_channel(self, channel: NewChannel, after: int | None = None) -> None:
        """Create a channel: together with those before it, if nothing else was asked for or put since."""
        engine = self._engine
        group, since = self._group or (None, None)
        if (
            group is not None
            and since == (engine.visible, engine.serial, engine.submitted, after)
            and group.join(channel)
        ):
            return
        group = _ChannelGroup(engine, channel)
        engine.submit(group.make, partial(self._group_made, group), after=after)
        self._group = group, (engine.visible, engine.serial, engine.submitted, after)

    def _group_made(self, group: _ChannelGroup, result: object, error: Exception | None) -> None:
        if self._group is not None and self._group[0] is group:
            self._group = None
        group.made(result, error)

    def put_off(self, channel: str, again: Callable[[], None], error: Exception) -> None:
        """Note that a channel could not be created; `again` retries."""
        if isinstance(self._engine.log, NoLog) and self.exists:
            again()  # there was a put meanwhile, so the topic is retried before this
            return
        self._channels[channel] = again, error
        self._engine.group_commit.hinder()
        if not isinstance(self._engine.log, NoLog):
            self._engine.refuse(error)

    def forget(self, channel: str) -> None:
        """Drop a channel that waits for a retry."""
        self._channels.pop(channel, None)

    def again(self) -> None:
        """Retry what could not be created, before anything else is written."""
        if self._channels:
            self.create()
        for channel in list(self._channels):
            again, _ = self._channels.pop(channel)
            again()

    def check(self, channel: str | None) -> None:
        """Raise if this channel could not be created, or without a name, if any channel could not.

        Raises:
            StorageError: the error of the last attempt.
        """
        for name, (_, error) in self._channels.items():
            if channel in (None, name):
                raise error
