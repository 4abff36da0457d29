"""Which segments may go: rules without files."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.format.checksum import CRC32, checksum_named
from aiodq.format.frame import FrameContext
from aiodq.options import Retention
from aiodq.storage.log.retention import Ages, expired
from aiodq.storage.segments.segment_files import Segment
from aiodq.storage.segments.segment_list import SegmentList

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
NEWEST = attrgetter("newest_ns")


def a_log(count: int, *, size: int = 100) -> list[Segment]:
    """Return segments of ten messages each, a second apart; the last one is being written."""
    return [
        Segment(
            path=f"{number}",
            base=number * 10,
            end=number * 10 + 10,
            data_end=size,
            size=size,
            records=10,
            raw_bytes=0,
            sealed=number < count - 1,
            oldest_ns=NOW - (count - number) * SECOND,
            newest_ns=NOW - (count - number) * SECOND,
            context=FrameContext(number * 10, checksum_named(CRC32), 0),
            flags=0,
        )
        for number in range(count)
    ]


def going(count: int, policy: Retention, consumed: Iterable[int] = ()) -> tuple[list[int], int]:
    """Return the numbers of the segments that go, and up to where channels lose what they have not acked."""
    used = set(consumed)
    log = a_log(count)
    verdict = expired(SegmentList(log), policy, Ages(NOW, NEWEST), lambda segment: segment.base // 10 in used, log[:-1])
    return [segment.base // 10 for segment in verdict.segments], verdict.forced_to


def test_what_every_channel_has_acked_goes_wherever_it_lies() -> None:
    assert going(6, Retention(), [0, 1, 3]) == ([0, 1, 3], 0)
    assert going(6, Retention(), []) == ([], 0)


def test_the_segment_being_written_never_goes() -> None:
    assert going(3, Retention(), [0, 1, 2]) == ([0, 1], 0)
    assert going(1, Retention(max_bytes=1, unconsumed="delete"), [0]) == ([], 0)
    assert going(3, Retention(max_segments=1, unconsumed="delete")) == ([0, 1], 20)


def test_kept_for_replay_until_a_bound_asks() -> None:
    assert going(6, Retention(consumed="keep"), range(6)) == ([], 0)
    assert going(6, Retention(consumed="keep", max_segments=4), range(6)) == ([0, 1], 0)
    assert going(6, Retention(consumed="keep", max_bytes=250), range(6)) == ([0, 1, 2, 3], 0)
    assert going(6, Retention(consumed="keep", max_age=timedelta(seconds=3.5)), range(6)) == ([0, 1, 2], 0)


def test_a_bound_stops_at_what_some_channel_still_needs() -> None:
    assert going(6, Retention(consumed="keep", max_segments=2), [0, 1, 3]) == ([0, 1], 0)
    assert going(6, Retention(consumed="keep", max_segments=2), []) == ([], 0)


def test_a_bound_that_may_takes_that_as_well_and_says_up_to_where() -> None:
    policy = Retention(consumed="keep", max_segments=2, unconsumed="delete")
    assert going(6, policy, [0, 3]) == ([0, 1, 2, 3], 30)
    assert going(6, policy, range(6)) == ([0, 1, 2, 3], 0)


@pytest.mark.parametrize("bound", [{"max_bytes": 300}, {"max_segments": 3}, {"max_age": timedelta(seconds=3.5)}])
def test_at_the_bound_nothing_goes(bound: dict[str, Any]) -> None:
    policy = Retention(consumed="keep", unconsumed="delete", **bound)
    assert going(3, policy) == ([], 0)
    assert going(4, policy) == ([0], 10)


def test_an_old_clock_deletes_nothing() -> None:
    policy = Retention(consumed="keep", max_age=timedelta(seconds=1), unconsumed="delete")
    assert expired(SegmentList(a_log(5)), policy, Ages(0, NEWEST), lambda _: True).segments == ()


@given(
    count=st.integers(1, 12),
    consumed=st.sets(st.integers(0, 11)),
    policy=st.builds(
        Retention,
        consumed=st.sampled_from(["delete", "keep"]),
        unconsumed=st.sampled_from(["delete", "keep"]),
        max_bytes=st.none() | st.integers(1, 1300),
        max_segments=st.none() | st.integers(1, 13),
        max_age=st.none() | st.builds(timedelta, seconds=st.integers(1, 13)),
    ),
)
def test_nothing_unconsumed_goes_unless_it_may(count: int, consumed: set[int], policy: Retention) -> None:
    numbers, forced_to = going(count, policy, consumed)
    assert count - 1 not in numbers
    assert numbers == sorted(set(numbers))
    needed = [number for number in numbers if number not in consumed]
    if policy.unconsumed == "keep":
        assert needed == []
    assert forced_to == max((number * 10 + 10 for number in needed), default=0)
    if policy.consumed == "delete":
        assert set(numbers) >= consumed & set(range(count - 1))
    if {policy.max_age, policy.max_bytes, policy.max_segments} == {None} and policy.consumed == "keep":
        assert numbers == []
    if policy.unconsumed == "delete":
        kept = [number for number in range(count) if number not in numbers]
        assert policy.max_segments is None or len(kept) <= max(policy.max_segments, 1)
        assert policy.max_bytes is None or len(kept) == 1 or len(kept) * 100 <= policy.max_bytes
