"""The format's specification is the docstring of `aiodq.format`; its tables are held against the code here."""

from __future__ import annotations

import inspect
import re
import struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import pytest

import aiodq.format as spec
from aiodq.errors import CorruptionError
from aiodq.format import checksum, codecs, columns, layout
from aiodq.format.columns import Columns, Flags
from aiodq.format.footer import FooterTail, IndexEntry, SegmentIndex
from aiodq.format.frame import encode_frames, read_prefix
from aiodq.format.segment import SegmentHeader
from tests.format.support import BASE, CONTEXT, TIME, all_columns, encode_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT = inspect.cleandoc(spec.__doc__ or "")
STRUCTS = {
    "SEGMENT_HEADER": layout.SEGMENT_HEADER,
    "FRAME_PREFIX": layout.FRAME_PREFIX,
    "TRAILER": layout.TRAILER,
    "BATCH_HEADER": layout.BATCH_HEADER,
    "INDEX_ENTRY": layout.INDEX_ENTRY,
    "FOOTER_TAIL": layout.FOOTER_TAIL,
    "HEADERS_BLOB": columns._HEADER_COUNT,
    "HEADER": columns._HEADER_LENGTHS,
}


class Row(NamedTuple):
    offset: int
    size: int
    name: str
    meaning: str


class Table(NamedTuple):
    size: int
    rows: list[Row]


def lines_below(heading: str) -> list[str]:
    """Return the indented lines that follow a heading's line."""
    _, found, rest = f"\n{TEXT}".partition(f"\n{heading}")
    assert found, heading
    body = rest.partition("\n\n")[2].split("\n\n")[0]
    return [line for line in body.split("\n") if line.startswith("    ")]


def parse_tables() -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for name, size in re.findall(r"^([A-Z_]+): (\d+) bytes", TEXT, re.MULTILINE):
        title, *rows = lines_below(f"{name}: {size} bytes")
        assert title.split() == ["offset", "size", "name", "meaning"]
        parts = [row.split(maxsplit=3) for row in rows]
        tables[name] = Table(int(size), [Row(int(at), int(n), what, text) for at, n, what, text in parts])
    return tables


TABLES = parse_tables()


def fields_of(layout_format: str) -> list[tuple[int, int, str]]:
    """Return (offset, size, code) of each field of a `struct` format, the sizes of prefixes telling the offsets."""
    order, rest = layout_format[0], layout_format[1:]
    codes = [
        code
        for count, kind in re.findall(r"(\d*)([a-zA-Z])", rest)
        for code in ([f"{count}{kind}"] if kind in "sx" else [kind] * int(count or 1))
    ]
    return [
        (struct.calcsize(order + "".join(codes[:number])), struct.calcsize(order + code), code)
        for number, code in enumerate(codes)
    ]


def read_by_table(name: str, data: bytes) -> dict[str, int]:
    """Return the values of a table's fields of up to 8 bytes, signed where the table says so."""
    return {
        row.name: int.from_bytes(
            data[row.offset : row.offset + row.size], "little", signed=row.meaning.startswith("i64")
        )
        for row in TABLES[name].rows
        if row.size <= 8
    }


def has(values: Mapping[str, int], **expected: int) -> bool:
    return {name: values[name] for name in expected} == expected


def test_every_layout_has_its_table() -> None:
    assert TABLES.keys() == STRUCTS.keys()


@pytest.mark.parametrize("name", STRUCTS)
def test_table_has_the_offsets_and_sizes_of_the_struct(name: str) -> None:
    table, fields = TABLES[name], fields_of(STRUCTS[name].format)
    if name == "BATCH_HEADER":
        prefix = len(fields_of(layout.FRAME_PREFIX.format))
        assert fields[:prefix] == fields_of(layout.FRAME_PREFIX.format)
        fields = [(0, layout.FRAME_PREFIX.size, "28s"), *fields[prefix:]]
    assert table.size == STRUCTS[name].size
    assert [(row.offset, row.size) for row in table.rows] == [(at, size) for at, size, _ in fields]


@pytest.mark.parametrize("name", STRUCTS)
def test_table_says_i64_where_the_struct_is_signed(name: str) -> None:
    inner = layout.FRAME_PREFIX.size if name == "BATCH_HEADER" else 0
    signed = {at for at, _, code in fields_of(STRUCTS[name].format) if code == "q" and at >= inner}
    assert {row.offset for row in TABLES[name].rows if row.meaning.startswith("i64")} == signed


@pytest.mark.parametrize("name", STRUCTS)
def test_layouts_are_little_endian_without_gaps(name: str) -> None:
    assert STRUCTS[name].format.startswith("<")
    ends = [row.offset + row.size for row in TABLES[name].rows]
    assert [row.offset for row in TABLES[name].rows] == [0, *ends[:-1]]


def test_segment_header_has_each_value_where_the_table_says() -> None:
    topic = UUID(int=0x0102030405060708090A0B0C0D0E0F10)
    data = SegmentHeader(2**40, topic, -5, 0xCAFE).encode()
    values = read_by_table("SEGMENT_HEADER", data)
    assert has(values, version=1, checksum=1, zero=0, salt=0xCAFE, base=2**40, created=-5)
    assert values["crc"] == checksum.checksum_named(1)(data[:60], 0)
    assert data[24:40] == topic.bytes
    assert data[48:60] == bytes(12)


def test_frame_has_each_value_where_the_table_says() -> None:
    (frame,) = encode_frames(all_columns(3), CONTEXT, first=BASE + 70, watermark=BASE + 50, time_ns=-TIME)
    values = read_by_table("FRAME_PREFIX", frame)
    assert has(values, length=len(frame), kind=0xB7, detail=0, flags=0x3F, relative=70, lag=20, time=-TIME)
    assert values["crc"] == CONTEXT.checksum(frame[8:], CONTEXT.salt)
    assert read_by_table("TRAILER", frame[-4:]) == {"length": len(frame)}
    payload = len(encode_columns(all_columns(3))[1])
    assert has(read_by_table("BATCH_HEADER", frame), count=3, stored=payload, raw=payload)


@pytest.mark.parametrize("size", range(9))
def test_compact_record_is_prefix_body_zeros_length(size: int) -> None:
    (frame,) = encode_frames(Columns([b"x" * size]), CONTEXT, first=BASE + 70, watermark=0, time_ns=TIME)
    values = read_by_table("FRAME_PREFIX", frame)
    padding = -(32 + size) % 8
    assert has(values, length=len(frame), kind=0xC5, detail=padding, flags=0, relative=70, lag=BASE + 70, time=TIME)
    assert frame[28:] == b"x" * size + bytes(padding) + len(frame).to_bytes(4, "little")


def test_index_entry_has_each_value_where_the_table_says() -> None:
    index = SegmentIndex()
    index.add(IndexEntry(64, 2, 3, 4, -5), joined=False, flags=0, raw_bytes=0)
    values = read_by_table("INDEX_ENTRY", index.encode())
    assert values == {"position": 64, "first": 2, "records": 3, "frames": 4, "zero": 0, "newest": -5}


def test_footer_tail_has_each_value_where_the_table_says() -> None:
    tail = FooterTail(
        data_end=80, entries=3, index_crc=5, flags=0x33, salt=7, records=8, end=9, raw_bytes=10, oldest_ns=-11,
        newest_ns=-1, frames=13,
    )  # fmt: skip
    data = tail.encode()
    values = read_by_table("FOOTER_TAIL", data)
    assert has(values, data_end=80, entries=3, index_crc=5, flags=0x33, salt=7, records=8, end=9, raw=10)
    assert has(values, oldest=-11, newest=-1, frames=13, footer=3 * 32 + 96, zeros=0, zero=0)
    assert values["crc"] == checksum.checksum_named(1)(data[:84], 0)


@pytest.mark.parametrize(
    ("table", "magic"), [("SEGMENT_HEADER", layout.SEGMENT_MAGIC), ("FOOTER_TAIL", layout.TAIL_MAGIC)]
)
def test_magics(table: str, magic: bytes) -> None:
    (meaning,) = (row.meaning for row in TABLES[table].rows if row.name == "magic")
    assert bytes.fromhex(meaning.split(";")[0]) == magic


def test_a_frame_cannot_end_like_a_footer() -> None:
    assert int.from_bytes(layout.TAIL_MAGIC[-4:], "little") % layout.ALIGNMENT
    with pytest.raises(CorruptionError, match="does not fit"):
        read_prefix(layout.TAIL_MAGIC[-4:] + bytes(40), 0, CONTEXT, position=64, limit=2**32)


def named_values(heading: str) -> dict[str, int | frozenset[int]]:
    values: dict[str, int | frozenset[int]] = {}
    for line in lines_below(heading):
        name, value = line.split()[:2]
        low, _, high = value.partition("-")
        values[name] = frozenset(range(int(low, 0), int(high, 0) + 1)) if high else int(low, 0)
    return values


def test_numbers() -> None:
    code = {**vars(layout), **vars(codecs), **vars(checksum)}
    numbers = named_values("NUMBERS")
    assert {name: code[name] for name in numbers} == numbers
    constants = [*layout.__all__, *codecs.__all__, *checksum.__all__]
    assert numbers.keys() == {name for name in constants if isinstance(code[name], int | frozenset)}


def test_flags() -> None:
    assert named_values("FLAGS") == {flag.name: flag.value for flag in Flags}


def test_expansion_limit() -> None:
    assert "at most 1 MiB or 64 times `stored`, whichever is more" in " ".join(TEXT.split())
    assert [codecs.raw_limit(stored) for stored in (0, 1 << 14, (1 << 14) + 1)] == [1 << 20, 1 << 20, (1 << 20) + 64]


def by_table(records: Columns) -> bytes:
    """Build a payload by nothing but the table: its columns, in its order."""
    titles, *rows = lines_below("PAYLOAD:")
    assert titles.split() == ["column", "flag", "each", "meaning"]
    tags = [None if tag is None else tag.encode() for tag in records.tags or []]
    blobs = [headers_blob(headers) for headers in records.headers or []]
    texts: dict[str, list[bytes | None]] = {
        "tag": tags, "key": records.keys or [], "header": blobs, "body": list(records.bodies)
    }  # fmt: skip
    numbers = {"times": records.times, "dues": records.dues, "expiries": records.expiries}
    parts: list[bytes] = []
    for row in rows:
        name, flag, each, _ = re.split(r"  +", row.strip(), maxsplit=3)
        assert flag == "-" or flag in Flags.__members__
        if name == "transaction":
            parts.append((records.transaction or 0).to_bytes(int(each), "little"))
        elif name in numbers:
            parts += [value.to_bytes(int(each), "little", signed=True) for value in numbers[name] or []]
        elif name.endswith(" lengths"):
            lengths = (layout.NULL_LENGTH if text is None else len(text) for text in texts[name.split()[0]])
            parts += [length.to_bytes(int(each), "little") for length in lengths]
        else:
            parts += [text or b"" for text in texts[{"bodies": "body"}.get(name, name[:-1])]]
    return b"".join(parts)


def headers_blob(headers: Mapping[str, str]) -> bytes | None:
    if not headers:
        return None
    parts = [len(headers).to_bytes(TABLES["HEADERS_BLOB"].size, "little")]
    for name, value in headers.items():
        parts += [len(text.encode()).to_bytes(4, "little") for text in (name, value)]
        parts += [name.encode(), value.encode()]
    return b"".join(parts)


def test_payload_has_the_columns_of_the_table_in_its_order() -> None:
    records = all_columns(9)
    records.transaction = (1 << 63) + 5
    flags, payload = encode_columns(records)
    assert payload == by_table(records)
    assert flags == sum(Flags[name] for name in ("TRANSACTION", "TIMES", "DUES", "EXPIRIES", "TAGS", "KEYS", "HEADERS"))


def test_errors_are_explained() -> None:
    for name in ("CorruptionError", "FormatVersionError", "MissingExtraError"):
        assert re.search(rf"^{name}: ", TEXT, re.MULTILINE)


def test_the_package_itself_offers_nothing() -> None:
    assert spec.__all__ == []
