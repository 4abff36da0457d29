"""Reading a log by offset: forward, backward, by time. It sees a snapshot and may run beside the owner's writes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.format.columns import Columns, Flags
from aiodq.format.decode import decode_stretch
from aiodq.format.footer import SegmentIndex
from aiodq.format.frames import Batch
from aiodq.format.layout import FRAME_PREFIX, FRAME_START, SEGMENT_HEADER, TRAILER
from aiodq.storage.contents import index_unit
from aiodq.storage.damage import Damage
from aiodq.storage.oserrors import storage_error
from aiodq.storage.scan import Bad, Unit, scan_units
from aiodq.storage.segments import load_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.storage.filesystem import File, FileSystem
    from aiodq.storage.segments import Segment

__all__ = ["LogReader", "LogView", "ReadResult"]

_OPEN_FILES: Final = 4
_CHUNK: Final = 256 * 1024


class LogView(NamedTuple):
    """A log at one moment.

    Attributes:
        segments: in order.
        stop: the offset up to which may be read.
        data_end: where the last segment's frames ended then, bytes.
    """

    segments: tuple[Segment, ...]
    stop: int
    data_end: int


@dataclass(slots=True)
class ReadResult:
    """What one read gave.

    Attributes:
        batches: in order of their offsets.
        next: the offset to go on with.
        damages: what could not be read on the way, with the offsets it cost. One without bytes is a gap: offsets that
            no message has any more.
        bytes_read: from disk.
    """

    batches: list[Batch] = field(default_factory=list)
    next: int = 0
    damages: list[Damage] = field(default_factory=list)
    bytes_read: int = 0


@dataclass(slots=True)
class _Open:
    """A segment that is open for reading.

    Attributes:
        ahead: where the next sequential read begins: (offset, position).
        whole: between these positions every run is known to be whole.
    """

    file: File
    segment: Segment
    index: SegmentIndex
    ahead: tuple[int, int] = (-1, 0)
    whole: tuple[int, int] = (0, 0)


class LogReader:
    """A reader with a few open files. One caller at a time."""

    def __init__(self, fs: FileSystem) -> None:
        """Read through `fs`."""
        self._fs = fs
        self._open: dict[str, _Open] = {}

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        for opened in self._open.values():
            opened.file.close()
        self._open.clear()

    def forget(self, paths: Sequence[str]) -> None:
        """Close these files, so that their space comes back once they are removed."""
        for path in paths:
            opened = self._open.pop(path, None)
            if opened is not None:
                opened.file.close()

    def read(self, view: LogView, offset: int, max_bytes: int) -> ReadResult:
        """Return batches from `offset` on: at least one record, unless there is none or damage took it.

        Args:
            view: what may be read.
            offset: where to begin.
            max_bytes: how much to read at once; a larger frame is read all the same.

        Raises:
            StorageError: the system refused; never for damage, which the result reports.
        """
        if offset >= view.stop:
            return ReadResult(next=offset)
        segment = _segment_for(view, offset)
        if segment is None or segment.base > offset:
            path = view.segments[-1].path if segment is None else segment.path
            return _gap(path, offset, view.stop if segment is None else min(segment.base, view.stop))
        try:
            opened = self._opened(segment)
        except (CorruptionError, StoreNotFoundError) as error:
            return _lost(segment, error, view)
        limit = view.data_end if segment is view.segments[-1] and not segment.sealed else segment.data_end
        start = opened.ahead[1] if opened.ahead[0] == offset else opened.index.position_of(offset - segment.base)
        return self._read_stretch(opened, view, offset, start, limit=limit, max_bytes=max_bytes)

    def _read_stretch(
        self, opened: _Open, view: LogView, offset: int, start: int, *, limit: int, max_bytes: int
    ) -> ReadResult:
        segment, result = opened.segment, ReadResult(next=offset)
        position = start
        while position < limit:
            size = min(max_bytes, limit - position)
            data = self._read(opened, position, size)
            result.bytes_read += len(data)
            batches, used, error = decode_stretch(
                data, segment.context, position=position, limit=limit, skip_below=offset, path=segment.path
            )
            if not used and error is None:
                if size == limit - position:
                    error = CorruptionError("the segment ends in the middle of a frame", segment.path, position)
                elif self._plausible(opened, position, data):
                    max_bytes = max(size * 2, _frame_need(data))
                    continue
                else:
                    error = CorruptionError("the frame's two lengths differ", segment.path, position)
            batches, used, error = self._whole_runs(opened, position, batches, used, error, limit=limit)
            _add_batches(result, batches, view.stop, segment.path)
            position += used
            if error is not None:
                position = self._step_over(opened, position, result, error.message, view, limit=limit)
            # A batch that the view cuts in two has to be read again, as the rest of it comes next.
            cut = bool(batches) and batches[-1].stop > view.stop
            opened.ahead = (-1, 0) if cut else (result.next, position)
            if result.batches or result.damages or result.next >= view.stop:
                break
        if position >= limit and not result.batches and not result.damages:
            # The footer promises more than the frames hold: what lies between was set aside before.
            return _gap(segment.path, result.next, min(segment.end, view.stop), result.bytes_read)
        return result

    def _plausible(self, opened: _Open, position: int, data: bytes) -> bool:
        """Look at a large frame's other end before that much memory is spent on a length that one bit may have made."""
        need = _frame_need(data)
        if need <= _CHUNK or len(data) < FRAME_START.size:
            return True
        return self._read(opened, position + need - TRAILER.size, TRAILER.size) == data[: TRAILER.size]

    def _whole_runs(
        self,
        opened: _Open,
        position: int,
        batches: list[Batch],
        used: int,
        error: CorruptionError | None,
        *,
        limit: int,
    ) -> tuple[list[Batch], int, CorruptionError | None]:
        """Make sure that every run that begins here is whole before any of it is given out."""
        segment, end = opened.segment, position + used
        if not opened.index.flags & Flags.CONTINUED:
            return batches, used, error
        low, high = opened.whole
        if not low <= position <= high:
            low = high = position
        for item in scan_units(opened.file, segment.context, segment.path, limit=limit, start=high):
            if isinstance(item, Bad):
                if item.position > end:
                    break
                kept = [batch for batch in batches if batch.position < item.position]
                return kept, item.position - position, CorruptionError(item.reason, segment.path, item.position)
            high = item.end
            if high >= end:
                break
        opened.whole = (low, high)
        return batches, used, error

    def _step_over(
        self, opened: _Open, position: int, result: ReadResult, reason: str, view: LogView, *, limit: int
    ) -> int:
        """Report the bytes at `position` that are no put, and return where the next one begins."""
        segment = opened.segment
        stop = min(segment.end, view.stop)
        end = limit
        items = scan_units(opened.file, segment.context, segment.path, limit=limit, start=position)
        for item in items:
            # A frame whose checksum is right and whose content is not is at `position` itself: a unit, and no put.
            if isinstance(item, Unit) and item.frames[0].position > position:
                stop = min(item.first, view.stop)
                end = item.frames[0].position
                break
        first = max(result.next, segment.base)
        if stop > first:
            result.damages.append(Damage(segment.path, position, end, reason, first, stop))
        result.next = max(result.next, stop)
        return end

    def read_back(self, view: LogView, offset: int, max_bytes: int) -> ReadResult:
        """Return batches that end below `offset`, in order; `next` is the offset to go on with, downward.

        Args:
            view: what may be read.
            offset: one above the highest offset wanted.
            max_bytes: about how much to read at once.

        Raises:
            StorageError: the system refused.
        """
        offset = min(offset, view.stop)
        segments = [segment for segment in view.segments if segment.base < offset and not segment.empty]
        if not segments:
            return ReadResult(next=0)
        segment = segments[-1]
        try:
            opened = self._opened(segment)
        except CorruptionError as error:
            lost = _lost(segment, error, view)
            lost.next = segment.base
            return lost
        first = self._first_before(opened, min(offset, segment.end) - segment.base, max_bytes)
        result = ReadResult(next=max(first, segment.base))
        at = result.next
        while at < offset and at < segment.end:
            part = self.read(view, at, max_bytes)
            result.damages += part.damages
            result.bytes_read += part.bytes_read
            result.batches += [_cut_batch(batch, 0, offset) for batch in part.batches if batch.first < offset]
            if part.next <= at:
                break
            at = part.next
        return result

    def _first_before(self, opened: _Open, relative: int, max_bytes: int) -> int:
        """Return an offset at which an index entry begins, some bytes before the record at `relative`."""
        index = opened.index
        number = bisect_right(index.firsts, relative - 1) - 1
        if number < 0:
            return opened.segment.base
        top = index.positions[number]
        while number > 0 and top - index.positions[number - 1] < max_bytes:
            number -= 1
        return opened.segment.base + index.firsts[number]

    def offset_at(self, view: LogView, time_ns: int) -> int:
        """Return the first offset whose time is `time_ns` or later; the view's end where all are older.

        Raises:
            StorageError: the system refused.
        """
        for segment in view.segments:
            if segment.empty or segment.newest_ns < time_ns:
                continue
            found = self._offset_in(segment, view, time_ns)
            if found is not None:
                return min(found, view.stop)
        return view.stop

    def _offset_in(self, segment: Segment, view: LogView, time_ns: int) -> int | None:
        opened = self._opened(segment)
        number = next((n for n, newest in enumerate(opened.index.newest) if newest >= time_ns), None)
        if number is None:
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

    def bytes_from(self, view: LogView, offset: int) -> int:
        """Return about how many bytes of frames lie at `offset` and behind it, to the index's precision.

        Raises:
            StorageError: the system refused.
        """
        total = 0
        for segment in view.segments:
            limit = view.data_end if segment is view.segments[-1] and not segment.sealed else segment.data_end
            if segment.end <= offset:
                continue
            start = SEGMENT_HEADER.size
            if segment.base < offset:
                start = self._opened(segment).index.position_of(offset - segment.base)
            total += max(limit - start, 0)
        return total

    def _opened(self, segment: Segment) -> _Open:
        opened = self._open.get(segment.path)
        if opened is not None and opened.segment.base == segment.base:
            return opened
        try:
            file = self._fs.open(segment.path)
        except OSError as cause:
            raise storage_error(cause, segment.path) from cause
        try:
            opened = _Open(file, segment, _index_of(file, segment))
        except BaseException:
            file.close()
            raise
        while len(self._open) >= _OPEN_FILES:
            self._open.pop(next(iter(self._open))).file.close()
        self._open[segment.path] = opened
        return opened

    def _read(self, opened: _Open, position: int, size: int) -> bytes:
        try:
            return opened.file.read_at(size, position)
        except OSError as cause:
            raise storage_error(cause, opened.segment.path, position) from cause


def _index_of(file: File, segment: Segment) -> SegmentIndex:
    """Return the index, found again by walking the frames where the footer's is damaged."""
    try:
        return load_index(file, segment)
    except CorruptionError:
        index = SegmentIndex()
        for item in scan_units(file, segment.context, segment.path, limit=segment.data_end):
            if isinstance(item, Unit):
                index_unit(index, item, segment.base)
            else:
                index.flags |= Flags.CONTINUED
        return index


def _segment_for(view: LogView, offset: int) -> Segment | None:
    """Return the segment that holds `offset`, or the next one with records behind a gap."""
    number = max(bisect_right(view.segments, offset, key=lambda segment: segment.base) - 1, 0)
    for segment in view.segments[number:]:
        if segment.end > offset and not segment.empty:
            return segment
    return None


def _lost(segment: Segment, error: CorruptionError | StoreNotFoundError, view: LogView) -> ReadResult:
    stop = min(segment.end, view.stop)
    damage = Damage(segment.path, error.position or 0, segment.size, error.message, segment.base, stop)
    return ReadResult(next=stop, damages=[damage])


def _frame_need(data: bytes) -> int:
    return max(int.from_bytes(data[: TRAILER.size], "little"), FRAME_PREFIX.size)


def _gap(path: str, first: int, stop: int, bytes_read: int = 0) -> ReadResult:
    """Return that no message has these offsets: deleted by retention, or lost and reported before."""
    result = ReadResult(next=max(first, stop), bytes_read=bytes_read)
    if stop > first:
        result.damages.append(Damage(path, 0, 0, f"no message has the offsets {first} to {stop - 1}", first, stop))
    return result


def _add_batches(result: ReadResult, batches: list[Batch], stop: int, path: str) -> None:
    for batch in batches:
        if batch.first >= stop:
            break
        if batch.stop <= result.next:
            continue  # a forged frame may repeat offsets; no reader goes back
        part = _cut_batch(batch, result.next, stop)
        if part.first > result.next:
            result.damages += _gap(path, result.next, part.first).damages
        result.batches.append(part)
        result.next = part.stop


def _cut_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Return the part of a batch between two offsets."""
    if batch.first >= start and batch.stop <= stop:
        return batch
    low, high = max(start - batch.first, 0), min(stop, batch.stop) - batch.first
    columns: Columns = batch.columns.slice(low, high)
    time_ns = batch.time_ns if columns.times is None else columns.times[0]
    return Batch(batch.first + low, time_ns, columns, batch.position, batch.length)
