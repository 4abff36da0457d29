"""What it costs to share a store is measured: not how much that is."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import shared
from benchmarks.shared import Figures, main

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a directory in memory where there is such a thing, with a path that leaves room for a socket's name."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a directory of our own in it
    with tempfile.TemporaryDirectory(dir=memory, prefix="aiodq-tests-") as path:
        yield Path(path)


def measured(scratch: Path, part: str) -> list[dict[str, Any]]:
    kept = scratch / "kept.json"
    assert main(["--quick", "--part", part, "--dir", str(scratch), "--json", str(kept)]) == 0
    rows: list[dict[str, Any]] = json.loads(kept.read_text())["rows"]
    assert all(row["figures"] and all(figure > 0 for figure in row["figures"]) for row in rows)
    assert [path.name for path in scratch.iterdir()] == ["kept.json"], "what was measured is gone"
    return rows


@pytest.mark.parametrize(("part", "rows"), [("one", 2), ("batches", 4), ("owners", 3)])
def test_what_is_asked_for_is_measured(scratch: Path, part: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PROCESSES", 3)  # as few as there can be where one who goes is followed by another
    assert len(measured(scratch, part)) == rows


@pytest.mark.timeout(300)  # several processes for each of the subjects
def test_a_store_that_many_share_is_measured_beside_each_peer(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PROCESSES", 2)
    rows = measured(scratch, "many")
    peers = [row["name"] for row in rows if row["name"].startswith(("huey", "litequeue", "Redis"))]
    # The server is no package of pip's; the benchmark installs it, a test does not.
    assert len(peers) == 3 + (shutil.which("redis-server") is not None)
    assert {row["beside"] for row in rows if row["beside"]} == {*peers, "local, 1 x 100"}
    assert all((row["ratio"] is not None) == bool(row["beside"]) for row in rows)
    assert "not installed" not in capsys.readouterr().out


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    one = Figures("part", "one", "kept", figures=[100.0, 10.0, 300.0])
    other = Figures("part", "other", "kept", beside="one", figures=[200.0, 10.0, 100.0])
    elsewhere = Figures("another part", "one", "kept", figures=[1.0, 1.0, 1.0])
    assert other.ratio([elsewhere, one, other]) == 1.0
    assert one.ratio([one, other]) is None
