"""Does to a real directory what a trace says was done to a simulated disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from aiodq.testing import Made, Marked, Removed, Renamed, Synced, Truncated, Wrote
from aiodq.testing.disk import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from aiodq.testing import Operation

__all__ = ["replay"]

_STIRRED: Final = 0.04
"""After how many of the operations somebody else has the kernel write something."""

_ALL_OF_IT: Final = 7
"""SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def replay(
    trace: Sequence[Operation], directory: Path, random: Random, position: Callable[[], int]
) -> list[tuple[int, object]]:
    """Do everything once more; return the notes of the trace, each with the device's position then."""
    replaying = _Replay(directory, random)
    # A sync covers what came before it began. What it promises, notes after its end tell.
    syncs: defaultdict[int, list[int]] = defaultdict(list)
    for operation in trace:
        if isinstance(operation, Synced):
            syncs[operation.began].append(operation.node)
    notes: list[tuple[int, object]] = []
    for number, operation in enumerate(trace):
        for node in syncs[number]:
            replaying.sync(node)
        if isinstance(operation, Marked):
            notes.append((position(), operation.label))
        else:
            replaying.do(operation)
        replaying.stir()
    replaying.close()
    return notes


class _Replay:
    """A directory tree with its files open, by the numbers that the trace gives them."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._random = random
        self._elsewhere = directory / "elsewhere"
        self._directories = {ROOT: directory}
        self._nodes: dict[Path, int] = {}
        self._files: dict[int, int] = {}

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)

    def do(self, operation: Operation) -> None:
        """Do what an operation says, but a sync, which was done when it began."""
        match operation:
            case Made(node, parent, name, directory):
                path = self._directories[parent] / name
                self._nodes[path] = node
                if directory:
                    path.mkdir()
                    self._directories[node] = path
                else:
                    self._files[node] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            case Renamed(node, parent, name, new_parent, new_name):
                self._rename(node, self._directories[parent] / name, self._directories[new_parent] / new_name)
            case Removed(parent, name):
                path = self._directories[parent] / name
                path.rmdir() if self._nodes.pop(path) in self._directories else path.unlink()
            case Wrote(node):
                self._write(operation)
            case Truncated(node, size):
                os.ftruncate(self._files[node], size)
            case _:
                assert isinstance(operation, Synced), f"{operation} is nothing that a process does"

    def _rename(self, node: int, source: Path, target: Path) -> None:
        source.rename(target)
        del self._nodes[source]
        self._nodes[target] = node
        if node in self._directories:
            self._directories = {
                number: target / path.relative_to(source) if path.is_relative_to(source) else path
                for number, path in self._directories.items()
            }
            self._nodes = {
                target / path.relative_to(source) if path.is_relative_to(source) else path: number
                for path, number in self._nodes.items()
            }

    def _write(self, wrote: Wrote) -> None:
        fd, begin, end = self._files[wrote.node], wrote.position, wrote.position + len(wrote.data)
        if not wrote.stored:
            assert os.pwrite(fd, wrote.data, begin) == len(wrote.data)
            return
        first = begin - begin % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(fd, end - first, offset=first) as window:
            window[begin - first :] = wrote.data

    def sync(self, node: int) -> None:
        """Make a file durable as aiodq does, or the names in a directory."""
        if node in self._files:
            os.fdatasync(self._files[node])
        elif (path := self._directories[node]).is_dir():
            _at(path, os.fsync)

    def stir(self) -> None:
        """Now and then do what comes of other programs: the journal is committed, or pages are written."""
        way = self._random.random() / _STIRRED
        if way > 1:
            return
        if way < 0.25:
            _at(self._directories[ROOT], _LIBC.syncfs)
        elif way < 0.5 and self._files:
            fd = self._random.choice(list(self._files.values()))
            _LIBC.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _ALL_OF_IT)
        else:
            with self._elsewhere.open("ab") as file:
                file.write(bytes(500))
                file.flush()
                os.fsync(file.fileno())


def _at(path: Path, call: Callable[[int], object]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        call(fd)
    finally:
        os.close(fd)
