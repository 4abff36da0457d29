"""When segments were written, for retention by age: jumps of the wall clock change no age within a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.engine.loop.clock_timer import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.clock import Clock
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["SegmentTimes"]


class SegmentTimes:
    """When the segments of a topic were written.

    Times are nanoseconds of wall time when the topic was opened, which then go on with the monotonic clock. Segments of
    earlier runs have the times of their messages, those written in this run the time at which that was.
    """

    __slots__ = ("_begun", "_clock", "_last", "_monotonic", "_newest", "_opened", "_own")

    def __init__(self, clock: Clock, segments: Sequence[Segment]) -> None:
        """Begin a run with these segments; the last one may be written again."""
        self._clock = clock
        self._opened, self._monotonic = clock.now_ns(), monotonic_ns(clock)
        self._newest: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        last = segments[-1] if segments else None
        self._last: int = 0 if last is None else last.base
        self._own: int = 0 if last is None else last.base + (not last.empty)

    def now_ns(self) -> int:
        """Return the time."""
        return self.at(monotonic_ns(self._clock))

    def at(self, monotonic: int) -> int:
        """Return a moment of the monotonic clock, in nanoseconds, as a time."""
        return self._opened + monotonic - self._monotonic

    def begun(self, segments: Sequence[Segment]) -> None:
        """Note that the last segment has its first messages, put just now; those before it may be of the same put."""
        now = self.now_ns()
        for segment in reversed(segments[:-1]):
            if segment.base < self._last or segment.base in self._newest:
                break
            self._newest[segment.base] = now
        self._begun = {segments[-1].base: now}
        while self._newest and (first := next(iter(self._newest))) < segments[0].base:
            del self._newest[first]

    def closed(self, segment: Segment, written: int | None) -> None:
        """Note that a segment was sealed; `written` is when the log was last written, None if not in this run."""
        if written is not None and segment.base >= self._last:
            self._newest.setdefault(segment.base, written)

    def adopted(self, segment: Segment) -> None:
        """Note that the log has a segment that another process has written."""
        ahead = self._clock.now_ns() - self.now_ns()
        self._newest[segment.base] = min(segment.newest_ns - ahead, self.now_ns())

    def newest_ns(self, segment: Segment, written: int | None) -> int:
        """Return when a segment was last written; `written` is as for `closed`."""
        if (noted := self._newest.get(segment.base)) is not None:
            return noted
        return segment.newest_ns if segment.base < self._own or written is None else written

    def oldest_ns(self, segment: Segment) -> int:
        """Return when the segment being written was begun."""
        if (noted := self._begun.get(segment.base)) is not None:
            return noted
        return self.now_ns() if segment.base >= self._own else min(segment.oldest_ns, self._opened)
