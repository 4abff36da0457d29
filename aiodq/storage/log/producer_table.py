"""What a log holds of whom: the last puts of each producer, by which one that comes again is known."""

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aiodq.format.frame import Frame
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["MOST_PENDING", "Origin", "ProducerTable"]

MOST_PENDING: Final = 16
"""So many puts of a producer are known: it has no more of them unacknowledged in one topic."""

_MOST: Final = 1000
"""Producers known of one topic; beyond that those are forgotten that have been silent for longest."""

_IDLE_NS: Final = 3600 * 1_000_000_000
"""After such a time a producer is forgotten."""

_FURTHEST: Final = 4
"""So many segments are looked through, from the last one back, where none begins with what was known before."""

_KIND_AT: Final = 8
_CONTROL: Final = re.compile(bytes([91, KIND_PUT, KIND_PRODUCERS, 93]) + rb"\x00\x00\x00", re.DOTALL)
_CHUNK: Final = 1 << 20
_PRODUCER: Final = struct.Struct(f"<I{FRAME_PREFIX.size - 4}xQ")
_SHORTEST: Final = _PRODUCER.size
"""Bytes of a frame by which it is told whose put it names, if it is one."""


class ProducerTable:
    """The last puts of each producer, in the order in which they were put.

    Attributes:
        puts: those of each producer, by sequence, the one that was silent for longest first. Empty: nobody is known.
    """

    def __init__(self) -> None:
        """Know nobody."""
        self.puts: dict[int, dict[int, Producer]] = {}

    def __len__(self) -> int:
        """Return how many producers are known."""
        return len(self.puts)

    def rows(self) -> list[Producer]:
        """Return all that is known, oldest producer first."""
        return list(chain.from_iterable(puts.values() for puts in self.puts.values()))

    def find(self, origin: Origin) -> range | None:
        """Return the offsets of a put that is in the log already, or None."""
        put = self.puts.get(origin.producer, {}).get(origin.sequence)
        return None if put is None else range(put.first, put.first + put.messages)

    def last(self, producer: int) -> int | None:
        """Return the sequence of a producer's last put, or None where nobody knows it."""
        puts = self.puts.get(producer)
        return None if puts is None else next(reversed(puts))

    def note(self, row: Producer) -> None:
        """Know of a put that is in the log from now on."""
        puts = self.puts.pop(row.producer, {})
        puts[row.sequence] = row
        while len(puts) > MOST_PENDING:
            del puts[next(iter(puts))]
        self.puts[row.producer] = puts  # behind all who have been silent for longer
        while len(self.puts) > _MOST or self._oldest_ns() < row.time_ns - _IDLE_NS:
            del self.puts[next(iter(self.puts))]

    def _oldest_ns(self) -> int:
        puts = self.puts[next(iter(self.puts))]
        return puts[next(reversed(puts))].time_ns

    def recall(self, fs: FileSystem, segments: Sequence[Segment], end: int, salt: int) -> None:
        """Know what a log's files say. Blocking.

        Args:
            fs: the log's.
            segments: the log's, in order, whose ends are right.
            end: the offset behind the last record of the log.
            salt: of the segments that an owner has written; those that were taken over tell of nobody.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self.puts.clear()
        found: list[list[Producer]] = []
        own = [each for each in segments if not each.empty and each.context.salt == salt]
        for segment in reversed(own[-_FURTHEST:]):
            try:
                rows, whole = _recalled(fs, segment, end)
            except StoreNotFoundError:
                break  # retention has deleted it meanwhile, and what is older before it
            found.append(rows)
            if whole:
                break
        for row in chain.from_iterable(reversed(found)):
            self.note(row)


class _Place(NamedTuple):
    """Where a control frame seems to stand."""

    position: int
    producer: int | None
    """Whose put it names; None where it tells of several."""


def _recalled(fs: FileSystem, segment: Segment, end: int) -> tuple[list[Producer], bool]:
    """Return what one segment says, and whether that is everything: it begins with what was known before."""
    with opened(fs, segment.path) as file:
        window = Window(file, segment.path, segment.data_end)
        if segment.sealed and (rows := _told_at_the_end(window, segment)) is not None:
            return rows, True
        places = list(_places(window, segment))
        latest = _latest(places)
        rows, whole, sure = _rows(window, segment, latest, end)
        if not sure and len(latest) < len(places):  # an earlier put is known in the place of one that is none
            rows, whole, _ = _rows(window, segment, places, end)
    return rows, whole


def _told_at_the_end(window: Window, segment: Segment) -> list[Producer] | None:
    """Return who was known where a segment ends, or None where it does not say so."""
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
        return None  # it is found by a look through the segment who can be


def _rows(window: Window, segment: Segment, places: Iterable[_Place], end: int) -> tuple[list[Producer], bool, bool]:
    """Return what control frames say, whether that is everything, and whether each put is what it seems to be."""
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
            # Bytes of a message that only look like one, or damage that reading the messages tells of.
            sure = sure and place.producer is None
    return rows, whole, sure


def _latest(places: Sequence[_Place]) -> list[_Place]:
    """Return those that tell of the last puts of each producer, as many as are known, and those that tell of several.

    There may be a frame for each message of the log: what is not needed is not read.
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
    """Yield where something looks like a control frame of producers; nothing but kind and length is checked."""
    position, behind = SEGMENT_HEADER.size, 0
    while position + _SHORTEST <= segment.data_end:
        chunk = window.read(position, min(_CHUNK, segment.data_end - position))
        for match in _CONTROL.finditer(chunk, _KIND_AT):
            at = match.start() - _KIND_AT
            if (position + at) % ALIGNMENT or position + at < behind or at + _SHORTEST > len(chunk):
                continue
            behind = position + at + 1
            length, producer = _PRODUCER.unpack_from(chunk, at)
            if chunk[at + _KIND_AT] == KIND_PRODUCERS:
                yield _Place(position + at, None)
            elif length == PUT_FRAME_BYTES:
                yield _Place(position + at, producer)
        # What lies across the border of two chunks is looked at again with the second.
        step = len(chunk) - _SHORTEST & ~(ALIGNMENT - 1)
        if step <= 0:
            return
        position += step


def _put_of(window: Window, view: memoryview, at: int, frame: Frame, segment: Segment) -> Producer | None:
    """Return the put that a frame names, if that stands behind it."""
    put = decode_put(view, at, frame, segment.context, path=segment.path)
    prefix = window.read(frame.end, min(64, segment.data_end - frame.end))
    following = read_prefix(prefix, 0, segment.context, position=frame.end, limit=segment.data_end, path=segment.path)
    # CRASH: 2. A power cut may have left the control frame without its put, and another put has those offsets now.
    if following.crc != put.follows or following.first != put.first:
        return None
    return Producer(put.producer, put.sequence, put.first, put.messages, frame.time_ns)
