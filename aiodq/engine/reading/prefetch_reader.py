"""The prefetching reader: reads from disk for channels that are behind, in bounded pieces.

Data in the system's page cache is read on the loop when needed. Other data is read ahead by a thread.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, TypeVar

from aiodq.engine.loop.on_demand import OnDemand
from aiodq.errors import AiodqError, StorageError
from aiodq.storage.io.page_cache import PageCache
from aiodq.storage.read.log_reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.reading.read_ahead import ReadAhead
    from aiodq.format.footer import SegmentIndex
    from aiodq.storage.io.filesystem import FileSystem, Opener
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.read.frame_results import Continuation
    from aiodq.storage.read.log_reader import LogView, ReadResult
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["Prefetched", "PrefetchingReader", "SharedReader"]

T = TypeVar("T")

_Use: TypeAlias = Literal["ahead", "at once", "cached", "lookup"]

_LITTLE: Final = 64 * 1024

_LONGEST_HERE: Final = 1 << 20
"""Bytes of a run up to which it is read on the loop, from the page cache."""


class SharedReader:
    """A log reader shared by several threads, the loop's included, none of which waits for another."""

    def __init__(self, fs: Opener) -> None:
        """Read through `fs`."""
        self._fs = fs
        self._reader = LogReader(fs)
        self._mutex = threading.Lock()
        self._busy = self._closed = False
        self._put_off: list[Callable[[LogReader], None]] = []

    def use(self, function: Callable[[LogReader], T]) -> T:
        """Return what `function` reads. If another thread is reading, it uses files of its own. Blocking."""
        if self._take():
            try:
                return function(self._reader)
            finally:
                self._give_back()
        reader = LogReader(self._fs)
        try:
            return function(reader)
        finally:
            reader.close()

    def release(self, function: Callable[[LogReader], None]) -> None:
        """Have `function` close files: now, or once the current read has ended."""
        if self._take(function):
            try:
                function(self._reader)
            finally:
                self._give_back()

    def close(self) -> None:
        """Close the files, once the current read has ended. Later reads use files of their own."""
        self._closed = True
        self.release(LogReader.close)

    def _take(self, otherwise: Callable[[LogReader], None] | None = None) -> bool:
        with self._mutex:
            if self._busy or (self._closed and otherwise is None):
                if otherwise is not None:
                    self._put_off.append(otherwise)
                return False
            self._busy = True
            return True

    def _give_back(self) -> None:
        while True:
            with self._mutex:
                if not self._put_off:
                    self._busy = False
                    return
                function = self._put_off.pop(0)
            # If closing fails, nothing is lost: the files were only read, and the read succeeded.
            with suppress(OSError):
                function(self._reader)


class Prefetched(Protocol):
    """What the reader needs of a source: `aiodq.engine.channel.source.message_source.MessageSource` is one.

    Attributes:
        missing: the offsets of redelivered messages that are not in memory.
        read_ahead: the messages read ahead so far.
    """

    missing: list[int]
    read_ahead: ReadAhead

    def fetch_offset(self) -> int | None:
        """Return the offset to read from next, or None if nothing needs to be read."""
        ...

    def fetched(self, result: ReadResult | None, offset: int, epoch: int, error: Exception | None = None) -> None:
        """Take what was read from `offset` on; an error goes to the waiters."""
        ...

    def brought(self, offset: int, result: ReadResult) -> None:
        """Take what was read for a missing offset."""
        ...

    def all_brought(self, error: Exception | None) -> None:
        """Note that the missing offsets were read, or that this failed."""
        ...


class PrefetchingReader:
    """The prefetching reader of one topic.

    Attributes:
        worker: serves the sources.
        bytes_read: bytes read from disk for channels so far.
        ahead: returns how many bytes of memory each channel may use to read ahead.
        damaged: called with the damage that a read for a channel found.
    """

    def __init__(
        self, fs: FileSystem, threads: WorkerThreads, view: Callable[[], LogView], ahead: Callable[[], int]
    ) -> None:
        """Read what `view` shows."""
        self.ahead: Callable[[], int] = ahead
        self._fs = fs
        self._threads = threads
        self._view = view
        self._page_cache = PageCache(fs)
        # Separate readers, so that each finds the files open that it read last; made when they are first used.
        self._readers: dict[_Use, SharedReader] = {}
        self._closed = False
        self.worker: OnDemand = OnDemand(self._run)
        self._wanted: list[Prefetched] = []
        self.bytes_read: int = 0
        self.damaged: Callable[[Sequence[Damage]], None] | None = None

    def want(self, source: Prefetched) -> None:
        """Queue a source; it is asked what it needs when its turn comes."""
        self._wanted.append(source)
        self.worker.want()

    async def _run(self) -> None:
        """Serve the sources in turn, one piece each."""
        while self._wanted:
            source = self._wanted.pop(0)
            if source.missing:
                await self._fetch_missing(source)
            await self._fetch_ahead(source)

    async def _fetch_ahead(self, source: Prefetched) -> None:
        read_ahead, offset = source.read_ahead, source.fetch_offset()
        epoch = read_ahead.epoch
        if offset is None:
            source.fetched(None, 0, epoch)
            return
        left = read_ahead.limit - read_ahead.cost
        size = max(min(read_ahead.piece, left), _LITTLE)
        view, continuation = self._view(), read_ahead.continuation
        run_bytes = left + read_ahead.rest_cost
        read = partial(
            LogReader.read, view=view, offset=offset, max_bytes=size, continuation=continuation, run_bytes=run_bytes
        )
        try:
            result = await self._threads.call(self._reader("ahead").use, read)
        except AiodqError as error:
            source.fetched(None, offset, epoch, error)
            return
        self._was_read(result)
        source.fetched(result, offset, epoch)

    async def _fetch_missing(self, source: Prefetched) -> None:
        """Read redelivered messages, from wherever they are."""
        offsets, epoch = source.missing, source.read_ahead.epoch
        try:
            read = partial(_read_each, view=self._view(), offsets=offsets)
            results = await self._threads.call(self._reader("ahead").use, read)
        except AiodqError as error:
            source.all_brought(error)
            return
        for result in {id(result): result for result in results}.values():
            self._was_read(result)
        if source.read_ahead.epoch == epoch:  # after a purge or a seek these are no longer needed
            for offset, result in zip(offsets, results, strict=True):
                source.brought(offset, result)
        source.all_brought(None)

    def _was_read(self, result: ReadResult) -> None:
        self.bytes_read += result.bytes_read
        if result.damages and self.damaged is not None:
            self.damaged(result.damages)

    def read_cached(self, offset: int, size: int, continuation: Continuation | None) -> ReadResult | None:
        """Read from the page cache in the caller's step; None if the data is not there, or if it would take long."""
        if not self._page_cache.usable:
            return None
        view = self._view()
        segment = next(iter(view.between(offset, view.stop)), None)
        # Compressed data takes a multiple of the time; and a thread decompresses it while the loop goes on.
        if segment is None or segment.raw_bytes > segment.data_end:
            return None
        self._page_cache.begin()
        read = partial(
            LogReader.read,
            view=view,
            offset=offset,
            max_bytes=max(size, _LITTLE),
            continuation=continuation,
            run_bytes=_LONGEST_HERE,
            scan=False,
        )
        try:
            result = self._reader("cached").use(read)
        except StorageError:
            return None  # a thread reads it again, and reports what is wrong, if anything is
        self._was_read(result)
        return result

    def read_now(self, offset: int, continuation: Continuation | None = None) -> ReadResult:
        """Read a little at once, in the caller's step."""
        read = partial(LogReader.read, view=self._view(), offset=offset, max_bytes=_LITTLE, continuation=continuation)
        result = self._reader("at once").use(read)
        self._was_read(result)
        return result

    def fetch_index(self, segment: Segment, told: Callable[[Segment, SegmentIndex | None], None]) -> None:
        """Read a segment's index off the loop; `told` is called with it, or with None if it cannot be read."""
        self.start_look(lambda reader: reader.opened(segment).index, lambda index, _: told(segment, index))

    def start_look(
        self, function: Callable[[LogReader], T], told: Callable[[T | None, AiodqError | None], None]
    ) -> None:
        """Do as `look` without waiting: `told` is called with the result, or with the error."""

        def report(found: T | None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, AiodqError):
                raise error
            told(found, error)

        self._threads.start(partial(self._reader("lookup").use, function), report)

    async def look(self, function: Callable[[LogReader], T]) -> T:
        """Look something up, off the loop.

        Cancellation: nothing changes.
        """
        return await self._threads.call(self._reader("lookup").use, function)

    def _reader(self, use: _Use) -> SharedReader:
        """Return the reader for this use. On the loop."""
        reader = self._readers.get(use)
        if reader is None:
            reader = self._readers[use] = SharedReader(self._page_cache if use == "cached" else self._fs)
            if self._closed:
                reader.close()
        return reader

    def forget(self, paths: Sequence[str]) -> None:
        """Close files that are about to be deleted, so that their space is freed. Blocking."""
        for reader in list(self._readers.values()):  # a copy: this runs in a thread
            reader.release(partial(LogReader.forget, paths=paths))

    def close(self) -> None:
        """Close the files, each once its current read has ended."""
        self._closed = True
        for reader in self._readers.values():
            reader.close()


def _read_each(reader: LogReader, view: LogView, offsets: Sequence[int]) -> list[ReadResult]:
    """Read the messages at these offsets; return what holds each of them, one result for several. Blocking."""
    results: list[ReadResult] = []
    for offset in offsets:
        if not (results and any(batch.first <= offset < batch.stop for batch in results[-1].batches)):
            results.append(reader.read(view, offset, 1))
        else:
            results.append(results[-1])
    return results
