"""A failing test is told of as itself: what it leaves behind fails no other."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.processes import ROOT, WATCHDOG, environment

if TYPE_CHECKING:
    from pathlib import Path

LEAVES = """
import gc
import socket


def test_fails() -> None:
    left = [socket.socket()]
    left.append(left)
    raise AssertionError("on purpose")


def test_is_innocent() -> None:
    gc.collect()
"""


def test_what_a_failed_test_leaves_open_fails_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'base'}"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert "1 failed, 1 passed in" in done.stdout, done.stdout + done.stderr
