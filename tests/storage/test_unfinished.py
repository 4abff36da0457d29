"""Unfinished replacements of files, which a killed owner leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.bulk.commit_lock import COMMITS
from aiodq.storage.io.filesystem import OsFileSystem, locked
from aiodq.storage.state.holds import HOLDS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["#origins", "#store", "#transactions"])
async def test_the_next_owner_removes_what_a_killed_one_left(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path) as store:
        await store.queue("jobs").put(b"x")
    left = path / f"{name}.aiodq-tmp"
    left.write_bytes(b"half a file")
    async with aiodq.open(path) as store:
        assert not left.exists()
        assert (await store.queue("jobs").get()).body == b"x"


async def test_what_others_may_be_writing_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path) as store:
        await store.queue("jobs").put(b"x")
    other = path / "mine.aiodq-tmp"
    other.write_bytes(b"not the owner's")
    directory = path / "#store.aiodq-tmp"
    directory.mkdir()
    async with aiodq.open(path):
        assert other.exists()
        assert directory.is_dir()


def left_in(path: Path, directory: str) -> Path:
    """Leave half a file where other processes than the owner write, too."""
    (path / directory).mkdir(exist_ok=True)
    left = path / directory / "spark.json.aiodq-tmp"
    left.write_bytes(b"half a file")
    return left


@pytest.mark.parametrize("directory", [HOLDS, COMMITS])
async def test_the_next_owner_removes_what_a_killed_writer_left(tmp_path: Path, directory: str) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path):
        pass
    left = left_in(path, directory)
    async with aiodq.open(path):
        assert not left.exists()


@pytest.mark.parametrize("directory", [HOLDS, COMMITS])
async def test_what_another_writer_is_writing_stays(tmp_path: Path, directory: str) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path):
        pass
    left = left_in(path, directory)
    lock = locked(OsFileSystem(), str(path / directory))
    try:
        async with aiodq.open(path):
            assert left.exists()
    finally:
        lock.release()
