"""Setting checksums right behind whatever was changed, so that changes reach the code behind the checks."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Final

from aiodq.format.layout import ALIGNMENT, COMPACT_MIN, FOOTER_TAIL, INDEX_ENTRY, SEGMENT_HEADER, TAIL_MAGIC
from aiodq.format.transactions import FIRST_BLOCK
from tests.fuzz.stores import SLOT_BYTES, SLOT_STRIDE, as_row, from_row

if TYPE_CHECKING:
    from collections.abc import Callable

SALT: Final = 0x5EED
"""Of the frames that stand without a segment around them."""

_JOURNAL_HEADER: Final = 24


def _put(data: bytearray, at: int, value: int) -> None:
    data[at : at + 4] = value.to_bytes(4, "little")


def _number(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def mend_header(data: bytes) -> bytes:
    """A segment's header."""
    fixed = bytearray(data)
    if len(fixed) >= SEGMENT_HEADER.size:
        _put(fixed, SEGMENT_HEADER.size - 4, zlib.crc32(fixed[: SEGMENT_HEADER.size - 4]))
    return bytes(fixed)


def _mend_frames(data: bytearray, at: int, end: int, salt: int) -> None:
    while at + COMPACT_MIN <= end:
        length = _number(data, at)
        if length % ALIGNMENT or not COMPACT_MIN <= length <= end - at:
            at += ALIGNMENT
            continue
        _put(data, at + length - 4, length)
        _put(data, at + 4, zlib.crc32(data[at + 8 : at + length], salt))
        at += length


def mend_frames(data: bytes) -> bytes:
    """Frames without a segment around them."""
    fixed = bytearray(data)
    _mend_frames(fixed, 0, len(fixed), SALT)
    return bytes(fixed)


def mend_footer(data: bytes) -> bytes:
    """Whatever ends like a sealed segment: size, both checksums and the place of the index."""
    fixed = bytearray(data)
    tail = len(fixed) - FOOTER_TAIL.size
    if tail < 0 or fixed[-8:] != TAIL_MAGIC:
        return data
    entries = _number(fixed, tail + 8)
    start = tail - entries * INDEX_ENTRY.size
    if start >= 0:
        _put(fixed, tail + 12, zlib.crc32(fixed[start:tail]))
        _put(fixed, tail + 76, len(fixed) - start)
    _put(fixed, len(fixed) - 12, zlib.crc32(fixed[tail : len(fixed) - 12]))
    return bytes(fixed)


def mend_segment(data: bytes) -> bytes:
    """A whole segment."""
    fixed = bytearray(mend_footer(mend_header(data)))
    end = len(fixed)
    if fixed[-8:] == TAIL_MAGIC:
        stated = int.from_bytes(fixed[-FOOTER_TAIL.size :][:8], "little")
        end = min(end, stated)
    _mend_frames(fixed, SEGMENT_HEADER.size, end, _number(fixed, 12))
    return bytes(fixed)


def mend_journal(data: bytes) -> bytes:
    """A channel's journal."""
    fixed = bytearray(data)
    if len(fixed) >= _JOURNAL_HEADER:
        _put(fixed, 20, zlib.crc32(fixed[:20]))
    generation = _number(fixed, 12)
    at = _JOURNAL_HEADER
    while at + 8 <= len(fixed):
        length = _number(fixed, at)
        if at + 8 + length > len(fixed):
            break
        _put(fixed, at + 4, zlib.crc32(fixed[at + 8 : at + 8 + length], generation))
        at += 8 + length
    return bytes(fixed)


def mend_transactions(data: bytes) -> bytes:
    """A store's file of transactions."""
    fixed = bytearray(data)
    if len(fixed) >= FIRST_BLOCK:
        _put(fixed, 24, zlib.crc32(fixed[:24]))
    salt, at = _number(fixed, 20), FIRST_BLOCK
    while at + 32 <= len(fixed):
        length = _number(fixed, at)
        if length % ALIGNMENT or not 32 <= length <= len(fixed) - at:
            break
        _put(fixed, at + 4, zlib.crc32(fixed[at + 8 : at + length], salt))
        at += length
    return bytes(fixed)


def mend_checkpoint(data: bytes) -> bytes:
    """A channel's checkpoint."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def mend_checked(data: bytes) -> bytes:
    """A small file of JSON."""
    try:
        outer = json.loads(data)
        (name,) = set(outer) - {"crc32"}
        text = json.dumps(outer[name], sort_keys=True, separators=(",", ":"))
        return json.dumps({**outer, "crc32": f"{zlib.crc32(text.encode()):08x}"}).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return data


def mend_slots(data: bytes) -> bytes:
    """A topic's watermark."""
    fixed = bytearray(data)
    for at in (0, SLOT_STRIDE):
        if len(fixed) >= at + SLOT_BYTES:
            _put(fixed, at + SLOT_BYTES - 4, zlib.crc32(fixed[at : at + SLOT_BYTES - 4]))
    return bytes(fixed)


_BY_NAME: Final[tuple[tuple[str, Callable[[bytes], bytes]], ...]] = (
    (".seg", mend_segment),
    (".json", mend_checked),
    ("#store", mend_checked),
    ("watermark", mend_slots),
    ("journal", mend_journal),
    ("checkpoint", mend_checkpoint),
)


def mend_store(row: bytes) -> bytes:
    """A whole store in a row."""
    files = from_row(row)
    for name, data in files.items():
        for ending, mend in _BY_NAME:
            if name.endswith(ending):
                files[name] = mend(data)
    return as_row({name: data[:0xFFFF] for name, data in files.items()})
