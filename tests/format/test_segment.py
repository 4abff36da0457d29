"""The segment's header, its footer, and the index in it."""

from __future__ import annotations

import subprocess
import sys
import zlib
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError, FormatVersionError
from aiodq.format.checksum import CRC32, checksum_named, crc32_link
from aiodq.format.footer import FooterTail, IndexEntry, SegmentIndex, encode_footer
from aiodq.format.layout import FOOTER_TAIL, INDEX_ENTRY, INDEX_STRIDE, SEGMENT_HEADER, TAIL_MAGIC
from aiodq.format.segment import SegmentHeader, topic_salt
from tests.format.support import HOSTILE, START, TIME, flipped, hostile_u32, i64, memory_bound, patched, u32

TOPIC = UUID("0e7cbd5e-98a7-4a49-8f5c-111111111111")
HEADER = SegmentHeader(183025, TOPIC, TIME, 0x5EED)
u64 = st.integers(0, 2**64 - 1)


def resealed(header: bytes) -> bytes:
    return header[:60] + zlib.crc32(header[:60]).to_bytes(4, "little")


@given(u64, st.uuids(), i64, u32)
def test_header_comes_back(base: int, topic: UUID, created_ns: int, salt: int) -> None:
    header = SegmentHeader(base, topic, created_ns, salt)
    data = header.encode()
    assert len(data) == SEGMENT_HEADER.size
    assert SegmentHeader.decode(data) == header
    assert SegmentHeader.decode(data + b"frames") == header


def test_header_gives_the_context_of_its_frames() -> None:
    context = HEADER.context
    assert (context.base, context.checksum, context.salt) == (183025, checksum_named(CRC32), 0x5EED)


def test_topic_salt_is_the_crc_of_the_uuid() -> None:
    assert topic_salt(TOPIC) == zlib.crc32(TOPIC.bytes)


@pytest.mark.parametrize("size", range(SEGMENT_HEADER.size))
def test_header_cut_short(size: int) -> None:
    with pytest.raises(CorruptionError, match=f"cut short after {size} bytes"):
        SegmentHeader.decode(HEADER.encode()[:size])


def test_header_with_any_bit_turned_round() -> None:
    for bit in range(SEGMENT_HEADER.size * 8):
        with pytest.raises(CorruptionError) as caught:
            SegmentHeader.decode(flipped(HEADER.encode(), bit), "some.seg")
        assert (caught.value.path, caught.value.position) == ("some.seg", 0)


@pytest.mark.parametrize("magic", [b"AIODQ\r\n\x89", b"\x89AIODQ\n\n", bytes(8), TAIL_MAGIC])
def test_header_with_another_magic(magic: bytes) -> None:
    with pytest.raises(CorruptionError, match="does not begin like a segment"):
        SegmentHeader.decode(resealed(patched(HEADER.encode(), 0, magic)))


@pytest.mark.parametrize("version", [0, 2, 255, 65535])
def test_header_of_another_version(version: int) -> None:
    data = resealed(patched(HEADER.encode(), 8, version.to_bytes(2, "little")))
    with pytest.raises(FormatVersionError, match=f"version {version};.*upgrade") as caught:
        SegmentHeader.decode(data, "some.seg")
    assert (caught.value.path, caught.value.position) == ("some.seg", 8)


def test_header_of_another_version_that_is_damaged_is_damaged() -> None:
    with pytest.raises(CorruptionError):
        SegmentHeader.decode(patched(HEADER.encode(), 8, b"\x02"))


@pytest.mark.parametrize("number", [0, 2, 255])
def test_header_with_another_checksum(number: int) -> None:
    data = resealed(patched(HEADER.encode(), 10, bytes([number])))
    with pytest.raises(FormatVersionError, match=f"algorithm {number} is not known") as caught:
        SegmentHeader.decode(data, "some.seg")
    assert (caught.value.path, caught.value.position) == ("some.seg", 10)


@given(st.binary(), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_zlib(data: bytes, start: int) -> None:
    assert checksum_named(CRC32)(memoryview(data), start) == zlib.crc32(data, start)


@given(st.binary(max_size=40), st.binary(max_size=40), u32, u32)
def test_one_checksum_goes_on_as_another(before: bytes, behind: bytes, one: int, two: int) -> None:
    link = (zlib.crc32(before, one) ^ 0xFFFFFFFF).to_bytes(4, "little") + crc32_link(two).to_bytes(4, "little")
    assert zlib.crc32(before + link + behind, one) == zlib.crc32(behind, two)


def test_without_isal_zlib_itself_is_used() -> None:
    code = (
        "import sys, zlib; sys.modules['isal'] = None\n"
        "from aiodq.format.checksum import CRC32, checksum_named; print(checksum_named(CRC32) is zlib.crc32)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"


def test_an_unknown_checksum() -> None:
    with pytest.raises(FormatVersionError):
        checksum_named(99)


@given(st.binary(min_size=60, max_size=60))
def test_reserved_bytes_are_not_looked_at(junk: bytes) -> None:
    data = patched(patched(HEADER.encode(), 48, junk[:12]), 11, junk[12:13])
    assert SegmentHeader.decode(resealed(data)) == HEADER


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: HEADER.encode()[:8] + data))
def test_arbitrary_bytes_as_header(data: bytes) -> None:
    for candidate in (data, resealed(data) if len(data) >= 60 else data):
        try:
            header = SegmentHeader.decode(candidate)
        except (CorruptionError, FormatVersionError):
            continue
        assert SegmentHeader.decode(header.encode()) == header


class Piece(NamedTuple):
    """A frame as the index sees it."""

    gap: int
    """Bytes of damage before it."""
    length: int
    records: int
    newest_ns: int
    joined: bool


pieces = st.lists(
    st.builds(
        Piece,
        st.sampled_from([0, 0, 0, 0, 8, 5000]),
        st.integers(4, 1000).map(lambda units: units * 8),
        st.integers(0, 100),
        st.integers(-(2**40), 2**40),
        st.booleans(),
    ),
    max_size=30,
)


class Model(NamedTuple):
    """The index, and the frames that were put into it: position, first, joined, newest."""

    entries: SegmentIndex
    frames: list[tuple[int, int, bool, int]]
    data_end: int
    end: int
    records: int


def build(given_pieces: list[Piece]) -> Model:
    index = SegmentIndex()
    frames: list[tuple[int, int, bool, int]] = []
    position, first, records = START, 0, 0
    for gap, length, count, newest_ns, wants_to_join in given_pieces:
        position += gap
        first += gap // 8
        joined = wants_to_join and not gap and bool(frames)
        index.add(
            IndexEntry(position, first, count, 1, newest_ns),
            joined=joined,
            flags=1 << len(frames) % 10,
            raw_bytes=length,
        )
        frames.append((position, first, joined, newest_ns))
        position, first, records = position + length, first + count, records + count
    return Model(index, frames, position, first, records)


@given(pieces)
def test_index_totals(given_pieces: list[Piece]) -> None:
    index, frames, _, _, records = build(given_pieces)
    times = [frame[3] for frame in frames]
    assert sum(index.records) == records
    assert sum(index.frames) == len(frames)
    assert index.raw_bytes == sum(piece.length for piece in given_pieces)
    assert (index.oldest_ns, index.newest_ns) == (min(times, default=0), max(times, default=0))
    assert index.flags == (1 << min(len(frames), 10)) - 1


@given(pieces)
def test_index_entries_begin_with_the_first_frame_behind_the_stride(given_pieces: list[Piece]) -> None:
    index, frames, *_ = build(given_pieces)
    expected: list[tuple[int, int]] = []
    for position, first, joined, _ in frames:
        if not expected or (not joined and position - expected[-1][0] >= INDEX_STRIDE):
            expected.append((position, first))
    assert list(zip(index.positions, index.firsts, strict=True)) == expected
    assert len(index) == len(expected)


@given(pieces)
def test_index_finds_the_entry_of_an_offset(given_pieces: list[Piece]) -> None:
    index, frames, _, end, _ = build(given_pieces)
    starts = [(position, first) for position, first, _, _ in frames if position in set(index.positions)]
    for relative in {0, end, *(first + off for _, first in starts for off in (-1, 0, 1))}:
        expected = [position for position, first in starts if first <= relative]
        assert index.position_of(relative) == (expected[-1] if expected else START)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(4, 900).map(lambda n: n * 8), st.integers(1, 50)), min_size=1, max_size=60),
        max_size=4,
    )
)
def test_index_of_many_frames_at_once(stretches: list[list[tuple[int, int]]]) -> None:
    one_by_one, at_once = SegmentIndex(), SegmentIndex()
    position, first = SEGMENT_HEADER.size, 0
    for stretch in stretches:
        lengths, times = [length for length, _ in stretch], [time for _, time in stretch]
        at_once.add_each(position, first, lengths, times, 3 * len(stretch))
        for length, time in stretch:
            one_by_one.add(IndexEntry(position, first, 1, 1, time), joined=False, flags=0, raw_bytes=3)
            position, first = position + length, first + 1
    assert at_once == one_by_one


def footer_of(model: Model, salt: int = 7) -> tuple[FooterTail, bytes, int]:
    """Return the tail, the footer, and the size of the file that it ends."""
    tail, footer = encode_footer(model.entries, data_end=model.data_end, end=model.end, salt=salt)
    return tail, footer, model.data_end + len(footer)


@given(pieces, u32)
def test_footer_comes_back(given_pieces: list[Piece], salt: int) -> None:
    model = build(given_pieces)
    tail, footer, size = footer_of(model, salt)
    assert len(footer) == len(model.entries) * INDEX_ENTRY.size + FOOTER_TAIL.size
    assert FooterTail.decode(footer, size) == tail
    assert FooterTail.decode(b"frames" + footer, size) == tail
    assert SegmentIndex.decode(footer[: -FOOTER_TAIL.size], tail) == model.entries
    assert (tail.salt, tail.records, tail.end) == (salt, model.records, model.end)
    assert (tail.frames, tail.data_end) == (len(model.frames), model.data_end)
    assert (tail.oldest_ns, tail.newest_ns) == (model.entries.oldest_ns, model.entries.newest_ns)


MODEL = build([Piece(0, 8 * (100 + number), number, TIME + number, joined=False) for number in range(20)])
TAIL, FOOTER, SIZE = footer_of(MODEL)
ENTRIES = FOOTER[: -FOOTER_TAIL.size]


def test_the_example_has_several_entries() -> None:
    assert len(MODEL.entries) == 4


def test_footer_with_any_bit_turned_round() -> None:
    end = FOOTER_TAIL.size - len(TAIL_MAGIC)
    for bit in range(FOOTER_TAIL.size * 8):
        data = flipped(FOOTER[-FOOTER_TAIL.size :], bit)
        if bit >= end * 8:
            assert FooterTail.decode(data, SIZE) is None
            continue
        with pytest.raises(CorruptionError) as caught:
            FooterTail.decode(data, SIZE, "some.seg")
        assert (caught.value.path, caught.value.position) == ("some.seg", SIZE - FOOTER_TAIL.size)


def test_index_with_any_bit_turned_round() -> None:
    for bit in range(len(ENTRIES) * 8):
        with pytest.raises(CorruptionError) as caught:
            SegmentIndex.decode(flipped(ENTRIES, bit), TAIL, "some.seg")
        assert (caught.value.path, caught.value.position) == ("some.seg", MODEL.data_end)


@pytest.mark.parametrize("size", range(FOOTER_TAIL.size))
def test_a_file_that_does_not_end_with_a_tail_is_not_sealed(size: int) -> None:
    tail = FOOTER[-FOOTER_TAIL.size :]
    assert FooterTail.decode(tail[:size], SIZE) is None
    assert FooterTail.decode(tail[FOOTER_TAIL.size - size :], SIZE) is None


@pytest.mark.parametrize("off", [-64, -8, -1, 1, 8, 32, 2**32])
def test_footer_in_a_file_of_another_size(off: int) -> None:
    with pytest.raises(CorruptionError, match="of this size"):
        FooterTail.decode(FOOTER, SIZE + off)


@pytest.mark.parametrize("size", [0, 32, len(ENTRIES) - 32, len(ENTRIES) - 1, len(ENTRIES) + 1, len(ENTRIES) + 32])
def test_index_of_another_size(size: int) -> None:
    with pytest.raises(CorruptionError):
        SegmentIndex.decode((ENTRIES + bytes(32))[:size], TAIL)


def resealed_tail(tail: bytes) -> bytes:
    return tail[:84] + zlib.crc32(tail[:84]).to_bytes(4, "little") + tail[88:]


@pytest.mark.parametrize(
    ("at", "size", "right"), [(0, 8, TAIL.data_end), (8, 4, TAIL.entries), (76, 4, len(FOOTER))], ids=str
)
def test_hostile_lengths_in_a_tail(at: int, size: int, right: int) -> None:
    for value in {*HOSTILE, MODEL.data_end + 8, MODEL.data_end - 8, 2**31 + 4, 2**32 - 32} - {right}:
        tail = resealed_tail(patched(FOOTER[-FOOTER_TAIL.size :], at, value.to_bytes(size, "little")))
        with memory_bound(1 << 20), pytest.raises(CorruptionError):
            FooterTail.decode(tail, SIZE)


@pytest.mark.parametrize("end", [0, TAIL.records - 1, 2**63, 2**64 - 1])
def test_a_segment_has_neither_more_offsets_than_there_are_nor_fewer_than_messages(end: int) -> None:
    tail = resealed_tail(patched(FOOTER[-FOOTER_TAIL.size :], 32, end.to_bytes(8, "little")))
    with pytest.raises(CorruptionError, match="offsets"):
        FooterTail.decode(tail, SIZE)


@pytest.mark.parametrize("data_end", [0, 8, 56, 65, 68])
def test_frames_cannot_end_there(data_end: int) -> None:
    tail, footer = encode_footer(SegmentIndex(), data_end=data_end, end=0, salt=0)
    assert tail.data_end == data_end
    with pytest.raises(CorruptionError):
        FooterTail.decode(footer, data_end + len(footer))


@given(st.integers(0, FOOTER_TAIL.size - 13), st.binary(min_size=1, max_size=8))
def test_any_tail_that_is_believed_fits_its_file(at: int, junk: bytes) -> None:
    data = ENTRIES + resealed_tail(patched(FOOTER[-96:-12], at, junk)[:84] + FOOTER[-12:])
    try:
        tail = FooterTail.decode(data, SIZE)
    except CorruptionError:
        return
    assert tail is not None
    assert (tail.data_end, tail.entries) == (TAIL.data_end, TAIL.entries)
    try:
        index = SegmentIndex.decode(ENTRIES, tail)
    except CorruptionError:
        return
    assert index.positions == MODEL.entries.positions


BAD_ENTRIES = {
    "position before the frames": (0, 0, 8, START - 8),
    "position not aligned": (1, 0, 8, MODEL.entries.positions[1] + 4),
    "position not rising": (2, 0, 8, MODEL.entries.positions[1]),
    "position behind the frames": (3, 0, 8, MODEL.data_end),
    "offset falling": (2, 8, 4, MODEL.entries.firsts[1] - 1),
    "offset beyond the end": (3, 8, 4, MODEL.end + 1),
    "too many records": (1, 12, 4, MODEL.entries.records[1] + 1),
    "too few frames": (1, 16, 4, MODEL.entries.frames[1] - 1),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_index_that_was_written_wrong(name: str) -> None:
    entry, at, size, value = BAD_ENTRIES[name]
    entries = patched(ENTRIES, entry * INDEX_ENTRY.size + at, value.to_bytes(size, "little"))
    with pytest.raises(CorruptionError, match="does not fit its tail"):
        SegmentIndex.decode(entries, tail_for(entries))


def test_index_that_was_written_right() -> None:
    assert SegmentIndex.decode(ENTRIES, tail_for(ENTRIES)) == MODEL.entries


def test_empty_index_with_records() -> None:
    tail = FooterTail(START, 0, 0, 0, 0, records=1, end=1, raw_bytes=0, oldest_ns=0, newest_ns=0, frames=0)
    with pytest.raises(CorruptionError, match="does not fit its tail"):
        SegmentIndex.decode(b"", tail)


def tail_for(entries: bytes) -> FooterTail:
    """Return the example's tail with the checksum of other entries."""
    values = {name: getattr(TAIL, name) for name in TAIL.__dataclass_fields__}
    return FooterTail(**{**values, "index_crc": zlib.crc32(entries), "entries": len(entries) // INDEX_ENTRY.size})


@given(st.binary(max_size=300), st.integers(0, 2**40))
def test_arbitrary_bytes_as_tail(data: bytes, size: int) -> None:
    with_magic = data + TAIL_MAGIC
    assert FooterTail.decode(data, size) is None
    try:
        tail = FooterTail.decode(with_magic, size)
    except CorruptionError:
        return
    assert tail is None
    assert len(with_magic) < FOOTER_TAIL.size


@given(st.lists(st.tuples(u64, hostile_u32, hostile_u32, hostile_u32, i64), max_size=20))
def test_arbitrary_entries(rows: list[tuple[int, int, int, int, int]]) -> None:
    entries = b"".join(INDEX_ENTRY.pack(p, first, n, f, 0, t) for p, first, n, f, t in rows)
    tail = tail_for(entries)
    try:
        index = SegmentIndex.decode(entries, tail)
    except CorruptionError:
        return
    assert all(START <= position < tail.data_end for position in index.positions)


def test_one_wrong_bit_of_a_header_is_mended_and_no_more() -> None:
    header = SegmentHeader(123, UUID(int=7), 5, 9)
    data = header.encode()
    assert SegmentHeader.mended(b"") is None
    assert SegmentHeader.mended(data[:-1]) is None
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        assert SegmentHeader.mended(damaged) == header
    for bit in range(0, 8 * len(data) - 8, 7):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        damaged[(bit >> 3) + 1] ^= 1
        assert SegmentHeader.mended(damaged) is None
