"""Moments against plain dictionaries: what is due, what is late, and when the next is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiodq.delivery.timers import Deadlines, Deferrals

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "move", "settle", "pass"]), st.integers(0, 6), st.integers(0, 30)), max_size=120
)


@given(STEPS)
def test_deadlines_are_those_that_were_set_last(steps: list[tuple[str, int, int]]) -> None:
    in_flight: dict[int, int] = {}
    model: dict[int, int] = {}
    deadlines, now = Deadlines(in_flight), 0
    for number, (what, offset, span) in enumerate(steps):
        if what == "add" and offset not in in_flight:
            in_flight[offset] = number
            model[offset] = now + span
            deadlines.add(now + span, offset, number)
        elif what == "move" and offset in in_flight:
            model[offset] = now + span
            deadlines.move(now + span, offset, in_flight[offset])
        elif what == "settle":
            in_flight.pop(offset, None)
            model.pop(offset, None)
        elif what == "pass":
            now += span
            late = deadlines.take(now)
            assert sorted(late) == sorted(each for each, deadline in model.items() if deadline <= now)
            assert [model[each] for each in late] == sorted(model[each] for each in late)
            for each in late:
                del in_flight[each], model[each]
        assert deadlines.next() == min(model.values(), default=None)


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
    assert len(deadlines._queue) + len(deadlines._heap) + len(deadlines._moved) < 400


@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "range", "pass"]), st.integers(0, 9), st.integers(0, 30))))
def test_deferrals_are_those_that_were_made_last(steps: list[tuple[str, int, int]]) -> None:
    model: dict[int, int] = {}
    deferrals, now = Deferrals(), 0
    for what, offset, span in steps:
        if what == "add":
            model[offset] = now + span
            deferrals.add(offset, now + span)
        elif what == "drop":
            model.pop(offset, None)
            deferrals.discard(offset)
        elif what == "range":
            model = {each: due for each, due in model.items() if not offset <= each < offset + span}
            deferrals.discard_range(offset, offset + span)
        else:
            now += span
            due = deferrals.take(now)
            assert sorted(due) == sorted(each for each, moment in model.items() if moment <= now)
            model = {each: moment for each, moment in model.items() if moment > now}
        assert dict(deferrals) == model
        assert len(deferrals) == len(model)
        assert deferrals.next() == min(model.values(), default=None)
        assert all((each in deferrals) == (each in model) == (deferrals.due(each) is not None) for each in range(10))


def test_deferring_one_message_again_and_again_takes_no_room() -> None:
    deferrals = Deferrals()
    for due in range(10_000):
        deferrals.add(1, due)
    assert len(deferrals._heap) < 100
    assert deferrals.take(9_998) == []
    assert deferrals.take(9_999) == [1]
