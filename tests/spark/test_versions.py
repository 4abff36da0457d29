"""A pyspark that is too old is refused with what would do, also where Spark itself looks for the format."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.spark.extra import check_extra
from aiodq.spark.versions import refuse_old
from tests.processes import environment

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
class DataSource:
    def refuse(self, *given): raise NotImplementedError
    schema = reader = streamReader = writer = streamWriter = refuse
"""
# All that aiodq may ask of such a version: where its base class is, and its number.
OLD = {"__init__.py": '__version__ = "4.1.1"', "sql/__init__.py": "", "sql/datasource.py": SOURCE}
REFUSED = "aiodq works with pyspark 4.2 and later, and this is 4.1.1: pip install -U 'aiodq[spark]'"


@pytest.mark.parametrize("version", ["3.5.0", "4.0.1", "4.1.1", "4.1.0.dev2"])
def test_too_old(version: str) -> None:
    with pytest.raises(aiodq.MissingExtraError, match=rf"pyspark 4\.2 and later, and this is {version}"):
        refuse_old(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.1", "5.0.0.dev1", "of my own"])
def test_new_enough(version: str) -> None:
    refuse_old(version)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    for name, content in OLD.items():
        (tmp_path / "pyspark" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pyspark" / name).write_text(content)
    return tmp_path


def told(old: Path, *command: str, code: int = 0) -> str:
    found = environment()
    found["PYTHONPATH"] = f"{old}:{found['PYTHONPATH']}"
    done = subprocess.run([sys.executable, *command], env=found, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


IMPORTS = """
for module in ("aiodq.spark.pipelines", "aiodq.spark.source", "aiodq.spark.java"):
    try:
        __import__(module)
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_an_import_says_so(old: Path) -> None:
    assert [line.startswith(f"MissingExtraError {REFUSED}") for line in told(old, "-c", IMPORTS).splitlines()] == [
        True
    ] * 3


def test_a_command_says_so_in_a_line(old: Path) -> None:
    text = told(old, "-m", "aiodq.cli", "spark", "audit", str(old), code=2)
    assert REFUSED in text
    assert "Traceback" not in text


USES = """
from pyspark_aiodq import DefaultSource
source = DefaultSource()
for use, given in (
    (source.schema, ()),
    (source.reader, (None,)),
    (source.streamReader, (None,)),
    (source.writer, (None, False)),
    (source.streamWriter, (None, False)),
):
    try:
        use(*given)
    except ImportError as error:
        print(source.name(), error)
"""


def test_the_format_that_spark_finds_says_so_when_it_is_used(old: Path) -> None:
    assert [line.startswith(f"aiodq {REFUSED}") for line in told(old, "-c", USES).splitlines()] == [True] * 5


@pytest.mark.parametrize("name", ["pyspark", "py4j", "pandas", "pyarrow", "numpy"])
def test_what_is_not_installed_is_told_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_extra()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(aiodq.MissingExtraError, match=rf"this needs {name}: pip install 'aiodq\[spark\]'") as caught:
        check_extra()
    assert caught.value.name == name


def test_the_pipelines_say_so_too(tmp_path: Path) -> None:
    without = "import sys; sys.modules['pyspark'] = None\n"
    imports = IMPORTS.partition("for module in ")[2].replace(', "aiodq.spark.source", "aiodq.spark.java"', ",")
    said = told(tmp_path, "-c", f"{without}for module in {imports}")
    assert said == "MissingExtraError this needs pyspark: pip install 'aiodq[spark]'\n"
