"""Who is cancelled, or closes, while a store is being opened or let go of: its directory is free afterwards."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import TYPE_CHECKING

import anyio
import pytest

import aiodq
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Doing = Callable[[int, Path], Awaitable[None]]

TURNS = 40


async def opened_for(turns: int, path: Path) -> None:
    """Open a shared store in a scope that is cancelled after so many turns, and then in each turn."""
    with anyio.CancelScope() as scope:

        async def cancel() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            scope.cancel()

        cancelling = asyncio.ensure_future(cancel())
        try:
            async with aiodq.open(path, QUICK, mode="shared") as store:
                await store.queue("jobs").refresh()
        finally:
            cancelling.cancel()


async def close_failed(turns: int, path: Path) -> None:
    """Close a shared store so many turns after it has failed."""
    store = await aiodq.open(path, QUICK, mode="shared")
    await store.queue("jobs").refresh()
    store._remote.owner.engine.fail(OSError(errno.EIO, "Input/output error"))  # type: ignore[attr-defined]  # shared
    store._remote.owner.failed()  # type: ignore[attr-defined]  # as above
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.gather(store.aclose(), return_exceptions=True)


ALL: list[Doing] = [opened_for, close_failed]


async def is_free_after(doing: Doing, turns: int, path: Path) -> None:
    """Do something after so many turns; somebody can have the store at once."""
    async with asyncio.timeout(PATIENCE):
        async with aiodq.open(path, QUICK) as store:
            await store.queue("jobs").put(b"x")
        await doing(turns, path)
        async with aiodq.open(path, QUICK) as store:
            assert store.queue("jobs").qsize() == 1


@pytest.mark.parametrize("doing", ALL)
async def test_the_directory_is_free(doing: Doing, tmp_path: Path, seed: int) -> None:
    for turns in random.Random(seed).sample(range(TURNS), 4):
        await is_free_after(doing, turns, tmp_path / f"{turns}")


@pytest.mark.slow
@pytest.mark.parametrize("doing", ALL)
async def test_the_directory_is_free_whichever_turn_it_is(doing: Doing, tmp_path: Path) -> None:
    for turns in range(TURNS):
        await is_free_after(doing, turns, tmp_path / f"{turns}")
