"""What opening costs: headers and footer tails, whatever the backlog."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import aiodq
from aiodq.format.footer import IndexEntry, SegmentIndex, encode_footer
from aiodq.format.layout import FOOTER_TAIL, SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.segments.segment_files import segment_path
from aiodq.storage.state.topic.topic_meta import TopicMeta, save_meta
from aiodq.testing import SimulatedFileSystem, WatchedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.testing.disk import Image

TOPIC = UUID(int=7)
SEGMENTS = 100
SIZE = 100 << 20
PER_SEGMENT = 1_000_000
FRAME_BYTES = 100


def sparse_segment(directory: Path, base: int) -> None:
    """A sealed segment of 100 MiB as the file system sees it; its frames are a hole that nobody may look into."""
    index = SegmentIndex()
    step = PER_SEGMENT // 1000
    for number in range(1000):
        entry = IndexEntry(SEGMENT_HEADER.size + number * (SIZE // 1000 & ~7), number * step, step, 1, 5)
        index.add(entry, joined=False, flags=0, raw_bytes=step * FRAME_BYTES)
    header = SegmentHeader(base, TOPIC, 5, topic_salt(TOPIC))
    data_end = SIZE & ~7
    _, footer = encode_footer(index, data_end=data_end, end=PER_SEGMENT, salt=header.salt)
    with open(segment_path(str(directory), base), "wb") as file:
        file.write(header.encode())
        file.seek(data_end)
        file.write(footer)


async def test_opening_reads_headers_and_footer_tails_only(tmp_path: Path) -> None:
    directory = tmp_path / "orders"
    directory.mkdir()
    save_meta(WatchedFileSystem(), str(directory), TopicMeta(TOPIC))
    for number in range(SEGMENTS):
        sparse_segment(directory, number * PER_SEGMENT)
    fs = WatchedFileSystem()
    async with aiodq.open(tmp_path, fs=fs) as store:
        assert store.topic("orders").end_offset == SEGMENTS * PER_SEGMENT
        assert store.stats().topics["orders"].segments == SEGMENTS + 1
        segments = SEGMENTS * (SEGMENT_HEADER.size + FOOTER_TAIL.size)
        small_files = 64 * 1024
        assert segments <= fs.bytes_read <= segments + small_files


async def made(topics: int, channels: int, segments: int = 1) -> Image:
    """Return a store with so many of each: channels in each topic, sealed segments in the first."""
    fs = SimulatedFileSystem()
    async with aiodq.open("/s", fs=fs) as store:
        for number in range(topics):
            options = aiodq.StoreOptions(segment_bytes=65536, retention=aiodq.Retention(unconsumed="keep"))
            topic = store.topic(f"t{number:03}", options)
            await topic.put(b"x")
            for channel in range(channels):
                topic.channel(f"c{channel}")
            await topic.settle_in()
        topic = store.topic("t000")
        while store.stats().topics["t000"].segments < segments:
            await topic.put(bytes(40_000))
    return fs.image()


async def calls_to_open(image: Image) -> tuple[Counter[str], Counter[str]]:
    """Return how often each kind of call was made to open a store, and how often it concerned each file by name."""
    fs, files = SimulatedFileSystem(image), Counter[str]()
    fs.before = lambda call, path: files.update([f"{call} {path.rpartition('/')[2]}"])
    async with aiodq.open("/s", fs=fs):
        return Counter(fs.calls), files


async def test_each_further_channel_costs_the_same_calls() -> None:
    few, _ = await calls_to_open(await made(1, 1))
    more, _ = await calls_to_open(await made(1, 2))
    many, files = await calls_to_open(await made(1, 41))
    assert many - few == Counter({call: 40 * number for call, number in (more - few).items()})
    assert (more - few).total() <= 22
    assert files["sync_directory channels"] == 2  # one sync, seen at both its ends
    assert files["open topic.json"] <= 4  # whatever the number of channels


async def test_each_further_topic_costs_the_same_calls() -> None:
    few, _ = await calls_to_open(await made(1, 1))
    more, _ = await calls_to_open(await made(2, 1))
    many, _ = await calls_to_open(await made(11, 1))
    assert many - few == Counter({call: 10 * number for call, number in (more - few).items()})


async def test_each_further_sealed_segment_costs_its_header_and_its_footer_s_tail() -> None:
    few, _ = await calls_to_open(await made(1, 1, segments=3))
    more, _ = await calls_to_open(await made(1, 1, segments=4))
    many, _ = await calls_to_open(await made(1, 1, segments=23))
    assert many - few == Counter({call: 20 * number for call, number in (more - few).items()})
    assert (more - few)["read"] <= 3  # the header, to refuse what is newer and to open it; the tail
    assert (more - few)["listdir"] == 0
