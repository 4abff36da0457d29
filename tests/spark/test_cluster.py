"""A master and two workers of pip's pyspark on this machine; tasks run in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_holds
from tests.processes import ROOT
from tests.spark.clusters import cluster, environment
from tests.spark.support import fill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEEN = {"bodies": [str(number) for number in range(500)], "findings": 0, "records": 500}


@dataclass(frozen=True)
class Outcome:
    """What one job on a cluster printed, and the store that its workers did not see; `why_not` where they did."""

    found: dict[str, Any]
    hidden: Path
    why_not: str


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run one job on one cluster: with a store that all see, and with one that only the driver sees."""
    path = tmp_path_factory.mktemp("cluster")
    hidden = path / "hidden"
    for number in range(6):
        asyncio.run(fill(hidden, f"topic{number}", rounds=5))
    within, why_not = hiding(hidden)
    with cluster(path, within, within) as running:
        return Outcome(run_job("master", running.url, path / "store", *([] if why_not else [hidden])), hidden, why_not)


@pytest.mark.timeout(1000)
def test_a_cluster_writes_reads_and_audits(outcome: Outcome) -> None:
    assert outcome.found["seen"] == SEEN


@pytest.mark.timeout(1000)
def test_a_worker_that_does_not_see_the_store_fails_the_query_whatever_the_options(outcome: Outcome) -> None:
    """Its directory is there, and empty, as where a file system is not mounted: that is no loss of messages."""
    if outcome.why_not:
        pytest.skip(outcome.why_not)
    blind = outcome.found["blind"]
    for error in (blind["count"], blind["audit"], blind["archive"]):
        assert f"the task on {socket.gethostname()} does not see the topic" in error
        assert str(outcome.hidden / "topic") in error
    (hold,) = read_holds(OsFileSystem(), str(outcome.hidden)).values()
    assert set(hold.offsets.values()) == {0}, "what was not archived is kept"


def hiding(store: Path) -> tuple[Sequence[str], str]:
    """Return a command that starts another where an empty file system lies over the store; or why there is none."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None:
        return (), "needs a worker with mounts of its own: root on Linux, and util-linux's unshare"
    covered = 'mount -t tmpfs none "$0" && exec "$@"'
    command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", covered, str(store))
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        assert re.search("not permitted|permission denied", tried.stderr, re.IGNORECASE), tried.stderr
        return (), f"needs a worker with mounts of its own, which this root may not have: {tried.stderr.strip()}"
    return command, ""


@pytest.mark.timeout(1000)
def test_spark_connect_writes_reads_and_runs_every_pipeline(tmp_path: Path) -> None:
    found = run_job("remote", "local[2]", tmp_path / "store")
    assert found["seen"] == SEEN
    assert found["pipelines"] == {
        "archive": [500, 1],
        "replay": [500, 0, True],
        "query": [500, "99"],
        "compact": [500, 500],
        "report": [2, 1000],
    }
    assert "InvalidOptionError: the path 'shop' is relative, which over Spark Connect means" in found["relative"]
    assert "latest" in (tmp_path / "store.html").read_text()


def run_job(where: str, url: str, *stores: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.job", where, url, *map(str, stores)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
