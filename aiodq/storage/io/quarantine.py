"""Quarantine: damaged bytes are copied or renamed to a file beside the original before the original is changed."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.storage.io.durable_io import TEMPORARY, sync_directory, sync_file, write_all
from aiodq.storage.io.os_errors import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["Damage", "is_quarantined", "quarantine", "quarantine_file", "quarantined", "remedy"]

_MARK: Final = ".damaged-"
_CHUNK: Final = 1 << 20


class Damage(NamedTuple):
    """A range of a file that does not hold what was written to it.

    Attributes:
        path: the file.
        position: the first bad byte.
        end: the byte after the last bad one.
        reason: as text.
        first, stop: the range of offsets missing because of it, as far as known; equal if there are none.
    """

    path: str
    position: int
    end: int
    reason: str
    first: int = 0
    stop: int = 0


def _quarantine_path(path: str, position: int) -> str:
    """Return the path to which the bytes of `path` from `position` on are quarantined."""
    return f"{path}{_MARK}{position:012d}"


def is_quarantined(name: str) -> bool:
    """Return whether the name is that of a quarantined file."""
    return _MARK in name and not name.endswith(TEMPORARY)


def remedy(file: str) -> str:
    """Return what to do about a segment's file that is missing."""
    return f"put {file} back while the store is closed, or accept the loss with aiodq repair"


def quarantined(fs: FileSystem, directory: str) -> list[str]:
    """Return the names of the quarantined files in a directory."""
    with os_errors(directory):
        return [name for name in fs.listdir(directory) if is_quarantined(name)]


def quarantine(fs: FileSystem, path: str, position: int, end: int) -> str:
    """Copy the bytes `position` to `end` of a file to quarantine beside it, durably, before they are touched.

    An existing copy of the same bytes is used: damage that is found again is not copied again. A copy of other bytes is
    left alone.

    Returns:
        The copy's path.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        source = fs.open(path)
        try:
            for target in _names(_quarantine_path(path, position)):
                if not fs.exists(target):
                    _copy(fs, source, target, position, end)
                    return target
                if _holds(fs, target, source, position, end):
                    return target
        finally:
            source.close()
    raise AssertionError("there is always a free name")  # pragma: no cover


def quarantine_file(fs: FileSystem, path: str) -> str:
    """Rename a whole file to a quarantine name, durably; return that name.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        target = next(name for name in _names(_quarantine_path(path, 0)) if not fs.exists(name))
        # CRASH: 7. The file exists under one of its two names.
        fs.rename(path, target)
        sync_directory(fs, os.path.dirname(path))
    return target


def _names(wanted: str) -> Iterator[str]:
    yield wanted
    yield from (f"{wanted}.{number}" for number in count(1))


def _holds(fs: FileSystem, target: str, source: File, position: int, end: int) -> bool:
    """Return whether `target` begins with the bytes `position` to `end` of `source`."""
    copy = fs.open(target)
    try:
        sizes = ((at, min(_CHUNK, end - at)) for at in range(position, end, _CHUNK))
        return all(copy.read_at(size, at - position) == source.read_at(size, at) for at, size in sizes)
    finally:
        copy.close()


def _copy(fs: FileSystem, source: File, target: str, position: int, end: int) -> None:
    temporary = target + TEMPORARY
    if fs.exists(temporary):
        fs.remove(temporary)
    copy = fs.open(temporary, create=True)
    try:
        for at in range(position, end, _CHUNK):
            write_all(copy, [source.read_at(min(_CHUNK, end - at), at)], at - position)
        sync_file(copy, temporary)
    finally:
        copy.close()
    fs.rename(temporary, target)
    # CRASH: 7. The copy is durable, and whole, before the caller touches the original.
    sync_directory(fs, os.path.dirname(target))
