from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from tests.cli.support import Running, aiodq, ok

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--seconds", "0.02", "--tasks", "4", "--size", "100")


def test_what_was_measured_in_json(tmp_path: Path) -> None:
    found = ok("bench", tmp_path, *QUICK, "--sync", "os", "--json").json
    assert (found["directory"], found["size"], found["sync"]) == (os.path.realpath(tmp_path), 100, "os")
    results = {result["name"]: result for result in found["results"]}
    assert list(results) == ["put, one at a time", "put, 4 at once", "put_many of 100", "get and ack, 4 at once"]
    for result in results.values():
        assert result["messages"] > 0
        assert result["bytes"] == 100 * result["messages"]
        assert 0 <= result["p50_ms"] <= result["p99_ms"]
        assert result["messages_per_second"] > 0
    assert results["put_many of 100"]["messages"] % 100 == 0
    put = sum(result["messages"] for name, result in results.items() if name.startswith("put"))
    assert results["get and ack, 4 at once"]["messages"] <= put


def test_a_put_alone_is_synced_alone(tmp_path: Path) -> None:
    found = ok("bench", tmp_path, *QUICK, "--json").json
    alone = found["results"][0]
    assert alone["messages"] <= alone["fsyncs"] + 1


def test_the_table_fits_and_nothing_is_left(tmp_path: Path) -> None:
    lines = ok("bench", tmp_path, *QUICK).out.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "…" in line] == []
    assert len(lines) == 7
    assert list(tmp_path.iterdir()) == []


def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    with Running("bench", tmp_path, "--seconds", "60") as bench:
        while not list(tmp_path.glob("*/queue/queue/*.seg")):
            assert bench.process.poll() is None
            time.sleep(0.01)
        assert bench.ended(signal.SIGINT).code == 130
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    done = aiodq("bench", tmp_path / "none")
    assert (done.code, done.out) == (2, b"")
    assert "there is no directory" in done.err
    assert aiodq("bench", tmp_path, "--size", "-1").code == 2
