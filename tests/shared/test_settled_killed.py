"""Real processes that settle in every way, some of them killed, stopped or ended: each message is settled once."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.figures import figure
from tests.shared.ledger import crowd_of
from tests.shared.settlers import ENDLESS, KEPT, Settlers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Record = Callable[[str, Any], None]

LOOPS = ("asyncio", "uvloop")
EXHAUSTIVE = [pytest.mark.slow, pytest.mark.timeout(7200)]

_PAUSES: Final = (0.1, 2.0)
_LONG_PAUSES: Final = (0.1, 2.0, 7.0)
"""Seconds for which a client is stopped: it misses the timeout of what it holds, or comes too late for all of it."""


def harm(settlers: Settlers, rng: random.Random, names: Iterator[str], pauses: Sequence[float]) -> None:
    """Do something to one of them, and begin others for those that ended."""
    owner = settlers.owner()
    clients = [child for child in settlers.alive if child is not owner]
    victim = owner if rng.random() < 0.6 or not clients else rng.choice(clients)
    match rng.choice(("kill", "kill", "end", "stop")):
        case "kill":
            settlers.end(victim, signal.SIGKILL)
        case "end":
            settlers.end(victim, signal.SIGTERM)
        case "stop" if victim is owner:
            stalled = settlers.stalled
            settlers.stop(owner, lambda: settlers.stalled > stalled)
        case "stop":
            settlers.stop_for(victim, rng.choice(pauses), meanwhile=owner if rng.random() < 0.5 else None)
    replace(settlers, rng, names)


def replace(settlers: Settlers, rng: random.Random, names: Iterator[str]) -> None:
    """Begin a process for each that ended."""
    alive = {name for name, child in settlers.children.items() if child.code is None}
    if not any(name.startswith("a") for name in alive):
        settlers.start(f"a{next(names)}", rng.choice(LOOPS), "audit", settlers.patience)
    for _ in range(settlers.many - sum(name.startswith("p") for name in alive)):
        settlers.start(f"p{next(names)}", rng.choice(LOOPS), "settle", settlers.patience)


@pytest.mark.parametrize(
    ("processes", "harms", "pauses", "patience"),
    [
        pytest.param(3, 4, _PAUSES, ENDLESS),
        pytest.param(5, figure("kills") // 4, _LONG_PAUSES, ENDLESS, marks=EXHAUSTIVE),
        pytest.param(5, figure("kills") // 20, _LONG_PAUSES, KEPT, marks=EXHAUSTIVE),
    ],
    ids=["few", "many", "late"],
)
def test_whoever_is_killed_or_stopped_each_message_is_settled_once(
    tmp_path: Path, seed: int, record_property: Record, *,
    processes: int, harms: int, pauses: Sequence[float], patience: float,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    names = map(str, range(1_000_000))
    with crowd_of(Settlers, tmp_path / "s") as settlers:
        settlers.many, settlers.patience = processes, patience
        replace(settlers, rng, names)
        for _ in range(harms):
            settlers.wait_for_more(rng.randint(1, 200))
            harm(settlers, rng, names, pauses)
        settlers.wait_for_more(50)
        settlers.drain()
        settlers.end_all()
    settlers.check()
    record_property("trials", harms)
