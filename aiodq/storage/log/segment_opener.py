"""The segment that a log appends to: created, or opened again."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from aiodq.errors import DiskFullError, StorageError
from aiodq.format.footer import SegmentIndex
from aiodq.format.layout import MAX_BASE
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.log.active_segment import ActiveSegment
from aiodq.storage.segments.segment_files import load_index, segment_path

if TYPE_CHECKING:
    from uuid import UUID

    from aiodq.clock import Clock
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.producer_table import ProducerTable
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["SegmentOpener"]


class SegmentOpener:
    """Opens segments of one topic for appending. Blocking."""

    __slots__ = ("_clock", "_directory", "_fs", "_producers", "_topic", "_unfinished")

    def __init__(self, fs: FileSystem, directory: str, topic: UUID, clock: Clock, producers: ProducerTable) -> None:
        """Open segments in a topic's directory; a new one begins with the producers that are known then."""
        self._fs = fs
        self._directory = directory
        self._topic = topic
        self._clock = clock
        self._producers = producers
        self._unfinished = ""  # where a segment could not be created: the rest of it may still be there

    def create(self, base: int) -> ActiveSegment:
        """Create the segment that begins at `base`, durably.

        Raises:
            StorageError: as mapped from the system's error, or there are no more offsets; there is no such file, or
                one that the next attempt removes.
        """
        self._require_offsets(base)
        path = segment_path(self._directory, base)
        header = SegmentHeader(base, self._topic, self._clock.now_ns(), topic_salt(self._topic))
        if path == self._unfinished:
            with os_errors(path):
                if self._fs.exists(path):
                    self._fs.remove(path)
        try:
            active = ActiveSegment.create(self._fs, path, header)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                self._unfinished = path
            raise
        active.begins_with_producers = bool(self._producers.puts)
        return active

    def _require_offsets(self, base: int) -> None:
        if base > MAX_BASE:
            message = f"the topic has no offset left: no segment begins beyond {MAX_BASE}; put into another topic"
            raise StorageError(message, self._directory)

    def after(self, segment: Segment) -> ActiveSegment:
        """Return the segment that follows a full one, or the full one itself where none can follow.

        Raises:
            StorageError: as mapped from the system's error.
        """
        if segment.end > MAX_BASE:
            return self.reopen(segment)
        try:
            return self.create(segment.end)
        except DiskFullError:
            # Everything can be read and settled; the first put that finds space rolls the segment.
            return self.reopen(segment)

    def reopen(self, segment: Segment) -> ActiveSegment:
        """Open a segment that is there.

        Raises:
            StorageError: as mapped from the system's error, or its base offset is beyond the last possible one.
        """
        self._require_offsets(segment.base)
        with os_errors(segment.path):
            file = self._fs.open(segment.path, write=True)
        try:
            index = load_index(file, segment) if segment.sealed else segment.index
        except BaseException:
            file.close()
            raise
        return ActiveSegment(self._fs, file, segment, index or SegmentIndex())

    def seal(self, segment: Segment) -> None:
        """Seal a segment that is not open.

        Raises:
            StorageError: as mapped from the system's error.
        """
        active = self.reopen(segment)
        try:
            active.seal()
        finally:
            active.close()
