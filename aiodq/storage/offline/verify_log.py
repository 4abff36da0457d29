"""The check of one topic's log: what is to be read of it, and what its segments say together.

In between, each segment is read by `check_segment`, here or by Spark's tasks on other machines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.segment import topic_salt
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.offline.store_report import Finding
from aiodq.storage.segments.offset_ranges import without
from aiodq.storage.segments.segment_files import list_segments, own_segments
from aiodq.storage.state.assessment import missing, repeats
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, find_meta
from aiodq.storage.state.watermark import WATERMARK, check_slots, is_foreign, noted_watermark, read_slot_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.segment_files import Inspection, OwnSegment
    from aiodq.storage.state.assessment import Missing
    from aiodq.storage.state.topic.topic_meta import TopicMeta

__all__ = ["LogPlan", "Span", "log_findings", "plan_log"]

_LARGEST_NOTED: Final = 1 << 24

Span = tuple[int, int]
"""The first offset that a segment accounts for, and the one after the last."""


class LogPlan(NamedTuple):
    """A topic's log before its segments are read.

    Attributes:
        directory: the topic's.
        meta: its description, as read or reconstructed.
        named: whether a file says which topic it is.
        durable_end: the noted watermark.
        copied: whether there is no file `watermark`, as in a copy.
        watermark_bytes: that file's size.
        segments: the segments to be read, in order.
        foreign: files that only look like a segment by name, and the sizes.
        gone: the spans of segments that the owner deleted before they were looked at.
        findings: what is wrong with the description, the watermark and the foreign files.
    """

    directory: str
    meta: TopicMeta
    named: bool
    durable_end: int
    copied: bool
    watermark_bytes: int
    segments: tuple[OwnSegment, ...]
    foreign: tuple[tuple[str, int], ...]
    gone: tuple[Span, ...]
    findings: tuple[Finding, ...]


def plan_log(fs: FileSystem, directory: str) -> LogPlan:
    """Look at a topic's description, its watermark, and the headers and footers of its segments. Blocking.

    The owner may be running.

    Raises:
        FormatVersionError: a file has a newer version.
        StorageError: as mapped from the system's error.
    """
    meta, damages, _, named = find_meta(fs, directory)
    findings = [Finding("damage", damage.path, damage.position, damage.reason) for damage in damages]
    path, salt = os.path.join(directory, WATERMARK), topic_salt(meta.uuid)
    data, values = read_file(fs, path, _LARGEST_NOTED), read_slot_file(fs, path)
    findings += [Finding(severity, path, at, reason) for severity, at, reason in check_slots(data)]
    if is_foreign(values, salt):
        findings.append(Finding("damage", path, 0, "the watermark is another topic's"))
    durable_end = noted_watermark(values, salt)
    # The watermark first, then the files: so they hold what it promises.
    listed = list_segments(fs, directory)
    own, foreign = own_segments(fs, directory, meta.uuid, durable_end)
    findings += [Finding("damage", each, 0, _reason(found)) for each, found in foreign]
    there = {*(one.path for one in own), *(each for each, _ in foreign)}
    gone = {base for base, each in listed if each not in there}
    bases = sorted({*gone, *(one.base for one in own)})
    spans = [
        (base, max(base, end)) for base, end in zip(bases, [*bases[1:], durable_end], strict=False) if base in gone
    ]
    return LogPlan(
        directory,
        meta,
        named,
        durable_end,
        data is None,
        len(data or b""),
        tuple(own),
        tuple((each, found.size) for each, found in foreign),
        tuple(spans),
        tuple(findings),
    )


def log_findings(fs: FileSystem, plan: LogPlan, checked: Mapping[str, Span | None]) -> Iterator[Finding]:
    """Yield what is wrong with a log beyond what each segment's own check found: what is missing, and what is twice.

    Args:
        fs: the file system.
        plan: the log.
        checked: by the path of each segment that was read, what it accounts for; None if nothing in it can be read.
            The owner has deleted the others since they were planned: what they held is not missing.

    Raises:
        FormatVersionError: a file has a newer version.
        StorageError: as mapped from the system's error.
    """
    deleted = [(*_known(one), "") for one in plan.segments if one.path not in checked]
    read = [(*span, path) for path, span in checked.items() if span is not None]
    held = sorted([*read, *deleted, *((*span, "") for span in plan.gone)])
    spans = [(base, end) for base, end, _ in held]
    yield from _repeated(held)
    meta, watermark = plan.meta, os.path.join(plan.directory, WATERMARK)
    for gap in missing(fs, plan.directory, meta, spans, plan.durable_end):
        if without(gap.ranges, meta.lost):
            at_end = gap.place == len(held)
            # What lies before a segment that is gone is reported with the description.
            path = watermark if at_end else held[gap.place][2] or os.path.join(plan.directory, TOPIC_FILE)
            yield _missing(path, gap, "were durable and are missing" if at_end else "are missing")
    description = os.path.join(plan.directory, TOPIC_FILE)
    for first, stop in without(meta.lost, spans):
        reason = f"the messages {first} to {stop - 1} were missing at an opening"
        yield Finding("damage", description, 0, reason, first, stop)


def _reason(found: Inspection) -> str:
    return "" if found.header_error is None else found.header_error.message


def _known(one: OwnSegment) -> Span:
    """Return what a segment accounts for, by its footer, or else by what follows it."""
    tail = one.found.tail
    return one.base, max(one.base, one.durable_end) if tail is None else one.base + tail.end


def _repeated(held: Sequence[tuple[int, int, str]]) -> Iterator[Finding]:
    end = None
    for base, stop, path in held:
        if path and end is not None and (reason := repeats(base, end)):
            yield Finding("damage", path, 0, reason)
        end = max(end or 0, stop)


def _missing(path: str, gap: Missing, what: str) -> Finding:
    return Finding("damage", path, 0, f"the messages {gap.first} to {gap.stop - 1} {what}", gap.first, gap.stop)
