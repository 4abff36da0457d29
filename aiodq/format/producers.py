"""Control frames that name the producers of puts, by which a repeated put is recognised.

Both kinds lie among a segment's frames (`aiodq.format`); readers that do not know them skip them. PUT_FRAME precedes
the frames of one put, in the same write:

PUT_FRAME: 56 bytes

    offset  size  name      meaning
         0    28  prefix    FRAME_PREFIX, of kind KIND_PUT; `relative`, `lag` and `time` are those of the put
        28     8  producer  a number that a process chose at random
        36     8  sequence  of the put, among those of its producer into this topic: they rise by one
        44     4  count     messages of the put
        48     4  follows   `crc` of the frame after this one, the put's first
        52     4  length    TRAILER

A power cut may leave it without its put, and another put may then get its offsets. So it counts only if the next frame
has that very checksum, and the put is whole.

PRODUCERS_FRAME: 40 bytes, its TRAILER included, and an entry for each known put before that: the producer table as it
was before the record at its offset. A segment begins with one, so that older segments can be deleted; a segment that
was sealed to save the next owner a scan ends with one, which is complete

    offset  size  name      meaning
         0    28  prefix    FRAME_PREFIX, of kind KIND_PRODUCERS
        28     4  count     entries
        32     4  zero      reserved

PRODUCER_ENTRY: 40 bytes

    offset  size  name      meaning
         0     8  producer  as above
         8     8  sequence  of the put, one of the producer's last
        16     8  first     first offset of that put
        24     4  count     messages of that put
        28     4  zero      reserved
        32     8  time      i64, when it was put
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError
from aiodq.format.frame import check_frame, encode_control
from aiodq.format.layout import FRAME_PREFIX, TRAILER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.frame import Frame, FrameContext

__all__ = [
    "KIND_PRODUCERS",
    "KIND_PUT",
    "PUT_FRAME_BYTES",
    "Origin",
    "Producer",
    "PutOf",
    "decode_producers",
    "decode_put",
    "encode_producers",
    "encode_put",
]

KIND_PUT: Final = 0xE0
KIND_PRODUCERS: Final = 0xE1

_PUT: Final = struct.Struct("<QQII")
_COUNT: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<QQQIIq")
_BODY: Final = FRAME_PREFIX.size
PUT_FRAME_BYTES: Final = _BODY + _PUT.size + TRAILER.size
"""The length of every frame of kind KIND_PUT."""


class Origin(NamedTuple):
    """The producer of a put and its sequence number in this topic; or those of a transaction, see `aiodq.wire`."""

    producer: int
    sequence: int


class PutOf(NamedTuple):
    """A put and its origin.

    Attributes:
        producer: a number that a process chose at random.
        sequence: the number of the put among those of its producer.
        first: the offset of its first message.
        messages: the number of messages.
        follows: the checksum of the frame that must follow this one.
    """

    producer: int
    sequence: int
    first: int
    messages: int
    follows: int


class Producer(NamedTuple):
    """A row of the producer table: a put of a producer, and its time."""

    producer: int
    sequence: int
    first: int
    messages: int
    time_ns: int


def encode_put(put: PutOf, context: FrameContext, watermark: int, time_ns: int) -> bytes:
    """Return the control frame that precedes a put's frames."""
    body = _PUT.pack(put.producer, put.sequence, put.messages, put.follows)
    return encode_control(KIND_PUT, body, context, put.first, watermark=watermark, time_ns=time_ns)


def decode_put(view: memoryview, at: int, frame: Frame, context: FrameContext, *, path: str = "") -> PutOf:
    """Decode the frame of kind KIND_PUT at `view[at]`.

    Raises:
        CorruptionError: any of its bytes is not what was written.
    """
    check_frame(view, at, frame, context, path=path)
    if frame.length != PUT_FRAME_BYTES:
        raise CorruptionError(f"a put of a producer in {frame.length} bytes", path, frame.position)
    producer, sequence, count, follows = _PUT.unpack_from(view, at + _BODY)
    return PutOf(producer, sequence, frame.first, count, follows)


def encode_producers(
    known: Sequence[Producer], context: FrameContext, watermark: int, time_ns: int, *, first: int | None = None
) -> bytes:
    """Return the frame with the producer table for the start of a segment, or for its end, if `first` is given."""
    entries = [_ENTRY.pack(*each[:4], 0, each.time_ns) for each in known]
    body = b"".join((_COUNT.pack(len(known), 0), *entries))
    offset = context.base if first is None else first
    return encode_control(KIND_PRODUCERS, body, context, offset, watermark=watermark, time_ns=time_ns)


def decode_producers(
    view: memoryview, at: int, frame: Frame, context: FrameContext, *, path: str = ""
) -> list[Producer]:
    """Decode the frame of kind KIND_PRODUCERS at `view[at]`.

    Raises:
        CorruptionError: any of its bytes is not what was written.
    """
    check_frame(view, at, frame, context, path=path)
    start, end = at + _BODY + _COUNT.size, at + frame.length - TRAILER.size
    # Checked against the frame's length first: nothing is allocated from an unchecked number.
    if start > end or _COUNT.unpack_from(view, at + _BODY)[0] * _ENTRY.size != end - start:
        raise CorruptionError(f"producers that do not fit into {frame.length} bytes", path, frame.position)
    rows = _ENTRY.iter_unpack(view[start:end])
    return [Producer(producer, sequence, first, count, time) for producer, sequence, first, count, _, time in rows]
