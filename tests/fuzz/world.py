"""A store of every sort of file, what is in it, and which of that damage may cost."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from aiodq.errors import CorruptionError, FormatVersionError
from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.journal import ChannelImage, Op, OpKind
from aiodq.format.segment import SegmentHeader
from aiodq.storage.log.topic_log import LogOptions, TopicLog
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.segments.frame_scan import Unit, scan_units
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.topic.topic_meta import TopicMeta, read_meta, save_meta
from aiodq.testing import FakeClock, SimulatedFileSystem
from tests.fuzz.stores import STORE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    Files: TypeAlias = dict[str, bytes]

SETTLED: Final = {0, 1, 4, 6}
"""What each channel has settled."""


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of one put, and the offsets in it."""

    path: str
    start: int
    end: int
    first: int
    stop: int


@dataclass(slots=True)
class World:
    """A store that nothing is wrong with.

    Attributes:
        files: all of it, by the path below the store.
        bodies: by topic and offset.
        places: of all puts.
        channels: of each topic.
    """

    files: Files
    bodies: dict[str, dict[int, bytes]] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    channels: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def place_of(self, path: str, position: int) -> Place | None:
        """Return the put that a byte belongs to; None for a header, a footer, or any other file."""
        return next((p for p in self.places if p.path == path and p.start <= position < p.end), None)

    def part(self, topic: str) -> Files:
        """Return the files of one topic."""
        return {path: data for path, data in self.files.items() if topic_of(path) == topic}


def _puts(mark: str, count: int, size: int) -> list[Columns]:
    """Return puts of all forms: records alone, batches with and without columns."""
    puts: list[Columns] = []
    for number in range(count):
        body = f"{mark}-{number}-".encode() * (1 + size // 10)
        if number % 4 == 3:
            puts.append(Columns([body, b"", body[:7]], tags=["x", None, ""], headers=[{"a": "b"}, {}, {}]))
        else:
            puts.append(Columns([body]))
    return puts


def _write_topic(
    fs: SimulatedFileSystem, name: str, number: int, puts: Iterable[Columns], *, segment_bytes: int, codec: int
) -> None:
    directory = f"{STORE}/{name}"
    clock = FakeClock()
    fs.make_directory(directory)
    save_meta(fs, directory, TopicMeta(UUID(int=number)))
    log = TopicLog(fs, directory, LogOptions(segment_bytes, codec), clock)
    for columns in puts:
        clock.advance(1)
        if log.stage(columns, clock.now_ns(), atomic=True) is None:
            log.roll()
            log.stage(columns, clock.now_ns(), atomic=True)
        log.flush()
        log.commit()
        log.sync()
    fs.make_directory(f"{directory}/channels")
    for channel in ("one", "two"):
        log.description.add_channels({channel: (0, None)})
        journal = ChannelJournal(fs, f"{directory}/channels/{channel}", 0)
        journal.fold(ChannelImage(2, [(4, 5)]))
        journal.append([Op(OpKind.ACK, 6)])
        journal.append([Op(OpKind.REQUEUE, 7, value=3)])
        journal.close()
    log.close()


@cache
def a_world(mark: str = "mine", number: int = 1) -> World:
    """Return a store of three topics: many segments and a run, one open segment, compressed segments."""
    fs = SimulatedFileSystem({STORE: None})
    run = Columns([bytes([65 + part]) * 30_000 for part in range(4)])
    many = [*_puts(f"{mark}-many", 9, 40), run, *_puts(f"{mark}-more", 6, 40)]
    _write_topic(fs, "many", number * 10, many, segment_bytes=500, codec=CODEC_NONE)
    _write_topic(fs, "open", number * 10 + 1, _puts(f"{mark}-open", 10, 40), segment_bytes=1 << 20, codec=CODEC_NONE)
    _write_topic(fs, "tight", number * 10 + 2, _puts(f"{mark}-tight", 10, 300), segment_bytes=600, codec=CODEC_ZSTD)
    files = {path.removeprefix(f"{STORE}/"): data for path, data in fs.image().items() if data is not None}
    world = World(files)
    for topic in ("many", "open", "tight"):
        log = TopicLog(fs, f"{STORE}/{topic}", LogOptions(1 << 20), FakeClock())
        world.bodies[topic] = bodies_of(fs, log)
        world.channels[topic] = ("one", "two")
        for segment in log.segments:
            file = fs.open(segment.path)
            for item in scan_units(file, segment.context, segment.path, limit=segment.data_end):
                assert isinstance(item, Unit)
                path = os.path.relpath(segment.path, STORE)
                world.places.append(Place(path, item.frames[0].position, item.end, item.first, item.stop))
            file.close()
        log.abandon()
    return world


def bodies_of(fs: SimulatedFileSystem, log: TopicLog) -> dict[int, bytes]:
    """Return every message of a log by offset; reading ends and never goes back."""
    reader, view, at = LogReader(fs), log.view(), log.begin
    found: dict[int, bytes] = {}
    while at < view.stop:
        result = reader.read(view, at, 1 << 16)
        assert result.next > at
        for batch in result.batches:
            found.update(enumerate(batch.columns.bodies, batch.first))
        at = result.next
    reader.close()
    return found


def topic_of(path: str) -> str:
    """Return whose a file is."""
    return path.partition("/")[0]


def knows_itself(files: Mapping[str, bytes], world: World, topic: str) -> bool:
    """Return whether a topic's uuid can still be told, and nothing of another topic stands in for it."""
    wanted = read_meta(SimulatedFileSystem({f"{STORE}/topic.json": world.files[f"{topic}/topic.json"]}), STORE)
    assert wanted is not None
    owners: list[UUID] = []
    for path, data in files.items():
        if topic_of(path) == topic and path.endswith(".seg"):
            owners += _owner(data)
    described = files.get(f"{topic}/topic.json") == world.files[f"{topic}/topic.json"]
    marked = files.get(f"{topic}/watermark") == world.files[f"{topic}/watermark"]
    if described and (wanted.uuid in owners or not owners):
        return True
    if len(owners) == 1 and not described and not marked:
        return False  # one file against two that may agree with each other
    return bool(owners) and all(owner == wanted.uuid for owner in owners)


def _owner(data: bytes) -> Sequence[UUID]:
    try:
        return (SegmentHeader.decode(data).topic,)
    except (CorruptionError, FormatVersionError):
        return ()


def survivors(world: World, files: Mapping[str, bytes], topic: str) -> set[int]:
    """Return the offsets of a topic that lie in puts of which no byte has changed."""
    if not knows_itself(files, world, topic):
        return set()
    kept: set[int] = set()
    for place in world.places:
        if topic_of(place.path) != topic:
            continue
        before, now = world.files[place.path], files.get(place.path, b"")
        if now[place.start : place.end] == before[place.start : place.end]:
            kept.update(range(place.first, place.stop))
    return kept
