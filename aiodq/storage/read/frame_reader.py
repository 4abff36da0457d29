"""Reading whole frames of a log by offset, into rows of any kind; damage is skipped and reported."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from aiodq.errors import CorruptionError, StorageError, StoreNotFoundError
from aiodq.format.columns import CONTINUED, CONTINUES
from aiodq.format.footer import SegmentIndex
from aiodq.format.layout import FRAME_PREFIX, TRAILER
from aiodq.storage.io.filesystem import close_file
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.read.frame_results import Continuation, FramesRead, Rows, add_rows, gap, lost_segment, whole_until
from aiodq.storage.segments.frame_scan import Bad, Unit, Window, scan_units
from aiodq.storage.segments.segment_contents import index_unit
from aiodq.storage.segments.segment_files import load_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.frame import Frame
    from aiodq.storage.io.filesystem import File, Opener
    from aiodq.storage.read.frame_results import Decode, LogView
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["FrameReader", "OpenSegment"]

R = TypeVar("R", bound=Rows)

_OPEN_FILES: Final = 4
_CHUNK: Final = 256 * 1024
_RUN_PIECE: Final = 1 << 20
"""Bytes read at once of a run that is longer than a read."""

_CAREFUL: Final = 32 * 1024
"""Bytes read at once after damage: in a file that is damaged all over, most of each read is wasted."""


class Run(NamedTuple):
    """Where the frames of a run are, of which the index has only the first one.

    Attributes:
        firsts, positions: the offset, less the segment's base, and the position of each frame.
        stop, end: the same after the last one.
    """

    firsts: array[int]
    positions: array[int]
    stop: int
    end: int


@dataclass(slots=True)
class OpenSegment:
    """A segment that is open for reading.

    Attributes:
        ahead: where the next sequential read begins: (offset, position).
        whole: between these positions, every run is known to be complete.
        rest: what was decoded after the end of the last read: the beginning of a run.
        mended: where the last damage ended; more may follow soon.
        runs: those that were scanned to their end, in order.
    """

    file: File
    segment: Segment
    index: SegmentIndex
    ahead: tuple[int, int] = (-1, 0)
    whole: tuple[int, int] = (0, 0)
    rest: Sequence[Any] = ()
    mended: int = -1
    runs: list[Run] = field(default_factory=list)

    def position_of(self, offset: int) -> int:
        """Return the position from which to look for an offset."""
        if self.ahead[0] == offset:
            return self.ahead[1]
        relative, run = offset - self.segment.base, self.run_with(offset)
        if run is None:
            return self.index.position_of(relative)
        # INVARIANT: what `ahead` says lies where every run is known to be complete.
        self.ahead, self.whole = (-1, 0), (run.positions[0], run.end)
        return run.positions[bisect_right(run.firsts, relative) - 1]

    def run_with(self, offset: int) -> Run | None:
        """Return the run that holds an offset, if it was scanned to its end."""
        relative = offset - self.segment.base
        at = bisect_right(self.runs, relative, key=_first) - 1
        return self.runs[at] if at >= 0 and relative < self.runs[at].stop else None

    def scanned(self, frames: Sequence[Frame]) -> None:
        """Note where the frames of a whole put are, if they are a run."""
        if len(frames) > 1 and self.run_with(frames[0].first) is None:
            base = self.segment.base
            firsts, positions = ([frame.first - base for frame in frames], [frame.position for frame in frames])
            run = Run(array("Q", firsts), array("Q", positions), frames[-1].stop - base, frames[-1].end)
            insort(self.runs, run, key=_first)


class FrameReader(Generic[R]):
    """A reader with a few open files. One caller at a time."""

    def __init__(self, fs: Opener, decode: Decode[R], run_bytes: int = 0) -> None:
        """Read through `fs`; `decode` turns frames into rows.

        With `run_bytes`, a read that would return only part of a run goes on up to that many bytes, and keeps what it
        decoded of the next run: so all reads must be of one view. A longer run is scanned twice.
        """
        self._fs = fs
        self._decode = decode
        self._run_bytes = run_bytes
        self._open: dict[str, OpenSegment] = {}

    def close(self) -> None:
        """Close the files; a later read reopens them.

        Raises:
            StorageError: as for `close_file`; the others are closed anyway.
        """
        self.forget(list(self._open))

    def forget(self, paths: Sequence[str]) -> None:
        """Close these files, so that their space is freed once they are removed."""
        with ExitStack() as closing:
            for path in paths:
                opened = self._open.pop(path, None)
                if opened is not None:
                    closing.callback(close_file, opened.file, path)

    def read(
        self,
        view: LogView,
        offset: int,
        max_bytes: int,
        continuation: Continuation | None = None,
        *,
        run_bytes: int = 0,
        scan: bool = True,
    ) -> FramesRead[R]:
        """Return batches from `offset` on: at least one record, unless there is none or it is damaged.

        Args:
            view: what may be read.
            offset: where to begin.
            max_bytes: how much to read at once; a larger frame is read anyway.
            continuation: where a read of the same log ended, perhaps another reader's.
            run_bytes: a run up to this many bytes is read at once, if the index shows that it is no longer. A longer
                one is scanned to its end first, and then read in pieces.
            scan: whether that may be done.

        Raises:
            StorageError: the system refused, or a run may have to be scanned; damage is reported in the result instead.
        """
        if offset >= view.stop:
            return FramesRead(next=offset)
        segment = next((each for each in view.between(offset, view.stop) if not each.empty), None)
        if segment is None or segment.base > offset:
            path = view.segments[-1].path if segment is None else segment.path
            return gap(path, offset, view.stop if segment is None else min(segment.base, view.stop))
        try:
            opened = self.opened(segment)
        except (CorruptionError, StoreNotFoundError) as error:
            return lost_segment(segment, error, view)
        limit = view.data_end_of(segment)
        if continuation is not None and (continuation.path, continuation.offset) == (segment.path, offset):
            opened.ahead, opened.whole = (offset, continuation.position), continuation.whole
            opened.rest = continuation.rest or opened.rest
        start = opened.position_of(offset)
        try:
            if not opened.index.flags & CONTINUED:
                run_bytes = self._run_bytes
            elif run_bytes < _entry_end(opened, start, limit) - start:
                if not scan and not opened.whole[0] <= start < opened.whole[1]:
                    raise StorageError("a long put is to be scanned before it is read", segment.path, start)
                run_bytes = self._run_bytes
            return self._read_frames(opened, view, offset, start, limit=limit, max_bytes=max_bytes, run_bytes=run_bytes)
        except StoreNotFoundError as error:
            # It was closed while it was idle, and has been deleted since.
            self.forget([segment.path])
            return lost_segment(segment, error, view)

    def _read_frames(
        self,
        opened: OpenSegment,
        view: LogView,
        offset: int,
        start: int,
        *,
        limit: int,
        max_bytes: int,
        run_bytes: int,
    ) -> FramesRead[R]:
        segment = opened.segment
        result: FramesRead[R] = FramesRead(next=offset)
        position, size = start, min(max_bytes, _CAREFUL) if start == opened.mended else max_bytes
        while position < limit:
            batches, used, error = self._decode_from(
                opened, position, result, max_bytes=size, limit=limit, run_bytes=run_bytes
            )
            if not used and error is None:
                need = self._need(opened, position)
                if size >= limit - position:
                    error = CorruptionError("the segment ends in the middle of a frame", segment.path, position)
                elif self._plausible(opened, position, need):
                    size = max(size * 2, need)
                    continue
                else:
                    error = CorruptionError("the frame's two lengths differ", segment.path, position)
            batches, used, error = self._whole_runs(opened, position, batches, used, error, limit=limit)
            add_rows(result, batches, view.stop, segment.path)
            position += used
            if error is not None:
                position = opened.mended = self._step_over(opened, position, result, error.message, view, limit=limit)
            # A batch that the view splits has to be read again for its rest.
            cut = bool(batches) and batches[-1].stop > view.stop
            opened.ahead = (-1, 0) if cut else (result.next, position)
            rest = self._rest_of(opened, view)
            result.continuation = None if cut else Continuation(segment.path, result.next, position, opened.whole, rest)
            if result.batches or result.damages or result.next >= view.stop:
                break
        if position >= limit and not result.batches and not result.damages:
            # The footer promises more than the frames hold: the rest was quarantined before.
            return gap(segment.path, result.next, min(segment.end, view.stop), result.bytes_read)
        return result

    def _rest_of(self, opened: OpenSegment, view: LogView) -> Sequence[R]:
        """Return what the next read is to be given, unless this reader keeps it."""
        if self._run_bytes:
            return ()
        # INVARIANT: a rest outlives the view only if its run is in the view: other messages may be put after the view.
        rest, opened.rest = opened.rest, ()
        return rest if rest and rest[-1].stop <= view.stop else ()

    def _decode_from(
        self,
        opened: OpenSegment,
        position: int,
        result: FramesRead[R],
        *,
        max_bytes: int,
        limit: int,
        run_bytes: int,
    ) -> tuple[list[R], int, CorruptionError | None]:
        """Decode whole frames from `position` on, and more of them if they are only a part of a run.

        Return them, the bytes that they take, and the error if damage follows.
        """
        segment = opened.segment
        kept = opened.rest and opened.rest[0].position == position
        batches: list[R] = list(opened.rest) if kept else []
        used = batches[-1].position + batches[-1].length - position if batches else 0
        opened.rest, size = (), max_bytes
        while True:
            at = position + used
            data = self._read(opened, at, min(size, limit - at))
            result.bytes_read += len(data)
            more, taken, error = self._decode(
                data, segment.context, position=at, limit=limit, skip_below=result.next, path=segment.path
            )
            batches += more
            used += taken
            within = taken and all(rows.flags & CONTINUED for rows in more)
            if error is not None or not within or used >= run_bytes:
                return batches, used, error
            if not self._run_bytes:
                size = max(size, _RUN_PIECE)

    def _need(self, opened: OpenSegment, position: int) -> int:
        """Return the length that a frame claims."""
        length = self._read(opened, position, TRAILER.size)
        return max(int.from_bytes(length, "little"), FRAME_PREFIX.size)

    def _plausible(self, opened: OpenSegment, position: int, need: int) -> bool:
        """Check a large frame's trailing length before spending memory on a length that one wrong bit may have made."""
        return need <= _CHUNK or self._need(opened, position + need - TRAILER.size) == need

    def _whole_runs(
        self,
        opened: OpenSegment,
        position: int,
        batches: list[R],
        used: int,
        error: CorruptionError | None,
        *,
        limit: int,
    ) -> tuple[list[R], int, CorruptionError | None]:
        """Check that every run that begins here is complete before any of it is returned.

        Usually the decoded batches show it, and a run that goes beyond them is left for the next read. A run larger
        than a read is scanned to its end first.
        """
        segment, end = opened.segment, position + used
        if not opened.index.flags & CONTINUED:
            return batches, used, error
        low, high = opened.whole
        if not low <= position <= high:
            low = high = position
        if batches and batches[0].position > high and not batches[0].flags & CONTINUES:
            low = high = batches[0].position  # the skipped runs are unchecked
        high, seen = whole_until(batches, high)
        whole = [batch for batch in batches if batch.position < high]
        if seen and whole:
            opened.whole = (low, high)
            if len(whole) == len(batches):
                return batches, used, error
            opened.rest = batches[len(whole) :]
            return whole, high - position, None
        for item in scan_units(opened.file, segment.context, segment.path, limit=limit, start=high):
            if isinstance(item, Bad):
                if item.position > end:
                    break
                kept = [batch for batch in batches if batch.position < item.position]
                return kept, item.position - position, CorruptionError(item.reason, segment.path, item.position)
            high = item.end
            opened.scanned(item.frames)
            if high >= end:
                break
        opened.whole = (low, high)
        return batches, used, error

    def _step_over(
        self, opened: OpenSegment, position: int, result: FramesRead[R], reason: str, view: LogView, *, limit: int
    ) -> int:
        """Report the bytes at `position` that are not a put; return where the next put begins."""
        segment = opened.segment
        stop = min(segment.end, view.stop)
        end = limit
        window = Window(opened.file, segment.path, limit, _CAREFUL)
        items = scan_units(opened.file, segment.context, segment.path, limit=limit, start=position, window=window)
        for item in items:
            # A frame with a valid checksum but invalid content is a unit at `position` itself, not a put.
            if isinstance(item, Unit) and item.frames[0].position > position:
                stop = min(item.first, view.stop)
                end = item.frames[0].position
                break
        first = max(result.next, segment.base)
        if stop > first:
            result.damages.append(Damage(segment.path, position, end, reason, first, stop))
        result.next = max(result.next, stop)
        return end

    def opened(self, segment: Segment) -> OpenSegment:
        """Return a segment with an open file, and its index in memory."""
        opened = self._open.get(segment.path)
        if opened is not None and opened.segment.base == segment.base:
            return opened
        try:
            file = self._fs.open(segment.path)
        except OSError as cause:
            raise storage_error(cause, segment.path) from cause
        try:
            opened = OpenSegment(file, segment, _index_of(file, segment))
        except BaseException:
            file.close()
            raise
        while len(self._open) >= _OPEN_FILES:
            self.forget([next(iter(self._open))])
        self._open[segment.path] = opened
        return opened

    def _read(self, opened: OpenSegment, position: int, size: int) -> bytes:
        try:
            return opened.file.read_at(size, position)
        except OSError as cause:
            raise storage_error(cause, opened.segment.path, position) from cause


def _first(run: Run) -> int:
    return run.firsts[0]


def _entry_end(opened: OpenSegment, position: int, limit: int) -> int:
    """Return where the index entry that holds a position ends, and with it every run that begins there."""
    positions = opened.index.positions
    number = bisect_right(positions, position)
    return positions[number] if number < len(positions) else limit


def _index_of(file: File, segment: Segment) -> SegmentIndex:
    """Return the index, rebuilt by scanning the frames if the footer's is damaged."""
    try:
        return load_index(file, segment)
    except CorruptionError:
        index = SegmentIndex()
        for item in scan_units(file, segment.context, segment.path, limit=segment.data_end):
            if isinstance(item, Unit):
                index_unit(index, item, segment.base)
            else:
                index.flags |= CONTINUED
        return index
