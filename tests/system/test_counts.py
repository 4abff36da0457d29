"""What a put, a get and an ack cost, held by counting (see `counts.py`)."""

from __future__ import annotations

import sys

import pytest

from aiodq.shared.server.early_answers import EarlyAnswers
from tests.system.counts import CEILINGS, FIELDS, ROWS, Count, compiled, count, idle, least, most, runs
from tests.system.support import require_aio

pytestmark = pytest.mark.skipif(compiled(), reason="what is compiled has no frames to count")


@pytest.mark.parametrize("name", ROWS)
def test_no_call_costs_more_than_its_ceiling(name: str) -> None:
    if name == "put, always, without a thread":
        require_aio()
    ceiling = CEILINGS[name]
    counts = runs(name, lambda counts: not over(counts, ceiling) and not loose(counts, ceiling))
    assert not over(counts, ceiling), f"{over(counts, ceiling)} above the ceiling: {least(counts)}, at most {ceiling}"
    far = loose(counts, ceiling)
    assert not far, f"{far} far below: lower the ceilings (python -m tests.system.counts --ceilings), {most(counts)}"


def over(counts: list[Count], ceiling: Count) -> list[str]:
    found = least(counts)
    return [field for field in FIELDS if getattr(found, field) > getattr(ceiling, field)]


def loose(counts: list[Count], ceiling: Count) -> list[str]:
    if sys.version_info >= (3, 12):
        return []  # it calls no function for a comprehension, and is below ceilings that hold on 3.11, too
    # What threads do after they have reported is counted or not, as it happens. And once in some hundred calls, the
    # loop was just asked for something that the call needs, too: that one costs a callback less, and so does the least
    # of its run. A shorter path is shorter in every run.
    usual = most(counts)
    return [field for field in FIELDS[:-1] if idle(getattr(usual, field), getattr(ceiling, field))]


def test_every_row_has_a_ceiling() -> None:
    assert CEILINGS.keys() == ROWS.keys()


def test_a_put_that_no_thread_may_answer_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlyAnswers, "allow", lambda _: None)  # the loop has to answer, as when it has more to send
    assert count("put over the socket, always").frames
