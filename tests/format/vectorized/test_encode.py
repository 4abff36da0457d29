"""Arrow arrays become the frames that their values become one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.frame import Encoded, encode_run, slice_frames
from aiodq.format.layout import FRAME_BYTES, FRAME_RECORDS
from aiodq.format.vectorized.encode import ArrowColumns
from tests.format.support import BASE, CONTEXT, TIME

if TYPE_CHECKING:
    from collections.abc import Sequence

BINARY = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT = [pa.string(), pa.large_string()]

Row = tuple[bytes, str | None, bytes | None]


def expected(columns: Columns, codec: int) -> list[Encoded]:
    """Return the frames of values one by one."""
    frames: list[Encoded] = []
    for start, stop in slice_frames(columns):
        part, first = columns.slice(start, stop), BASE + start
        frames += encode_run(part, CONTEXT, first=first, watermark=BASE, time_ns=TIME, codec=codec, atomic=False)
    return frames


def found(columns: ArrowColumns, codec: int) -> list[Encoded]:
    """Return the frames of arrays."""
    frames: list[Encoded] = []
    first = BASE
    for part in columns.parts():
        frames.append(part.encode(CONTEXT, first=first, watermark=BASE, time_ns=TIME, codec=codec))
        assert frames[-1].records == part.records
        first += part.records
    return frames


def assert_alike(rows: Sequence[Row], columns: ArrowColumns, *, tags: bool, keys: bool, codec: int) -> None:
    """Compare the frames, and what an index is told of them."""
    bodies, texts, blobs = (list(column) for column in zip(*rows, strict=True))
    values = Columns(bodies, tags=texts if tags else None, keys=blobs if keys else None)
    one_by_one, together = (
        [(b"".join(frame.parts), *frame[1:]) for frame in frames]
        for frames in (expected(values, codec), found(columns, codec))
    )
    assert together == one_by_one


def array_of(values: Sequence[object], kind: Any, before: int, after: int, unused: object) -> Any:
    """Return values as an array that is a slice of a longer one."""
    return pa.array([unused] * before + [*values] + [unused] * after, kind).slice(before, len(values))


rows_strategy = st.lists(
    st.tuples(
        st.binary(max_size=12) | st.builds(bytes, st.sampled_from([0, 100, 30_000, FRAME_BYTES, FRAME_BYTES + 1])),
        st.none() | st.text(max_size=4) | st.just("\u00e9" * 20_000),
        st.none() | st.binary(max_size=4) | st.just(bytes(40_000)),
    ),
    min_size=1,
    max_size=12,
)


class TestTheFrames:
    @given(
        rows=rows_strategy,
        kinds=st.tuples(st.sampled_from(BINARY), st.sampled_from(TEXT), st.sampled_from(BINARY)),
        around=st.tuples(st.integers(0, 9), st.integers(0, 3)),
        labels=st.sets(st.sampled_from(["tags", "keys"])),
        codec=st.sampled_from([CODEC_NONE, CODEC_ZSTD]),
    )
    @example([(b"", None, None)] * 3, (BINARY[0], TEXT[0], BINARY[0]), (0, 0), {"tags", "keys"}, CODEC_NONE)
    @example([(b"", None, None)], (BINARY[0], TEXT[0], BINARY[0]), (0, 0), set(), CODEC_NONE)
    @example([(bytes(99), None, None)], (BINARY[0], TEXT[0], BINARY[0]), (1, 1), set(), CODEC_ZSTD)
    def test_are_the_same(
        self,
        rows: list[Row],
        kinds: tuple[Any, Any, Any],
        around: tuple[int, int],
        labels: set[str],
        codec: int,
    ) -> None:
        bodies, texts, blobs = zip(*rows, strict=True)
        columns = ArrowColumns(
            array_of(bodies, kinds[0], *around, b"unused"),
            array_of(texts, kinds[1], *around, "unused") if "tags" in labels else None,
            array_of(blobs, kinds[2], *around, b"unused") if "keys" in labels else None,
        )
        assert_alike(rows, columns, tags="tags" in labels, keys="keys" in labels, codec=codec)

    @pytest.mark.parametrize("size", [0, 1, 65, 66, 100, 1000, FRAME_BYTES - 1])
    @pytest.mark.parametrize("count", [FRAME_RECORDS - 1, FRAME_RECORDS, FRAME_RECORDS + 1, 2 * FRAME_RECORDS + 1])
    def test_are_the_same_of_many_records(self, size: int, count: int) -> None:
        """Including those of one record that is left, which is compact."""
        count = min(count, 3 * FRAME_BYTES // max(size, 1) + 1)
        rows: list[Row] = [(b"%d" % number + bytes(size), None, None) for number in range(count)]
        columns = ArrowColumns(pa.array([row[0] for row in rows]))
        assert_alike(rows, columns, tags=False, keys=False, codec=CODEC_NONE)

    def test_are_the_same_of_text(self) -> None:
        rows: list[Row] = [("\u00fc".encode() * number, None, b"k") for number in range(9)]
        for kind in TEXT:
            columns = ArrowColumns(pa.array([row[0].decode() for row in rows], kind), keys=pa.array(["k"] * 9, kind))
            assert_alike(rows, columns, tags=False, keys=True, codec=CODEC_NONE)

    def test_have_nothing_of_what_lies_where_a_null_is(self) -> None:
        """Arrow leaves it open which bytes that are, if any."""
        sound = pa.array([b"one", b"hidden", b"two"])
        valid = pa.array([True, False, True]).buffers()[1]
        keys = pa.Array.from_buffers(pa.binary(), 3, [valid, *sound.buffers()[1:]])
        assert keys.to_pylist() == [b"one", None, b"two"]
        rows: list[Row] = [(b"x", None, b"one"), (b"y", None, None), (b"z", None, b"two")]
        columns = ArrowColumns(pa.array([b"x", b"y", b"z"]), keys=keys)
        assert_alike(rows, columns, tags=False, keys=True, codec=CODEC_NONE)
        assert b"hidden" not in b"".join(part for frame in found(columns, CODEC_NONE) for part in frame.parts)


def test_what_is_encoded_keeps_no_array_alive() -> None:
    """It waits until it is written; the array may be of many more records."""
    before = pa.total_allocated_bytes()
    array = pa.array([bytes(1000)] * 10_000)
    assert pa.total_allocated_bytes() > before + 10_000_000
    (frame, *_) = found(ArrowColumns(array), CODEC_NONE)
    del array
    assert frame.length > FRAME_BYTES - 1000
    assert pa.total_allocated_bytes() < before + 100_000
