"""Of a dear test's values the ordinary run takes as many as its mark says, others with another seed."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from tests.conftest import _draw, _draw_on_uvloop, _loop_of
from tests.loops import LOOPS

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


def drawn_on_uvloop(seed: int, *marks: str) -> dict[str, set[str]]:
    """Return which values an ordinary run with this seed takes on each loop, of a test with these marks."""
    items = [
        mock.Mock(
            spec=pytest.Function,
            nodeid=f"test_module.py::test[{loop}-{value}]",
            callspec=mock.Mock(params={"_asyncio_loop_factory": factory, "kind": value}),
            get_closest_marker=mock.Mock(side_effect=lambda name: name if name in marks else None),
        )
        for loop, factory in LOOPS.items()
        for value in VALUES
    ]
    _draw_on_uvloop([*items, mock.Mock(spec=pytest.Item)], seed)
    assert all(item.add_marker.call_args in (None, mock.call("slow")) for item in items)
    kept = [item.callspec.params for item in items if not item.add_marker.called]
    return {
        loop: {params["kind"] for params in kept if params["_asyncio_loop_factory"] is factory}
        for loop, factory in LOOPS.items()
    }


@pytest.mark.skipif(len(LOOPS) == 1, reason="there is no uvloop on Windows")
def test_on_uvloop_one_parameter_set_is_drawn_of_all_that_asyncio_s_loop_has() -> None:
    runs = [drawn_on_uvloop(seed) for seed in range(40)]
    assert all(run["asyncio"] == set(VALUES) for run in runs)
    assert {len(run["uvloop"]) for run in runs} == {1}
    assert set().union(*(run["uvloop"] for run in runs)) == set(VALUES), "each is drawn by some seed"
    assert runs == [drawn_on_uvloop(seed) for seed in range(40)], "the seed repeats it"


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
