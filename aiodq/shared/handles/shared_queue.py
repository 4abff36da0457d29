"""A topic of a shared store with its one channel, as its users hold it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiodq.by_name import CONFIGURE_QUEUE, known_as
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.queue import Queue
from aiodq.shared.handles.shared_channel import SharedChannel
from aiodq.shared.handles.shared_topic import SharedTopic

__all__ = ["SharedQueue"]


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
