"""The producer table: the last puts of each producer of a log, by which a repeated put is recognised."""

from __future__ import annotations

import re
import struct
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.format.frame import read_prefix
from aiodq.format.layout import ALIGNMENT, FRAME_PREFIX, SEGMENT_HEADER, TRAILER
from aiodq.format.producers import (
    KIND_PRODUCERS,
    KIND_PUT,
    PUT_FRAME_BYTES,
    Origin,
    Producer,
    decode_producers,
    decode_put,
)
from aiodq.storage.io.filesystem import opened
from aiodq.storage.segments.frame_scan import Window
from aiodq.storage.state.seen_time import SeenTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aiodq.format.frame import Frame
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["MOST_PENDING", "Origin", "ProducerTable"]

MOST_PENDING: Final = 16
"""Puts known of each producer: it has no more of them unacknowledged in one topic."""

_MOST: Final = 1000
"""Producers known of one topic; beyond that, those silent for longest are forgotten."""

_IDLE_NS: Final = 3600 * 1_000_000_000
"""Nanoseconds of silence, as seen by the puts of others, after which a producer is forgotten."""

_FURTHEST: Final = 4
"""Segments that are searched, from the last one back, if none begins with the table as it was before."""

_KIND_AT: Final = 8
_CONTROL: Final = re.compile(bytes([91, KIND_PUT, KIND_PRODUCERS, 93]) + rb"\x00\x00\x00", re.DOTALL)
_CHUNK: Final = 1 << 20
_PRODUCER: Final = struct.Struct(f"<I{FRAME_PREFIX.size - 4}xQ")
_SHORTEST: Final = _PRODUCER.size
"""Bytes of a control frame that are needed to tell its length and producer."""


class ProducerTable:
    """The last puts of each producer, in the order of the puts.

    Attributes:
        puts: the known puts by producer, the one silent for longest first, and by sequence.
    """

    def __init__(self) -> None:
        """Make an empty table."""
        self.puts: dict[int, dict[int, Producer]] = {}
        self._time = SeenTime()
        self._last_put_ns: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of known producers."""
        return len(self.puts)

    def rows(self) -> list[Producer]:
        """Return all known puts, those of the producer silent for longest first."""
        return list(chain.from_iterable(puts.values() for puts in self.puts.values()))

    def find(self, origin: Origin) -> range | None:
        """Return the offsets of a put if the log holds it already, or None."""
        put = self.puts.get(origin.producer, {}).get(origin.sequence)
        return None if put is None else range(put.first, put.first + put.messages)

    def note(self, row: Producer) -> None:
        """Add a put that is in the log now."""
        puts = self.puts.pop(row.producer, {})
        puts[row.sequence] = row
        while len(puts) > MOST_PENDING:
            del puts[next(iter(puts))]
        self.puts[row.producer] = puts  # after all that have been silent for longer
        now = self._last_put_ns[row.producer] = self._time.see(row.time_ns)
        while self._last_put_ns[oldest := next(iter(self.puts))] < now - _IDLE_NS or len(self.puts) > _MOST:
            del self.puts[oldest], self._last_put_ns[oldest]

    def recall(self, fs: FileSystem, segments: Sequence[Segment], end: int, salt: int) -> None:
        """Load the table from a log's files. Blocking.

        Args:
            fs: the log's file system.
            segments: the log's, in order, with their ends verified.
            end: the offset after the last record of the log.
            salt: that of the segments written by an owner; adopted ones name no producers.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self.puts.clear()
        self._last_put_ns.clear()
        found: list[list[Producer]] = []
        own = [each for each in segments if not each.empty and each.context.salt == salt]
        for segment in reversed(own[-_FURTHEST:]):
            try:
                rows, whole = _recalled(fs, segment, end)
            except StoreNotFoundError:
                break  # retention has deleted it meanwhile, and older ones before it
            found.append(rows)
            if whole:
                break
        for row in chain.from_iterable(reversed(found)):
            self.note(row)


class _Place(NamedTuple):
    """The position of what looks like a control frame."""

    position: int
    producer: int | None
    """The producer whose put it names; None for a frame that holds a table."""


def _recalled(fs: FileSystem, segment: Segment, end: int) -> tuple[list[Producer], bool]:
    """Return a segment's rows, and whether they are complete: the segment has a table at its start or end."""
    with opened(fs, segment.path) as file:
        window = Window(file, segment.path, segment.data_end)
        if segment.sealed and (rows := _told_at_the_end(window, segment)) is not None:
            return rows, True
        places = list(_places(window, segment))
        latest = _latest(places)
        rows, whole, sure = _rows(window, segment, latest, end)
        if not sure and len(latest) < len(places):  # an earlier put counts instead of one that is not real
            rows, whole, _ = _rows(window, segment, places, end)
    return rows, whole


def _told_at_the_end(window: Window, segment: Segment) -> list[Producer] | None:
    """Return the table with which a segment ends, or None if it has none."""
    try:
        length = TRAILER.unpack(window.read(segment.data_end - TRAILER.size, TRAILER.size))[0]
        position = segment.data_end - length
        if not SEGMENT_HEADER.size <= position <= segment.data_end - _SHORTEST:
            return None
        prefix = window.read(position, FRAME_PREFIX.size)
        frame = read_prefix(prefix, 0, segment.context, position=position, limit=segment.data_end, path=segment.path)
        if frame.kind != KIND_PRODUCERS or frame.first != segment.end:
            return None
        at = window.at(position, frame.length)
        return decode_producers(memoryview(window.data), at, frame, segment.context, path=segment.path)
    except CorruptionError:
        return None  # the segment's scan finds what can be found


def _rows(window: Window, segment: Segment, places: Iterable[_Place], end: int) -> tuple[list[Producer], bool, bool]:
    """Return the rows of control frames, whether they are complete, and whether each frame was a real put."""
    rows: list[Producer] = []
    whole, sure = False, True
    for place in places:
        try:
            prefix = window.read(place.position, FRAME_PREFIX.size)
            frame = read_prefix(
                prefix, 0, segment.context, position=place.position, limit=segment.data_end, path=segment.path
            )
            at = window.at(frame.position, frame.length)
            view = memoryview(window.data)
            if frame.kind == KIND_PUT:
                row = _put_of(window, view, at, frame, segment)
                if row is None or row.first + row.messages > end:
                    sure = False
                else:
                    rows.append(row)
            else:
                rows += decode_producers(view, at, frame, segment.context, path=segment.path)
                whole = whole or frame.first == segment.base
        except CorruptionError:
            # Bytes of a message that only look like one, or damage, which reading the messages will report.
            sure = sure and place.producer is None
    return rows, whole, sure


def _latest(places: Sequence[_Place]) -> list[_Place]:
    """Return the frames of each producer's last puts, as many as are kept, and all frames that hold a table.

    There may be one frame for each message of the log, so only what is needed is read.
    """
    left: dict[int, int] = {}
    found: list[_Place] = []
    for place in reversed(places):
        if place.producer is not None:
            left[place.producer] = left.get(place.producer, MOST_PENDING) - 1
            if left[place.producer] < 0:
                continue
        found.append(place)
    found.reverse()
    return found


def _places(window: Window, segment: Segment) -> Iterator[_Place]:
    """Yield the positions of what looks like a producer's control frame; only kind and length are checked."""
    position, after = SEGMENT_HEADER.size, 0
    while position + _SHORTEST <= segment.data_end:
        chunk = window.read(position, min(_CHUNK, segment.data_end - position))
        for match in _CONTROL.finditer(chunk, _KIND_AT):
            at = match.start() - _KIND_AT
            if (position + at) % ALIGNMENT or position + at < after or at + _SHORTEST > len(chunk):
                continue
            after = position + at + 1
            length, producer = _PRODUCER.unpack_from(chunk, at)
            if chunk[at + _KIND_AT] == KIND_PRODUCERS:
                yield _Place(position + at, None)
            elif length == PUT_FRAME_BYTES:
                yield _Place(position + at, producer)
        # What spans two chunks is looked at again with the second.
        step = len(chunk) - _SHORTEST & ~(ALIGNMENT - 1)
        if step <= 0:
            return
        position += step


def _put_of(window: Window, view: memoryview, at: int, frame: Frame, segment: Segment) -> Producer | None:
    """Return the put that a frame names, if that put follows it."""
    put = decode_put(view, at, frame, segment.context, path=segment.path)
    prefix = window.read(frame.end, min(64, segment.data_end - frame.end))
    following = read_prefix(prefix, 0, segment.context, position=frame.end, limit=segment.data_end, path=segment.path)
    # CRASH: 2. A power cut may have left the control frame without its put, and another put has those offsets now.
    if following.crc != put.follows or following.first != put.first:
        return None
    return Producer(put.producer, put.sequence, put.first, put.messages, frame.time_ns)
