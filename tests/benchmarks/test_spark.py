"""The benchmarks of Spark come to their end: each in a process of its own, with little to do."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def printed(module: str, scratch: Path, *words: str) -> str:
    """Return what a benchmark prints."""
    command = [sys.executable, "-m", module, "--rounds", "1", "--dir", str(scratch), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout


def test_everything_is_read_beside_parquet(tmp_path: Path) -> None:
    masters = ["--master", "none", "--master", "local[2]"]
    asked = ["--megabytes", "0.2", "--size", "100", *masters, "--markdown", "--no-scale"]
    table = printed("benchmarks.spark", tmp_path, *asked)
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
    every = [row for row in rows if row.endswith("every column asked for")]
    assert len(every) == 3
    assert rows.count("| parquet, snappy") == 2


def test_all_that_grows_is_measured_beside_parquet(tmp_path: Path) -> None:
    asked = ["--topics", "20", "--segments", "5", "--messages", "6000", "--megabytes", "1", "--master", "local[2]"]
    tables = printed("benchmarks.spark_scale", tmp_path, *asked)
    assert "20 topics x 1,000 messages" in tables
    for row, tables_with_it in (("count, Parquet", 4), ("report", 2), ("audit", 3), ("parquet", 1), ("trigger", 1)):
        assert sum(line.startswith(f"| {row} |") for line in tables.splitlines()) == tables_with_it, row
