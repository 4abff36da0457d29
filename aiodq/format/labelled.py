"""Labelled messages that are put one by one: each has a frame of its own, and many have the same columns."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from aiodq.format.checksum import crc32, crc32_of_few
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns, Flags, decode_headers, encode_headers
from aiodq.format.frame import Batch, too_large, watermark_lag
from aiodq.format.layout import (
    ALIGNMENT,
    BATCH_HEADER,
    FRAME_START,
    KIND_BATCH,
    MAX_FRAME,
    NULL_LENGTH,
    TRAILER,
    padded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.format.frame import FrameContext

__all__ = ["encode_labelled", "labelled_frames"]

_START: Final = FRAME_START.size
_TRAILER: Final = TRAILER.size
_HEAD: Final = struct.Struct("<BBH")
"""A frame's kind, detail and flags."""

_DUES, _EXPIRIES = int(Flags.DUES), int(Flags.EXPIRIES)
_TAGS, _KEYS, _HEADERS = int(Flags.TAGS), int(Flags.KEYS), int(Flags.HEADERS)
_LABELS: Final = _DUES | _EXPIRIES | _TAGS | _KEYS | _HEADERS

_FIXED: Final = 9
"""Fields of the header, with kind, detail and flags as one."""

_TIME: Final = 5
"""Which of them is the time."""

_FRAME: Final = BATCH_HEADER.size + _TRAILER
_VALUES: Final = BATCH_HEADER.size - _START
"""Where the payload begins within the checksummed bytes."""

_FEW: Final = 256
"""As in `aiodq.format.decode`."""


class _Shape(NamedTuple):
    """What frames of one record have in common that have the same flags.

    Attributes:
        fields: what comes before the values: the header, with kind, detail and flags as one number; when the record is
            due and when it expires; the lengths of its body, tag, key and headers.
        head: that number.
        rest: `fields` without the frame's start, and kind, detail and flags by themselves.
    """

    fields: struct.Struct
    head: int
    rest: struct.Struct
    dues: bool
    expiries: bool
    tags: bool
    keys: bool
    headers: bool


_Row: TypeAlias = "tuple[bytes, int, int, int, str | None, bytes | None, Mapping[str, str]]"
"""A record: its body, times of put, delivery and expiry, tag, key and headers."""


@lru_cache(maxsize=2 * _LABELS)
def _shape(flags: int) -> _Shape:
    dues, expiries, tags, keys, headers = (bool(flags & flag) for flag in (_DUES, _EXPIRIES, _TAGS, _KEYS, _HEADERS))
    own = f"{dues + expiries}q{1 + tags + keys + headers}I"
    (head,) = struct.unpack("<I", _HEAD.pack(KIND_BATCH, CODEC_NONE, flags))
    rest = struct.Struct(BATCH_HEADER.format.replace("<II", "<", 1) + own)
    return _Shape(struct.Struct(f"<IIIIIqIII{own}"), head, rest, dues, expiries, tags, keys, headers)


def encode_labelled(
    columns: Columns, context: FrameContext, first: int, watermark: int, time_ns: int
) -> tuple[bytes, int, int]:
    """Return the frame of one record that has more than a body, its flags and the size of its payload.

    The frame is the one that `encode_frames` returns without a codec; a single put takes the shorter way. The record
    has no time of its own and is not of a transaction.
    """
    (body,) = columns.bodies
    flags, lengths, parts = 0, [len(body)], [b""]
    numbers: list[int] = []
    if columns.dues is not None:
        flags |= _DUES
        numbers += columns.dues
    if columns.expiries is not None:
        flags |= _EXPIRIES
        numbers += columns.expiries
    if columns.tags is not None:
        flags |= _TAGS
        (tag,) = columns.tags
        _add(None if tag is None else tag.encode(), lengths, parts)
    if columns.keys is not None:
        flags |= _KEYS
        _add(columns.keys[0], lengths, parts)
    if columns.headers is not None:
        flags |= _HEADERS
        _add(encode_headers(columns.headers[0]), lengths, parts)
    parts.append(body)
    size = 8 * len(numbers) + 4 * len(lengths) + sum(map(len, parts))
    length = padded(_FRAME + size)
    if length > MAX_FRAME:
        raise ValueError(too_large(length))
    lag = watermark_lag(first, watermark)
    parts[0] = _shape(flags).rest.pack(
        KIND_BATCH, CODEC_NONE, flags, first - context.base, lag, time_ns, 1, size, size, *numbers, *lengths
    )
    parts += bytes(length - _FRAME - size), TRAILER.pack(length)
    covered = b"".join(parts)
    return FRAME_START.pack(length, context.checksum(covered, context.salt)) + covered, flags, size


def _add(value: bytes | None, lengths: list[int], parts: list[bytes]) -> None:
    if value is None:
        lengths.append(NULL_LENGTH)
    else:
        lengths.append(len(value))
        parts.append(value)


def labelled_frames(data: bytes, at: int, end: int, context: FrameContext, position: int) -> tuple[Batch | None, int]:
    """Decode frames of one record each, with the same columns and consecutive offsets; stop before anything else.

    That may be such a frame that is damaged: `decode_frame` says what is wrong with it.

    Args:
        data: frames.
        at: where the first of them begins in `data`.
        end: where the frames end in `data`.
        context: the segment's.
        position: where `data` starts in the file.

    Returns:
        The records, None if there are none, and where the next frame begins in `data`.
    """
    start = at
    if at + BATCH_HEADER.size > end:
        return None, at
    kind, codec, flags = _HEAD.unpack_from(data, at + _START)
    if kind != KIND_BATCH or codec != CODEC_NONE or not flags or flags & ~_LABELS:
        return None, at
    shape = _shape(flags)
    unpack, head, last = shape.fields.unpack_from, shape.head, end - shape.fields.size - _TRAILER
    checksum, salt = context.checksum, context.salt
    of_few = crc32_of_few if checksum is crc32 else checksum
    rows: list[_Row] = []
    first = expected = -1
    while at <= last:
        values = unpack(data, at)
        length, crc, named, relative, _, _, count, stored, raw = values[:_FIXED]
        stop = at + length
        if named != head or count != 1 or raw != stored or (relative != expected and rows):
            break
        if length % ALIGNMENT or stop > end or not 0 <= length - _FRAME - stored < ALIGNMENT:
            break
        covered = data[at + _START : stop]
        if (
            covered[-_TRAILER:] != data[at : at + _TRAILER]
            or (of_few if length < _FEW else checksum)(covered, salt) != crc
        ):
            break
        try:
            rows.append(_row(covered, values, shape, _VALUES + stored))
        except (ValueError, struct.error):
            break
        if expected < 0:
            first = expected = relative
        expected += 1
        at = stop
    if not rows:
        return None, at
    return Batch(context.base + first, rows[0][1], _columns(rows, shape), position + start, at - start, flags), at


def _row(covered: bytes, values: tuple[Any, ...], shape: _Shape, end: int) -> _Row:
    """Return the record of a frame whose checksum was valid.

    Args:
        covered: what the checksum covers.
        values: the frame's fields.
        shape: theirs.
        end: where the payload ends in `covered`.

    Raises:
        ValueError: the lengths do not add up, or a text is not UTF-8.
        struct.error: the headers are too short.
    """
    fixed, cursor = _FIXED, shape.fields.size - _START
    due = expiry = 0
    tag: str | None = None
    key: bytes | None = None
    blob: bytes | None = None
    if shape.dues:
        due, fixed = values[fixed], fixed + 1
    if shape.expiries:
        expiry, fixed = values[fixed], fixed + 1
    body_end = values[fixed]
    if shape.tags:
        fixed += 1
        if (length := values[fixed]) != NULL_LENGTH:
            tag, cursor = covered[cursor : cursor + length].decode(), cursor + length
    if shape.keys:
        fixed += 1
        if (length := values[fixed]) != NULL_LENGTH:
            key, cursor = covered[cursor : cursor + length], cursor + length
    if shape.headers:
        fixed += 1
        if (length := values[fixed]) != NULL_LENGTH:
            blob, cursor = covered[cursor : cursor + length], cursor + length
    if cursor + body_end != end:
        message = f"bodies of {body_end} bytes in {end - cursor}"
        raise ValueError(message)
    return covered[cursor:end], values[_TIME], due, expiry, tag, key, decode_headers(blob)


def _columns(rows: list[_Row], shape: _Shape) -> Columns:
    bodies, times, dues, expiries, tags, keys, headers = zip(*rows, strict=True)
    return Columns(
        list(bodies),
        list(times) if len(times) > 1 else None,
        list(dues) if shape.dues else None,
        list(expiries) if shape.expiries else None,
        list(tags) if shape.tags else None,
        list(keys) if shape.keys else None,
        list(headers) if shape.headers else None,
    )
