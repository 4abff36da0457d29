"""A file system that counts the bytes read through it in a progress meter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiodq.storage.io.filesystem import OsFileSystem

if TYPE_CHECKING:
    from aiodq.cli.show import Meter
    from aiodq.storage.io.filesystem import File

__all__ = ["MeteredFileSystem"]


class _MeteredFile:
    """A file of the machine's that counts what is read."""

    def __init__(self, file: File, name: str, meter: Meter) -> None:
        self._file = file
        self._name = name
        self._meter = meter
        self.write_at = file.write_at
        self.size = file.size
        self.truncate = file.truncate
        self.sync = file.sync
        self.close = file.close

    def read_at(self, size: int, position: int) -> bytes:
        """See `File.read_at`."""
        data = self._file.read_at(size, position)
        self._meter.advance(len(data), self._name)
        return data


class MeteredFileSystem(OsFileSystem):
    """The machine's, with a meter."""

    __slots__ = ("_meter",)

    def __init__(self, meter: Meter) -> None:
        """Count into this meter."""
        super().__init__()
        self._meter = meter

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem.open`."""
        file: File = _MeteredFile(super().open(path, write=write, create=create), os.path.basename(path), self._meter)
        return file
