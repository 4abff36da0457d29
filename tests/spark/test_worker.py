"""What a worker of Spark's is spared, and a process of the user's own is not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aiodq.spark.options import write_options
from aiodq.spark.reading import _keep_memory
from aiodq.spark.writing.staged_rows import stage
from tests.spark.clusters import environment
from tests.spark.support import fill, read

if TYPE_CHECKING:
    from pathlib import Path

_CHILD = """
import gc, sys
from pathlib import Path
from tests.spark import test_worker
before = gc.get_freeze_count()
for _ in range(2):
    getattr(test_worker, sys.argv[1])(Path(sys.argv[2]))
    print(gc.get_freeze_count() - before)
"""


def reading(path: Path) -> None:
    """Do what a task that reads does."""
    assert read(path)


def writing(path: Path) -> None:
    """Do what a task that writes does."""
    stage(write_options({"path": str(path), "topic": "orders"}, stream=False), "key", iter(()))


@pytest.mark.parametrize(("what", "reused"), [("reading", True), ("writing", True), ("reading", False)])
def test_what_a_reused_worker_has_loaded_is_not_looked_through_behind_each_task(
    tmp_path: Path, what: str, reused: bool
) -> None:
    asyncio.run(fill(tmp_path / "s"))
    env = {name: value for name, value in environment().items() if name != "SPARK_REUSE_WORKER"}
    env |= {"SPARK_REUSE_WORKER": "1"} if reused else {}
    command = [sys.executable, "-c", _CHILD, what, str(tmp_path / "s")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first == second, "once: what is garbage by then would never be collected"
    assert (first > 10_000) == reused


async def test_a_worker_clears_no_memory_for_each_task(tmp_path: Path) -> None:
    """What the first one has done for the process holds for all: again, it would take as long as reading megabytes."""
    await fill(tmp_path / "s")
    _keep_memory.cache_clear()
    for _ in range(3):
        reading(tmp_path / "s")
    assert _keep_memory.cache_info()[:2] == (2, 1)
