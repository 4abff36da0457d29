"""Which segments may go: pure rules over what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from aiodq.options import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

    from aiodq.options import Retention
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.segments.segment_list import SegmentList

__all__ = ["Verdict", "expired", "gone_ns", "outgrown_ns"]

_PARTS: Final = 4
"""A segment takes messages of a quarter of `max_age` at most, so that none outlives its time by more than that."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The segments to delete.

    Attributes:
        segments: oldest first.
        forced_to: the offset up to which channels lose what they have not acked; 0 where they lose nothing.
    """

    segments: tuple[Segment, ...]
    forced_to: int = 0


def expired(
    listed: SegmentList,
    policy: Retention,
    now_ns: int,
    consumed: Callable[[Segment], bool],
    asked: Iterable[Segment] = (),
) -> Verdict:
    """Return which full segments go now: of those that are consumed, the oldest ones, and those of the others `asked`.

    As many are looked at as go, and one more, besides those that are asked.

    Args:
        listed: a log's; the last one is being written and never goes.
        policy: the options.
        now_ns: wall time.
        consumed: whether every channel has acked all of a segment, durably.
        asked: further full segments, wherever they lie, that may be consumed.
    """
    going: dict[int, Segment] = {}
    if policy.consumed == "delete":
        going = {segment.base: segment for segment in (*takewhile(consumed, _full(listed)), *filter(consumed, asked))}
    forced_to = 0
    for segment in _over_bounds(listed, going, policy, now_ns):
        if not consumed(segment):
            if policy.unconsumed != "delete":
                break
            forced_to = segment.end
        going[segment.base] = segment
    return Verdict(tuple(segment for _, segment in sorted(going.items())), forced_to)


def _full(listed: SegmentList) -> Iterator[Segment]:
    return islice(listed.segments, max(len(listed.segments) - 1, 0))


def _over_bounds(
    listed: SegmentList, going: Mapping[int, Segment], policy: Retention, now_ns: int
) -> Iterator[Segment]:
    """Yield the oldest of the segments that stay, as long as the bounds on age, bytes and number ask to delete them."""
    total = listed.size - sum(segment.size for segment in going.values())
    number = len(listed.segments) - len(going)
    oldest_ns = None if policy.max_age is None else now_ns - _age_ns(policy.max_age)
    stay = ((at, segment) for at, segment in enumerate(_full(listed)) if segment.base not in going)
    for at, segment in stay:
        too_old = oldest_ns is not None and _written_ns(listed, at, now_ns) < oldest_ns
        too_big = policy.max_bytes is not None and total > policy.max_bytes
        too_many = policy.max_segments is not None and number > policy.max_segments
        if not (too_old or too_big or too_many):
            return
        total -= segment.size
        number -= 1
        yield segment


def _written_ns(listed: SegmentList, at: int, now_ns: int) -> int:
    """Return when a segment was written to last.

    What a clock ahead of time has written is at least as old as what was written next.
    """
    times = (listed.segments[later].newest_ns for later in range(at, len(listed.segments)))
    return next((written_ns for written_ns in times if written_ns <= now_ns), now_ns)


def outgrown_ns(last: Segment, policy: Retention) -> int | None:
    """Return the wall time from which on the segment being written has to be sealed, or None for no such time.

    Only what is sealed can go, and it goes as a whole: a segment that went on taking messages would keep its oldest
    ones as long as its newest.
    """
    if policy.max_age is None or last.empty:
        return None
    return last.oldest_ns + max(_age_ns(policy.max_age) // _PARTS, 1)


def gone_ns(first: Segment, policy: Retention) -> int | None:
    """Return the wall time from which on a segment is older than the bound on age, or None for no such time."""
    return None if policy.max_age is None else first.newest_ns + _age_ns(policy.max_age)


def _age_ns(age: float | timedelta) -> int:
    return int(seconds(age) * 1e9)
