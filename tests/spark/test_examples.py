"""The examples on Spark, as programs, in the session of these tests: one of their own costs half a minute each."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pyspark.sql import SparkSession

from aiodq.spark import pipelines
from aiodq.spark.pipelines.session import use_here
from tests.examples.support import EXAMPLES, load

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., list[str]]

# What pyspark and py4j leave to the garbage collector is theirs.
pytestmark = [
    pytest.mark.timeout(1000),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

LIBRARY = Path(json.__file__).parent


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs an example as a program and returns the lines that it prints."""
    assert spark is not None
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    start = pipelines.start_session

    def started(*how: Any) -> SparkSession:
        """Give the session that is there as one that this thread has started: it may write with it."""
        session = start(*how)
        use_here(session)
        return session

    monkeypatch.setattr(pipelines, "start_session", started)

    def runs(name: str, *arguments: str | Path) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return runs


def test_alerts_come_back_to_the_process_that_put_the_lines(run: Run, tmp_path: Path) -> None:
    alerts = run("spark_alerts.py", tmp_path)
    assert len(alerts) == 5
    for alert in alerts:
        module, raises, count, times = alert.split()
        assert (raises, times) == ("raises", "times")
        assert int(count) > 20
        text = (Path(os.__file__).parent / f"{module}.py").read_bytes().splitlines()
        assert int(count) % sum(b"raise " in line for line in text) == 0


async def test_events_are_counted_by_day_beside_the_service(run: Run, tmp_path: Path) -> None:
    app = load("spark_daily").create_app(str(tmp_path / "store"))
    lines = [line for path in sorted(LIBRARY.glob("*.py")) for line in path.read_text().splitlines() if line][:60]
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        arguments = ("spark_daily.py", "report", "--store", tmp_path / "store", "--target", tmp_path / "daily")
        for number, line in enumerate(lines):
            answer = await client.post("/events", json={"kind": "even" if number % 2 else "odd", "line": line})
            assert (answer.status_code, answer.json()) == (202, {"offset": number})
        first = await asyncio.to_thread(run, *arguments)
        assert first[0] == "archived 60 events"
        assert sum(int(line.rpartition(" ")[2]) for line in first[1:]) == 60
        assert (await client.post("/events", json={"kind": "even"})).status_code == 202
        second = await asyncio.to_thread(run, *arguments)
    assert second[0] == "archived 1 events"
    assert sum(int(line.rpartition(" ")[2]) for line in second[1:] if "even" in line) == 31
