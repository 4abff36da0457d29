"""A small store in memory, and stores as one row of bytes, which is what a fuzzer can change."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns
from aiodq.format.journal import ChannelImage, Op, OpKind, decode_blocks, decode_journal_header
from aiodq.storage.log.topic_log import LogOptions, TopicLog
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.topic.topic_meta import TopicMeta, save_meta
from aiodq.testing import FakeClock, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.testing import Image

STORE: Final = "/store"
TOPICS: Final = ("t", "u")
SLOT_STRIDE: Final = 4096
SLOT_BYTES: Final = 36
_ENTRY: Final = struct.Struct("<BH")

NAMES: Final = (
    *(f"{topic}/{name}" for topic in TOPICS for name in ("topic.json", "watermark")),
    *(f"{topic}/channels/c/{name}" for topic in TOPICS for name in ("journal", "checkpoint")),
    *(f"{topic}/{base:020d}.seg" for topic in TOPICS for base in (0, 2, 3, 4, 5, 9, 2**40, 2**63 - 1)),
    "t/00000000000000000000.seg.damaged-000000000000",
    "t/topic.json.aiodq-tmp",
    "t#deleted/topic.json",
    "notes.txt",
    "LOCK",
    "#store",
)
"""What a file of a store in a row may be called: by its number, as a fuzzer that invents names finds nothing."""


def _topic(fs: SimulatedFileSystem, name: str, number: int, puts: list[Columns | None]) -> None:
    """Write a topic; None among the puts begins a segment."""
    clock = FakeClock()
    directory = f"{STORE}/{name}"
    fs.make_directory(directory)
    save_meta(fs, directory, TopicMeta(UUID(int=number)))
    log = TopicLog(fs, directory, LogOptions(1 << 20, CODEC_NONE), clock)
    for columns in puts:
        if columns is None:
            log.roll()
        else:
            log.stage(columns, clock.now_ns(), atomic=True)
            log.flush()
            log.commit()
            log.sync()
    log.description.add_channels({"c": (0, None)})
    fs.make_directory(f"{directory}/channels")
    journal = ChannelJournal(fs, f"{directory}/channels/c", 0)
    journal.fold(ChannelImage(1, [(2, 3)], {1: 2}))
    journal.append([Op(OpKind.ACK, 3)])
    journal.append([Op(OpKind.REQUEUE, 1, value=3), Op(OpKind.FLOOR, 1)])
    journal.close()
    log.close()


@cache
def small_store() -> Mapping[str, bytes]:
    """Return the files of a store of two topics, by their paths in it: sealed and open segments, a channel each."""
    fs = SimulatedFileSystem({STORE: None})
    full = Columns([b"five", b""], tags=["x", None], keys=[None, b"k"], headers=[{"a": "b"}, {}])
    _topic(fs, "t", 7, [Columns([b"zero"]), Columns([b"one"]), None, Columns([b"two"]), None, full, Columns([b"end"])])
    _topic(fs, "u", 8, [Columns([b"u0", b"u1"]), None, Columns([b"u2"])])
    files = {path.removeprefix(f"{STORE}/"): data for path, data in fs.image().items() if data is not None}
    return {name: _without_room(data) if name.endswith("journal") else data for name, data in files.items()}


def _without_room(journal: bytes) -> bytes:
    """Return a journal up to its last operation: the zeros behind it only make a fuzzer slow."""
    return journal[: decode_blocks(journal, decode_journal_header(journal))[1]]


def as_row(files: Mapping[str, bytes]) -> bytes:
    """Return a store as one row of bytes. Of a watermark only its two slots are kept."""
    parts: list[bytes] = []
    for name, content in files.items():
        data = content
        if name.endswith("watermark"):
            data = data[:SLOT_BYTES] + data[SLOT_STRIDE : SLOT_STRIDE + SLOT_BYTES]
        parts += (_ENTRY.pack(NAMES.index(name), len(data)), data)
    return b"".join(parts)


def from_row(row: bytes) -> dict[str, bytes]:
    """Return the files of a store that any row of bytes stands for."""
    files: dict[str, bytes] = {}
    at = 0
    while at + _ENTRY.size <= len(row):
        number, size = _ENTRY.unpack_from(row, at)
        at += _ENTRY.size
        name, data = NAMES[number % len(NAMES)], row[at : at + size]
        if name.endswith("watermark") and len(data) >= SLOT_BYTES:
            data = data[:SLOT_BYTES].ljust(SLOT_STRIDE, b"\0") + data[SLOT_BYTES:].ljust(SLOT_STRIDE, b"\0")
        files[name] = data
        at += size
    return files


def image_of(files: Mapping[str, bytes]) -> Image:
    """Return the files as those of a simulated file system."""
    return {STORE: None, **{f"{STORE}/{name}": data for name, data in files.items()}}
