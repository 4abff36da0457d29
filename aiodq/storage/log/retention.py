"""Which segments may go: pure rules over what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiodq.options import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from aiodq.options import Retention
    from aiodq.storage.log.segment_files import Segment

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
    segments: Sequence[Segment], policy: Retention, now_ns: int, consumed: Callable[[Segment], bool]
) -> Verdict:
    """Return which sealed segments go now.

    Args:
        segments: of one log, in order; the last is the one being written and never goes.
        policy: the options.
        now_ns: wall time.
        consumed: whether every channel has acked all of a segment, durably.
    """
    sealed = list(segments[:-1])
    used = {segment.base: consumed(segment) for segment in sealed}
    going = {segment.base for segment in sealed if policy.consumed == "delete" and used[segment.base]}
    forced_to = 0
    for segment in _over_bounds([s for s in segments if s.base not in going], policy, now_ns):
        if used[segment.base]:
            going.add(segment.base)
        elif policy.unconsumed == "delete":
            going.add(segment.base)
            forced_to = segment.end
        else:
            break
    return Verdict(tuple(segment for segment in sealed if segment.base in going), forced_to)


def _over_bounds(kept: list[Segment], policy: Retention, now_ns: int) -> list[Segment]:
    """Return the oldest segments that the bounds on age, bytes and number ask to delete."""
    total = sum(segment.size for segment in kept)
    number = len(kept)
    over: list[Segment] = []
    times = _times(kept, now_ns)
    oldest_ns = 0 if policy.max_age is None else now_ns - _age_ns(policy.max_age)
    for segment in kept[:-1]:
        too_old = policy.max_age is not None and times[segment.base] < oldest_ns
        too_big = policy.max_bytes is not None and total > policy.max_bytes
        too_many = policy.max_segments is not None and number > policy.max_segments
        if not (too_old or too_big or too_many):
            break
        over.append(segment)
        total -= segment.size
        number -= 1
    return over


def _times(kept: list[Segment], now_ns: int) -> dict[int, int]:
    """Return by its base when a segment was written to last.

    What a clock ahead of time has written is at least as old as what was written next.
    """
    times: dict[int, int] = {}
    known = now_ns
    for segment in reversed(kept):
        if segment.newest_ns <= now_ns:
            known = segment.newest_ns
        times[segment.base] = known
    return times


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
