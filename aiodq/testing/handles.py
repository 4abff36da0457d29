"""What a simulated file system gives out: files and locks."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

from aiodq.format.layout import BytesLike
from aiodq.storage.io.os_errors import os_error
from aiodq.testing.faults import Call, Fault
from aiodq.testing.tree import Node

__all__ = ["SimulatedFile", "SimulatedLock", "SimulatedWindow"]


class _Owner(Protocol):
    """What an open file needs of its file system, which counts, fails and records each call."""

    def _enter(self, call: Call, path: str) -> Fault | None: ...

    def _write(
        self, node: Node, path: str, buffers: Sequence[BytesLike], position: int, *, stored: bool = False
    ) -> int: ...

    def _truncate(self, node: Node, path: str, size: int) -> None: ...

    def _sync(self, node: Node, path: str, call: Call) -> None: ...


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    __slots__ = ("_fs", "_node", "_path", "_writable")

    def __init__(self, fs: _Owner, node: Node, path: str, *, writable: bool) -> None:
        """Open it."""
        self._fs = fs
        self._node: Node | None = node
        self._path = path
        self._writable = writable

    def _opened(self, *, refusal: int | None = None) -> Node:
        if self._node is None:
            raise os_error(errno.EBADF, self._path)
        if refusal is not None and not self._writable:
            raise os_error(refusal, self._path)
        return self._node

    def read_at(self, size: int, position: int) -> bytes:
        """See `aiodq.storage.io.filesystem.File.read_at`."""
        self._fs._enter("read", self._path)  # noqa: SLF001 - the other half of one thing
        node = self._opened()
        if node.names is not None:
            raise os_error(errno.EISDIR, self._path)
        return bytes(node.data[position : position + size])

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `aiodq.storage.io.filesystem.File.write_at`."""
        return self._fs._write(self._opened(refusal=errno.EBADF), self._path, buffers, position)  # noqa: SLF001 - see above

    def store(self, data: BytesLike, position: int) -> None:
        """Write as a process does that has the file in its memory: all of it, which nobody can take only in part."""
        left = memoryview(data)
        while left:
            taken = self._fs._write(self._opened(refusal=errno.EBADF), self._path, [left], position, stored=True)  # noqa: SLF001 - see above
            left, position = left[taken:], position + taken

    def window(self, begin: int, end: int) -> SimulatedWindow:
        """See `aiodq.storage.io.write_window.window_of`."""
        return SimulatedWindow(self, begin, end)

    def size(self) -> int:
        """See `aiodq.storage.io.filesystem.File.size`."""
        self._fs._enter("size", self._path)  # noqa: SLF001 - see above
        return len(self._opened().data)

    def truncate(self, size: int) -> None:
        """See `aiodq.storage.io.filesystem.File.truncate`."""
        self._fs._truncate(self._opened(refusal=errno.EINVAL), self._path, size)  # noqa: SLF001 - see above

    def sync(self) -> None:
        """See `aiodq.storage.io.filesystem.File.sync`."""
        self._fs._sync(self._opened(), self._path, "sync")  # noqa: SLF001 - see above

    def held(self) -> SimulatedFile:
        """Return the same file, open for itself, as the system holds one that it syncs."""
        return SimulatedFile(self._fs, self._opened(), self._path, writable=self._writable)

    def close(self) -> None:
        """See `aiodq.storage.io.filesystem.File.close`."""
        if self._node is not None:
            self._node = None
            self._fs._enter("close", self._path)  # noqa: SLF001 - see above


class SimulatedWindow:
    """A file's bytes as memory: what is stored in it is a write, and beyond the file's end it ends the process."""

    __slots__ = ("_begin", "_end", "_file")

    def __init__(self, file: SimulatedFile, begin: int, end: int) -> None:
        """Open a window over these bytes of a file."""
        self._file, self._begin, self._end = file.held(), begin, end

    def __setitem__(self, where: slice, data: BytesLike) -> None:
        """Write a slice.

        Raises:
            RuntimeError: a process of the operating system would have ended with SIGBUS, or Python refused it.
            OSError: the power is off, or the plan says so.
        """
        start, stop = where.start, where.stop
        if not 0 <= start <= stop <= self._end - self._begin or stop - start != len(data):
            raise RuntimeError(f"{len(data)} bytes at {start} to {stop} of a window of {self._end - self._begin}")
        if self._begin + stop > self._file.size():
            raise RuntimeError(f"SIGBUS: the file ends before {self._begin + stop}")
        self._file.store(data, self._begin + start)


class SimulatedLock:
    """The ownership of a directory."""

    __slots__ = ("_locks", "_path")

    def __init__(self, locks: set[str], path: str) -> None:
        """Hold `path` among `locks`."""
        self._locks = locks
        self._path = path

    def release(self) -> None:
        """See `aiodq.storage.io.filesystem.Lock.release`."""
        self._locks.discard(self._path)
