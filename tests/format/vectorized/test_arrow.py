"""Arrow gives the rows that `decode_frames` gives, and refuses the same frames at the same place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError
from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.decode import decode_frames
from aiodq.format.segment import SegmentHeader
from aiodq.format.vectorized.arrow import COLUMNS, ArrowDecoder, joined, schema_of
from tests.format import make_golden
from tests.format.arrows import rows_expected, rows_of
from tests.format.support import (
    BASE,
    CONTEXT,
    START,
    Put,
    columns_strategy,
    encode_puts,
    flipped,
    hostile_u32,
    mixed_stream,
    patched,
    puts_strategy,
    reseal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.format.frame import FrameContext

MIXED = mixed_stream()
GOLDEN = sorted(make_golden.DIRECTORY.parent.glob("v*/*.seg"))


def expected(
    data: bytes, context: FrameContext, limit: int, skip_below: int = 0
) -> tuple[list[tuple[object, ...]], int, int | None]:
    batches, used, error = decode_frames(data, context, position=START, limit=limit, skip_below=skip_below)
    return rows_expected(batches), used, None if error is None else error.position


def found(
    data: bytes, context: FrameContext, limit: int, skip_below: int = 0, *, verify: bool = True
) -> tuple[list[tuple[object, ...]], int, int | None]:
    decode = ArrowDecoder(verify=verify)
    batches, used, error = decode(data, context, position=START, limit=limit, skip_below=skip_below)
    return rows_of(batches), used, None if error is None else error.position


def assert_alike(
    data: bytes, *, context: FrameContext = CONTEXT, limit: int | None = None, skip_below: int = 0
) -> None:
    limit = START + len(data) if limit is None else limit
    ways = [way(data, context, limit, skip_below) for way in (found, expected)]
    # Of records that are decoded together some may be skipped ones.
    rows = [[row for row in way[0] if isinstance(row[0], int) and row[0] >= skip_below] for way in ways]
    assert (rows[0], *ways[0][1:]) == (rows[1], *ways[1][1:])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_files(path: Path) -> None:
    data = path.read_bytes()
    assert_alike(data[START:], context=SegmentHeader.decode(data).context)


def test_cut_at_every_byte_by_the_end_of_the_file_of_the_data_or_of_what_may_be_read() -> None:
    for cut in range(len(MIXED.data)):
        assert_alike(MIXED.data[:cut])
        assert_alike(MIXED.data[:cut], limit=MIXED.limit)
        assert_alike(MIXED.data, limit=START + cut)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_turned_round(stride: int, seed: int) -> None:
    for bit in range(seed % stride, len(MIXED.data) * 8, stride):
        assert_alike(flipped(MIXED.data, bit))


@given(puts_strategy, st.integers(0, 40))
def test_random_puts(puts: list[Put], skipped: int) -> None:
    assert_alike(encode_puts(puts).data, skip_below=BASE + skipped)


@given(columns_strategy(), st.sampled_from([CODEC_NONE, CODEC_ZSTD]), st.data())
def test_changes_under_a_right_checksum(columns: Columns, codec: int, data: st.DataObject) -> None:
    frame = encode_puts([Put(columns, codec=codec)]).data
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(2, len(frame) // 4 - 2)) * 4
        frame = patched(frame, at, data.draw(hostile_u32.map(lambda word: word.to_bytes(4, "little"))))
    assert_alike(reseal(frame))


def test_compact_records_that_repeat_an_offset_or_leave_some_out() -> None:
    one = encode_puts([Put(Columns([b"%d" % n])) for n in range(5)]).frames
    assert_alike(b"".join([*one[:3], one[1], *one[1:2], *one[4:]]))


def test_without_checksums_only_what_holds_the_frames_together_is_looked_at() -> None:
    stream = encode_puts([Put(Columns([b"a" * 20])), Put(Columns([b"b" * 20])), Put(Columns([b"c"] * 9))])
    body = stream.data.index(b"a" * 20)
    changed = patched(stream.data, body, b"x")
    assert found(changed, CONTEXT, stream.limit)[0] == []
    rows, used, position = found(changed, CONTEXT, stream.limit, verify=False)
    assert ([row[-1] for row in rows][:2], used, position) == ([b"x" + b"a" * 19, b"b" * 20], len(stream.data), None)
    trailer = stream.positions[1] - 4
    assert found(patched(stream.data, trailer, b"\x01"), CONTEXT, stream.limit, verify=False) == ([], 0, START)


@pytest.mark.parametrize("others", [0, 1, 9])
def test_without_checksums_damage_is_read_beside_labelled_records_too(others: int) -> None:
    labelled = [Put(Columns([b"c"], tags=["t"]))] * others
    stream = encode_puts([Put(Columns([b"a" * 20])), *labelled, Put(Columns([b"b" * 20], tags=["u"]))])
    for body in (b"a" * 20, b"b" * 20):
        changed = patched(stream.data, stream.data.index(body), b"x")
        rows, used, position = found(changed, CONTEXT, stream.limit, verify=False)
        assert (len(rows), used, position) == (others + 2, len(stream.data), None)
        assert b"x" + body[1:] in [row[-1] for row in rows]
        assert found(changed, CONTEXT, stream.limit)[2] is not None


def test_small_batches_are_given_together_unless_they_are_of_a_run_or_an_offset_is_missing() -> None:
    pairs = [
        Put(Columns([b"a", b"b"], times=[n, n + 1] if n % 2 else None, tags=["t", None], transaction=n), n)
        for n in range(9)
    ]
    with_headers = [Put(Columns([b"c", b"d"], headers=[{"name": "value"}, {}]), codec=CODEC_ZSTD)] * 2
    run = Put(Columns([b"e" * 40_000] * 2, keys=[b"k", None]), atomic=True)
    stream = encode_puts([*pairs, *with_headers, run, *pairs[:3]])
    assert_alike(stream.data)
    rows, _, _ = ArrowDecoder()(stream.data, CONTEXT, position=START, limit=stream.limit)
    assert [one.stop - one.first for one in rows] == [22, 1, 1, 6]
    assert (rows[0].position, rows[0].length) == (START, stream.positions[11])
    missing = b"".join([*stream.frames[:3], *stream.frames[4:7]])
    assert_alike(missing)
    rows, _, _ = ArrowDecoder()(missing, CONTEXT, position=START, limit=START + len(missing))
    assert [(one.first - BASE, one.stop - BASE) for one in rows] == [(0, 6), (8, 14)]


def test_a_text_that_is_none() -> None:
    frame = encode_puts([Put(Columns([b"a"], tags=["tag"]))]).data
    bad = reseal(patched(frame, frame.index(b"tag"), b"\xff"))
    assert_alike(bad)
    rows, _, error = ArrowDecoder()(bad, CONTEXT, position=START, limit=START + len(bad))
    assert rows == []
    assert isinstance(error, CorruptionError)


def test_only_what_is_wanted_is_made() -> None:
    batches, used, error = ArrowDecoder(["offset", "tag"])(MIXED.data, CONTEXT, position=START, limit=MIXED.limit)
    assert (used, error) == (len(MIXED.data), None)
    assert all(one.arrays.get("body") is None and one.arrays.get("headers") is None for one in batches)
    assert [tag for one in batches for tag in joined([one], "tag", "t").to_pylist()] == [
        row[2] for row in expected_rows()
    ]


def expected_rows() -> list[tuple[object, ...]]:
    return expected(MIXED.data, CONTEXT, MIXED.limit)[0]


@given(puts_strategy, st.integers(0, 30), st.integers(0, 30))
def test_a_part_between_two_offsets(puts: list[Put], start: int, length: int) -> None:
    stream = encode_puts(puts)
    batches, _, _ = ArrowDecoder()(stream.data, CONTEXT, position=START, limit=stream.limit)
    whole = expected(stream.data, CONTEXT, stream.limit)[0]
    low, high = BASE + start, BASE + start + length
    parts = [one.cut(low, high) for one in batches if one.first < high and one.stop > low]
    assert rows_of(parts) == [row for row in whole if isinstance(row[0], int) and low <= row[0] < high]


def test_the_schema() -> None:
    schema = schema_of()
    assert schema.names == list(COLUMNS)
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert schema.field("headers").type == pa.map_(pa.string(), pa.string())
    assert all(field.nullable for field in schema)
    assert schema_of(["body", "offset"]).names == ["offset", "body"]
