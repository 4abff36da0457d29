"""Reads from the page cache only, so that code that must not block can read files too."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from aiodq.storage.io.file_pool import PooledFile, PooledFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["PageCache"]

_MOST: Final = 2 << 20
"""Bytes read between two `begin`: scanning past damage, or a large message, takes long even in memory."""


class PageCache:
    """Opens files whose reads fail with EAGAIN, like those of a non-blocking pipe, where the device would be needed.

    Attributes:
        usable: whether the page cache can be queried: on Linux, for files of the operating system.
    """

    def __init__(self, fs: FileSystem) -> None:
        """Set up for the files of `fs`."""
        self.usable: bool = isinstance(fs, PooledFileSystem) and fs.tells_what_is_cached
        self._fs = fs
        self._left = 0

    def begin(self) -> None:
        """Allow another `_MOST` bytes to be read."""
        self._left = _MOST

    def open(self, path: str) -> File:
        """Open a file for reading.

        Raises:
            OSError: as the system gave it.
        """
        return _CachedFile(self, self._fs.open(path))

    def read(self, file: File, size: int, position: int) -> bytes:
        """Return these bytes.

        Raises:
            BlockingIOError: the device would be needed, or the limit since `begin` is exceeded.
        """
        self._left -= size
        data = file.read_cached(size, position) if self._left >= 0 and isinstance(file, PooledFile) else None
        if data is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return data


class _CachedFile:
    """A file of a `PageCache`."""

    __slots__ = ("_cache", "_file")

    def __init__(self, cache: PageCache, file: File) -> None:
        self._cache = cache
        self._file = file

    def read_at(self, size: int, position: int) -> bytes:
        """See `PageCache.read`."""
        return self._cache.read(self._file, size, position)

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File.write_at`."""
        return self._file.write_at(buffers, position)

    def size(self) -> int:
        """See `File.size`."""
        return self._file.size()

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._file.truncate(size)

    def sync(self) -> None:
        """See `File.sync`."""
        self._file.sync()

    def close(self) -> None:
        """See `File.close`."""
        self._file.close()
