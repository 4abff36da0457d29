"""Staged segments made a topic's own: checked, given the topic and a base offset, and moved into place."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from aiodq.errors import CorruptionError, StoreFailedError
from aiodq.format.footer import FooterTail
from aiodq.format.layout import FOOTER_TAIL, SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader
from aiodq.storage.io.durable_io import sync_directory, sync_file, write_all
from aiodq.storage.io.filesystem import opened
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.segments.segment_files import inspect_file, sealed_segment, segment_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["check_staged", "move_in", "place", "placed"]


def check_staged(fs: FileSystem, path: str, records: int) -> None:
    """Check that both ends of a staged segment say that it holds `records` messages. Blocking.

    Raises:
        CorruptionError: they do not.
        StorageError: as mapped from the system's error.
    """
    with opened(fs, path) as file:
        _checked(file, path, records)


def place(fs: FileSystem, path: str, topic: UUID, base: int, records: int) -> None:
    """Write into a staged segment's header its topic and its base offset. Blocking.

    Its frames are relative to that offset, and its checksums keep their own salt.

    Raises:
        CorruptionError: it is not what was written.
        StorageError: as mapped from the system's error.
    """
    with opened(fs, path, write=True) as file:
        header = _checked(file, path, records)
        write_all(file, [replace(header, topic=topic, base=base).encode()], 0)
        sync_file(file, path)


def _checked(file: File, path: str, records: int) -> SegmentHeader:
    size = file.size()
    header = SegmentHeader.decode(file.read_at(SEGMENT_HEADER.size, 0), path)
    end = file.read_at(FOOTER_TAIL.size, size - FOOTER_TAIL.size) if size >= FOOTER_TAIL.size else b""
    tail = FooterTail.decode(end, size, path)
    if tail is None or tail.end != records or tail.records != records or tail.salt != header.salt:
        raise CorruptionError(f"the staged segment does not hold the {records} messages committed", path, size)
    return header


def move_in(fs: FileSystem, directory: str, staged: Sequence[tuple[str, int]]) -> None:
    """Move staged segments into place, durably. Those that are no longer staged were moved before. Blocking.

    Raises:
        StorageError: as mapped from the system's error; retrying is safe.
    """
    with os_errors(directory):
        moving = [(path, base) for path, base in staged if fs.exists(path)]
        for path, base in moving:
            # The first one takes the name of the empty segment that the log would have continued with.
            fs.rename(path, segment_path(directory, base))
        # CRASH: 11. Nothing else is appended before both directories are durable: no power cut brings a staged file
        # back once retention may have deleted the segment it became. Nor is the commit marked as done: a killed owner
        # may have only moved the files.
        if staged and fs.exists(directory):
            sync_directory(fs, directory)
            _sync_staging(fs, os.path.dirname(staged[0][0]))


def _sync_staging(fs: FileSystem, directory: str) -> None:
    """Sync a writer's directory, which files have left; the writer may be removing it at this moment."""
    try:
        if fs.exists(directory):
            sync_directory(fs, directory)
            return
    except StoreFailedError:
        if fs.exists(directory):
            raise
    sync_directory(fs, os.path.dirname(directory))


def placed(fs: FileSystem, directory: str, topic: UUID, base: int) -> Segment:
    """Return a segment that was moved in. Blocking.

    Raises:
        CorruptionError: it is not what was staged.
        StorageError: as mapped from the system's error.
    """
    path = segment_path(directory, base)
    found = inspect_file(fs, path, base, topic)
    if found.tail is None or found.header_error is not None:
        raise CorruptionError("the segment is not what was staged", path)
    return sealed_segment(path, found, found.tail)
