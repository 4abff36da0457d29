"""Of a dear test's values the ordinary run takes as many as its mark says, others with another seed."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.conftest import _draw

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
