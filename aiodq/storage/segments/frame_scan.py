"""Scanning a segment's frames through a window of bounded size, checking each."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError
from aiodq.format.checksum import crc32, crc32_of_range
from aiodq.format.columns import CONTINUED, CONTINUES
from aiodq.format.frame import check_frame, read_prefix
from aiodq.format.layout import ALIGNMENT, BATCH_HEADER, COMPACT_MIN, FRAME_START, SEGMENT_HEADER, TRAILER
from aiodq.format.scan import candidate_frames, frame_before
from aiodq.storage.io.os_errors import storage_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Frame, FrameContext
    from aiodq.storage.io.filesystem import File

__all__ = ["Bad", "Unit", "Window", "frames_backward", "scan_units"]

_WINDOW: Final = 256 * 1024
_BYTES_BEFORE_RUNNING_SUMS: Final = 16 << 20
"""Bytes of false candidate frames read in full, after which running checksums check each without reading it whole."""

_STEP: Final = 4096
"""Bytes between two running checksums."""


class Unit(NamedTuple):
    """The frames of one put, all of them valid."""

    frames: tuple[Frame, ...]

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.frames[0].first

    @property
    def stop(self) -> int:
        """The offset after the last record."""
        return self.frames[-1].stop

    @property
    def end(self) -> int:
        """The byte after the last frame."""
        return self.frames[-1].end


class Bad(NamedTuple):
    """Bytes that are not a whole put; `end` is where the next whole one begins, or the limit if none follows."""

    position: int
    end: int
    reason: str
    cut_short: bool
    """Whether nothing valid follows."""


class Window:
    """A view of a file that moves forward, reading `size` bytes ahead or as much as one frame needs."""

    def __init__(self, file: File, path: str, limit: int, size: int = _WINDOW) -> None:
        """Read the file up to byte `limit`."""
        self._file = file
        self._path = path
        self.size = size
        self.limit = limit
        self.data: bytes = b""
        self.position: int = 0

    def at(self, position: int, need: int) -> int:
        """Return the index of byte `position` in `data`, reading on if fewer than `need` bytes are there.

        Raises:
            StorageError: as mapped from the system's error.
        """
        at = position - self.position
        if at < 0 or at + need > len(self.data):
            self.data = self.read(position, min(max(need, self.size), self.limit - position))
            self.position = position
            at = 0
        return at

    def read(self, position: int, size: int) -> bytes:
        """Return bytes without moving the window.

        Raises:
            StorageError: as mapped from the system's error.
        """
        try:
            return self._file.read_at(size, position)
        except OSError as cause:
            raise storage_error(cause, self._path, position) from cause

    def ends_like(self, frame: Frame) -> bool:
        """Return whether the trailing length fits: a cheap check before a frame of any length is read whole."""
        trailer = self.read(frame.end - TRAILER.size, TRAILER.size)
        return len(trailer) == TRAILER.size and TRAILER.unpack(trailer)[0] == frame.length


class _RunningSums:
    """Running checksums of a file, from which the checksum of any range is computed by reading only its two ends."""

    def __init__(self, window: Window, start: int) -> None:
        self._window = window
        self._start = start
        self._sums = [0]

    def matches(self, frame: Frame, context: FrameContext) -> bool:
        """Return whether the frame's checksum is valid."""
        start = frame.position + FRAME_START.size
        before, after = self._until(start), self._until(frame.end)
        return crc32_of_range(before, after, frame.end - start, context.salt) == frame.crc

    def _until(self, position: int) -> int:
        number, rest = divmod(position - self._start, _STEP)
        while len(self._sums) <= number:
            chunk = self._window.read(self._start + (len(self._sums) - 1) * _STEP, _WINDOW)
            for at in range(0, max(len(chunk), 1), _STEP):
                self._sums.append(crc32(chunk[at : at + _STEP], self._sums[-1]))
        return crc32(self._window.read(position - rest, rest), self._sums[number])


def scan_units(
    file: File,
    context: FrameContext,
    path: str,
    *,
    limit: int,
    start: int = SEGMENT_HEADER.size,
    expected: int = -1,
    window: Window | None = None,
) -> Iterator[Unit | Bad]:
    """Yield what lies between `start` and `limit`: whole puts, and bad ranges.

    Args:
        file: the segment's file.
        context: the segment's.
        path: for errors.
        limit: where its frames must end, bytes.
        start: where a frame begins.
        expected: the offset of the record there. A larger one is a gap that the caller can see for itself; a smaller
            one is damage.
        window: the window to continue with, if the caller has one.

    Raises:
        StorageError: the file cannot be read.
    """
    window = window or Window(file, path, limit)
    position = start
    while position < limit:
        try:
            unit = _read_unit(window, position, context, path, expected)
        except CorruptionError as error:
            following = _next_unit_start(window, position + ALIGNMENT, context, path, expected)
            yield Bad(position, limit if following is None else following, error.message, following is None)
            if following is None:
                return
            position = following
            continue
        yield unit
        position, expected = unit.end, unit.stop


def frames_backward(file: File, context: FrameContext, path: str, end: int) -> Iterator[Frame]:
    """Yield the frames before `end`, last one first, by their trailing lengths. Checksums are not checked.

    Raises:
        CorruptionError: no frame ends where one should.
        StorageError: the file cannot be read.
    """
    window = Window(file, path, end)
    data, low, position = b"", end, end
    while position > SEGMENT_HEADER.size:
        for _ in range(2):
            at = position - low
            need = TRAILER.unpack_from(data, at - TRAILER.size)[0] if at >= TRAILER.size else COMPACT_MIN
            if need <= at or need > position - SEGMENT_HEADER.size:
                break
            if need > _WINDOW and window.read(position - need, TRAILER.size) != TRAILER.pack(need):
                # Checked before spending memory on a length that one wrong bit may have made.
                message = "the frame's two lengths differ"
                raise CorruptionError(message, path, position - need)
            low = max(SEGMENT_HEADER.size, position - max(need, _WINDOW))
            data = window.read(low, position - low)
            if len(data) < position - low:
                message = "the file ends before this place"
                raise CorruptionError(message, path, position)
        frame = frame_before(data, position - low, context, position=low, limit=end, path=path)
        yield frame
        position = frame.position


def _read_unit(window: Window, position: int, context: FrameContext, path: str, expected: int) -> Unit:
    """Read the frames of the put that begins at `position`.

    Raises:
        CorruptionError: one of them is damaged or missing.
    """
    frames: list[Frame] = []
    continued = False
    while True:
        frame = _read_frame(window, position, context, path)
        if (
            bool(frame.flags & CONTINUES) != continued
            or frame.first < expected
            or (continued and frame.first != expected)
        ):
            message = "the frame does not follow the one before it"
            raise CorruptionError(message, path, position)
        frames.append(frame)
        continued = bool(frame.flags & CONTINUED)
        if not continued:
            return Unit(tuple(frames))
        position, expected = frame.end, frame.stop


def _read_frame(window: Window, position: int, context: FrameContext, path: str) -> Frame:
    at = window.at(position, min(BATCH_HEADER.size, window.limit - position))
    frame = read_prefix(window.data, at, context, position=position, limit=window.limit, path=path)
    if frame.length > _WINDOW and not window.ends_like(frame):
        # Checked before spending memory on a length that one wrong bit may have made.
        message = "the frame's two lengths differ"
        raise CorruptionError(message, path, position)
    at = window.at(position, frame.length)
    check_frame(memoryview(window.data), at, frame, context, path=path)
    return frame


def _next_unit_start(window: Window, position: int, context: FrameContext, path: str, expected: int) -> int | None:
    """Return the position of the next put whose first frame, at least, is valid, or None.

    The end of each chunk is looked at again with the next chunk, as a prefix may span both.
    """
    sums = _RunningSums(window, position)
    spent = 0
    while position + COMPACT_MIN <= window.limit:
        chunk = window.read(position, min(window.size, window.limit - position))
        if not chunk:
            return None  # the owner has truncated the file meanwhile
        for frame in candidate_frames(chunk, context, position=position, limit=window.limit):
            if frame.flags & CONTINUES or frame.first < expected or not window.ends_like(frame):
                continue
            if spent > _BYTES_BEFORE_RUNNING_SUMS and context.checksum is crc32 and not sums.matches(frame, context):
                continue
            spent += frame.length
            with suppress(CorruptionError):
                _read_frame(window, frame.position, context, path)
                return frame.position
        position += max((len(chunk) - BATCH_HEADER.size) & ~(ALIGNMENT - 1), ALIGNMENT)
    return None
