"""An in-memory file system, which ends with the process: it holds `#ephemeral` topics and channels."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from aiodq.storage.io.os_errors import os_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, Lock

__all__ = ["MemoryFileSystem"]


class _MemoryFile:
    """An open file. Its bytes outlive its name, as on POSIX."""

    __slots__ = ("_data",)

    def __init__(self, data: bytearray) -> None:
        """Open a file with these bytes."""
        self._data = data

    def read_at(self, size: int, position: int) -> bytes:
        """See `File.read_at`."""
        return bytes(self._data[position : position + size])

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File.write_at`."""
        data = b"".join(buffers)
        if position > len(self._data):
            self._data.extend(bytes(position - len(self._data)))
        self._data[position : position + len(data)] = data
        return len(data)

    def size(self) -> int:
        """See `File.size`."""
        return len(self._data)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        if size < len(self._data):
            del self._data[size:]
        else:
            self._data.extend(bytes(size - len(self._data)))

    def sync(self) -> None:
        """Do nothing: memory cannot be made durable."""

    def close(self) -> None:
        """Do nothing."""


class MemoryFileSystem:
    """See `FileSystem`. Directories need no parent. Its methods may be called from any thread."""

    def __init__(self) -> None:
        """Make an empty file system."""
        self._nodes: dict[str, bytearray | None] = {}
        # The names in each directory, so that a deletion among many topics looks at no others.
        self._names: dict[str, set[str]] = {}
        self._mutex = threading.RLock()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:  # noqa: ARG002 - all are writable
        """See `FileSystem.open`."""
        with self._mutex:
            if create:
                if path in self._nodes:
                    raise os_error(errno.EEXIST, path)
                self._add(path, bytearray())
            data = self._nodes.get(path)
            if data is None:
                raise os_error(errno.EISDIR if path in self._nodes else errno.ENOENT, path)
            return _MemoryFile(data)

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        with self._mutex:
            names = sorted(self._names.get(path, ()))
            if not names and not self.is_directory(path):
                raise os_error(errno.ENOENT, path)
            return names

    def is_directory(self, path: str) -> bool:
        """See `FileSystem.is_directory`."""
        with self._mutex:
            return path in self._nodes and self._nodes[path] is None

    def exists(self, path: str) -> bool:
        """See `FileSystem.exists`."""
        return path in self._nodes

    def make_directory(self, path: str) -> None:
        """See `FileSystem.make_directory`."""
        with self._mutex:
            if path in self._nodes:
                raise os_error(errno.EEXIST, path)
            self._add(path, None)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        with self._mutex:
            if source not in self._nodes:
                raise os_error(errno.ENOENT, source)
            for node in self._tree(source):
                self._add(target + node[len(source) :], self._take(node))

    def _tree(self, path: str) -> list[str]:
        below = [node for name in self._names.get(path, ()) for node in self._tree(f"{path}/{name}")]
        return [path, *below]

    def _add(self, path: str, data: bytearray | None) -> None:
        self._nodes[path] = data
        self._names.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))

    def _take(self, path: str) -> bytearray | None:
        directory, name = os.path.split(path)
        self._names[directory].discard(name)
        if not self._names[directory]:
            del self._names[directory]
        return self._nodes.pop(path)

    def remove(self, path: str) -> None:
        """See `FileSystem.remove`."""
        with self._mutex:
            if self._nodes.get(path) is None:
                raise os_error(errno.ENOENT, path)
            self._take(path)

    def remove_directory(self, path: str) -> None:
        """See `FileSystem.remove_directory`."""
        with self._mutex:
            if self.listdir(path):
                raise os_error(errno.ENOTEMPTY, path)
            self._take(path)

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def lock(self, path: str) -> Lock:
        """Raise ENOTSUP: only parts of a store live in memory."""
        raise os_error(errno.ENOTSUP, path)
