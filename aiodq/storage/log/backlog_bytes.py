"""Estimates of a channel's backlog in bytes, from what is in memory of a log's segments."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from aiodq.format.layout import SEGMENT_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.footer import SegmentIndex
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["BacklogBytes", "position_in", "segment_at"]


def segment_at(segments: Sequence[Segment], offset: int) -> Segment | None:
    """Return the segment that holds an offset, or would but for damage; None if there is none."""
    at = bisect_right(segments, offset, key=lambda segment: segment.base) - 1
    return segments[at] if at >= 0 and offset < segments[at].end else None


class BacklogBytes:
    """Running sums over one log's segments, recomputed only when their list changes."""

    def __init__(self) -> None:
        """Make sums of no segments."""
        self._segments: Sequence[Segment] = ()
        self._before: list[int] = []

    def of(self, segments: Sequence[Segment], floor: int, depth: int) -> int:
        """Return about how many bytes `depth` of the messages from `floor` on take: the payloads, uncompressed.

        The settled ones among them are assumed to be as large as the others.

        Args:
            segments: the log's, in order.
            floor: the first offset that counts.
            depth: how many messages count of those from `floor` on.
        """
        if not segments or depth <= 0:
            return 0
        end = segments[-1].end
        return self._from(segments, floor) * depth // max(end - max(floor, segments[0].base), depth)

    def _from(self, segments: Sequence[Segment], offset: int) -> int:
        if segments is not self._segments:
            # All but the last are full, so their sizes no longer change.
            self._before = list(accumulate((segment.raw_bytes for segment in segments[:-1]), initial=0))
            self._segments = segments
        at = max(bisect_right(segments, offset, key=lambda segment: segment.base) - 1, 0) if len(segments) > 1 else 0
        return self._before[-1] + segments[-1].raw_bytes - self._before[at] - _below(segments[at], offset)


def position_in(segment: Segment, offset: int, index: SegmentIndex | None) -> int:
    """Return about where in a segment's file an offset lies: by its index entry, and by interpolation within that.

    Without an index, all records are assumed to be equally large.
    """
    if offset <= segment.base:
        return SEGMENT_HEADER.size
    if offset >= segment.end:
        return segment.data_end
    relative = offset - segment.base
    first, following = 0, segment.end - segment.base
    position, after = SEGMENT_HEADER.size, segment.data_end
    if index is not None:
        # Positions first: they are the first to grow if a thread appends meanwhile.
        positions, firsts = index.positions, index.firsts
        entry = bisect_right(firsts, relative)
        if entry:
            first, position = firsts[entry - 1], positions[entry - 1]
        if entry < len(firsts):
            following, after = firsts[entry], positions[entry]
    share = (relative - first) / max(following - first, 1)
    return position + round((after - position) * min(share, 1.0))


def _below(segment: Segment, offset: int) -> int:
    """Return about how many payload bytes of a segment lie below an offset."""
    frames = segment.data_end - SEGMENT_HEADER.size
    below = position_in(segment, offset, segment.index) - SEGMENT_HEADER.size
    return round(segment.raw_bytes * below / frames) if frames > 0 else 0
