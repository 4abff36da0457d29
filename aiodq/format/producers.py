"""Control frames that say which producer has put what, by which a put that comes again is known.

Both stand among a segment's frames (`aiodq.format`); who does not know them steps over them. PUT_FRAME stands before
the frames of one put, in the same write:

PUT_FRAME: 56 bytes

    offset  size  name      meaning
         0    28  prefix    FRAME_PREFIX, of kind KIND_PUT; `relative`, `lag` and `time` as those of the put
        28     8  producer  a number that a process chose at random
        36     8  sequence  the put's, among those of its producer into this topic: they rise by one
        44     4  count     messages of the put
        48     4  follows   `crc` of the frame behind this one, the put's first
        52     4  length    TRAILER

A power cut may leave it without its put, and another put may then get its offsets. So it counts only if the frame
behind it has that very checksum, and the put is whole.

PRODUCERS_FRAME: 40 bytes, its TRAILER included, and an entry for each producer before that: what was known of them
before the record of its offset. A segment begins with one, so that older segments can go; one that an owner has sealed
for the next one to find ends with one, and says all by that

    offset  size  name      meaning
         0    28  prefix    FRAME_PREFIX, of kind KIND_PRODUCERS
        28     4  count     entries
        32     4  zero      reserved

PRODUCER_ENTRY: 40 bytes

    offset  size  name      meaning
         0     8  producer  as above
         8     8  sequence  of its last put
        16     8  first     that one's first offset
        24     4  count     that one's messages
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
"""The length of each frame of kind KIND_PUT."""


class Origin(NamedTuple):
    """Whose a put is, and the how manieth of its own into this topic; or a transaction, see `aiodq.wire`."""

    producer: int
    sequence: int


class PutOf(NamedTuple):
    """A put, and whose it is.

    Attributes:
        producer: a number that a process chose at random.
        sequence: the put's, among those of its producer.
        first: the offset of its first message.
        messages: how many.
        follows: the checksum of the frame that must stand behind this one.
    """

    producer: int
    sequence: int
    first: int
    messages: int
    follows: int


class Producer(NamedTuple):
    """What is known of a producer: its last put, and when that was."""

    producer: int
    sequence: int
    first: int
    messages: int
    time_ns: int


def encode_put(put: PutOf, context: FrameContext, watermark: int, time_ns: int) -> bytes:
    """Return the frame that stands before a put's own."""
    body = _PUT.pack(put.producer, put.sequence, put.messages, put.follows)
    return encode_control(KIND_PUT, body, context, put.first, watermark=watermark, time_ns=time_ns)


def decode_put(view: memoryview, at: int, frame: Frame, context: FrameContext, *, path: str = "") -> PutOf:
    """Return what the frame at `view[at]` says, which is of kind KIND_PUT.

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
    """Return the frame with which a segment begins where producers are known, or ends, which is before `first` then."""
    entries = [_ENTRY.pack(*each[:4], 0, each.time_ns) for each in known]
    body = b"".join((_COUNT.pack(len(known), 0), *entries))
    offset = context.base if first is None else first
    return encode_control(KIND_PRODUCERS, body, context, offset, watermark=watermark, time_ns=time_ns)


def decode_producers(
    view: memoryview, at: int, frame: Frame, context: FrameContext, *, path: str = ""
) -> list[Producer]:
    """Return what the frame at `view[at]` says, which is of kind KIND_PRODUCERS.

    Raises:
        CorruptionError: any of its bytes is not what was written.
    """
    check_frame(view, at, frame, context, path=path)
    start, end = at + _BODY + _COUNT.size, at + frame.length - TRAILER.size
    # Against the frame's length first: nothing is allocated by a number that was read.
    if start > end or _COUNT.unpack_from(view, at + _BODY)[0] * _ENTRY.size != end - start:
        raise CorruptionError(f"producers that do not fit into {frame.length} bytes", path, frame.position)
    rows = _ENTRY.iter_unpack(view[start:end])
    return [Producer(producer, sequence, first, count, time) for producer, sequence, first, count, _, time in rows]
