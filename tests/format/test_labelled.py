"""Labelled messages that were put one by one are decoded together, and as each would be by itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import CONTINUED, CONTINUES, Columns, Flags
from aiodq.format.decode import decode_frames
from aiodq.format.frame import decode_frame, encode_run, read_prefix
from aiodq.format.layout import FRAME_PREFIX, TRAILER
from tests.format.support import (
    BASE,
    CONTEXT,
    START,
    TIME,
    Record,
    Stream,
    columns_strategy,
    decode,
    hostile_u32,
    patched,
    records_in,
    records_of,
    reseal,
)

labels = columns_strategy(max_count=1)
"""One record with any of what a message may have."""


def stream_of(puts: list[Columns], skipped: tuple[int, ...] = ()) -> Stream:
    """Encode puts of one message each; before those of these numbers, an offset is left out."""
    frames: list[bytes] = []
    records: list[list[Record]] = []
    first = BASE
    for number, columns in enumerate(puts):
        first += number in skipped
        (frame,) = encode_run(
            columns, CONTEXT, first=first, watermark=BASE, time_ns=TIME + number, codec=CODEC_NONE, atomic=False
        )
        frames.append(b"".join(frame.parts))
        records.append(records_of(first, TIME + number, columns))
        first += 1
    return Stream(b"".join(frames), frames, records)


def one_by_one(data: bytes) -> tuple[list[Record], int, str]:
    """Decode each frame by itself: return the records, the bytes they take, and what is wrong with what follows."""
    records: list[Record] = []
    view, at = memoryview(data), 0
    while at < len(data):
        try:
            frame = read_prefix(view, at, CONTEXT, position=START + at, limit=START + len(data))
            records += records_in([decode_frame(view, at, frame, CONTEXT)])
        except CorruptionError as error:
            return records, at, str(error)
        at += frame.length
    return records, at, ""


def assert_as_one_by_one(data: bytes) -> None:
    records, used, error = decode(data)
    assert (records, used, "" if error is None else str(error)) == one_by_one(data)


@given(st.lists(st.tuples(labels, st.integers(1, 4)), max_size=6), st.lists(st.integers(0, 20), max_size=2))
def test_any_labelled_messages_come_back_in_order(runs: list[tuple[Columns, int]], skipped: list[int]) -> None:
    stream = stream_of([columns for columns, times in runs for _ in range(times)], (*skipped,))
    assert decode(stream.data) == (stream.until(len(stream.frames)), len(stream.data), None)
    assert_as_one_by_one(stream.data)


def test_neighbours_with_the_same_columns_come_as_one_batch() -> None:
    tagged = [Columns([b"%d" % number * number], tags=[f"tag {number}"]) for number in range(5)]
    with_key = [Columns([b"k"], tags=[None], keys=[b"key"])] * 3
    stream = stream_of([*tagged, *with_key, *tagged], (3,))
    batches, used, error = decode_frames(stream.data, CONTEXT, position=START, limit=stream.limit)
    assert (used, error) == (len(stream.data), None)
    assert [len(batch.columns.bodies) for batch in batches] == [3, 2, 3, 5]
    ends = [START + stream.positions[number] for number in (0, 3, 5, 8, 13)]
    assert [(batch.position, batch.position + batch.length) for batch in batches] == [*pairwise(ends)]
    assert [batch.flags for batch in batches] == [Flags.TAGS, Flags.TAGS, Flags.TAGS | Flags.KEYS, Flags.TAGS]
    assert records_in(batches) == stream.until(len(stream.frames))


@given(
    labels,
    st.integers(0, 3),
    st.lists(
        st.tuples(st.integers(2, 200), st.binary(min_size=1, max_size=4) | hostile_u32.map(TRAILER.pack)),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_what_is_wrong_with_one_of_them_is_told_as_by_itself(
    columns: Columns, which: int, changes: list[tuple[int, bytes]], sealed: bool
) -> None:
    stream = stream_of([columns] * 4)
    frame = stream.frames[which]
    for at, new in changes:
        if at * 4 + len(new) <= len(frame):
            frame = patched(frame, at * 4, new)
    if sealed:
        frame = reseal(frame)
    assert_as_one_by_one(b"".join([*stream.frames[:which], frame, *stream.frames[which + 1 :]]))


def test_each_bit_counts() -> None:
    stream = stream_of([Columns([b"body"], tags=["t"], headers=[{"a": "b"}])] * 3)
    at, length = stream.positions[1], len(stream.frames[1])
    for bit in range(length * 8):
        byte, one = at + bit // 8, 1 << bit % 8
        damaged = patched(stream.data, byte, bytes([stream.data[byte] ^ one]))
        records, used, error = decode(damaged)
        assert (records, used) == (stream.until(1), at)
        assert isinstance(error, CorruptionError)


@pytest.mark.parametrize("wrong", ["trailing length", "count", "raw size", "alignment"])
def test_a_right_checksum_does_not_make_it_right(wrong: str) -> None:
    stream = stream_of([Columns([b"0123456789"], tags=["t"])] * 3)
    good = stream.frames[1]
    length = len(good)
    assert good[-5:-4] == bytes(1), "with 4 bytes more of it, the padding is of a length that may be"
    assert good[-6:-5] == b"9"
    frame = {
        "trailing length": patched(good, length - 4, TRAILER.pack(length - 8)),
        "count": patched(good, FRAME_PREFIX.size, TRAILER.pack(2)),
        "raw size": patched(good, FRAME_PREFIX.size + 8, TRAILER.pack(20)),
        "alignment": TRAILER.pack(length + 4) + good[4:-4] + bytes(4) + TRAILER.pack(length + 4),
    }[wrong]
    data = b"".join([stream.frames[0], reseal(frame), stream.frames[2]])
    assert_as_one_by_one(data)
    assert decode(data)[:2] == (stream.until(1), stream.positions[1])


def test_a_part_of_a_run_stands_by_itself() -> None:
    """Else a put of several frames might be delivered without its end."""
    for flag in (CONTINUES, CONTINUED):
        stream = stream_of([Columns([b"body"], tags=["t"])] * 3)
        head = stream.frames[1]
        flags = int.from_bytes(head[10:12], "little") | flag
        frame = reseal(patched(head, 10, flags.to_bytes(2, "little")))
        data = b"".join([stream.frames[0], frame, stream.frames[2]])
        batches, _, _ = decode_frames(data, CONTEXT, position=START, limit=START + len(data))
        assert [batch.flags & (CONTINUES | CONTINUED) for batch in batches] == [0, flag, 0]


@given(labels, st.integers(0, 400))
def test_what_is_cut_short_is_left_for_the_next_read(columns: Columns, size: int) -> None:
    stream = stream_of([columns] * 3)
    size = min(size, len(stream.data))
    whole = sum(end <= size for end in stream.positions[1:])
    assert decode(stream.data[:size], limit=stream.limit)[:2] == (stream.until(whole), stream.positions[whole])
