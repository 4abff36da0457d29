"""Power cuts of real file systems: what `python -m tests.proof.devices` does, and a sample of it."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.processes import ROOT, environment
from tests.proof.devices.cuts import workloads
from tests.proof.devices.disk import FILE_SYSTEMS, want_of

if TYPE_CHECKING:
    from collections.abc import Callable

USUAL = ("ext4", "xfs", "btrfs")
"""The others are left to the exhaustive runs."""

UNTRIED = 3


def cut(file_system: str, seed: int, *arguments: str) -> tuple[int, str, int]:
    """Cut the power of a real disk; return the exit code, all that was said, and how often it was cut."""
    if want := want_of(file_system):
        pytest.skip(f"needs a disk with {file_system}: {want}")
    command = [sys.executable, "-m", "tests.proof.devices", "--file-systems", file_system, "--seed", str(seed)]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=3600, check=False
    )
    if done.returncode == UNTRIED:
        pytest.skip(f"needs a disk with {file_system}, which this root may not mount: {done.stdout}")
    said = done.stdout + done.stderr
    *_, last = done.stdout.splitlines() or [said]
    assert "power cuts, " in last, said
    return done.returncode, said, int(last.partition(" ")[0])


@pytest.mark.parametrize("file_system", USUAL)
def test_no_power_cut_of_a_real_file_system_breaks_a_promise(
    file_system: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    some = Random(f"{seed}:{file_system}").sample(workloads(), 2)
    code, said, cuts = cut(file_system, seed, "--moments", "5", "--states", "2", *some)
    assert code == 0, said
    record_property("trials", cuts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_no_power_cut_of_a_real_file_system_breaks_a_promise_of_any_workload(
    file_system: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    code, said, cuts = cut(file_system, seed, "--moments", "10", "--states", "2")
    assert code == 0, said
    record_property("trials", cuts)


def test_a_safeguard_taken_away_is_noticed_on_a_real_disk() -> None:
    mutant = "puts are acknowledged before the sync"
    # One moment in twelve shows it, and when the kernel writes, which no seed decides, moves the moments.
    code, said, _ = cut("ext4", 1, "--mutant", mutant, "--moments", "250", "--states", "2", "many producers")
    assert code == 1, said
    assert "lost: " in said
