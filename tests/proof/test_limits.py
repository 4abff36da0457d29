"""What hangs is reported, and where."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.proof import explore as exploring
from tests.proof.explore import Case, explore
from tests.proof.limits import HungError, limit
from tests.proof.suite import _run
from tests.proof.table import Report
from tests.proof.workloads import WORKLOADS, Workload
from tests.proof.world import run_world

if TYPE_CHECKING:
    from tests.proof.world import Program, World


async def spinning(_: World) -> None:
    """Never end, without a moment of simulated time."""
    while True:
        await asyncio.sleep(0)


def waiting() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def test_what_waits_for_ever_is_interrupted_and_what_was_limited_before_stays_so() -> None:
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    with limit(30.0), pytest.raises(HungError, match=r"0\.05"), limit(0.05):
        waiting()
    with limit(60.0):
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (before > 0)


def test_what_is_kept_from_the_processor_has_longer() -> None:
    with limit(60.0):
        signal.raise_signal(signal.SIGALRM)  # as after a minute in which others had the processor
    with pytest.raises(HungError), limit(0.2):
        while True:
            pass


def test_a_program_that_hangs_is_a_violation_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "_LONGEST", 0.2)
    result = explore(Case("spinning", 1), Workload("spinning", "", spinning))
    assert [violation.what for violation in result.violations] == ["hung: no end within 0.2 seconds"]
    assert result.violations[0].where == "life 0"


def test_an_opening_that_hangs_is_a_violation_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_world

    def lived(world: World, program: Program) -> None:
        run(world, program)
        monkeypatch.setattr(exploring, "_LONGEST", 0.1)

    monkeypatch.setattr(exploring, "run_world", lived)
    monkeypatch.setattr("tests.proof.oracle.Recoverer.open", lambda *_, **__: time.sleep(60))
    result = explore(Case("single puts", 1), WORKLOADS["single puts"])
    assert "operation" in result.violations[0].where


def test_tests_that_do_not_end_are_a_problem() -> None:
    report = Report()
    _run(report, ["tests/proof/test_limits.py"], 1, limit=0.01)
    assert "no end within 0.01 seconds" in report.problems[0]
