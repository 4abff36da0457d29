"""The result of reading a log's frames into rows of any kind, and what such rows must provide."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from aiodq.format.columns import CONTINUED, CONTINUES
from aiodq.storage.io.quarantine import Damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.errors import CorruptionError, StoreNotFoundError
    from aiodq.format.frame import FrameContext
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["Continuation", "Decode", "FramesRead", "LogView", "Rows", "add_rows", "gap", "lost_segment", "whole_until"]


class Rows(Protocol):
    """Records with consecutive offsets, from one frame or several."""

    @property
    def first(self) -> int:
        """The first record's offset."""
        ...

    @property
    def stop(self) -> int:
        """The offset after the last record."""
        ...

    @property
    def position(self) -> int:
        """The first frame's position in its segment, bytes."""
        ...

    @property
    def length(self) -> int:
        """The frames' length, bytes."""
        ...

    @property
    def flags(self) -> int:
        """The frame's `Flags`; of several frames, only the first one's `CONTINUES` and the last one's `CONTINUED`."""
        ...

    def cut(self, start: int, stop: int) -> Self:
        """Return the part between two offsets."""
        ...


R = TypeVar("R", bound=Rows)


class Decode(Protocol[R]):
    """See `aiodq.format.decode.decode_frames`."""

    def __call__(
        self, data: bytes, context: FrameContext, *, position: int, limit: int, skip_below: int, path: str
    ) -> tuple[list[R], int, CorruptionError | None]:
        """Decode whole frames from the start of `data`."""
        ...


class LogView(NamedTuple):
    """A log at one moment.

    Attributes:
        segments: in order.
        stop: the offset up to which it may be read.
        data_end: where the last segment's frames ended at that moment, bytes.
    """

    segments: tuple[Segment, ...]
    stop: int
    data_end: int

    def between(self, start: int, stop: int) -> tuple[Segment, ...]:
        """Return the segments that cover offsets from `start` on and below `stop`."""
        low = bisect_right(self.segments, start, key=lambda segment: segment.end)
        high = bisect_left(self.segments, stop, key=lambda segment: segment.base)
        return self.segments[low:high]

    def data_end_of(self, segment: Segment) -> int:
        """Return where the frames of one of the segments ended at that moment, bytes."""
        return self.data_end if segment is self.segments[-1] and not segment.sealed else segment.data_end


class Continuation(NamedTuple):
    """Where a read ended. Another reader can continue there without looking it up or scanning the run again.

    Attributes:
        path: the segment.
        offset: the offset to continue with.
        position: the position of its frame, bytes.
        whole: between these positions, every run is known to be complete.
        rest: what the read decoded of the run that begins there, so that it is not decoded once more.
    """

    path: str
    offset: int
    position: int
    whole: tuple[int, int]
    rest: Sequence[Any] = ()


@dataclass(slots=True)
class FramesRead(Generic[R]):
    """The result of one read.

    Attributes:
        batches: in order of their offsets.
        next: the offset to continue with.
        damages: what could not be read on the way, with the offsets it cost. One without bytes is a gap: offsets that
            no message has any more.
        bytes_read: bytes read from disk.
        continuation: where the read ended; None if the next one has to look up where it begins.
    """

    batches: list[R] = field(default_factory=list)
    next: int = 0
    damages: list[Damage] = field(default_factory=list)
    bytes_read: int = 0
    continuation: Continuation | None = None


def lost_segment(segment: Segment, error: CorruptionError | StoreNotFoundError, view: LogView) -> FramesRead[Any]:
    """Return the result for a segment of which nothing can be read."""
    stop = min(segment.end, view.stop)
    damage = Damage(segment.path, error.position or 0, segment.size, error.message, segment.base, stop)
    return FramesRead(next=stop, damages=[damage])


def gap(path: str, first: int, stop: int, bytes_read: int = 0) -> FramesRead[Any]:
    """Return the result for offsets without messages: deleted by retention, or lost and reported before."""
    result: FramesRead[Any] = FramesRead(next=max(first, stop), bytes_read=bytes_read)
    if stop > first:
        result.damages.append(Damage(path, 0, 0, f"no message has the offsets {first} to {stop - 1}", first, stop))
    return result


def add_rows(result: FramesRead[R], batches: list[R], stop: int, path: str) -> None:
    """Add the rows with offsets from `result.next` on and below `stop`, and the gaps between them.

    Args:
        result: the result so far.
        batches: in order.
        stop: the end of the range wanted.
        path: the path of their segment.
    """
    for batch in batches:
        if batch.first >= stop:
            break
        if batch.stop <= result.next:
            continue  # a forged frame may repeat offsets; readers never go back
        part = batch.cut(result.next, stop)
        if part.first > result.next:
            result.damages += gap(path, result.next, part.first).damages
        result.batches.append(part)
        result.next = part.stop


def whole_until(batches: Sequence[Rows], known: int) -> tuple[int, bool]:
    """Return the position up to which checked batches form complete runs, and whether further runs may follow.

    Args:
        batches: in order; those before `known` are complete.
        known: where a run begins, unless the first batch shows otherwise.
    """
    high, continued, end, stop = known, False, -1, -1
    for batch in batches:
        if batch.position + batch.length <= known:
            continue
        adjacent = (batch.position == end and batch.first == stop) or not continued
        if bool(batch.flags & CONTINUES) != continued or not adjacent:
            return high, False
        continued, end, stop = bool(batch.flags & CONTINUED), batch.position + batch.length, batch.stop
        if not continued:
            high = end
    return high, True
