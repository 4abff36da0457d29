"""Whether a message that was read is still in the log, and if not, from which offset on there are others.

A power cut takes back puts that were not synced, and later puts get their offsets. So an offset does not identify the
message that was read; the time and the checksum of its frame do.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.format.frame import check_frame, read_prefix
from aiodq.format.layout import BATCH_HEADER, FRAME_PREFIX, SEGMENT_HEADER, TRAILER
from aiodq.storage.io.filesystem import opened
from aiodq.storage.segments.frame_scan import Window
from aiodq.storage.segments.segment_files import load_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Frame
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.read.frame_results import LogView
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["FrameMark", "FramePlace", "find_frame", "first_other"]

_PIECE: Final = 8192
"""Bytes read at once: an entry of the index covers about half of that."""


class FrameMark(NamedTuple):
    """What distinguishes a frame from any other that may get its offsets.

    Attributes:
        time_ns: its time.
        crc: its checksum.
        durable: the offset below which everything was durable when it was written, which no power cut takes back.
    """

    time_ns: int
    crc: int
    durable: int


class FramePlace(NamedTuple):
    """Where a frame is.

    Attributes:
        mark: what identifies it.
        path: its segment.
        position: its first byte.
        prefix: the bytes at that position.
    """

    mark: FrameMark
    path: str
    position: int
    prefix: bytes

    def is_kept(self, fs: FileSystem) -> bool:
        """Return whether the frame is still in its place. If not, it may be in another one. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        with suppress(StoreNotFoundError), opened(fs, self.path) as file:
            return file.read_at(len(self.prefix), self.position) == self.prefix
        return False


def find_frame(fs: FileSystem, view: LogView, offset: int, *, check: bool = False) -> FramePlace | None:
    """Return the frame that holds a message; None if the message was deleted or cannot be read. Blocking.

    This reads a few bytes for the last message of a segment, or else what one entry of the index covers.

    Args:
        fs: where the log is.
        view: the log.
        offset: the message's.
        check: read all of the frame, and return None if its checksum is wrong.

    Raises:
        StorageError: as mapped from the system's error.
    """
    segment = next(iter(view.between(offset, offset + 1)), None)
    if segment is None:
        return None
    with suppress(CorruptionError, StoreNotFoundError), opened(fs, segment.path) as file:
        limit = view.data_end_of(segment)
        if offset == segment.end - 1:
            frames = _backward(file, segment, limit)
        else:
            frames = _forward(file, segment, load_index(file, segment).position_of(offset - segment.base), limit)
        frame = next((frame for frame in frames if frame.first <= offset < frame.stop), None)
        if frame is None:
            return None
        if check:
            data = memoryview(file.read_at(frame.length, frame.position))
            check_frame(data, 0, frame, segment.context, path=segment.path)
        # CRASH: 4. A segment begins only after the one before it was synced.
        mark = FrameMark(frame.time_ns, frame.crc, max(frame.watermark, segment.base))
        return FramePlace(mark, segment.path, frame.position, file.read_at(FRAME_PREFIX.size, frame.position))
    return None


def first_other(fs: FileSystem, view: LogView, mark: FrameMark, stop: int) -> int | None:
    """Return the first offset below `stop` that was put after a frame which is no longer there. Blocking.

    A newer time shows that, provided that no clock was set back. So does a segment that begins where none began, as it
    may hold messages that were written elsewhere before.

    Args:
        fs: where the log is.
        view: the log.
        mark: the frame that was the last one to be read.
        stop: where to end.

    Returns:
        The offset; None if there is no such message.

    Raises:
        StorageError: as mapped from the system's error.
    """
    begun = [segment.base for segment in view.segments if mark.durable < segment.base < stop and not segment.empty]
    stop = min([stop, *begun])
    for segment in view.between(0, stop):
        if segment.newest_ns > mark.time_ns and not segment.empty:
            found = _first_after(fs, segment, view.data_end_of(segment), mark.time_ns)
            if found is not None and found < stop:
                return found
    return min(begun, default=None)


def _first_after(fs: FileSystem, segment: Segment, limit: int, time_ns: int) -> int | None:
    """Return the first offset of a newer frame, or of a place that cannot be read, which may hold one."""
    first = segment.base
    with suppress(StoreNotFoundError), opened(fs, segment.path) as file:
        try:
            index = load_index(file, segment)
            entries = zip(index.positions, index.firsts, index.newest, strict=True)
            for position, relative, newest in entries:
                if newest > time_ns:
                    first = segment.base + relative
                    frames = _forward(file, segment, position, limit)
                    return next((each.first for each in frames if each.records and each.time_ns > time_ns), None)
        except CorruptionError:
            return first
    return None


def _forward(file: File, segment: Segment, position: int, limit: int) -> Iterator[Frame]:
    """Yield the frames from a position on. Checksums are not checked.

    Raises:
        CorruptionError: no frame begins where one should.
        StorageError: as mapped from the system's error.
    """
    window = Window(file, segment.path, limit, _PIECE)
    while position < limit:
        at = window.at(position, min(BATCH_HEADER.size, limit - position))
        frame = read_prefix(window.data, at, segment.context, position=position, limit=limit, path=segment.path)
        yield frame
        position = frame.end


def _backward(file: File, segment: Segment, limit: int) -> Iterator[Frame]:
    """Yield the frames before a position, last one first, up to the last one with records. Checksums are not checked.

    Raises:
        CorruptionError: no frame ends where one should.
        OSError: the file cannot be read.
    """
    path, records = segment.path, 0
    while limit > SEGMENT_HEADER.size and not records:
        length = int.from_bytes(file.read_at(TRAILER.size, limit - TRAILER.size), "little")
        position = limit - length
        if position < SEGMENT_HEADER.size:
            raise CorruptionError(f"a frame of {length} bytes does not fit before this place", path, limit)
        head = file.read_at(BATCH_HEADER.size, position)
        frame = read_prefix(head, 0, segment.context, position=position, limit=limit, path=path)
        if frame.length != length:
            message = "the frame's two lengths differ"
            raise CorruptionError(message, path, position)
        yield frame
        limit, records = position, frame.records
