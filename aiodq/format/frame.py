"""One frame: a batch of records, or a single plain record in compact form."""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError
from aiodq.format.codecs import CODEC_NONE, compress, decompress, raw_limit
from aiodq.format.columns import CONTINUED, CONTINUES, Columns, column_parts, decode_columns
from aiodq.format.layout import (
    ALIGNMENT,
    BATCH_COUNTS,
    BATCH_HEADER,
    BATCH_MIN,
    COMPACT_MIN,
    CONTROL_KINDS,
    FRAME_BYTES,
    FRAME_PREFIX,
    FRAME_RECORDS,
    FRAME_START,
    KIND_BATCH,
    KIND_COMPACT,
    LAG_UNKNOWN,
    MAX_FRAME,
    MAX_RECORDS,
    TRAILER,
    padded,
)
from aiodq.format.many import COMPILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.format.checksum import Checksum
    from aiodq.format.layout import BytesLike

__all__ = [
    "Batch",
    "Encoded",
    "Frame",
    "FrameContext",
    "check_frame",
    "decode_frame",
    "encode_batch",
    "encode_compact",
    "encode_control",
    "encode_frames",
    "encode_run",
    "frame_payload",
    "holds",
    "read_prefix",
    "slice_frames",
    "too_large",
    "watermark_lag",
]

_START: Final = FRAME_START.size
_PREFIX: Final = FRAME_PREFIX.size
_BATCH: Final = BATCH_HEADER.size
_NO_HEADER: Final = bytes(BATCH_HEADER.size)
_NO_END: Final = bytes(ALIGNMENT - 1 + TRAILER.size)
_COMPACT_REST: Final = struct.Struct(FRAME_PREFIX.format.replace("<II", "<", 1))
_LARGE: Final = 512
"""Bytes of a frame's parts, on average, from which on they are not joined: joining takes longer than writing each of
them, as the frame is new memory, which the system hands over page by page."""


@dataclass(frozen=True, slots=True)
class FrameContext:
    """What the frames of one segment have in common.

    Attributes:
        base: the segment's base offset.
        checksum: the algorithm its header names.
        salt: the checksum's starting value.
    """

    base: int
    checksum: Checksum
    salt: int


class Frame(NamedTuple):
    """A frame's prefix, of which only the shape has been checked.

    `first` is absolute. `watermark` is the offset below which everything was durable when the frame was written. `raw`
    is the size of the payload before compression.
    """

    position: int
    length: int
    crc: int
    kind: int
    detail: int
    flags: int
    first: int
    watermark: int
    time_ns: int
    records: int
    raw: int

    @property
    def end(self) -> int:
        """The position where the next frame starts, bytes."""
        return self.position + self.length

    @property
    def stop(self) -> int:
        """The offset after the frame's last record."""
        return self.first + self.records


class Encoded(NamedTuple):
    """An encoded frame, with what is known of it without decoding it.

    Attributes:
        parts: its bytes, in pieces that follow each other; the first one holds at least the frame's prefix.
        length: the number of them.
        records: the number of its records.
        flags: its `Flags`.
        raw: the size of the payload before compression.
    """

    parts: list[BytesLike]
    length: int
    records: int
    flags: int
    raw: int


@dataclass(slots=True)
class Batch:
    """Decoded records with consecutive offsets.

    Attributes:
        first: the first record's offset.
        time_ns: the put time of the batch, nanoseconds since the epoch.
        columns: the records.
        position: the frame's position in its segment, bytes; -1 for a batch that was not read from one.
        length: the length of the frame, bytes.
        flags: the frame's `Flags`.
    """

    first: int
    time_ns: int
    columns: Columns
    position: int = -1
    length: int = 0
    flags: int = 0

    @property
    def stop(self) -> int:
        """The offset after the last record."""
        return self.first + len(self.columns.bodies)

    def cut(self, start: int, stop: int) -> Batch:
        """Return the part between two offsets."""
        if self.first >= start and self.stop <= stop:
            return self
        low, high = max(start - self.first, 0), min(stop, self.stop) - self.first
        columns = self.columns.slice(low, high)
        time_ns = self.time_ns if columns.times is None else columns.times[0]
        return Batch(self.first + low, time_ns, columns, self.position, self.length, self.flags)


def encode_frames(
    columns: Columns,
    context: FrameContext,
    *,
    first: int,
    watermark: int,
    time_ns: int,
    codec: int = CODEC_NONE,
    atomic: bool = False,
) -> list[bytes]:
    """Return the frames that hold `columns`, in order, each a multiple of 8 bytes long.

    Args:
        columns: at least one record.
        context: the segment's.
        first: the first record's absolute offset.
        watermark: everything below this offset is known to be durable.
        time_ns: the batch's time.
        codec: see `aiodq.format.codecs`.
        atomic: chain the frames into one run, which readers take as a whole or not at all.
    """
    run = encode_run(columns, context, first=first, watermark=watermark, time_ns=time_ns, codec=codec, atomic=atomic)
    return [b"".join(frame.parts) for frame in run]


def encode_run(
    columns: Columns,
    context: FrameContext,
    *,
    first: int,
    watermark: int,
    time_ns: int,
    codec: int,
    atomic: bool,
) -> Iterator[Encoded]:
    """Yield the frames that `encode_frames` returns, one at a time, with what an index needs to know of each."""
    if len(columns.bodies) == 1 and columns.plain and not _worth_compressing(columns.bodies[0], codec):
        body = columns.bodies[0]
        data = encode_compact(body, context, first, watermark, time_ns)
        yield Encoded([data], len(data), 1, 0, len(body))
        return
    cuts = slice_frames(columns) if len(columns.bodies) > 1 else [(0, 1)]
    last = len(cuts) - 1
    for number, (start, stop) in enumerate(cuts):
        flags = 0
        if atomic:
            flags = (CONTINUES if number else 0) | (CONTINUED if number < last else 0)
        part = columns if last == 0 else columns.slice(start, stop)
        columns_flags, parts = column_parts(part)
        yield encode_batch(
            parts, stop - start, context, first + start, watermark, time_ns, codec=codec, flags=flags | columns_flags
        )


def _worth_compressing(body: bytes, codec: int) -> bool:
    return codec != CODEC_NONE and compress(body, codec)[0] != CODEC_NONE


def slice_frames(columns: Columns) -> list[tuple[int, int]]:
    """Return (start, stop) of slices that stay within a frame's bounds; a large message gets one of its own."""
    sizes, count = list(columns.sizes()), len(columns.bodies)
    if COMPILED:
        return _cuts(sizes)
    slices: list[tuple[int, int]] = []
    start = 0
    while start < count:
        some = sizes[start : start + FRAME_RECORDS]
        total = sum(some)
        stop = start + (len(some) if total <= FRAME_BYTES else _fitting(some, total))
        slices.append((start, stop))
        start = stop
    return slices


def _cuts(sizes: list[int]) -> list[tuple[int, int]]:
    """Do as `slice_frames` for messages of these sizes, with a step for each: the quickest if it is compiled."""
    cuts: list[tuple[int, int]] = []
    start = stop = total = 0
    for size in sizes:
        total += size
        if stop > start and (total > FRAME_BYTES or stop - start >= FRAME_RECORDS):
            cuts.append((start, stop))
            start, total = stop, size
        stop += 1
    if stop > start:
        cuts.append((start, stop))
    return cuts


def _fitting(sizes: list[int], total: int) -> int:
    """Return how many of the messages of these sizes, which exceed a frame in total, fit into one."""
    # The messages of one put are usually of similar size: then this guess is right, and no running sum is needed.
    guess = len(sizes) * FRAME_BYTES // total
    before = sum(sizes[:guess])
    if before <= FRAME_BYTES < before + sizes[guess]:
        return max(guess, 1)
    return max(bisect_right(list(accumulate(sizes)), FRAME_BYTES), 1)


def watermark_lag(first: int, watermark: int) -> int:
    """Return what a frame stores of the watermark: how far it is behind the first offset."""
    lag = first - watermark
    if 0 <= lag < LAG_UNKNOWN:
        return lag
    return 0 if lag < 0 else LAG_UNKNOWN


def encode_compact(body: bytes, context: FrameContext, first: int, watermark: int, time_ns: int) -> bytes:
    """Return the frame of one record that has only a body; see `encode_frames`."""
    pack, length, padding = _compact_shape(len(body))
    lag = first - watermark
    if not 0 <= lag < LAG_UNKNOWN:
        lag = watermark_lag(first, watermark)
    covered: bytes = pack(KIND_COMPACT, padding, 0, first - context.base, lag, time_ns, body, length)
    return FRAME_START.pack(length, context.checksum(covered, context.salt)) + covered


@lru_cache(maxsize=1024)
def _compact_shape(size: int) -> tuple[Callable[..., bytes], int, int]:
    """Return for a body of `size` bytes: the function that packs all but the frame's start, the length, the padding.

    Messages of one topic usually have few sizes, and one call that packs everything takes half the time of several.
    """
    used = COMPACT_MIN + size
    padding = -used % ALIGNMENT
    rest = struct.Struct(f"{FRAME_PREFIX.format.replace('<II', '<', 1)}{size}s{padding}xI")
    return rest.pack, used + padding, padding


def encode_control(kind: int, body: bytes, context: FrameContext, first: int, *, watermark: int, time_ns: int) -> bytes:
    """Return a control frame.

    Args:
        kind: one of CONTROL_KINDS.
        body: its content, a multiple of 8 bytes.
        context: the segment's.
        first: the offset of the record that follows.
        watermark: everything below this offset is known to be durable.
        time_ns: when it was written.
    """
    length = COMPACT_MIN + len(body)
    rest = _COMPACT_REST.pack(kind, 0, 0, first - context.base, watermark_lag(first, watermark), time_ns)
    covered = b"".join((rest, body, TRAILER.pack(length)))
    return FRAME_START.pack(length, context.checksum(covered, context.salt)) + covered


def too_large(length: int) -> str:
    """Return why a frame of that many bytes cannot be written, as text."""
    return f"a frame of {length} bytes is larger than the format can hold"


def encode_batch(  # noqa: PLR0917 - what the frame says of itself
    parts: list[bytes], count: int, context: FrameContext, first: int, watermark: int, time_ns: int, *, codec: int,
    flags: int,
) -> Encoded:  # fmt: skip
    """Return a batch.

    Args:
        parts: its payload, in pieces that are to be joined.
        count: the number of its records.
        context: the segment's.
        first: the first record's absolute offset.
        watermark: everything below this offset is known to be durable.
        time_ns: the batch's time.
        codec: see `aiodq.format.codecs`.
        flags: its `Flags`: of the columns in the payload, and its place in a run.

    Raises:
        ValueError: it is larger than the format can hold.
    """
    raw = None
    if codec != CODEC_NONE:
        payload = b"".join(parts)
        raw = len(payload)
        codec, stored = compress(payload, codec)
        parts = [stored]
    # Large parts are written from where they are; small ones are joined once, between room for the header and the end.
    # If there are many of them, they are small, as they fit into a frame.
    large = len(parts) <= FRAME_BYTES // _LARGE and sum(map(len, parts)) >= _LARGE * len(parts)
    head = bytearray(_BATCH) if large else bytearray().join((_NO_HEADER, *parts, _NO_END))
    size = sum(map(len, parts)) if large else len(head) - _BATCH - len(_NO_END)
    raw = size if raw is None else raw
    length = padded(_BATCH + size + TRAILER.size)
    if length > MAX_FRAME:
        raise ValueError(too_large(length))
    end = bytes(length - _BATCH - size - TRAILER.size) + TRAILER.pack(length)
    rest: list[BytesLike] = []
    if large:
        rest = [*parts, end]
    else:
        head[_BATCH + size :] = end
    lag, relative = watermark_lag(first, watermark), first - context.base
    BATCH_HEADER.pack_into(head, 0, length, 0, KIND_BATCH, codec, flags, relative, lag, time_ns, count, size, raw)
    crc = context.checksum(memoryview(head)[_START:], context.salt)
    for part in rest:
        crc = context.checksum(part, crc)
    FRAME_START.pack_into(head, 0, length, crc)
    return Encoded([head, *rest], length, count, flags, raw)


def read_prefix(view: BytesLike, at: int, context: FrameContext, *, position: int, limit: int, path: str = "") -> Frame:
    """Return the prefix of the frame that starts at `view[at]`, which is byte `position` of the file.

    Only the shape is checked: enough to skip the frame, not to trust its content.

    Args:
        view: must hold the frame's whole header from `at` on.
        at: where the frame starts in `view`.
        context: the segment's.
        position: the same place in the file.
        limit: the file's end for frames, in bytes; no frame may reach past it.
        path: for the error.

    Raises:
        CorruptionError: no frame can be there.
    """
    try:
        length, crc, kind, detail, flags, relative, lag, time_ns = FRAME_PREFIX.unpack_from(view, at)
        if length % ALIGNMENT or length < COMPACT_MIN or length > limit - position:
            message = f"a frame of {length} bytes does not fit"
            raise CorruptionError(message, path, position)
        if kind == KIND_COMPACT and detail < ALIGNMENT and length >= COMPACT_MIN + detail:
            count, raw = 1, length - COMPACT_MIN - detail
        elif kind == KIND_BATCH and length >= BATCH_MIN:
            count, _, raw = BATCH_COUNTS.unpack_from(view, at + _PREFIX)
            if not holds(length, count, raw):
                message = f"a batch of {count} records and {raw} raw bytes does not fit into {length} bytes"
                raise CorruptionError(message, path, position)
        elif kind in CONTROL_KINDS and detail < ALIGNMENT:
            count = raw = 0
        else:
            message = f"no frame starts here (kind {kind:#x})"
            raise CorruptionError(message, path, position)
    except struct.error as cause:
        message = "the frame's header is cut short"
        raise CorruptionError(message, path, position) from cause
    first = context.base + relative
    watermark = 0 if lag == LAG_UNKNOWN else max(first - lag, 0)
    return Frame(position, length, crc, kind, detail, flags, first, watermark, time_ns, count, raw)


def holds(length: int, count: int, raw: int) -> bool:
    """Return whether a batch of `length` bytes may have so many records, and so many raw bytes."""
    # Checked against the raw size, not the length: a compressed batch may well have more records than bytes.
    return 0 < count <= min(raw // 4, MAX_RECORDS) and raw <= raw_limit(length)


def check_frame(view: memoryview, at: int, frame: Frame, context: FrameContext, *, path: str = "") -> None:
    """Check that the whole frame at `view[at]` is what was written.

    Raises:
        CorruptionError: the checksum or the trailing length is wrong, or `view` ends too early.
    """
    end = at + frame.length
    if end > len(view):
        message = f"the frame of {frame.length} bytes is cut short"
        raise CorruptionError(message, path, frame.position)
    if TRAILER.unpack_from(view, end - TRAILER.size)[0] != frame.length:
        message = "the frame's two lengths differ"
        raise CorruptionError(message, path, frame.position)
    if context.checksum(view[at + _START : end], context.salt) != frame.crc:
        message = "the frame's checksum is wrong"
        raise CorruptionError(message, path, frame.position)


def decode_frame(view: memoryview, at: int, frame: Frame, context: FrameContext, *, path: str = "") -> Batch:
    """Return the records of the frame at `view[at]`, after checking it. A control frame has none.

    Raises:
        CorruptionError: any of its bytes is not what was written.
        FormatVersionError: it uses a codec this version does not know.
        MissingExtraError: it is compressed and the codec's package is not installed.
    """
    check_frame(view, at, frame, context, path=path)
    end = at + frame.length - TRAILER.size
    if frame.kind == KIND_COMPACT:
        if frame.flags:
            message = f"a compact record with flags {frame.flags:#x}"
            raise CorruptionError(message, path, frame.position)
        body = view[at + _PREFIX : end - frame.detail].tobytes()
        return Batch(frame.first, frame.time_ns, Columns([body]), frame.position, frame.length)
    if frame.kind != KIND_BATCH:
        return Batch(frame.first, frame.time_ns, Columns([]), frame.position, frame.length)
    columns = decode_columns(
        frame_payload(view, at, frame, path=path), frame.records, frame.flags, path=path, position=frame.position
    )
    return Batch(frame.first, frame.time_ns, columns, frame.position, frame.length, frame.flags)


def decode_compact(data: bytes, context: FrameContext) -> bytes | None:
    """Return the body of the compact frame `data`, which must be the first record of its segment.

    None if it is anything else, or not what was written: `decode_frame` tells which.
    """
    size = len(data)
    if size < COMPACT_MIN or size % ALIGNMENT:
        return None
    length, crc, kind, padding, flags, relative, _, _ = FRAME_PREFIX.unpack_from(data)
    if length != size or kind != KIND_COMPACT or padding >= ALIGNMENT or length < COMPACT_MIN + padding:
        return None
    if flags or relative or TRAILER.unpack_from(data, size - TRAILER.size)[0] != length:
        return None
    if context.checksum(memoryview(data)[_START:], context.salt) != crc:
        return None
    return data[_PREFIX : size - TRAILER.size - padding]


def frame_payload(view: memoryview, at: int, frame: Frame, *, path: str) -> BytesLike:
    """Return the payload of the batch at `view[at]`, decompressed; its columns are what `decode_columns` reads.

    Raises:
        CorruptionError: its sizes do not match.
        FormatVersionError: it uses a codec this version does not know.
        MissingExtraError: it is compressed and the codec's package is not installed.
    """
    _, stored, raw = BATCH_COUNTS.unpack_from(view, at + _PREFIX)
    start, end = at + _BATCH, at + frame.length - TRAILER.size
    if not 0 <= end - start - stored < ALIGNMENT or raw > raw_limit(stored):
        message = f"a payload of {stored} bytes stored and {raw} raw does not fit a frame of {frame.length}"
        raise CorruptionError(message, path, frame.position)
    payload = decompress(view[start : start + stored], frame.detail, raw, path=path, position=frame.position)
    if len(payload) != raw:
        message = f"a payload of {len(payload)} bytes claims to be {raw}"
        raise CorruptionError(message, path, frame.position)
    return payload
