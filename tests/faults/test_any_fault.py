"""All verbs that write, in random order, on a disk that fails and heals, by one process or several, from any seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.running import run_at_random

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.running import Kind

RUNS: dict[Kind, int] = {"exclusive": 5, "shared": 2}
STEPS = 60
EXHAUSTIVELY: dict[Kind, int] = {"exclusive": 60, "shared": 15}
MANY_STEPS = 300


@pytest.mark.parametrize("kind", RUNS)
def test_whatever_fails_no_promise_is_broken(
    kind: Kind, seed: int, record_property: Callable[[str, object], None]
) -> None:
    for each in range(seed, seed + RUNS[kind]):
        run_at_random(kind, each, STEPS)
    record_property("trials", RUNS[kind])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", EXHAUSTIVELY)
def test_whatever_fails_in_many_long_runs_no_promise_is_broken(
    kind: Kind, seed: int, record_property: Callable[[str, object], None]
) -> None:
    for each in range(seed, seed + EXHAUSTIVELY[kind]):
        run_at_random(kind, each, MANY_STEPS)
    record_property("trials", EXHAUSTIVELY[kind])
