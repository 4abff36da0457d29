"""A file pool: idle files are closed and reopened when they are needed, so that descriptors never run out.

A topic keeps a segment, a watermark and a journal for each channel open, and its readers keep more. The one policy for
all of them is here: at most half of the process's descriptors (`ulimit -n`) are open, shared by the open stores; the
least recently used files are closed first, and clean ones, whose bytes are all on the device, before dirty ones.

A closed file has nothing to lose. An error that the system finds while it writes back a closed file may never be
reported to the next descriptor. So a file is synced before it is closed; where that fails, every later sync, write and
close of the file raises the error.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from aiodq.storage.io.descriptor_limit import descriptor_limit
from aiodq.storage.io.filesystem import NOWAIT, OsFile, OsFileSystem, free_space
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.write_window import MOST_WINDOWS, window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, FileSystem, Lock
    from aiodq.storage.io.write_window import WriteWindow

__all__ = ["PooledFile", "PooledFileSystem", "is_ready", "make_ready", "open_briefly"]

T = TypeVar("T")

_MOST: Final = 8192
"""Descriptors at which the limit is capped, however many more the process may have."""

_LEAST: Final = 64
"""Open files that one store may always have, however many stores there are, unless the process has few descriptors."""

_SHORTLY: Final = 0.001
"""Seconds between two looks at a condition that is not signalled."""

_NONE_FREE: Final = frozenset({errno.EMFILE, errno.ENFILE})
_STORES: Final[WeakSet[threading.Condition]] = WeakSet()
"""One object of each open store, which lives as long as the store: compiled classes have no weak references."""


def _limit() -> int:
    """Return the most files of one store that may be open."""
    soft = descriptor_limit()
    most = min(soft, _MOST) if soft > 0 else _MOST
    return max(most // 2 // max(len(_STORES), 1), min(_LEAST, most // 4))


class PooledFileSystem:
    """A file system whose files are closed and reopened as needed. Its methods may be called from any thread.

    Attributes:
        mutex: held while any of this changes.
        clean: the open files whose bytes are all on the device, least recently used first.
        dirty: the open files that may have bytes that are not on the device, least recently used first.
    """

    def __init__(self, fs: FileSystem, may_be_lost: frozenset[str] = frozenset()) -> None:
        """Begin without files.

        Args:
            fs: the file system.
            may_be_lost: names of files whose unsynced bytes may be lost.
        """
        self._fs = fs
        self._in_place: Callable[[], bool] = lambda: True
        self._may_be_lost = may_be_lost
        self.mutex: threading.RLock = threading.RLock()
        self._changed = threading.Condition(self.mutex)
        # Each in order of use, so that the victim among thousands is found without a scan.
        self.clean: dict[PooledFile, None] = {}
        self.dirty: dict[PooledFile, None] = {}
        self._windows: dict[PooledFile, None] = {}
        _STORES.add(self._changed)

    @property
    def tells_what_is_cached(self) -> bool:
        """Whether `PooledFile.read_cached` can ever return data."""
        return NOWAIT is not None and isinstance(self._fs, OsFileSystem)

    def retire(self) -> None:
        """Leave the descriptors to the stores that are still open."""
        _STORES.discard(self._changed)

    def stay(self, in_place: Callable[[], bool]) -> None:
        """Use paths only while `in_place` says that they still lead to the store's own files."""
        self._in_place = in_place

    def _check_place(self, path: str) -> None:
        # INVARIANT: no name is used in a directory that now belongs to another store: its files would pass for ours.
        if not self._in_place():
            text = "the store's directory was renamed, removed or replaced while the store was open"
            raise OSError(errno.ESTALE, text, path)

    # --- FileSystem

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem.open`."""
        file = self._opened(path, write=write, create=create)
        pooled = PooledFile(
            self, path, file, write=write or create, careless=os.path.basename(path) in self._may_be_lost
        )
        with self._changed:
            self.clean[pooled] = None
        return pooled

    def open_briefly(self, path: str) -> File:
        """Open a file to read it at once and close it again, which needs no place among the files that stay open."""
        self._check_place(path)
        return self._insist(lambda: self._fs.open(path))

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
        """See `aiodq.storage.io.filesystem.free_space`."""
        return free_space(self._fs, path)

    # --- the policy

    def _opened(self, path: str, *, write: bool, create: bool = False) -> File:
        self._check_place(path)
        limit = _limit()
        while len(self.clean) + len(self.dirty) >= limit:
            if not self._close_one():
                break  # all are in use, so the limit is exceeded for a moment
        return self._insist(lambda: self._fs.open(path, write=write, create=create))

    def _insist(self, call: Callable[[], T]) -> T:
        """Return what `call` returns; where no descriptor is free, close a file and try again."""
        while True:
            try:
                return call()
            except OSError as cause:
                if cause.errno not in _NONE_FREE or not self._close_one():
                    raise

    def _close_one(self) -> bool:
        """Close the least recently used file; return False if all are in use."""
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
        """Return the file to close, marked `busy`, or None if all are in use."""
        for files in (self.clean, self.dirty, self.clean, self.dirty):
            for _ in range(len(files)):
                file = next(iter(files))
                if file.claimed():
                    return file
                self.keep(file)
        return None

    # --- for files

    def take(self, pooled: PooledFile) -> File:
        """Return a file's descriptor, opening the file if needed; it stays open until `give_back`.

        Raises:
            OSError: as the system gave it; or the file was changed while it was closed.
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
        """End what `take` began; `keep`: whether the file is clean may have changed."""
        with self._changed:
            pooled.users -= 1
            if keep:
                self.keep(pooled)
            if pooled.closed:
                self._changed.notify_all()

    def settled(self, pooled: PooledFile) -> None:
        """Note that the file was opened or closed, and wake the threads that wait for that."""
        with self._changed:
            pooled.busy = False
            self.keep(pooled)
            self._changed.notify_all()

    def withdraw(self, pooled: PooledFile) -> None:
        """Wait until a file is not in use, so that its owner can close it."""
        with self._changed:
            pooled.closed = True
            # INVARIANT: all three are checked at once: while it waits for one of them, another may become true.
            while pooled.busy or pooled.users or pooled.writing:
                self._changed.wait(_SHORTLY if pooled.writing else None)  # `write_alone` does not notify
            self._drop(pooled)
            self._windows.pop(pooled, None)

    def keep(self, pooled: PooledFile) -> None:
        """Make an open file the most recently used one."""
        self._drop(pooled)
        if pooled.file is not None:
            (self.dirty if pooled.dirty else self.clean)[pooled] = None

    def window_opened(self, pooled: PooledFile) -> None:
        """Note that a file has a write window; of too many, the one that was opened first is closed."""
        with self._changed:
            self._windows.pop(pooled, None)
            self._windows[pooled] = None
            if len(self._windows) > min(MOST_WINDOWS, max(_limit() // 4, 1)):
                oldest = next(iter(self._windows))
                del self._windows[oldest]
                oldest.close_window()

    def _drop(self, pooled: PooledFile) -> None:
        self.clean.pop(pooled, None)
        self.dirty.pop(pooled, None)


class PooledFile:
    """A file that may be closed while it is idle.

    Attributes:
        path: its name.
        write: whether it may be written.
        careless: whether its unsynced bytes may be lost.
        file: the open file, or None.
        users: how many use it now.
        busy: whether it is being opened or closed.
        writing: whether `write_alone` is running.
        used: whether it was used since the pool last looked for a file to close.
        dirty: whether it may have bytes that are not on the device.
        closed: whether its owner has closed it.
    """

    __slots__ = (
        "_failure", "_fs", "_size", "_window", "_window_begin", "_window_end", "busy", "careless", "closed", "dirty",
        "file", "path", "used", "users", "write", "writing",
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
        self._window: WriteWindow | None = None
        self._window_begin = self._window_end = 0

    # --- File

    def read_at(self, size: int, position: int) -> bytes:
        """See `File.read_at`."""
        file = self._fs.take(self)
        try:
            return file.read_at(size, position)
        finally:
            self._fs.give_back(self)

    def read_cached(self, size: int, position: int) -> bytes | None:
        """Read as `OsFile.read_cached` does; return None also if the file is not open now.

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
        # This is `take`, as far as an open file needs it: `used` replaces the order of use.
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
        """Write one buffer as `write_at` does, for the file's only writer; every put comes through here.

        Nothing is locked: closing first sets `busy` or `closed` and then looks at `writing`, and this does the reverse,
        so one of the two always sees the other. A sync that runs meanwhile marks the file clean before it begins, and
        this marks it dirty after the write.

        Returns:
            The bytes written; -1 if the file is not open now or cannot be used, which is a case for `write_at`.

        Raises:
            OSError: as the system gave it.
        """
        self.writing = True
        try:
            file = self.file
            if file is None or self.busy or self.closed or self._failure is not None:
                return -1
            try:
                window, end = self._window, position + len(data)
                if window is not None and self._window_begin <= position and end <= self._window_end:
                    window[position - self._window_begin : end - self._window_begin] = data
                    return len(data)
                if type(file) is OsFile:
                    return os.pwrite(file.descriptor, data, position)  # as `write_at` does, without the call
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
        self.close_window()  # memory after a file's end must not be written
        file = self._fs.take(self)
        try:
            file.truncate(size)
        finally:
            self.dirty = not self.careless
            self._fs.give_back(self, keep=True)

    def sync(self) -> None:
        """See `File.sync`."""
        self._check()
        try:
            file = self._fs.take(self)
        except OSError as cause:
            if cause.errno in _NONE_FREE:
                return  # the file was closed because it was idle, and synced before
            raise
        # INVARIANT: what is written during this sync may not be covered by it, and counts as not synced. So the file is
        # not marked clean afterwards.
        self.dirty = False
        try:
            file.sync()
        except BaseException:
            self.dirty = not self.careless
            raise
        finally:
            self._fs.give_back(self, keep=True)

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """Have `submit` begin an asynchronous sync; `end_sync` is to be called once it has ended.

        Returns:
            False if none was begun, and `sync` is to be called: the file is not open now, or `submit` raised OSError.
        """
        with self._fs.mutex:
            file = None if self.busy or self.closed or self._failure is not None else self.file
            if file is None:
                return False
            # INVARIANT: as in `sync`. Closing the file meanwhile loses nothing: the result of the sync is reported all
            # the same.
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
        """Note that the sync begun by `begin_sync` has ended."""
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
        self.close_window()
        file, self.file = self.file, None
        if file is not None:
            file.close()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the write window

    def open_window(self, begin: int, end: int) -> bool:
        """Have `write_alone` write what falls between these positions through memory; see `window_of`.

        Returns:
            Whether there is a window.
        """
        try:
            file = self._fs.take(self)
        except OSError:
            return False
        try:
            window = window_of(file, begin, end)
            # INVARIANT: `write_alone` never finds a window beside the positions of another one, nor one that outlives
            # the open file: until `give_back` it is not closed.
            self.close_window()
            self._window_begin, self._window_end = begin, end
            self._window = window
        finally:
            self._fs.give_back(self)
        if window is None:
            return False
        self._fs.window_opened(self)
        return True

    def close_window(self) -> None:
        """Write by calls of the system again. A write that is under way may still go through the window."""
        self._window = None

    # --- for the policy

    @property
    def ready(self) -> bool:
        """Whether using it opens no file."""
        return self.file is not None and not self.busy

    def claimed(self) -> bool:
        """Claim the file for closing; return False if it is in use, or was used lately.

        A dirty file that was clean when it was put among the clean ones is to be moved to the dirty ones.
        """
        lately, self.used = self.used, False
        if lately or self.users or self.busy or (self.dirty and self in self._fs.clean):
            return False
        self.busy = True
        if self.writing:
            self.busy = False
        return self.busy

    def lay_down(self) -> None:
        """Close the file until it is needed again. Any failure is reported to its next user."""
        file = self.file
        if file is None:
            return
        try:
            if self.write:
                self._size = file.size()
            # CRASH: as any sync; bytes that reach the device earlier than asked do no harm.
            if self.dirty:
                file.sync()
        except OSError as cause:
            self._failure = cause
        self.dirty = False
        self.file = None
        self.close_window()
        try:
            file.close()
        except OSError as cause:
            self._failure = self._failure or cause

    def checked(self, file: File) -> File:
        """Return the reopened file if it is the one that was closed.

        Raises:
            OSError: it is not, or the system does not tell; it is closed then.
        """
        try:
            same = not self.write or file.size() == self._size
        except BaseException:
            file.close()
            raise
        if not same:
            file.close()
            raise OSError(errno.ESTALE, "the file is not as it was left; another program has changed it", self.path)
        return file


def open_briefly(fs: FileSystem, path: str) -> File:
    """Open a file to read it at once and close it again."""
    return fs.open_briefly(path) if isinstance(fs, PooledFileSystem) else fs.open(path)


def is_ready(file: File) -> bool:
    """Return whether using a file opens no file, and so closes no other."""
    return not isinstance(file, PooledFile) or file.ready


def make_ready(file: File, path: str) -> None:
    """Reopen a file that was closed while it was idle. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        file.size()
