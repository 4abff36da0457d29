"""What a new owner is asked to open: neither what was deleted, nor by options that were refused or changed since."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from pathlib import Path


async def three(stack: AsyncExitStack, path: Path) -> list[aiodq.Store]:
    """Give a store to three processes in one, the first of which owns it."""
    return [await stack.enter_async_context(aiodq.open(path, QUICK, mode="shared")) for _ in range(3)]


def opened(store: aiodq.Store) -> dict[tuple[str, str], object]:
    """Return what a process has every later owner open."""
    return store._store_engine.link._opened  # type: ignore[attr-defined, no-any-return]  # it stands in its place


async def test_a_channel_that_one_process_deleted_does_not_come_back_with_the_next_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, deleter, other = await three(stack, tmp_path / "s")
        for store in (owner, deleter, other):
            for name in ("c", "d"):
                await store.topic("jobs").channel(name).refresh()
        kept = other.topic("jobs").channel("c")
        await deleter.topic("jobs").delete_channel("c")
        with pytest.raises(aiodq.QueueShutDown):
            await kept.get()
        await owner.aclose()
        for store in (deleter, other):
            await store.topic("jobs").channel("d").refresh()
        assert ("jobs", "c") not in opened(other)
    async with aiodq.open(tmp_path / "s") as alone:
        assert alone.topic("jobs").channels() == ["d"]
