"""All verbs in random order, with crashes and changes of the owner, against a plain model: each seed another run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.running import run_at_random
from tests.model.world import MODES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.world import Kind

RUNS: dict[Kind, int] = {"simulated": 4, "exclusive": 4, "threads": 3, "shared": 3, "client": 1}
STEPS = 60
EXHAUSTIVELY = 60
MANY_STEPS = 300


@pytest.mark.parametrize("kind", RUNS)
def test_any_mixture(kind: Kind, seed: int, record_property: Callable[[str, object], None]) -> None:
    for each in range(seed, seed + RUNS[kind]):
        run_at_random(kind, each, STEPS)
    record_property("trials", RUNS[kind])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", MODES)
def test_many_long_mixtures(kind: Kind, seed: int, record_property: Callable[[str, object], None]) -> None:
    for each in range(seed, seed + EXHAUSTIVELY):
        run_at_random(kind, each, MANY_STEPS)
    record_property("trials", EXHAUSTIVELY)
