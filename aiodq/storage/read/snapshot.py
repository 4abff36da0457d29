"""A snapshot of a topic's log for readers that do not own it: read-only, and refreshed in small steps."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import StoreNotFoundError
from aiodq.format.decode import index_singles
from aiodq.format.segment import topic_salt
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.io.os_errors import os_errors, storage_error
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.read.log_reader import LogView
from aiodq.storage.segments.offset_ranges import without
from aiodq.storage.segments.segment_contents import Contents, examine_growing
from aiodq.storage.segments.segment_files import (
    durable_ends,
    inspect,
    inspect_file,
    list_segments,
    scanned_segment,
    sealed_segment,
    segment_base,
)
from aiodq.storage.segments.tail_search import contents_by_end, written_since
from aiodq.storage.state.assessment import missing, repeats
from aiodq.storage.state.topic.topic_meta import KnownMeta, find_meta
from aiodq.storage.state.watermark import WATERMARK, noted_watermark, read_slot_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.format.decode import IndexSingles
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.segments.segment_files import Inspection, Segment
    from aiodq.storage.state.topic.topic_meta import TopicMeta

__all__ = ["LogSnapshot"]

_MARK: Final = 64
_LOOKS: Final = 10
"""At a log whose newest segment was deleted each time before it was looked at."""


class _Grown(NamedTuple):
    """What is known of a growing segment.

    Attributes:
        contents: what a scan has found.
        mark: the last bytes of it.
        written: where the written part ended at that time.
    """

    contents: Contents
    mark: bytes
    written: int


class LogSnapshot:
    """A snapshot of a topic's files, taken without their owner's help.

    Attributes:
        directory: the topic's.
        meta: its description, as read or reconstructed.
        described: whether it was read and not reconstructed: each look may give a reconstructed one another uuid.
        named: whether a file says which topic it is, if only a segment: each look then gives the same uuid.
        durable_end: the noted watermark.
        view: what can be read.
        gaps: offsets in the view, or up to the watermark, that no segment holds and that were not given up.
        damages: what the last `refresh` found wrong, `gaps` included.
        unwalked: the last segment, if the last `refresh` looked only at its end. Damage and missing offsets in it are
            still to be found, and its times, sizes and index are known only for the end.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Make an empty snapshot; `refresh` reads the files."""
        self._fs = fs
        self.directory = directory
        self.meta: TopicMeta
        self.described: bool = False
        self.named: bool = True
        self.durable_end: int = 0
        self.view: LogView = LogView((), 0, 0)
        self.gaps: list[Damage] = []
        self.damages: list[Damage] = []
        self.unwalked: Segment | None = None
        self._sealed: dict[str, Segment] = {}
        self._headers: dict[str, Damage] = {}
        self._growing: dict[str, _Grown] = {}
        self._given_up: set[tuple[int, int]] = set()
        self._known_meta = KnownMeta()

    @property
    def begin(self) -> int:
        """The first offset that may be read."""
        segments = self.view.segments
        return max(self.meta.begin, segments[0].base if segments else 0)

    def refresh(self, *, walk: bool = True) -> bool:
        """Look again. Sealed segments are not read again; of a growing one, only what is new is scanned.

        Args:
            walk: scan every new frame. Otherwise only the last ones, if they show where the log ends.

        Returns:
            Whether the topic that had messages before was replaced by another one of the same name.

        Raises:
            FormatVersionError: written by a newer aiodq.
            StorageError: as mapped from the system's error.
        """
        another = False
        for _ in range(_LOOKS):
            replaced, newest = self._refresh(walk=walk)
            another |= replaced
            found = self.view.segments
            if newest is None or (found and found[-1].path == newest) or name_exists(self._fs, newest):
                break
            # Its owner has begun another segment and deleted this one, with all before it: the log ends further on.
        return another

    def _refresh(self, *, walk: bool) -> tuple[bool, str | None]:
        """Look once; return whether it is another topic, and the path of the newest segment that was listed."""
        before = self.meta.uuid if self.view.segments else None
        self.unwalked = None
        self.meta, self.damages, there, self.named = find_meta(self._fs, self.directory, self._known_meta)
        self.described = there and not self.damages
        another = before not in {None, self.meta.uuid}
        if another:
            self._sealed, self._headers, self._growing, self._given_up = {}, {}, {}, set()
        # The watermark first, then the files: so they hold what it promises.
        values = read_slot_file(self._fs, os.path.join(self.directory, WATERMARK))
        self.durable_end = noted_watermark(values, topic_salt(self.meta.uuid))
        listed, newest = self._own()
        if self.view.segments and self.view.segments[-1].path not in {path for _, path in listed}:
            # Deleted, or an earlier copy of the store was brought back, whose segments were sealed elsewhere since.
            self._sealed, self._headers, self._growing = {}, {}, {}
            listed, newest = self._own()
        segments: list[Segment] = []
        limits = durable_ends([base for base, _ in listed], self.durable_end)
        for (base, path), limit in zip(listed, limits, strict=True):
            last = path == listed[-1][1]
            segment = self._sealed.get(path) or self._look(path, base, limit, last=last, walk=walk)
            if path in self._headers:
                self.damages.append(self._headers[path])
            if segment is None:
                continue
            if segments and (reason := repeats(segment.base, segments[-1].end)):
                self.damages.append(Damage(path, 0, segment.size, reason))
                continue
            segments.append(segment)
        self._sealed = {segment.path: segment for segment in segments if segment.sealed}
        self._headers = {path: self._headers[path] for path in self._sealed if path in self._headers}
        if self.unwalked not in segments:
            self.unwalked = None
        self._growing = {path: self._growing[path] for _, path in listed if path in self._growing}
        end, data_end = (segments[-1].end, segments[-1].data_end) if segments else (self.meta.begin, 0)
        self.view = LogView(tuple(segments), end, data_end)
        self._find_gaps()
        return another, newest

    def _own(self) -> tuple[list[tuple[int, str]], str | None]:
        """Return (base offset, path) of the segments, without files that only look like one by name.

        Then the path of the newest of all that were listed, which its owner may have deleted since.
        """
        own: list[tuple[int, str]] = []
        listed = list_segments(self._fs, self.directory)
        for base, path in listed:
            with suppress(StoreNotFoundError):
                known = path in self._sealed or path in self._growing
                found = None if known else inspect_file(self._fs, path, base, self.meta.uuid)
                if found is None or found.header_error is None or not found.foreign:
                    own.append((base, path))
                    if found is not None and found.header_error is None and found.tail is not None:
                        self._sealed[path] = sealed_segment(path, found, found.tail)
                else:
                    self.damages.append(Damage(path, 0, found.size, found.header_error.message))
        return own, listed[-1][1] if listed else None

    def _look(self, path: str, base: int, durable_end: int, *, last: bool, walk: bool) -> Segment | None:
        """Return a segment that was not sealed at the last look; None if it is not to be read."""
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            return None  # the owner deleted it meanwhile
        except OSError as cause:
            raise storage_error(cause, path) from cause
        try:
            found = inspect(file, path, base, self.meta.uuid)
            found = found if last else found.followed()
            segment = self._segment(file, path, found, durable_end, walk=walk or not last)
        finally:
            file.close()
        if found.header_error is None or found.torn(durable_end, last=last):
            return segment
        self._headers[path] = Damage(path, 0, found.size, found.header_error.message)
        return None if found.nothing(segment.records, durable_end, last=last) else segment

    def _segment(self, file: File, path: str, found: Inspection, durable_end: int, *, walk: bool) -> Segment:
        if found.tail is not None:
            self._growing.pop(path, None)
            return sealed_segment(path, found, found.tail)
        context = found.header.context
        known = self._growing.get(path)
        if known is not None and self._mark(file, path, known.contents) != known.mark:
            known = None  # a failed write was rolled back, and another took its place
        written = _written(file, path, found, known)
        if not walk:
            contents = contents_by_end(file, context, path, limit=written, durable_end=durable_end)
            if contents is not None:
                self.unwalked = scanned_segment(path, contents, context)
                return self.unwalked
        before, singles = None if known is None else known.contents, _counting()
        contents = examine_growing(
            file,
            context,
            path,
            size=found.size,
            written=written,
            durable_end=durable_end,
            found=before,
            singles=singles,
        )
        self._growing[path] = _Grown(contents, self._mark(file, path, contents), written)
        self.damages += [Damage(path, *lost) for lost in contents.lost]
        return scanned_segment(path, contents, context)

    def _mark(self, file: File, path: str, contents: Contents) -> bytes:
        start = max(contents.data_end - _MARK, 0)
        with os_errors(path, start):
            return file.read_at(contents.data_end - start, start)

    def lost(self, start: int, stop: int) -> Damage | None:
        """Return the first damage that cost messages between two offsets, as far as the files' ends show it.

        A range that includes the first or the last offset available also covers what is missing before or after it.
        """
        since = min(start, self.meta.begin) if start <= self.begin else start
        reach = max(stop, self.durable_end) if stop >= self.view.stop else stop
        known = map(self._cost, self.damages)
        found = (d for d in known if d.first < reach and since < d.stop)
        return min(found, key=lambda d: d.first, default=self._unknown())

    def lost_at_end(self) -> Damage | None:
        """Return the first damage that cost messages after the view, as `lost` does."""
        known = map(self._cost, self.damages)
        return min((d for d in known if d.stop > self.view.stop), key=lambda d: d.first, default=self._unknown())

    def _unknown(self) -> Damage | None:
        """Return damage to the description of a topic without segments, whose former contents are unknown."""
        return None if self.described or self.view.segments else next(iter(self.damages), None)

    def _cost(self, damage: Damage) -> Damage:
        """Return damage with the offsets it may have cost: for an unreadable segment, those up to the next one."""
        first = segment_base(damage.path)
        if damage.first < damage.stop or first is None:
            return damage
        bases = [segment.base for segment in self.view.segments if segment.base > first]
        return damage._replace(first=first, stop=min(bases, default=max(self.view.stop, self.durable_end)))

    def _find_gaps(self) -> None:
        segments = self.view.segments
        spans = [(segment.base, segment.end) for segment in segments]
        found = missing(self._fs, self.directory, self.meta, spans, self.durable_end, given_up=self._given_up)
        self.gaps = []
        for gap in found:
            path = segments[gap.place].path if gap.place < len(spans) else self.directory
            reason = f"the messages {gap.first} to {gap.stop - 1} are missing"
            self.gaps.append(Damage(path, 0, 0, reason, gap.first, gap.stop))
        self.gaps += self._noted_gaps([(gap.first, gap.stop) for gap in self.gaps])
        self.damages += self.gaps

    def _noted_gaps(self, found: Sequence[tuple[int, int]]) -> Iterator[Damage]:
        """Yield what was missing between segments when an owner opened the log, and is not among what was found.

        The owner has noted it and settled it in every channel, which then looks as if it had been consumed. Before the
        first segment, retention may have deleted it by now with all around it.
        """
        for one, other in pairwise(self.view.segments if self.meta.lost else ()):
            gap = [(one.end, other.base)]
            for first, stop in without(self.meta.lost, [*without(self.meta.lost, gap), *self.meta.deleted, *found]):
                yield Damage(other.path, 0, 0, f"the messages {first} to {stop - 1} are missing", first, stop)


def _written(file: File, path: str, found: Inspection, known: _Grown | None) -> int:
    """Return where the written part ends; for a segment seen before, by scanning only what is new."""
    # An owner writes frames without gaps. Zeros between them come from a power cut, which also ends this reader.
    if found.padded and known is not None:
        end = written_since(file, path, known.contents.data_end, found.size)
        if end is not None and end >= known.written:
            return end
    return found.without_zeros(file, path).written


def _counting() -> IndexSingles:
    """Return the function that counts single puts: numpy's if the program has loaded numpy anyway."""
    if sys.modules.get("numpy") is None:
        return index_singles
    from aiodq.format.vectorized import frame_arrays as framearrays  # noqa: PLC0415 - it imports numpy, which is an extra

    return framearrays.index_singles
