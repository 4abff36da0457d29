"""What is left of a call whose caller is cancelled after so many turns of the loop."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from aiodq.shared.connection import in_turns
from aiodq.shared.connection.wires import packet_protocol
from tests.shared import cancelled_consumers, cancelled_producers
from tests.shared.cancelling import HOWS, Doing, Where, cancel_in

if TYPE_CHECKING:
    from pathlib import Path

TURNS = 40
SAMPLES = 4

ALL = [*cancelled_consumers.ALL, *cancelled_producers.ALL]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every turn be over with its first step."""
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    monkeypatch.setattr(packet_protocol, "LONGEST_TURN", 0.0)


@pytest.mark.parametrize("where", ["alone", "owner", "client"])
async def test_nothing_is_lost_and_nobody_is_stuck(where: Where, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for number, doing in enumerate(rng.sample(ALL, SAMPLES)):
        await cancel_in(doing, where, rng.choice(HOWS), rng.randrange(TURNS), tmp_path / f"{number}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["alone", "owner", "client"])
@pytest.mark.parametrize("doing", ALL)
async def test_nothing_is_lost_and_nobody_is_stuck_whichever_turn_it_is(
    doing: Doing, where: Where, tmp_path: Path
) -> None:
    for turns in range(TURNS):
        for how in HOWS:
            await cancel_in(doing, where, how, turns, tmp_path / f"{turns}{how}")
