"""A log's segments with their running sums, beside counting anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.segments import segment_list
from aiodq.storage.segments.segment_list import SegmentList
from tests.storage.log.test_retention import a_log

if TYPE_CHECKING:
    from aiodq.storage.segments.segment_files import Segment


def check(listed: SegmentList) -> None:
    """Compare everything it tells with what its segments say one by one."""
    segments = listed.segments
    frames = [max(segment.data_end - SEGMENT_HEADER.size, 0) for segment in segments]
    assert listed.size == sum(segment.size for segment in segments)
    assert [listed.frames_from(number) for number in range(len(segments))] == [
        sum(frames[number:]) for number in range(len(segments))
    ]
    for offset in range(max((segment.end for segment in segments), default=0) + 1):
        begun = [number for number, segment in enumerate(segments) if segment.base <= offset]
        assert listed.at(offset) == max(begun, default=0)


def grown(segment: Segment, size: int) -> None:
    """Let a segment take more."""
    segment.size = segment.data_end = segment.size + size


@given(st.integers(1, 6), st.lists(st.sets(st.integers(0, 9), max_size=4) | st.integers(1, 500), max_size=12))
def test_it_is_what_counting_anew_gives(count: int, steps: list[set[int] | int]) -> None:
    fresh = iter(a_log(40, size=600)[count:])
    listed = SegmentList(a_log(count, size=600))
    check(listed)
    for step in steps:
        if isinstance(step, int):
            grown(listed.segments[-1], step)
            before, segments = listed, listed.segments
            listed = listed.followed_by(next(fresh))
            assert before.segments == segments
        else:
            going = [segment for number, segment in enumerate(listed.segments) if number in step]
            expected = [one for one in listed.segments if one not in going or one is listed.segments[-1]]
            listed = listed.without(going)
            assert list(listed.segments) == expected
        check(listed)
        grown(listed.segments[-1], 7)
        check(listed)


@pytest.mark.parametrize(("start", "step"), [(0, 1), (1, 1), (1, 2), (50, 3)])
def test_however_many_go_at_once_each_sum_is_counted_once(
    start: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subtracted: list[int] = []

    def counted(one: int, two: int) -> int:
        subtracted.append(two)
        return one - two

    monkeypatch.setattr(segment_list, "sub", counted)
    listed = SegmentList(a_log(200, size=600))
    going = listed.segments[start:150:step]
    listed = listed.without(going)
    assert len(subtracted) <= 2 * len(listed.segments)
    check(listed)


def test_one_without_segments_holds_nothing() -> None:
    empty = SegmentList()
    assert (empty.segments, empty.size, empty.at(5), empty.frames_from(0)) == ((), 0, 0, 0)
