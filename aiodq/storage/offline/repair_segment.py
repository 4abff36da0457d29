"""The repair of one segment: in place if only its header or end is wrong, as a clean copy if frames are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.io.durable_io import TEMPORARY, sync_directory, sync_file, write_all
from aiodq.storage.io.filesystem import opened
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.quarantine import quarantine
from aiodq.storage.offline.verify_segment import footer_of
from aiodq.storage.segments.segment_contents import Contents, examine

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.offline.verify_segment import SegmentCheck

__all__ = ["repair_segment"]

_CHUNK: Final = 1 << 20


def repair_segment(
    fs: FileSystem, path: str, check: SegmentCheck, contents: Contents, *, end: int, last: bool
) -> list[tuple[str, str]]:
    """Repair what was found in a segment.

    Args:
        fs: the file system.
        path: the segment's.
        check: what was found.
        contents: the contents of its frames.
        end: the offset up to which the segment is to account for messages missing after its last record.
        last: no segment follows, so it may stay unsealed.

    Returns:
        What was done, as text, and where the previous bytes were quarantined.

    Raises:
        StorageError: as mapped from the system's error.
    """
    if any(lost.position < lost.end for lost in contents.lost):
        with os_errors(path):
            return [_rewrite(fs, path, check, contents, end)]
    with opened(fs, path, write=True) as file:
        done = _header(fs, file, path, check)
        if last and check.found.tail is None and end == contents.end and not contents.lost:
            return done + _cut(fs, file, path, check, contents)
        return done + _footer(fs, file, path, check, contents, end=end)


def _header(fs: FileSystem, file: File, path: str, check: SegmentCheck) -> list[tuple[str, str]]:
    found = check.found
    if found.header_error is None:
        return []
    size = min(found.size, SEGMENT_HEADER.size)
    kept = quarantine(fs, path, 0, size) if size else ""
    # CRASH: 7. Quarantined before; an incomplete header is found again.
    write_all(file, [found.header.encode()], 0)
    sync_file(file, path)
    return [(f"{found.header_error.message}: wrote the header again", kept)]


def _cut(fs: FileSystem, file: File, path: str, check: SegmentCheck, contents: Contents) -> list[tuple[str, str]]:
    if check.found.written <= contents.data_end:
        return []  # zeros that were written ahead do no harm
    kept = quarantine(fs, path, contents.data_end, check.found.written)
    # CRASH: 7. Quarantined before; if the truncation is lost, the next owner repeats it.
    file.truncate(contents.data_end)
    sync_file(file, path)
    return [(f"cut off an unfinished write at byte {contents.data_end}", kept)]


def _footer(
    fs: FileSystem, file: File, path: str, check: SegmentCheck, contents: Contents, *, end: int
) -> list[tuple[str, str]]:
    start = contents.data_end
    footer = footer_of(contents, check.found, end, start)
    size = max(check.size - start, 0)
    if file.read_at(size, start) == footer:
        return []
    kept = quarantine(fs, path, start, check.found.written) if check.found.written > start else ""
    # CRASH: 4. Without a complete footer the segment is scanned and gets one.
    file.truncate(start)
    write_all(file, [footer], start)
    sync_file(file, path)
    missing = f"; it accounts for the missing messages {contents.end} to {end - 1}" if end > contents.end else ""
    return [(f"wrote footer and index again{missing}", kept)]


def _rewrite(fs: FileSystem, path: str, check: SegmentCheck, contents: Contents, end: int) -> tuple[str, str]:
    """Replace the segment by a copy without the bad ranges."""
    kept = quarantine(fs, path, 0, check.size)
    temporary = path + TEMPORARY
    if fs.exists(temporary):
        fs.remove(temporary)
    copy = fs.open(temporary, create=True)
    try:
        position = write_all(copy, [check.found.header.encode()], 0)
        position = _copy_healthy(fs, path, copy, contents, position)
        clean = examine(copy, check.found.header.context, temporary, limit=position, durable_end=0)
        if (clean.end, clean.records, clean.unfinished) != (contents.end, contents.records, ""):
            raise CorruptionError("the file changes while it is read", path)
        write_all(copy, [footer_of(clean, check.found, end, position)], position)
        sync_file(copy, temporary)
    finally:
        copy.close()
    # CRASH: 6. The damaged segment or the clean one; the damaged one is quarantined as well.
    fs.rename(temporary, path)
    sync_directory(fs, os.path.dirname(path))
    spans = ", ".join(f"{lost.position}-{lost.end}" for lost in contents.lost if lost.position < lost.end)
    return f"left out the bytes {spans}, which are not what was written", kept


def _copy_healthy(fs: FileSystem, path: str, copy: File, contents: Contents, position: int) -> int:
    """Copy the valid frames, byte by byte; return where they end in the copy."""
    source = fs.open(path)
    try:
        start = SEGMENT_HEADER.size
        holes = [(lost.position, lost.end) for lost in contents.lost if lost.position < lost.end]
        for stop, following in [*holes, (contents.data_end, contents.data_end)]:
            while start < stop:
                data = source.read_at(min(_CHUNK, stop - start), start)
                if not data:
                    break
                position = write_all(copy, [data], position)
                start += len(data)
            start = max(start, following)
    finally:
        source.close()
    return position
