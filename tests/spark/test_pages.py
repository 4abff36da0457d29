"""Every Python block of the page on clusters runs, in the session of these tests."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import zipfile
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from aiodq.spark import pipelines
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_holds
from tests.processes import ROOT
from tests.spark.clusters import environment
from tests.spark.support import fill

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "aiodq" / "spark" / "CLUSTERS.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)

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
    blocks = list(BLOCK.finditer(text))
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_and_its_workers_find_aiodq_in_the_file_that_is_sent_with_it(tmp_path: Path) -> None:
    """The package is zipped as the page says, but from here; nothing else leads to it."""
    asyncio.run(fill(tmp_path / "shop"))
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## `--py-files`")
    assert "zip -qr ../aiodq.zip aiodq pyspark_aiodq" in section
    with zipfile.ZipFile(tmp_path / "aiodq.zip", "w") as file:
        for path in (path for top in ("aiodq", "pyspark_aiodq") for path in (ROOT / top).rglob("*.py")):
            file.write(path, path.relative_to(ROOT))
    block = BLOCK.search(section)
    assert block is not None
    (tmp_path / "job.py").write_text(f"{block[1]}\nimport aiodq\nprint(aiodq.__file__)\n")
    given = environment()
    del given["PYTHONPATH"]
    submit = os.path.join(given["SPARK_HOME"], "bin", "spark-submit")
    command = [submit, "--master", "local-cluster[1,1,1024]", "--py-files", "aiodq.zip", "job.py"]
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "aiodq.zip" / "aiodq" / "__init__.py")]
