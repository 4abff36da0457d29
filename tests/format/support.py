"""What the tests of the format share: a segment's context, frames to play with, and strategies."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hypothesis import strategies as st

from aiodq.errors import CorruptionError
from aiodq.format.checksum import CRC32, checksum_named
from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns, column_parts
from aiodq.format.decode import decode_frames
from aiodq.format.frame import FrameContext, check_frame, encode_frames, read_prefix
from aiodq.format.layout import FRAME_PREFIX, FRAME_START, SEGMENT_HEADER, TRAILER
from aiodq.format.scan import candidate_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiodq.format.frame import Batch, Frame

_T = TypeVar("_T")

BASE = 1000
CONTEXT = FrameContext(BASE, checksum_named(CRC32), 0x5EED)
OTHER = FrameContext(BASE, checksum_named(CRC32), 0xBEEF)
START = SEGMENT_HEADER.size
TIME = 1_700_000_000_000_000_000
MIB = 1 << 20


class Record(NamedTuple):
    """One message as it went in, or came out."""

    offset: int
    body: bytes
    time_ns: int
    due: int | None = None
    expiry: int | None = None
    tag: str | None = None
    key: bytes | None = None
    headers: Mapping[str, str] | None = None


def encode_columns(columns: Columns) -> tuple[int, bytes]:
    """Return the `Flags` of the columns present, and the payload."""
    flags, parts = column_parts(columns)
    return flags, b"".join(parts)


def records_of(first: int, time_ns: int, columns: Columns) -> list[Record]:
    """Return a batch row by row."""
    count = len(columns.bodies)
    nothing = [None] * count
    rows = zip(
        range(first, first + count),
        columns.bodies,
        columns.times if columns.times is not None else [time_ns] * count,
        columns.dues if columns.dues is not None else nothing,
        columns.expiries if columns.expiries is not None else nothing,
        columns.tags if columns.tags is not None else nothing,
        columns.keys if columns.keys is not None else nothing,
        columns.headers if columns.headers is not None else nothing,
        strict=True,
    )
    return [Record(*row) for row in rows]


def records_in(batches: Iterable[Batch]) -> list[Record]:
    """Return the rows of all batches."""
    return [record for batch in batches for record in records_of(batch.first, batch.time_ns, batch.columns)]


class Put(NamedTuple):
    """One call of `encode_frames`."""

    columns: Columns
    time_ns: int = TIME
    codec: int = CODEC_NONE
    atomic: bool = False


class Stream(NamedTuple):
    """Frames one after the other, and what is in them."""

    data: bytes
    frames: list[bytes]
    records: list[list[Record]]
    """By frame."""

    @property
    def limit(self) -> int:
        """Where the frames end in the file."""
        return START + len(self.data)

    @property
    def positions(self) -> list[int]:
        """Where each frame begins in `data`, and where the last one ends."""
        ends = [0]
        for frame in self.frames:
            ends.append(ends[-1] + len(frame))
        return ends

    def until(self, number: int) -> list[Record]:
        """Return the records of the first `number` frames."""
        return [record for rows in self.records[:number] for record in rows]


def encode_puts(puts: Iterable[Put], context: FrameContext = CONTEXT) -> Stream:
    """Encode puts with consecutive offsets."""
    frames: list[bytes] = []
    records: list[list[Record]] = []
    first = context.base
    for columns, time_ns, codec, atomic in puts:
        rows = records_of(first, time_ns, columns)
        for frame in encode_frames(
            columns, context, first=first, watermark=context.base, time_ns=time_ns, codec=codec, atomic=atomic
        ):
            count = read_prefix(frame, 0, context, position=0, limit=len(frame)).records
            frames.append(frame)
            records.append(rows[:count])
            del rows[:count]
        first += len(columns.bodies)
    return Stream(b"".join(frames), frames, records)


def control_frame(context: FrameContext = CONTEXT, kind: int = 0xE3, first: int = BASE, body: bytes = b"") -> bytes:
    """Return a frame of a kind that this version does not know."""
    length = FRAME_PREFIX.size + len(body) + TRAILER.size
    prefix = FRAME_PREFIX.pack(length, 0, kind, 0, 0, first - context.base, 0, TIME)
    return reseal(prefix + body + TRAILER.pack(length), context)


def all_columns(count: int, start: int = 0) -> Columns:
    """Return records that have everything, and each a gap where gaps are allowed."""
    numbers = range(start, start + count)
    return Columns(
        [b"body %d " % number * (number % 5) for number in numbers],
        [TIME + number for number in numbers],
        [number % 3 * TIME for number in numbers],
        [number % 2 * TIME for number in numbers],
        [None if number % 3 == 0 else "tag\u00e9" * (number % 3 - 1) for number in numbers],
        [None if number % 4 == 0 else b"key" * (number % 4 - 1) for number in numbers],
        [{} if number % 2 == 0 else {"name": f"value {number}", "": ""} for number in numbers],
    )


def mixed_stream(context: FrameContext = CONTEXT) -> Stream:
    """Return a little of every kind: compact records, batches with and without columns, zstd, a control frame."""
    compact = [Put(Columns([b"compact %d" % number * number]), TIME + number) for number in range(4)]
    plain = Put(Columns([b"one", b"", b"three"]))
    packed = Put(Columns([b"abcdefgh" * 9] * 5), codec=CODEC_ZSTD)
    full = Put(all_columns(3))
    tagged = Put(Columns([b"tagged"], tags=["t"]))
    stream = encode_puts([*compact, plain, packed, full, tagged, *compact[:2]], context)
    control = control_frame(context, first=context.base + 7, body=b"whatever")
    frames = [*stream.frames[:5], control, *stream.frames[5:]]
    return Stream(b"".join(frames), frames, [*stream.records[:5], [], *stream.records[5:]])


def decode(
    data: bytes, *, context: FrameContext = CONTEXT, limit: int | None = None, skip_below: int = 0
) -> tuple[list[Record], int, Exception | None]:
    """Decode what stands behind a segment's header; the file ends with it unless `limit` says otherwise."""
    limit = START + len(data) if limit is None else limit
    batches, used, error = decode_frames(data, context, position=START, limit=limit, skip_below=skip_below)
    return records_in(batches), used, error


def walk(data: bytes, context: FrameContext = CONTEXT) -> list[Frame]:
    """Return the prefixes of all frames, forward."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        frames.append(read_prefix(data, at, context, position=START + at, limit=START + len(data)))
        at += frames[-1].length
    return frames


def reseal(frame: bytes, context: FrameContext = CONTEXT) -> bytes:
    """Return the frame with the checksum that its bytes should have."""
    covered = frame[FRAME_START.size :]
    return frame[:4] + context.checksum(covered, context.salt).to_bytes(4, "little") + covered


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Return the data with other bytes at one place."""
    return data[:at] + new + data[at + len(new) :]


def flipped(data: bytes, bit: int) -> bytes:
    """Return the data with one bit turned round."""
    return patched(data, bit // 8, bytes([data[bit // 8] ^ 1 << bit % 8]))


@contextmanager
def memory_bound(limit: int) -> Iterator[None]:
    """Make sure that no more than `limit` bytes are allocated at any moment inside."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"{peak} bytes allocated, {limit} allowed"


i64 = st.integers(-(2**63), 2**63 - 1)
u32 = st.integers(0, 2**32 - 1)
HOSTILE = [0, 1, 3, 4, 7, 8, 28, 31, 32, 40, 48, 64, 2**16, 2**31 - 8, 2**31, 2**32 - 8, 2**32 - 1]
hostile_u32 = st.sampled_from(HOSTILE) | st.integers(0, 300)


@st.composite
def columns_strategy(draw: st.DrawFn, max_count: int = 12) -> Columns:
    """Return records with any combination of columns."""
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=max_count))
    count = len(bodies)

    def maybe(values: st.SearchStrategy[_T]) -> list[_T] | None:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    return Columns(
        bodies,
        maybe(i64),
        maybe(i64),
        maybe(i64),
        maybe(st.none() | st.text(max_size=8)),
        maybe(st.none() | st.binary(max_size=8)),
        maybe(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)),
        draw(st.none() | st.integers(0, 2**64 - 1)),
    )


puts_strategy = st.lists(
    st.builds(Put, columns_strategy(), i64, st.sampled_from([CODEC_NONE, CODEC_ZSTD]), st.booleans())
    | st.builds(Put, st.binary(max_size=60).map(lambda body: Columns([body])), i64),
    min_size=1,
    max_size=8,
)


def first_frame(data: bytes, start: int, context: FrameContext, *, position: int, limit: int) -> Frame | None:
    """Return the first of the `candidate_frames` that `data` holds whole and right, or None."""
    view = memoryview(data)
    for frame in candidate_frames(data[start:], context, position=position + start, limit=limit):
        with suppress(CorruptionError):
            check_frame(view, frame.position - position, frame, context)
            return frame
    return None
