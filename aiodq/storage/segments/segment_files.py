"""Segment files: their names, and what their headers and footers say."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.format.footer import FooterTail, SegmentIndex
from aiodq.format.layout import ALIGNMENT, FOOTER_TAIL, INDEX_ENTRY, MAX_RELATIVE, SEGMENT_HEADER, TRAILER
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.io.filesystem import opened
from aiodq.storage.io.os_errors import storage_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from aiodq.format.frame import FrameContext
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.segments.segment_contents import Contents

__all__ = [
    "Inspection",
    "OwnSegment",
    "Segment",
    "durable_ends",
    "inspect",
    "inspect_file",
    "list_segments",
    "load_index",
    "own_segments",
    "remove_segments",
    "scanned_segment",
    "sealed_segment",
    "segment_base",
    "segment_path",
    "written_end",
]

_NAME: Final = re.compile(r"([0-9]{20})\.seg")
_OFFSETS: Final = 1 << 63
_ZEROS: Final = bytes(16 * 1024)


@dataclass(slots=True)
class Segment:
    """One segment of a log. Offsets are absolute, positions and sizes bytes.

    Only the last segment of a log grows; `records`, `end` and `data_end` of the others never change.

    Attributes:
        path: the file.
        base: the first record's offset.
        end: the offset after the last record.
        data_end: where its frames end.
        size: the file's size.
        records: the number of records; fewer than `end - base` if damage left a gap.
        raw_bytes: the size of their payloads.
        sealed: whether it has a footer and never changes again.
        oldest_ns, newest_ns: the range of batch times; zeros if empty.
        context: what its frames have in common.
        flags: the union of all frames' flags.
        index: in memory for a segment that was scanned or is being written; None until it is needed otherwise.
    """

    path: str
    base: int
    end: int
    data_end: int
    size: int
    records: int
    raw_bytes: int
    sealed: bool
    oldest_ns: int
    newest_ns: int
    context: FrameContext
    flags: int
    index: SegmentIndex | None = field(default=None, repr=False)

    @property
    def empty(self) -> bool:
        """Whether it has no frames, or only control frames: the next segment would have the same name."""
        return self.data_end <= SEGMENT_HEADER.size or self.end <= self.base


class Inspection(NamedTuple):
    """What a segment file's header and footer say.

    Attributes:
        size: the file's, bytes.
        header: as read, or reconstructed if it is damaged.
        header_error: what is wrong with it.
        tail: the footer's tail; None if it is missing or damaged.
        tail_error: what is wrong with it.
        padded: whether it has no footer and its last bytes are zeros: its owner may have written them ahead.
        written: where the written part ends, bytes, if `without_zeros` determined it: else the size.
    """

    size: int
    header: SegmentHeader
    header_error: CorruptionError | None
    tail: FooterTail | None
    tail_error: CorruptionError | None
    padded: bool
    written: int

    def followed(self) -> Inspection:
        """Return this for a segment that another one follows: it was sealed, so zeros at its end are damage."""
        return self._replace(padded=False)

    def without_zeros(self, file: File, path: str) -> Inspection:
        """Return this with the position at which the trailing zeros begin.

        Raises:
            StorageError: as mapped from the system's error.
        """
        return self._replace(written=written_end(file, path, self.size)) if self.padded else self

    @property
    def foreign(self) -> bool:
        """Whether the header is whole, but belongs to another topic or to another segment of this one."""
        return self.header_error is not None and bool(self.header_error.position)

    def torn(self, durable_end: int, *, last: bool) -> bool:
        """Return whether this is what a power cut leaves of a new segment: a file without a whole header."""
        return last and self.blank and durable_end <= self.header.base

    @property
    def blank(self) -> bool:
        """Whether there is at most a part of a header, or anything else of that size in its place.

        A power cut may leave a new file's size with zeros in it, or with the previous contents of the disk.
        """
        return self.header_error is not None and not self.foreign and self.size <= SEGMENT_HEADER.size

    def nothing(self, records: int, durable_end: int, *, last: bool) -> bool:
        """Return whether the file holds nothing of this log: neither header nor footer is valid, nor is any message."""
        return self.header_error is not None and not (records or self.tail or self.torn(durable_end, last=last))

    def astray(self, before: Inspection, durable_end: int) -> bool:
        """Return whether only the file's name says that it follows `before`, although no real segment has such a name.

        If it were believed, all offsets up to it would count as missing.
        """
        base, start = self.header.base, before.header.base
        if self.blank:
            # A segment begins where the one before it was sealed, or after all that was durable.
            return base > durable_end and (before.tail is None or base != start + before.tail.end)
        return self.header_error is not None and base - start > MAX_RELATIVE


def segment_base(path: str) -> int | None:
    """Return the base offset in a segment's file name, or None if it is not a segment's name."""
    match = _NAME.fullmatch(os.path.basename(path))
    return None if match is None else int(match[1])


def segment_path(directory: str, base: int) -> str:
    """Return the path of the segment whose first record has offset `base`."""
    return os.path.join(directory, f"{base:020d}.seg")


def list_segments(fs: FileSystem, directory: str) -> list[tuple[int, str]]:
    """Return (base offset, path) of the segments in a directory, in order.

    Raises:
        StorageError: as mapped from the system's error.
    """
    try:
        names = fs.listdir(directory)
    except OSError as cause:
        raise storage_error(cause, directory) from cause
    matches = [match for name in names if (match := _NAME.fullmatch(name)) and int(match[1]) < _OFFSETS]
    return sorted((int(match[1]), os.path.join(directory, match[0])) for match in matches)


def inspect_file(fs: FileSystem, path: str, base: int, topic: UUID) -> Inspection:
    """Inspect a segment file by its path; see `inspect`.

    Raises:
        FormatVersionError: it has a newer version.
        StorageError: as mapped from the system's error.
    """
    with opened(fs, path) as file:
        return inspect(file, path, base, topic)


class OwnSegment(NamedTuple):
    """A file that is a segment of the log in whose directory it lies.

    Attributes:
        base: its base offset, by its name.
        path: the file.
        found: what its header and footer say.
        durable_end: the offset below which everything in it was durable.
        last: no segment follows.
    """

    base: int
    path: str
    found: Inspection
    durable_end: int
    last: bool


def durable_ends(bases: Sequence[int], durable_end: int) -> list[int]:
    """Return the offset up to which each segment of a log was durable, if only the noted watermark is known."""
    # CRASH: 4. A segment begins only after the one before it was synced, so everything before it was durable.
    return [*bases[1:], durable_end] if bases else []


def own_segments(
    fs: FileSystem, directory: str, topic: UUID, durable_end: int
) -> tuple[list[OwnSegment], list[tuple[str, Inspection]]]:
    """Return a topic's segments in order, and (path, inspection) of files that only look like one by name.

    A segment that its owner deletes meanwhile is left out.

    Args:
        fs: the file system.
        directory: the topic's.
        topic: its uuid.
        durable_end: the noted watermark, or 0.

    Raises:
        FormatVersionError: one has a newer version.
        StorageError: as mapped from the system's error.
    """
    own: list[tuple[int, str, Inspection]] = []
    foreign: list[tuple[str, Inspection]] = []
    for base, path in list_segments(fs, directory):
        with suppress(StoreNotFoundError):
            found = inspect_file(fs, path, base, topic)
            if found.foreign or (own and found.astray(own[-1][2], durable_end)):
                foreign.append((path, found))
            else:
                own.append((base, path, found))
    limits = durable_ends([base for base, _, _ in own], durable_end)
    final = own[-1][0] if own else -1
    segments = [
        OwnSegment(base, path, found if base == final else found.followed(), limit, base == final)
        for (base, path, found), limit in zip(own, limits, strict=True)
    ]
    return segments, foreign


def inspect(file: File, path: str, base: int, topic: UUID) -> Inspection:
    """Read the header and the footer's tail of an open segment, and nothing in between.

    A damaged header is reconstructed from the file's name, the topic and the footer.

    Raises:
        FormatVersionError: it has a newer version.
        StorageError: as mapped from the system's error.
    """
    try:
        size = file.size()
        head = file.read_at(SEGMENT_HEADER.size, 0)
        end = file.read_at(FOOTER_TAIL.size, size - FOOTER_TAIL.size) if size >= FOOTER_TAIL.size else b""
    except OSError as cause:
        raise storage_error(cause, path) from cause
    tail = header_error = tail_error = None
    try:
        tail = FooterTail.decode(end, size, path)
    except CorruptionError as error:
        tail_error = error
    try:
        header = SegmentHeader.decode(head, path)
        _check_identity(header, path, base, topic)
    except CorruptionError as error:
        header_error = error if any(head) else CorruptionError("the segment's header is all zeros", path, 0)
        if not error.position:
            header_error = _stray(head, path, base, topic) or header_error
        header = SegmentHeader(base, topic, 0, topic_salt(topic) if tail is None else tail.salt)
    if tail is not None and tail.salt != header.salt:
        tail, tail_error = None, CorruptionError("the footer is another segment's", path, size - FOOTER_TAIL.size)
    if tail is not None and base + tail.end >= _OFFSETS:
        message = f"the footer names {tail.end} offsets from {base} on, more than there are"
        tail, tail_error = None, CorruptionError(message, path, size - FOOTER_TAIL.size)
    # A frame ends with its length.
    padded = tail is None and header_error is None and end[-TRAILER.size :] == bytes(TRAILER.size)
    return Inspection(size, header, header_error, tail, tail_error, padded, size)


def written_end(file: File, path: str, size: int) -> int:
    """Return where the written part of a file of this size ends: the rest is zeros, which its owner wrote ahead.

    A frame ends at a multiple of 8, and its last bytes, which are its length, are not all zeros.

    Args:
        file: a segment without a footer.
        path: its path.
        size: the file's.

    Raises:
        StorageError: as mapped from the system's error.
    """
    start, data = size, b""
    # Comparing is fast, stripping is not, and readers do this at every look.
    while data == _ZEROS[: len(data)]:
        if start <= SEGMENT_HEADER.size:
            return min(SEGMENT_HEADER.size, size)
        end, start = start, max(start - len(_ZEROS), SEGMENT_HEADER.size)
        try:
            data = file.read_at(end - start, start)
        except OSError as cause:
            raise storage_error(cause, path, start) from cause
    end = start + len(data.rstrip(b"\0"))
    return min(max(end + -end % ALIGNMENT, SEGMENT_HEADER.size), size)


def _check_identity(header: SegmentHeader, path: str, base: int, topic: UUID) -> None:
    if header.topic != topic:
        message = f"the segment belongs to another topic ({header.topic})"
        raise CorruptionError(message, path, 24)
    if header.base != base:
        message = f"the segment says it begins at offset {header.base}, its name says {base}"
        raise CorruptionError(message, path, 16)


def _stray(head: bytes, path: str, base: int, topic: UUID) -> CorruptionError | None:
    """Return the error of a damaged header that belongs to another segment than the file's name says, as far as known.

    By the name alone, its messages would get other messages' offsets.
    """
    was = SegmentHeader.mended(head, path)
    try:
        if was is not None:
            _check_identity(was, path, base, topic)
    except CorruptionError as error:
        return error
    return None


def sealed_segment(path: str, found: Inspection, tail: FooterTail) -> Segment:
    """Return the segment that a footer describes."""
    base = found.header.base
    return Segment(
        path,
        base,
        base + tail.end,
        tail.data_end,
        found.size,
        tail.records,
        tail.raw_bytes,
        sealed=True,
        oldest_ns=tail.oldest_ns,
        newest_ns=tail.newest_ns,
        context=found.header.context,
        flags=tail.flags,
    )


def scanned_segment(path: str, contents: Contents, context: FrameContext) -> Segment:
    """Return the segment, without a footer, that a scan of its frames describes."""
    index = contents.index
    return Segment(
        path,
        context.base,
        contents.end,
        contents.data_end,
        contents.data_end,
        contents.records,
        index.raw_bytes,
        sealed=False,
        oldest_ns=index.oldest_ns,
        newest_ns=index.newest_ns,
        context=context,
        flags=index.flags,
        index=index,
    )


def load_index(file: File, segment: Segment) -> SegmentIndex:
    """Return the segment's index, read from its footer if it is not in memory.

    Raises:
        CorruptionError: the footer is not what was written.
        StorageError: as mapped from the system's error.
    """
    index = segment.index
    if index is not None:
        return index
    try:
        data = file.read_at(segment.size - segment.data_end, segment.data_end)
    except OSError as cause:
        raise storage_error(cause, segment.path, segment.data_end) from cause
    tail = FooterTail.decode(data, segment.size, segment.path)
    if tail is None:
        message = "the footer is gone"
        raise CorruptionError(message, segment.path, segment.data_end)
    return SegmentIndex.decode(data[: tail.entries * INDEX_ENTRY.size], tail, segment.path)


def remove_segments(fs: FileSystem, segments: Sequence[Segment]) -> None:
    """Delete the files of segments. A missing file is fine.

    Raises:
        StorageError: as mapped from the system's error; the rest is found again at the next open.
    """
    for segment in segments:
        try:
            if fs.exists(segment.path):
                fs.remove(segment.path)
        except OSError as cause:
            raise storage_error(cause, segment.path) from cause
