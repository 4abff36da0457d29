"""What is settled below and above the floor, and what of it is told to the journal."""

from __future__ import annotations

from aiodq.delivery.attempts import Attempts
from aiodq.delivery.offset_map import OffsetMap
from aiodq.delivery.progress import Progress
from aiodq.delivery.range_set import RangeSet


def progress(floor: int = 10, before: dict[int, int] | None = None) -> Progress:
    return Progress(floor, RangeSet(), Attempts(OffsetMap((before or {}).items())))


def test_the_floor_follows_what_is_settled_without_a_gap() -> None:
    found = progress()
    found.settle(12, 14)
    assert (found.floor, list(found.settled)) == (10, [(12, 14)])
    found.settle(10, 12)
    assert (found.floor, list(found.settled)) == (14, [])
    found.settle_runs([15, 16, 18, 20])
    assert (found.floor, list(found.settled)) == (14, [(15, 16), (18, 20)])
    found.settle_runs([14, 15])
    assert (found.floor, list(found.settled)) == (16, [(18, 20)])


def test_what_is_below_the_floor_is_covered() -> None:
    found = progress()
    found.settle(12, 14)
    assert found.covers(0, 10)
    assert found.covers(0, 5)
    assert found.covers(12, 14)
    assert not found.covers(9, 14)
    found.settle(10, 12)
    assert found.covers(9, 14)


def test_of_what_is_settled_no_attempts_are_kept() -> None:
    found = progress(before={11: 1, 12: 2})
    found.delivered(range(10, 12), 1)
    found.settle(10, 12)
    assert (dict(found.attempts.before.items()), list(found.attempts.noted)) == ({12: 2}, [])


def test_what_did_not_reach_the_disk_is_told_once_more_and_whole() -> None:
    found = progress(before={15: 3})
    found.settle(12, 14)
    found.all_noted()
    assert not found.unjournaled.acks
    found.renote()
    assert (found.unjournaled.seek, found.unjournaled.acks, found.unjournaled.requeues) == (10, [(12, 14)], [15])


def test_a_seek_leaves_nothing_settled_above_it_and_nothing_delivered() -> None:
    found = progress(before={15: 3})
    found.settle(12, 14)
    found.seek(11)
    assert (found.floor, list(found.settled), list(found.attempts.before)) == (11, [], [])
    assert (found.unjournaled.seek, found.unjournaled.acks) == (11, [])
