"""Every Python block of the page on clusters runs, in the session of these tests."""

from __future__ import annotations

import asyncio
import re
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from aiodq.spark import pipelines
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_holds
from tests.processes import ROOT
from tests.spark.support import fill

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "aiodq" / "spark" / "CLUSTERS.md"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


class Builder:
    """Gives the session that is there, whatever is asked for."""

    def __init__(self, session: SparkSession) -> None:
        self.asked: list[str] = []
        self._session = session

    def remote(self, url: str) -> Builder:
        self.asked.append(url)
        return self

    def getOrCreate(self) -> SparkSession:  # noqa: N802 - Spark's
        return self._session


def test_every_block_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(fill(tmp_path / "shop"))
    monkeypatch.chdir(tmp_path)
    builder = Builder(spark)
    monkeypatch.setattr(SparkSession, "builder", builder)
    started: list[str] = []

    def start(master: str, _: dict[str, str]) -> SparkSession:
        started.append(master)
        return spark

    monkeypatch.setattr(pipelines, "start_session", start)
    text, names = PAGE.read_text(encoding="utf-8"), dict[str, Any]()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
    for block in blocks:
        lines = text.count("\n", 0, block.start(1))
        source = block[1]
        for name in ("shop", "state", "lake"):  # Spark works in the directory in which its Java was started
            source = source.replace(f'"{name}"', repr(str(tmp_path / name)))
        FunctionType(compile("\n" * lines + source, PAGE, "exec"), names)()
    assert len(blocks) == text.count("```python") == 6
    assert (started, builder.asked) == (["spark://master:7077"], ["sc://server:15002"])
    assert (tmp_path / "report.html").exists()
    assert list((tmp_path / "lake").rglob("*.parquet"))
    assert read_holds(OsFileSystem(), str(tmp_path / "shop"))["daily"].offsets
