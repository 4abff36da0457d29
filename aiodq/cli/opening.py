"""Opening stores for commands."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiodq.errors import StoreLockedError
from aiodq.store import open as open_or_make

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodq.store import Store

__all__ = ["open_store"]

_PATIENCE: Final = 0.5
"""Seconds that somebody else's lock may take to go: `get --follow` has the store for moments only."""

_PAUSE: Final = 0.02


@asynccontextmanager
async def open_store(path: str, patience: float = _PATIENCE) -> AsyncIterator[Store]:
    """Own a store for a while.

    Args:
        path: its directory.
        patience: seconds to wait for another owner.

    Raises:
        StoreLockedError: another owner has it all that time.
        StorageError: as `aiodq.open`.
    """
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            store = await open_or_make(path)
            break
        except StoreLockedError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(_PAUSE)
    async with store:
        yield store
