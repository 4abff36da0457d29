"""The transaction log's format: transactions that the topics do not hold durably yet, in `#transactions` beside them.

```
file    offset size name                    block   offset size name
        0      8    magic "AIODQTX1"                0      4    length of the block, a multiple of 8
        8      4    version, 1                      4      4    crc of all that follows
        12     8    first number                    8      8    number of the transaction
        20     4    salt                            16     8    number below which all were durable
        24     4    crc of the above                24     8    length of the content
        28     4    zeros
        32     ..   blocks                          32     ..   content, then zeros
content                                     an ack group
        0      4    ack groups                      0      2    bytes of the topic's name
        4      4    put groups                      2      2    bytes of the channel's name
        8      ..   the groups                      4      4    ranges
                                                    8      ..   the names, then start u64 and length u64 of each
                                            a put group
                                                    0      2    bytes of the topic's name
                                                    2      2    zeros
                                                    4      4    bytes of frames
                                                    8      8    offset from which on the topic may hold them already
                                                    16     ..   the name, then frames of base and salt 0
```

The blocks' numbers are consecutive, beginning with the header's. Their checksums begin with the salt, which changes
each time the header is written: blocks left from before are no longer valid, nor is a block that somebody put into a
message. Zeros may follow the last block: space reserved for later blocks.

An ack group of the channel `origin#ephemeral` settles nothing. It names the origin of the transaction, so that a
repeated one is recognised: its topic is one of those of the block's other groups, its one range begins at the
producer's number, and the range's length is the transaction's sequence (`aiodq.wire`, TXN). Ephemeral channels have no
other entries in this file, and a version that does not know the group finds no such channel to settle anything in.

A transaction is committed once its block is durable. From then on its acks count, whatever the channel's journal says;
its puts are appended to the topics in frames with the flag TRANSACTION and the block's number, all that belong to a
topic as one run. An owner that opens the store after a crash looks for that number in the topic, from the offset in the
block on, and appends what is missing. Once the topics' logs and journals hold all of it durably, the header's first
number is raised, which forgets the blocks.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError, FormatVersionError, InvalidNameError
from aiodq.format.checksum import CRC32, checksum_named
from aiodq.format.columns import Columns
from aiodq.format.frame import FrameContext, decode_frame, encode_frames, read_prefix
from aiodq.format.layout import ALIGNMENT, padded
from aiodq.format.producers import Origin
from aiodq.names import EPHEMERAL, check_name

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FIRST_BLOCK",
    "Acks",
    "Block",
    "Commit",
    "Header",
    "Origin",
    "Puts",
    "commit_parts",
    "decode_commit",
    "decode_header",
    "encode_commit",
    "encode_header",
    "next_commit",
]

_MAGIC: Final = b"AIODQTX1"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIQII4x")
_CRC: Final = struct.Struct("<I")
_CHECKED: Final = 24
_BLOCK: Final = struct.Struct("<IIQQQ")
_COVERED: Final = 8
_NUMBER_AT: Final = 8
_HUNTED: Final = 16
_NUMBERS: Final = 1 << 63
"""Every number is below this."""
_GROUPS: Final = struct.Struct("<II")
_ACKS: Final = struct.Struct("<HHI")
_RANGE: Final = struct.Struct("<QQ")
_PUTS: Final = struct.Struct("<HHIQ")
_ORIGIN: Final = f"origin{EPHEMERAL}"
"""The channel whose ack group names a transaction's origin."""

_LONG: Final = 1 << 14
"""Bytes of a block from which on it takes longer to join its parts than to write several."""

FIRST_BLOCK: Final = _HEADER.size
"""The position of the first block."""


@dataclass(slots=True)
class Acks:
    """What a transaction settles in one channel: ranges of offsets, (start, stop), in order."""

    topic: str
    channel: str
    ranges: list[tuple[int, int]]


@dataclass(slots=True)
class Puts:
    """What a transaction puts into one topic.

    Attributes:
        topic: the topic's name.
        since: the topic may hold the messages from this offset on, not below.
        columns: the messages.
    """

    topic: str
    since: int
    columns: Columns


@dataclass(slots=True)
class Commit:
    """A transaction.

    Attributes:
        acks: what it settles.
        puts: what it puts.
        origin: its producer and sequence, if it may be repeated. Without acks and puts, it is not stored.
    """

    acks: list[Acks] = field(default_factory=list)
    puts: list[Puts] = field(default_factory=list)
    origin: Origin | None = None


class Block(NamedTuple):
    """A valid block.

    Attributes:
        number: the transaction's.
        durable: every transaction below this number was durable when the block was written.
        end: where the next block begins.
        commit: the transaction.
    """

    number: int
    durable: int
    end: int
    commit: Commit


class Header(NamedTuple):
    """The header of a transaction log: the first block's number, and the salt of the blocks' checksums."""

    first: int
    salt: int


def encode_header(header: Header) -> bytes:
    """Encode the file's header."""
    head = _HEADER.pack(_MAGIC, _VERSION, header.first, header.salt, 0)[:_CHECKED]
    return (head + _CRC.pack(zlib.crc32(head))).ljust(FIRST_BLOCK, b"\0")


def decode_header(data: bytes, path: str = "") -> Header:
    """Decode the file's header.

    Raises:
        CorruptionError: the bytes are not a header.
        FormatVersionError: it has a newer version.
    """
    if len(data) < FIRST_BLOCK:
        raise CorruptionError("the header of the transactions is cut short", path, 0)
    magic, version, first, salt, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc != zlib.crc32(data[:_CHECKED]):
        raise CorruptionError("the header of the transactions is not what was written", path, 0)
    if version > _VERSION:
        raise FormatVersionError(f"the transactions are of version {version}; this aiodq reads {_VERSION}", path, 0)
    if first >= _NUMBERS:
        raise CorruptionError(f"no transaction has the number {first}", path, 0)
    return Header(first, salt)


def encode_commit(commit: Commit, number: int, durable: int, salt: int) -> bytes:
    """Encode a transaction as a block."""
    return b"".join(commit_parts(commit, number, durable, salt))


def commit_parts(commit: Commit, number: int, durable: int, salt: int) -> list[bytes]:
    """Encode a transaction as a block, in parts to be written one after the other: very long ones are not copied."""
    settled = commit.acks if commit.origin is None else [*commit.acks, *_origin_group(commit, commit.origin)]
    head = [_GROUPS.pack(len(settled), len(commit.puts))]
    for acks in settled:
        topic, channel = acks.topic.encode(), acks.channel.encode()
        head += (_ACKS.pack(len(topic), len(channel), len(acks.ranges)), topic, channel)
        head += [_RANGE.pack(start, stop - start) for start, stop in acks.ranges]
    parts = [b"".join(head)]
    for puts in commit.puts:
        topic = puts.topic.encode()
        frames = list(encode_frames(puts.columns, _context(), first=0, watermark=0, time_ns=0, atomic=True))
        parts += (_PUTS.pack(len(topic), 0, sum(map(len, frames)), puts.since) + topic, *frames)
    size = sum(map(len, parts))
    length = padded(_BLOCK.size + size)
    parts[0] = struct.pack("<QQQ", number, durable, size) + parts[0]
    parts.append(bytes(length - _BLOCK.size - size))
    crc = salt
    for part in parts:
        crc = zlib.crc32(part, crc)
    parts.insert(0, struct.pack("<II", length, crc))
    return parts if length >= _LONG else [b"".join(parts)]


def _origin_group(commit: Commit, origin: Origin) -> Iterator[Acks]:
    """Yield the ack group that names a transaction's origin, if it has one."""
    # A topic that the transaction concerns anyway: an older version looks there for a channel, and finds none.
    for topic in [*(acks.topic for acks in commit.acks), *(puts.topic for puts in commit.puts)][:1]:
        yield Acks(topic, _ORIGIN, [(origin.producer, origin.producer + origin.sequence)])


def decode_commit(data: bytes, at: int, salt: int, path: str = "") -> Block | None:
    """Decode the block that begins at byte `at`; return None if there is none.

    Raises:
        CorruptionError: its checksum is valid and its content is not.
    """
    if at + _BLOCK.size > len(data):
        return None
    length, crc, number, durable, size = _BLOCK.unpack_from(data, at)
    end = at + length
    if length % ALIGNMENT or length < _BLOCK.size or end > len(data) or padded(_BLOCK.size + size) != length:
        return None
    if zlib.crc32(memoryview(data)[at + _COVERED : end], salt) != crc:
        return None
    start = at + _BLOCK.size
    try:
        commit = _decode(memoryview(data)[start : start + size])
    except (struct.error, UnicodeDecodeError, ValueError, CorruptionError, InvalidNameError) as cause:
        raise CorruptionError(f"a transaction does not add up: {cause}", path, at) from cause
    return Block(number, durable, end, commit)


def next_commit(data: bytes, at: int, salt: int, number: int, path: str) -> tuple[int, Block] | None:
    """Return the position of the first block at or after byte `at`, and the block; or None.

    Only blocks whose number is `number` or one of the next 4,000 are found: searching for those eight bytes makes a
    scan of leftovers cheap, as long as numbers are large enough to be rare.
    """
    for position in chain((at,), _positions(data, at, number)):
        with suppress(CorruptionError):
            block = decode_commit(data, position, salt, path)
            if block is not None and number <= block.number < number + (_HUNTED << 8):
                return position, block
    return None


def _positions(data: bytes, at: int, number: int) -> Iterator[int]:
    """Yield the positions at which blocks may begin, in order, by the upper seven bytes of their numbers."""
    found: set[int] = set()
    for upper in range(number >> 8, (number >> 8) + _HUNTED):
        pattern = upper.to_bytes(7, "little")
        place = data.find(pattern, at + _NUMBER_AT + 1)
        while place >= 0:
            found.add(place - _NUMBER_AT - 1)
            place = data.find(pattern, place + 1)
    yield from sorted(position for position in found if position % ALIGNMENT == 0)


def _context() -> FrameContext:
    return FrameContext(0, checksum_named(CRC32), 0)


def _decode(view: memoryview) -> Commit:
    ack_groups, put_groups = _GROUPS.unpack_from(view)
    commit, at = Commit(), _GROUPS.size
    for _ in range(ack_groups):
        topic, channel, ranges = _ACKS.unpack_from(view, at)
        at += _ACKS.size
        names, at = (_text(view, at, topic), _text(view, at + topic, channel)), at + topic + channel
        if ranges * _RANGE.size > len(view) - at:
            raise ValueError(f"{ranges} ranges do not fit")
        pairs = [_RANGE.unpack_from(view, at + _RANGE.size * number) for number in range(ranges)]
        at += _RANGE.size * ranges
        if names[1] == _ORIGIN:
            (commit.origin,) = map(Origin._make, pairs)
        else:
            commit.acks.append(Acks(*names, [(start, start + length) for start, length in pairs]))
    for _ in range(put_groups):
        topic, _zero, size, since = _PUTS.unpack_from(view, at)
        at += _PUTS.size
        name, at = _text(view, at, topic), at + topic
        if size > len(view) - at:
            raise ValueError(f"frames of {size} bytes do not fit")
        commit.puts.append(Puts(name, since, _records(view[at : at + size])))
        at += size
    if at != len(view):
        raise ValueError(f"{len(view) - at} bytes too many")
    if commit.origin is not None and not (commit.acks or commit.puts):
        raise ValueError("nothing but the origin")
    return commit


def _text(view: memoryview, at: int, size: int) -> str:
    if size > len(view) - at:
        raise ValueError(f"a name of {size} bytes does not fit")
    return check_name(view[at : at + size].tobytes().decode())


def _records(view: memoryview) -> Columns:
    """Decode the records of consecutive frames."""
    context, at = _context(), 0
    parts: list[Columns] = []
    while at < len(view):
        frame = read_prefix(view, at, context, position=at, limit=len(view))
        parts.append(decode_frame(view, at, frame, context).columns)
        at = frame.end
    if not any(part.bodies for part in parts):
        raise ValueError("puts without messages")
    return Columns.joined(parts)
