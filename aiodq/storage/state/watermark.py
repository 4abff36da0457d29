"""The watermark: a small value that changes at every sync, in two checksummed slots written in turn and in place.

Writing it costs one small write. A torn write spoils the slot it was meant for; the other one still holds the previous
value.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, Literal

from aiodq.storage.io.durable_io import sync_file, write_all
from aiodq.storage.io.file_pool import is_ready
from aiodq.storage.io.filesystem import close_file
from aiodq.storage.io.os_errors import storage_error

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = [
    "SLOT_FILE_BYTES",
    "WATERMARK",
    "WatermarkFile",
    "check_slots",
    "is_foreign",
    "noted_watermark",
    "read_slot_file",
    "read_slots",
]

WATERMARK: Final = "watermark"
"""The file that notes up to where a topic is durable, and the topic's salt."""

_MAGIC: Final = b"AIODQWM1"
_SLOT: Final = struct.Struct("<8sQQQI")
_STRIDE: Final = 4096
"""Slots lie this many bytes apart, so that no sector holds parts of both."""

_NUMBERS: Final = 1 << 63
"""Every sequence number and every offset is below this."""

SLOT_FILE_BYTES: Final = 2 * _STRIDE


def read_slots(data: bytes) -> tuple[int, int, int]:
    """Return the newest valid slot as (sequence, first value, second value); zeros if none is valid."""
    best = (0, 0, 0)
    for at in (0, _STRIDE):
        if len(data) < at + _SLOT.size:
            continue
        magic, sequence, first, second, crc = _SLOT.unpack_from(data, at)
        if max(sequence, first) < _NUMBERS and magic == _MAGIC and crc == zlib.crc32(data[at : at + _SLOT.size - 4]):
            best = max(best, (sequence, first, second))
    return best


def check_slots(data: bytes | None) -> list[tuple[Literal["damage", "note"], int, str]]:
    """Return the findings about a slot file's bytes, or its absence: (severity, position, reason)."""
    if data is None:
        return [("note", 0, "the file is missing; its owner makes it again")]
    if not any(data):
        return [("note", 0, "nothing is written in it; its owner writes it again")]
    found: list[tuple[Literal["damage", "note"], int, str]] = []
    for at in (0, _STRIDE):
        slot = data[at : at + _SLOT.size]
        if any(slot) and read_slots(slot) == (0, 0, 0):
            found.append(("note", at, "unfinished: the slot is not whole, and the other one counts"))
    if read_slots(data) == (0, 0, 0) and not _is_begun(data):
        return [("damage", at, "neither slot is what was written") for _, at, _ in found[:1]]
    return found


def _is_begun(data: bytes) -> bool:
    """Return whether only the first write was begun, which goes to the second slot: nothing was durable before it."""
    written = data[_STRIDE:].rstrip(b"\0")
    return not any(data[:_STRIDE]) and (_MAGIC + (1).to_bytes(8, "little")).startswith(written[:16])


def is_foreign(values: tuple[int, int], salt: int) -> bool:
    """Return whether a watermark's values are another topic's."""
    return values[1] not in {0, salt}


def noted_watermark(values: tuple[int, int], salt: int) -> int:
    """Return the offset that a watermark's values promise; 0 if they are another topic's."""
    return 0 if is_foreign(values, salt) else values[0]


def read_slot_file(fs: FileSystem, path: str) -> tuple[int, int]:
    """Return the values of a slot file, whose owner may be running; zeros if it is missing or no slot is valid.

    Raises:
        StorageError: as mapped from the system's error.
    """
    try:
        if not fs.exists(path):
            return 0, 0
        file = fs.open(path)
        try:
            slots = (file.read_at(_SLOT.size, at) for at in (0, _STRIDE))
            _, first, second = max(read_slots(slot) for slot in slots)
        finally:
            file.close()
    except OSError as cause:
        raise storage_error(cause, path) from cause
    return first, second


class WatermarkFile:
    """The pair of slots, as their owner writes them.

    Attributes:
        path: of the file.
        values: the two numbers last written or read, each u64.
        created: whether there was no file.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Open the file, or create it with its full size, so that a later write needs no new space.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self.path: str = path
        try:
            self.created: bool = not fs.exists(path)
            self._file = _open(fs, path, create=self.created)
            try:
                self._sequence, *values = read_slots(self._file.read_at(2 * _STRIDE, 0))
            except BaseException:
                self._file.close()
                raise
        except OSError as cause:
            raise storage_error(cause, path) from cause
        self.values: tuple[int, int] = (values[0], values[1])

    @property
    def ready(self) -> bool:
        """Whether `write` opens no file: an idle one may be closed."""
        return is_ready(self._file)

    def write(self, first: int, second: int) -> None:
        """Write both values to the older slot. Not synced: the system writes it to disk at some time.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self._sequence += 1
        head = _SLOT.pack(_MAGIC, self._sequence, first, second, 0)[:-4]
        try:
            # CRASH: 3. A torn slot fails its checksum and the other one counts.
            write_all(self._file, [head + zlib.crc32(head).to_bytes(4, "little")], (self._sequence % 2) * _STRIDE)
        except OSError as cause:
            raise storage_error(cause, self.path) from cause
        self.values = (first, second)

    def sync(self) -> None:
        """Sync: on return, the slots are on the device.

        Raises:
            StoreFailedError: it is unknown what is on disk.
        """
        sync_file(self._file, self.path)

    def close(self) -> None:
        """Close the file.

        Raises:
            StorageError: as `close_file`.
        """
        close_file(self._file, self.path)


def _open(fs: FileSystem, path: str, *, create: bool) -> File:
    file = fs.open(path, write=True, create=create)
    try:
        size = file.size()
        if size < 2 * _STRIDE:
            write_all(file, [bytes(2 * _STRIDE - size)], size)
            sync_file(file, path)
    except BaseException:
        file.close()
        raise
    return file
