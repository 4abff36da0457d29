"""A channel's state on disk: a checkpoint, and a journal of the operations since.

```
journal     offset size name                       checkpoint  offset size name
            0      8    magic "AIODQJN1"                       0      8    magic "AIODQCP1"
            8      4    version, 1                             8      4    version, 2
            12     8    generation                             12     8    generation
            20     4    crc of the above                       20     8    floor
then blocks 0      4    length of the ops, bytes               28     4    ranges
            4      4    crc of the ops                         32     4    attempts
            8      24*n ops                                    36     4    deferred
                                                               40     8    noted at, wall time
an op       0      1    kind                                   48     16*n ranges: start, stop
            1      1    1: in flight; else 0                   ..     12*n attempts: offset u64, count u32
            2      2    zeros                                  ..     16*n deferred: offset u64, due i64
            4      4    length                                 ..     4    crc of all above
            8      8    offset
            16     8    value (i64)
```

A checkpoint of version 1 has neither deferred messages nor the time it was noted at: its ranges begin at byte 36. Times
are nanoseconds since 1970-01-01 UTC. An odd due time marks a message that may have ended a process; of a checkpoint's
messages with attempts, those without a due time were in flight. Versions that know neither rule read the same times.

A checkpoint of generation *g* holds everything of the journals before *g*; only a journal of the same generation is
applied to it. The generation is also the starting value of the blocks' checksums, so that nothing left of an older
journal is ever taken for a block.

Zeros may follow the last block: space reserved for later blocks, which are written over them.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiodq.errors import CorruptionError, FormatVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aiodq.format.layout import BytesLike

__all__ = [
    "JOURNAL_HEADER",
    "LONGEST_RUN",
    "MOST_REMAINING",
    "ChannelImage",
    "ChannelRecord",
    "Op",
    "OpKind",
    "applied",
    "checkpoint_entries",
    "decode_blocks",
    "decode_checkpoint",
    "decode_journal_header",
    "due_time",
    "encode_block",
    "encode_checkpoint",
    "encode_journal_header",
    "names_newer_checkpoint",
    "replayed",
    "unsettled",
]

_VERSION: Final = 1
_CHECKPOINT_VERSION: Final = 2
MOST_REMAINING: Final = (1 << 32) - 1
"""The largest length of an operation. As the remaining time of a deferral, it means unknown."""

_SET_BACK: Final = 1_000_000_000
"""Nanoseconds between two notes by which the wall clock was set back; fewer are its drift, or rounding."""

LONGEST_RUN: Final = 1 << 16
"""Most messages that one `OpKind.REQUEUE` names; a larger claim is cut to this."""

_JOURNAL_MAGIC: Final = b"AIODQJN1"
_CHECKPOINT_MAGIC: Final = b"AIODQCP1"
JOURNAL_HEADER: Final = struct.Struct("<8sIQI")
_BLOCK: Final = struct.Struct("<II")
_OP: Final = struct.Struct("<BB2xIQq")
_CHECKPOINT_1: Final = struct.Struct("<8sIQQII")
_CHECKPOINT: Final = struct.Struct("<8sIQQIIIq")
_RANGE: Final = struct.Struct("<QQ")
_ATTEMPT: Final = struct.Struct("<QI")
_MOST_ATTEMPTS: Final = 2**31 - 1
"""Most deliveries that an entry may count: half of what a checkpoint has room for, so that more can be counted."""

_DEFERRAL: Final = struct.Struct("<Qq")
_CRC: Final = struct.Struct("<I")
_ROWS: Final = 2000
"""The ranges, attempts or due times in a piece of a checkpoint: a millisecond or two."""

_OFFSETS: Final = (1 << 63) - 1
"""Every offset is below this. Only a hostile file names others; those are ignored."""

_EARLIEST: Final = -(1 << 63)
_LATEST: Final = (1 << 63) - 2
"""Where due times are cut off: both are even, and one more still has room in 64 bits."""


class OpKind(IntEnum):
    """The kinds of operation."""

    ACK = 1
    """`length` messages from `offset` on are settled."""
    FLOOR = 2
    """Everything below `offset` is settled. If that is 0, `value` is the number of a seek that a checkpoint holds."""
    REQUEUE = 3
    """`length` messages from `offset` on, `LONGEST_RUN` at most, are ready and have been delivered `value` times each.

    Written when a message is redelivered, and, if a channel counts deliveries that end with their process, as messages
    are handed out: a run of them is one operation, of which a version without runs takes the first message only.
    """
    DEFER = 4
    """The message at `offset` is due at `value`, `length` milliseconds after this was noted, or slightly less."""
    SEEK = 5
    """Everything below `offset` is settled, and nothing else. `value` is the number of that change, or 0.

    Versions that know no such numbers write 0 and take any.
    """


class Op(NamedTuple):
    """One operation of the journal."""

    kind: OpKind
    offset: int
    length: int = 1
    value: int = 0
    in_hand: bool = False
    """Whether a `OpKind.REQUEUE` was written when the messages were handed out, not when they came back."""

    @property
    def run(self) -> range:
        """The offsets of a `OpKind.REQUEUE`."""
        return range(self.offset, min(self.offset + min(max(self.length, 1), LONGEST_RUN), _OFFSETS))


class Ranges(Protocol):
    """Ranges of offsets: the start and the stop of each."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield them."""
        ...


class ChannelRecord(Protocol):
    """What a checkpoint stores of a channel; see `ChannelImage`."""

    @property
    def floor(self) -> int:
        """As in `ChannelImage`."""
        ...

    @property
    def ranges(self) -> Ranges:
        """As in `ChannelImage`."""
        ...

    @property
    def noted_ns(self) -> int:
        """As in `ChannelImage`."""
        ...

    def attempt_rows(self) -> Iterable[tuple[int, int]]:
        """Yield the offsets and numbers of `attempts`."""
        ...

    def deferral_rows(self) -> Iterable[tuple[int, int]]:
        """Yield the offsets and due times of `deferred`."""
        ...


@dataclass(slots=True)
class ChannelImage:
    """A channel's durable state.

    Attributes:
        floor: everything below this offset is settled.
        ranges: settled ranges above it, (start, stop), in order; those of an image only to be encoded may be any.
        attempts: deliveries so far of messages that were requeued, or whose deliveries are noted, by offset.
        deferred: the due times of deferred messages, wall time, by offset.
        noted_ns: when this was noted, wall time; 0 if unknown.
        in_hand: which of the messages with attempts were in flight at the end; set by `applied`.
        noted: the wall time at which due times were noted since the checkpoint, by offset; likewise.
    """

    floor: int
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    attempts: dict[int, int] = field(default_factory=dict)
    deferred: dict[int, int] = field(default_factory=dict)
    noted_ns: int = 0
    in_hand: set[int] = field(default_factory=set, compare=False)
    noted: dict[int, int] = field(default_factory=dict, compare=False)

    def attempt_rows(self) -> Iterable[tuple[int, int]]:
        """Yield what `attempts` has, as a `ChannelRecord`."""
        return self.attempts.items()

    def deferral_rows(self) -> Iterable[tuple[int, int]]:
        """Yield what `deferred` has, as a `ChannelRecord`."""
        return self.deferred.items()

    @property
    def suspects(self) -> dict[int, bool]:
        """The messages that may have ended a process, and whether they have been deferred since."""
        waited = {offset: True for offset, due in self.deferred.items() if due % 2}
        found = dict.fromkeys(self.in_hand, False) | waited
        return {offset: told for offset, told in found.items() if self.attempts.get(offset)}


def due_time(due: int, *, suspect: bool) -> int:
    """Return the due time, odd if the message may have ended a process and even otherwise; cut off at 64 bits."""
    due = min(max(due, _EARLIEST), _LATEST)
    return due | 1 if suspect else due + due % 2


def replayed(image: ChannelImage, ops: Iterable[Op], end: int = _OFFSETS) -> ChannelImage:
    """Return a checkpoint with the journal's operations applied: sorted, disjoint ranges above the floor.

    Args:
        image: the checkpoint's.
        ops: the operations.
        end: see `applied`.
    """
    found = applied(image, ops, end)
    for offset in found.deferred:
        found.attempts.setdefault(offset, 0)
    floor, joined = found.floor, list[tuple[int, int]]()
    for start, stop in sorted(found.ranges):
        if start <= floor:
            floor = max(floor, stop)
        elif joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    result = replace(found, floor=floor, ranges=joined)
    result.attempts = {offset: n for offset, n in found.attempts.items() if unsettled(result, offset, offset + 1)}
    result.deferred = {offset: due for offset, due in found.deferred.items() if unsettled(result, offset, offset + 1)}
    return result


def applied(image: ChannelImage, ops: Iterable[Op], end: int = _OFFSETS) -> ChannelImage:
    """Return a checkpoint with the journal's operations applied, its ranges unsorted and perhaps overlapping.

    Args:
        image: the checkpoint's.
        ops: the operations.
        end: where the log ends. What is noted of single messages behind it is left out: else a journal of a few
            kilobytes could name messages for gigabytes.
    """
    ranges = list(image.ranges)
    found = replace(
        image,
        ranges=ranges,
        attempts=dict(image.attempts),
        deferred=dict(image.deferred),
        in_hand=image.attempts.keys() - image.deferred.keys(),
        noted={},
    )
    for op in ops:
        _apply(found, ranges, op, image.noted_ns, end)
    for offset, number in found.attempts.items():
        if not 0 <= number <= _MOST_ATTEMPTS:
            found.attempts[offset] = min(max(number, 0), _MOST_ATTEMPTS)
    return found


def _apply(image: ChannelImage, ranges: list[tuple[int, int]], op: Op, checkpoint_ns: int, end: int) -> None:
    match op.kind:
        case OpKind.FLOOR:
            image.floor = max(image.floor, min(op.offset, _OFFSETS))
        case OpKind.ACK:
            stop = min(op.offset + op.length, _OFFSETS)
            if op.offset < stop:
                ranges.append((op.offset, stop))
        case OpKind.REQUEUE:
            run = range(op.offset, min(op.run.stop, end))
            for offset in run:
                image.attempts[offset] = op.value
                image.deferred.pop(offset, None)
            (image.in_hand.update if op.in_hand else image.in_hand.difference_update)(run)
        case OpKind.DEFER:
            image.deferred[op.offset] = op.value
            if op.length < MOST_REMAINING:
                noted = max(op.value - op.length * 1_000_000, _EARLIEST)
                if noted < image.noted_ns - _SET_BACK:
                    _set_back(image, checkpoint_ns, noted)
                image.noted_ns = max(image.noted_ns, noted)
            image.noted[op.offset] = image.noted_ns
        case OpKind.SEEK:
            image.floor = min(op.offset, _OFFSETS)
            ranges.clear()
            image.attempts.clear()
            image.deferred.clear()
            image.in_hand.clear()


def _set_back(image: ChannelImage, checkpoint_ns: int, now: int) -> None:
    """Have no message wait longer than it was deferred for, as the wall clock was set back, to this time."""
    for offset, due in image.deferred.items():
        ahead = image.noted.get(offset, checkpoint_ns) - now
        if ahead > 0:
            image.deferred[offset] = max(due - ahead // 2 * 2, _EARLIEST + due % 2)  # odd stays odd
            image.noted[offset] = now
    image.noted_ns = now


def unsettled(image: ChannelImage, start: int, stop: int) -> int:
    """Return how many of the offsets from `start` to `stop` are unsettled in an image returned by `replayed`."""
    start = max(start, image.floor)
    if stop <= start:
        return 0
    ranges = image.ranges
    first = max(bisect_right(ranges, (start, _OFFSETS)) - 1, 0)
    those = ranges[first : bisect_left(ranges, (stop, 0), first)]
    return stop - start - sum(max(min(b, stop) - max(a, start), 0) for a, b in those)


def encode_journal_header(generation: int) -> bytes:
    """Encode a journal's header."""
    head = JOURNAL_HEADER.pack(_JOURNAL_MAGIC, _VERSION, generation, 0)[: -_CRC.size]
    return head + _CRC.pack(zlib.crc32(head))


def decode_journal_header(data: bytes, path: str = "") -> int:
    """Decode a journal's header and return its generation.

    Raises:
        CorruptionError: the bytes are not a journal's header.
        FormatVersionError: a newer version.
    """
    if len(data) < JOURNAL_HEADER.size:
        raise CorruptionError("the journal's header is cut short", path, 0)
    magic, version, generation, crc = JOURNAL_HEADER.unpack_from(data)
    if magic != _JOURNAL_MAGIC or crc != zlib.crc32(data[: JOURNAL_HEADER.size - _CRC.size]):
        raise CorruptionError("the journal's header is not what was written", path, 0)
    if version != _VERSION:
        raise _newer(version, _VERSION, path)
    return int(generation)


def encode_block(ops: Iterable[Op], generation: int) -> bytes:
    """Encode operations as one block, which counts as a whole or not at all."""
    # A list: blocks of one or two operations are the most frequent, and a generator takes longer to start.
    body = b"".join([_OP.pack(kind, in_hand, count, offset, value) for kind, offset, count, value, in_hand in ops])
    return _BLOCK.pack(len(body), zlib.crc32(body, generation & 0xFFFFFFFF)) + body


def decode_blocks(data: bytes, generation: int, path: str = "", at: int = JOURNAL_HEADER.size) -> tuple[list[Op], int]:
    """Decode the whole blocks from a byte on; return the operations, and the byte where the blocks end.

    Raises:
        FormatVersionError: a valid block holds an operation that this version does not know.
    """
    ops: list[Op] = []
    while at + _BLOCK.size <= len(data):
        length, crc = _BLOCK.unpack_from(data, at)
        body = data[at + _BLOCK.size : at + _BLOCK.size + length]
        if not length or length % _OP.size or len(body) < length or crc != zlib.crc32(body, generation & 0xFFFFFFFF):
            break
        for kind, in_hand, count, offset, value in _OP.iter_unpack(body):
            ops.append(Op(_kind(kind, path, at), offset, count, value, in_hand=in_hand == 1))
        at += _BLOCK.size + length
    return ops, at


def encode_checkpoint(record: ChannelRecord, generation: int, pause: Callable[[], object] = lambda: None) -> bytearray:
    """Encode a checkpoint, in pieces of a millisecond or two; a thread may let others run in each `pause` between."""
    data, counts = bytearray(_CHECKPOINT.size), list[int]()
    for row, rows in (_RANGE, record.ranges), (_ATTEMPT, record.attempt_rows()), (_DEFERRAL, record.deferral_rows()):
        before, left = len(data), iter(rows)
        while piece := list(islice(left, _ROWS)):
            data += struct.pack("<" + row.format[1:] * len(piece), *chain.from_iterable(piece))
            if len(piece) == _ROWS:
                pause()
        counts.append((len(data) - before) // row.size)
    head = (_CHECKPOINT_MAGIC, _CHECKPOINT_VERSION, generation, record.floor, *counts, record.noted_ns)
    _CHECKPOINT.pack_into(data, 0, *head)
    data += _CRC.pack(zlib.crc32(data))
    return data


def checkpoint_entries(data: BytesLike) -> int:
    """Return how many ranges, attempts and due times an encoded checkpoint has."""
    *_, ranges, attempts, deferred, _ = _CHECKPOINT.unpack_from(data)
    return int(ranges + attempts + deferred)


def decode_checkpoint(data: bytes, path: str = "") -> tuple[ChannelImage, int]:
    """Decode a checkpoint and return its content and generation.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
    """
    if len(data) < _CHECKPOINT_1.size + _CRC.size or data[: len(_CHECKPOINT_MAGIC)] != _CHECKPOINT_MAGIC:
        raise CorruptionError("the file does not begin like a checkpoint", path, 0)
    body = data[: -_CRC.size]
    if _CRC.unpack_from(data, len(body))[0] != zlib.crc32(body):
        raise CorruptionError("the checkpoint's checksum is wrong", path, 0)
    _, version, generation, floor, ranges, attempts = _CHECKPOINT_1.unpack_from(data)
    if version not in {_VERSION, _CHECKPOINT_VERSION}:
        raise _newer(version, _CHECKPOINT_VERSION, path)
    at, deferred, noted_ns = _CHECKPOINT_1.size, 0, 0
    if version == _CHECKPOINT_VERSION:
        if len(body) < _CHECKPOINT.size:
            raise CorruptionError("the checkpoint is cut short", path, len(body))
        *_, deferred, noted_ns = _CHECKPOINT.unpack_from(data)
        at = _CHECKPOINT.size
    second = at + ranges * _RANGE.size
    third = second + attempts * _ATTEMPT.size
    if third + deferred * _DEFERRAL.size != len(body):
        raise CorruptionError("the checkpoint's counts do not fit its size", path, 28)
    image = ChannelImage(
        floor,
        list(_RANGE.iter_unpack(body[at:second])),
        dict(_ATTEMPT.iter_unpack(body[second:third])),
        dict(_DEFERRAL.iter_unpack(body[third:])),
        noted_ns,
    )
    edges = [edge for each in image.ranges for edge in each]
    if any(a >= b for a, b in pairwise(edges)) or max([floor, *edges[-1:]]) > _OFFSETS:
        raise CorruptionError("the checkpoint's ranges are not in order", path, 20)
    return image, generation


def names_newer_checkpoint(data: bytes) -> bool:
    """Return whether `data` begins like a checkpoint of an unknown version, whatever follows."""
    end = len(_CHECKPOINT_MAGIC) + 4
    known = {_VERSION, _CHECKPOINT_VERSION}
    return (
        data.startswith(_CHECKPOINT_MAGIC)
        and len(data) >= end
        and int.from_bytes(data[len(_CHECKPOINT_MAGIC) : end], "little") not in known
    )


def _newer(version: int, known: int, path: str) -> FormatVersionError:
    return FormatVersionError(f"state format version {version}; this aiodq reads {known}: upgrade", path, 8)


def _kind(number: int, path: str, position: int) -> OpKind:
    try:
        return OpKind(number)
    except ValueError:
        raise FormatVersionError(f"operation {number} is not known to this aiodq: upgrade", path, position) from None
