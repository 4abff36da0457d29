"""All verbs that write, in random order, on a disk that fails and heals: each seed another run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.running import run_at_random

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 8
STEPS = 60
EXHAUSTIVELY = 60
MANY_STEPS = 300


def test_whatever_fails_no_promise_is_broken(seed: int, record_property: Callable[[str, object], None]) -> None:
    for each in range(seed, seed + RUNS):
        run_at_random(each, STEPS)
    record_property("trials", RUNS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_fails_in_many_long_runs_no_promise_is_broken(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    for each in range(seed, seed + EXHAUSTIVELY):
        run_at_random(each, MANY_STEPS)
    record_property("trials", EXHAUSTIVELY)
