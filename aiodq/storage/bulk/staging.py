"""The writer of staged segments, for a store's owner to adopt (`aiodq.storage.bulk.commits`). Blocking."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from aiodq.errors import CorruptionError, StorageError, StoreNotFoundError
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.bulk.commits import STAGING, Staged, staging_directory
from aiodq.storage.io.durable_io import ensure_directory
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.log.active_segment import WRITE_BYTES, ActiveSegment, cuts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.clock import Clock
    from aiodq.format.vectorized.encode import ArrowColumns, ArrowPart
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["StagingWriter"]

_NOBODY: Final = UUID(int=0)
"""The topic of a segment that no topic has adopted."""

_TRIES: Final = 10
_MOST_OPEN: Final = 100
"""Segments open at a time: each has a descriptor, of which a process has perhaps a thousand, and a buffer."""


def _parts(columns: Columns | ArrowColumns) -> Iterable[Columns | ArrowPart]:
    """Return the parts that may go to different segments."""
    if not isinstance(columns, Columns):
        return columns.parts()
    return cuts(columns, atomic=False) if columns.bodies else ()


class StagingWriter:
    """A writer of staged segments for one task of a bulk writer and any number of topics.

    Attributes:
        staged: the finished segments, by topic.
    """

    def __init__(
        self, fs: FileSystem, clock: Clock, store: str, name: str, *, segment_bytes: int, codec: int = CODEC_NONE
    ) -> None:
        """Stage for the writer of that name.

        Raises:
            InvalidOptionError: the name is empty or too long.
            StorageError: as mapped from the system's error.
        """
        self._fs = fs
        self._clock = clock
        self._directory = staging_directory(store, name)
        self._segment_bytes = segment_bytes
        self._codec = codec
        self._open: dict[str, ActiveSegment] = {}
        self._paths: list[str] = []
        self.staged: dict[str, list[Staged]] = {}
        ensure_directory(fs, os.path.join(store, STAGING))
        ensure_directory(fs, self._directory)

    def put(self, topic: str, columns: Columns | ArrowColumns) -> None:
        """Stage records in order.

        Raises:
            StorageError: as mapped from the system's error; call `discard`.
        """
        for part in _parts(columns):
            active = self._open.pop(topic, None) or self._begin(topic)
            self._open[topic] = active  # as the most recently used
            if not self._stage(active, part):
                self._end(topic)
                active = self._begin(topic)
                if not self._stage(active, part):
                    raise CorruptionError("a fresh segment has no room for the message", active.segment.path)
            if active.staged_bytes >= WRITE_BYTES:
                active.flush()

    def _stage(self, active: ActiveSegment, part: Columns | ArrowPart) -> bool:
        limit, time_ns, codec = self._segment_bytes, self._clock.now_ns(), self._codec
        if isinstance(part, Columns):
            return bool(active.stage(part, limit, watermark=0, time_ns=time_ns, codec=codec, atomic=False))
        return active.stage_part(part, limit, watermark=0, time_ns=time_ns, codec=codec)

    def finish(self) -> dict[str, list[Staged]]:
        """Make everything durable; return `staged`.

        Raises:
            StorageError: a part is gone, so that nothing of it can count; or as mapped from the system's error; call
                `discard`.
        """
        for topic in list(self._open):
            self._end(topic)
        for path in self._paths:
            if not name_exists(self._fs, path):
                # Whoever comes late finds nobody who tidies up: what it has staged since would stay for a day.
                raise StorageError("what was staged is gone: its write was committed or given up meanwhile", path)
        return self.staged

    def discard(self) -> None:
        """Remove what was staged.

        Raises:
            OSError: as the system gave it; what stays is swept later.
        """
        for active in self._open.values():
            active.close()
        self._open.clear()
        for path in self._paths:
            if self._fs.exists(path):
                self._fs.remove(path)
        self.staged.clear()

    def _begin(self, topic: str) -> ActiveSegment:
        if len(self._open) >= _MOST_OPEN:
            self._end(next(iter(self._open)))
        identity, now_ns = uuid4(), self._clock.now_ns()
        # The time is for the sweep; the rest keeps the files of two tasks apart.
        path = os.path.join(self._directory, f"{max(now_ns, 0):020d}-{identity.hex}.seg")
        self._paths.append(path)
        header = SegmentHeader(0, _NOBODY, now_ns, topic_salt(identity))
        active = self._open[topic] = self._created(path, header)
        return active

    def _created(self, path: str, header: SegmentHeader) -> ActiveSegment:
        """Create a segment. Until it exists, an owner that opens the store may remove the empty directory."""
        for _ in range(_TRIES):
            with suppress(StoreNotFoundError):
                return ActiveSegment.create(self._fs, path, header)
            ensure_directory(self._fs, self._directory)
        return ActiveSegment.create(self._fs, path, header)

    def _end(self, topic: str) -> None:
        active = self._open[topic]
        active.flush()
        active.commit()
        active.seal()
        active.close()
        del self._open[topic]
        self.staged.setdefault(topic, []).append(Staged(os.path.basename(active.segment.path), active.segment.records))
