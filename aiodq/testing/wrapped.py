"""A file system that passes every call on to another one, through a method that may be overridden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from aiodq.format.layout import BytesLike
from aiodq.storage.io.filesystem import File, FileSystem, Lock, OsFileSystem, free_space
from aiodq.testing.faults import Call

__all__ = ["WrappedFile", "WrappedFileSystem"]

T = TypeVar("T")


class WrappedFileSystem:
    """Another file system, the machine's where none is given, whose calls all go through one method.

    A subclass overrides that method, `passing`: to count calls, to be slow, to fail, to change something beforehand::

        class SlowDisk(WrappedFileSystem):
            def passing(self, call, path, perform, *args):
                time.sleep(0.01 if call == "sync" else 0)
                return super().passing(call, path, perform, *args)

    Attributes:
        inner: the other one.
    """

    def __init__(self, inner: FileSystem | None = None) -> None:
        """Stand before `inner`."""
        self.inner: FileSystem = OsFileSystem() if inner is None else inner

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - each call's own
        """Let a call pass. It comes from any thread.

        Args:
            call: its kind, one of `CALLS`.
            path: of the file or directory; where it is renamed, its new one.
            perform: does it.
            args: what `perform` takes; of a `"write"` the buffers and the position.

        Returns:
            What the call returns; of a `"write"` how many bytes were taken, which may be too few.
        """
        del call, path
        return perform(*args)

    def wrapped(self, file: File, path: str) -> File:
        """Return what stands before an open file of the other file system."""
        return WrappedFile(self, file, path)

    # --- the seam of aiodq.storage

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `aiodq.storage.io.filesystem.FileSystem.open`."""
        return self.passing("create" if create else "open", path, self._open, path, write, create)

    def _open(self, path: str, write: bool, create: bool) -> File:  # noqa: FBT001 - handed on by `passing`
        return self.wrapped(self.inner.open(path, write=write, create=create), path)

    def listdir(self, path: str) -> list[str]:
        """See `aiodq.storage.io.filesystem.FileSystem.listdir`."""
        return self.passing("listdir", path, self.inner.listdir, path)

    def is_directory(self, path: str) -> bool:
        """See `aiodq.storage.io.filesystem.FileSystem.is_directory`."""
        return self.passing("is_directory", path, self.inner.is_directory, path)

    def exists(self, path: str) -> bool:
        """See `aiodq.storage.io.filesystem.FileSystem.exists`."""
        return self.passing("exists", path, self.inner.exists, path)

    def make_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.make_directory`."""
        self.passing("make_directory", path, self.inner.make_directory, path)

    def rename(self, source: str, target: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.rename`."""
        self.passing("rename", target, self.inner.rename, source, target)

    def remove(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.remove`."""
        self.passing("remove", path, self.inner.remove, path)

    def remove_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.remove_directory`."""
        self.passing("remove_directory", path, self.inner.remove_directory, path)

    def sync_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.sync_directory`."""
        self.passing("sync_directory", path, self.inner.sync_directory, path)

    def free_space(self, path: str) -> int | None:
        """See `aiodq.storage.io.filesystem.free_space`."""
        return free_space(self.inner, path)

    def lock(self, path: str) -> Lock:
        """See `aiodq.storage.io.filesystem.FileSystem.lock`."""
        return self.passing("lock", path, self.inner.lock, path)


class WrappedFile:
    """An open file of a `WrappedFileSystem`.

    Attributes:
        fs: the file system.
        file: the other one's file.
        path: its path when it was opened.
        closed: whether it is closed.
    """

    def __init__(self, fs: WrappedFileSystem, file: File, path: str) -> None:
        """Stand before `file`."""
        self.fs: WrappedFileSystem = fs
        self.file: File = file
        self.path: str = path
        self.closed: bool = False

    def read_at(self, size: int, position: int) -> bytes:
        """See `aiodq.storage.io.filesystem.File.read_at`."""
        return self.fs.passing("read", self.path, self.file.read_at, size, position)

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `aiodq.storage.io.filesystem.File.write_at`."""
        return self.fs.passing("write", self.path, self.file.write_at, buffers, position)

    def size(self) -> int:
        """See `aiodq.storage.io.filesystem.File.size`."""
        return self.fs.passing("size", self.path, self.file.size)

    def truncate(self, size: int) -> None:
        """See `aiodq.storage.io.filesystem.File.truncate`."""
        self.fs.passing("truncate", self.path, self.file.truncate, size)

    def sync(self) -> None:
        """See `aiodq.storage.io.filesystem.File.sync`."""
        self.fs.passing("sync", self.path, self.file.sync)

    def close(self) -> None:
        """See `aiodq.storage.io.filesystem.File.close`. The other file is closed even where the call fails."""
        if self.closed:
            return
        self.closed = True
        try:
            self.fs.passing("close", self.path, _nothing)
        finally:
            self.file.close()


def _nothing() -> None:
    """Stand for a call that is made whatever `passing` does."""
