"""How an owner opens a topic's log: its watermark, its segments, what is missing, and where to append."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiodq.format.segment import topic_salt
from aiodq.storage.io.durable_io import read_file, sweep_temporaries
from aiodq.storage.io.quarantine import Damage, quarantine, remedy
from aiodq.storage.log.recovery import recover
from aiodq.storage.segments.segment_files import remove_segments
from aiodq.storage.segments.segment_list import SegmentList
from aiodq.storage.state.assessment import missing
from aiodq.storage.state.watermark import SLOT_FILE_BYTES, check_slots, noted_watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.active_segment import ActiveSegment
    from aiodq.storage.log.segment_opener import SegmentOpener
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.state.topic.topic_description import TopicDescription
    from aiodq.storage.state.topic.topic_meta import TopicMeta
    from aiodq.storage.state.watermark import WatermarkFile

__all__ = ["OpenedSegments", "open_segments"]


class OpenedSegments(NamedTuple):
    """The segments of a log that was opened.

    Attributes:
        listed: all of them.
        active: the last one, open for appending.
        damages: the damage found.
        cut_bytes: bytes of unfinished writes that were truncated.
    """

    listed: SegmentList
    active: ActiveSegment
    damages: list[Damage]
    cut_bytes: int


def open_segments(
    fs: FileSystem, directory: str, description: TopicDescription, watermark: WatermarkFile, opener: SegmentOpener
) -> OpenedSegments:
    """Recover a topic's segments, note what is missing, and open the one to append to.

    Raises:
        FormatVersionError: a segment has a newer version; nothing was touched.
        StorageError: as mapped from the system's error.
    """
    topic = description.meta.uuid
    durable_end, damages = _noted_durable_end(fs, watermark, topic_salt(topic))
    found = recover(fs, directory, topic, durable_end, copied=watermark.created)
    sweep_temporaries(fs, directory)
    lost, reports = _report_missing(fs, directory, description.meta, found.segments, durable_end)
    description.note_losses(found.segments, lost)
    segments = _without_dead(fs, found.segments, description.meta.begin)
    listed, active = _continue(opener, segments, description.meta, durable_end)
    return OpenedSegments(listed, active, [*damages, *found.damages, *reports], found.cut_bytes)


def _noted_durable_end(fs: FileSystem, watermark: WatermarkFile, salt: int) -> tuple[int, list[Damage]]:
    """Return the noted watermark, unless it is another topic's or junk: then it is quarantined."""
    _keep_watermark(fs, watermark)
    durable_end = noted_watermark(watermark.values, salt)
    if durable_end == watermark.values[0]:
        return durable_end, []
    quarantine(fs, watermark.path, 0, SLOT_FILE_BYTES)
    return durable_end, [Damage(watermark.path, 0, SLOT_FILE_BYTES, "the watermark is another topic's")]


def _keep_watermark(fs: FileSystem, watermark: WatermarkFile) -> None:
    """Quarantine a watermark that cannot be read, before it is overwritten."""
    if watermark.values != (0, 0):
        return
    data = read_file(fs, watermark.path, SLOT_FILE_BYTES) or b""
    # A power cut may leave it like this, as its writes are not synced: it made nothing durable, and is not counted.
    if any(severity == "damage" for severity, _, _ in check_slots(data)):
        quarantine(fs, watermark.path, 0, len(data))


def _report_missing(
    fs: FileSystem, directory: str, meta: TopicMeta, segments: Sequence[Segment], durable_end: int
) -> tuple[Ranges, list[Damage]]:
    """Return, with reports, the offsets that a channel needs, that no segment holds, and that were not given up.

    They are reported until every channel has passed them, even if they are noted already.
    """
    lost: Ranges = ()
    reports: list[Damage] = []
    spans = [(segment.base, segment.end) for segment in segments]
    for gap in missing(fs, directory, meta, spans, durable_end):
        at_end = gap.place == len(spans)
        between = gap.place > 0 and not at_end
        what = "acknowledged messages are missing:" if at_end else "no segment holds the"
        reason = f"{what} offsets {gap.first} to {gap.stop - 1}: {remedy('the file')}"
        path = segments[gap.place].path if between else directory
        reports.append(Damage(path, 0, 0, reason, gap.first, gap.stop))
        lost += gap.ranges
    return lost, reports


def _without_dead(fs: FileSystem, segments: list[Segment], begin: int) -> list[Segment]:
    """Delete segments wholly below the offset that was given up, whose deletion was interrupted."""
    dead = [segment for segment in segments[:-1] if segment.end <= begin]
    remove_segments(fs, dead)
    return segments[len(dead) :]


def _continue(
    opener: SegmentOpener, segments: list[Segment], meta: TopicMeta, durable_end: int
) -> tuple[SegmentList, ActiveSegment]:
    """Return the segments, and the one to append to: the last if it can grow, else a new one after them."""
    end = segments[-1].end if segments else 0
    # INVARIANT: no lost offset is assigned again.
    durable_end = max(durable_end, meta.begin, *(stop for _, stop in meta.lost))
    if segments and not segments[-1].sealed:
        if end >= durable_end:
            return SegmentList(segments), opener.reopen(segments[-1])
        opener.seal(segments[-1])
    fits = segments and durable_end <= end
    active = opener.after(segments[-1]) if fits else opener.create(max(end, durable_end))
    return SegmentList.ending_in(segments, active.segment), active
