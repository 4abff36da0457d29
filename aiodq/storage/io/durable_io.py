"""Atomic, durable replacement of small files: written under a temporary name, synced, renamed, directory synced.

A power cut leaves the old content or the new one. It may also leave the temporary file, which the next owner sweeps.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from aiodq.errors import StorageError, StoreFailedError
from aiodq.format.layout import written_size
from aiodq.storage.io.file_pool import open_briefly
from aiodq.storage.io.os_errors import os_errors, storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = [
    "LARGEST_FILE",
    "NOT_A_DIRECTORY",
    "TEMPORARY",
    "ensure_directory",
    "list_own",
    "read_file",
    "read_written",
    "replace_file",
    "sweep_temporaries",
    "sync_directory",
    "sync_failure",
    "sync_file",
    "sync_names",
    "sync_present",
    "write_again",
    "write_all",
]

T = TypeVar("T")

TEMPORARY: Final = ".aiodq-tmp"
"""Suffix of an unfinished file, on whose contents nothing relies."""

_ZEROS: Final = bytes(1 << 20)
_FEW_ZEROS: Final = 1 << 16
"""Zeros at the end of a file that are read like anything else."""

LARGEST_FILE: Final = 1 << 24
"""Most bytes that `read_file` reads by default."""

NOT_A_DIRECTORY: Final = (
    "a file or a link lies where aiodq keeps a directory; put the directory itself there (it may be a mount), or, "
    "if it is not the store's, move it away"
)
"""What is said of anything else that has the name of a directory of aiodq's."""

_AGAIN: Final = 1 << 20
_OF_A_SYNC: Final = frozenset({errno.EIO, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EROFS})


def write_all(file: File, buffers: Sequence[BytesLike], position: int) -> int:
    """Write all of the buffers from `position` on, repeating short writes; return the end.

    Raises:
        OSError: as the system gave it; what follows `position` is then undefined.
    """
    pending, done = list(buffers), 0
    while done < len(pending):
        some = pending[done:]
        taken = file.write_at(some, position)
        if not taken and any(some):
            raise OSError(errno.EIO, "a write wrote nothing")
        position += taken
        while done < len(pending) and taken >= len(pending[done]):
            taken -= len(pending[done])
            done += 1
        if taken:
            pending[done] = memoryview(pending[done])[taken:]
    return position


def write_again(file: File, start: int, end: int) -> None:
    """Write the bytes that a file shows from `start` to `end` once more, so that the next sync covers them.

    After a failed sync, Linux shows the unwritten pages as if they were written, and never writes them by itself: the
    next sync succeeds without them (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).

    Raises:
        OSError: as the system gave it; the bytes are as before.
    """
    while start < end:
        data = file.read_at(min(end - start, _AGAIN), start)
        if not data:
            return
        start = write_all(file, [data], start)


def sync_file(file: File, path: str) -> None:
    """Sync the file: on return, its bytes are on the device.

    Raises:
        StoreFailedError: it is unknown what is on disk: the system may drop the bytes and succeed next time.
    """
    try:
        file.sync()
    except OSError as cause:
        raise sync_failure(cause, path) from cause


def sync_directory(fs: FileSystem, path: str) -> None:
    """Sync the directory: on return, the names in it are on the device.

    Raises:
        StoreFailedError: it is unknown which names are on disk.
    """
    try:
        fs.sync_directory(path)
    except OSError as cause:
        raise sync_failure(cause, path) from cause


def sync_names(fs: FileSystem, path: str) -> None:
    """Call `sync_directory` for a caller that will retry: a directory that cannot be opened is left for the next time.

    Raises:
        StoreFailedError: it is unknown which names are on disk.
        OSError: no sync was tried.
    """
    try:
        fs.sync_directory(path)
    except OSError as cause:
        if cause.errno in _OF_A_SYNC:
            raise sync_failure(cause, path) from cause
        raise


def sync_present(fs: FileSystem, path: str) -> None:
    """Call `sync_names` unless the directory may not be opened: then it was not aiodq that made what is in it."""
    with suppress(PermissionError):
        sync_names(fs, path)


def sync_failure(cause: OSError, path: str) -> StoreFailedError:
    """Return the error for a failed sync, after which it is unknown what is on disk."""
    return StoreFailedError(f"fsync failed: {cause.strerror}; open the store again", path, errno=cause.errno)


def replace_file(fs: FileSystem, path: str, data: BytesLike) -> None:
    """Make `data` the file's content, durably, or leave the old content.

    Raises:
        StorageError: as mapped from the system's error; the old content stands.
        StoreFailedError: a sync failed. If it was the directory's, a power cut may leave either content.
    """
    temporary = path + TEMPORARY
    try:
        if fs.exists(temporary):
            fs.remove(temporary)
        file = fs.open(temporary, create=True)
        try:
            write_all(file, [data], 0)
            sync_file(file, temporary)
        finally:
            file.close()
        # CRASH: 6. Before the rename the old content stands; after it, either, until the directory is synced.
        fs.rename(temporary, path)
        sync_directory(fs, os.path.dirname(path))
    except OSError as cause:
        # On a full disk, half a file is space that others need; where removing it fails, the next owner does it.
        with suppress(OSError):
            fs.remove(temporary)
        raise storage_error(cause, path) from cause


def read_file(fs: FileSystem, path: str, limit: int = LARGEST_FILE) -> bytes | None:
    """Return the file's bytes, at most `limit`, or None if there is no file.

    Raises:
        StorageError: the file exists and cannot be read.
    """
    return _read(fs, path, lambda file: file.read_at(min(file.size(), limit), 0))


def read_written(fs: FileSystem, path: str, limit: int) -> tuple[bytes, int] | None:
    """Return the file's bytes as `read_file` does, and its size.

    If very many zeros are at its end, only some of them are returned: in a sparse file they may be gigabytes.

    Raises:
        StorageError: the file exists and cannot be read.
    """

    def read(file: File) -> tuple[bytes, int]:
        size = file.size()
        end = min(size, limit)
        return file.read_at(min(_written_end(file, end) + _FEW_ZEROS, end), 0), size

    return _read(fs, path, read)


def _written_end(file: File, end: int) -> int:
    """Return where the zeros before `end` begin, if there are many; else `end` or a position in them."""
    while end > _FEW_ZEROS:
        start = max(end - len(_ZEROS), 0)
        data = file.read_at(end - start, start)
        if data != _ZEROS[: end - start]:
            return start + written_size(data)
        end = start
    return end


def _read(fs: FileSystem, path: str, read: Callable[[File], T]) -> T | None:
    """Return what is read of an open file, or None if there is no file."""
    try:
        if not fs.exists(path):
            return None
        file = open_briefly(fs, path)
    except FileNotFoundError:
        return None  # it was deleted just now
    except OSError as cause:
        raise storage_error(cause, path) from cause
    with os_errors(path):
        try:
            return read(file)
        finally:
            file.close()


def list_own(fs: FileSystem, directory: str) -> list[str]:
    """Return the names in one of aiodq's own directories; none if there is no such directory.

    Raises:
        StorageError: as mapped from the system's error, or a file or a link has the directory's name.
    """
    try:
        if fs.is_directory(directory):
            return fs.listdir(directory)
        # INVARIANT: a link is not treated as missing: the files that it leads to say what may not be deleted.
        blocked = fs.exists(directory) and not fs.is_directory(directory)
    except FileNotFoundError:
        return []  # it was deleted just now
    except OSError as cause:
        raise storage_error(cause, directory) from cause
    if blocked:
        raise StorageError(NOT_A_DIRECTORY, directory)
    return []


def sweep_temporaries(fs: FileSystem, directory: str) -> int:
    """Remove what unfinished replacements left in a directory; return their number.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(directory):
        paths = [os.path.join(directory, name) for name in fs.listdir(directory) if name.endswith(TEMPORARY)]
        files = [path for path in paths if not fs.is_directory(path)]
        for path in files:
            fs.remove(path)
    return len(files)


def ensure_directory(fs: FileSystem, path: str, *, synced: bool = False) -> bool:
    """Create a directory durably, unless it exists; return whether it was created.

    Args:
        fs: the file system.
        path: the directory.
        synced: whether the caller has already synced the parent directory with all its present names.

    Raises:
        StorageError: something else has that name, or the system refused.
    """
    with os_errors(path):
        if fs.is_directory(path):
            if not synced:
                # An owner that was killed may have created it without syncing its name.
                sync_present(fs, os.path.dirname(path) or ".")
            return False
        try:
            fs.make_directory(path)
            made = True
        except FileExistsError:
            # Another process that stages at the same time was faster; its sync may be still to come.
            if not fs.is_directory(path):
                raise
            made = False
        sync_directory(fs, os.path.dirname(path) or ".")
    return made
