"""Frames that somebody made on purpose: their checksum is right, and nothing else needs to be.

Whatever they say, decoders raise nothing but `CorruptionError` and `FormatVersionError`, and allocate in proportion.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError, FormatVersionError
from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD, compress, raw_limit
from aiodq.format.columns import Columns, Flags, decode_columns
from aiodq.format.frame import check_frame, decode_frame, encode_frames, read_prefix
from aiodq.format.layout import BATCH_HEADER, FRAME_PREFIX, KIND_BATCH, KIND_COMPACT, MAX_RECORDS, NULL_LENGTH, TRAILER
from aiodq.format.scan import frame_before
from tests.format.support import (
    BASE,
    CONTEXT,
    HOSTILE,
    MIB,
    START,
    TIME,
    Put,
    Record,
    all_columns,
    columns_strategy,
    control_frame,
    decode,
    encode_columns,
    encode_puts,
    first_frame,
    hostile_u32,
    memory_bound,
    mixed_stream,
    patched,
    reseal,
)

if TYPE_CHECKING:
    from aiodq.format.frame import Frame

MIXED = mixed_stream()
ALLOWED = 16 * MIB


def batch(
    payload: bytes, *, count: int, flags: int = 0, codec: int = CODEC_NONE, raw: int | None = None,
    stored: int | None = None, length: int | None = None,
) -> bytes:  # fmt: skip
    """Return a batch that says what it is told to, under a right checksum."""
    size = BATCH_HEADER.size + len(payload) + TRAILER.size
    padding = -size % 8
    length = size + padding if length is None else length
    stored = len(payload) if stored is None else stored
    raw = len(payload) if raw is None else raw
    head = BATCH_HEADER.pack(length, 0, KIND_BATCH, codec, flags, 0, 0, TIME, count, stored, raw)
    return reseal(head + payload + bytes(padding) + TRAILER.pack(length))


def zstd_batch(payload: bytes, *, count: int, flags: int = 0) -> bytes:
    codec, stored = compress(payload, CODEC_ZSTD)
    assert codec == CODEC_ZSTD
    return batch(stored, count=count, flags=flags, codec=codec, raw=len(payload))


def compact(body: bytes, *, padding: int, flags: int = 0, length: int | None = None) -> bytes:
    length = FRAME_PREFIX.size + len(body) + TRAILER.size if length is None else length
    head = FRAME_PREFIX.pack(length, 0, KIND_COMPACT, padding, flags, 0, 0, TIME)
    return reseal(head + body + TRAILER.pack(length))


def lengths(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def decode_bounded(data: bytes, allowed: int = ALLOWED) -> tuple[list[Record], int, Exception | None]:
    """Decode with an eye on memory; a version that is too new counts as an error like any other."""
    with memory_bound(allowed):
        try:
            return decode(data)
        except FormatVersionError as error:
            return [], 0, error


def assert_refused(data: bytes, match: str = "", allowed: int = ALLOWED) -> None:
    """Make sure that neither the stretch decoder nor that of one frame gives anything of the first frame."""
    records, used, error = decode_bounded(data, allowed)
    assert isinstance(error, CorruptionError), records[:3]
    assert match in str(error)
    assert (records, used, error.position) == ([], 0, START)
    with memory_bound(allowed), pytest.raises(CorruptionError):
        decode_one(data)


def decode_one(data: bytes) -> None:
    frame = read_prefix(data, 0, CONTEXT, position=START, limit=START + len(data))
    decode_frame(memoryview(data), 0, frame, CONTEXT)


def test_the_makers_of_hostile_frames_make_good_ones() -> None:
    (good,) = encode_frames(Columns([b"ab", b"c"]), CONTEXT, first=BASE, watermark=BASE, time_ns=TIME)
    assert batch(lengths(2, 1) + b"abc", count=2) == good
    (good,) = encode_frames(Columns([b"abc"]), CONTEXT, first=BASE, watermark=BASE, time_ns=TIME)
    assert compact(b"abc" + bytes(5), padding=5) == good
    packed = Columns([b"x" * 100])
    (good,) = encode_frames(packed, CONTEXT, first=BASE, watermark=BASE, time_ns=TIME, codec=CODEC_ZSTD)
    assert zstd_batch(lengths(100) + b"x" * 100, count=1) == good


GOOD = [
    MIXED.frames[0],
    MIXED.frames[3],
    MIXED.frames[4],
    MIXED.frames[7],
    MIXED.frames[8],
    control_frame(body=bytes(24)),
]


@pytest.mark.parametrize("number", range(len(GOOD)))
@pytest.mark.parametrize("tail", [b"", MIXED.data, bytes(4096)], ids=["end", "frames", "zeros"])
def test_hostile_length(number: int, tail: bytes) -> None:
    frame = GOOD[number]
    past_the_end = len(frame) + len(tail) + 8
    for length in {*HOSTILE, past_the_end, len(frame) - 8, len(frame) + 8} - {len(frame)}:
        data = patched(frame, 0, length.to_bytes(4, "little")) + tail
        assert_refused(data)
        if length % 8 or frame[8] == KIND_BATCH:  # to another kind, any whole number of 8 bytes is a good length
            assert_refused(resealed_to(data, length))


def resealed_to(data: bytes, length: int) -> bytes:
    """Return the data with trailing length and checksum set right for that length, where it fits."""
    if not 12 <= length <= len(data):
        return data
    data = patched(data, length - 4, TRAILER.pack(length))
    return patched(data, 4, CONTEXT.checksum(data[8:length], CONTEXT.salt).to_bytes(4, "little"))


@pytest.mark.parametrize("length", [0, 8, 16, 24])
@pytest.mark.parametrize("kind", [KIND_BATCH, KIND_COMPACT, 0xE0])
def test_a_frame_too_short_for_its_own_fields(length: int, kind: int) -> None:
    data = FRAME_PREFIX.pack(length, CONTEXT.salt, kind, 0, 0, 0, 0, TIME) + bytes(64)
    assert_refused(resealed_to(data, length), "does not fit")


@pytest.mark.parametrize("length", [32, 40])
def test_a_batch_too_short_for_its_header(length: int) -> None:
    data = FRAME_PREFIX.pack(length, 0, KIND_BATCH, 0, 0, 0, 0, TIME) + lengths(1, 0, 4)
    data = patched(data.ljust(length, b"\0")[:length], length - 4, TRAILER.pack(length))
    assert_refused(reseal(data), "no frame starts here")


@pytest.mark.parametrize("count", [value for value in HOSTILE if value != 3] + [2, 5, MAX_RECORDS + 1])
def test_hostile_count(count: int) -> None:
    assert_refused(batch(lengths(1, 1, 1) + b"abc", count=count))


@pytest.mark.parametrize("raw", [value for value in HOSTILE if value != 16] + [15, 17, 2 * MIB])
@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
def test_hostile_raw_size(raw: int, codec: int) -> None:
    payload = lengths(12) + b"abcabcabcabc"
    stored = zstandard.ZstdCompressor().compress(payload) if codec else payload
    assert_refused(batch(stored, count=1, codec=codec, raw=raw))


@pytest.mark.parametrize("stored", [value for value in HOSTILE if value not in (7, 8)] + [6, 9, 15, 16])
def test_hostile_stored_size(stored: int) -> None:
    assert_refused(batch(lengths(3) + b"abc" + bytes(9), count=1, raw=7, stored=stored))


@pytest.mark.parametrize("value", [value for value in HOSTILE if value != 3] + [2, 5, 6])
def test_hostile_body_length(value: int) -> None:
    assert_refused(batch(lengths(1, value, 1) + b"abcde", count=3), "do not add up")


@pytest.mark.parametrize("flag", [Flags.TAGS, Flags.KEYS, Flags.HEADERS])
@pytest.mark.parametrize("value", [value for value in HOSTILE if value not in (3, NULL_LENGTH)] + [4, 5, 6])
def test_hostile_value_length(flag: Flags, value: int) -> None:
    assert_refused(batch(lengths(1, 1, value, 0) + b"xyzab", count=2, flags=flag), "do not add up")
    assert_refused(batch(lengths(0, 0, 0, value) + b"xyz", count=2, flags=flag), "do not add up")


@pytest.mark.parametrize("flags", [1 << bit for bit in range(16) if 1 << bit not in set(Flags)])
def test_unknown_flags(flags: int) -> None:
    assert_refused(batch(lengths(1) + b"a", count=1, flags=flags), "unknown flags")
    assert_refused(compact(b"abcdefgh", padding=0, flags=flags), "flags")


@pytest.mark.parametrize("flag", Flags)
def test_flags_that_the_content_does_not_have(flag: Flags) -> None:
    if flag < Flags.CONTINUES:
        assert_refused(batch(lengths(1) + b"a", count=1, flags=flag))
    assert_refused(compact(b"abcdefgh", padding=0, flags=flag), "flags")


@pytest.mark.parametrize("padding", [8, 9, 32, 255])
def test_hostile_padding(padding: int) -> None:
    assert_refused(compact(bytes(8), padding=padding))
    assert_refused(compact(bytes(256), padding=padding))


@pytest.mark.parametrize("padding", [1, 7, 8, 255])
def test_padding_of_a_body_that_is_not_there(padding: int) -> None:
    assert_refused(compact(b"", padding=padding))


def test_unknown_codecs() -> None:
    for codec in range(2, 256):
        data = batch(lengths(1) + b"a", count=1, codec=codec)
        with pytest.raises(FormatVersionError, match=f"codec {codec} "):
            decode(data)
        assert isinstance(decode(patched(data, 44, b"b"))[2], CorruptionError)  # not believed under a wrong checksum


def test_unknown_kinds() -> None:
    for kind in set(range(256)) - {KIND_BATCH, KIND_COMPACT, *range(0xE0, 0xF0)}:
        assert_refused(control_frame(kind=kind, body=bytes(24)), f"kind {kind:#x}")


@pytest.mark.parametrize("kind", range(0xE0, 0xF0))
def test_unknown_control_kinds_are_stepped_over(kind: int) -> None:
    frame = control_frame(kind=kind, body=bytes(24))
    assert decode(frame + MIXED.frames[0]) == (MIXED.until(1), len(frame) + len(MIXED.frames[0]), None)


HEADER_BLOBS = {
    "no count": b"\x01",
    "count without headers": b"\x01\x00",
    "large count": b"\xff\xff" + lengths(0, 0),
    "lengths cut": b"\x01\x00" + lengths(0, 0)[:7],
    "name past the end": b"\x01\x00" + lengths(2, 0) + b"a",
    "value past the end": b"\x01\x00" + lengths(1, 2**32 - 1) + b"ab",
    "name and value past the end": b"\x01\x00" + lengths(2**32 - 1, 2**32 - 1),
    "bytes left": b"\x01\x00" + lengths(1, 1) + b"abc",
    "bytes after none": b"\x00\x00a",
    "name no text": b"\x01\x00" + lengths(1, 1) + b"\xffb",
    "value no text": b"\x01\x00" + lengths(1, 1) + b"a\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HEADER_BLOBS)
def test_hostile_headers(name: str) -> None:
    blob = HEADER_BLOBS[name]
    assert_refused(batch(lengths(1, len(blob)) + blob + b"a", count=1, flags=Flags.HEADERS), "do not add up")


def test_good_headers_are_not_refused() -> None:
    blob = b"\x01\x00" + lengths(1, 1) + b"ab"
    records, _, error = decode(batch(lengths(1, len(blob)) + blob + b"a", count=1, flags=Flags.HEADERS))
    assert error is None
    assert records == [Record(BASE, b"a", TIME, headers={"a": "b"})]


@pytest.mark.parametrize("tag", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_tag_that_is_no_text(tag: bytes) -> None:
    assert_refused(batch(lengths(1, len(tag)) + tag + b"a", count=1, flags=Flags.TAGS), "do not add up")


def test_lengths_that_differ() -> None:
    frame = MIXED.frames[4]
    assert_refused(reseal(patched(frame, len(frame) - 4, TRAILER.pack(len(frame) + 8))), "two lengths differ")


def zeros_with_noise(noise: int, zeros: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in range(1, noise // 4)) + bytes(zeros)


def test_bombs_are_refused() -> None:
    for size in (2 * MIB, 64 * MIB):
        stored = zstandard.ZstdCompressor().compress(lengths(size) + bytes(size))
        for raw in (size + 4, MIB, 2**32 - 1):
            assert_refused(batch(stored, count=1, codec=CODEC_ZSTD, raw=raw), allowed=MIB)


@pytest.mark.parametrize("flags", [0, Flags.HEADERS, Flags.TAGS | Flags.KEYS | Flags.HEADERS])
def test_more_records_than_a_frame_may_have_are_refused(flags: Flags) -> None:
    columns = flags.bit_count() + 1
    count = MIB // 4 // columns
    payload = lengths(*[0] * count, *[NULL_LENGTH] * count * (columns - 1))
    assert count > MAX_RECORDS
    assert_refused(zstd_batch(payload, count=count, flags=flags), f"{count} records", allowed=MIB)


@pytest.mark.parametrize("flags", [0, Flags.HEADERS, Flags.TAGS | Flags.KEYS | Flags.HEADERS, 0x3F])
def test_as_many_records_as_a_frame_may_have_take_little(flags: int) -> None:
    numbers = (flags & 7).bit_count()
    texts = (flags >> 3).bit_count()
    count = min(MAX_RECORDS, MIB // (8 * numbers + 4 * texts + 4))
    frame = zstd_batch(
        bytes(8 * numbers * count) + lengths(*[0] * count, *[NULL_LENGTH] * count * texts), count=count, flags=flags
    )
    assert len(frame) < 1024
    with memory_bound(ALLOWED):
        decode_one(frame)


@pytest.mark.parametrize("raw", [MIB + 1, 2**31, 2**32 - 1])
def test_a_prefix_alone_is_not_believed_beyond_the_expansion_limit(raw: int) -> None:
    data = batch(bytes(100), count=1, raw=raw)
    with pytest.raises(CorruptionError, match=f"{raw} raw bytes"):
        read_prefix(data, 0, CONTEXT, position=START, limit=START + len(data))


def test_the_expansion_limit_is_that_of_the_stored_bytes() -> None:
    noise, over = zeros_with_noise(60_000, 0), 1
    stored, raw = b"", 0
    while raw <= raw_limit(len(stored)):
        raw = raw_limit(len(stored)) + over
        payload = lengths(raw - 4) + noise + bytes(raw - 4 - len(noise))
        stored = zstandard.ZstdCompressor().compress(payload)
        over += 512
    assert MIB < raw <= raw_limit(len(stored) + 48)
    assert_refused(batch(stored, count=1, codec=CODEC_ZSTD, raw=raw), "does not fit a frame")


def test_expansion_is_in_proportion() -> None:
    body = zeros_with_noise(400 * 1024, 8 * MIB)
    frame = zstd_batch(lengths(len(body)) + body, count=1)
    assert len(frame) < 400 * 1024
    with memory_bound(MIB + 3 * raw_limit(len(frame))):
        decode_one(frame)


@given(st.binary(max_size=400))
def test_arbitrary_bytes(data: bytes) -> None:
    assert_only_refusals(data)


@given(st.sampled_from(GOOD), st.binary(max_size=120))
def test_arbitrary_bytes_behind_a_good_beginning(frame: bytes, data: bytes) -> None:
    for cut in (9, 10, 12, 28, 40):
        assert_only_refusals(frame[:cut] + data)


@given(
    st.sampled_from([KIND_BATCH, KIND_COMPACT, 0xE1]),
    st.integers(0, 8),
    st.sampled_from([0, 1, 8, 0x3F, 0x100]) | st.integers(0, 2**16 - 1),
    st.lists(hostile_u32, max_size=3),
    st.binary(max_size=120),
)
def test_arbitrary_frames_under_a_right_checksum(
    kind: int, detail: int, flags: int, counts: list[int], content: bytes
) -> None:
    body = lengths(*counts) + content
    body += bytes(-len(body) % 8)
    length = FRAME_PREFIX.size + len(body) + TRAILER.size
    head = FRAME_PREFIX.pack(length, 0, kind, detail, flags, 0, 0, TIME)
    assert_only_refusals(reseal(head + body + TRAILER.pack(length)))


@given(columns_strategy(), st.sampled_from([CODEC_NONE, CODEC_ZSTD]), st.data())
def test_good_frames_with_changes_under_a_right_checksum(columns: Columns, codec: int, data: st.DataObject) -> None:
    frame = encode_puts([Put(columns, codec=codec)]).data
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(2, len(frame) // 4 - 2)) * 4
        frame = patched(frame, at, data.draw(hostile_u32.map(TRAILER.pack) | st.binary(min_size=1, max_size=4)))
    assert_only_refusals(reseal(frame))
    assert_only_refusals(reseal(patched(frame, len(frame) - 4, frame[:4])))


def assert_only_refusals(data: bytes) -> None:
    """Run all that reads frames over the data; anything but a refusal or a sound result is an error."""
    records, used, error = decode_bounded(data)
    assert error is None or isinstance(error, CorruptionError | FormatVersionError)
    assert 0 <= used <= len(data)
    assert (error is None) == (used == len(data))
    assert sum(len(record.body) for record in records) <= raw_limit(len(data))
    found = first_frame(data, 0, CONTEXT, position=START, limit=START + len(data))
    if found is not None:
        assert_right(data, found)
    for at in range(0, len(data) + 1, 8):
        try:
            frame = frame_before(data, at, CONTEXT, position=START, limit=START + len(data))
        except CorruptionError:
            continue
        assert frame.end == START + at


def assert_right(data: bytes, frame: Frame) -> None:
    check_frame(memoryview(data), frame.position - START, frame, CONTEXT)
    assert START <= frame.position <= frame.end <= START + len(data)
    assert frame.raw >= 0


@given(st.binary(max_size=300), st.integers(0, 70), st.integers(0, 0x3F) | st.integers(0, 2**16 - 1))
@example(b"", 0, 0)
def test_arbitrary_payloads(payload: bytes, count: int, flags: int) -> None:
    with memory_bound(MIB):
        try:
            columns = decode_columns(payload, count, flags, path="some.seg", position=64)
        except CorruptionError as error:
            assert (error.path, error.position) == ("some.seg", 64)
            return
    assert_sound(columns, count, flags, payload)


@given(columns_strategy(), st.data())
def test_payloads_with_changes(columns: Columns, data: st.DataObject) -> None:
    flags, payload = encode_columns(columns)
    at = data.draw(st.integers(0, len(payload) // 4)) * 4
    payload = patched(payload, at, data.draw(hostile_u32.map(TRAILER.pack)))
    try:
        columns = decode_columns(payload, len(columns.bodies), flags)
    except CorruptionError:
        return
    assert_sound(columns, len(columns.bodies), flags, payload)


def assert_sound(columns: Columns, count: int, flags: int, payload: bytes) -> None:
    """Make sure that each column has all its items, of bytes that were there."""
    columns_there = [columns.times, columns.dues, columns.expiries, columns.tags, columns.keys, columns.headers]
    assert [column is not None for column in columns_there] == [bool(flags & 1 << bit) for bit in range(6)]
    assert all(len(column) == count for column in [columns.bodies, *columns_there] if column is not None)
    assert sum(map(len, columns.bodies)) + sum(len(key or b"") for key in columns.keys or []) <= len(payload)


@pytest.mark.parametrize("size", range(len(MIXED.frames[4])))
def test_a_frame_cut_short_under_any_prefix(size: int) -> None:
    data = MIXED.frames[4][:size]
    with pytest.raises(CorruptionError):
        decode_one(data)


def test_the_records_of_a_good_frame_are_not_refused() -> None:
    assert decode(encode_puts([Put(all_columns(5))]).data)[2] is None
