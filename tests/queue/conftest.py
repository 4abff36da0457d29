"""Fixtures of the queue's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aiodq.testing import WatchedFileSystem
from tests.queue.support import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def fs() -> WatchedFileSystem:
    """Return a file system that is watched, and that does not wait for the device."""
    return WatchedFileSystem()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a store may be made; there is nothing yet."""
    return tmp_path / "store"


@pytest_asyncio.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Return tasks that end with the test."""
    running = Tasks()
    yield running
    await running.end()
