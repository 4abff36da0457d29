"""The footer of a sealed segment: an index of its frames, and a tail of fixed size that locates the index."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from operator import le, lt
from typing import TYPE_CHECKING, NamedTuple

from aiodq.errors import CorruptionError
from aiodq.format.layout import (
    ALIGNMENT,
    FOOTER_TAIL,
    INDEX_ENTRY,
    INDEX_STRIDE,
    SEGMENT_HEADER,
    TAIL_MAGIC,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.layout import BytesLike

__all__ = ["FooterTail", "IndexEntry", "SegmentIndex", "encode_footer", "footer_bytes"]

_CRC_AT = FOOTER_TAIL.size - 12
_OFFSETS = 1 << 63
"""Every offset is below this. A repair may note that a segment ends far beyond its records."""


def footer_bytes(entries: int) -> int:
    """Return the size of a footer whose index has that many entries."""
    return entries * INDEX_ENTRY.size + FOOTER_TAIL.size


class IndexEntry(NamedTuple):
    """Consecutive whole frames (and whole runs): position, contents, and newest time in nanoseconds."""

    position: int
    first: int
    records: int
    frames: int
    newest_ns: int


@dataclass(slots=True)
class SegmentIndex:
    """A segment's index, growing with it or read from its footer. First offsets are relative to the base.

    Attributes:
        positions, firsts, records, frames, newest: one item per entry.
        flags: the union of all frames' flags.
        raw_bytes: the total size of the payloads before compression.
        oldest_ns: the oldest batch time, or 0 if empty.
    """

    positions: array[int] = field(default_factory=lambda: array("Q"))
    firsts: array[int] = field(default_factory=lambda: array("Q"))
    records: array[int] = field(default_factory=lambda: array("Q"))
    frames: array[int] = field(default_factory=lambda: array("Q"))
    newest: array[int] = field(default_factory=lambda: array("q"))
    flags: int = 0
    raw_bytes: int = 0
    oldest_ns: int = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.positions)

    def add(self, entry: IndexEntry, *, joined: bool, flags: int, raw_bytes: int) -> None:
        """Add frames at the segment's end.

        Args:
            entry: the frames.
            joined: whether they continue a run, so that no entry may begin with them.
            flags: the union of their flags.
            raw_bytes: the size of their payloads before compression.
        """
        self.flags |= flags
        self.raw_bytes += raw_bytes
        self.oldest_ns = min(self.oldest_ns, entry.newest_ns) if self.positions else entry.newest_ns
        if self.positions and (joined or entry.position - self.positions[-1] < INDEX_STRIDE):
            self.records[-1] += entry.records
            self.frames[-1] += entry.frames
            self.newest[-1] = max(self.newest[-1], entry.newest_ns)
            return
        self.positions.append(entry.position)
        self.firsts.append(entry.first)
        self.records.append(entry.records)
        self.frames.append(entry.frames)
        self.newest.append(entry.newest_ns)

    def add_record(self, position: int, first: int, time_ns: int, raw_bytes: int, frames: int = 1) -> None:
        """Add a frame of one record without flags at the segment's end, as `add` would.

        Args:
            position: that of the frame, or of the control frames before it that belong to the same entry.
            first: its relative offset.
            time_ns: when it was put.
            raw_bytes: the size of its payload.
            frames: the number of frames, including those control frames.
        """
        positions, newest = self.positions, self.newest
        self.raw_bytes += raw_bytes
        if not positions or time_ns < self.oldest_ns:
            self.oldest_ns = time_ns
        if positions and position - positions[-1] < INDEX_STRIDE:
            self.records[-1] += 1
            self.frames[-1] += frames
            newest[-1] = max(newest[-1], time_ns)
            return
        positions.append(position)
        self.firsts.append(first)
        self.records.append(1)
        self.frames.append(frames)
        newest.append(time_ns)

    def add_each(self, position: int, first: int, lengths: Sequence[int], times: Sequence[int], raw_bytes: int) -> None:
        """Add frames of one record each at the segment's end, as repeated calls of `add` would.

        Args:
            position: the first frame's.
            first: its relative offset.
            lengths: the lengths of the frames, bytes.
            times: the put time of each, nanoseconds.
            raw_bytes: the total size of their payloads.
        """
        starts = list(accumulate(lengths, initial=position))[:-1]
        self.raw_bytes += raw_bytes
        oldest = min(times)
        self.oldest_ns = min(self.oldest_ns, oldest) if self.positions else oldest
        at = 0
        while at < len(starts):
            if not self.positions or starts[at] - self.positions[-1] >= INDEX_STRIDE:
                self.positions.append(starts[at])
                self.firsts.append(first + at)
                self.records.append(0)
                self.frames.append(0)
                self.newest.append(times[at])
            stop = bisect_left(starts, self.positions[-1] + INDEX_STRIDE, at)
            self.records[-1] += stop - at
            self.frames[-1] += stop - at
            newest = max(times[at:stop])
            self.newest[-1] = max(self.newest[-1], newest)
            at = stop

    def extend(self, entries: Sequence[IndexEntry], *, raw_bytes: int, oldest_ns: int) -> None:
        """Add whole entries at the segment's end, the first of them at least a stride after the last present one."""
        self.raw_bytes += raw_bytes
        self.oldest_ns = min(self.oldest_ns, oldest_ns) if self.positions else oldest_ns
        columns = (self.positions, self.firsts, self.records, self.frames, self.newest)
        for column, values in zip(columns, zip(*entries, strict=True), strict=False):
            column.extend(values)

    def position_of(self, relative: int) -> int:
        """Return the position of the entry in which to look for a relative offset; the header's end if empty."""
        number = bisect_right(self.firsts, relative) - 1
        return self.positions[number] if number >= 0 else SEGMENT_HEADER.size

    @property
    def newest_ns(self) -> int:
        """The newest batch time, or 0 if empty."""
        return max(self.newest, default=0)

    def encode(self) -> bytes:
        """Encode the entries as they stand in a footer."""
        rows = zip(self.positions, self.firsts, self.records, self.frames, self.newest, strict=True)
        return b"".join(INDEX_ENTRY.pack(p, first, n, f, 0, t) for p, first, n, f, t in rows)

    @classmethod
    def decode(cls, data: BytesLike, tail: FooterTail, path: str = "") -> SegmentIndex:
        """Decode the index that precedes `tail`; `data` holds its bytes.

        Raises:
            CorruptionError: its checksum is wrong, or it does not fit the tail.
        """
        if len(data) != tail.entries * INDEX_ENTRY.size or zlib.crc32(data) != tail.index_crc:
            message = "the footer's index is not what was written"
            raise CorruptionError(message, path, tail.data_end)
        # Entry by entry it would take as long as reading a segment of small frames.
        narrow = words(data, "I")
        index = cls(
            array("Q", words(data, "Q")[0::4]),
            array("Q", narrow[2::8]),
            array("Q", narrow[3::8]),
            array("Q", narrow[4::8]),
            array("q", words(data, "q")[3::4]),
            tail.flags,
            tail.raw_bytes,
            tail.oldest_ns,
        )
        if not index._fits(tail):
            message = "the footer's index does not fit its tail"
            raise CorruptionError(message, path, tail.data_end)
        return index

    def _fits(self, tail: FooterTail) -> bool:
        """Return whether every entry points into the frames, in order, and the totals match the tail."""
        if not self.positions:
            return tail.records == tail.frames == 0
        return (
            self.positions[0] >= SEGMENT_HEADER.size
            and self.positions[-1] < tail.data_end
            and all(map(lt, self.positions, self.positions[1:]))
            and not any(map((ALIGNMENT - 1).__and__, self.positions))
            and all(map(le, self.firsts, self.firsts[1:]))
            and self.firsts[-1] + self.records[-1] <= tail.end
            and sum(self.records) == tail.records
            and sum(self.frames) == tail.frames
        )


@dataclass(frozen=True, slots=True)
class FooterTail:
    """The tail of a footer, of fixed size, at the end of a sealed segment.

    Attributes:
        data_end: where the frames end and the index begins, bytes.
        entries: the number of entries of the index.
        index_crc: crc32 of the index's bytes.
        flags: the union of all frames' flags.
        salt: a copy of the header's.
        records: the number of records.
        end: the relative offset after the last record; larger than `records` if damage left a gap.
        raw_bytes: the total size of the payloads before compression.
        oldest_ns, newest_ns: the range of batch times.
        frames: the number of frames.
    """

    data_end: int
    entries: int
    index_crc: int
    flags: int
    salt: int
    records: int
    end: int
    raw_bytes: int
    oldest_ns: int
    newest_ns: int
    frames: int

    def encode(self) -> bytes:
        """Encode the tail."""
        footer = footer_bytes(self.entries)
        head = FOOTER_TAIL.pack(
            self.data_end,
            self.entries,
            self.index_crc,
            self.flags,
            self.salt,
            self.records,
            self.end,
            self.raw_bytes,
            self.oldest_ns,
            self.newest_ns,
            self.frames,
            footer,
            0,
            TAIL_MAGIC,
        )[:_CRC_AT]
        return head + zlib.crc32(head).to_bytes(4, "little") + TAIL_MAGIC

    @classmethod
    def decode(cls, data: BytesLike, file_size: int, path: str = "") -> FooterTail | None:
        """Decode the tail in the last bytes of a file; return None if the file does not end with one.

        Raises:
            CorruptionError: there is one, but its checksum is wrong, it does not fit the file, or it names more records
                than offsets, or more offsets than there are.
        """
        if len(data) < FOOTER_TAIL.size or bytes(data[-len(TAIL_MAGIC) :]) != TAIL_MAGIC:
            return None
        at = len(data) - FOOTER_TAIL.size
        values = FOOTER_TAIL.unpack_from(data, at)
        position = file_size - FOOTER_TAIL.size
        if values[12] != zlib.crc32(memoryview(data)[at : at + _CRC_AT]):
            message = "the footer's checksum is wrong"
            raise CorruptionError(message, path, position)
        tail = cls(*values[:11])
        footer = footer_bytes(tail.entries)
        fits = values[11] == footer and tail.data_end + footer == file_size
        if not fits or tail.data_end % ALIGNMENT or tail.data_end < SEGMENT_HEADER.size:
            message = "the footer does not belong to a file of this size"
            raise CorruptionError(message, path, position)
        if not tail.records <= tail.end < _OFFSETS:
            message = f"the footer names {tail.end} offsets for {tail.records} records, which cannot be"
            raise CorruptionError(message, path, position)
        return tail


def encode_footer(index: SegmentIndex, *, data_end: int, end: int, salt: int) -> tuple[FooterTail, bytes]:
    """Return the tail, and the encoded index and tail, for a segment whose frames end at `data_end`.

    Args:
        index: that of all its frames.
        data_end: the position where the frames end, bytes.
        end: the relative offset after the last record.
        salt: the header's.
    """
    entries = index.encode()
    tail = FooterTail(
        data_end,
        len(index),
        zlib.crc32(entries),
        index.flags,
        salt,
        sum(index.records),
        end,
        index.raw_bytes,
        index.oldest_ns,
        index.newest_ns,
        sum(index.frames),
    )
    return tail, entries + tail.encode()
