"""Every fixed layout of the on-disk format as `struct` objects and constants. The diagrams are in `aiodq.format`."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ALIGNMENT",
    "BATCH_COUNTS",
    "BATCH_HEADER",
    "BATCH_MIN",
    "COMPACT_MIN",
    "CONTROL_KINDS",
    "FOOTER_TAIL",
    "FRAME_BYTES",
    "FRAME_PREFIX",
    "FRAME_RECORDS",
    "FRAME_START",
    "INDEX_ENTRY",
    "INDEX_STRIDE",
    "KIND_BATCH",
    "KIND_COMPACT",
    "LAG_UNKNOWN",
    "MAX_BASE",
    "MAX_FRAME",
    "MAX_RECORDS",
    "MAX_RELATIVE",
    "NULL_LENGTH",
    "SEGMENT_HEADER",
    "SEGMENT_MAGIC",
    "TAIL_MAGIC",
    "TRAILER",
    "VERSION",
    "BytesLike",
    "padded",
    "u32_bytes",
    "words",
    "written_size",
]

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""The types of bodies and keys that are accepted, and that decoders read."""

_ZEROS: Final = bytes(4096)

VERSION: Final = 1
"""The format version this code writes, and the newest it reads."""

ALIGNMENT: Final = 8
"""Headers, frames and footers start at multiples of this."""

SEGMENT_MAGIC: Final = b"\x89AIODQ\r\n"
"""First bytes of a segment. As in PNG, a transfer that mangles text shows at once."""

SEGMENT_HEADER: Final = struct.Struct("<8sHBBIQ16sq12xI")
"""magic, version, checksum, 0, salt, base offset, topic uuid, created, zeros, crc."""

FRAME_START: Final = struct.Struct("<II")
"""length, crc: the part of a frame's prefix that its checksum does not cover."""

FRAME_PREFIX: Final = struct.Struct("<IIBBHIIq")
"""length, crc, kind, detail (codec or padding), flags, first relative offset, lag, time."""

BATCH_HEADER: Final = struct.Struct("<IIBBHIIqIII")
"""The prefix, then count, stored bytes, raw bytes."""

BATCH_COUNTS: Final = struct.Struct("<III")
"""What a batch's header has more than the prefix."""

TRAILER: Final = struct.Struct("<I")
"""length again, so that a file can be read backward."""

INDEX_ENTRY: Final = struct.Struct("<QIIIIq")
"""position, first relative offset, records, frames, 0, newest time."""

FOOTER_TAIL: Final = struct.Struct("<QIIIIQQQqq8xII4xI8s")
"""data end, entries, index crc, flags, salt, records, end relative offset, raw bytes, oldest, newest, zeros, frames,
footer length, zeros, crc, magic."""

TAIL_MAGIC: Final = b"\x89AIODQE\n"
"""Last bytes of a sealed segment."""

KIND_BATCH: Final = 0xB7
KIND_COMPACT: Final = 0xC5
CONTROL_KINDS: Final = frozenset(range(0xE0, 0xF0))
"""Kinds that carry no records; a reader skips those it does not know."""

BATCH_MIN: Final = BATCH_HEADER.size + TRAILER.size + 4
COMPACT_MIN: Final = FRAME_PREFIX.size + TRAILER.size

FRAME_BYTES: Final = 64 * 1024
"""A frame is closed at this many body bytes; joining much more at once costs several times as much per message."""

FRAME_RECORDS: Final = 1000
"""A frame is closed at this many records."""

MAX_FRAME: Final = 2**32 - ALIGNMENT
MAX_RECORDS: Final = 2**15
"""A reader refuses a frame of more, so that a few compressed bytes cannot make it allocate much per record."""

MAX_RELATIVE: Final = 2**32 - 1
"""Relative offsets are u32: a segment holds at most this many records."""

MAX_BASE: Final = 2**63 - 1 - MAX_RELATIVE
"""No segment begins beyond this, so that no offset, nor the one after the last, has more than 63 bits."""

LAG_UNKNOWN: Final = 2**32 - 1
NULL_LENGTH: Final = 2**32 - 1
"""The length that means *no value* in the tag, key and header columns, as opposed to an empty one."""

INDEX_STRIDE: Final = 4096
"""An index entry starts at the first frame at least this many bytes after the start of the previous entry."""


def padded(size: int) -> int:
    """Round `size` up to the alignment."""
    return (size + 7) & ~7


def u32_bytes(numbers: Iterable[int]) -> bytes:
    """Return numbers as little-endian u32."""
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def words(data: BytesLike, code: Literal["I", "Q", "q"]) -> memoryview:
    """Return little-endian numbers, without a copy on a little-endian machine.

    Args:
        data: a whole number of them.
        code: their type code, as in `array` and `memoryview`.
    """
    if sys.byteorder == "little":
        return memoryview(data).cast(code)
    swapped: array[int] = array(code)
    swapped.frombytes(data)
    swapped.byteswap()
    return memoryview(swapped)


def written_size(data: bytes) -> int:
    """Return where the zeros at the end of `data` begin.

    Comparing is fast, stripping is not, and most of a file that is allocated ahead is zeros.
    """
    end, block = len(data), len(_ZEROS)
    while end >= block and data[end - block : end] == _ZEROS:
        end -= block
    start = max(end - block, 0)
    return start + len(data[start:end].rstrip(b"\0"))
