"""Files that are closed while they are idle and opened again when they are needed, so that descriptors never run out.

A topic has a segment, a watermark, and a journal for each channel open, and what reads it some more. The one policy for
all of them is here: of a store's files as many are open as half of what the process may have (`ulimit -n`), shared by
the stores that are open; the ones that were used least lately are closed first, and those first that hold nothing
which is not on the device.

What is closed has nothing to lose. An error that the system finds while it writes a closed file back is one that the
next descriptor may never hear of. So a file is synced before it is closed; where that fails, it says so to whoever
syncs, writes or closes it later, for ever.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

try:
    import resource
except ImportError:  # on Windows, where no such limit is
    _getrlimit = None
else:
    _getrlimit = resource.getrlimit

from aiodq.storage.io.filesystem import NOWAIT, OsFile, OsFileSystem
from aiodq.storage.io.free_space import free_space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, FileSystem, Lock

__all__ = ["PooledFile", "PooledFileSystem", "is_ready", "make_ready"]

T = TypeVar("T")

_MOST: Final = 8192
"""Descriptors of which half is plenty, however many more the process may have."""

_LEAST: Final = 64
"""Open files of one store, however many stores there are, unless the process may have few."""

_SHORTLY: Final = 0.001
"""Seconds after which it is looked again for what nobody tells."""

_NONE_FREE: Final = frozenset({errno.EMFILE, errno.ENFILE})
_STORES: Final[WeakSet[threading.Condition]] = WeakSet()
"""Of each store that is open something that lives as long as it: what is compiled cannot be referred to weakly."""


def _limit() -> int:
    """Return how many files of one store may be open."""
    soft = _MOST if _getrlimit is None else _getrlimit(resource.RLIMIT_NOFILE)[0]
    most = min(soft, _MOST) if soft > 0 else _MOST
    return max(most // 2 // max(len(_STORES), 1), min(_LEAST, most // 4))


class PooledFileSystem:
    """A file system whose files are closed and opened again as needed. Its methods may be called from any thread.

    Attributes:
        mutex: held while any of this is changed.
        clean: the open files that hold nothing that is not on the device, those used least lately first.
        dirty: the open files of which something may not be on the device, likewise.
    """

    def __init__(self, fs: FileSystem, unpromised: frozenset[str] = frozenset()) -> None:
        """Begin without files.

        Args:
            fs: the file system.
            unpromised: names of files of which nobody relies on what is not synced.
        """
        self._fs = fs
        self._in_place: Callable[[], bool] = lambda: True
        self._unpromised = unpromised
        self.mutex: threading.RLock = threading.RLock()
        self._changed = threading.Condition(self.mutex)
        # Each in the order of use. Looking for a victim among thousands must not take a walk through them.
        self.clean: dict[PooledFile, None] = {}
        self.dirty: dict[PooledFile, None] = {}
        _STORES.add(self._changed)

    @property
    def tells_what_is_cached(self) -> bool:
        """Whether `PooledFile.read_cached` ever finds anything."""
        return NOWAIT is not None and isinstance(self._fs, OsFileSystem)

    def retire(self) -> None:
        """Leave the descriptors to the stores that are still open."""
        _STORES.discard(self._changed)

    def stay(self, in_place: Callable[[], bool]) -> None:
        """Use names only as long as `in_place` says that they are those of the store's own files."""
        self._in_place = in_place

    def _check_place(self, path: str) -> None:
        # INVARIANT: no name is used in a directory that another store has by now, whose files would be taken for ours.
        if not self._in_place():
            text = "the store's directory was renamed, removed or replaced while the store was open"
            raise OSError(errno.ESTALE, text, path)

    # --- FileSystem

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem.open`."""
        file = self._opened(path, write=write, create=create)
        pooled = PooledFile(
            self, path, file, write=write or create, careless=os.path.basename(path) in self._unpromised
        )
        with self._changed:
            self.clean[pooled] = None
        return pooled

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        return self._insist(lambda: self._fs.listdir(path))

    def is_directory(self, path: str) -> bool:
        """See `FileSystem.is_directory`."""
        return self._fs.is_directory(path)

    def exists(self, path: str) -> bool:
        """See `FileSystem.exists`."""
        return self._fs.exists(path)

    def make_directory(self, path: str) -> None:
        """See `FileSystem.make_directory`."""
        self._check_place(path)
        self._fs.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        self._check_place(source)
        self._fs.rename(source, target)

    def remove(self, path: str) -> None:
        """See `FileSystem.remove`."""
        self._check_place(path)
        self._fs.remove(path)

    def remove_directory(self, path: str) -> None:
        """See `FileSystem.remove_directory`."""
        self._check_place(path)
        self._fs.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`."""
        self._insist(lambda: self._fs.sync_directory(path))

    def lock(self, path: str) -> Lock:
        """See `FileSystem.lock`."""
        return self._fs.lock(path)

    def free_space(self, path: str) -> int | None:
        """See `aiodq.storage.io.free_space`."""
        return free_space(self._fs, path)

    # --- the policy

    def _opened(self, path: str, *, write: bool, create: bool = False) -> File:
        self._check_place(path)
        limit = _limit()
        while len(self.clean) + len(self.dirty) >= limit:
            if not self._close_one():
                break  # all are in use, so that there are more for a moment
        return self._insist(lambda: self._fs.open(path, write=write, create=create))

    def _insist(self, call: Callable[[], T]) -> T:
        """Return what `call` returns; where no descriptor is free, one is made so."""
        while True:
            try:
                return call()
            except OSError as cause:
                if cause.errno not in _NONE_FREE or not self._close_one():
                    raise

    def _close_one(self) -> bool:
        """Close the file that was used least lately; return False where all are in use."""
        with self._changed:
            victim = self._victim()
            if victim is None:
                return False
            self._drop(victim)
        try:
            victim.lay_down()
        finally:
            self.settled(victim)
        return True

    def _victim(self) -> PooledFile | None:
        """Return the file to be closed, which is `busy` from now on, or None where all are in use."""
        for files in (self.clean, self.dirty, self.clean, self.dirty):
            for _ in range(len(files)):
                file = next(iter(files))
                if file.claimed():
                    return file
                self.keep(file)
        return None

    # --- for files

    def take(self, pooled: PooledFile) -> File:
        """Return a file's descriptor, opened if it is not; it stays so until `give_back`.

        Raises:
            OSError: as the system gave it; or the file is not as it was left.
        """
        with self._changed:
            self._changed.wait_for(lambda: not pooled.busy)
            if pooled.closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), pooled.path)
            if pooled.file is not None:
                pooled.users += 1
                self.keep(pooled)
                return pooled.file
            pooled.busy = True
        try:
            file = pooled.file = pooled.checked(self._opened(pooled.path, write=pooled.write))
            pooled.users += 1
        finally:
            self.settled(pooled)
        return file

    def give_back(self, pooled: PooledFile, *, keep: bool = False) -> None:
        """End what `take` began; `keep`: whether everything is on the device may have changed."""
        with self._changed:
            pooled.users -= 1
            if keep:
                self.keep(pooled)
            if pooled.closed:
                self._changed.notify_all()

    def settled(self, pooled: PooledFile) -> None:
        """It was opened or closed; who waits for that may go on."""
        with self._changed:
            pooled.busy = False
            self.keep(pooled)
            self._changed.notify_all()

    def withdraw(self, pooled: PooledFile) -> None:
        """Let a file be closed by its owner, once nobody uses it."""
        with self._changed:
            pooled.closed = True
            # INVARIANT: all three at one look: while it waits for one of them, another may come to be.
            while pooled.busy or pooled.users or pooled.writing:
                self._changed.wait(_SHORTLY if pooled.writing else None)  # who writes alone notifies nobody
            self._drop(pooled)

    def keep(self, pooled: PooledFile) -> None:
        """Put an open file behind those that were used before."""
        self._drop(pooled)
        if pooled.file is not None:
            (self.dirty if pooled.dirty else self.clean)[pooled] = None

    def _drop(self, pooled: PooledFile) -> None:
        self.clean.pop(pooled, None)
        self.dirty.pop(pooled, None)


class PooledFile:
    """A file that may be closed while it is idle.

    Attributes:
        path: its name.
        write: it may be written.
        careless: nobody relies on what is not synced.
        file: what is open, or None.
        users: how many use it now.
        busy: it is being opened or closed.
        writing: who writes it alone is doing so.
        used: that was done since somebody looked for a file to close.
        dirty: something may not be on the device.
        closed: its owner has closed it.
    """

    __slots__ = (
        "_failure", "_fs", "_size", "busy", "careless", "closed", "dirty", "file", "path", "used", "users", "write",
        "writing",
    )  # fmt: skip

    def __init__(self, fs: PooledFileSystem, path: str, file: File, *, write: bool, careless: bool) -> None:
        """Take over an open file."""
        self._fs = fs
        self.path: str = path
        self.write: bool = write
        self.careless: bool = careless
        self.file: File | None = file
        self.users: int = 0
        self.busy: bool = False
        self.writing: bool = False
        self.used: bool = False
        self.dirty: bool = False
        self.closed: bool = False
        self._size = -1
        self._failure: OSError | None = None

    # --- File

    def read_at(self, size: int, position: int) -> bytes:
        """See `File.read_at`."""
        file = self._fs.take(self)
        try:
            return file.read_at(size, position)
        finally:
            self._fs.give_back(self)

    def read_cached(self, size: int, position: int) -> bytes | None:
        """As `OsFile.read_cached`; None also where the file is not open now.

        Raises:
            OSError: as the system gave it.
        """
        if not self.ready:
            return None
        file = self._fs.take(self)
        try:
            return file.read_cached(size, position) if isinstance(file, OsFile) else None
        finally:
            self._fs.give_back(self)

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File.write_at`."""
        fs = self._fs
        # What `take` does, as far as an open file needs it: `used` tells what the order of use would.
        with fs.mutex:
            file = None if self.busy or self.closed or self._failure is not None else self.file
            if file is not None:
                self.users += 1
        if file is None:
            self._check()
            file = fs.take(self)
        try:
            return file.write_at(buffers, position)
        finally:
            self.used, self.dirty = True, not self.careless
            with fs.mutex:
                self.users -= 1
                if self.closed:
                    fs.settled(self)
                elif self in fs.clean:
                    fs.keep(self)

    def write_alone(self, data: BytesLike, position: int) -> int:
        """As `write_at`, of one buffer, by the only one who ever writes the file; every put is here.

        Nothing is locked: whoever is about to close the file says so (`busy`, `closed`) before it looks whether
        somebody writes, and here it is the other way round. So one of the two sees the other. A sync that runs
        meanwhile marks the file clean before it begins, and here it is marked behind the write.

        Returns:
            The bytes that were written; -1 where the file is not open now, or cannot be used: see `write_at`.

        Raises:
            OSError: as the system gave it.
        """
        self.writing = True
        try:
            file = self.file
            if file is None or self.busy or self.closed or self._failure is not None:
                return -1
            try:
                return file.write_at((data,), position)
            finally:
                self.dirty = self.used = True
        finally:
            self.writing = False

    def size(self) -> int:
        """See `File.size`."""
        file = self._fs.take(self)
        try:
            return file.size()
        finally:
            self._fs.give_back(self)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._check()
        file = self._fs.take(self)
        try:
            file.truncate(size)
        finally:
            self.dirty = not self.careless
            self._fs.give_back(self, keep=True)

    def sync(self) -> None:
        """See `File.sync`."""
        self._check()
        file = self._fs.take(self)
        # INVARIANT: what is written during this sync may not be covered by it, and counts as not synced. So nobody
        # says behind it that the file is clean.
        self.dirty = False
        try:
            file.sync()
        except BaseException:
            self.dirty = not self.careless
            raise
        finally:
            self._fs.give_back(self, keep=True)

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """Have `submit` begin a sync, which goes on by itself; `end_sync` is to be called once it has ended.

        Returns:
            False where none was begun, and `sync` is to be called: the file is not open now, or `submit` raised
            OSError.
        """
        with self._fs.mutex:
            file = None if self.busy or self.closed or self._failure is not None else self.file
            if file is None:
                return False
            # INVARIANT: as in `sync`. Whoever closes the file meanwhile has nothing to lose by it: how the sync has
            # ended is told all the same.
            before, self.dirty = self.dirty, False
            try:
                submit(file)
            except BaseException as cause:
                if before:
                    self.dirty = True
                if not isinstance(cause, OSError):
                    raise
                return False
        return True

    def end_sync(self, *, synced: bool) -> None:
        """The sync that was begun has ended."""
        with self._fs.mutex:
            if not synced:
                self.dirty = not self.careless
            if not (self.busy or self.closed):
                self._fs.keep(self)

    def close(self) -> None:
        """See `File.close`."""
        if self.closed:
            return
        self._fs.withdraw(self)
        file, self.file = self.file, None
        if file is not None:
            file.close()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- for the policy

    @property
    def ready(self) -> bool:
        """Whether using it opens no file."""
        return self.file is not None and not self.busy

    def claimed(self) -> bool:
        """Have nobody use the file any more, as it is to be closed; return False where somebody does, or did lately.

        One that is marked dirty, and was not when it was put among the clean ones, is to be put among the others.
        """
        lately, self.used = self.used, False
        if lately or self.users or self.busy or (self.dirty and self in self._fs.clean):
            return False
        self.busy = True
        if self.writing:
            self.busy = False
        return self.busy

    def lay_down(self) -> None:
        """Close the file until it is needed again. Whatever fails is told to who uses it next."""
        file = self.file
        if file is None:
            return
        try:
            if self.write:
                self._size = file.size()
            # CRASH: as any sync; what is on the device earlier than was asked for does no harm.
            if self.dirty:
                file.sync()
        except OSError as cause:
            self._failure = cause
        self.dirty = False
        self.file = None
        try:
            file.close()
        except OSError as cause:
            self._failure = self._failure or cause

    def checked(self, file: File) -> File:
        """Return the file that was opened again, if it is the one that was laid down.

        Raises:
            OSError: it is not.
        """
        if self.write and file.size() != self._size:
            file.close()
            raise OSError(errno.ESTALE, "the file is not as it was left; somebody else has changed it", self.path)
        return file


def is_ready(file: File) -> bool:
    """Return whether using a file opens none, nor closes another."""
    return not isinstance(file, PooledFile) or file.ready


def make_ready(file: File) -> None:
    """Open a file again that was closed while it was idle. Blocking.

    Raises:
        OSError: as the system gave it.
    """
    file.size()
