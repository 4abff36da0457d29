"""A Spark Connect server whose tasks run on an executor: a client, the driver and the tasks share nothing but files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
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
from tests.spark.clusters import connect_server, environment
from tests.spark.support import fill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(1000)


@dataclass(frozen=True)
class Outcome:
    """What one job printed, where it worked, and the store that its tasks did not see; `why_not` where they did."""

    found: dict[str, Any]
    store: Path
    hidden: Path
    why_not: str


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run one job on one server: with a store that all see, and with one that only the driver and the client see."""
    path = tmp_path_factory.mktemp("connect")
    store, hidden = path / "store", path / "hidden"
    for number in range(6):
        asyncio.run(fill(hidden, f"topic{number}", rounds=5))
    within, why_not = hiding(hidden)
    with connect_server(path, within) as url:
        return Outcome(run_job(url, store, *([] if why_not else [hidden])), store, hidden, why_not)


def test_spark_connect_writes_reads_and_audits_on_a_cluster(outcome: Outcome) -> None:
    assert outcome.found["seen"] == {"bodies": [str(number) for number in range(500)], "findings": 0, "records": 500}
    assert (
        "InvalidOptionError: the path 'shop' is relative, which over Spark Connect means" in outcome.found["relative"]
    )


def test_spark_connect_runs_every_pipeline(outcome: Outcome) -> None:
    assert outcome.found["pipelines"] == {
        "archive": [500, 1],
        "replay": [500, 0, True],
        "query": [500, "99"],
        "compact": [500, 500],
        "report": [2, 1000],
    }
    assert "latest" in (outcome.store.parent / f"{outcome.store.name}.html").read_text()


def test_of_two_clients_of_a_server_each_has_its_own_views_and_a_write_of_both_counts_once(outcome: Outcome) -> None:
    assert outcome.found["two"] == [1000, 3]


def test_each_result_is_of_its_own_store_whenever_it_is_used(outcome: Outcome) -> None:
    assert outcome.found["results"] == [1000, "2", "{both}", ["both", "messages"], False, True]


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
    covered = f'mount -t tmpfs none {shlex.quote(str(store))} && exec "$0" "$@"'
    command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", covered)
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        # Invalid is the argument where the root directory is no mount point, as in a chroot.
        assert re.search("not permitted|permission denied|invalid argument", tried.stderr, re.IGNORECASE), tried.stderr
        return (), f"needs a worker with mounts of its own, which this root may not have: {tried.stderr.strip()}"
    return command, ""


def run_job(url: str, *stores: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.job", url, *map(str, stores)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
