"""A log's segments in order, with running sums: lookups and counts take O(log n) steps and no I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, chain, repeat
from operator import attrgetter, sub
from typing import TYPE_CHECKING

from aiodq.format.layout import SEGMENT_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiodq.storage.segments.segment_files import Segment

__all__ = ["SegmentList"]


class SegmentList:
    """The segments at one moment.

    Immutable: a change makes another list, so that a thread that rolls and the loop that counts never see half a
    change. That copies a few machine words per segment at C speed, and counts only what has changed.

    Attributes:
        segments: in order; the last one is being written and grows.
    """

    # INVARIANT: each sum has one entry per segment: the total before it, up to a constant. So leading segments can be
    # dropped without recounting.
    __slots__ = ("_bases", "_frames", "_sizes", "segments")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        """Sum up each segment but the last one, which still grows."""
        full = segments[:-1]
        self.segments: tuple[Segment, ...] = tuple(segments)
        self._bases: array[int] = array("Q", map(attrgetter("base"), segments))
        self._sizes: array[int] = _sums(segment.size for segment in full) if segments else array("Q")
        self._frames: array[int] = _sums(map(_frame_bytes, full)) if segments else array("Q")

    @classmethod
    def ending_in(cls, segments: Sequence[Segment], last: Segment) -> SegmentList:
        """List these segments and `last`, the one being written, which may be among them already."""
        return cls(segments if segments and segments[-1] is last else (*segments, last))

    @classmethod
    def _of(
        cls, segments: tuple[Segment, ...], bases: array[int], sizes: array[int], frames: array[int]
    ) -> SegmentList:
        self = cls.__new__(cls)
        self.segments, self._bases, self._sizes, self._frames = segments, bases, sizes, frames
        return self

    def followed_by(self, segment: Segment) -> SegmentList:
        """Return this list with one more segment; the previous last one is full now."""
        last = self.segments[-1]
        return self._of(
            (*self.segments, segment),
            self._bases + array("Q", [segment.base]),
            self._sizes + array("Q", [self._sizes[-1] + last.size]),
            self._frames + array("Q", [self._frames[-1] + _frame_bytes(last)]),
        )

    def without(self, going: Iterable[Segment]) -> SegmentList:
        """Return this list without these full segments; the last one stays."""
        bases, last = self._bases, len(self.segments) - 1
        found = ((bisect_left(bases, segment.base), segment.base) for segment in going)
        gone = sorted({at for at, base in found if at < last and bases[at] == base})
        leading = next((number for number, at in enumerate(gone) if at != number), len(gone))
        edges = [leading, *chain.from_iterable((at, at + 1) for at in gone[leading:]), last + 1]
        kept = [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
        segments = tuple(chain.from_iterable(self.segments[piece] for piece in kept))
        bases = array("Q")
        for piece in kept:
            bases += self._bases[piece]
        return self._of(segments, bases, _closed(self._sizes, kept), _closed(self._frames, kept))

    @property
    def size(self) -> int:
        """The total size of the files, bytes, with headers and footers."""
        return self._sizes[-1] - self._sizes[0] + self.segments[-1].size if self.segments else 0

    def at(self, offset: int) -> int:
        """Return the index of the segment that holds an offset, or of the last one to begin before it, or 0."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def frames_from(self, number: int) -> int:
        """Return the bytes of all frames in segment `number`, counted from 0, and in those after it."""
        if not self.segments:
            return 0
        return self._frames[-1] - self._frames[number] + _frame_bytes(self.segments[-1])


def _frame_bytes(segment: Segment) -> int:
    return max(segment.data_end - SEGMENT_HEADER.size, 0)


def _sums(values: Iterable[int]) -> array[int]:
    return array("Q", accumulate(values, initial=0))


def _closed(sums: array[int], kept: Iterable[slice]) -> array[int]:
    """Return these pieces of the sums, each without the shares of what is missing between it and the first.

    Each entry is copied once, however many pieces there are. What is missing before the first changes but the constant.
    """
    closed, missing, end = array("Q"), 0, -1
    for piece in kept:
        missing += sums[piece.start] - sums[end] if end >= 0 else 0
        closed += array("Q", map(sub, sums[piece], repeat(missing))) if missing else sums[piece]
        end = piece.stop
    return closed
