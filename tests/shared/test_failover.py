"""Real processes on one store: its owners are killed, or end, and nothing is lost, doubled or delivered again."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.figures import figure
from tests.shared.ledger import Crowd, crowd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = Callable[[str, Any], None]

LOOPS = ("asyncio", "uvloop")
EXHAUSTIVE = [pytest.mark.slow, pytest.mark.timeout(7200)]


def replace(crowd: Crowd, rng: random.Random, times: int, end: signal.Signals) -> None:
    """End whoever owns the store so often, one after the other, and begin another process each time."""
    for number in range(times):
        crowd.wait_for_more(rng.randint(1, 150))
        crowd.end(crowd.owner(), end)
        crowd.start(f"r{number}", rng.choice(LOOPS))


@pytest.mark.parametrize(
    ("processes", "kills"), [(4, 3), pytest.param(8, figure("kills"), marks=EXHAUSTIVE)], ids=["few", "many"]
)
def test_owners_are_killed_and_nothing_is_lost_or_doubled(
    tmp_path: Path, seed: int, processes: int, kills: int, record_property: Record
) -> None:
    rng = random.Random(seed)
    with crowd(tmp_path / "s") as children:
        for number in range(processes):
            children.start(f"p{number}", LOOPS[number % 2])
        replace(children, rng, kills, signal.SIGKILL)
        children.end_all()
    children.check()
    assert sum(child.killed for child in children.children.values()) == kills
    record_property("trials", kills)


@pytest.mark.parametrize(
    ("processes", "handovers"), [(3, 3), pytest.param(8, figure("handovers"), marks=EXHAUSTIVE)], ids=["few", "many"]
)
def test_owners_end_and_nobody_notices(
    tmp_path: Path, seed: int, processes: int, handovers: int, record_property: Record
) -> None:
    rng = random.Random(seed)
    with crowd(tmp_path / "s") as children:
        for number in range(processes):
            children.start(f"p{number}", LOOPS[number % 2])
        replace(children, rng, handovers, signal.SIGTERM)
        children.end_all()
    children.check()
    assert [offset for offset, holders in children.holders.items() if len(holders) > 1] == []
    record_property("trials", handovers)
