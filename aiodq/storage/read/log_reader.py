"""Reading a log by offset: forward, backward, by time. It sees a snapshot and may run while the owner writes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.format.columns import Flags
from aiodq.format.decode import decode_frames
from aiodq.format.footer import IndexEntry, SegmentIndex
from aiodq.format.frame import Batch
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.read.frame_reader import FrameReader
from aiodq.storage.read.frame_results import FramesRead, LogView, lost_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.storage.io.filesystem import FileSystem, Opener
    from aiodq.storage.read.frame_reader import OpenSegment
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["LogReader", "LogView", "ReadResult", "batches_with", "transactions_in"]

_PIECE: Final = 1 << 20
_CHUNK: Final = 256 * 1024

ReadResult: TypeAlias = FramesRead[Batch]


class LogReader(FrameReader[Batch]):
    """A reader of a log's batches."""

    def __init__(self, fs: Opener) -> None:
        """Read through `fs`."""
        super().__init__(fs, decode_frames)

    def read_back(self, view: LogView, offset: int, max_bytes: int) -> ReadResult:
        """Return batches that end below `offset`, in order; `next` is the offset to continue with, downward.

        Args:
            view: what may be read.
            offset: one above the highest offset wanted.
            max_bytes: about how much to read at once.

        Raises:
            StorageError: the system refused.
        """
        offset = min(offset, view.stop)
        segment = next((each for each in reversed(view.between(0, offset)) if not each.empty), None)
        if segment is None:
            return ReadResult(next=0)
        try:
            opened = self.opened(segment)
        except (CorruptionError, StoreNotFoundError) as error:
            lost = lost_segment(segment, error, view)
            lost.next = segment.base
            return lost
        stop = min(offset, segment.end)
        result = ReadResult(next=self._first_before(opened, stop, max_bytes))
        at = result.next
        while at < stop:
            part = self.read(view, at, max_bytes)
            if (later := self._first_before(opened, stop, max_bytes)) > result.next:
                # There is a long run, which is known to be complete now: only its last frames are wanted.
                result, at = ReadResult(next=later, bytes_read=result.bytes_read + part.bytes_read), later
                continue
            result.damages += part.damages
            result.bytes_read += part.bytes_read
            result.batches += [batch.cut(0, offset) for batch in part.batches if batch.first < offset]
            if part.next <= at:
                break
            at = part.next
        return result

    def _first_before(self, opened: OpenSegment, offset: int, max_bytes: int) -> int:
        """Return the offset of an index entry, or of a frame of a known run, about `max_bytes` before an offset."""
        base, index = opened.segment.base, opened.run_with(offset - 1) or opened.index
        number = bisect_right(index.firsts, offset - 1 - base) - 1
        if number < 0:
            return base
        top = index.positions[number]
        while number > 0 and top - index.positions[number - 1] < max_bytes:
            number -= 1
        return base + index.firsts[number]

    def offset_behind(self, view: LogView, offset: int, size: int, slack: int = 0) -> int:
        """Return where a read of about `size` bytes from `offset` on should end, so that the next begins with a put.

        That is the first larger offset at which an index entry begins and before which there are that many bytes of
        frames; the view's end if there is none.

        Args:
            view: what may be read.
            offset: where the read begins.
            size: at least 1.
            slack: bytes by which the read may be larger if it then ends with a segment, whose index need not be read.

        Raises:
            StorageError: the system refused, or the file no longer exists.
        """
        for segment in view.between(offset, view.stop):
            if size <= 0:
                return segment.base
            start = self._position_of(segment, offset)
            left = view.data_end_of(segment) - start
            if left <= size + slack:
                size -= left
                continue
            index = self.opened(segment).index
            # Entries of frames without records have the offset of the next record.
            beyond = bisect_right(index.firsts, offset - segment.base)
            number = max(bisect_left(index.positions, start + size), beyond)
            if number < len(index):
                return segment.base + index.firsts[number]
            size = 0
        return view.stop

    def offset_at(self, view: LogView, time_ns: int) -> int:
        """Return the first offset whose time is `time_ns` or later; the view's end if all are older.

        Messages deleted since the view was taken are skipped.

        Raises:
            StorageError: the system refused.
        """
        for segment in view.segments:
            if segment.empty or segment.newest_ns < time_ns:
                continue
            try:
                found = self._offset_in(segment, view, time_ns)
            except StoreNotFoundError:
                continue
            if found is not None:
                return min(found, view.stop)
        return view.stop

    def offset_from(self, view: LogView, time_ns: int) -> int:
        """Return the offset from which on messages may be of `time_ns` or later.

        It is that of `offset_at`, or a lower one if messages before that cannot be read, whose times are unknown.
        Those deleted since the view was taken are skipped.

        Raises:
            StorageError: the system refused.
        """
        at = self.offset_at(view, time_ns)
        for segment in reversed(view.segments):
            if segment.base >= at:
                continue
            at = min(at, segment.end)
            if segment.sealed and not segment.empty and segment.newest_ns < time_ns:
                break
            try:
                self.opened(segment)
            except StoreNotFoundError:
                break
            except CorruptionError:
                at = segment.base
            while at > segment.base:
                part = self.read_back(view, at, _CHUNK)
                if part.batches:
                    return part.batches[-1].stop
                at = part.next
        return at

    def _offset_in(self, segment: Segment, view: LogView, time_ns: int) -> int | None:
        opened = self.opened(segment)
        number = next((n for n, newest in enumerate(opened.index.newest) if newest >= time_ns), None)
        if number is None:
            # In a growing segment, the last entry may hold newer messages than it says.
            number = len(opened.index) - 1
        if number < 0:
            return None
        at = segment.base + opened.index.firsts[number]
        while at < min(segment.end, view.stop):
            part = self.read(view, at, _CHUNK)
            for batch in part.batches:
                times = batch.columns.times or [batch.time_ns] * len(batch.columns.bodies)
                hit = next((n for n, t in enumerate(times) if t >= time_ns), None)
                if hit is not None:
                    return batch.first + hit
            if part.next <= at:
                return None
            at = part.next
        return None

    def light(self, segment: Segment, offset: int) -> Segment:
        """Return a copy of a segment that is small to send to a reader from `offset` on: its index has one entry.

        Raises:
            StorageError: the system refused, or the file no longer exists.
        """
        start = max(offset - segment.base, 0)
        index, left = SegmentIndex(), segment.end - segment.base - start
        entry = IndexEntry(self._position_of(segment, offset), start, left, 0, segment.newest_ns)
        index.add(entry, joined=False, flags=segment.flags, raw_bytes=0)
        return replace(segment, index=index)

    def _position_of(self, segment: Segment, offset: int) -> int:
        """Return the position from which to look in a segment for `offset` or a later one."""
        if segment.base >= offset:
            return SEGMENT_HEADER.size
        return self.opened(segment).index.position_of(offset - segment.base)


def transactions_in(fs: FileSystem, view: LogView, since: int) -> set[int]:
    """Return the numbers of the transactions that a log holds messages of, from an offset on. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    found = {batch.columns.transaction for batch in batches_with(fs, view, Flags.TRANSACTION, since)}
    return {number for number in found if number is not None}


def batches_with(fs: FileSystem, view: LogView, flags: Flags, since: int) -> Iterator[Batch]:
    """Yield the batches of segments that have all of these flags, from an offset on. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    reader = LogReader(fs)
    try:
        for segment in view.segments:
            at = max(segment.base, since) if segment.flags & flags == flags else segment.end
            while at < segment.end:
                result = reader.read(view, at, _PIECE)
                yield from result.batches
                if result.next <= at:
                    break
                at = result.next
    finally:
        reader.close()
