"""Stretches of frames that begin, end or are damaged anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError
from aiodq.format.decode import decode_frames
from aiodq.format.frame import decode_frame, read_prefix
from tests.format.support import (
    BASE,
    CONTEXT,
    START,
    Put,
    Record,
    Stream,
    decode,
    encode_puts,
    flipped,
    mixed_stream,
    patched,
    puts_strategy,
    records_in,
    walk,
)

if TYPE_CHECKING:
    from aiodq.format.frame import Batch

MIXED = mixed_stream()
FRAMES = range(len(MIXED.frames))


def whole_frames(stream: Stream, size: int) -> int:
    """Return how many frames are whole in the first `size` bytes."""
    return sum(end <= size for end in stream.positions[1:])


def test_the_stream_has_a_bit_of_everything() -> None:
    assert {(frame.kind, frame.flags, frame.detail) for frame in walk(MIXED.data)} >= {
        (0xB7, 0, 0), (0xB7, 0, 1), (0xB7, 0x3F, 0), (0xB7, 0x08, 0), (0xC5, 0, 0), (0xE3, 0, 0)
    }  # fmt: skip
    assert decode(MIXED.data) == (MIXED.until(len(MIXED.frames)), len(MIXED.data), None)


@pytest.mark.parametrize("start", FRAMES)
def test_data_cut_at_any_byte_gives_the_whole_frames_before_the_cut(start: int) -> None:
    begin = MIXED.positions[start]
    for cut in range(begin, len(MIXED.data)):
        whole = whole_frames(MIXED, cut)
        batches, used, error = decode_frames(MIXED.data[begin:cut], CONTEXT, position=START + begin, limit=MIXED.limit)
        assert error is None
        assert used == MIXED.positions[whole] - begin
        assert [row for rows in MIXED.records[start:whole] for row in rows] == records_in(batches)


def test_a_file_cut_at_any_byte_gives_the_whole_frames_and_says_so() -> None:
    for cut in range(len(MIXED.data)):
        whole = whole_frames(MIXED, cut)
        records, used, error = decode(MIXED.data[:cut])
        assert (records, used) == (MIXED.until(whole), MIXED.positions[whole])
        if cut in MIXED.positions:
            assert error is None
        else:
            assert isinstance(error, CorruptionError)
            assert error.position == START + used


def test_what_lies_behind_the_limit_is_not_looked_at() -> None:
    for cut in range(len(MIXED.data)):
        records, used, error = decode(MIXED.data, limit=START + cut)
        whole = whole_frames(MIXED, cut)
        assert (records, used) == (MIXED.until(whole), MIXED.positions[whole])
        assert (error is None) == (cut in MIXED.positions)


def test_batches_know_their_place_in_the_file() -> None:
    batches, _, _ = decode_frames(MIXED.data, CONTEXT, position=START, limit=MIXED.limit)
    for batch in batches:
        begin = batch.position - START
        assert decode(MIXED.data[begin : begin + batch.length]) == (records_in([batch]), batch.length, None)


def test_nothing_is_no_error() -> None:
    assert decode(b"") == ([], 0, None)
    assert decode(MIXED.data, limit=START) == ([], 0, None)


@given(puts_strategy, st.lists(st.integers(1, 300), min_size=1))
def test_reading_on_where_the_last_stretch_ended_gives_everything_once(puts: list[Put], sizes: list[int]) -> None:
    stream = encode_puts(puts)
    records: list[Record] = []
    at = turn = size = 0
    while at < len(stream.data):
        size += sizes[turn % len(sizes)]
        turn += 1
        batches, used, error = decode_frames(
            stream.data[at : at + size], CONTEXT, position=START + at, limit=stream.limit
        )
        assert error is None
        records += records_in(batches)
        at += used
        size = 0 if used else size
    assert records == stream.until(len(stream.frames))


@given(puts_strategy, st.data())
def test_skipping_leaves_out_whole_batches_below(puts: list[Put], data: st.DataObject) -> None:
    stream = encode_puts(puts)
    everything = stream.until(len(stream.frames))
    skip = data.draw(st.integers(BASE - 1, BASE + len(everything) + 1))
    batches, used, error = decode_frames(stream.data, CONTEXT, position=START, limit=stream.limit, skip_below=skip)
    assert (used, error) == (len(stream.data), None)
    assert all(batch.stop > skip for batch in batches)
    assert [row for row in records_in(batches) if row.offset >= skip] == [
        row for row in everything if row.offset >= skip
    ]


def test_skipping_to_any_offset() -> None:
    everything = MIXED.until(len(MIXED.frames))
    for skip in range(BASE, BASE + len(everything) + 2):
        records, used, error = decode(MIXED.data, skip_below=skip)
        assert (used, error) == (len(MIXED.data), None)
        assert [row for row in records if row.offset >= skip] == [row for row in everything if row.offset >= skip]


@pytest.mark.parametrize("number", FRAMES)
@pytest.mark.parametrize("skip_below", [0, 2**40])
def test_any_bit_turned_round_stops_the_reader_before_that_frame(number: int, skip_below: int) -> None:
    begin, end = MIXED.positions[number : number + 2]
    before = [] if skip_below else MIXED.until(number)
    for bit in range(begin * 8, end * 8):
        records, used, error = decode(flipped(MIXED.data, bit), skip_below=skip_below)
        assert isinstance(error, CorruptionError), bit
        assert (records, used, error.position) == (before, begin, START + begin), bit


@pytest.mark.parametrize("number", FRAMES)
def test_any_bit_turned_round_in_the_middle_of_a_file_gives_nothing_wrong(number: int) -> None:
    """A length that points beyond what was read is no error yet; then nothing of it is given out either."""
    begin, end = MIXED.positions[number : number + 2]
    for bit in range(begin * 8, end * 8):
        records, used, error = decode(flipped(MIXED.data, bit), limit=2**40)
        assert (records, used) == (MIXED.until(number), begin), bit
        assert error is not None or bit < (begin + 4) * 8, bit


@pytest.mark.parametrize("number", FRAMES)
def test_any_bit_turned_round_is_found_by_the_check_of_one_frame(number: int) -> None:
    data = MIXED.frames[number]
    for bit in range(len(data) * 8):
        with pytest.raises(CorruptionError):
            read_one(flipped(data, bit))


def read_one(data: bytes) -> Batch:
    frame = read_prefix(data, 0, CONTEXT, position=START, limit=START + len(data))
    return decode_frame(memoryview(data), 0, frame, CONTEXT)


@given(st.integers(0, len(MIXED.data) - 1), st.binary(min_size=1, max_size=64))
def test_overwritten_bytes_stop_the_reader(at: int, junk: bytes) -> None:
    broken = patched(MIXED.data, at, junk)[: len(MIXED.data)]
    first = next((number for number, byte in enumerate(broken) if byte != MIXED.data[number]), None)
    records, used, error = decode(broken)
    if first is None:
        assert error is None
        return
    number = whole_frames(MIXED, first)
    assert isinstance(error, CorruptionError)
    assert (records, used) == (MIXED.until(number), MIXED.positions[number])


@pytest.mark.parametrize("size", [1, 7, 8, 31, 32, 40, 4096])
@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\xb7", b"\xc5", b"\xe0"])
def test_a_tail_of_one_byte_repeated_is_damage(size: int, fill: bytes) -> None:
    records, used, error = decode(MIXED.data + fill * size)
    assert isinstance(error, CorruptionError)
    assert (records, used) == (MIXED.until(len(MIXED.frames)), len(MIXED.data))
