"""The tests of the suite that stand for guarantees, run by pytest in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from tests.proof.guarantees import GUARANTEES, guarantee_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.proof.table import Report

__all__ = ["run_sample", "run_tests"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_NOTHING_COLLECTED: Final = 5
_LONGEST: Final = 7200.0
"""Seconds after which the tests of one guarantee count as hanging."""


def run_tests(report: Report, *, tests: Sequence[str], seed: int) -> None:
    """Run these, exhaustive forms among them."""
    _run(report, [*tests, "-m", ""], seed)


def run_sample(report: Report, *, seconds: float, seed: int) -> None:
    """Run for so many seconds what CI runs, each guarantee in turn."""
    tests = [test for guarantee in GUARANTEES for test in guarantee.tests]
    _run(report, [*tests, "-p", "tests.proof.sampling", f"--proof-seconds={seconds}"], seed)


def _run(report: Report, arguments: Sequence[str], seed: int, limit: float = _LONGEST) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "found.xml"
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={found}"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *arguments],
                cwd=_ROOT,
                env={**os.environ, "AIODQ_SEED": str(seed)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired as error:
            report.add(
                "G26", problems=[f"no end within {limit:g} seconds: pytest {' '.join(arguments)}\n{error.stdout!r}"]
            )
            return
        if not found.exists():
            report.add("G26", problems=[f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}"])
            return
        cases = list(ET.parse(found).iter("testcase"))  # noqa: S314 - pytest has just written it
    for case in cases:
        _count(report, case)
    unexplained = done.returncode not in {0, 1, 2, _NOTHING_COLLECTED}
    if unexplained or (done.returncode and not cases):
        report.add("G26", problems=[f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}"])


def _count(report: Report, case: ET.Element) -> None:
    test = f"{case.get('file')}::{case.get('name')}"
    if case.get("file") is None:
        report.add("G26", problems=[f"{test}: {_said(case)}"])
        return
    # The class of a method is in its `classname` only.
    guarantee = guarantee_of(test) or guarantee_of(f"{case.get('file')}::{case.get('classname')}")
    name = guarantee.name if guarantee else "G26"
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    skipped = case.find("skipped")
    if skipped is not None:
        if "xfail" not in (skipped.get("type") or ""):
            report.skip(name, skipped.get("message") or test)
        return
    wrong = [f"{test}: {_said(each)}" for kind in ("failure", "error") for each in case.iter(kind)]
    trials = int(properties.get("trials") or 1)
    report.add(name, trials=trials, seconds=float(case.get("time") or 0), problems=wrong)


def _said(element: ET.Element) -> str:
    return "".join(element.itertext())[-3000:] or element.get("message") or "no reason given"
