"""Deferred messages against plain dictionaries: what is due, and when the next is."""

from __future__ import annotations

import heapq
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodq.delivery.deferrals import Deferrals, later_than

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = ["add", "all", "drop", "range", "pass"]


@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 19), st.integers(0, 30), st.integers(1, 6)),
        max_size=60,
    )
)
def test_deferrals_are_those_that_were_made_last(steps: list[tuple[str, int, int, int]]) -> None:
    model: dict[int, int] = {}
    deferrals, now = Deferrals(), 0
    for what, offset, span, several in steps:
        if what == "add":
            model[offset] = now + span
            deferrals.add(offset, now + span)
        elif what == "all" and not model.keys() & set(range(offset, offset + several)):
            # Neighbours, now and then all due at the same moment.
            dues = [now + span + each * (span % 3) for each in range(several)]
            model |= dict(enumerate(dues, offset))
            deferrals.add_all(offset, [due - 5 for due in dues], 5)
        elif what == "drop":
            model.pop(offset, None)
            deferrals.discard(offset)
        elif what == "range":
            model = {each: due for each, due in model.items() if not offset <= each < offset + span}
            deferrals.discard_range(offset, offset + span)
        else:
            now += span
            order = sorted((moment, each) for each, moment in model.items() if moment <= now)
            due = deferrals.take(now, several)
            assert due == [each for _, each in order[:several]]
            for each in due:
                del model[each]
        assert dict(deferrals) == dict(deferrals.copy()) == model
        assert len(deferrals) == len(model)
        assert deferrals.next() == min(model.values(), default=None)
        assert all(deferrals.due(each) == deferrals.copy().due(each) == model.get(each) for each in range(26))
        assert all((each in deferrals) == (each in model) for each in range(26))
        in_order = [pair for pair in deferrals.in_order() if model.get(pair[0]) == pair[1]]
        assert sorted(in_order) == sorted(model.items())
        assert [moment for _, moment in in_order] == sorted(model.values())
        everything = list(deferrals.in_order())
        for at, pair in enumerate(everything[:several]):
            assert list(deferrals.in_order(Deferrals.place(*pair))) == everything[at + 1 :]
        soon = deferrals.soon(several, 5)
        assert len(soon) == len(set(soon)) <= several
        assert all(model[each] <= min(model.values()) + 5 for each in soon)
        assert bool(soon) == bool(model)


def test_what_was_due_at_the_same_moment_before_comes_once_in_order() -> None:
    deferrals = Deferrals()
    deferrals.add(1, 27)
    deferrals.add(2, 0)
    deferrals.discard(1)
    deferrals.add_all(0, [27, 27])
    assert list(deferrals.in_order()) == [(2, 0), (0, 27), (1, 27)]


def test_neighbours_that_are_due_at_once_take_no_room() -> None:
    deferrals = Deferrals()
    deferrals.add_all(5, [100] * 1_000_000)
    assert len(deferrals) == 1_000_000
    assert deferrals.take(100, 3) == [5, 6, 7]
    deferrals.discard(500_000)
    assert len(deferrals._heap) + len(deferrals._keys) + len(deferrals._tails) < 10
    assert deferrals.take(99) == []
    assert deferrals.take(100) == [*range(8, 500_000), *range(500_001, 1_000_005)]
    assert not deferrals


@pytest.mark.parametrize("gone", [0, 1, 3])
@pytest.mark.parametrize("again", [False, True])
def test_neighbours_of_a_message_that_is_due_no_more_are_due_when_they_were(gone: int, *, again: bool) -> None:
    """It is the first of them, one in the middle, or the last."""
    deferrals = Deferrals()
    deferrals.add_all(0, [100] * 4)
    if again:
        deferrals.add(gone, 200)
    else:
        deferrals.discard(gone)
    assert deferrals.next() == 100
    assert deferrals.take(100) == [offset for offset in range(4) if offset != gone]
    assert dict(deferrals) == ({gone: 200} if again else {})


def test_deferring_one_message_again_and_again_takes_no_room() -> None:
    deferrals = Deferrals()
    for due in range(10_000):
        deferrals.add(1, due)
    assert len(deferrals._heap) < 100
    assert deferrals.take(9_998) == []
    assert deferrals.take(9_999) == [1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 6))
def test_later_than(dues: list[int], moment: int) -> None:
    offsets, later = later_than(moment, 100, dues)
    assert list(zip(offsets, later, strict=True)) == [(n, due) for n, due in enumerate(dues, 100) if due > moment]


def test_messages_with_times_of_their_own_beside_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    deferrals, sizes = Deferrals(), list[int]()

    def heapify(heap: list[int]) -> None:
        sizes.append(len(heap))
        heapq.heapify(heap)

    counting = SimpleNamespace(heapify=heapify, heappush=heapq.heappush, heappop=heapq.heappop)
    monkeypatch.setattr("aiodq.delivery.stale_heap.heapq", counting)
    for start in range(0, 5000, 100):
        deferrals.add_all(start, [(offset * 7919) % 5000 for offset in range(start, start + 100)])
    assert max(sizes) <= 200, "what is there already is left as it is"
    assert deferrals.take(5000) == sorted(range(5000), key=lambda offset: (offset * 7919) % 5000)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["discard", "defer", "spread"]), st.integers(0, 2999), st.integers(1, 1500))))
def test_very_many_get_times_of_their_own_as_far_as_they_are_still_deferred(steps: list[tuple[str, int, int]]) -> None:
    dues = [50 + (offset * 7919) % 2000 for offset in range(3000)]
    deferrals, model = Deferrals(), {offset: due + 7 for offset, due in enumerate(dues)}
    deferrals.add_all(0, dues, 7)
    assert deferrals.take(max(dues) + 6) == []
    for what, start, number in steps:
        if what == "spread":
            deferrals.spread()
        elif what == "defer":
            model[start] = number + 3000
            deferrals.add(start, number + 3000)
        else:
            deferrals.discard_range(start, start + number)
            for offset in range(start, start + number):
                model.pop(offset, None)
        assert len(deferrals) == len(model)
    assert dict(deferrals.in_order()) == model
    assert not deferrals.spread()
    assert sorted(deferrals) == sorted(model.items())


@pytest.mark.parametrize("again", [False, True])
def test_what_is_due_no_more_gets_no_time_of_its_own_though_it_alone_is_left_to_get_one(*, again: bool) -> None:
    deferrals = Deferrals()
    deferrals.add_all(0, range(1, 1002))
    if again:
        deferrals.add(1000, 5000)
    else:
        deferrals.discard(1000)
    while deferrals.spread():
        pass
    assert deferrals.take(4999) == list(range(1000))
    assert dict(deferrals) == ({1000: 5000} if again else {})


def test_what_was_discarded_is_not_kept_for_ever() -> None:
    deferrals = Deferrals()
    deferrals.add(0, 0)
    for start in range(1, 10_000, 10):
        deferrals.add_all(start, range(1, 11))
        deferrals.discard_range(start, start + 10)
    assert len(deferrals) == 1
    assert len(deferrals._heap) <= 200


class _Passes(list[int]):
    """Counts how often all of it is looked at."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()

    def count(self, value: int, /) -> int:
        self.times += 1
        return super().count(value)


@pytest.mark.pure("what is compiled passes over a list without its methods")
@pytest.mark.parametrize("alike", [False, True])
def test_very_many_delays_are_passed_over_twice(*, alike: bool) -> None:
    """Each pass over a million of them takes some twenty milliseconds."""
    dues = _Passes([1000] * 5000 if alike else range(1000, 6000))
    offsets, later = later_than(5, 0, dues)
    assert (offsets, later) == (range(5000), dues)
    Deferrals().add_all(0, dues)
    assert dues.times == 2
