"""Messages as frames in a packet: the same as in a segment, but with a base and a salt of 0."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError, FormatVersionError, ProtocolError
from aiodq.format.checksum import CRC32, checksum_named
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.frame import (
    Batch,
    FrameContext,
    decode_compact,
    decode_frame,
    encode_compact,
    encode_run,
    read_prefix,
)
from aiodq.format.labelled import encode_labelled, labelled_frames
from aiodq.format.layout import CONTROL_KINDS

if TYPE_CHECKING:
    from aiodq.format.columns import Columns

__all__ = ["decode_lone", "decode_messages", "encode_messages"]

_CONTEXT: Final = FrameContext(0, checksum_named(CRC32), 0)


def encode_messages(columns: Columns, time_ns: int, codec: int = CODEC_NONE) -> bytes:
    """Encode messages as frames.

    Args:
        columns: at least one message.
        time_ns: their put time.
        codec: see `aiodq.format.codecs`.
    """
    if len(columns.bodies) == 1 and codec == CODEC_NONE and columns.times is None and columns.transaction is None:
        if columns.plain:
            return encode_compact(columns.bodies[0], _CONTEXT, 0, 0, time_ns)
        return encode_labelled(columns, _CONTEXT, 0, 0, time_ns)[0]
    run = encode_run(columns, _CONTEXT, first=0, watermark=0, time_ns=time_ns, codec=codec, atomic=True)
    return b"".join(chain.from_iterable(frame.parts for frame in run))


def decode_lone(frames: bytes, count: int) -> bytes | None:
    """Return the body of the message in a packet's frames if it is a single one with only a body; otherwise None."""
    return decode_compact(frames, _CONTEXT) if count == 1 else None


def decode_messages(frames: bytes, first: int, count: int | None = None) -> list[Batch]:
    """Decode the messages in a packet's frames, which must be consecutive.

    Args:
        frames: all frames of a packet.
        first: the offset of the first message.
        count: the number of messages that the packet states, if it does.

    Raises:
        ProtocolError: they are invalid, not consecutive, or not that many.
        MissingExtraError: they are compressed and the package for it is not installed.
    """
    batches: list[Batch] = []
    view, end = memoryview(frames), 0
    # Most packets with labelled messages hold a lone one, which is decoded sooner like this.
    labelled, at = labelled_frames(frames, 0, len(frames), _CONTEXT, 0)
    if labelled is not None and not labelled.first:
        batches.append(Batch(first, labelled.time_ns, labelled.columns))
        end = labelled.stop
    else:
        at = 0
    try:
        while at < len(view):
            frame = read_prefix(view, at, _CONTEXT, position=at, limit=len(view))
            if frame.kind in CONTROL_KINDS or frame.first != end:
                raise ProtocolError(f"the frame at byte {at} holds no messages that follow those before")
            batch = decode_frame(view, at, frame, _CONTEXT)
            batches.append(Batch(first + end, batch.time_ns, batch.columns))
            end, at = frame.stop, frame.end
    except (CorruptionError, FormatVersionError) as cause:
        raise ProtocolError(f"messages in a packet are not what was sent: {cause.message}") from cause
    if count not in {None, end} or not end:
        raise ProtocolError(f"a packet says that it holds {count} messages, and it holds {end}")
    return batches
