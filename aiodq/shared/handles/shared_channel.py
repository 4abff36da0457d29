"""A channel of a shared store, as its users hold it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from aiodq.awaited import Awaited, UnderWay
from aiodq.by_name import CONFIGURE_CHANNEL, known_as
from aiodq.channel import Channel
from aiodq.channel_handle import ANSWERED, ChannelHandle
from aiodq.consuming.acking import ack_all, list_messages
from aiodq.consuming.deferred import DeferredMessage
from aiodq.engine.loop.futures import to_its_end
from aiodq.engine.queue_errors import QueueEmpty, QueueShutDown
from aiodq.message import Message, look_at
from aiodq.options import ChannelOptions, Position, check_channel_options, check_dead_letter
from aiodq.shared.client.history import History
from aiodq.shared.client.remote_topic import RemoteTopic
from aiodq.shared.consuming.acked_again import ack_again, acked_before, not_answered
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.encoding.answers import read_deferred, read_nothing, read_number, read_offset
from aiodq.shared.encoding.options_json import given_channel_options, moment, moment_ns
from aiodq.shared.handles.changes import numbered
from aiodq.stats import ChannelStats
from aiodq.values import check_offset, check_position, check_whole

T = TypeVar("T")

__all__ = ["SharedChannel"]

_SHORT: Final = 0.01
"""Seconds of waiting in which the owner need not have answered."""


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
            async with asyncio.timeout(ANSWERED):
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

    async def _get_many_ready(self, max_items: int) -> list[Message]:
        with self._remote.wanting(max_items - 1):
            return await super()._get_many_ready(max_items)

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
        return self._remote_topic.channel_stats(self._remote)

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
        await to_its_end(self._ask("seek", read_nothing, numbered({"position": moment_ns(position)})))

    @CONFIGURE_CHANNEL
    async def configure(self, options: ChannelOptions) -> None:
        """See `Channel.configure`."""
        check_channel_options(options, "await channel.configure({})", optional=False)
        check_dead_letter(self._remote_topic.name, options)
        await to_its_end(self._configure(options))

    async def _configure(self, options: ChannelOptions) -> None:
        content = given_channel_options(options)
        await self._ask("configure", read_nothing, numbered({"options": content}))
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
        return UnderWay(self._ask("pause", read_nothing, numbered({"paused": paused})))
