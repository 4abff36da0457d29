"""The payload of a batch: columns of values, one per record, then the bodies."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntFlag
from functools import lru_cache
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aiodq.errors import CorruptionError
from aiodq.format.layout import NULL_LENGTH, u32_bytes
from aiodq.format.many import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aiodq.format.layout import BytesLike

__all__ = [
    "CONTINUED",
    "CONTINUES",
    "ColumnPlaces",
    "Columns",
    "Flags",
    "column_parts",
    "column_places",
    "decode_columns",
    "decode_headers",
    "encode_headers",
]

T = TypeVar("T")


class Flags(IntFlag):
    """A frame's flags: which optional columns it has, and its place in a run of frames."""

    TIMES = 0x01
    DUES = 0x02
    EXPIRIES = 0x04
    TAGS = 0x08
    KEYS = 0x10
    HEADERS = 0x20
    TRANSACTION = 0x40
    CONTINUES = 0x100
    """The frame belongs to the same put as the one before it."""
    CONTINUED = 0x200
    """The next frame belongs to the same put; without it, this one does not count either."""


_KNOWN_FLAGS: Final = sum(Flags)
# As plain integers: an operation on an IntFlag costs as much as decoding a record.
_TIMES, _DUES, _EXPIRIES = int(Flags.TIMES), int(Flags.DUES), int(Flags.EXPIRIES)
_TAGS, _KEYS, _HEADERS = int(Flags.TAGS), int(Flags.KEYS), int(Flags.HEADERS)
_TRANSACTION: Final = int(Flags.TRANSACTION)
CONTINUES: Final = int(Flags.CONTINUES)
CONTINUED: Final = int(Flags.CONTINUED)
_OF_A_RUN: Final = CONTINUES | CONTINUED
_NUMBER: Final = struct.Struct("<Q")
_NO_HEADERS: Final[Mapping[str, str]] = {}
_HEADER_COUNT: Final = struct.Struct("<H")
_HEADER_LENGTHS: Final = struct.Struct("<II")
_LENGTH: Final = 4
"""Bytes of a body's length field."""


@dataclass(slots=True)
class Columns:
    """The records of one batch, column by column; each list that is present has one item per record.

    Attributes:
        bodies: the message bodies.
        times: nanoseconds since the epoch, if records differ from the batch's own time.
        dues: time of the earliest delivery, nanoseconds; 0 for at once.
        expiries: time of the latest delivery, nanoseconds; 0 for never expiring.
        tags: text or None.
        keys: bytes or None.
        headers: text by text; an empty mapping if there are none.
        transaction: the number of the transaction that put all of them, or None.
        lengths: the bodies' lengths, bytes, if the caller has them already; not to be modified.
        size: the sum of `sizes`, if it is known.
    """

    bodies: list[bytes]
    times: list[int] | None = None
    dues: list[int] | None = None
    expiries: list[int] | None = None
    tags: list[str | None] | None = None
    keys: list[bytes | None] | None = None
    headers: list[Mapping[str, str]] | None = None
    transaction: int | None = None
    lengths: list[int] | None = field(default=None, compare=False)
    size: int | None = field(default=None, compare=False)

    @property
    def plain(self) -> bool:
        """Whether there are only bodies."""
        return (
            self.times is None
            and self.dues is None
            and self.expiries is None
            and self.tags is None
            and self.keys is None
            and self.headers is None
            and self.transaction is None
        )

    def sizes(self) -> Iterable[int]:
        """Return about how many bytes each record takes, to decide when a frame is full."""
        sizes: Iterable[int] = map(len, self.bodies) if self.lengths is None else self.lengths
        if self.keys is not None:
            sizes = map(add, sizes, [len(key) if key else 0 for key in self.keys])
        if self.tags is not None:
            sizes = map(add, sizes, [len(tag) if tag else 0 for tag in self.tags])
        if self.headers is not None:
            sizes = map(add, sizes, map(_headers_size, self.headers))
        return sizes

    def moved(self, by: int) -> Columns:
        """Return the records with due times and ends of life that are later by so many nanoseconds."""
        dues = None if self.dues is None else later(self.dues, by)
        return replace(self, dues=dues, expiries=None if self.expiries is None else later(self.expiries, by))

    def slice(self, start: int, stop: int) -> Columns:
        """Return the records `start` to `stop` as columns of their own."""
        return Columns(
            self.bodies[start:stop],
            None if self.times is None else self.times[start:stop],
            None if self.dues is None else self.dues[start:stop],
            None if self.expiries is None else self.expiries[start:stop],
            None if self.tags is None else self.tags[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.headers is None else self.headers[start:stop],
            self.transaction,
            None if self.lengths is None else self.lengths[start:stop],
        )

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Return the records of several `Columns` as one; the transaction is the first one's."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        lengths = [part.lengths for part in parts if part.lengths is not None]
        return cls(
            list(chain.from_iterable(part.bodies for part in parts)),
            _joined(parts, [part.times for part in parts], 0),
            _joined(parts, [part.dues for part in parts], 0),
            _joined(parts, [part.expiries for part in parts], 0),
            _joined(parts, [part.tags for part in parts], None),
            _joined(parts, [part.keys for part in parts], None),
            _joined(parts, [part.headers for part in parts], _NO_HEADERS),
            first.transaction,
            [*chain.from_iterable(lengths)] if len(lengths) == len(parts) else None,
        )


def later(moments: Sequence[int], by: int) -> list[int]:
    """Return due times or ends of life that are later by so many nanoseconds; 0, which stands for none, stays."""
    return [each and max(each + by, 1) for each in moments]


def _joined(parts: Sequence[Columns], values: Sequence[list[T] | None], none: T) -> list[T] | None:
    if all(column is None for column in values):
        return None
    joined: list[T] = []
    for part, column in zip(parts, values, strict=True):
        joined += [none] * len(part.bodies) if column is None else column
    return joined


def column_parts(columns: Columns) -> tuple[int, list[bytes]]:
    """Return the `Flags` of the columns present, and the payload in parts that are to be joined."""
    bodies = columns.bodies
    if columns.plain:
        return 0, [u32_bytes(map(len, bodies) if columns.lengths is None else columns.lengths), *bodies]
    count = len(bodies)
    numbers, lengths = _packers(count)
    flags = 0
    fixed: list[bytes] = []
    if columns.transaction is not None:
        flags |= _TRANSACTION
        fixed.append(_NUMBER.pack(columns.transaction))
    for flag, values in ((_TIMES, columns.times), (_DUES, columns.dues), (_EXPIRIES, columns.expiries)):
        if values is not None:
            flags |= flag
            fixed.append(numbers(*values))
    fixed.append(lengths(*(map(len, bodies) if columns.lengths is None else columns.lengths)))
    blobs: list[bytes] = []
    for flag, items in (
        (_TAGS, _encoded_tags(columns.tags)),
        (_KEYS, columns.keys),
        (_HEADERS, _encoded_headers(columns.headers)),
    ):
        if items is not None:
            flags |= flag
            fixed.append(lengths(*[NULL_LENGTH if item is None else len(item) for item in items]))
            blobs += filter(None, items)
    return flags, [*fixed, *blobs, *bodies]


@lru_cache(maxsize=64)
def _packers(count: int) -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    """Return the functions that pack `count` 64-bit numbers, and `count` lengths. A topic's puts have few sizes."""
    return struct.Struct(f"<{count}q").pack, struct.Struct(f"<{count}I").pack


def decode_columns(payload: BytesLike, count: int, flags: int, *, path: str = "", position: int = 0) -> Columns:
    """Return the columns of a payload whose checksum was valid.

    Raises:
        CorruptionError: the lengths do not add up, a text is not UTF-8, or a flag is unknown.
    """
    try:
        return _decode(memoryview(payload), count, flags)
    except (struct.error, UnicodeDecodeError, ValueError) as cause:
        message = f"the batch's columns do not add up: {cause}"
        raise CorruptionError(message, path, position) from cause


class ColumnPlaces(NamedTuple):
    """The byte position of each column in a payload; None for an absent one.

    For `bodies`, `tags`, `keys` and `headers` it is that of the lengths, u32; the tags, keys, headers and bodies
    themselves begin at `values`. `times`, `dues` and `expiries` are i64.
    """

    times: int | None
    dues: int | None
    expiries: int | None
    bodies: int
    tags: int | None
    keys: int | None
    headers: int | None
    values: int


def column_places(size: int, count: int, flags: int) -> ColumnPlaces:
    """Return the positions of the columns in a payload of `size` bytes.

    Raises:
        ValueError: a flag is unknown, or the columns of `count` records do not fit.
    """
    if flags & ~_KNOWN_FLAGS:
        message = f"unknown flags {flags:#x}"
        raise ValueError(message)
    cursor = _NUMBER.size if flags & _TRANSACTION else 0
    places: list[int | None] = []
    for flag, width in ((_TIMES, 8), (_DUES, 8), (_EXPIRIES, 8), (-1, 4), (_TAGS, 4), (_KEYS, 4), (_HEADERS, 4)):
        there = flag < 0 or flags & flag
        places.append(cursor if there else None)
        cursor += width * count if there else 0
    if cursor > size:
        message = f"the columns of {count} records in {size} bytes"
        raise ValueError(message)
    times, dues, expiries, bodies, tags, keys, headers = places
    return ColumnPlaces(times, dues, expiries, bodies or 0, tags, keys, headers, cursor)


def _decode(view: memoryview, count: int, flags: int) -> Columns:
    start = _LENGTH * count
    if not flags & ~_OF_A_RUN and start <= len(view):  # nothing but bodies
        return Columns(_bodies(view, start, struct.unpack_from(f"<{count}I", view)), size=len(view) - start)
    if count == 1:
        return _decode_one(view.tobytes(), flags)
    places = column_places(len(view), count, flags)
    transaction = _NUMBER.unpack_from(view)[0] if flags & _TRANSACTION else None
    times, dues, expiries = (
        None if at is None else list(struct.unpack_from(f"<{count}q", view, at))
        for at in (places.times, places.dues, places.expiries)
    )
    body_lengths, tag_lengths, key_lengths, header_lengths = (
        None if at is None else struct.unpack_from(f"<{count}I", view, at)
        for at in (places.bodies, places.tags, places.keys, places.headers)
    )
    tags, cursor = _cut(view, places.values, tag_lengths)
    keys, cursor = _cut(view, cursor, key_lengths)
    headers, cursor = _cut(view, cursor, header_lengths)
    return Columns(
        _bodies(view, cursor, body_lengths or ()),
        times,
        dues,
        expiries,
        None if tags is None else [None if tag is None else tag.decode() for tag in tags],
        keys,
        None if headers is None else [decode_headers(blob) for blob in headers],
        transaction,
    )


def _decode_one(data: bytes, flags: int) -> Columns:
    """Do as `_decode` for a single record, as a put of one message with more than a body leaves it: it is quicker."""
    fields = _fields_of_one(flags)
    values = iter(fields.unpack_from(data))
    columns, cursor = Columns([]), fields.size
    if flags & _TRANSACTION:
        columns.transaction = next(values)
    if flags & _TIMES:
        columns.times = [next(values)]
    if flags & _DUES:
        columns.dues = [next(values)]
    if flags & _EXPIRIES:
        columns.expiries = [next(values)]
    length = next(values)
    if flags & _TAGS:
        tag, cursor = _value(data, cursor, next(values))
        columns.tags = [None if tag is None else tag.decode()]
    if flags & _KEYS:
        key, cursor = _value(data, cursor, next(values))
        columns.keys = [key]
    if flags & _HEADERS:
        blob, cursor = _value(data, cursor, next(values))
        columns.headers = [decode_headers(blob)]
    if length != len(data) - cursor:
        message = f"bodies of {length} bytes in {len(data) - cursor}"
        raise ValueError(message)
    columns.bodies.append(data[cursor:])
    return columns


@lru_cache(maxsize=256)
def _fields_of_one(flags: int) -> struct.Struct:
    """Return the fixed fields of one record's payload.

    Raises:
        ValueError: a flag is unknown.
    """
    if flags & ~_KNOWN_FLAGS:
        message = f"unknown flags {flags:#x}"
        raise ValueError(message)
    numbers = sum(bool(flags & flag) for flag in (_TIMES, _DUES, _EXPIRIES))
    lengths = 1 + sum(bool(flags & flag) for flag in (_TAGS, _KEYS, _HEADERS))
    return struct.Struct(f"<{'Q' if flags & _TRANSACTION else ''}{numbers}q{lengths}I")


def _value(data: bytes, start: int, length: int) -> tuple[bytes | None, int]:
    if length == NULL_LENGTH:
        return None, start
    end = start + length
    _check_within(end, length, len(data))
    return data[start:end], end


def _check_within(end: int, length: int, size: int) -> None:
    if end > size:
        message = f"a value of {length} bytes reaches past the end"
        raise ValueError(message)


def _bodies(view: memoryview, start: int, lengths: Sequence[int]) -> list[bytes]:
    data = view[start:].tobytes()
    if (total := sum(lengths)) != len(data):
        message = f"bodies of {total} bytes in {len(data)}"
        raise ValueError(message)
    return cut(data, lengths)


def _cut(view: memoryview, start: int, lengths: Sequence[int] | None) -> tuple[list[bytes | None] | None, int]:
    if lengths is None:
        return None, start
    items: list[bytes | None] = []
    for length in lengths:
        if length == NULL_LENGTH:
            items.append(None)
            continue
        end = start + length
        _check_within(end, length, len(view))
        items.append(view[start:end].tobytes())
        start = end
    return items, start


def _headers_size(headers: Mapping[str, str]) -> int:
    size = 0
    for name, value in headers.items():  # a generator for `sum` takes twice as long
        size += len(name) + len(value)
    return size


def _encoded_tags(tags: list[str | None] | None) -> list[bytes | None] | None:
    return None if tags is None else [None if tag is None else tag.encode() for tag in tags]


def _encoded_headers(headers: list[Mapping[str, str]] | None) -> list[bytes | None] | None:
    return None if headers is None else [encode_headers(mapping) for mapping in headers]


def encode_headers(headers: Mapping[str, str]) -> bytes | None:
    """Encode the headers of one record; None if there are none."""
    if not headers:
        return None
    parts = [_HEADER_COUNT.pack(len(headers))]
    for name, value in headers.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        parts += (_HEADER_LENGTHS.pack(len(name_bytes), len(value_bytes)), name_bytes, value_bytes)
    return b"".join(parts)


def decode_headers(blob: bytes | None) -> Mapping[str, str]:
    """Decode the headers of one record.

    Raises:
        ValueError, struct.error: the bytes are not what was written.
    """
    if blob is None:
        return {}
    (count,) = _HEADER_COUNT.unpack_from(blob)
    cursor = _HEADER_COUNT.size
    headers: dict[str, str] = {}
    for _ in range(count):
        name_length, value_length = _HEADER_LENGTHS.unpack_from(blob, cursor)
        cursor += _HEADER_LENGTHS.size
        middle, end = cursor + name_length, cursor + name_length + value_length
        headers[blob[cursor:middle].decode()] = blob[middle:end].decode()
        cursor = end
    if cursor != len(blob):
        message = "a message's headers are longer or shorter than they say"
        raise ValueError(message)
    return headers
