"""A topic of a shared store, as its users hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from aiodq.awaited import Awaited, UnderWay
from aiodq.by_name import CONFIGURE_TOPIC, TOPIC_CHANNEL, known_as
from aiodq.engine.loop.futures import to_its_end
from aiodq.engine.queue_errors import QueueShutDown
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
from aiodq.shared.client.history import History
from aiodq.shared.client.remote_store import RemoteStore
from aiodq.shared.client.remote_topic import RemoteTopic
from aiodq.shared.encoding.answers import read_nothing, read_number
from aiodq.shared.encoding.options_json import topic_options
from aiodq.shared.handles.changes import numbered
from aiodq.shared.handles.shared_channel import SharedChannel
from aiodq.stats import TopicStats
from aiodq.topic import Topic, TopicHandle
from aiodq.values import check_flag, check_offset, check_scan

T = TypeVar("T")

__all__ = ["SharedTopic"]


@known_as("Topic")
class SharedTopic(Topic):
    """A topic of a shared store."""

    def __init__(self, store: RemoteStore, topic: RemoteTopic) -> None:
        """Made by the store."""
        # Not `super()`: that needs a topic's log.
        TopicHandle.__init__(self, topic, store.store_ref())
        self._store = store
        self._remote = topic

    async def _ask(
        self, name: str, read: Callable[[Any], T], arguments: Mapping[str, Any] | None = None, *, once: bool = False,
        again: Mapping[str, Any] | None = None,
    ) -> T:  # fmt: skip
        """Ask the owner about the topic, after everything accepted here before."""
        self._remote.check()
        try:
            await self._remote.in_turn()
            return await self._remote.link.result(name, read, arguments, topic=self.name, once=once, again=again)
        except QueueShutDown:
            await self._remote.look_whether_deleted()
            raise

    async def sync(self) -> None:
        """See `Topic.sync`."""
        self._remote.check()
        await to_its_end(self._sync())

    async def _sync(self) -> None:
        for channel in list(self._remote.channel_engines.values()):
            await channel.all_settled()
        await self._ask("sync", read_nothing)

    @CONFIGURE_TOPIC
    async def configure(self, options: StoreOptions) -> None:
        """See `Topic.configure`."""
        check_store_options(options, "await topic.configure({})", optional=False)
        await to_its_end(self._configure(options))

    async def _configure(self, options: StoreOptions) -> None:
        content = topic_options(options)
        await self._ask("configure", read_nothing, numbered({"options": content}))
        self._remote.named = options
        self._remote.go_by(options)
        self._remote.link.opened.name(self.name, "", content)

    @TOPIC_CHANNEL
    def channel(self, name: str, options: ChannelOptions | None = None) -> SharedChannel:
        """See `Topic.channel`. If the owner uses other options, the first use raises."""
        name = check_name(name, "channel")
        check_channel_options(options, f"topic.channel({name!r}, {{}})")
        check_dead_letter(self.name, options)
        self._remote.check()
        return SharedChannel(self._remote, self._store.channel(self._remote, name, options))

    def channels(self) -> list[str]:
        """See `Topic.channels`."""
        return sorted(self._remote.channel_names | set(self.stats().channels))

    async def delete_channel(self, name: str) -> None:
        """See `Topic.delete_channel`."""
        name = check_name(name, "channel")
        await to_its_end(self._delete_channel(name))

    async def _delete_channel(self, name: str) -> None:
        link, known = self._remote.link, self._remote.channel_engines.get(name)
        with link.opened.left_out(self.name, name, link.open_left):
            await self._ask("delete_channel", read_nothing, numbered({"channel": name}), again={})
            anew = self._remote.forget_channel(name, known)
            self._store.report.forget_channel(self.name, name)
        if anew is not None:
            await anew.look_whether_deleted()

    async def read(self, offset: int) -> Message:
        """See `Topic.read`."""
        self._remote.check()
        check_offset("offset", offset)
        begin, end = await History(self._remote).bounds()
        if not begin <= offset < end:
            held = f"offsets {begin} to {end - 1}" if begin < end else "no message"
            raise OffsetError(f"topic {self.name!r} holds {held}, not offset {offset}")
        batch = await History(self._remote).batch_at(offset)
        if batch is None:
            raise OffsetError(f"the message at offset {offset} of {self.name!r} is lost to damage or deleted")
        return look_at(self.name, batch, offset - batch.first)

    def scan(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[Message]:
        """See `Topic.scan`."""
        self._remote.check()
        check_scan(start, stop)
        check_flag("reverse", reverse)
        return History(self._remote).scan(start, stop, reverse=reverse)

    async def offset_at(self, moment: datetime) -> int:
        """See `Topic.offset_at`."""
        return await self._ask("offset_at", read_number, {"ns": time_ns(moment)})

    async def settle_in(self) -> None:
        """See `Topic.settle_in`."""
        self._remote.check()
        await self._remote.settle_in()

    async def purge(self) -> int:
        """See `Topic.purge`."""
        return await to_its_end(self._ask("purge", read_number, once=True))

    def pause(self) -> Awaited[None]:
        """See `Topic.pause`."""
        return self._pause(paused=True)

    def resume(self) -> Awaited[None]:
        """See `Topic.resume`."""
        return self._pause(paused=False)

    def _pause(self, *, paused: bool) -> Awaited[None]:
        self._remote.check()
        return UnderWay(self._ask("pause", read_nothing, numbered({"paused": paused})))

    def stats(self) -> TopicStats:
        """See `Topic.stats`."""
        return self._remote.stats()
