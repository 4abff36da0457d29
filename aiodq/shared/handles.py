"""The public objects of a shared store: a `Store`, `Topic`, `Channel` and `Queue` that ask the owner.

Waiting, taking and settling are inherited: that code calls an engine, in whose place there is an object that asks the
owner. Methods that need more of an engine are overridden here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from typing import Any, Final, TypeVar

from aiodq.awaited import Awaited, UnderWay
from aiodq.by_name import CONFIGURE_CHANNEL, CONFIGURE_QUEUE, CONFIGURE_TOPIC, STORE_TOPIC, TOPIC_CHANNEL, known_as
from aiodq.channel import Channel
from aiodq.channel_handle import ChannelHandle
from aiodq.consuming.acking import ack_all, list_messages
from aiodq.consuming.deferred import DeferredMessage
from aiodq.consuming.handlers import checked_choice, chooses
from aiodq.engine.graceful_stop import stop_channels
from aiodq.engine.loop.futures import to_its_end
from aiodq.engine.monitoring.events import Events
from aiodq.engine.queue_errors import QueueEmpty, QueueShutDown
from aiodq.errors import (
    OffsetError,
    OwnerLostError,
    OwnerStalledError,
    StorageError,
    StoreFailedError,
    WrongContextError,
)
from aiodq.message import Message, look_at
from aiodq.names import check_name, check_topic_name
from aiodq.options import (
    ChannelOptions,
    Position,
    StoreOptions,
    check_channel_options,
    check_dead_letter,
    check_store_options,
    time_ns,
)
from aiodq.queue import Queue
from aiodq.requeue import AT_ONCE
from aiodq.shared.client.history import History
from aiodq.shared.client.remote_store import RemoteStore
from aiodq.shared.client.remote_topic import RemoteTopic
from aiodq.shared.consuming.acked_again import ack_again, acked_before, not_answered
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.encoding.answers import (
    read_backup,
    read_deferred,
    read_flag,
    read_letters,
    read_name,
    read_nothing,
    read_number,
    read_offset,
    understood,
)
from aiodq.shared.encoding.options_json import channel_options, moment, moment_ns, topic_options
from aiodq.shared.encoding.stats_json import read_channel_stats, read_health, read_topic_stats
from aiodq.stats import BackupReport, ChannelStats, Health, StoreStats, TopicStats
from aiodq.storage.state.topic.topic_meta import read_meta
from aiodq.storage.store_layout import absolute_path
from aiodq.store import Store, StoreHandle
from aiodq.topic import Topic, TopicHandle
from aiodq.values import check_flag, check_offset, check_position, check_scan, check_whole, span_seconds
from aiodq.wire.layout import CHANGES

T = TypeVar("T")

__all__ = ["SharedChannel", "SharedQueue", "SharedStore", "SharedTopic"]

_SHORT: Final = 0.01
"""Seconds of waiting in which the owner need not have answered."""

_NO_OFFSET: Final = (1 << 63) - 1
"""Greater than any offset."""

_ANSWERED: Final = 1.0
"""Seconds for which a `get` that is not to wait waits for the owner's answer."""


def _which(store: RemoteStore, topic: str) -> Mapping[str, str]:
    """Return what tells a topic from another one of its name, if that can be read. Blocking."""
    with suppress(StorageError):
        meta = read_meta(store.fs, os.path.join(store.path, topic))
        return {} if meta is None else {"uuid": str(meta.uuid)}
    return {}


def _change(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a change with a number, by which an owner knows a repeated one."""
    return {**arguments, "change": secrets.randbelow(CHANGES - 1) + 1}


@known_as("Channel")
class SharedChannel(Channel):
    """A channel of a shared store: the consumers of all processes share its messages."""

    def __init__(self, topic: RemoteTopic, channel: RemoteChannel) -> None:
        """Made by the topic."""
        # Not `super()`: that needs a channel's state, and in a queue, a topic and a channel.
        ChannelHandle.__init__(self, topic, channel)
        self._remote_topic = topic
        self._remote = channel

    async def _ask(
        self, name: str, read: Callable[[Any], T], arguments: Mapping[str, Any] | None = None, *, once: bool = False,
        waits: bool = False,
    ) -> T:  # fmt: skip
        """Ask the owner about the channel, after everything accepted here before."""
        self.check()
        await self._remote_topic.in_turn()
        await self._remote.known()
        return await self._remote_topic.link.result(
            name, read, arguments, topic=self._remote_topic.name, channel=self.name, once=once, waits=waits
        )

    async def refresh(self) -> None:
        """See `Channel.refresh`."""
        self.check()
        await self._remote_topic.in_turn()
        await self._remote.refresh()

    def get_nowait(self) -> Message:
        """See `Channel.get_nowait`."""
        self.check()
        message = self._take_now()
        if message is None:
            if self._remote.finished:
                raise QueueShutDown("the queue was shut down")
            raise QueueEmpty("nothing is here now; the owner was asked for one, which a later call may find")
        return self._handed(message)

    async def _get_ready(self) -> Message:
        self.check()
        message: Message | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERED):
                message = await self._remote.get_ready(self._store_ref)
        if message is not None:
            return self._handed(message)
        if self._remote.finished:
            raise QueueShutDown("the queue was shut down")
        raise QueueEmpty("nothing may be delivered now")

    def _take_late(self, wait: float) -> Message | None:
        # Like `get_nowait`, a wait shorter than a round trip to the owner asks for a message that the next call may
        # find.
        message: Message | None = self._channel_engine.take(self._store_ref, cold=wait < _SHORT)
        return message

    def _made_now(self) -> bool:
        return False  # the owner creates it, which this step cannot wait for

    async def get_many(self, max_items: int, *, linger: float | timedelta = 0.0) -> list[Message]:
        """See `Channel.get_many`."""
        check_whole("max_items", max_items, least=1, example=100)
        with self._remote.wanting(max_items - 1):
            return await super().get_many(max_items, linger=linger)

    def ack_many(self, messages: Iterable[Message]) -> Awaited[None]:
        """See `Channel.ack_many`."""
        self.check()
        messages = list_messages(messages)
        with self._remote.together() as settled:
            before = acked_before(self._remote, messages)
            ack_all(self._channel_engine, [each for each in messages if each not in before] if before else messages)
            settled.those += dict.fromkeys(before.values())
            ack_again(self._remote, before)
        settled.unanswered = partial(not_answered, self._remote, messages, settled)
        return settled

    # --- counts

    def qsize(self) -> int:
        """See `Channel.qsize`."""
        return self._remote.ready

    def in_flight(self) -> int:
        """See `Channel.in_flight`."""
        return self._remote.flying

    def deferred(self) -> int:
        """See `Channel.deferred`."""
        return self._remote.counts.deferred

    @property
    def depth(self) -> int:
        """See `Channel.depth`."""
        return self._remote.ready + self._remote.flying + self._remote.counts.deferred

    def stats(self) -> ChannelStats:
        """See `Channel.stats`."""
        numbers = self._remote_topic.stats().channels.get(self.name)
        return read_channel_stats({"name": self.name}) if numbers is None else numbers

    @property
    def paused(self) -> bool:
        """See `Channel.paused`."""
        return self._remote.paused

    # --- calls to the owner

    def deferred_messages(self) -> AsyncIterator[DeferredMessage]:
        """See `Channel.deferred_messages`."""
        self.check()
        return self._deferred_messages()

    async def _deferred_messages(self) -> AsyncIterator[DeferredMessage]:
        history = History(self._remote_topic)
        number, last = 0, -1
        while True:
            # An owner of an earlier aiodq expects the number of messages to skip.
            page, last = await self._ask("deferred", read_deferred, {"from": number, "after": last})
            if not page:
                return
            number += len(page)
            for offset, due, attempts in page:
                batch = await history.batch_at(offset)
                if batch is not None:
                    message = look_at(self._remote_topic.name, batch, offset - batch.first, attempts)
                    yield DeferredMessage(message, moment(due))

    async def cancel(self, offset: int) -> None:
        """See `Channel.cancel`."""
        check_offset("offset", offset)
        await to_its_end(self._ask("cancel", read_nothing, {"offset": offset}, once=True))

    async def peek(self) -> Message | None:
        """See `Channel.peek`."""
        offset = await self._ask("peek", read_offset)
        if offset is None:
            return None
        batch = await History(self._remote_topic).batch_at(offset)
        return None if batch is None else look_at(self._remote_topic.name, batch, offset - batch.first)

    async def join(self) -> None:
        """See `Channel.join`."""
        self.check()
        await self._remote.join(self._ask("join", read_nothing, waits=True))

    async def purge(self) -> int:
        """See `Channel.purge`."""
        return await to_its_end(self._ask("purge", read_number, once=True))

    async def seek(self, position: Position) -> None:
        """See `Channel.seek`."""
        self.check()
        check_position("position", position)
        await to_its_end(self._ask("seek", read_nothing, _change({"position": moment_ns(position)})))

    @CONFIGURE_CHANNEL
    async def configure(self, options: ChannelOptions) -> None:
        """See `Channel.configure`."""
        check_channel_options(options, "await channel.configure({})", optional=False)
        check_dead_letter(self._remote_topic.name, options)
        await to_its_end(self._configure(options))

    async def _configure(self, options: ChannelOptions) -> None:
        content = channel_options(options)
        await self._ask("configure", read_nothing, _change({"options": content}))
        self._remote.named = options
        self._remote.go_by(options)
        self._remote_topic.keep_channel_options(self.name, content)

    def pause(self) -> Awaited[None]:
        """See `Channel.pause`."""
        return self._pause(paused=True)

    def resume(self) -> Awaited[None]:
        """See `Channel.resume`."""
        return self._pause(paused=False)

    def _pause(self, *, paused: bool) -> Awaited[None]:
        self.check()
        self._remote.paused = paused
        return UnderWay(self._ask("pause", read_nothing, _change({"paused": paused})))


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
        await self._ask("configure", read_nothing, _change({"options": content}))
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
        own = {name for name, one in self._remote.channel_engines.items() if one.error is None}
        return sorted(own | set(self.stats().channels))

    async def delete_channel(self, name: str) -> None:
        """See `Topic.delete_channel`."""
        name = check_name(name, "channel")
        await to_its_end(self._delete_channel(name))

    async def _delete_channel(self, name: str) -> None:
        link, known = self._remote.link, self._remote.channel_engines.get(name)
        with link.opened.left_out(self.name, name, link.open_left):
            await self._ask("delete_channel", read_nothing, _change({"channel": name}), again={})
            self._store.forget_channel(self.name, name)
            anew = self._remote.forget_channel(name, known)
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
        return UnderWay(self._ask("pause", read_nothing, _change({"paused": paused})))

    def stats(self) -> TopicStats:
        """See `Topic.stats`."""
        return self._remote.stats()


@known_as("Queue")
class SharedQueue(SharedChannel, Queue):
    """A topic with one channel, of a shared store."""

    def __init__(
        self, topic: SharedTopic, channel: SharedChannel, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Made by the store. `close` is given if the queue has the store to itself."""
        SharedChannel.__init__(self, topic._remote, channel._remote)  # noqa: SLF001 - one class in two
        self._topic = topic
        self._held_by_task = self._remote.held_by_task
        self._close = close

    async def purge(self) -> int:
        """See `Queue.purge`."""
        return await self._topic.purge()

    @CONFIGURE_QUEUE
    async def configure(self, options: ChannelOptions | StoreOptions) -> None:
        """See `Queue.configure`."""
        if isinstance(options, StoreOptions):
            await self._topic.configure(options)
        else:
            await SharedChannel.configure(self, options)


@known_as("Store")
class SharedStore(Store):
    """A shared store. Made by `aiodq.open` in mode "shared" and "client"."""

    _queue_class = SharedQueue

    def __init__(self, store: RemoteStore) -> None:
        """Made by `aiodq.open`."""
        # Not `super()`: that needs a store's engine.
        StoreHandle.__init__(self, store)
        self._remote = store

    @STORE_TOPIC
    def topic(self, name: str, options: StoreOptions | None = None) -> SharedTopic:
        """See `Store.topic`. If the owner uses other options, the first use raises."""
        name = check_topic_name(name, self._remote.topics)
        check_store_options(options, f"store.topic({name!r}, {{}})")
        self._remote.check()
        return SharedTopic(self._remote, self._remote.topic(name, options))

    def topics(self) -> list[str]:
        """See `Store.topics`."""
        return self._remote.topic_names()

    async def delete_topic(self, name: str) -> None:
        """See `Store.delete_topic`."""
        name = check_name(name)
        self._remote.check()
        await to_its_end(self._delete(name))

    async def _delete(self, name: str) -> None:
        again = await self._remote.threads.call(_which, self._remote, name)
        link, known = self._remote.link, self._remote.topics.get(name)
        with link.opened.left_out(name, "", link.open_left):
            try:
                await link.call("delete_topic", _change({"topic": name}), again=again)
            except (OwnerLostError, OwnerStalledError, StoreFailedError):
                raise
            except StorageError:
                # The owner has ended it nevertheless: naming it again raises what is left of it.
                self._remote.forget(name, known)
                raise
            anew = self._remote.forget(name, known)
        if anew is not None:
            await anew.look_whether_deleted()

    async def requeue_dead(
        self, topic: str, *, where: Callable[[Message], bool] | None = None, limit: int | None = None
    ) -> int:
        """See `Store.requeue_dead`. If the owner changes meanwhile, earlier transactions stand."""
        if limit is not None:
            check_whole("limit", limit, least=0, example=100)
        checked_choice(where)
        topic = check_topic_name(topic, self._remote.topics)
        self._remote.check()
        if self._remote.transactions.current() is not None:
            raise WrongContextError("this task is in a transaction of this store, and requeue_dead has its own")
        if where is not None:
            return await self._requeue_chosen(topic, where, limit)
        # It may take long until it is known which letters others hold: a call waits for it that may be repeated.
        await self._remote.link.call("letters", {"topic": topic, "from": _NO_OFFSET})
        asked = {"topic": topic, "limit": limit}
        return await self._remote.link.result("requeue_dead", read_number, asked, once=True)

    async def _requeue_chosen(self, topic: str, where: Callable[[Message], bool], limit: int | None) -> int:
        """Read the dead letters here, and have the owner requeue the chosen ones."""
        moved = 0
        first: int | None = 0
        while first is not None:
            offsets, first = await self._remote.link.result("letters", read_letters, {"topic": topic, "from": first})
            chosen: list[int] = []
            for letter in await self._letters(topic, offsets):
                if limit is not None and moved + len(chosen) >= limit:
                    first = None
                    break
                if chooses(where, letter):
                    chosen.append(letter.offset)
                if len(chosen) == AT_ONCE:
                    moved += await self._put_back(topic, chosen)
                    chosen = []
            moved += await self._put_back(topic, chosen)
        return moved

    async def _letters(self, topic: str, offsets: Sequence[int]) -> list[Message]:
        if not offsets:
            return []
        wanted = set(offsets)
        return [each async for each in self.topic(topic).scan(offsets[0], offsets[-1] + 1) if each.offset in wanted]

    async def _put_back(self, topic: str, offsets: Sequence[int]) -> int:
        if not offsets:
            return 0
        asked = {"topic": topic, "offsets": offsets}
        return await self._remote.link.result("requeue_these", read_number, asked, once=True)

    def events(self) -> Events:
        """See `Store.events`. During a change of owners, some may be reported twice or not at all.

        As long as no owner answers, there are no events, and no error; `health` shows that.
        """
        self._remote.check_context()
        return self._remote.events.listen()

    def health(self) -> Health:
        """See `Store.health`; up to about a second old. Closed, or without an owner that answers, it is not healthy."""
        found = understood(lambda seen: read_health(seen["health"]), self._remote.seen[""], "store")
        standing = self._remote.standing
        reason = self._remote.link.unserved if standing == "open" else f"the store is {standing}"
        return found if reason is None else replace(found, ok=False, reasons=(*found.reasons, reason))

    def stats(self) -> StoreStats:
        """See `Store.stats`; up to about a second old, or fifty times as long as it takes to ask for every topic."""
        seen = self._remote.seen
        topics = {name: read_topic_stats(each) for name, each in sorted(seen.items()) if name}
        topics |= {name: topic.stats() for name, topic in self._remote.topics.items() if name in self.topics()}
        failed, committed, syncs = understood(
            # An older owner syncs by threads and does not report that.
            lambda own: (own["failed"], read_number(own["transactions"]), read_name(own.get("sync_backend", "thread"))),
            seen[""],
            "store",
        )
        return StoreStats(self.path, failed, topics, committed, syncs)

    async def backup(self, path: str | PathLike[str]) -> BackupReport:
        """See `Store.backup`. If the owner ends meanwhile, `OwnerLostError`: there is a complete backup, or none."""
        target = absolute_path(path)
        self._remote.check()
        return await self._remote.link.result("backup", read_backup, {"path": target}, once=True, waits=True)

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """See `Store.drain`. Puts of all processes are refused as long as the store has its present owner."""
        wait = None if timeout is None else span_seconds("timeout", timeout, past=True)
        self._remote.check()
        try:
            async with asyncio.timeout(wait):
                await self._remote.shut_puts()
                return await self._remote.link.result("drain", read_flag, {"timeout": wait}, waits=True)
        except TimeoutError:
            return False

    async def stop(self, grace: float | timedelta = 10.0) -> None:
        """See `Store.stop`: the deliveries to this process end, and it leaves the store to the others."""
        wait = span_seconds("grace", grace)
        self._remote.check_context()
        channels = [channel for topic in self._remote.topics.values() for channel in topic.channel_engines.values()]
        await stop_channels(channels, wait, self._remote.close)

    async def aclose(self) -> None:
        """See `Store.aclose`: this process leaves the store to the others."""
        await self._remote.close()
