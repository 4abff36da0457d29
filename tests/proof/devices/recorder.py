"""A device that writes down what is done to it: a directory with one file, `device`, served through the kernel's FUSE.

A program of its own: in the process that waits for the device in the kernel, nobody could serve it.

    python -m tests.proof.devices.recorder DIRECTORY BYTES LOG
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import stat
import struct
import sys
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEVICE", "Flushed", "Record", "Written", "read_log"]

DEVICE: Final = "device"
"""The name of the file."""


class Written(NamedTuple):
    """Bytes were written; `end`: where the record ends in the log."""

    end: int
    position: int
    data: bytes


class Flushed(NamedTuple):
    """All that was written before is on the medium; `end` as above."""

    end: int


Record: TypeAlias = "Written | Flushed"

_RECORD: Final = struct.Struct("<?QI")
"""The head of a record: whether it is a write, of which position and length; its bytes follow."""


def read_log(path: Path) -> Iterator[Record]:
    """Yield the records of a log."""
    with path.open("rb") as file:
        while head := file.read(_RECORD.size):
            is_write, position, length = _RECORD.unpack(head)
            data = file.read(length)
            yield Written(file.tell(), position, data) if is_write else Flushed(file.tell())


class _Device:
    """The device: its bytes, and the log of what is done to them."""

    def __init__(self, size: int, log: BinaryIO) -> None:
        self.size = size
        self._data = mmap.mmap(-1, size)
        self._log = log

    def read(self, position: int, length: int) -> bytes:
        return self._data[position : min(position + length, self.size)]

    def write(self, position: int, data: bytes) -> None:
        self._data[position : position + len(data)] = data
        # INVARIANT: before it is answered, so that whoever was answered finds it below the log's size.
        self._log.write(_RECORD.pack(1, position, len(data)) + data)

    def flush(self) -> None:
        self._log.write(_RECORD.pack(0, 0, 0))


# --- the kernel's side, from include/uapi/linux/fuse.h of Linux: version 7.31 of the protocol


class _Call(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43


_IN: Final = struct.Struct("<IIQ Q 16x")
_OUT: Final = struct.Struct("<IiQ")
_INIT_IN: Final = struct.Struct("<4I")
_INIT_OUT: Final = struct.Struct("<4I HH II HH I 28x")
_ENTRY: Final = struct.Struct("<QQQQ 8x")
_ATTRIBUTES_VALID: Final = struct.Struct("<Q 8x")
_ATTRIBUTES: Final = struct.Struct("<QQ 44x II 12x I 4x")
_OPENED: Final = struct.Struct("<Q I 4x")
_TRANSFER: Final = struct.Struct("<8x Q I 20x")
_WRITTEN: Final = struct.Struct("<I 4x")
_FALLOCATED: Final = struct.Struct("<8x QQ I 4x")
_STATISTICS: Final = struct.Struct("<40x III 28x")

_UNANSWERED: Final = frozenset({_Call.FORGET, _Call.BATCH_FORGET, _Call.INTERRUPT})
_MERELY_DONE: Final = frozenset({_Call.FLUSH, _Call.RELEASE, _Call.RELEASEDIR, _Call.ACCESS, _Call.DESTROY})
_ROOT, _FILE = 1, 2
_LONGEST: Final = 1 << 20
_FOREVER: Final = 1 << 30
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_KEEP_CACHE: Final = 2
_TO_ZEROS: Final = 0x02 | 0x10
"""The modes of fallocate that leave zeros: to punch a hole, to zero a range."""

_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG: where nobody serves it, what waits for the device gets an error instead of waiting for ever."""


class _Server:
    """Answers what the kernel asks of the directory."""

    def __init__(self, device: _Device) -> None:
        self._device = device
        self._fd = os.open("/dev/fuse", os.O_RDWR)

    def mount(self, directory: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"recorder", directory.encode(), b"fuse", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), directory)

    def serve(self) -> None:
        """Answer until it is unmounted."""
        while True:
            try:
                request = os.read(self._fd, _LONGEST + mmap.PAGESIZE)
            except FileNotFoundError:  # the request was taken back
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                raise
            _, call, number, node = _IN.unpack_from(request)
            if call in _UNANSWERED:
                continue
            try:
                answer, problem = self._answer(call, node, request[_IN.size :]), 0
            except OSError as error:
                answer, problem = b"", error.errno or errno.EIO
            os.write(self._fd, _OUT.pack(_OUT.size + len(answer), -problem, number) + answer)

    def _answer(self, call: int, node: int, asked: bytes) -> bytes:
        match call:
            case _Call.READ:
                return self._device.read(*_TRANSFER.unpack_from(asked))
            case _Call.WRITE:
                position, length = _TRANSFER.unpack_from(asked)
                self._device.write(position, asked[_TRANSFER.size : _TRANSFER.size + length])
                return _WRITTEN.pack(length)
            case _Call.FSYNC:
                self._device.flush()
                return b""
            case _Call.FALLOCATE:
                position, length, mode = _FALLOCATED.unpack_from(asked)
                if not mode & _TO_ZEROS:
                    raise OSError(errno.EOPNOTSUPP, "only zeros can be had")
                self._device.write(position, bytes(min(length, self._device.size - position)))
                return b""
            case _ if call in _MERELY_DONE:
                return b""
        return self._described(call, node, asked)

    def _described(self, call: int, node: int, asked: bytes) -> bytes:
        match call:
            case _Call.INIT:
                *_, ahead, flags = _INIT_IN.unpack_from(asked)
                known = flags & (_BIG_WRITES | _MAX_PAGES)
                return _INIT_OUT.pack(7, 31, ahead, known, 64, 48, _LONGEST, 1, _LONGEST // mmap.PAGESIZE, 0, 0)
            case _Call.LOOKUP if asked.rstrip(b"\0") == DEVICE.encode():
                return _ENTRY.pack(_FILE, 0, _FOREVER, _FOREVER) + self._attributes(_FILE)
            case _Call.LOOKUP:
                raise OSError(errno.ENOENT, "there is one file")
            case _Call.GETATTR | _Call.SETATTR:
                return _ATTRIBUTES_VALID.pack(_FOREVER) + self._attributes(node)
            case _Call.OPEN | _Call.OPENDIR:
                return _OPENED.pack(0, _KEEP_CACHE)
            case _Call.STATFS:
                return _STATISTICS.pack(mmap.PAGESIZE, 255, mmap.PAGESIZE)
        raise OSError(errno.ENOSYS, "not needed for one file")

    def _attributes(self, node: int) -> bytes:
        size = self._device.size if node == _FILE else 0
        mode = stat.S_IFREG | 0o600 if node == _FILE else stat.S_IFDIR | 0o700
        return _ATTRIBUTES.pack(node, size, mode, 1, mmap.PAGESIZE)


def main(directory: str, size: str, log: str) -> None:
    """Serve a device of so many bytes until its directory is unmounted."""
    with Path(log).open("wb", buffering=0) as file:
        server = _Server(_Device(int(size), file))
        server.mount(directory)
        print("mounted", flush=True)
        server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
