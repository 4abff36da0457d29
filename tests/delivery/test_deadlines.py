"""Deadlines against plain dictionaries: what is late, and when the next is."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.delivery.deadlines import Deadlines

SPANS = st.integers(0, 30)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "many", "move", "settle", "settle many", "pass"]), st.integers(0, 6), SPANS),
    max_size=120,
)


@given(STEPS)
def test_deadlines_are_those_that_were_set_last(steps: list[tuple[str, int, int]]) -> None:
    in_flight: dict[int, int] = {}
    model: dict[int, int] = {}
    deadlines, now = Deadlines(in_flight), 0
    numbers, above = count(), count(100)
    for what, offset, span in steps:
        if what in {"add", "many"}:
            for each in {offset} - in_flight.keys() if what == "add" else islice(above, offset * 50):
                in_flight[each] = number = next(numbers)
                model[each] = now + span
                deadlines.add(now + span, each, number)
        elif what == "move" and offset in in_flight:
            model[offset] = now + span
            deadlines.move(now + span, offset, in_flight[offset])
        elif what.startswith("settle"):
            for each in list(in_flight)[:: offset + 1] if what == "settle many" else {offset} & in_flight.keys():
                del in_flight[each], model[each]
        elif what == "pass":
            now += span
            late = deadlines.take(now)
            assert sorted(late) == sorted(each for each, deadline in model.items() if deadline <= now)
            assert [model[each] for each in late] == sorted(model[each] for each in late)
            for each in late:
                del in_flight[each], model[each]
        assert deadlines.next() == min(model.values(), default=None)


@pytest.mark.parametrize("moved", [False, True])
def test_a_deadline_that_is_earlier_than_those_before_it_comes_first(*, moved: bool) -> None:
    in_flight = {1: 11, 2: 12, 3: 13}
    deadlines = Deadlines(in_flight)
    deadlines.add(20, 1, 11)
    deadlines.add(30, 2, 12)
    if moved:
        deadlines.add(40, 3, 13)
        deadlines.move(10, 3, 13)
    else:
        deadlines.add(10, 3, 13)
    for late, offset in ((10, 3), (20, 1), (30, 2)):
        assert deadlines.next() == late
        assert deadlines.take(late - 1) == []
        assert deadlines.take(late) == [offset]
        del in_flight[offset]
    assert deadlines.next() is None


def test_deadlines_of_what_was_settled_take_no_room() -> None:
    in_flight: dict[int, int] = {}
    deadlines = Deadlines(in_flight)
    for number in range(10_000):
        in_flight[number] = number
        deadlines.add(number + 60, number, number)
        deadlines.move(number + 90, number, number)
        if number:
            del in_flight[number]
    assert deadlines.next() == 90
    assert sum(map(len, deadlines._blocks)) + len(deadlines._heap) + len(deadlines._moved) < 700


class Counted(dict[int, int]):
    """Counts how often it is asked."""

    asked = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


@pytest.mark.parametrize("kept", [1, 2, 1000])
def test_no_step_looks_at_all_that_is_in_flight(kept: int) -> None:
    """Many are in flight, of which each, every other one, or hardly any stays."""
    in_flight, most = Counted(), 0
    deadlines = Deadlines(in_flight)
    for number in range(20_000):
        in_flight[number] = number
        before = in_flight.asked
        deadlines.add(number, number, number)
        most = max(most, in_flight.asked - before)
        if number % kept:
            del in_flight[number]
    assert most < 300
    assert in_flight.asked < 3 * 20_000
    assert sum(map(len, deadlines._blocks)) < 2 * len(in_flight) + 400
    assert deadlines.take(20_000) == list(in_flight)


@pytest.mark.parametrize("moved", [False, True])
def test_behind_very_many_that_were_settled_nothing_is_late_before_its_time(*, moved: bool) -> None:
    """A look drops only some of them, and the next look more."""
    in_flight = {number: number for number in range(1501)}
    deadlines = Deadlines(in_flight)
    (deadlines.move if moved else deadlines.add)(20, 1500, 1500)
    for number in range(1500):
        deadlines.move(10, number, number)
    for number in range(1500):
        del in_flight[number]
    assert deadlines.take(15) == []
    assert deadlines.next() == 20
    assert deadlines.take(20) == [1500]


def test_deadlines_begin_anew_when_all_have_passed() -> None:
    in_flight: dict[int, int] = {}
    deadlines, numbers = Deadlines(in_flight), count()
    for many in (1000, 1, 5000, 200, 129):
        added = list(islice(numbers, many))
        for number in added:
            in_flight[number] = number
            deadlines.add(many + number, number, number)  # sooner than the ones before, the second time
        assert not deadlines._heap
        assert deadlines.take(many + added[-1]) == added
        assert deadlines.next() is None
        in_flight.clear()
