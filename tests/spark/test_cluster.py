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
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from aiodq.spark.java import prepare
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_holds
from tests.processes import ROOT, kill_group
from tests.spark.support import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SEEN = {"bodies": [str(number) for number in range(500)], "findings": 0, "records": 500}
PATIENCE = 120.0
"""Seconds in which a cluster has to be there."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment() -> dict[str, str]:
    """Return what Spark's own programs need to find Java, Python and this checkout."""
    found = dict(os.environ)
    prepare("local", found)
    home = os.path.dirname(pyspark.__file__)
    return {**found, "SPARK_HOME": home, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


def started(name: str, *arguments: str, log: Path, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    program = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    command = [*within, program, f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environment(), stdout=output, stderr=output, start_new_session=True)


@contextmanager
def cluster(path: Path, *workers: Sequence[str]) -> Iterator[str]:
    """Give the address of a master with so many workers, each started by the command that is given for it."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        at = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        log = path / "master.log"
        running.callback(kill_group, started("master.Master", *at, log=log))
        for number, within in enumerate(workers):
            place = path / f"worker{number}"
            own = ("--host", "127.0.0.1", "--webui-port", str(free_port()), "-c", "1", "-m", "1g", "-d", str(place))
            log = path / f"worker{number}.log"
            running.callback(kill_group, started("worker.Worker", *own, url, log=log, within=within))
        end = time.monotonic() + PATIENCE
        while alive(page) < len(workers):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield url


def alive(page: int) -> int:
    """Return how many workers the master knows."""
    address = f"http://127.0.0.1:{page}/json/"
    # A master that has only begun answers every address with its front page.
    with suppress(OSError, json.JSONDecodeError), urllib.request.urlopen(address, timeout=5) as answer:
        return int(json.load(answer)["aliveworkers"])
    return 0


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
    with cluster(path, within, within) as url:
        return Outcome(run_job("master", url, path / "store", *([] if why_not else [hidden])), hidden, why_not)


@pytest.mark.timeout(400)
def test_a_cluster_writes_reads_and_audits(outcome: Outcome) -> None:
    assert outcome.found["seen"] == SEEN


@pytest.mark.timeout(400)
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


@pytest.mark.timeout(400)
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
    assert "latest" in (tmp_path / "store.html").read_text()


def run_job(where: str, url: str, *stores: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.job", where, url, *map(str, stores)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
