"""Decoding many frames at once, with a fast path for consecutive compact records."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.errors import CorruptionError
from aiodq.format.checksum import crc32, crc32_of_few
from aiodq.format.columns import CONTINUED, CONTINUES, Columns
from aiodq.format.footer import IndexEntry
from aiodq.format.frame import Batch, check_frame, decode_frame, holds, read_prefix
from aiodq.format.labelled import labelled_frames
from aiodq.format.layout import (
    ALIGNMENT,
    BATCH_COUNTS,
    BATCH_MIN,
    COMPACT_MIN,
    CONTROL_KINDS,
    FRAME_PREFIX,
    FRAME_START,
    KIND_BATCH,
    KIND_COMPACT,
    TRAILER,
    padded,
)

if TYPE_CHECKING:
    from aiodq.format.footer import SegmentIndex
    from aiodq.format.frame import Frame, FrameContext

__all__ = ["IndexSingles", "compact_frames", "decode_frames", "index_apart", "index_singles", "whole_frame"]

_START: Final = FRAME_START.size
_PREFIX: Final = FRAME_PREFIX.size
_TRAILER: Final = TRAILER.size
_COMPACT: Final = struct.Struct("<IIII4xq")
"""Like `FRAME_PREFIX`, but kind, detail and flags are one number, and the lag is skipped."""

_NEXT: Final = struct.Struct("<IIIII4xq")
"""A trailer, and `_COMPACT` of the next frame."""

_HEAD: Final = _PREFIX - _START
_ENDS: Final = {KIND_COMPACT | padding << 8: -_TRAILER - padding for padding in range(ALIGNMENT)}
"""The end of the body within the checksummed bytes, by kind, detail (the padding) and flags of a compact record."""

_FEW: Final = 256
"""Bytes below which `crc32_of_few`, the same checksum, is faster: it has less overhead."""

_ROOMY: Final = COMPACT_MIN + ALIGNMENT
"""A compact frame of at least this many bytes has room for any padding."""

_IN_A_RUN: Final = CONTINUES | CONTINUED

_AT_ONCE: Final = 128 * 1024
"""Bytes of frames that are indexed at once: the shorter the records, the more memory they take."""


def decode_frames(
    data: bytes, context: FrameContext, *, position: int, limit: int, skip_below: int = 0, path: str = ""
) -> tuple[list[Batch], int, CorruptionError | None]:
    """Decode whole frames from the start of `data`, which is byte `position` of the file.

    Consecutive compact records become one batch with a `times` column.

    Args:
        data: frames; the last may be incomplete. What lies beyond `limit` is ignored.
        context: the segment's.
        position: where `data` starts in the file.
        limit: the file's end for frames, bytes.
        skip_below: batches that end at or below this offset are checked, but not decoded.
        path: for the error.

    Returns:
        The batches, the bytes consumed, and the damage that stopped it, if any. A frame that `data` holds only in part
        ends it without an error, unless the file does not hold all of it either.
    """
    batches: list[Batch] = []
    view = memoryview(data)
    at, end = 0, min(len(data), limit - position)
    try:
        while at < end:
            batch, at = compact_frames(data, at, end, context, position)
            if batch is None:
                batch, at = labelled_frames(data, at, end, context, position)
            if batch is not None:
                if batch.stop > skip_below:
                    batches.append(batch)
                continue
            frame = whole_frame(view, at, context, position=position, limit=limit, path=path)
            if frame is None:
                break
            if frame.records and frame.stop > skip_below:
                batches.append(decode_frame(view, at, frame, context, path=path))
            else:
                # Otherwise one wrong bit in kind, offset or count would make a record look like something to skip.
                check_frame(view, at, frame, context, path=path)
            at += frame.length
    except CorruptionError as error:
        return batches, at, error
    return batches, at, None


def whole_frame(
    view: memoryview, at: int, context: FrameContext, *, position: int, limit: int, path: str
) -> Frame | None:
    """Return the frame's prefix, or None if `view` ends before the frame does but the file does not."""
    try:
        frame = read_prefix(view, at, context, position=position + at, limit=limit, path=path)
    except CorruptionError as error:
        if isinstance(error.__cause__, struct.error) and position + len(view) < limit:
            return None
        raise
    return frame if at + frame.length <= len(view) else None


def compact_frames(data: bytes, at: int, end: int, context: FrameContext, position: int) -> tuple[Batch | None, int]:
    """Decode compact records with consecutive offsets from `at`; stop before anything else.

    Args:
        data: frames.
        at: where the first of them begins in `data`.
        end: where the frames end in `data`.
        context: the segment's.
        position: where `data` starts in the file.

    Returns:
        The records, None if there are none, and where the next frame begins in `data`.
    """
    bodies: list[bytes] = []
    times: list[int] = []
    start, last = at, end - COMPACT_MIN
    if at > last:
        return None, at
    unpack, end_of = _NEXT.unpack_from, _ENDS.get
    checksum, salt = context.checksum, context.salt
    of_few = crc32_of_few if checksum is crc32 else checksum
    length, crc, head, first, time_ns = _COMPACT.unpack_from(data, at)
    relative = expected = first
    while (body_end := end_of(head)) is not None and relative == expected:
        stop = at + length
        if length % ALIGNMENT or stop > end or (length < _ROOMY and length < COMPACT_MIN + (head >> 8)):
            break
        covered = data[at + _START : stop]
        if (of_few if length < _FEW else checksum)(covered, salt) != crc:
            break
        time = time_ns
        # The next prefix is read together with this frame's trailing length, and checked in the next iteration.
        if stop <= last:
            trailing, following, crc, head, relative, time_ns = unpack(data, stop - _TRAILER)
        else:
            (trailing,), following, head = TRAILER.unpack_from(data, stop - _TRAILER), 0, -1
        if trailing != length:
            break
        bodies.append(covered[_HEAD:body_end])
        times.append(time)
        expected += 1
        at, length = stop, following
    if not bodies:
        return None, at
    columns = Columns(bodies, times if len(times) > 1 else None)
    return Batch(context.base + first, times[0], columns, position + start, at - start), at


class IndexSingles(Protocol):
    """See `index_singles`."""

    def __call__(
        self, index: SegmentIndex, data: bytes, at: int, context: FrameContext, *, position: int, first: int
    ) -> tuple[int, int]:
        """Add compact records to an index."""
        ...


def index_singles(
    index: SegmentIndex, data: bytes, at: int, context: FrameContext, *, position: int, first: int
) -> tuple[int, int]:
    """Add the compact records from `data[at]` on to an index, up to the first other frame.

    Args:
        index: of the preceding frames.
        data: frames.
        at: where to begin in `data`.
        context: the segment's.
        position: the same place in the file.
        first: the expected relative offset of the first of them; if it has another, none is added.

    Returns:
        The number of records added, and the bytes they take. It need not be all of them.
    """
    batch, stop = compact_frames(data, at, min(len(data), at + _AT_ONCE), context, 0)
    if batch is None or batch.first - context.base != first:
        return 0, 0
    sizes = list(map(len, batch.columns.bodies))
    lengths = [padded(COMPACT_MIN + size) for size in sizes]
    index.add_each(position, first, lengths, batch.columns.times or [batch.time_ns], sum(sizes))
    return len(sizes), stop - at


def index_apart(
    index: SegmentIndex, data: bytes, at: int, context: FrameContext, *, position: int, first: int
) -> tuple[int, int]:
    """Add the frames from `data[at]` on to an index, up to the first that is one of a run or that is not valid.

    So labelled messages that were put one by one are counted quickly; and in a shared store, a control frame precedes
    each put of another process. Arguments and result are those of `index_singles`, except that there may be bytes
    without a record.
    """
    view = memoryview(data)
    unpack, trailing, counts = FRAME_PREFIX.unpack_from, TRAILER.unpack_from, BATCH_COUNTS.unpack_from
    checksum, salt = context.checksum, context.salt
    end, relative = len(data), first
    start, last = at, end - COMPACT_MIN
    while at <= last:
        length, crc, kind, detail, flags, named, _, time_ns = unpack(data, at)
        stop = at + length
        if (
            length % ALIGNMENT
            or named != relative
            or length < COMPACT_MIN
            or stop > end
            or trailing(data, stop - _TRAILER) != (length,)
            or checksum(view[at + _START : stop], salt) != crc
        ):
            break
        if kind == KIND_COMPACT and not flags and detail < ALIGNMENT and length >= COMPACT_MIN + detail:
            index.add_record(position + at - start, relative, time_ns, length - COMPACT_MIN - detail)
            relative += 1
        elif kind == KIND_BATCH and not flags & _IN_A_RUN and length >= BATCH_MIN:
            records, _, raw = counts(data, at + _PREFIX)
            if not holds(length, records, raw):
                break
            entry = IndexEntry(position + at - start, relative, records, 1, time_ns)
            index.add(entry, joined=False, flags=flags, raw_bytes=raw)
            relative += records
        elif kind in CONTROL_KINDS and not flags and detail < ALIGNMENT:
            index.add(IndexEntry(position + at - start, relative, 0, 1, time_ns), joined=False, flags=0, raw_bytes=0)
        else:
            break
        at = stop
    return relative - first, at - start
