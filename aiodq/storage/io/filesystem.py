"""The seam between storage and the operating system.

Everything that reaches a disk goes through a `FileSystem`, so that tests can count, fail and lose power. Its methods
raise `OSError` as the system does; `aiodq.storage.io.os_errors` translates further up.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.errors import StoreLockedError
from aiodq.storage.io.belonging import belong
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.io.os_errors import os_error, os_errors
from aiodq.storage.io.write_window import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.write_window import WriteWindow

__all__ = [
    "NOWAIT",
    "File",
    "FileSystem",
    "Lock",
    "Opener",
    "OsFile",
    "OsFileSystem",
    "close_file",
    "directory_exists",
    "free_space",
    "locked",
    "locked_in_turn",
    "name_exists",
    "opened",
]


NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""The flag that restricts a read to the page cache; None where the system has none."""


class Lock(Protocol):
    """The ownership of a directory."""

    def release(self) -> None:
        """Release the lock; repeating it does nothing."""
        ...


class File(Protocol):
    """An open file. Positions and sizes are bytes."""

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """Write the buffers one after the other; return the bytes written, which may be too few."""
        ...

    def size(self) -> int:
        """Return the size of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate or extend the file."""
        ...

    def sync(self) -> None:
        """Sync: on return, the data, and the metadata needed to read them, are on the device."""
        ...

    def close(self) -> None:
        """Close the file; repeating it does nothing."""
        ...


class Opener(Protocol):
    """What a reader needs of a file system."""

    def open(self, path: str) -> File:
        """Open a file for reading."""
        ...


class FileSystem(Protocol):
    """What storage needs of an operating system. Paths are text."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a regular file; `create` makes one (mode 0600) and refuses an existing path. No link is followed."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory, not a link to one; raise if that cannot be determined."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is anything under that name; raise if that cannot be determined."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory with mode 0700."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically, replacing any file of the new name."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Sync the directory: on return, the names in it are on the device."""
        ...

    def lock(self, path: str) -> Lock:
        """Become the owner of a directory, or raise `StoreLockedError`."""
        ...


# Without O_NONBLOCK, opening a FIFO that was planted under a segment's name would hang.
_SAFE: Final = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_READ: Final = os.O_RDONLY | _SAFE
_WRITE: Final = os.O_RDWR | _SAFE
_DIRECTORY: Final = os.O_RDONLY | _SAFE | getattr(os, "O_DIRECTORY", 0)
_BUFFERS_AT_ONCE: Final = 512
_FULL_FSYNC: Final = 51
_KEPT: Final = 1 << 20
"""Bytes of a thread's buffer: a channel reads as many at a time."""
_PAUSES: Final = (0.01,) * 100 + (0.05,) * 200
"""Seconds between two attempts to take a lock that others hold for a moment."""


class _Buffers(threading.local):
    """A buffer for each thread that reads from the page cache.

    If the memory were freed after each read, the next one would map it in again page by page, which takes longer than
    the reading.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_KEPT))


_buffers: Final = _Buffers()


class OsFile:
    """A file of the operating system.

    Attributes:
        descriptor: its number, or -1 once it is closed.
    """

    __slots__ = ("_in_place", "descriptor")

    def __init__(self, fd: int, in_place: dict[int, bool] | None = None) -> None:
        """Take over an open descriptor; `in_place` is what `aiodq.storage.io.write_window.mapped` knows of devices."""
        self.descriptor: int = fd
        self._in_place: dict[int, bool] = {} if in_place is None else in_place

    def read_at(self, size: int, position: int) -> bytes:
        """See `File.read_at`."""
        data = os.pread(self.descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self.descriptor, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, size: int, position: int) -> bytes | None:
        """Return these bytes if all of them are in the page cache; None if they are not, or if that is unknown.

        This is `preadv2` with RWF_NOWAIT (Linux 4.14). Any error gives None: the ordinary read that follows reports it.
        """
        if NOWAIT is None:
            return None
        data = _buffers.view[:size] if size <= _KEPT else memoryview(bytearray(size))
        try:
            got = os.preadv(self.descriptor, (data,), position, NOWAIT)
        except OSError:
            return None
        return bytes(data) if got == size else None

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File.write_at`."""
        if len(buffers) == 1:
            return os.pwrite(self.descriptor, buffers[0], position)
        return os.pwritev(self.descriptor, buffers[:_BUFFERS_AT_ONCE], position)

    def window(self, begin: int, end: int) -> WriteWindow | None:
        """See `aiodq.storage.io.write_window.window_of`."""
        return mapped(self.descriptor, begin, end, self._in_place)

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self.descriptor).st_size

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """See `File.sync`."""
        if sys.platform == "darwin":
            # fsync there stops at the drive's cache.
            import fcntl  # noqa: PLC0415 - not on Windows

            fcntl.fcntl(self.descriptor, _FULL_FSYNC)
        else:
            os.fdatasync(self.descriptor)

    def close(self) -> None:
        """See `File.close`."""
        fd, self.descriptor = self.descriptor, -1
        if fd >= 0:
            os.close(fd)


class OsFileSystem:
    """The file system of the operating system, for one store."""

    __slots__ = ("_in_place",)

    def __init__(self) -> None:
        """Make a file system; its devices are looked up when they are used."""
        self._in_place: dict[int, bool] = {}

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem.open`."""
        if create:
            fd = os.open(path, _WRITE | os.O_CREAT | os.O_EXCL, 0o600)
            belong(fd, os.path.dirname(path))
        else:
            fd = _open_regular(path, _WRITE if write else _READ)
        return OsFile(fd, self._in_place)

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        return sorted(os.listdir(path))

    def is_directory(self, path: str) -> bool:
        """See `FileSystem.is_directory`."""
        mode = _mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def exists(self, path: str) -> bool:
        """See `FileSystem.exists`."""
        return _mode(path) is not None

    def make_directory(self, path: str) -> None:
        """See `FileSystem.make_directory`."""
        os.mkdir(path, 0o700)
        with suppress(OSError):  # it stays as it was made
            fd = os.open(path, _DIRECTORY)
            try:
                belong(fd, os.path.dirname(path))
            finally:
                os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """See `FileSystem.remove`."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """See `FileSystem.remove_directory`."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`."""
        fd = os.open(path, _DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_space(self, path: str) -> int:
        """See the function `free_space`: the space available to an unprivileged user."""
        return shutil.disk_usage(path).free

    def lock(self, path: str) -> Lock:
        """See `FileSystem.lock`."""
        return StoreLock.acquire(path)


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file, and nothing else: a device may take what is written, and read as zeros without end.

    Raises:
        OSError: as for what aiodq did not make (EEXIST), if it is a FIFO, a socket or a device.
    """
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise os_error(errno.EEXIST, path) from error
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise os_error(errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST, path)
    return fd


def _mode(path: str) -> int | None:
    """Return the mode of the file of that name, not following a link, or None if there is none."""
    # INVARIANT: only these two errors mean that there is nothing. A file that a transient I/O error hides is never
    # treated as missing: it would be created again, and its contents would be lost.
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def name_exists(fs: FileSystem, path: str) -> bool:
    """Return whether there is anything under that name.

    Raises:
        StorageError: as mapped from the system's error; it cannot be told.
    """
    with os_errors(path):
        return fs.exists(path)


def directory_exists(fs: FileSystem, path: str) -> bool:
    """Return whether there is a directory, not a link to one.

    Raises:
        StorageError: as mapped from the system's error; it cannot be told.
    """
    with os_errors(path):
        return fs.is_directory(path)


def free_space(fs: FileSystem, path: str) -> int | None:
    """Return the bytes that may still be written at `path`, or None if that is unknown. Blocking."""
    # Not a method of `FileSystem`: no stored data depend on it, and not every file system has a limit.
    measure: Callable[[str], int | None] | None = getattr(fs, "free_space", None)
    if measure is None:
        return None
    try:
        return measure(path)
    except OSError:
        return None


def close_file(file: File, path: str) -> None:
    """Close a file.

    Raises:
        StorageError: the system reported a deferred write error; the file is closed anyway.
    """
    with os_errors(path):
        file.close()


def locked(fs: FileSystem, path: str) -> Lock:
    """Become the owner of a directory.

    Raises:
        StoreLockedError: another owner has it.
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        return fs.lock(path)


def locked_in_turn(fs: FileSystem, path: str, *, leaving: Callable[[], bool] = lambda: True) -> Lock:
    """Become the owner of a directory, waiting some seconds for owners that hold it only briefly. Blocking.

    Args:
        fs: its file system.
        path: the directory.
        leaving: returns whether the present owner is one of these.

    Raises:
        StoreLockedError: another owner has it, and does not release it in time.
        StorageError: as mapped from the system's error.
    """
    for pause in _PAUSES:
        with suppress(StoreLockedError):
            return locked(fs, path)
        if not leaving():
            break
        time.sleep(pause)
    return locked(fs, path)


@contextmanager
def opened(fs: FileSystem, path: str, *, write: bool = False) -> Iterator[File]:
    """Open an existing file for the duration of the block.

    Raises:
        StorageError: as mapped from the system's error, also from within the block.
    """
    with os_errors(path):
        file = fs.open(path, write=write)
        try:
            yield file
        finally:
            file.close()
