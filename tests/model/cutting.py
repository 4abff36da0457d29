"""Cuts of clients' connections while something is asked over them, which nobody may notice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiodq

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.model.run import Run

__all__ = ["again_if_lost", "cut_amid"]

_OFTEN: Final = 0.15
"""How many of the steps a cut happens in."""


async def cut_amid(run: Run, step: Callable[[Run], Awaitable[None]]) -> None:
    """Take a step, and perhaps cut connections in the middle of it."""
    wires = run.world.connections()
    if not wires or run.rng.random() >= _OFTEN:
        await step(run)
        return
    cut = run.rng.sample(wires, run.rng.randint(1, len(wires)))
    turns, wait = run.rng.choice((0, 1, 2, 3, 5, 8, 20)), run.rng.choice((0.0, 0.0, 0.0002, 0.001, 0.005))

    async def cutting() -> None:
        await asyncio.sleep(wait)
        for _ in range(turns):
            await asyncio.sleep(0)
        run.done[-1] += f" ({len(cut)} cut)"
        for wire in cut:
            wire.abort()

    beside = asyncio.create_task(cutting())
    try:
        await step(run)
    finally:
        await beside


async def again_if_lost(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call what is not repeated by itself when the connection is cut, until its outcome is known.

    Returns:
        What it gave; None if an earlier call may have done it.
    """
    unsure = False
    while True:
        try:
            found = await call()
        except aiodq.OwnerLostError:
            unsure = True
        else:
            return None if unsure else found
