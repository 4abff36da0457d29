"""Frames as arrays: what belongs together, what is damaged, and the same index as one record after the other gives."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.format import decode
from aiodq.format.columns import CONTINUED, CONTINUES, Columns, Flags
from aiodq.format.decode import decode_frames
from aiodq.format.footer import SegmentIndex
from aiodq.format.frame import FrameContext
from aiodq.format.layout import BATCH_HEADER, FRAME_PREFIX, KIND_BATCH, KIND_COMPACT, TRAILER
from aiodq.format.vectorized import frame_arrays as framearrays
from aiodq.format.vectorized.arrow import ArrowDecoder
from tests.format.arrows import rows_expected, rows_of
from tests.format.support import (
    BASE,
    CONTEXT,
    START,
    TIME,
    Put,
    Stream,
    columns_strategy,
    control_frame,
    encode_puts,
    flipped,
    patched,
    reseal,
)

if TYPE_CHECKING:
    from aiodq.format.frame import Batch

STEP = 8
SINGLES = encode_puts([Put(Columns([b"%d" % n * (n % 9)]), TIME + n * 7 % 11) for n in range(60)])


def labelled(number: int) -> Columns:
    """Return one record with some of what a message may have."""
    columns = Columns([b"%d" % number * (number % 9)])
    if number % 2:
        columns.tags = [None if number % 3 == 0 else "tag\u00e9" * (number % 4)]
    if number // 2 % 2:
        columns.keys = [None if number % 5 == 0 else b"key" * (number % 3)]
    if number // 4 % 2:
        columns.headers = [{"name": f"{number}"} if number % 7 else {}]
    if number % 11 == 0:
        columns.transaction = number
    if number // 8 % 2:
        columns.dues = [TIME + number]
    if number // 3 % 2:
        columns.expiries = [TIME - number]
    return columns


LABELLED = encode_puts([Put(labelled(n), TIME + n * 7 % 11) for n in range(60)])


def cut_up(count: int, start: int = 0, size: int = 9) -> Columns:
    """Return records of which each takes a frame of its own, if there are several."""
    return Columns([b"%d" % (start + n) * (40_000 // size) * size for n in range(count)])


# Puts of many frames between such of one, so that a read may begin and end anywhere in them.
RUNS = encode_puts(
    [
        Put(cut_up(3), atomic=True),
        Put(Columns([b"a", b"b"])),
        Put(cut_up(2), atomic=True),
        Put(cut_up(4), atomic=True),
        Put(Columns([b"single"])),
        Put(cut_up(2), atomic=False),
        Put(cut_up(5), atomic=True),
    ]
)


def both(data: bytes, limit: int | None = None, context: FrameContext = CONTEXT, skip_below: int = 0) -> None:
    """Compare what both decoders make of the data."""
    limit = START + len(data) if limit is None else limit
    batches, used, error = decode_frames(data, context, position=START, limit=limit, skip_below=skip_below)
    rows, end, refusal = ArrowDecoder()(data, context, position=START, limit=limit, skip_below=skip_below)
    # Of records that are decoded together some may be skipped ones.
    found, expected = (
        [row for row in some if isinstance(row[0], int) and row[0] >= skip_below]
        for some in (rows_of(rows), rows_expected(batches))
    )
    assert (found, end) == (expected, used)
    assert (refusal and refusal.position) == (error and error.position)


ONE_BY_ONE = pytest.mark.parametrize("stream", [SINGLES, LABELLED], ids=["plain", "labelled"])


@ONE_BY_ONE
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_any_wrong_bit_among_many_records_is_found_and_costs_only_what_follows(
    stream: Stream, stride: int, seed: int
) -> None:
    for bit in range(seed % stride, len(stream.data) * 8, stride):
        both(flipped(stream.data, bit))


@ONE_BY_ONE
def test_two_wrong_bits(stream: Stream, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        data = stream.data
        for _ in range(rng.randrange(2, 5)):
            data = flipped(data, rng.randrange(len(data) * 8))
        both(data)


def test_another_checksum_than_the_usual_one_is_compared_record_by_record() -> None:
    def another(data: bytes | bytearray | memoryview, start: int) -> int:
        return (sum(bytes(data)) + start) & 0xFFFFFFFF

    context = FrameContext(BASE, another, 77)
    data = encode_puts([Put(Columns([b"%d" % n])) for n in range(9)], context).data
    both(data, context=context)
    both(patched(data, len(data) // 2, b"!"), context=context)


@pytest.mark.parametrize("inner", [SINGLES.data, RUNS.data[:3000], control_frame(), SINGLES.frames[3] * 5])
def test_frames_in_messages_are_no_frames(inner: bytes) -> None:
    puts = [Put(Columns([b"%d" % n])) for n in range(3)]
    for shift in range(STEP):
        puts += [Put(Columns([bytes(shift) + inner])), Put(Columns([b"between"])), Put(Columns([inner, b"two", inner]))]
    stream = encode_puts(puts)
    both(stream.data)
    for cut in range(0, len(stream.data), 97):
        both(stream.data[:cut], limit=stream.limit)


def frames_of(batches: list[Batch]) -> dict[int, Batch]:
    return {batch.position: batch for batch in batches}


def assert_runs_told(data: bytes, stream: Stream) -> None:
    """Make sure that rows made of several frames hide no run's beginning and no run's end that a reader must know."""
    batches, *_ = decode_frames(data, CONTEXT, position=START, limit=stream.limit)
    rows, *_ = ArrowDecoder()(data, CONTEXT, position=START, limit=stream.limit)
    single = frames_of(batches)
    for one in rows:
        inside = [batch for at, batch in single.items() if one.position <= at < one.position + one.length]
        assert one.flags & CONTINUES == inside[0].flags & CONTINUES
        assert one.flags & CONTINUED == inside[-1].flags & CONTINUED
        if one.flags & (CONTINUES | CONTINUED):
            # A part of one run, and of nothing else.
            assert all(batch.flags & CONTINUED for batch in inside[:-1])
            assert all(batch.flags & CONTINUES for batch in inside[1:])


def test_rows_of_several_frames_are_whole_runs_or_part_of_one() -> None:
    for start in RUNS.positions[:-1]:
        for stop in RUNS.positions[1:]:
            if start < stop:
                assert_runs_told(RUNS.data[start:stop], RUNS)


def test_nor_is_a_run_given_with_others_where_damage_cuts_it_off() -> None:
    for frame in RUNS.positions[:-1]:
        assert_runs_told(flipped(RUNS.data, frame * 8 + 400), RUNS)


def test_few_rows_for_many_frames() -> None:
    rows, *_ = ArrowDecoder()(RUNS.data, CONTEXT, position=START, limit=RUNS.limit)
    assert len(rows) == 3
    assert len(RUNS.frames) == 18


@pytest.mark.parametrize("columns", [Columns([b"a"]), Columns([b"a", b"bc"]), Columns([b"a", b"b"], tags=["t", None])])
@pytest.mark.parametrize("skipped", [0, 7, 99])
def test_another_length_at_the_end_under_a_right_checksum(columns: Columns, skipped: int) -> None:
    for number in range(9):
        frames = encode_puts([Put(columns) for _ in range(9)]).frames
        frames[number] = reseal(patched(frames[number], len(frames[number]) - 4, b"\x99"))
        both(b"".join(frames), skip_below=BASE + skipped)


def test_what_is_skipped_is_checked_and_not_decoded() -> None:
    frames = encode_puts([Put(Columns([b"a", b"bc"], tags=["t", None])) for _ in range(9)]).frames
    frames[2] = reseal(patched(frames[2], 40, b"\x99"))
    for skipped in (0, 5, 6, 7):
        both(b"".join(frames), skip_below=BASE + skipped)


@pytest.mark.parametrize("count", range(1, 12))
def test_few_frames_and_many(count: int) -> None:
    puts = [Put(Columns([b"%d" % n])) for n in range(count)] + [Put(Columns([b"%d" % n, b"b"])) for n in range(count)]
    both(encode_puts([*puts, *puts]).data)
    both(encode_puts([Put(Columns([b"%d" % n] * 90)) for n in range(count)]).data)


@pytest.mark.parametrize("word", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("value", [0, 1, 2, 2**16, 2**31, 2**32 - 1])
def test_lengths_that_do_not_add_up_under_a_right_checksum(word: int, value: int) -> None:
    for number in (0, 2, 4):
        frames = encode_puts([Put(Columns([b"a", b"bc"])) for _ in range(5)]).frames
        # The header's count, stored and raw bytes; behind them the lengths of two bodies.
        frames[number] = reseal(patched(frames[number], 28 + 4 * word, value.to_bytes(4, "little")))
        both(b"".join(frames))


@pytest.mark.parametrize("word", range(9))
def test_fields_of_labelled_records_that_do_not_add_up_under_a_right_checksum(word: int) -> None:
    for value in (0, 1, 2, 3, 2**16, 2**31, 2**32 - 1):
        for number in (0, 7, 59):
            frames = [*LABELLED.frames]
            if 32 + 4 * word <= len(frames[number]):
                frames[number] = reseal(patched(frames[number], 28 + 4 * word, value.to_bytes(4, "little")))
            both(b"".join(frames))


def batch_of_one(number: int, flags: Flags, payload: bytes, size: int) -> bytes:
    """Return a batch that says of one record that its payload has `size` bytes."""
    length = BATCH_HEADER.size + len(payload) + TRAILER.size
    head = BATCH_HEADER.pack(length, 0, KIND_BATCH, 0, flags, number, 0, TIME, 1, size, size)
    return reseal(head + payload + TRAILER.pack(length))


def compact(number: int, body: bytes, padding: int) -> bytes:
    length = FRAME_PREFIX.size + len(body) + TRAILER.size
    head = FRAME_PREFIX.pack(length, 0, KIND_COMPACT, padding, 0, number, 0, TIME)
    return reseal(head + body + TRAILER.pack(length))


def test_what_does_not_fit_into_its_frame_under_a_right_checksum() -> None:
    """With one in a place where only the first check that finds it wrong can be the reason."""

    def wrong(number: int) -> list[bytes]:
        tags = struct.pack("<II", 16, 3) + b"tag" + bytes(16)
        return [
            batch_of_one(number, Flags.TAGS, struct.pack("<II", 24, 3) + tags[8:] + bytes(1), 35),
            batch_of_one(number, Flags.TAGS, struct.pack("<II", 4, 3) + tags[8:] + bytes(1), 15),
            batch_of_one(number, Flags(0x3E), bytes(4), 4),
            compact(number, b"", 4),
            compact(number, bytes(16), 8),
        ]

    for number in (0, 30, 59):
        for frame in wrong(number):
            both(b"".join([*LABELLED.frames[:number], frame, *LABELLED.frames[number + 1 :]]))
        good = batch_of_one(number, Flags.TAGS, struct.pack("<II", 16, 3) + b"tag" + bytes(17), 27)
        data = b"".join([*LABELLED.frames[:number], good])
        rows, used, error = ArrowDecoder()(data, CONTEXT, position=START, limit=START + len(data))
        assert (rows_of(rows)[-1][2], error) == ("tag", None)
        assert used == len(data)


@pytest.mark.parametrize("text", [b"tag", b"name"])
def test_a_text_that_is_none_among_many_records(text: bytes) -> None:
    with_it = [number for number, frame in enumerate(LABELLED.frames) if text in frame]
    assert with_it[0] < 9
    assert with_it[-1] > 50
    for number in with_it:
        frame = LABELLED.frames[number]
        bad = reseal(patched(frame, frame.index(text), b"\xff"))
        both(b"".join([*LABELLED.frames[:number], bad, *LABELLED.frames[number + 1 :]]))


@given(st.lists(st.tuples(columns_strategy(max_count=1), st.integers(1, 9)), max_size=5), st.integers(0, 20))
def test_any_labelled_records(runs: list[tuple[Columns, int]], skipped: int) -> None:
    both(encode_puts([Put(columns) for columns, times in runs for _ in range(times)]).data, skip_below=BASE + skipped)


def test_labelled_records_are_decoded_together_with_the_plain_ones_between() -> None:
    rows, used, error = ArrowDecoder()(LABELLED.data, CONTEXT, position=START, limit=LABELLED.limit)
    assert (len(rows), used, error) == (1, len(LABELLED.data), None)
    without = [number for number in range(60) if labelled(number).tags is None]
    assert all(row[2] is None for number, row in enumerate(rows_of(rows)) if number in without)


@given(
    st.lists(st.tuples(st.integers(0, 6000), st.integers(-9, 9)), min_size=1, max_size=40),
    st.integers(0, 39),
    st.integers(0, 3000),
    st.booleans(),
)
def test_the_index_is_that_of_one_record_after_the_other(
    messages: list[tuple[int, int]], known: int, damaged: int, late: bool
) -> None:
    stream = encode_puts([Put(Columns([bytes(size)]), TIME + time) for size, time in messages])
    data = flipped(stream.data, damaged * 8) if damaged < len(stream.data) else stream.data
    ways = []
    for way in (decode.index_singles, framearrays.index_singles):
        index, at, first = SegmentIndex(), 0, 0
        if known and late:
            # Another record first, so that these go on in the middle of an entry.
            index.add_each(START - 40, 0, [40], [TIME], 4)
        while True:
            end = stream.positions[min(known + first, len(stream.frames))]
            records, length = way(index, data[: end or None], at, CONTEXT, position=START + at, first=first)
            if not records:
                break
            at, first = at + length, first + records
        ways.append((index, at, first))
    assert ways[0] == ways[1]


def test_only_what_follows_the_last_record_is_added() -> None:
    for way in (decode.index_singles, decode.index_apart, framearrays.index_singles):
        index = SegmentIndex()
        assert way(index, SINGLES.data, 0, CONTEXT, position=START, first=1) == (0, 0)
        assert way(index, RUNS.data, 0, CONTEXT, position=START, first=0) == (0, 0)
        assert way(index, b"", 0, CONTEXT, position=START, first=0) == (0, 0)
        assert index == SegmentIndex()
