"""Make the files of `tests/data/golden`: `python -m tests.format.make_golden`.

What is there is never written again. A released version of the format is what these files are, not what today's code
makes of it; this script only adds what is missing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns, Flags
from aiodq.format.footer import IndexEntry, SegmentIndex, encode_footer
from aiodq.format.frame import encode_frames
from aiodq.format.layout import FRAME_START, SEGMENT_HEADER
from aiodq.format.producers import Producer, PutOf, encode_producers, encode_put
from aiodq.format.segment import SegmentHeader
from tests.format.support import Record, all_columns, control_frame, records_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY = Path(__file__).parents[1] / "data" / "golden" / "v1"
TOPIC = UUID("a10d9000-0000-4000-8000-00000000601d")
CREATED = 1_760_000_000_000_000_000
SALT = 0x601D5A17
COMPRESSED = "zstd"
"""Its bytes may differ from one version of the library to the next, so it is only read."""


class Golden(NamedTuple):
    """A segment's file, and what is in it."""

    header: SegmentHeader
    data: bytes
    sealed: bool
    records: list[Record]


class Put(NamedTuple):
    """One call of `encode_frames`, or a control frame."""

    columns: Columns
    codec: int = CODEC_NONE
    atomic: bool = False
    watermark: int | None = None
    """None for all before it."""
    origin: tuple[int, int] | None = None
    """Whose it is, who may put it again: producer and sequence."""
    known: tuple[Producer, ...] = ()
    """Of a control frame: who was known before the segment."""


CONTROL = Put(Columns([]))
KNOWN = Put(Columns([]), known=(Producer(0x1111, 7, 1, 3, CREATED - 9), Producer(2**64 - 1, 1, 4, 1, CREATED - 5)))


def make(base: int, puts: Iterable[Put], *, sealed: bool = True) -> Golden:
    """Encode a segment; the times of its puts are a second apart."""
    header = SegmentHeader(base, TOPIC, CREATED, SALT)
    context = header.context
    frames: list[bytes] = []
    records: list[Record] = []
    for number, put in enumerate(puts):
        columns, first, time_ns = put.columns, base + len(records), CREATED + number * 1_000_000_000
        watermark = first if put.watermark is None else put.watermark
        if put.known:
            frames.append(encode_producers(put.known, context, watermark, time_ns))
            continue
        if not columns.bodies:
            frames.append(control_frame(context, 0xEA, first, b"from the future " * 2 + bytes(8)))
            continue
        encoded = encode_frames(
            columns, context, first=first, watermark=watermark, time_ns=time_ns, codec=put.codec, atomic=put.atomic
        )
        if put.origin is not None:
            follows = FRAME_START.unpack_from(encoded[0])[1]
            frames.append(
                encode_put(PutOf(*put.origin, first, len(columns.bodies), follows), context, watermark, time_ns)
            )
        frames += encoded
        records += records_of(first, time_ns, columns)
    data = b"".join(frames)
    footer = footer_of(header, data, len(records)) if sealed else b""
    return Golden(header, header.encode() + data + footer, sealed, records)


def footer_of(header: SegmentHeader, data: bytes, end: int) -> bytes:
    """Return the footer of a segment with these frames."""
    index = SegmentIndex()
    for frame in walk(data, header.context):
        entry = IndexEntry(frame.position, frame.first - header.base, frame.records, 1, frame.time_ns)
        index.add(entry, joined=bool(frame.flags & Flags.CONTINUES), flags=frame.flags, raw_bytes=frame.raw)
    return encode_footer(index, data_end=SEGMENT_HEADER.size + len(data), end=end, salt=header.salt)[1]


def bodies(count: int, size: int = 10) -> list[bytes]:
    """Return bodies that differ in content and length."""
    return [b"%d " % number * (number * 7 % size) for number in range(count)]


def column_by_column() -> list[Put]:
    """Return puts that have one optional column each, then all."""
    full = all_columns(4)
    return [
        Put(Columns(full.bodies, times=full.times)),
        Put(Columns(full.bodies, dues=full.dues)),
        Put(Columns(full.bodies, expiries=full.expiries)),
        Put(Columns(full.bodies, tags=full.tags)),
        Put(Columns(full.bodies, keys=full.keys)),
        Put(Columns(full.bodies, headers=full.headers)),
        Put(full),
        Put(all_columns(1, 5)),
    ]


def brought(columns: Columns) -> Columns:
    """Return columns as a transaction put them."""
    return replace(columns, transaction=CREATED)


def make_all() -> dict[str, Golden]:
    """Return every golden segment by its name."""
    compact = [Put(Columns([body])) for body in [b"", b"x", bytes(range(256)), *bodies(20)]]
    plain = [Put(Columns(bodies(count))) for count in (2, 3, 50)]
    return {
        "empty": make(0, []),
        "compact": make(7, compact),
        "plain": make(2**40, [*plain, Put(Columns([b"large " * 1000, b"small"]))]),
        "columns": make(1000, column_by_column()),
        "transaction": make(3, [plain[0], Put(brought(Columns([b"one"])), atomic=True), Put(brought(all_columns(4)))]),
        "run": make(5, [plain[0], Put(Columns(bodies(2001, 3)), atomic=True, watermark=0), plain[1]]),
        "producers": make(
            5,
            [
                KNOWN,
                Put(Columns([b"again"]), origin=(0x1111, 8)),
                Put(Columns([b"of nobody"])),
                Put(Columns(bodies(3000, 3)), atomic=True, origin=(2**64 - 1, 2)),
                Put(Columns([b"", b"last"]), atomic=True, origin=(0x1111, 9)),
            ],
        ),
        COMPRESSED: make(
            9,
            [
                Put(Columns(bodies(100, 50)), CODEC_ZSTD),
                Put(all_columns(200), CODEC_ZSTD),
                Put(Columns([b"tiny"]), CODEC_ZSTD),
            ],
        ),
        "unsealed": make(183_025, [*compact[:5], *plain, *column_by_column(), CONTROL, *compact[:2]], sealed=False),
    }


def listing(golden: Golden) -> dict[str, Any]:
    """Return what is in a golden file, as JSON can hold it."""
    header = golden.header
    return {
        "base": header.base,
        "topic": str(header.topic),
        "created_ns": header.created_ns,
        "salt": header.salt,
        "sealed": golden.sealed,
        "records": [as_json(record) for record in golden.records],
    }


def as_json(record: Record) -> dict[str, Any]:
    """Return a record without what it does not have; bodies and keys in hex."""
    values = {**record._asdict(), "body": record.body.hex(), "key": None if record.key is None else record.key.hex()}
    return {name: value for name, value in values.items() if value is not None}


def main() -> None:
    """Write what is missing."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, golden in make_all().items():
        path = DIRECTORY / f"{name}.seg"
        if path.exists():
            continue
        path.write_bytes(golden.data)
        rows = listing(golden)
        records = rows.pop("records")
        head = json.dumps(rows)[:-1]
        lines = ",\n".join(json.dumps(row) for row in records)
        path.with_suffix(".json").write_text(f'{head}, "records": [\n{lines}\n]}}\n', encoding="ascii")


if __name__ == "__main__":
    main()
