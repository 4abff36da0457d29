"""`python -m tests.proof` itself: what it counts, what it prints, and when it fails."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.proof.__main__ import conclude, main
from tests.proof.cuts import Cut, Noticed, count_cut, count_noticed, notice, wanting
from tests.proof.explore import Case
from tests.proof.guarantees import GUARANTEES, guarantee_of
from tests.proof.mutants import MUTANTS, Mutant
from tests.proof.suite import run_sample, run_tests
from tests.proof.table import TEETH, Report
from tests.proof.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

EVERY = {guarantee.name for guarantee in GUARANTEES}


def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.fixture
def failing() -> Iterator[str]:
    """Return a test that fails, one that is skipped beside it, in a file that goes away again."""
    path = ROOT / "tests" / "proof" / "test_made_up_for_a_test.py"
    path.write_text(
        "import unittest\n"
        "def test_wrong(seed):\n    assert seed != 7, 'as it should'\n"
        "def test_elsewhere():\n    raise unittest.SkipTest('to be counted')\n"
        "def test_often(record_property):\n    record_property('trials', 40)\n"
    )
    try:
        yield "tests/proof/test_made_up_for_a_test.py"
    finally:
        path.unlink()


def test_every_test_that_stands_for_a_guarantee_exists_and_stands_for_one() -> None:
    named = [test for guarantee in GUARANTEES for test in guarantee.tests]
    assert len(set(named)) == len(named)
    for test in named:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        assert not function or function in functions_in(file), test
        owner = guarantee_of(f"{test}[posix]" if function else f"{test}::test_anything")
        assert owner is not None
        assert test in owner.tests
    assert guarantee_of("tests/queue/test_put.py::test_anything") is None


def test_a_case_counts_for_what_it_tries() -> None:
    report = Report()
    violations = [("G4", "resurrected: m"), ("G7", "unstable: n"), ("G1", "lost: o")]
    count_cut(report, Cut(Case("puts and acks", 1), 300, 7, 4.0, violations))
    count_cut(report, Cut(Case("many producers", 1), 100, 0, 1.0))
    counted = {name: (tally.trials, tally.violations) for name, tally in report.tallies.items()}
    assert counted == {"G1": (400, 1), "G2": (100, 0), "G4": (300, 1), "G5": (400, 0), "G7": (7, 1)}
    assert [problem.split(":")[0] for problem in report.problems] == ["G1", "G7", "G4"]


def test_it_goes_on_until_each_guarantee_has_its_states() -> None:
    report = Report()
    assert wanting(report, EVERY) == list(WORKLOADS)
    assert wanting(report, {"G3"}) == []
    for name in ("G1", "G5", "G7"):
        report.add(name, trials=20_000)
    assert wanting(report, EVERY) == [name for name in WORKLOADS if name not in _neither()]
    report.add("G2", trials=5_000)
    assert "puts and acks" in wanting(report, EVERY)
    assert "many producers" not in wanting(report, EVERY)
    report.add("G4", trials=20_000)
    assert "stored options" in wanting(report, EVERY)
    assert "puts and acks" not in wanting(report, EVERY)
    report.add("G32", trials=5_000)
    assert wanting(report, EVERY) == []


def _neither() -> set[str]:
    """Return the workloads in which nothing shares a sync and nothing is acked."""
    return {
        "the first message",
        "single puts",
        "put many",
        "synced now and then",
        "unsynced tails",
        "larger than a sector",
        "written through memory",
        "puts of clients through memory",
    }


def test_a_mutant_that_is_not_noticed_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MUTANTS, "harmless", Mutant("harmless", pytest.MonkeyPatch.context, ()))
    report = Report()
    count_noticed(report, notice("harmless", 1, 3))
    assert report.problems == ["teeth: not noticed: harmless"]
    count_noticed(report, notice("syncs do nothing", 1, 2))
    assert (report.tallies[TEETH].trials, report.tallies[TEETH].violations) == (2, 1)
    assert (report.tallies["G26"].trials, report.tallies["G26"].violations) == (2, 0)
    count_noticed(report, Noticed("forgetful", 0.0, "lost", "case", repeated=9, repeats=10))
    assert report.tallies["G26"].violations == 1


def test_a_mutant_that_does_not_fit_the_code_fails_the_run() -> None:
    report = Report()
    count_noticed(report, Noticed("old", 0.0, "the store has failed: TypeError: missing 1 argument", "case", 1, 1))
    assert (report.tallies[TEETH].trials, report.tallies[TEETH].violations) == (1, 1)
    count_noticed(report, Noticed("new", 0.0, "lost: ['m']", "case", 1, 1))
    assert (report.tallies[TEETH].trials, report.tallies[TEETH].violations) == (2, 1)


def test_tests_are_run_and_counted(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report()
    monkeypatch.setattr("tests.proof.suite.guarantee_of", lambda _: GUARANTEES[12])
    run_tests(report, tests=[failing], seed=7)
    tally = report.tallies["G13"]
    assert (tally.trials, tally.violations, tally.skipped) == (41, 1, 1)
    assert "as it should" in report.problems[0]
    assert report.reasons == {"to be counted"}
    again = Report()
    run_tests(again, tests=[failing], seed=8)
    assert not again.problems


def test_a_run_of_pytest_that_does_not_work_is_a_problem() -> None:
    report = Report()
    run_tests(report, tests=["tests/proof/there_is_none.py"], seed=7)
    assert len(report.problems) == 1


def test_a_sample_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # One guarantee's tests, as pytest takes its time to find those of all.
    monkeypatch.setattr("tests.proof.suite.GUARANTEES", [each for each in GUARANTEES if each.name == "G6"])
    report = Report()
    run_sample(report, seconds=0.0, seed=3)
    assert sum(tally.trials + tally.skipped for tally in report.tallies.values()) == 1
    assert not report.problems


def test_the_exit_code_tells(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    assert conclude(report, 5, 1.0, sample=True) == 0
    assert conclude(report, 5, 1.0, sample=False) == 1
    assert "not tried: G1, G2" in capsys.readouterr().out
    for guarantee in GUARANTEES:
        report.add(guarantee.name, trials=1_000)
    report.skip("G3", "there is no strace")
    assert conclude(report, 5, 1.0, sample=False) == 0
    printed = capsys.readouterr().out
    assert "skipped: there is no strace" in printed
    assert len({len(line) for line in printed.splitlines() if line.startswith("|")}) == 1
    report.add("G3", problems=["a message is gone"])
    assert conclude(report, 5, 1.0, sample=True) == 1
    assert "G3: a message is gone" in capsys.readouterr().out


def test_a_case_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    case = "single puts/1/posix/3/1/1/5/0"
    assert str(Case.parse(case)) == case
    assert main(["--case", case]) == 0
    assert "0 violations" in capsys.readouterr().out
    with MUTANTS["syncs do nothing"].patch():
        assert main(["--case", case]) == 1
    assert f"--case '{case}'" in capsys.readouterr().out
