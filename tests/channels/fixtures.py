"""A simulated machine, and a store on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.channels.support import Machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiodq

__all__ = ["machine", "store"]


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def store(machine: Machine) -> AsyncIterator[aiodq.Store]:
    async with machine.store() as store:
        yield store
