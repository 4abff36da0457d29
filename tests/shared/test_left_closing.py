"""A shared store whose closing goes on though nobody waits for it any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.shared.support import PATIENCE, QUICK

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("turns", range(6))
async def test_it_is_waited_for_by_who_opens_the_store_again(tmp_path: Path, turns: int) -> None:
    async with asyncio.timeout(PATIENCE):
        store = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        await store.queue("jobs").put(b"x")
        closing = asyncio.ensure_future(store.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        if not turns:
            await store.aclose()  # it was not begun
        async with aiodq.open(tmp_path / "s", QUICK) as again:
            assert again.queue("jobs").qsize() == 1
