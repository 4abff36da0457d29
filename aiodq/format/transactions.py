"""The transactions of a store that its topics do not durably hold yet: `#transactions`, beside the topics.

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

The blocks' numbers follow each other, beginning with the header's. Their checksums begin with the salt, which is
another each time the header is written: what is left from before is no block any more, nor is what somebody put into a
message. Zeros may follow the last block: space that is there for those to come.

An ack group of the channel `origin#ephemeral` settles nothing. It says whose transaction this is, so that one which
comes again is known: its topic is one of those of the block's other groups, its one range begins at the producer's
number, and the range's length is the transaction's sequence (`aiodq.wire`, TXN). Ephemeral channels have nothing in
this file otherwise, and whoever does not know of it finds no such channel to settle anything in.

A transaction is committed once its block is durable. Its acks are then true, whatever the channel's journal says; its
puts are appended to the topics in frames with the flag TRANSACTION and the block's number, all that belong to a topic
as one run. Who opens a store after a crash looks for that number in the topic, from the offset on that the block names,
and appends what is not there. The header's first number is raised, which forgets the blocks, when the topics' logs and
journals hold all of it durably.
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
"""The channel that stands for whose transaction it is."""

FIRST_BLOCK: Final = _HEADER.size
"""Where the first block begins."""


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
        topic: its name.
        since: the topic can hold the messages from this offset on, not below.
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
        origin: whose it is, of one that may come again. One without acks and puts has none in the file.
    """

    acks: list[Acks] = field(default_factory=list)
    puts: list[Puts] = field(default_factory=list)
    origin: Origin | None = None


class Block(NamedTuple):
    """A block that checks.

    Attributes:
        number: the transaction's.
        durable: every transaction of a lower number than this was durable when it was written.
        end: where the next begins.
        commit: what it says.
    """

    number: int
    durable: int
    end: int
    commit: Commit


class Header(NamedTuple):
    """What a file of transactions begins with: the first block's number, and where the blocks' checksums start."""

    first: int
    salt: int


def encode_header(header: Header) -> bytes:
    """Return the file's first bytes."""
    head = _HEADER.pack(_MAGIC, _VERSION, header.first, header.salt, 0)[:_CHECKED]
    return (head + _CRC.pack(zlib.crc32(head))).ljust(FIRST_BLOCK, b"\0")


def decode_header(data: bytes, path: str = "") -> Header:
    """Return what the file begins with.

    Raises:
        CorruptionError: it is none.
        FormatVersionError: of a newer version.
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
    """Return a transaction as a block."""
    settled = commit.acks if commit.origin is None else [*commit.acks, *_origin_group(commit, commit.origin)]
    parts = [_GROUPS.pack(len(settled), len(commit.puts))]
    for acks in settled:
        topic, channel = acks.topic.encode(), acks.channel.encode()
        parts += (_ACKS.pack(len(topic), len(channel), len(acks.ranges)), topic, channel)
        parts += [_RANGE.pack(start, stop - start) for start, stop in acks.ranges]
    for puts in commit.puts:
        topic = puts.topic.encode()
        frames = b"".join(encode_frames(puts.columns, _context(), first=0, watermark=0, time_ns=0, atomic=True))
        parts += (_PUTS.pack(len(topic), 0, len(frames), puts.since), topic, frames)
    content = b"".join(parts)
    length = padded(_BLOCK.size + len(content))
    covered = struct.pack("<QQQ", number, durable, len(content)) + content.ljust(length - _BLOCK.size, b"\0")
    return struct.pack("<II", length, zlib.crc32(covered, salt)) + covered


def _origin_group(commit: Commit, origin: Origin) -> Iterator[Acks]:
    """Yield the group that says whose a transaction is."""
    # A topic that is there anyhow: who does not know such a group looks for the channel in it, and for nothing else.
    for topic in [*(acks.topic for acks in commit.acks), *(puts.topic for puts in commit.puts)][:1]:
        yield Acks(topic, _ORIGIN, [(origin.producer, origin.producer + origin.sequence)])


def decode_commit(data: bytes, at: int, salt: int, path: str = "") -> Block | None:
    """Return the block that begins at byte `at`, or None where none does.

    Raises:
        CorruptionError: its checksum is right and its content is not.
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


def next_commit(data: bytes, at: int, salt: int, number: int, path: str = "") -> tuple[int, Block] | None:
    """Return the first block that begins at byte `at` or behind, and where, or None.

    Only blocks are found whose number is `number` or one of the next 4,000: looking for those eight bytes is what makes
    a hunt through leftovers cheap, as long as numbers are large enough to be rare.
    """
    for position in chain((at,), _positions(data, at, number)):
        with suppress(CorruptionError):
            block = decode_commit(data, position, salt, path)
            if block is not None and number <= block.number < number + (_HUNTED << 8):
                return position, block
    return None


def _positions(data: bytes, at: int, number: int) -> Iterator[int]:
    """Yield where blocks may begin, in order, by the upper seven bytes of their numbers."""
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
        raise ValueError("nothing but whose it is")
    return commit


def _text(view: memoryview, at: int, size: int) -> str:
    if size > len(view) - at:
        raise ValueError(f"a name of {size} bytes does not fit")
    return check_name(view[at : at + size].tobytes().decode())


def _records(view: memoryview) -> Columns:
    """Return the records of frames that follow each other."""
    context, at = _context(), 0
    parts: list[Columns] = []
    while at < len(view):
        frame = read_prefix(view, at, context, position=at, limit=len(view))
        parts.append(decode_frame(view, at, frame, context).columns)
        at = frame.end
    if not any(part.bodies for part in parts):
        raise ValueError("puts without messages")
    return Columns.joined(parts)
