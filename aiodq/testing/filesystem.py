"""A file system in memory that can fail and lose power."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from aiodq.errors import StoreLockedError
from aiodq.format.layout import BytesLike
from aiodq.storage.io.filesystem import File, Lock
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.os_errors import os_error, os_errors
from aiodq.testing.disk import (
    ROOT,
    Disk,
    Dropped,
    Image,
    Made,
    Marked,
    Operation,
    Ordering,
    Removed,
    Renamed,
    Synced,
    Truncated,
    Wrote,
)
from aiodq.testing.faults import Call, Fault, FaultPlan
from aiodq.testing.replay import replayed
from aiodq.testing.tree import Node, Tree, parents

__all__ = ["SimulatedFile", "SimulatedFileSystem"]

_CHANGING: Final = frozenset(
    {"create", "write", "truncate", "make_directory", "rename", "remove", "remove_directory"}
)  # fmt: skip


class SimulatedFileSystem:
    """A file system for `aiodq.open(path, fs=SimulatedFileSystem())`.

    Nothing reaches the machine's disk. Calls may be made from any thread, as storage makes them.

    Attributes:
        plan: which calls fail; it may be changed at any time.
        capacity: bytes that files may hold together, or None; beyond it writes raise `ENOSPC`.
        read_only: whether every call that would change something raises `EROFS`.
        trace: with `record`, every operation so far, for `power_cuts`.
        laid_out: the number of operations in it that created the initial files, before this file system's own.
        calls: how often each kind of call was made.
        before: called with (call, path) before each call, and once within a sync, after it was decided which bytes it
            covers. It may block.
    """

    def __init__(
        self,
        image: Image | None = None,
        *,
        plan: FaultPlan | None = None,
        ordering: Ordering = "posix",
        record: bool = False,
        capacity: int | None = None,
    ) -> None:
        """Begin with the files of `image`, all of them durable, or with nothing.

        The root and the directories above the working directory are always there.

        Args:
            image: absolute paths, each with a file's bytes, or None for a directory.
            plan: which calls fail.
            ordering: what a power cut may do; see `aiodq.testing.disk`.
            record: keep the trace.
            capacity: bytes that files may hold together.
        """
        self.plan: FaultPlan = plan or FaultPlan()
        self.capacity: int | None = capacity
        self.read_only: bool = False
        self.trace: list[Operation] | None = [] if record else None
        self.calls: dict[Call, int] = {}
        self.before: Callable[[Call, str], None] | None = None
        self._ordering: Ordering = ordering
        self._mutex = threading.RLock()
        self._disk = Disk(ordering)
        self._tree = Tree()
        self._locks: set[str] = set()
        self._lost = False
        self.laid_out: int = 0
        self._fill({**dict.fromkeys(parents(os.path.join(os.getcwd(), "x"))), **(image or {})})

    def _fill(self, image: Image) -> None:
        for path in sorted({above for given in image for above in parents(given)} | set(image)):
            data = image.get(path)
            node = self._make(path, directory=data is None)
            if data is not None:
                node.data[:] = data
                self._note(Wrote(node.number, 0, data))
        for number in (ROOT, *(node.number for _, node in self._tree.walk())):
            self._note(Synced(number, self._disk.number))
        self.laid_out = self._disk.number

    @classmethod
    def resume(
        cls, trace: Sequence[Operation], *, ordering: Ordering = "posix", record: bool = False
    ) -> SimulatedFileSystem:
        """Return what a new process finds after the previous one was killed: everything written, synced or not.

        What was not synced may still be lost by a power cut, however long it was visible.

        Args:
            trace: the operations of the killed process, from the first on.
            ordering: as theirs was.
            record: keep the trace, with theirs before its own.
        """
        fs = cls(ordering=ordering)
        fs._tree, fs._disk = replayed(trace, ordering)
        fs.trace = list(trace) if record else None
        fs.laid_out = fs._disk.number
        return fs

    # --- for tests

    def mark(self, label: object) -> None:
        """Put a note into the trace: what was promised by now."""
        with self._mutex:
            self._note(Marked(label))

    def image(self) -> Image:
        """Return all files as they are visible now: what a killed process leaves."""
        with self._mutex:
            return {path: bytes(node.data) if node.names is None else None for path, node in self._tree.walk()}

    def durable(self) -> Image:
        """Return what is sure to outlive a power cut now: what was synced."""
        with self._mutex:
            (image,) = self._disk.cuts(Random(0), 1)
            return image

    def power_cut(self, seed: int | None = None) -> SimulatedFileSystem:
        """Cut the power now: return the disk as it is found afterwards. This file system fails from now on.

        Args:
            seed: chooses among what may legally be left; None for the least: only what was synced.
        """
        with self._mutex:
            self.unplug()
            if seed is None:
                image = self.durable()
            else:
                source = Random(seed)
                image = source.choice(list(self._disk.cuts(source, 8)))
            return SimulatedFileSystem(image, ordering=self._ordering, capacity=self.capacity)

    def unplug(self) -> None:
        """Let every call raise `EIO` from now on, which ends everything that uses this file system."""
        self._lost = True

    def power_cuts(self, seed: int, limit: int = 8) -> Iterator[tuple[int, Image]]:
        """Yield what power cuts at any moment of the trace might have left, as (operations before it, files).

        Args:
            seed: chooses among legal states.
            limit: states at each moment.

        Raises:
            ValueError: nothing was recorded.
        """
        if self.trace is None:
            raise ValueError("record=True keeps what this needs")
        disk = Disk(self._ordering)
        for operation in list(self.trace):
            disk.apply(operation)
            if disk.number > self.laid_out and not isinstance(operation, Marked):
                source = Random(f"{seed}:{disk.number}")
                for image in disk.cuts(source, limit):
                    yield disk.number, image

    # --- what a call does

    def _enter(self, call: Call, path: str) -> Fault | None:
        if self.before is not None:
            self.before(call, path)
        with self._mutex:
            self.calls[call] = self.calls.get(call, 0) + 1
            if self._lost and call != "close":
                raise os_error(errno.EIO, path)
            fault = self.plan.enter(call, path)
            if fault is not None and fault.short is None and not call.startswith("sync"):
                fault.raise_error(path)
            if self.read_only and call in _CHANGING:
                raise os_error(errno.EROFS, path)
            return fault

    def _note(self, operation: Operation) -> None:
        self._disk.apply(operation)
        if self.trace is not None:
            self.trace.append(operation)

    def _make(self, path: str, *, directory: bool) -> Node:
        node = self._tree.make(path, directory=directory)
        parent, name = os.path.split(path)
        self._note(Made(node.number, self._tree.known(parent).number, name, directory))
        return node

    def _sync(self, node: Node, path: str, call: Call) -> None:
        fault = self._enter(call, path)
        began = self._disk.number
        if self.before is not None:
            self.before(call, path)
        with self._mutex:
            if self._lost:
                raise os_error(errno.EIO, path)
            if fault is None:
                self._note(Synced(node.number, began))
                return
            # What is forgotten is a file's pages. Names stay on their way: a journal that cannot be written ends the
            # file system instead.
            if fault.pages != "kept" and node.names is None:
                self._note(Dropped(node.number, began, evicted=fault.pages == "evicted"))
            if fault.pages == "evicted" and node.names is None:
                node.data[:] = self._disk.content(node.number)
        fault.raise_error(path)

    def _write(
        self, node: Node, path: str, buffers: Sequence[BytesLike], position: int, *, stored: bool = False
    ) -> int:
        fault = self._enter("write", path)
        data = b"".join(buffers)
        with self._mutex:
            room = len(data) if self.capacity is None else self._room() + len(node.data) - position
            if data and room <= 0:
                raise os_error(errno.ENOSPC, path)
            if fault is not None and fault.short is not None:
                room = min(room, fault.short)
            taken = data[:room]
            if taken:
                node.data.extend(bytes(max(position - len(node.data), 0)))
                node.data[position : position + len(taken)] = taken
                self._note(Wrote(node.number, position, taken, stored))
        if fault is not None:
            fault.raise_error(path)
        return len(taken)

    def _room(self) -> int:
        used = sum(len(node.data) for _, node in self._tree.walk())
        return sys.maxsize if self.capacity is None else self.capacity - used

    def _truncate(self, node: Node, path: str, size: int) -> None:
        self._enter("truncate", path)
        with self._mutex:
            if size - len(node.data) > max(self._room(), 0):
                raise os_error(errno.ENOSPC, path)
            del node.data[size:]
            node.data.extend(bytes(size - len(node.data)))
            self._note(Truncated(node.number, size))

    # --- the seam of aiodq.storage

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `aiodq.storage.io.filesystem.FileSystem.open`."""
        self._enter("create" if create else "open", path)
        with self._mutex:
            node = self._make(path, directory=False) if create else self._tree.known(path)
            if node.names is not None:
                raise os_error(errno.EISDIR, path)
            return SimulatedFile(self, node, path, writable=write or create)

    def listdir(self, path: str) -> list[str]:
        """See `aiodq.storage.io.filesystem.FileSystem.listdir`."""
        self._enter("listdir", path)
        with self._mutex:
            return sorted(self._tree.names(path))

    def is_directory(self, path: str) -> bool:
        """See `aiodq.storage.io.filesystem.FileSystem.is_directory`."""
        self._enter("is_directory", path)
        with self._mutex:
            node = self._tree.find(path)
            return node is not None and node.names is not None

    def exists(self, path: str) -> bool:
        """See `aiodq.storage.io.filesystem.FileSystem.exists`."""
        self._enter("exists", path)
        with self._mutex:
            return self._tree.find(path) is not None

    def make_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.make_directory`."""
        self._enter("make_directory", path)
        with self._mutex:
            self._make(path, directory=True)

    def rename(self, source: str, target: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.rename`."""
        self._enter("rename", target)
        with self._mutex:
            (parent, name), (new_parent, new_name) = os.path.split(source), os.path.split(target)
            self._tree.names(parent)
            replaced = self._tree.names(new_parent).get(new_name)
            node = self._tree.known(source)
            if replaced is node:
                return
            self._check_rename(source, node, target, replaced)
            del self._tree.names(parent)[name]
            self._tree.names(new_parent)[new_name] = node
            places = self._tree.known(parent).number, self._tree.known(new_parent).number
            self._note(Renamed(node.number, places[0], name, places[1], new_name))

    @staticmethod
    def _check_rename(source: str, node: Node, target: str, replaced: Node | None) -> None:
        if f"{target}/".startswith(f"{source}/"):
            raise os_error(errno.EINVAL, target)
        if replaced is None:
            return
        if f"{source}/".startswith(f"{target}/"):
            raise os_error(errno.ENOTEMPTY, target)
        if node.names is None and replaced.names is not None:
            raise os_error(errno.EISDIR, target)
        if node.names is not None and replaced.names is None:
            raise os_error(errno.ENOTDIR, target)
        if replaced.names:
            raise os_error(errno.ENOTEMPTY, target)

    def remove(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.remove`."""
        self._enter("remove", path)
        with self._mutex:
            node = self._tree.known(path)
            if node.names is not None:
                raise os_error(errno.EISDIR, path)
            self._remove(path)

    def remove_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.remove_directory`."""
        self._enter("remove_directory", path)
        with self._mutex:
            if self._tree.names(path):
                raise os_error(errno.ENOTEMPTY, path)
            self._remove(path)

    def _remove(self, path: str) -> None:
        parent, name = os.path.split(path)
        del self._tree.names(parent)[name]
        self._note(Removed(self._tree.known(parent).number, name))

    def sync_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.sync_directory`."""
        with self._mutex:
            self._tree.names(path)
            node = self._tree.known(path)
        self._sync(node, path, "sync_directory")

    def free_space(self, path: str) -> int | None:
        """See `aiodq.storage.io.filesystem.free_space`; None without a capacity. No call that a plan counts."""
        del path
        with self._mutex:
            return None if self.capacity is None else max(self._room(), 0)

    def lock(self, path: str) -> Lock:
        """See `aiodq.storage.io.filesystem.FileSystem.lock`."""
        with os_errors(path):
            self._enter("lock", path)
            with self._mutex:
                return self._locked(path)

    def _locked(self, path: str) -> Lock:
        self._tree.names(path)
        if path in self._locks:
            raise StoreLockedError("the store is open already", path, pid=os.getpid())
        if self.read_only:
            raise os_error(errno.EROFS, path)
        file = f"{path}/{LOCK_NAME}"
        if self._tree.find(file) is None:
            self._make(file, directory=False)
        self._locks.add(path)
        return SimulatedLock(self._locks, path)


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    __slots__ = ("_fs", "_node", "_path", "_writable")

    def __init__(self, fs: SimulatedFileSystem, node: Node, path: str, *, writable: bool) -> None:
        """Open it."""
        self._fs = fs
        self._node: Node | None = node
        self._path = path
        self._writable = writable

    def _opened(self, *, refusal: int | None = None) -> Node:
        if self._node is None:
            raise os_error(errno.EBADF, self._path)
        if refusal is not None and not self._writable:
            raise os_error(refusal, self._path)
        return self._node

    def read_at(self, size: int, position: int) -> bytes:
        """See `aiodq.storage.io.filesystem.File.read_at`."""
        self._fs._enter("read", self._path)  # noqa: SLF001 - its own half
        return bytes(self._opened().data[position : position + size])

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `aiodq.storage.io.filesystem.File.write_at`."""
        return self._fs._write(self._opened(refusal=errno.EBADF), self._path, buffers, position)  # noqa: SLF001 - as above

    def store(self, data: BytesLike, position: int) -> None:
        """Write through a mapping: all of it, as there is no short write."""
        left = memoryview(data)
        while left:
            taken = self._fs._write(self._opened(refusal=errno.EBADF), self._path, [left], position, stored=True)  # noqa: SLF001 - as above
            left, position = left[taken:], position + taken

    def window(self, begin: int, end: int) -> SimulatedWindow:
        """See `aiodq.storage.io.write_window.window_of`."""
        return SimulatedWindow(self, begin, end)

    def size(self) -> int:
        """See `aiodq.storage.io.filesystem.File.size`."""
        self._fs._enter("size", self._path)  # noqa: SLF001 - as above
        return len(self._opened().data)

    def truncate(self, size: int) -> None:
        """See `aiodq.storage.io.filesystem.File.truncate`."""
        self._fs._truncate(self._opened(refusal=errno.EINVAL), self._path, size)  # noqa: SLF001 - as above

    def sync(self) -> None:
        """See `aiodq.storage.io.filesystem.File.sync`."""
        self._fs._sync(self._opened(), self._path, "sync")  # noqa: SLF001 - as above

    def held(self) -> SimulatedFile:
        """Return the same file, open for itself, as the system holds one that it syncs."""
        return SimulatedFile(self._fs, self._opened(), self._path, writable=self._writable)

    def close(self) -> None:
        """See `aiodq.storage.io.filesystem.File.close`."""
        if self._node is not None:
            self._node = None
            self._fs._enter("close", self._path)  # noqa: SLF001 - as above


class SimulatedWindow:
    """A file's bytes as memory: what is stored in it is a write, and beyond the file's end it ends the process."""

    __slots__ = ("_begin", "_end", "_file")

    def __init__(self, file: SimulatedFile, begin: int, end: int) -> None:
        """Open a window over these bytes of a file."""
        self._file, self._begin, self._end = file.held(), begin, end

    def __setitem__(self, where: slice, data: BytesLike) -> None:
        """Write a slice.

        Raises:
            RuntimeError: a process of the operating system would have ended with SIGBUS, or Python refused it.
            OSError: the power is off, or the plan says so.
        """
        start, stop = where.start, where.stop
        if not 0 <= start <= stop <= self._end - self._begin or stop - start != len(data):
            raise RuntimeError(f"{len(data)} bytes at {start} to {stop} of a window of {self._end - self._begin}")
        if self._begin + stop > self._file.size():
            raise RuntimeError(f"SIGBUS: the file ends before {self._begin + stop}")
        self._file.store(data, self._begin + start)


class SimulatedLock:
    """The ownership of a directory."""

    __slots__ = ("_locks", "_path")

    def __init__(self, locks: set[str], path: str) -> None:
        """Hold `path` among `locks`."""
        self._locks = locks
        self._path = path

    def release(self) -> None:
        """See `aiodq.storage.io.filesystem.Lock.release`."""
        self._locks.discard(self._path)
