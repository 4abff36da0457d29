"""Unfinished replacements of files, which a killed owner leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiodq

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
