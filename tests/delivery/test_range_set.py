"""A RangeSet is a set of whole numbers, told in as few ranges as there can be."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aiodq.delivery import range_set
from aiodq.delivery.range_set import RangeSet, joined

TOP = 60
numbers = st.integers(0, TOP)


class RangeSetMachine(RuleBasedStateMachine):
    """Does everything to a RangeSet and to a set."""

    @initialize()
    def begin(self) -> None:
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(start=numbers, stop=numbers)
    def add(self, start: int, stop: int) -> None:
        wanted = set(range(start, stop))
        new = len(wanted - self.model)
        assert self.ranges.add(start, stop) == new
        self.model |= wanted

    @rule(wanted=st.frozensets(numbers))
    def add_new(self, wanted: frozenset[int]) -> None:
        new = wanted - self.model
        edges = [n for n in range(TOP + 2) if (n in new) is not (n - 1 in new)]
        if edges:
            self.ranges.add_new(edges)
        self.model |= new

    @rule(pairs=st.lists(st.tuples(numbers, numbers)))
    def add_all(self, pairs: list[tuple[int, int]]) -> None:
        ranges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
        wanted = [n for start, stop in ranges for n in range(start, stop)]
        new = self.model.isdisjoint(wanted) and len(set(wanted)) == len(wanted)
        assert self.ranges.add_all(ranges) is new
        self.model |= set(wanted if new else ())

    @rule(number=numbers)
    def discard_below(self, number: int) -> None:
        self.ranges.discard_below(number)
        self.model = {member for member in self.model if member >= number}

    @rule(number=numbers)
    def discard_from(self, number: int) -> None:
        self.ranges.discard_from(number)
        self.model = {member for member in self.model if member < number}

    @rule(start=numbers, stop=numbers)
    def covers(self, start: int, stop: int) -> None:
        assert self.ranges.covers(start, stop) is (set(range(start, stop)) <= self.model)

    @rule(start=numbers, stop=numbers)
    def within(self, start: int, stop: int) -> None:
        found = list(self.ranges.within(start, stop))
        assert [number for first, end in found for number in range(first, end)] == [
            number for number in range(start, stop) if number in self.model
        ]
        assert all(first < end for first, end in found)

    @rule(number=numbers)
    def next_missing(self, number: int) -> None:
        expected = number
        while expected in self.model:
            expected += 1
        assert self.ranges.next_missing(number) == expected

    @invariant()
    def members(self) -> None:
        assert [number for number in range(-1, TOP + 2) if number in self.ranges] == sorted(self.model)
        assert {number for start, stop in self.ranges for number in range(start, stop)} == self.model

    @invariant()
    def summary(self) -> None:
        assert self.ranges.total == len(self.model)
        assert bool(self.ranges) is bool(self.model)
        assert self.ranges.last == max(self.model, default=-1) + 1

    @rule()
    def copy(self) -> None:
        copied, before = self.ranges, list(self.ranges)
        self.ranges = copied.copy()
        assert self.ranges == copied
        self.ranges.add(7, 20)
        self.ranges.discard_below(11)
        assert list(copied) == before
        self.ranges = copied

    @invariant()
    def blocks(self) -> None:
        sizes = [len(block) for block in self.ranges._blocks]
        assert all(0 < size <= range_set._MOST and size % 2 == 0 for size in sizes)
        assert self.ranges._firsts == [block[0] for block in self.ranges._blocks]
        assert len(self.ranges) == sum(sizes) // 2

    @invariant()
    def no_two_ranges_touch(self) -> None:
        ranges = list(self.ranges)
        assert all(start < stop for start, stop in ranges)
        assert all(stop < following for (_, stop), (following, _) in pairwise(ranges))


def test_it_is_a_set() -> None:
    run_state_machine_as_test(RangeSetMachine, settings=settings(max_examples=20, stateful_step_count=30))


def test_it_is_a_set_of_many_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.delivery.range_set._MOST", 4)
    monkeypatch.setattr("aiodq.delivery.range_set._FEW", 2)
    run_state_machine_as_test(RangeSetMachine, settings=settings(max_examples=25, stateful_step_count=30))


@pytest.mark.slow
def test_it_is_a_set_for_long() -> None:
    run_state_machine_as_test(RangeSetMachine, settings=settings(max_examples=2_000, stateful_step_count=50))


@given(st.lists(st.tuples(numbers, numbers)))
def test_the_order_of_adding_does_not_matter(pairs: list[tuple[int, int]]) -> None:
    one, other = RangeSet(), RangeSet()
    for start, stop in pairs:
        one.add(start, stop)
    for start, stop in reversed(pairs):
        other.add(start, stop)
    assert list(one) == list(other)


def test_memory_goes_by_the_gaps() -> None:
    ranges = RangeSet()
    for number in range(100_000):
        ranges.add(number, number + 1)
    assert list(ranges) == [(0, 100_000)]


@pytest.mark.parametrize("step", [1, -1])
def test_few_blocks_are_left_of_many(step: int) -> None:
    """However the gaps are filled, neighbours that have become small are joined."""
    ranges = RangeSet((number, number + 1) for number in range(0, 60_000, 2))
    for number in range(1, 60_000, 2)[::step]:
        if number % 512 != 511:
            ranges.add(number, number + 1)
    assert len(ranges) == 118
    assert len(ranges._blocks) <= 4


def test_a_copy_shares_what_it_has() -> None:
    ranges = RangeSet((number, number + 1) for number in range(0, 400_000, 2))
    tracemalloc.start()
    try:
        copied = ranges.copy()
        copied.add(3, 4)
        ranges.add(7, 8)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(ranges) / 2, "bytes; a range is two offsets"
    assert (4 in copied, 3 in copied, 7 in copied) == (True, True, False)
    assert (3 in ranges, 7 in ranges) == (False, True)


def test_ranges_in_any_order_are_joined() -> None:
    assert joined([(5, 7), (0, 2), (7, 9), (1, 3), (12, 13), (12, 12)]) == [(0, 3), (5, 9), (12, 13)]


@pytest.mark.parametrize(("start", "stop"), [(3, 3), (5, 2), (0, 0)])
def test_an_empty_stretch_adds_nothing(start: int, stop: int) -> None:
    ranges = RangeSet()
    assert ranges.add(start, stop) == 0
    assert not ranges
    assert ranges.covers(start, stop)
