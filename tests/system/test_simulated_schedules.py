"""Random schedules in simulated time, with simulated threads: a seed decides everything, so a failure repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiodq.engine.channel.channel_engine import ChannelEngine
from tests.system.simulating import run_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.format.frame import Batch

SAMPLE = 4
EXHAUSTIVELY = 1_000
PARTS = 10
REPLAYS = 3


def run_schedules(seed: int, number: int, record_property: Callable[[str, object], None]) -> None:
    operations = sum(run_schedule(each) for each in range(seed, seed + number))
    record_property("trials", number)
    record_property("operations", operations)


def test_simulated_schedules(seed: int, record_property: Callable[[str, object], None]) -> None:
    run_schedules(seed, SAMPLE, record_property)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_thousand_simulated_schedules(part: int, seed: int, record_property: Callable[[str, object], None]) -> None:
    size = EXHAUSTIVELY // PARTS
    run_schedules(seed + SAMPLE + part * size, size, record_property)


def test_a_failure_repeats_each_time(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """With a fault in the engine that only some interleavings show."""
    release = ChannelEngine.release

    def loses(self: ChannelEngine[Any], batch: Batch, delivery: int, attempts: int) -> None:
        if self._wait_queue.line or self.state is None or self.state.ready != 1:
            release(self, batch, delivery, attempts)
        else:
            self.ack(batch.first, delivery)

    monkeypatch.setattr(ChannelEngine, "release", loses)
    found = next((seed for seed in range(200) if verdict(seed) != "passed"), None)
    assert found is not None, "the fault is never seen"
    verdicts = [verdict(found) for _ in range(REPLAYS)]
    assert len(set(verdicts)) == 1
    assert "lost" in verdicts[0]
    assert f"run_schedule({found})" in verdicts[0]
    record_property("trials", REPLAYS)


def verdict(seed: int) -> str:
    """Return how a schedule ends."""
    try:
        run_schedule(seed)
    except AssertionError as error:
        return "\n".join([str(error), *error.__notes__])
    return "passed"
