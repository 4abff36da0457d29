"""Retention: which segments may be deleted, as pure rules over what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.options import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

    from aiodq.options import Retention
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.segments.segment_list import SegmentList

__all__ = ["Ages", "Verdict", "expired", "gone_ns", "outgrown_ns"]

_PARTS: Final = 4
"""A segment spans at most a quarter of `max_age`, so that no message outlives its time by more than that."""


class Ages(NamedTuple):
    """How old segments are.

    Attributes:
        now_ns: the time.
        newest_ns: returns when a segment was last written, by the same clock.
    """

    now_ns: int
    newest_ns: Callable[[Segment], int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The segments to delete.

    Attributes:
        segments: oldest first.
        forced_to: the offset up to which channels lose unacked messages; 0 if they lose none.
    """

    segments: tuple[Segment, ...]
    forced_to: int = 0


def expired(
    listed: SegmentList,
    policy: Retention,
    ages: Ages,
    consumed: Callable[[Segment], bool],
    asked: Iterable[Segment] = (),
) -> Verdict:
    """Return which full segments go now: the oldest consumed ones, those `asked` that are consumed, those over a bound.

    Besides `asked`, only the segments that go are looked at, and one more.

    Args:
        listed: the log's segments; the last one is being written and never goes.
        policy: the options.
        ages: the segments'.
        consumed: whether every channel has acked all of a segment, durably.
        asked: further full segments, wherever they lie, that may be consumed.
    """
    going: dict[int, Segment] = {}
    if policy.consumed == "delete":
        going = {segment.base: segment for segment in (*takewhile(consumed, _full(listed)), *filter(consumed, asked))}
    forced_to = 0
    for segment in _over_bounds(listed, going, policy, ages):
        if not consumed(segment):
            if policy.unconsumed != "delete":
                break
            forced_to = segment.end
        going[segment.base] = segment
    return Verdict(tuple(segment for _, segment in sorted(going.items())), forced_to)


def _full(listed: SegmentList) -> Iterator[Segment]:
    return islice(listed.segments, max(len(listed.segments) - 1, 0))


def _over_bounds(listed: SegmentList, going: Mapping[int, Segment], policy: Retention, ages: Ages) -> Iterator[Segment]:
    """Yield the oldest of the segments that stay, as long as a bound on age, bytes or number is exceeded."""
    total = listed.size - sum(segment.size for segment in going.values())
    number = len(listed.segments) - len(going)
    oldest_ns = None if policy.max_age is None else ages.now_ns - _age_ns(policy.max_age)
    stay = ((at, segment) for at, segment in enumerate(_full(listed)) if segment.base not in going)
    for at, segment in stay:
        too_old = oldest_ns is not None and _written_ns(listed, at, ages) < oldest_ns
        too_big = policy.max_bytes is not None and total > policy.max_bytes
        too_many = policy.max_segments is not None and number > policy.max_segments
        if not (too_old or too_big or too_many):
            return
        total -= segment.size
        number -= 1
        yield segment


def _written_ns(listed: SegmentList, at: int, ages: Ages) -> int:
    """Return the time of the last write to a segment.

    A segment written under a clock that was ahead is at least as old as the next one.
    """
    times = (ages.newest_ns(listed.segments[later]) for later in range(at, len(listed.segments)))
    return next((written_ns for written_ns in times if written_ns <= ages.now_ns), ages.now_ns)


def outgrown_ns(oldest_ns: int, policy: Retention) -> int | None:
    """Return when a segment begun at this time has to be sealed, or None if there is no bound on age.

    Only sealed segments can go, and each goes as a whole: one that went on taking messages would keep its oldest as
    long as its newest.
    """
    return None if policy.max_age is None else oldest_ns + max(_age_ns(policy.max_age) // _PARTS, 1)


def gone_ns(newest_ns: int, policy: Retention) -> int | None:
    """Return when a segment last written at this time exceeds the bound on age, or None if there is no bound."""
    return None if policy.max_age is None else newest_ns + _age_ns(policy.max_age)


def _age_ns(age: float | timedelta) -> int:
    return int(seconds(age) * 1e9)
