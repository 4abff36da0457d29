"""The prefetching reader: reads ahead from disk for channels that are behind, in bounded pieces, off the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import AiodqError
from aiodq.storage.logreader import LogReader, ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.engine.offload import Offload
    from aiodq.engine.outlet import Outlet
    from aiodq.storage.filesystem import FileSystem
    from aiodq.storage.logreader import LogView

__all__ = ["PrefetchingReader"]

_PIECE: Final = 256 * 1024
_LITTLE: Final = 64 * 1024


class PrefetchingReader:
    """One per topic. Its files are its own: reads on the loop's behalf go through another set.

    Attributes:
        bytes_read: from disk, so far.
    """

    def __init__(self, fs: FileSystem, offload: Offload, view: Callable[[], LogView]) -> None:
        """Read what `view` shows."""
        self._offload = offload
        self._view = view
        self._ahead = LogReader(fs)
        self._inline = LogReader(fs)
        self._wanted: asyncio.Queue[Outlet[Any]] = asyncio.Queue()
        self._removed: list[str] = []
        self.bytes_read = 0

    def want(self, outlet: Outlet[Any]) -> None:
        """Queue an outlet; it is asked what it needs when its turn comes."""
        self._wanted.put_nowait(outlet)

    def forget(self, paths: Sequence[str]) -> None:
        """Let go of files that are about to be deleted."""
        self._inline.forget(paths)
        self._removed += paths

    async def run(self) -> None:
        """Serve the outlets in turn, one piece each."""
        while True:
            outlet = await self._wanted.get()
            shelf, offset = outlet.shelf, outlet.fetch_offset()
            epoch = shelf.epoch
            if offset is None:
                outlet.fetched(None, 0, epoch)
                continue
            size = max(min(_PIECE, shelf.limit - shelf.cost), _LITTLE)
            try:
                result = await self._offload.call(self._read, self._view(), offset, size)
            except (AiodqError, OSError) as error:
                outlet.fetched(None, offset, epoch, error)
                continue
            self.bytes_read += result.bytes_read
            outlet.fetched(result, offset, epoch)

    def _read(self, view: LogView, offset: int, size: int) -> ReadResult:
        if self._removed:
            removed, self._removed = self._removed, []
            self._ahead.forget(removed)
        return self._ahead.read(view, offset, size)

    def read_now(self, offset: int) -> ReadResult:
        """Read a little at once, on the caller's time."""
        result = self._inline.read(self._view(), offset, _LITTLE)
        self.bytes_read += result.bytes_read
        return result

    def bytes_from(self, offset: int) -> int:
        """Return about how many bytes lie at `offset` and behind it."""
        return self._inline.bytes_from(self._view(), offset)

    def close(self) -> None:
        """Close the files."""
        self._ahead.close()
        self._inline.close()
