"""Of a dear test's values the ordinary run takes as many as its mark says, others with another seed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from tests.conftest import ONE_IN, _draw, _draw_on_uvloop, _loop_of
from tests.loops import LOOPS

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUES = ("a", "b", "c", "d", "e")


def drawn(seed: int, mark: pytest.MarkDecorator) -> set[str]:
    """Return what an ordinary run with this seed takes."""
    items = [
        mock.Mock(
            spec=pytest.Function,
            nodeid=f"test_module.py::test[{loop}-{value}]",
            callspec=mock.Mock(params={"loop": loop, "kind": value}),
            get_closest_marker=mock.Mock(return_value=mark.mark),
        )
        for loop in ("asyncio", "uvloop")
        for value in VALUES
    ]
    _draw(list(items), seed)
    kept = [item.callspec.params["kind"] for item in items if not item.add_marker.called]
    assert len(kept) == 2 * len(set(kept)), "on each loop the same"
    assert all(item.add_marker.call_args in (None, mock.call("slow")) for item in items)
    return set(kept)


@pytest.mark.parametrize(("arguments", "count"), [(("kind",), 1), (("kind", 2), 2), (("kind", 9), len(VALUES))])
def test_as_many_values_are_drawn_as_the_mark_says(arguments: tuple[str | int, ...], count: int) -> None:
    mark = pytest.mark.drawn(*arguments)
    runs = [drawn(seed, mark) for seed in range(40)]
    assert {len(run) for run in runs} == {count}
    assert set().union(*runs) == set(VALUES), "each value is drawn by some seed"
    assert runs == [drawn(seed, mark) for seed in range(40)], "the seed repeats it"


def drawn_on_uvloop(seed: int, *marks: str, values: Sequence[str] = VALUES) -> dict[str, set[str]]:
    """Return which of the values an ordinary run with this seed takes on each loop, of a test with these marks."""
    items = [
        mock.Mock(
            spec=pytest.Function,
            nodeid=f"test_module.py::test[{loop}-{value}]",
            callspec=mock.Mock(params={"_asyncio_loop_factory": factory, "kind": value}),
            get_closest_marker=mock.Mock(side_effect=lambda name: name if name in marks else None),
        )
        for loop, factory in LOOPS.items()
        for value in values
    ]
    _draw_on_uvloop([*items, mock.Mock(spec=pytest.Item)], seed)
    assert all(item.add_marker.call_args in (None, mock.call("slow")) for item in items)
    kept = [item.callspec.params for item in items if not item.add_marker.called]
    return {
        loop: {params["kind"] for params in kept if params["_asyncio_loop_factory"] is factory}
        for loop, factory in LOOPS.items()
    }


@pytest.mark.skipif(len(LOOPS) == 1, reason="there is no uvloop on Windows")
@pytest.mark.parametrize(("count", "drawn"), [(1, 1), (ONE_IN, 1), (ONE_IN + 1, 2), (3 * ONE_IN, 3)])
def test_on_uvloop_a_part_is_drawn_of_what_asyncio_s_loop_has(count: int, drawn: int) -> None:
    values = [f"{number}" for number in range(count)]
    runs = [drawn_on_uvloop(seed, values=values) for seed in range(60)]
    assert all(run["asyncio"] == set(values) for run in runs)
    assert {len(run["uvloop"]) for run in runs} == {drawn}
    assert set().union(*(run["uvloop"] for run in runs)) == set(values), "each is drawn by some seed"
    assert runs == [drawn_on_uvloop(seed, values=values) for seed in range(60)], "the seed repeats it"


def test_what_runs_only_on_uvloop_is_not_drawn() -> None:
    assert drawn_on_uvloop(0, "slow_on_asyncio") == {loop: set(VALUES) for loop in LOOPS}


@pytest.mark.asyncio(loop_factories=list(LOOPS))
async def test_of_each_test_it_is_known_on_which_loop_it_runs(request: pytest.FixtureRequest) -> None:
    assert isinstance(request.node, pytest.Function)
    factory = _loop_of(request.node)
    assert factory is not None
    loop = factory()
    assert type(asyncio.get_running_loop()) is type(loop)
    loop.close()
