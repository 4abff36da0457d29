"""An OffsetMap is a dict of which a copy costs next to nothing."""

from __future__ import annotations

import tracemalloc
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aiodq.delivery.offset_map import OffsetMap

if TYPE_CHECKING:
    import pytest

TOP = 30
offsets = st.integers(0, TOP)


class OffsetMapMachine(RuleBasedStateMachine):
    """Does everything to maps and to dicts, also to copies of them."""

    @initialize(items=st.dictionaries(offsets, st.integers(0, 3)))
    def begin(self, items: dict[int, int]) -> None:
        self.pairs = [(OffsetMap(items.items()), items)]

    @rule(which=st.integers(0, 3))
    def copy(self, which: int) -> None:
        made, model = self.pairs[which % len(self.pairs)]
        self.pairs = [*self.pairs[-3:], (made.copy(), model.copy())]

    @rule(which=st.integers(0, 3), offset=offsets, value=st.integers(0, 3))
    def put(self, which: int, offset: int, value: int) -> None:
        for each in self.pairs[which % len(self.pairs)]:
            each[offset] = value

    @rule(which=st.integers(0, 3), start=offsets, stop=offsets, value=st.integers(0, 3))
    def update(self, which: int, start: int, stop: int, value: int) -> None:
        made, model = self.pairs[which % len(self.pairs)]
        made.update(range(start, stop), count(value))
        model.update(zip(range(start, stop), count(value), strict=False))

    @rule(which=st.integers(0, 3), offset=offsets)
    def pop(self, which: int, offset: int) -> None:
        made, model = self.pairs[which % len(self.pairs)]
        assert made.pop(offset) == model.pop(offset, None)

    @rule(which=st.integers(0, 3), start=offsets, stop=offsets)
    def discard_range(self, which: int, start: int, stop: int) -> None:
        made, model = self.pairs[which % len(self.pairs)]
        made.discard_range(start, stop)
        for offset in range(start, stop):
            model.pop(offset, None)

    @rule(which=st.integers(0, 3), some=st.lists(offsets), start=offsets, stop=offsets)
    def look(self, which: int, some: list[int], start: int, stop: int) -> None:
        made, model = self.pairs[which % len(self.pairs)]
        assert made.among(some) == {offset: model[offset] for offset in some if offset in model}
        assert list(made.within(start, stop)) == [offset for offset in range(start, stop) if offset in model]

    @invariant()
    def the_same(self) -> None:
        for made, model in self.pairs:
            assert len(made) == made.size == len(model)
            assert dict(made.items()) == model
            assert set(made) == model.keys()
            assert [made.get(offset) for offset in range(TOP + 1)] == [model.get(offset) for offset in range(TOP + 1)]
            assert [offset in made for offset in range(TOP + 1)] == [offset in model for offset in range(TOP + 1)]
            assert all(made[offset] == value and made.get(offset, 9) == value for offset, value in model.items())
            assert all(made._blocks.values()), "no block is empty"


def test_it_is_a_dict() -> None:
    run_state_machine_as_test(OffsetMapMachine, settings=settings(max_examples=20, stateful_step_count=30))


def test_it_is_a_dict_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.delivery.offset_map._BITS", 2)
    run_state_machine_as_test(OffsetMapMachine, settings=settings(max_examples=25, stateful_step_count=30))


def test_a_copy_shares_what_it_has() -> None:
    made = OffsetMap((offset, 1) for offset in range(200_000))
    tracemalloc.start()
    try:
        copied = made.copy()
        copied[3] = 2
        made.pop(150_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(made), "bytes"
    assert (copied[3], copied[150_000], made[3], made.get(150_000)) == (2, 1, 1, None)
