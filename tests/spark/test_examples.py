"""The examples on Spark: each in a process of its own, and once more in the session of these tests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.examples.support import EXAMPLES, load
from tests.processes import environment

# What pyspark and py4j leave to the garbage collector is theirs.
pytestmark = [
    pytest.mark.timeout(1000),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

LIBRARY = Path(json.__file__).parent


def run(name: str, *arguments: str | Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env={**environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_alerts_come_back_to_the_process_that_put_the_lines(tmp_path: Path) -> None:
    alerts = run("spark_alerts.py", tmp_path)
    assert len(alerts) == 5
    for alert in alerts:
        module, raises, count, times = alert.split()
        assert (raises, times) == ("raises", "times")
        assert int(count) > 20
        text = (Path(os.__file__).parent / f"{module}.py").read_bytes().splitlines()
        assert int(count) % sum(b"raise " in line for line in text) == 0


async def test_events_are_counted_by_day_beside_the_service(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    example = load("spark_daily")
    app = example.create_app(str(tmp_path / "store"))
    lines = [line for path in sorted(LIBRARY.glob("*.py")) for line in path.read_text().splitlines() if line][:60]
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        arguments = ("report", "--store", tmp_path / "store", "--target", tmp_path / "daily")
        for number, line in enumerate(lines):
            answer = await client.post("/events", json={"kind": "even" if number % 2 else "odd", "line": line})
            assert (answer.status_code, answer.json()) == (202, {"offset": number})
        first = run("spark_daily.py", *arguments)
        assert first[0] == "archived 60 events"
        assert sum(int(line.rpartition(" ")[2]) for line in first[1:]) == 60
        assert (await client.post("/events", json={"kind": "even"})).status_code == 202
        # In the session of these tests: another process would only start another one.
        monkeypatch.setattr(sys, "argv", ["spark_daily.py", *map(str, arguments)])
        capsys.readouterr()
        await asyncio.to_thread(example.main)
        second = capsys.readouterr().out.splitlines()
    assert second[0] == "archived 1 events"
    assert sum(int(line.rpartition(" ")[2]) for line in second[1:] if "even" in line) == 31
