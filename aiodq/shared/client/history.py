"""A topic's messages, read from its files by a process that does not own it, while the owner runs."""

from __future__ import annotations

import os
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiodq.errors import ExclusiveOnlyError, StoreNotFoundError
from aiodq.names import is_ephemeral
from aiodq.scanning import scan_log
from aiodq.shared.encoding.answers import read_span
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.read.snapshot import LogSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiodq.format.frame import Batch
    from aiodq.message import Message
    from aiodq.shared.client.remote_topic import RemoteTopic

__all__ = ["History"]

T = TypeVar("T")


class History:
    """A reader of a topic's files, up to what the owner lets channels see."""

    def __init__(self, topic: RemoteTopic) -> None:
        """Read this topic.

        Raises:
            ExclusiveOnlyError: the topic is only in its owner's memory.
        """
        if is_ephemeral(topic.name):
            raise ExclusiveOnlyError(
                f"reading from the ephemeral topic {topic.name!r} without consuming cannot be used yet in a store that "
                'is open in mode "shared" or "client", only in mode "exclusive"'
            )
        self._topic = topic
        self._snapshot = LogSnapshot(topic.fs, os.path.join(topic.store, topic.name))

    async def bounds(self) -> tuple[int, int]:
        """Return the first offset kept, and the one after the last that channels may see; nothing outside is read."""
        topic = self._topic
        await topic.known()
        return await topic.link.result("view", read_span, topic=topic.name)

    async def batch_at(self, offset: int) -> Batch | None:
        """Return the batch that holds a message, or None if it is lost."""
        return await self._looked(partial(self._batch_at, offset))

    def _batch_at(self, offset: int) -> Batch | None:
        self._refresh()
        reader = LogReader(self._topic.fs)
        try:
            result = reader.read(self._snapshot.view, offset, 1)
        finally:
            reader.close()
        return next((batch for batch in result.batches if batch.first <= offset < batch.stop), None)

    async def _looked(self, look: Callable[[], T]) -> T:
        """Return what a look at the files finds.

        Raises:
            QueueShutDown: the topic was deleted meanwhile.
            StorageError: as `look` raises it.
        """
        topic = self._topic
        try:
            return await topic.threads.call(look)
        except StoreNotFoundError:
            await topic.look_whether_deleted()
            topic.check()
            raise

    def _refresh(self) -> None:
        """Look at the files anew. Blocking.

        Raises:
            StoreNotFoundError: the store's directory is no longer there, or another one is.
            StorageError: the system refused.
        """
        # Another store at this path has files of the same names.
        self._topic.link.check_place()
        self._snapshot.refresh()

    async def scan(self, start: int | None, stop: int | None, *, reverse: bool) -> AsyncIterator[Message]:
        """See `Topic.scan`."""
        begin, end = await self.bounds()
        low, high = max(begin, start or 0), end if stop is None else min(stop, end)
        if low >= high:
            return
        topic = self._topic
        # INVARIANT: the files are read after the owner has answered how far they go, so they hold all of that.
        await self._looked(self._refresh)
        found = scan_log(
            topic.name, topic.fs, topic.threads, lambda: self._snapshot.view, range(low, high), reverse=reverse,
            damaged=lambda _: None,  # the owner reports it
        )  # fmt: skip
        async with aclosing(found):
            async for message in found:
                yield message
