"""A master and two workers of pip's pyspark on this machine; tasks run in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from aiodq.spark.java import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
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


def started(name: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    program = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    command = [program, f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environment(), stdout=output, stderr=output, start_new_session=True)


def stopped(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Return the address of a master with two workers."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        at = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        log = tmp_path / "master.log"
        running.callback(stopped, started("master.Master", *at, log=log))
        for number in range(2):
            place = tmp_path / f"worker{number}"
            own = ("--host", "127.0.0.1", "--webui-port", str(free_port()), "-c", "1", "-m", "1g", "-d", str(place))
            running.callback(stopped, started("worker.Worker", *own, url, log=tmp_path / f"worker{number}.log"))
        end = time.monotonic() + PATIENCE
        while alive(page) < 2:
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


@pytest.mark.timeout(400)
def test_a_cluster_writes_reads_and_audits(master: str, tmp_path: Path) -> None:
    check_job("master", master, tmp_path)


@pytest.mark.timeout(400)
def test_spark_connect_writes_reads_and_audits(tmp_path: Path) -> None:
    check_job("remote", "local[2]", tmp_path)


def check_job(where: str, url: str, path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.job", where, url, str(path / "store")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"bodies": [str(number) for number in range(500)], "findings": 0, "records": 500}
