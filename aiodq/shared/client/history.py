"""A topic's messages, read from its files by a process that does not own it, while the owner runs."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.errors import ExclusiveOnlyError
from aiodq.message import look_at, pieces_of
from aiodq.names import is_ephemeral
from aiodq.shared.encoding.answers import read_span
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.read.snapshot import LogSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.format.frame import Batch
    from aiodq.message import Message
    from aiodq.shared.connection.link import Link
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.read.log_reader import LogView

__all__ = ["History"]

_PIECE: Final = 256 * 1024


class ReadTopic(Protocol):
    """What is needed of the topic; `aiodq.shared.client.remote_topic.RemoteTopic` implements it."""

    name: str
    link: Link
    fs: FileSystem
    threads: WorkerThreads

    @property
    def store(self) -> str:
        """The store's directory."""
        ...

    async def known(self) -> None:
        """Wait until the owner has opened the topic."""
        ...


class History:
    """A reader of a topic's files, up to what the owner lets channels see."""

    def __init__(self, topic: ReadTopic) -> None:
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

    async def _look(self) -> LogView:
        # INVARIANT: the files are read after the owner has said how far they go, so they hold all of that.
        await self._topic.threads.call(self._snapshot.refresh)
        return self._snapshot.view

    async def batch_at(self, offset: int) -> Batch | None:
        """Return the batch that holds a message, or None if it is lost."""
        reader = LogReader(self._topic.fs)
        try:
            view = await self._look()
            result = await self._topic.threads.call(reader.read, view, offset, 1)
        finally:
            self._close(reader)
        return next((batch for batch in result.batches if batch.first <= offset < batch.stop), None)

    async def scan(self, start: int | None, stop: int | None) -> AsyncIterator[Message]:
        """See `Topic.scan`."""
        begin, end = await self.bounds()
        low, high = max(begin, start or 0), end if stop is None else min(stop, end)
        if low >= high:
            return
        reader = LogReader(self._topic.fs)
        try:
            view = await self._look()
            while low < high:
                result = await self._topic.threads.call(reader.read, view, low, _PIECE)
                for batch in result.batches:
                    for piece in pieces_of(batch):
                        for number in piece:
                            if batch.first + number >= high:
                                return
                            yield look_at(self._topic.name, batch, number)
                        await asyncio.sleep(0)
                if result.next <= low:
                    return
                low = result.next
        finally:
            self._close(reader)

    async def scan_back(self, start: int | None, stop: int | None) -> AsyncIterator[Message]:
        """Yield messages as `scan` does, from the newest to the oldest."""
        begin, end = await self.bounds()
        low, high = max(begin, start or 0), end if stop is None else min(stop, end)
        if low >= high:
            return
        reader = LogReader(self._topic.fs)
        try:
            view = await self._look()
            while low < high:
                result = await self._topic.threads.call(reader.read_back, view, high, _PIECE)
                for batch in reversed(result.batches):
                    for piece in reversed(pieces_of(batch)):
                        for number in reversed(piece):
                            if batch.first + number < low:
                                return
                            yield look_at(self._topic.name, batch, number)
                        await asyncio.sleep(0)
                if result.next >= high:
                    return
                high = result.next
        finally:
            self._close(reader)

    def _close(self, reader: LogReader) -> None:
        """Close the files, once any read that a cancelled caller left behind has ended."""

        def report(_: None, error: BaseException | None) -> None:
            if error is not None:
                reader.close()  # the threads are gone, so nothing is being read

        self._topic.threads.start(reader.close, report)
