"""A file system on a recorded device, and what is left of the device after a power cut."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.processes import WATCHDOG, killed_at_last
from tests.proof.devices.recorder import DEVICE, read_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.proof.devices.recorder import Record, Written

__all__ = ["FILE_SYSTEMS", "Blocks", "FileSystem", "RecordedDisk", "want_of"]

_MEBIBYTE: Final = 1 << 20
_PAGE: Final = mmap.PAGESIZE
_NOTHING: Final = bytes(_PAGE)
_SECTOR: Final = 4096
"""Bytes that a device writes whole or not at all. Of fewer, ext4 and btrfs do not outlive half a superblock; the
simulated disk tears at 512."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system of the kernel's.

    Attributes:
        kind: as `mount` calls it.
        mebibytes: the size of its device.
        make: the command that makes one.
        options: with which it is mounted.
    """

    kind: str
    mebibytes: int
    make: tuple[str, ...]
    options: str = "noatime"


# At once what would else be done later in the kernel's time; and `-K`, `nodiscard`: nothing was there before.
_EXT4: Final = ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard")
_XFS: Final = ("mkfs.xfs", "-q", "-K")
_BTRFS: Final = ("mkfs.btrfs", "-q", "-K")

FILE_SYSTEMS: Final = {
    "ext4": FileSystem("ext4", 32, _EXT4),
    "ext4-writeback": FileSystem("ext4", 32, _EXT4, "noatime,data=writeback"),
    "ext4-journal": FileSystem("ext4", 32, _EXT4, "noatime,data=journal"),
    "xfs": FileSystem("xfs", 300, _XFS),
    "btrfs": FileSystem("btrfs", 128, _BTRFS),
}


def want_of(file_system: str) -> str:
    """Return why this file system cannot be had here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root may mount it, on Linux"
    each = FILE_SYSTEMS[file_system]
    if not Path("/dev/fuse").exists() or not Path("/dev/loop-control").exists():
        return "the kernel has no FUSE or no loop devices"
    if each.kind not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        return f"the kernel has no {each.kind}"
    return "" if shutil.which(each.make[0]) else f"there is no {each.make[0]}"


class Blocks:
    """A device's bytes, of which most are zeros."""

    def __init__(self, pages: dict[int, bytes] | None = None) -> None:
        """Begin with these pages, by number."""
        self._pages = {} if pages is None else dict(pages)

    def copy(self) -> Blocks:
        """Return another with the same bytes."""
        return Blocks(self._pages)

    def write(self, position: int, data: bytes) -> None:
        """Write bytes."""
        at, end = position, position + len(data)
        while at < end:
            number, begin = divmod(at, _PAGE)
            stop = min(_PAGE, begin + end - at)
            piece = data[at - position : at - position + stop - begin]
            if len(piece) < _PAGE:
                page = self._pages.get(number, _NOTHING)
                piece = page[:begin] + piece + page[stop:]
            self._pages[number] = piece
            at += stop - begin

    def write_part(self, pending: list[Written], random: Random) -> None:
        """Write what a power cut may leave of this: nothing, all, writes or sectors at random, all but a little."""
        share, whole = random.choice(((0.0, True), (1.0, True), (0.5, True), (0.5, False), (0.9, False)))
        for _, position, data in pending:
            step = max(len(data) if whole else _SECTOR, 1)
            for at in range(0, len(data), step):
                if random.random() < share:
                    self.write(position + at, data[at : at + step])

    def save(self, path: Path, size: int) -> None:
        """Make a file of them."""
        with path.open("wb") as file:
            file.truncate(size)
            for number, page in self._pages.items():
                if page != _NOTHING:
                    file.seek(number * _PAGE)
                    file.write(page)


def _call(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr or done.stdout}")


@contextmanager
def _mounted(kind: str, device: str, directory: Path, options: str = "") -> Iterator[None]:
    _call("mount", "-t", kind, *(("-o", options) if options else ()), device, str(directory))
    try:
        yield
    finally:
        _call("umount", str(directory))


@contextmanager
def _recorder(directory: Path, size: int, log: Path) -> Iterator[None]:
    command = (sys.executable, "-m", "tests.proof.devices.recorder", directory, str(size), log)
    with killed_at_last(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "mounted\n":
            raise OSError(f"no recorder runs: it ended with {process.wait()}")
        try:
            yield
        finally:
            _call("umount", str(directory))
            process.wait(WATCHDOG)


class RecordedDisk:
    """A file system on a device that is recorded. Its mounts belong into a namespace of mounts of their own.

    Attributes:
        directory: where it is mounted.
    """

    def __init__(self, file_system: FileSystem) -> None:
        """Prepare a disk; it is there within `with`."""
        self._of = file_system
        self._size = file_system.mebibytes * _MEBIBYTE
        self._after = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aiodq-device-")))
            stack.enter_context(_mounted("tmpfs", "none", work))
            self._log, self._cut = work / "log", work / "cut"
            self.directory: Path = work / "mounted"
            device = work / "device"
            self.directory.mkdir()
            device.mkdir()
            self._recording = stack.enter_context(ExitStack())
            self._recording.enter_context(_recorder(device, self._size, self._log))
            _call(*self._of.make, str(device / DEVICE))
            self._recording.enter_context(self._mounted(device / DEVICE))
            self._after = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._after.close()

    def _mounted(self, device: Path) -> AbstractContextManager[None]:
        return _mounted(self._of.kind, str(device), self.directory, f"loop,{self._of.options}")

    @property
    def position(self) -> int:
        """Bytes of the log so far."""
        return self._log.stat().st_size

    def end(self) -> list[Record]:
        """Unmount it; return the log."""
        self._recording.close()
        return list(read_log(self._log))

    @contextmanager
    def cut(self, left: Blocks) -> Iterator[Path]:
        """Mount what is left of the device after a power cut, once it has ended."""
        left.save(self._cut, self._size)
        with self._mounted(self._cut):
            yield self.directory
