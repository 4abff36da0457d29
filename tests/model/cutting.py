"""Cuts of clients' connections, and kills of their owner, while something is asked: nobody may notice that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.model.living import another_owner, before_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.model.run import Run

__all__ = ["cut_amid"]

_OFTEN: Final = 0.15
"""How many of the steps a cut happens in."""

_KILLS: Final = 0.2
"""How many of these are made by a kill of the owner, where it is another process."""


async def cut_amid(run: Run, step: Callable[[Run], Awaitable[None]]) -> None:
    """Take a step, and perhaps cut connections in the middle of it, or kill their owner."""
    wires = run.world.connections()
    if not wires or run.rng.random() >= _OFTEN:
        await step(run)
        return
    kill = run.world.child is not None and run.rng.random() < _KILLS
    if kill:
        await before_end(run)
    cut = run.rng.sample(wires, run.rng.randint(1, len(wires)))
    turns, wait = run.rng.choice((0, 1, 2, 3, 5, 8, 20)), run.rng.choice((0.0, 0.0, 0.0002, 0.001, 0.005))

    async def cutting() -> None:
        await asyncio.sleep(wait)
        for _ in range(turns):
            await asyncio.sleep(0)
        if kill:
            run.done[-1] += " (the owner is killed)"
            await run.world.kill_owner()
            return
        run.done[-1] += f" ({len(cut)} cut)"
        for wire in cut:
            wire.abort()

    beside = asyncio.create_task(cutting())
    try:
        await step(run)
    finally:
        await beside
    if kill:
        another_owner(run)
