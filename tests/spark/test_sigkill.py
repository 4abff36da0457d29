"""Spark killed in the middle of its work, driver, tasks and all: what it copied is there once."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.bulk.commits import STAGING, read_commits
from aiodq.storage.io.filesystem import OsFileSystem
from tests.processes import killed_at_last
from tests.spark.support import KEEP

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    Record = Callable[[str, Any], None]

MESSAGES = 3000


def copying(path: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.spark.child", *(str(path / name) for name in ("in", "out", "checkpoint"))]
    return killed_at_last(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, group=True)


def kill(path: Path, rng: random.Random) -> str:
    """Run a copy and kill it some time after it has begun to stage; return where it was then."""
    with copying(path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", child.communicate()[1]
        while child.poll() is None and not (path / "out" / STAGING).exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 6))
    return f"{len(read_commits(OsFileSystem(), str(path / 'out')).pending)} commits pending"


async def filled(path: Path) -> list[bytes]:
    async with aiodq.open(path / "in", aiodq.StoreOptions(segment_bytes=20_000, retention=KEEP)) as store:
        bodies = [b"%d" % number for number in range(MESSAGES)]
        for start_at in range(0, MESSAGES, 50):
            await store.topic("orders").put_many(bodies[start_at : start_at + 50])
    return bodies


def check_kills(path: Path, seed: int, kills: int, *, owned: bool) -> None:
    """Kill so many copies, beside an owner of the target or without one; then let one come to its end."""
    bodies, rng = asyncio.run(filled(path)), random.Random(seed)

    async def beside_an_owner() -> list[str]:
        async with aiodq.open(path / "out"):
            return await asyncio.to_thread(lambda: [kill(path, rng) for _ in range(kills)])

    done = asyncio.run(beside_an_owner()) if owned else [kill(path, rng) for _ in range(kills)]
    with copying(path) as last:
        out, err = last.communicate(timeout=200)
    assert (last.returncode, out) == (0, "ready\ndone\n"), err
    asyncio.run(_opened(path / "out"))
    found = [message.body for message in aiodq.open_reader(path / "out").topic("orders").scan()]
    assert (len(found), found == bodies) == (MESSAGES, True), done
    assert not [left for left in (path / "out" / STAGING).rglob("*") if left.is_file()]


async def _opened(path: Path) -> None:
    async with aiodq.open(path):
        pass


@pytest.mark.timeout(600)
def test_nothing_is_missing_and_nothing_is_twice(tmp_path: Path, seed: int) -> None:
    check_kills(tmp_path, seed, 3, owned=seed % 2 == 0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("owned", [True, False], ids=["owned", "alone"])
def test_nothing_is_missing_through_many_kills(tmp_path: Path, seed: int, owned: bool, record_property: Record) -> None:
    for number in range(5):
        path = tmp_path / str(number)
        path.mkdir()
        check_kills(path, seed + number, 5, owned=owned)
    record_property("trials", 25)
