"""The check of one segment, every byte of it: frames forward and backward, footer and index against the frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aiodq.errors import CorruptionError
from aiodq.format.footer import encode_footer
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.io.filesystem import opened
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.segments.frame_scan import frames_backward
from aiodq.storage.segments.segment_contents import Contents, examine, examine_growing
from aiodq.storage.segments.segment_files import Inspection, inspect

if TYPE_CHECKING:
    from uuid import UUID

    from aiodq.format.frame import FrameContext
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["SegmentCheck", "check_segment", "footer_of"]


@dataclass(slots=True)
class SegmentCheck:
    """The result of checking one segment.

    Attributes:
        base, end: the offsets it accounts for.
        size: the file's.
        found: what its header and footer say.
        contents: what its frames say; None if nothing in it can be read.
        findings: (severity, position, reason, first lost offset, the one after the last).
    """

    base: int
    end: int
    size: int
    found: Inspection
    contents: Contents | None = None
    findings: list[tuple[Literal["damage", "loss", "note"], int, str, int, int]] = field(default_factory=list)

    @property
    def records(self) -> int:
        """The number of messages that can be read."""
        return 0 if self.contents is None else self.contents.records

    def damage(self, position: int, reason: str) -> None:
        """Add a finding of damage."""
        self.findings.append(("damage", position, reason, 0, 0))


def check_segment(
    fs: FileSystem, path: str, base: int, topic: UUID, durable_end: int, *, last: bool, copied: bool
) -> SegmentCheck:
    """Read and check a whole segment.

    Args:
        fs: the file system.
        path: the segment's.
        base: its base offset, by its name.
        topic: the topic's uuid.
        durable_end: the offset below which everything in it was durable.
        last: no segment follows.
        copied: the file `watermark` does not exist: the log is a copy, not what an owner left that was killed.

    Raises:
        FormatVersionError: it has a newer version.
        StorageError: as mapped from the system's error.
    """
    with opened(fs, path) as file:
        found = inspect(file, path, base, topic)
        found = found.without_zeros(file, path) if last else found
        if last and not copied and _is_ahead(file, path, found, durable_end):
            found = found._replace(tail=None)
        return _check(file, path, found, durable_end, last=last)


def _is_ahead(file: File, path: str, found: Inspection, durable_end: int) -> bool:
    """Return whether there is a footer before all frames are there: its owner was killed before it had synced them."""
    tail, header = found.tail, found.header
    if found.header_error is not None or tail is None or durable_end >= header.base + tail.end:
        return False
    # CRASH: 4. As in `recover`, which truncates it with what is incomplete.
    contents = examine(file, header.context, path, limit=tail.data_end, durable_end=durable_end)
    return (contents.end, contents.data_end) != (header.base + tail.end, tail.data_end)


def _check(file: File, path: str, found: Inspection, durable_end: int, *, last: bool) -> SegmentCheck:
    base = found.header.base
    check = SegmentCheck(base, base, found.size, found)
    torn = found.torn(durable_end, last=last)
    if found.header_error is not None:
        if torn:
            check.findings.append(("note", 0, "unfinished: the segment had just begun", 0, 0))
        else:
            check.damage(found.header_error.position or 0, found.header_error.message)
    tail, context = found.tail, found.header.context
    limit = found.size if tail is None else tail.data_end
    bound = durable_end if tail is None else base + tail.end
    written = min(found.written, limit)
    contents = examine_growing(file, context, path, size=limit, written=written, durable_end=bound)
    if found.nothing(contents.records, durable_end, last=last):
        return check
    check.contents, check.end = contents, contents.end
    for lost in contents.lost:
        severity: Literal["damage", "loss"] = "loss" if lost.position == lost.end else "damage"
        check.findings.append((severity, lost.position, lost.reason, lost.first, lost.stop))
    if tail is None:
        _check_unsealed(check, contents, last=last)
    else:
        check.end = max(contents.end, base + tail.end)
        _check_sealed(file, check, contents, path)
    if not contents.lost:
        _check_backward(file, check, contents, context, path)
    return check


def _check_unsealed(check: SegmentCheck, contents: Contents, *, last: bool) -> None:
    error = check.found.tail_error
    if not last:
        check.damage(contents.data_end, "the footer is missing" if error is None else error.message)
    elif contents.unfinished:
        check.findings.append(("note", contents.data_end, f"unfinished: {contents.unfinished}", 0, 0))


def _check_sealed(file: File, check: SegmentCheck, contents: Contents, path: str) -> None:
    tail = check.found.tail
    if tail is None:
        return
    if check.end > contents.end:
        reason = f"the messages {contents.end} to {check.end - 1} are gone"
        bad = bool(contents.lost) and contents.data_end < tail.data_end
        severity: Literal["damage", "loss"] = "damage" if bad else "loss"
        check.findings.append((severity, contents.data_end, reason, contents.end, check.end))
    if contents.unfinished:
        check.damage(contents.data_end, contents.unfinished)
    if any(lost.position < lost.end for lost in contents.lost):
        return  # the footer may have been made before or after the damage
    with os_errors(path, tail.data_end):
        written = file.read_at(check.size - tail.data_end, tail.data_end)
    if written != footer_of(contents, check.found, check.end, tail.data_end):
        check.damage(tail.data_end, "footer and index do not say what the frames are")


def footer_of(contents: Contents, found: Inspection, end: int, data_end: int) -> bytes:
    """Return the footer that a segment with these frames must have if it accounts for the offsets up to `end`."""
    header = found.header
    return encode_footer(contents.index, data_end=data_end, end=end - header.base, salt=header.salt)[1]


def _check_backward(file: File, check: SegmentCheck, contents: Contents, context: FrameContext, path: str) -> None:
    try:
        frames = sum(1 for _ in frames_backward(file, context, path, contents.data_end))
    except CorruptionError as error:
        check.damage(error.position or 0, f"read backward: {error.message}")
        return
    if frames != sum(contents.index.frames):
        check.damage(SEGMENT_HEADER.size, f"{sum(contents.index.frames)} frames forward, {frames} backward")
