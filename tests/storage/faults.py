"""A file system whose n-th call of a kind fails, and that counts what it is asked to do."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiodq.storage.io.filesystem import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, Lock

KINDS = (
    "open",
    "create",
    "read",
    "write",
    "size",
    "truncate",
    "sync",
    "close",
    "listdir",
    "make_directory",
    "rename",
    "remove",
    "sync_directory",
)


@dataclass(slots=True)
class Fault:
    """What happens to the `countdown`-th call of a kind from now on a path that contains `match`.

    With `short`, a write takes only that many bytes; with `error` as well, it takes them and then fails.
    """

    kind: str
    countdown: int
    error: int | None
    match: str
    lasting: bool
    short: int | None
    hit: bool = False


class FaultyFileSystem:
    """The machine's file system, watched and disturbed.

    Attributes:
        calls: how often each kind was called.
        events: (kind, path) of each call in turn.
        bytes_read, bytes_written: in all.
        open_files: how many are open.
        synced: a file's size when it was last synced, by path.
    """

    def __init__(self, *, sync: bool = False) -> None:
        """Without `sync`, nothing waits for the device: a test that cuts no power need not."""
        self._real = OsFileSystem()
        self._sync = sync
        self._faults: list[Fault] = []
        self.open_files = 0
        self.synced: dict[str, int] = {}
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        self.calls: Counter[str] = Counter()
        self.events: list[tuple[str, str]] = []
        self.bytes_read = self.bytes_written = 0

    def fail(
        self,
        kind: str,
        error: int | None,
        *,
        at: int = 1,
        match: str = "",
        lasting: bool = False,
        short: int | None = None,
    ) -> Fault:
        """Disturb the `at`-th call from now, and with `lasting` all that follow."""
        assert kind in KINDS
        fault = Fault(kind, at, error, match, lasting, short)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Let everything work from now on."""
        self._faults.clear()

    def enter(self, kind: str, path: str) -> Fault | None:
        """Count a call; raise, or return what is to happen to it."""
        self.calls[kind] += 1
        self.events.append((kind, path))
        for fault in self._faults:
            if fault.kind != kind or fault.match not in path or (fault.hit and not fault.lasting):
                continue
            fault.countdown -= 1
            if fault.countdown <= 0:
                fault.hit = True
                if fault.short is not None:
                    return fault
                assert fault.error is not None
                raise OSError(fault.error, os.strerror(fault.error), path)
        return None

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem.open`."""
        self.enter("create" if create else "open", path)
        file = self._real.open(path, write=write, create=create)
        self.open_files += 1
        return FaultyFile(self, file, path, sync=self._sync)

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        self.enter("listdir", path)
        return self._real.listdir(path)

    def is_directory(self, path: str) -> bool:
        """See `FileSystem.is_directory`."""
        return self._real.is_directory(path)

    def exists(self, path: str) -> bool:
        """See `FileSystem.exists`."""
        return self._real.exists(path)

    def make_directory(self, path: str) -> None:
        """See `FileSystem.make_directory`."""
        self.enter("make_directory", path)
        self._real.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        self.enter("rename", target)
        self._real.rename(source, target)

    def remove(self, path: str) -> None:
        """See `FileSystem.remove`."""
        self.enter("remove", path)
        self._real.remove(path)

    def remove_directory(self, path: str) -> None:
        """See `FileSystem.remove_directory`."""
        self._real.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`."""
        self.enter("sync_directory", path)
        if self._sync:
            self._real.sync_directory(path)

    def lock(self, path: str) -> Lock:
        """See `FileSystem.lock`."""
        return self._real.lock(path)


class FaultyFile:
    """A file of a `FaultyFileSystem`."""

    def __init__(self, fs: FaultyFileSystem, file: File, path: str, *, sync: bool) -> None:
        """Stand before `file`."""
        self._fs = fs
        self._file = file
        self._path = path
        self._sync = sync
        self._closed = False

    def read_at(self, size: int, position: int) -> bytes:
        """See `File.read_at`."""
        self._fs.enter("read", self._path)
        data = self._file.read_at(size, position)
        self._fs.bytes_read += len(data)
        return data

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File.write_at`."""
        fault = self._fs.enter("write", self._path)
        if fault is not None and fault.short is not None:
            data = b"".join(buffers)[: fault.short]
            taken = self._file.write_at([data], position) if data else 0
            if fault.error is not None:
                raise OSError(fault.error, os.strerror(fault.error), self._path)
        else:
            taken = self._file.write_at(buffers, position)
        self._fs.bytes_written += taken
        return taken

    def size(self) -> int:
        """See `File.size`."""
        self._fs.enter("size", self._path)
        return self._file.size()

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._fs.enter("truncate", self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        """See `File.sync`."""
        self._fs.enter("sync", self._path)
        if self._sync:
            self._file.sync()
        self._fs.synced[self._path] = self._file.size()

    def close(self) -> None:
        """See `File.close`."""
        if self._closed:
            return
        self._closed = True
        self._fs.open_files -= 1
        with suppress(OSError):
            self._fs.enter("close", self._path)
        self._file.close()
