"""Records in a data file, read through a small window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.storage.io.os_errors import os_errors

if TYPE_CHECKING:
    from aiodq.diskqueue.options import Limits
    from aiodq.storage.io.filesystem import File

__all__ = ["PREFIX", "RecordFile"]

PREFIX: Final = 4
"""Bytes of a record's length."""

_WINDOW: Final = 1 << 16


class RecordFile:
    """A data file that is open for reading.

    Attributes:
        path: where it is.
        size: bytes it had when it was opened; what is appended meanwhile is not seen.
    """

    def __init__(self, file: File, path: str) -> None:
        """Take over an open file.

        Raises:
            StorageError: as mapped from the system's error; the file stays open.
        """
        self.path = path
        self._file = file
        self._data = b""
        self._start = 0
        with os_errors(path):
            self.size: int = file.size()

    def length(self, position: int) -> int | None:
        """Return the length that stands at `position`, or None where the file ends inside it.

        Raises:
            StorageError: as mapped from the system's error.
        """
        prefix = self._bytes(position, PREFIX) if self.size - position >= PREFIX else b""
        return int.from_bytes(prefix, "big", signed=True) if len(prefix) == PREFIX else None

    def body(self, position: int, length: int) -> bytes | None:
        """Return the message of the record at `position`, or None where the file ends inside it.

        Nothing is read, and no memory taken, before the length is held against the file.

        Raises:
            StorageError: as mapped from the system's error.
        """
        if length > self.size - position - PREFIX:
            return None
        body = self._bytes(position + PREFIX, length)
        return body if len(body) == length else None

    def is_boundary(self, position: int, limits: Limits) -> bool:
        """Return whether a record may begin at `position`, going by the lengths before it.

        Where one of them is damaged, nobody can tell, and it may.

        Raises:
            StorageError: as mapped from the system's error.
        """
        at = 0
        while at < position:
            length = self.length(at)
            if length is None or not limits.allow(length):
                return True
            at += PREFIX + length
        return at == position

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _bytes(self, position: int, size: int) -> bytes:
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            self._fill(position, max(size, _WINDOW))
            at = 0
        return self._data[at : at + size]

    def _fill(self, position: int, size: int) -> None:
        with os_errors(self.path, position):
            self._data = self._file.read_at(min(size, self.size - position), position)
        self._start = position
