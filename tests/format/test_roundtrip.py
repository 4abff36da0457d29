"""What goes into frames comes out of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import CONTINUED, CONTINUES, Columns, Flags, decode_columns
from aiodq.format.decode import decode_frames
from aiodq.format.frame import (
    FrameContext,
    decode_frame,
    encode_frames,
    encode_run,
    read_prefix,
    slice_frames,
)
from aiodq.format.labelled import encode_labelled
from aiodq.format.layout import (
    FRAME_BYTES,
    FRAME_PREFIX,
    FRAME_RECORDS,
    KIND_BATCH,
    KIND_COMPACT,
    LAG_UNKNOWN,
    MAX_RELATIVE,
    padded,
    written_size,
)
from tests.format.support import (
    BASE,
    CONTEXT,
    START,
    TIME,
    Put,
    all_columns,
    columns_strategy,
    decode,
    encode_columns,
    encode_puts,
    i64,
    puts_strategy,
    records_in,
    walk,
)

CODECS = pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])


@given(st.binary(max_size=20), st.sampled_from([0, 1, 4076, 4096, 4097, 8192, 70_000]))
def test_zeros_at_the_end_are_not_written(data: bytes, zeros: int) -> None:
    assert written_size(data + bytes(zeros)) == len(data.rstrip(b"\0"))
    assert written_size(data + bytes(zeros) + b"x") == len(data) + zeros + 1


@given(puts_strategy)
def test_any_puts_come_back_in_order(puts: list[Put]) -> None:
    stream = encode_puts(puts)
    records, used, error = decode(stream.data)
    assert error is None
    assert used == len(stream.data)
    assert records == stream.until(len(stream.frames))


@given(puts_strategy)
def test_each_frame_alone_gives_its_records(puts: list[Put]) -> None:
    stream = encode_puts(puts)
    view = memoryview(stream.data)
    for frame, rows in zip(walk(stream.data), stream.records, strict=True):
        batch = decode_frame(view, frame.position - START, frame, CONTEXT)
        assert (batch.first, batch.stop) == (frame.first, frame.stop)
        assert (batch.position, batch.length) == (frame.position, frame.length)
        assert records_in([batch]) == rows


@given(columns_strategy(), st.sampled_from([0, CONTINUES, CONTINUED, CONTINUES | CONTINUED]))
def test_columns_come_back(columns: Columns, place: int) -> None:
    flags, payload = encode_columns(columns)
    decoded = decode_columns(payload, len(columns.bodies), flags | place)
    assert decoded == columns
    assert decoded.size == (sum(columns.sizes()) if columns.plain else None)


@given(columns_strategy())
def test_flags_tell_which_columns_are_there(columns: Columns) -> None:
    flags, _ = encode_columns(columns)
    present = [columns.times, columns.dues, columns.expiries, columns.tags, columns.keys, columns.headers]
    assert [bool(flags & 1 << bit) for bit in range(6)] == [column is not None for column in present]
    assert columns.plain == (flags == 0)


@given(columns_strategy(), st.data())
def test_slice_takes_the_same_records_of_every_column(columns: Columns, data: st.DataObject) -> None:
    count = len(columns.bodies)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    whole = encode_puts([Put(columns)]).until(1)
    part = encode_puts([Put(columns.slice(start, stop))]).until(1)
    assert [row[1:] for row in part] == [row[1:] for row in whole[start:stop]]


@CODECS
@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 2000, 2001])
def test_empty_bodies_are_cut_by_count(codec: int, count: int) -> None:
    stream = encode_puts([Put(Columns([b""] * count), codec=codec)])
    assert [len(rows) for rows in stream.records] == [
        *[FRAME_RECORDS] * (count // FRAME_RECORDS),
        *[rest for rest in [count % FRAME_RECORDS] if rest],
    ]
    assert decode(stream.data) == (stream.until(3), len(stream.data), None)


@CODECS
@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [
        ([FRAME_BYTES], [1]),
        ([FRAME_BYTES + 1], [1]),
        ([FRAME_BYTES // 2, FRAME_BYTES // 2], [2]),
        ([FRAME_BYTES // 2, FRAME_BYTES // 2 + 1], [1, 1]),
        ([FRAME_BYTES // 2, FRAME_BYTES // 2, 0], [3]),
        ([FRAME_BYTES // 2, FRAME_BYTES // 2, 1], [2, 1]),
        ([1, 5 * FRAME_BYTES, 1, 1], [1, 1, 2]),
        ([5 * FRAME_BYTES, 0], [1, 1]),
    ],
)
def test_large_bodies_are_cut_by_size(codec: int, sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    stream = encode_puts([Put(Columns(bodies), codec=codec)])
    assert [len(rows) for rows in stream.records] == cuts
    assert decode(stream.data) == (stream.until(len(cuts)), len(stream.data), None)


@given(st.lists(st.sampled_from([0, 1, 100, 30_000, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1]), min_size=1))
def test_slices_are_whole_bounded_and_not_smaller_than_need_be(sizes: list[int]) -> None:
    bodies = [bytes(size) for size in sizes]
    slices = list(slice_frames(Columns(bodies)))
    assert [number for start, stop in slices for number in range(start, stop)] == list(range(len(sizes)))
    for start, stop in slices:
        size = sum(sizes[start:stop])
        assert stop - start == 1 or size <= FRAME_BYTES
        assert stop == len(sizes) or size + sizes[stop] > FRAME_BYTES


@given(columns_strategy(max_count=1), st.integers(0, 2**32), st.integers(0, 2**40), i64)
def test_a_record_with_more_than_a_body_has_the_same_frame_however_it_is_encoded(
    columns: Columns, offset: int, watermark: int, time_ns: int
) -> None:
    first = min(BASE + offset, BASE + MAX_RELATIVE)
    columns.times = columns.transaction = None  # those of a batch
    if columns.plain:
        columns.keys = [b""]
    (frame,) = encode_run(
        columns, CONTEXT, first=first, watermark=watermark, time_ns=time_ns, codec=CODEC_NONE, atomic=False
    )
    encoded = encode_labelled(columns, CONTEXT, first, watermark, time_ns)
    assert encoded == (b"".join(frame.parts), frame.flags, frame.raw)


@CODECS
def test_every_column_survives_the_cut(codec: int) -> None:
    stream = encode_puts([Put(all_columns(2500), codec=codec)])
    assert [len(rows) for rows in stream.records] == [1000, 1000, 500]
    assert decode(stream.data) == (stream.until(3), len(stream.data), None)


def test_a_compressed_batch_may_have_more_records_than_bytes() -> None:
    stream = encode_puts([Put(Columns([b"x" * 60] * FRAME_RECORDS), codec=CODEC_ZSTD)])
    assert len(stream.data) < FRAME_RECORDS // 4
    assert decode(stream.data) == (stream.until(1), len(stream.data), None)


@given(puts_strategy)
def test_frames_are_aligned_and_no_longer_than_need_be(puts: list[Put]) -> None:
    stream = encode_puts(puts)
    for frame, data in zip(walk(stream.data), stream.frames, strict=True):
        assert frame.length == len(data) == padded(len(data))
        used = 32 + frame.raw if frame.kind == KIND_COMPACT else 44 + int.from_bytes(data[32:36], "little")
        assert len(data) == padded(used)
        assert not any(data[used - 4 : -4])


def test_one_plain_record_is_compact_unless_compressed() -> None:
    kinds = [
        walk(encode_puts([put]).data)[0].kind
        for put in (
            Put(Columns([b"x"])),
            Put(Columns([b"x"]), codec=CODEC_ZSTD),
            Put(Columns([b"x" * 1000]), codec=CODEC_ZSTD),
            Put(Columns([b"x", b"y"])),
            Put(Columns([b"x"], tags=[None])),
        )
    ]
    assert kinds == [KIND_COMPACT, KIND_COMPACT, KIND_BATCH, KIND_BATCH, KIND_BATCH]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (500, [0]),
        (2000, [Flags.CONTINUED, Flags.CONTINUES]),
        (2001, [Flags.CONTINUED, Flags.CONTINUES | Flags.CONTINUED, Flags.CONTINUES]),
    ],
)
def test_an_atomic_put_is_a_run(count: int, expected: list[int]) -> None:
    columns = Columns([b""] * count, tags=["t"] * count)
    runs = Flags.CONTINUES | Flags.CONTINUED
    frames = walk(encode_puts([Put(columns, atomic=True)]).data)
    assert [frame.flags & runs for frame in frames] == expected
    loose = walk(encode_puts([Put(columns)]).data)
    assert [frame.flags & runs for frame in loose] == [0] * len(expected)


@pytest.mark.parametrize(
    ("first", "watermark", "seen"),
    [
        (BASE, BASE, BASE),
        (BASE + 10, BASE + 3, BASE + 3),
        (BASE + 10, 0, 0),
        (BASE + 10, BASE + 11, BASE + 10),
        (BASE + MAX_RELATIVE, BASE + 1, BASE + 1),
        (BASE + MAX_RELATIVE, BASE - 1, 0),
        (BASE + MAX_RELATIVE, BASE, 0),
    ],
)
@pytest.mark.parametrize("bodies", [[b"x"], [b"x", b"y"]])
def test_watermark(first: int, watermark: int, seen: int, bodies: list[bytes]) -> None:
    (data,) = encode_frames(Columns(bodies), CONTEXT, first=first, watermark=watermark, time_ns=TIME)
    frame = read_prefix(data, 0, CONTEXT, position=START, limit=2**40)
    assert (frame.first, frame.watermark) == (first, seen)
    lag = FRAME_PREFIX.unpack_from(data)[6]
    assert lag == (LAG_UNKNOWN if seen == 0 and watermark else first - seen)


@given(puts_strategy, st.integers(0, 2**60))
def test_a_segment_moves_to_another_base_without_a_change_to_its_frames(puts: list[Put], base: int) -> None:
    stream = encode_puts(puts)
    moved = FrameContext(base, CONTEXT.checksum, CONTEXT.salt)
    batches, used, error = decode_frames(stream.data, moved, position=START, limit=stream.limit)
    assert (used, error) == (len(stream.data), None)
    there = [record._replace(offset=record.offset - BASE + base) for record in stream.until(len(stream.frames))]
    assert records_in(batches) == there


def test_neighbouring_compact_records_come_as_one_batch() -> None:
    stream = encode_puts([Put(Columns([b"%d" % number]), TIME + number) for number in range(3)])
    (batch,), _, _ = decode_frames(stream.data, CONTEXT, position=START, limit=stream.limit)
    assert batch.columns == Columns([b"0", b"1", b"2"], [TIME, TIME + 1, TIME + 2])
    assert (batch.time_ns, batch.position, batch.length) == (TIME, START, len(stream.data))


def test_compact_records_with_a_gap_between_are_two_batches() -> None:
    frames = [
        encode_frames(Columns([b"x"]), CONTEXT, first=BASE + relative, watermark=0, time_ns=TIME)[0]
        for relative in (0, 1, 5)
    ]
    data = b"".join(frames)
    batches, _, _ = decode_frames(data, CONTEXT, position=START, limit=START + len(data))
    assert [(batch.first, batch.stop, batch.columns.times) for batch in batches] == [
        (BASE, BASE + 2, [TIME, TIME]),
        (BASE + 5, BASE + 6, None),
    ]


@pytest.mark.parametrize(("size", "copied"), [(100, True), (2000, False), (16_384, False), (200_000, False)])
def test_large_bodies_are_encoded_without_a_copy(size: int, copied: bool) -> None:
    bodies = [bytes([number]) * (size + number) for number in range(40)]
    columns = Columns(bodies, tags=["a tag"] * len(bodies))
    run = encode_run(columns, CONTEXT, first=BASE, watermark=0, time_ns=TIME, codec=CODEC_NONE, atomic=True)
    frames = list(run)
    assert [sum(map(len, frame.parts)) for frame in frames] == [frame.length for frame in frames]
    data = b"".join(encode_frames(columns, CONTEXT, first=BASE, watermark=0, time_ns=TIME, atomic=True))
    assert data == b"".join(part for frame in frames for part in frame.parts)
    batches, used, error = decode_frames(data, CONTEXT, position=START, limit=START + len(data))
    assert (used, error) == (len(data), None)
    assert [body for batch in batches for body in batch.columns.bodies] == bodies
    parts = {id(part) for frame in frames for part in frame.parts}
    assert [id(body) in parts for body in bodies] == [not copied] * len(bodies)


def test_a_frame_too_large_for_the_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.format.frame.MAX_FRAME", 1024)
    columns = Columns([b"x" * 970, b""])
    (frame,) = encode_frames(columns, CONTEXT, first=BASE, watermark=0, time_ns=TIME)
    assert len(frame) == 1024
    columns = Columns([b"x" * 973, b""])
    with pytest.raises(ValueError, match="1032 bytes is larger than the format can hold"):
        encode_frames(columns, CONTEXT, first=BASE, watermark=0, time_ns=TIME)
