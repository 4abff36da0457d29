"""The store lock: one owner per store directory.

An owner holds two locks of the operating system: one on the file `LOCK`, which says who the owner is, and on POSIX one
on the directory itself, which deleting or replacing `LOCK` does not undo. Both end with the process, so a `LOCK` left
by a killed owner blocks no other process.

`filelock` is used at its lowest level, `lock_descriptor`, on descriptors opened here: its lock objects support neither
directories nor a second lock, and reopen by path.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import threading
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from filelock import lock_descriptor, unlock_descriptor

from aiodq.errors import NotAStoreError, StoreLockedError
from aiodq.storage.io.belonging import belong
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.processes import lives
from aiodq.uncopied import Uncopied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "LOCK_NAME",
    "RECORD_LIMIT",
    "LockHolder",
    "StoreLock",
    "in_turn",
    "is_held_here",
    "is_locked",
    "is_owner_record",
    "lock_holder",
]

LOCK_NAME: Final = "LOCK"

RECORD_LIMIT: Final = 1024
"""The most bytes that are read of the record in it."""

_HERE: Final = (
    "which is this one: use that object, close it first (await store.aclose(), in aiodq.sync store.close()), or name "
    "mode='shared' each time it is opened"
)
_ELSEWHERE: Final = (
    'which has it for itself: write aiodq.open(path, mode="shared") in each process to share it, '
    "wait for that one with aiodq.open(path, wait=seconds), or stop it"
)
_MODE: Final = 0o600
_DIRECTORY: Final[int] = getattr(os, "O_DIRECTORY", 0)
# Without O_NONBLOCK a FIFO swapped in for LOCK would hang the open; without O_BINARY Windows translates line ends.
_SAFE: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# What file systems that cannot lock a directory answer, such as NFS, whose locks need a descriptor open for writing.
_NO_DIRECTORY_LOCK: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_RECORD: Final = re.compile(rb" (\d+|-)\n[^\n]*\n")
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})


class StoreLock(Uncopied):
    """This process's ownership of a store directory.

    Made by `acquire`. A child made by fork does not share it: there, `held_here` is False and nothing it does to the
    object touches the parent's lock.

    Attributes:
        directory: the directory as it was given.
        pid: the process that owns, or owned, the directory through this object.
    """

    def __init__(self, directory: str) -> None:
        """Make an object that holds no lock; callers use `acquire`."""
        self.directory = directory
        self.pid: int = os.getpid()
        self._held = False
        self._directory_fd: int | None = None
        self._file_fd: int | None = None
        self._path = os.path.join(directory, LOCK_NAME)

    @classmethod
    def acquire(cls, directory: str) -> StoreLock:
        """Become the owner of the directory, or fail at once.

        Args:
            directory: an existing directory; symbolic links to it and relative paths are fine.

        Raises:
            StoreLockedError: it has an owner, perhaps this process; `pid` is the owner's, if it could be read.
            NotAStoreError: `LOCK` is not a regular file with one link, and was left untouched.
            StorageError: the operating system refused, as mapped by `storage_error`.
        """
        lock = cls(directory)
        with _GUARD:
            _LIVE.add(lock)
            try:
                lock._take_directory()
                lock._take_file()
            except BaseException:
                lock.release()
                raise
        return lock

    def held_here(self) -> bool:
        """Return whether this process holds the lock through this object."""
        return self._held and self.pid == os.getpid()

    def in_place(self) -> bool:
        """Return whether the directory's path still leads to the locked directory, not renamed or replaced."""
        if self._directory_fd is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._directory_fd), os.stat(self.directory))
        except OSError:
            return False

    def displaced(self) -> str:
        """Return why the directory's path does not lead to the locked directory any more; empty if it does."""
        if (fd := self._directory_fd) is None:
            return ""
        try:
            found = os.stat(self.directory)
        except OSError as cause:
            return f"{cause.strerror or cause}: the directory was renamed or unmounted"
        with suppress(OSError):
            if not os.path.samestat(os.fstat(fd), found):
                another = os.path.lexists(os.path.join(self.directory, LOCK_NAME))
                return f"another {'store' if another else 'directory'} is there, in the place of this one"
        return ""

    def removed(self, ruined: Callable[[], bool]) -> bool:
        """Return whether the locked directory was deleted with what was in it, not only renamed.

        Args:
            ruined: returns whether another file is missing, too, which is never deleted while the directory is locked.
                A directory remains if a file is created in it while it is being emptied.
        """
        if self._directory_fd is None:
            return False
        try:
            os.stat(LOCK_NAME, dir_fd=self._directory_fd)
        except FileNotFoundError:
            return not self.in_place() or ruined()
        except OSError:
            return False  # it is not known
        return False

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return which of these names are no longer in the locked directory; none if that is unknown."""
        if self._directory_fd is None:
            return []
        try:
            there = set(os.listdir(self._directory_fd))
        except OSError:
            return []
        return [name for name in names if name not in there]

    def unlinked(self, paths: Iterable[str]) -> list[str]:
        """Return which of these paths below the locked directory name nothing any more; none if that is unknown."""
        return [path for path in paths if self._is_unlinked(path)]

    def _is_unlinked(self, path: str) -> bool:
        if self._directory_fd is None:
            return False
        try:
            os.stat(path, dir_fd=self._directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def release(self) -> None:
        """Release the directory. Repeating it does nothing; in a forked child the parent's lock stays."""
        with _GUARD:
            if self.pid == os.getpid():
                self._unlock()
            self._close()

    def __del__(self) -> None:
        """Release the lock, and warn if that was forgotten."""
        forgotten = self.held_here()
        self.release()
        if forgotten:
            warnings.warn(f"store lock was never released [{self.directory}]", ResourceWarning, 2, source=self)

    def _take_directory(self) -> None:
        if not _DIRECTORY:
            return
        with os_errors(self.directory):
            self._directory_fd = os.open(self.directory, os.O_RDONLY | _DIRECTORY)
            if not _lock_directory(self._directory_fd):
                raise self._refusal()

    def _take_file(self) -> None:
        with os_errors(self._path):
            # O_NOFOLLOW is not everywhere, and stops only links; checking first also keeps devices from being opened.
            with suppress(FileNotFoundError):
                self._check(os.stat(self._name(), dir_fd=self._directory_fd, follow_symlinks=False))
            self._file_fd = os.open(self._name(), os.O_RDWR | os.O_CREAT | _SAFE, _MODE, dir_fd=self._directory_fd)
            found = os.fstat(self._file_fd)
            self._check(found)
            if not lock_descriptor(self._file_fd, blocking=False):
                raise self._refusal()
            _make_private(self._file_fd, found)
            belong(self._file_fd, self.directory if self._directory_fd is None else self._directory_fd)
            _write_owner(self._file_fd, str(self.pid))
            self._held = True

    def _name(self) -> str:
        # Relative to the descriptor, so that a rename of the directory cannot put the two locks in different places.
        return self._path if self._directory_fd is None else LOCK_NAME

    def _check(self, found: os.stat_result) -> None:
        """Refuse what may be a link to someone else's file, into which the pid must not be written."""
        if not stat.S_ISREG(found.st_mode):
            kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        elif found.st_nlink > 1:
            kind = "a file with a second hard link"
        else:
            return
        msg = f"the store's lock is {kind}; remove it if no one owns the store"
        raise NotAStoreError(msg, self._path)

    def _refusal(self) -> StoreLockedError:
        pid, host = _read_owner(self._name(), self._directory_fd)
        owner = "an unknown process" if pid is None else f"process {pid} on {host}"
        here = self._held_by_another_here()
        text = f"the store is open in {owner}, {_HERE if here else _ELSEWHERE}"
        return StoreLockedError(text, self.directory, pid=pid)

    def _held_by_another_here(self) -> bool:
        """Return whether this process owns the directory through another object: equal pids may be two containers'."""
        return is_held_here(self.directory, self)

    def _unlock(self) -> None:
        # Closing alone is not enough: a program that another thread starts has copies of the descriptors until exec.
        if self._file_fd is not None:
            with suppress(OSError):
                if self._held:
                    _write_owner(self._file_fd, "-")
            with suppress(OSError):
                unlock_descriptor(self._file_fd)
        if self._directory_fd is not None:
            with suppress(OSError):
                unlock_descriptor(self._directory_fd)

    def _close(self) -> None:
        self._held = False
        descriptors = self._file_fd, self._directory_fd
        self._file_fd = self._directory_fd = None
        for fd in descriptors:
            if fd is not None:
                with suppress(OSError):
                    os.close(fd)


def _lock_directory(fd: int) -> bool:
    try:
        return lock_descriptor(fd, blocking=False)
    except OSError as exc:
        if exc.errno in _NO_DIRECTORY_LOCK:
            return True
        raise


def _make_private(fd: int, found: os.stat_result) -> None:
    if stat.S_IMODE(found.st_mode) != _MODE and hasattr(os, "fchmod"):
        # FAT and some network mounts have one fixed mode for every file and refuse to change it.
        with suppress(PermissionError):
            os.fchmod(fd, _MODE)


def _write_owner(fd: int, pid: str) -> None:
    """Overwrite the record with pid and host, which on a full disk needs no new block."""
    # On Windows the first byte is the locked one, which no other process can read.
    record = f" {pid}\n{socket.gethostname()}\n".encode("utf-8", "replace")
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, record)
        os.ftruncate(fd, len(record))
    except OSError as exc:
        if exc.errno not in _NO_SPACE:
            raise
        # The pid only informs, and a store on a full disk must open so that consuming can free space. A missing pid is
        # better than a wrong one.
        os.ftruncate(fd, 0)


def is_owner_record(data: bytes) -> bool:
    """Return whether these bytes are what an owner writes into `LOCK`, and leaves there."""
    return _RECORD.fullmatch(data) is not None


def _read_owner(name: str, directory_fd: int | None) -> tuple[int | None, str]:
    """Return the owner's pid and host as written; None if they are not valid."""
    try:
        fd = os.open(name, os.O_RDONLY | _SAFE, dir_fd=directory_fd)
    except OSError:
        return None, ""
    try:
        os.lseek(fd, 1, os.SEEK_SET)
        pid, _, host = os.read(fd, RECORD_LIMIT).partition(b"\n")
    except OSError:
        return None, ""
    finally:
        os.close(fd)
    known = pid.isdigit() and len(pid) <= len(str(2**64))
    return (int(pid) if known else None), host.decode("utf-8", "replace").strip()


class LockHolder(NamedTuple):
    """A process that owns a store's directory.

    Attributes:
        pid: its pid.
        host: the host where that is its pid, as `LOCK` names it, if it cannot be seen from here; otherwise empty.
    """

    pid: int
    host: str = ""

    def __str__(self) -> str:
        """Return it as part of a sentence."""
        return f"process {self.pid} on {self.host}" if self.host else f"process {self.pid}"


def lock_holder(directory: str) -> LockHolder | None:
    """Return the process that owns a store's directory, or None if there is none or it is unknown.

    The system is asked for its locks, which disturbs no process (Linux). Where it shows none for the directory, as on
    file systems that report other inode numbers there, or if the owner is in another container, the owner is the
    process that `LOCK` names if the directory is locked, which is tested by trying to lock it for a moment.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(directory):
        found = os.stat(directory)
        shown = _shown_holder(f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}")
        if shown is not None:
            return LockHolder(shown)
        named, host = _read_owner(os.path.join(directory, LOCK_NAME), None)
        if named is None or not is_locked(directory):
            return None
        return LockHolder(named) if host == socket.gethostname() and lives(named) else LockHolder(named, host)


def _shown_holder(place: str) -> int | None:
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            locks = [line.split() for line in file]
    except OSError:
        return None
    # number: kind, manner, mode, pid, place, …
    return next((int(lock[4]) for lock in locks if lock[1:2] == ["FLOCK"] and lock[5:6] == [place]), None)


def is_held_here(directory: str, apart_from: StoreLock | None = None) -> bool:
    """Return whether this process owns a directory by another lock than `apart_from`."""
    with suppress(OSError):
        mine = os.stat(directory)
        others = [lock for lock in _LIVE if lock is not apart_from and lock.held_here()]
        return any(os.path.samestat(mine, os.stat(lock.directory)) for lock in others)
    return False


def is_locked(directory: str) -> bool:
    """Return whether a store's directory has an owner, by the directory's own lock.

    A process that tries to own it at that moment is refused.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(directory):
        fd = os.open(directory, os.O_RDONLY | _DIRECTORY)
        try:
            free = _lock_directory(fd)
            if free:
                with suppress(OSError):  # where directories cannot be locked
                    unlock_descriptor(fd)
            return not free
        finally:
            os.close(fd)


@contextmanager
def in_turn(directory: str) -> Iterator[None]:
    """Run the block while no other process is in such a block for this directory, which is no store. Blocking.

    Nothing is written there, so the permission to read it is enough. Where directories cannot be locked, as on NFS,
    this does not wait.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(directory):
        fd = os.open(directory, os.O_RDONLY | _DIRECTORY)
    try:
        with suppress(OSError):
            lock_descriptor(fd, blocking=True)
        yield
    finally:
        with suppress(OSError):
            unlock_descriptor(fd)
        os.close(fd)


# A fork waits for any thread that has opened a descriptor but not recorded it; the child could not know of that one.
_GUARD: Final = threading.RLock()
_LIVE: Final[WeakSet[StoreLock]] = WeakSet()


def _forget_in_child() -> None:
    """Close the inherited descriptors only: unlocking would release the parent's locks, which are the same."""
    for lock in list(_LIVE):
        lock._close()  # noqa: SLF001 - the same module
    _GUARD.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_forget_in_child)
