"""Tasks that Spark starts a second time while the first attempt still runs, on a cluster: only there it does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.bulk.commits import STAGING
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from tests.processes import ROOT
from tests.spark.clusters import cluster, environment
from tests.spark.speculative import ROWS, TASKS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.mark.skipif(sys.platform != "linux", reason="needs two addresses of this machine, as of two hosts")
def test_of_two_attempts_of_a_task_one_counts_and_nothing_is_left(tmp_path: Path) -> None:
    with cluster(tmp_path, (), (), apart=True) as running:
        command = [sys.executable, "-m", "tests.spark.speculative", running.url, str(tmp_path)]
        subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, timeout=600, check=True)
    for name in ("single", "stream"):
        assert len(list((tmp_path / f"{name}.attempts").iterdir())) > TASKS, "it has speculated"
        bodies = [message.body for message in aiodq.open_reader(tmp_path / name).topic("orders").scan()]
        assert sorted(map(int, bodies)) == list(range(ROWS)), name
        assert not [found for found in (tmp_path / name / STAGING).rglob("*") if found.is_file()], name
        assert verify_store(str(tmp_path / name), OsFileSystem()).ok, name
