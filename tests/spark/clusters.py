"""Clusters of pip's pyspark on this machine; tasks run in processes of their own."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from aiodq.spark.java import prepare
from tests.processes import ROOT, kill_group, reserved_port
from tests.spark.nursery import nursery

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
BRISK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""How a Java that lives for seconds starts sooner: with no compiler that takes its time, which would not pay, and with
no look through Spark's classes, whether it may trust them: a quarter of its start."""
PATIENCE = 300.0
"""Seconds in which a cluster has to be there."""


def make_home(path: Path) -> Path:
    """Make a directory that is Spark's home, of pip's pyspark; return it.

    Without the archive of sources that pip's has for Python workers. They would import pyspark from it, and each would
    compile it anew: most of the life of a short one. As it is, they import what pip has installed, and compiled.
    """
    path.mkdir()
    for name in ("bin", "jars"):
        (path / name).symlink_to(os.path.join(os.path.dirname(pyspark.__file__), name))
    return path


@cache
def _home() -> str:
    place = tempfile.mkdtemp(prefix="aiodq-spark-")
    atexit.register(shutil.rmtree, place)
    return str(make_home(Path(place) / "home"))


def environment() -> dict[str, str]:
    """Return what Spark's own programs need to find Java, Python and this checkout."""
    found = dict(os.environ)
    prepare("local", found)
    return {"SPARK_HOME": _home(), **found, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


def started(name: str, *arguments: str, log: Path, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    program = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    command = [*within, program, f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environment(), stdout=output, stderr=output, start_new_session=True)


@dataclass(frozen=True)
class Cluster:
    """A master's address, and the processes of its workers."""

    url: str
    workers: tuple[int, ...]


@contextmanager
def cluster(path: Path, *workers: Sequence[str], apart: bool = False) -> Iterator[Cluster]:
    """Give a master with so many workers, each started by the command that is given for it.

    With `apart` each has an address of its own, so that Spark takes them for those of several hosts.
    """
    pids: list[int] = []
    with ExitStack() as running:
        port, page = (running.enter_context(reserved_port()) for _ in range(2))
        url = f"spark://127.0.0.1:{port}"
        at = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        log = path / "master.log"
        running.callback(kill_group, started("master.Master", *at, log=log))
        for number, within in enumerate(workers):
            place = path / f"worker{number}"
            own_page = str(running.enter_context(reserved_port()))
            host = f"127.0.0.{number + 1 if apart else 1}"
            own = ("--host", host, "--webui-port", own_page, "-c", "1", "-m", "1g", "-d", str(place))
            log = path / f"worker{number}.log"
            worker = started("worker.Worker", *own, url, log=log, within=within)
            running.callback(kill_group, worker)
            pids.append(worker.pid)
        end = time.monotonic() + PATIENCE
        while alive(page) < len(workers):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield Cluster(url, tuple(pids))


@contextmanager
def connect_server(path: Path, within: Sequence[str] = ()) -> Iterator[str]:
    """Give the URL of a Spark Connect server whose tasks run on one executor, started by the command that is given.

    The port is a free one, so that another run on this machine, or anything else at Connect's own, does not matter.
    """
    java, log = path / "java" / "bin" / "java", path / "server.log"
    # Spark's files of executors go below its home, which others may be using.
    home = make_home(path / "home")
    given = {**environment(), "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(path / "python")}
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\nexec {shlex.join([*within, os.path.join(given["JAVA_HOME"], "bin", "java")])} "$@"\n')
    java.chmod(0o700)
    with ExitStack() as running:
        port, forked = running.enter_context(reserved_port()), running.enter_context(nursery())
        # What is forked for an executor would not see what that one sees.
        python = path / "python"
        python.write_text(f'#!/bin/sh\nexec "${{AIODQ_EXECUTOR_PYTHON:-{forked}}}" "$@"\n')
        python.chmod(0o700)
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
            "spark.executor.extraJavaOptions": BRISK,
            "spark.executorEnv.AIODQ_EXECUTOR_PYTHON": sys.executable,
            "spark.executorEnv.JAVA_HOME": java.parents[1],
            "spark.log.level": "WARN",
            "spark.task.maxFailures": 1,
            "spark.ui.enabled": "false",
        }
        words = [f"--conf={key}={value}" for key, value in settings.items()]
        words += ["--master=local-cluster[1,2,1024]", f"--class={CONNECT}", "spark-internal"]
        program = os.path.join(home, "bin", "spark-class")
        with log.open("wb") as output:
            server = subprocess.Popen(
                [program, "org.apache.spark.deploy.SparkSubmit", *words],
                cwd=path, env=given, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        running.callback(kill_group, server)
        end = time.monotonic() + PATIENCE
        while not answers(port):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"


def answers(port: int) -> bool:
    """Return whether a server listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def alive(page: int) -> int:
    """Return how many workers the master knows."""
    address = f"http://127.0.0.1:{page}/json/"
    # A master that has only begun answers every address with its front page.
    with suppress(OSError, json.JSONDecodeError), urllib.request.urlopen(address, timeout=5) as answer:
        return int(json.load(answer)["aliveworkers"])
    return 0
