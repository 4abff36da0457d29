"""The contents of a segment by its frames: which are valid, which are lost, where an unfinished write begins."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.columns import CONTINUED
from aiodq.format.decode import index_apart, index_singles
from aiodq.format.footer import IndexEntry, SegmentIndex
from aiodq.format.layout import CONTROL_KINDS, FRAME_START, KIND_BATCH, KIND_COMPACT, SEGMENT_HEADER
from aiodq.storage.segments.frame_scan import Bad, Unit, Window, scan_units

if TYPE_CHECKING:
    from aiodq.format.decode import IndexSingles
    from aiodq.format.frame import FrameContext
    from aiodq.storage.io.filesystem import File

__all__ = ["Contents", "Lost", "examine", "examine_growing", "index_unit"]

_WINDOW: Final = 1 << 20
_AHEAD: Final = 128 * 1024
_HEAD: Final = struct.Struct("<BxH")
"""The kind and the flags, which follow the start of a frame."""


class Lost(NamedTuple):
    """What was durable and is missing.

    Attributes:
        position, end: the bytes that fail their check; equal for a gap between good ones.
        reason: as text.
        first, stop: the offsets it cost; equal if unknown or none.
    """

    position: int
    end: int
    reason: str
    first: int
    stop: int


@dataclass(slots=True)
class Contents:
    """The result of scanning a segment.

    Attributes:
        end: the offset after the last valid record.
        data_end: the byte after the last valid frame.
        index: of the valid frames.
        lost: what was durable and is missing.
        unfinished: why what follows `data_end` is not valid and never was; empty if nothing follows.
    """

    end: int
    data_end: int = SEGMENT_HEADER.size
    index: SegmentIndex = field(default_factory=SegmentIndex, repr=False)
    lost: list[Lost] = field(default_factory=list)
    unfinished: str = ""

    @property
    def records(self) -> int:
        """The number of valid records."""
        return sum(self.index.records)


def examine(
    file: File,
    context: FrameContext,
    path: str,
    *,
    limit: int,
    durable_end: int,
    found: Contents | None = None,
    singles: IndexSingles = index_singles,
) -> Contents:
    """Scan a segment's frames, and tell damage from unfinished writes.

    Bytes that fail their check are damage if their offset was durable, by `durable_end` or by the watermark in any good
    frame after them. Otherwise they are an unfinished write, or a hole that a power cut left in one, and the log ends
    before them.

    Args:
        file: the segment's file.
        context: the segment's.
        path: for errors.
        limit: where its frames must end, bytes.
        durable_end: the offset below which everything is known to have been durable.
        found: the result of an earlier call, which is continued.
        singles: how single puts are counted.

    Raises:
        StorageError: the file cannot be read.
    """
    found = found or Contents(context.base)
    found.unfinished = ""
    found.lost = [lost for lost in found.lost if lost.position < found.data_end]
    window = Window(file, path, limit, _WINDOW)
    pending: Bad | None = None
    asked = False
    while True:
        if pending is None:
            _take_apart(found, window, context, singles)
        for item in scan_units(
            file, context, path, limit=limit, start=found.data_end, expected=found.end, window=window
        ):
            if isinstance(item, Unit):
                _take(found, item, pending, context.base)
                pending = None
                if _is_apart(window, found.data_end):
                    break
                continue
            if durable_end <= found.end and not item.cut_short and not asked:
                # Only once: a later watermark would have been seen from here, too.
                durable_end, asked = max(durable_end, _marks(file, context, path, item.end, limit)), True
            if durable_end <= found.end:
                found.unfinished = item.reason
                return found
            pending = pending or item
            # A run that lost a frame shows only its remaining flags: readers must be as careful as if all had been
            # seen.
            found.index.flags |= CONTINUED
            if item.cut_short:
                found.lost.append(Lost(pending.position, limit, pending.reason, found.end, found.end))
        else:
            return found


def examine_growing(
    file: File,
    context: FrameContext,
    path: str,
    *,
    size: int,
    written: int,
    durable_end: int,
    found: Contents | None = None,
    singles: IndexSingles = index_singles,
) -> Contents:
    """Examine the last segment of a log, as `examine` does: zeros after the written part are preallocated, not damage.

    Args:
        file: the segment's file.
        context: the segment's.
        path: for errors.
        size: the file's, bytes.
        written: where the written part ends; zeros follow.
        durable_end: the offset below which everything is known to have been durable.
        found: the result of an earlier call, which is continued.
        singles: how single puts are counted.

    Raises:
        StorageError: the file cannot be read.
    """
    contents = examine(file, context, path, limit=written, durable_end=durable_end, found=found, singles=singles)
    if written < size and contents.end < durable_end:
        # The zeros stand where something was durable.
        return examine(file, context, path, limit=size, durable_end=durable_end, found=contents, singles=singles)
    return contents


def _take_apart(found: Contents, window: Window, context: FrameContext, singles: IndexSingles) -> None:
    """Count quickly what is not a run of frames, up to the first frame that is one of a run or not valid."""
    for way in (singles, index_apart):
        while found.data_end < window.limit:
            at = window.at(found.data_end, min(_AHEAD, window.limit - found.data_end))
            first = found.end - context.base
            records, length = way(found.index, window.data, at, context, position=found.data_end, first=first)
            if not length:
                break
            found.end += records
            found.data_end += length


def _is_apart(window: Window, position: int) -> bool:
    """Return whether the frame there may be a put of its own or a control frame, as far as the window shows it."""
    at = position - window.position + FRAME_START.size
    if at + _HEAD.size > len(window.data):
        return False
    kind, flags = _HEAD.unpack_from(window.data, at)
    return kind == KIND_COMPACT or kind in CONTROL_KINDS or (kind == KIND_BATCH and not flags & CONTINUED)


def _take(found: Contents, unit: Unit, bad: Bad | None, base: int) -> None:
    """Count a put; anything between it and the previous one is lost."""
    position = unit.frames[0].position
    if bad is not None:
        found.lost.append(Lost(bad.position, position, bad.reason, found.end, unit.first))
    elif unit.first > found.end:
        reason = f"the offsets {found.end} to {unit.first - 1} are missing"
        found.lost.append(Lost(position, position, reason, found.end, unit.first))
    index_unit(found.index, unit, base)
    found.end, found.data_end = unit.stop, unit.end


def _marks(file: File, context: FrameContext, path: str, start: int, limit: int) -> int:
    """Return the highest watermark that the good frames from `start` on carry."""
    items = scan_units(file, context, path, limit=limit, start=start)
    return max((frame.watermark for item in items if isinstance(item, Unit) for frame in item.frames), default=0)


def index_unit(index: SegmentIndex, unit: Unit, base: int) -> None:
    """Add the frames of one put to an index."""
    for number, frame in enumerate(unit.frames):
        entry = IndexEntry(frame.position, frame.first - base, frame.records, 1, frame.time_ns)
        index.add(entry, joined=number > 0, flags=frame.flags, raw_bytes=frame.raw)
