"""Recovery: finding out, at open, what a topic's files really hold, by the crash model of `aiodq.storage`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.footer import SegmentIndex, encode_footer
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.io.durable_io import sync_directory, sync_file, write_again, write_all
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.quarantine import Damage, quarantine, quarantine_file
from aiodq.storage.segments.segment_contents import Contents, examine, examine_growing
from aiodq.storage.segments.segment_files import (
    Inspection,
    Segment,
    own_segments,
    scanned_segment,
    sealed_segment,
)
from aiodq.storage.state.assessment import repeats

if TYPE_CHECKING:
    from uuid import UUID

    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["Recovery", "recover", "seal_file"]

_MANY: Final = 8
"""Bad ranges in one file above which the whole file is quarantined rather than each range."""


@dataclass(slots=True)
class Recovery:
    """The result of a recovery.

    Attributes:
        segments: in order; all but the last are sealed, the last perhaps.
        damages: the damage found.
        cut_bytes: bytes of unfinished writes that were truncated.
    """

    segments: list[Segment] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    cut_bytes: int = 0


class _Task(NamedTuple):
    """One segment file during recovery.

    `durable_end` is the offset below which everything was durable, as far as it concerns this segment; `copied`, that
    there was no watermark.
    """

    fs: FileSystem
    path: str
    found: Inspection
    durable_end: int
    last: bool
    copied: bool
    result: Recovery


def recover(fs: FileSystem, directory: str, topic: UUID, durable_end: int, *, copied: bool = False) -> Recovery:
    """Bring a topic's segments into a state in which they can be read and appended to.

    Only the last segment is scanned, and any other that has lost its footer; of the others only the header and the
    footer's tail are read. A second run finds the same.

    Args:
        fs: the file system.
        directory: the topic's.
        topic: the topic's uuid.
        durable_end: the noted watermark, or 0.
        copied: the file `watermark` did not exist.

    Raises:
        FormatVersionError: a segment has a newer version; nothing was touched.
        StorageError: the system refused; this is never taken for damage.
    """
    result = Recovery()
    # All are looked at before any is touched: the last may have a newer version.
    own, foreign = own_segments(fs, directory, topic, durable_end)
    for path, found in foreign:
        _take_out(fs, path, found, result)
    for one in own:
        with os_errors(one.path):
            segment = _recover_file(_Task(fs, one.path, one.found, one.durable_end, one.last, copied, result))
        if segment is not None:
            _append(result, segment, fs)
    # CRASH: 1. A killed owner may have created a file whose name is not durable yet; from here on all are.
    sync_directory(fs, directory)
    return result


def _append(result: Recovery, segment: Segment, fs: FileSystem) -> None:
    """Append a segment to the result, unless it repeats offsets of the others."""
    reason = repeats(segment.base, result.segments[-1].end) if result.segments else ""
    if reason:
        result.damages.append(Damage(quarantine_file(fs, segment.path), 0, segment.size, reason))
    else:
        result.segments.append(segment)


def _recover_file(task: _Task) -> Segment | None:
    found = task.found
    if found.header_error is None and found.tail is not None:
        segment = sealed_segment(task.path, found, found.tail)
        if not task.last or _settle_sealed(task, segment):
            return segment
    file = task.fs.open(task.path, write=True)
    try:
        if found.header_error is not None and found.tail is not None:
            _quarantine_header(task)
            return sealed_segment(task.path, found, found.tail)
        found = found.without_zeros(file, task.path)
        task, context, durable_end = task._replace(found=found), found.header.context, task.durable_end
        contents = examine_growing(
            file, context, task.path, size=found.size, written=found.written, durable_end=durable_end
        )
        if found.nothing(contents.records, task.durable_end, last=task.last):
            _take_out(task.fs, task.path, found, task.result)
            return None
        if not found.torn(task.durable_end, last=task.last):
            _quarantine_header(task)
        _quarantine_lost(task, contents)
        return _cut(task, file, contents)
    finally:
        file.close()


def _settle_sealed(task: _Task, segment: Segment) -> bool:
    """Make a last segment durable of which only the footer says that it is; return False if it is incomplete."""
    # A log without a watermark file is a copy or a backup, not what an owner left that was killed while sealing.
    believed = task.copied or task.durable_end >= segment.end
    file = task.fs.open(task.path, write=True)
    try:
        # CRASH: 4. Footer and last frames reach the device by one sync, and the footer may get there alone.
        if not believed and not _is_whole(task, segment, file):
            return False
        write_again(file, segment.data_end if believed else 0, task.found.size)
        # CRASH: 4. Until the sync, the footer may be lost again, whichever of the frames were durable; then the segment
        # is scanned, as long as none follows it.
        sync_file(file, task.path)
    finally:
        file.close()
    return True


def _is_whole(task: _Task, segment: Segment, file: File) -> bool:
    contents = examine(file, segment.context, task.path, limit=segment.data_end, durable_end=task.durable_end)
    return contents.end == segment.end and contents.data_end == segment.data_end


def _take_out(fs: FileSystem, path: str, found: Inspection, result: Recovery) -> None:
    """Quarantine a file that holds nothing readable of this log."""
    target = quarantine_file(fs, path)
    reason = "" if found.header_error is None else found.header_error.message
    result.damages.append(Damage(target, 0, found.size, reason))


def _quarantine_header(task: _Task) -> None:
    """Quarantine and report a header that could not be read."""
    error, end = task.found.header_error, min(SEGMENT_HEADER.size, task.found.size)
    if error is not None:
        quarantine(task.fs, task.path, 0, end)
        task.result.damages.append(Damage(task.path, 0, end, error.message))


def _quarantine_lost(task: _Task, contents: Contents) -> None:
    """Quarantine the bytes of what was durable and is damaged; report it, and what is missing."""
    lost = [Damage(task.path, *item) for item in contents.lost]
    if contents.unfinished and not task.last:
        # The next segment began only after this one's footer was durable.
        reason = "the footer is not what was written; it was made again"
        lost.append(Damage(task.path, contents.data_end, task.found.size, reason, contents.end, contents.end))
    ranges = [(item.position, item.end) for item in lost if item.position < item.end]
    for position, end in ranges if len(ranges) <= _MANY else [(0, task.found.size)]:
        quarantine(task.fs, task.path, position, end)
    task.result.damages += lost


def _cut(task: _Task, file: File, contents: Contents) -> Segment:
    """Truncate a file to its valid frames, so that it can be appended to or sealed."""
    found = task.found
    if found.header_error is not None:
        write_all(file, [found.header.encode()], 0)
    if found.size > contents.data_end:
        # CRASH: 7. Whatever was durable of this was quarantined before.
        # CRASH: 15. Zeros that were written ahead are truncated, whether or not something was torn before them.
        file.truncate(contents.data_end)
        if contents.unfinished and task.last:
            task.result.cut_bytes += max(found.written - contents.data_end, 0)
    if task.last:
        write_again(file, _position_not_durable(task, contents), contents.data_end)
    # CRASH: 2. What was found is made durable before anyone sees it; otherwise a second crash could take it back.
    sync_file(file, task.path)
    segment = scanned_segment(task.path, contents, found.header.context)
    if not task.last:
        seal_file(file, segment, contents.index)
    return segment


def _position_not_durable(task: _Task, contents: Contents) -> int:
    """Return the position from which on a segment may show bytes that were never synced."""
    index, base = contents.index, task.found.header.context.base
    if task.durable_end <= base or not len(index):
        return 0
    if task.durable_end >= contents.end:
        return contents.data_end
    return index.positions[bisect_right(index.firsts, task.durable_end - base) - 1]


def seal_file(file: File, segment: Segment, index: SegmentIndex) -> None:
    """Write the footer after a segment's frames, sync, and mark the segment as sealed.

    Raises:
        OSError: as the system gave it; the file still counts as unsealed.
    """
    relative_end = segment.end - segment.base
    tail, footer = encode_footer(index, data_end=segment.data_end, end=relative_end, salt=segment.context.salt)
    end = write_all(file, [footer], segment.data_end)
    file.truncate(end)
    # CRASH: 4. An incomplete footer is truncated like an unfinished write, and written again.
    sync_file(file, segment.path)
    segment.size = end
    segment.oldest_ns, segment.newest_ns = tail.oldest_ns, tail.newest_ns
    segment.sealed = True
