"""Finding the end of a growing segment backward from the end of its file, without a scan of all of it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError
from aiodq.format.columns import CONTINUED, CONTINUES
from aiodq.format.footer import IndexEntry
from aiodq.format.layout import ALIGNMENT, COMPACT_MIN, SEGMENT_HEADER, TRAILER
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.segments.frame_scan import frames_backward
from aiodq.storage.segments.segment_contents import Contents, examine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Frame, FrameContext
    from aiodq.storage.io.filesystem import File

__all__ = ["contents_by_end", "written_since"]

_MOST_FRAMES: Final = 1000
"""Frames that are stepped back over before a scan from the beginning is better."""

_LEAST_READ: Final = 512
_MOST_READ: Final = 64 * 1024


def contents_by_end(file: File, context: FrameContext, path: str, *, limit: int, durable_end: int) -> Contents | None:
    """Return what a segment holds, or None if its end does not show it and only `examine` can tell.

    This steps back, by the lengths at the frames' ends, to the last put that was durable at least in part, and scans
    from there. A hole before that put would be damage and not the log's end, whatever is there. So `end` and `data_end`
    are what `examine` finds. What lies before that put becomes one entry of the index, without a count of frames and
    with the most careful flags; damage and missing offsets in it are left for its readers to find.

    A torn write that ends exactly after a frame of this topic that is quoted in a message's body is taken for the end:
    that may be before the log's own, but not before `durable_end`.

    The arguments, and *Raises*, are those of `examine`.
    """
    try:
        put = _last_durable_put(frames_backward(file, context, path, limit), durable_end)
    except CorruptionError:
        return None
    if put is None:
        return None
    found = Contents(put.first, put.position)
    if put.position > SEGMENT_HEADER.size:
        before = IndexEntry(SEGMENT_HEADER.size, 0, put.first - context.base, 0, put.time_ns)
        found.index.add(before, joined=False, flags=CONTINUED, raw_bytes=0)
    found = examine(file, context, path, limit=limit, durable_end=durable_end, found=found)
    clean = not found.lost and found.data_end == limit and found.end >= durable_end
    return found if clean else None


def written_since(file: File, path: str, start: int, size: int) -> int | None:
    """Return the end of what was written after a frame, by the frames' lengths alone, or None if they do not show it.

    It reads little more than what was written, where `written_end` reads the preallocated zeros. It works only where
    frames follow each other up to zeros, and is for callers that know that there were only zeros before.

    Raises:
        StorageError: the file cannot be read.
    """
    data, at, chunk = b"", start, _LEAST_READ
    while at - start <= _MOST_READ:
        if at - start + TRAILER.size > len(data):
            try:
                data = file.read_at(min(max(at - start + TRAILER.size, chunk), size - start), start)
            except OSError as cause:
                raise storage_error(cause, path, start) from cause
            chunk *= 2
            if at - start + TRAILER.size > len(data):
                return None
        (length,) = TRAILER.unpack_from(data, at - start)
        if not length:
            return at
        if length % ALIGNMENT or length < COMPACT_MIN:
            return None
        at += length
    return None


def _last_durable_put(frames: Iterator[Frame], durable_end: int) -> Frame | None:
    """Return the first frame of the last put that was durable at least in part. Checksums are not checked yet.

    Args:
        frames: from the log's end backward.
        durable_end: the noted watermark. Those of the frames count, too: if a checksum is wrong, the scan shows it.

    Raises:
        CorruptionError: the file does not end with frames.
    """
    for frame in islice(frames, _MOST_FRAMES):
        durable_end = max(durable_end, frame.watermark)
        if frame.first < durable_end and not frame.flags & CONTINUES:
            return frame
    return None
