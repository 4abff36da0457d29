"""Random runs, each by a seed: `python -m tests.faults SEED STEPS` repeats one."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING, Any, Final

import aiodq
from aiodq.testing import run as run_simulated
from tests.faults.living import end_and_open
from tests.faults.run import Run
from tests.faults.steps import ALONE, TOGETHER, make_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["run_at_random"]

_SHOWN: Final = 60
"""The last lines that are shown with a failure."""

_BREAKS: Final = 0.12
_HEALS: Final = 0.3
_ENDS: Final = 0.05
_ENDS_REFUSED: Final = 0.5
_ENDS_STOPPED: Final = 0.5
"""How often the disk breaks and heals before a step, and the store ends: at any time, right after something failed, and
once it has stopped."""


async def _main(seed: int, steps: int) -> None:
    rng = Random(f"faults {seed}")
    options = aiodq.StoreOptions(
        sync=rng.choice(("always", "always", "always", "interval", "os")), sync_every=3, segment_bytes=2000
    )
    run = Run(rng, options)
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    run.store = await run.open()
    try:
        for _ in range(4):
            await make_topic(run)
        for _ in range(steps):
            await _step(run)
            assert not unhandled, unhandled
        await end_and_open(run)
        await run.store.aclose()
    except BaseException as error:
        for line in run.done[-_SHOWN:]:
            error.add_note(line)
        error.add_note(f"repeat with: python -m tests.faults {seed} {steps}")
        raise


async def _step(run: Run) -> None:
    rng = run.rng
    if run.faulty and rng.random() < _HEALS:
        run.heal_disk()
    elif not run.faulty and rng.random() < _BREAKS:
        run.break_disk()
    ends = _ENDS_STOPPED if run.stopped else _ENDS_REFUSED if run.refused else _ENDS
    run.refused = False
    if rng.random() < ends:
        await end_and_open(run)
    if rng.random() < 0.25:
        async with asyncio.TaskGroup() as group:
            for step in rng.choices(TOGETHER, k=5):
                group.create_task(_safely(run, step))
    else:
        await _safely(run, rng.choice(ALONE))


async def _safely(run: Run, step: Callable[[Run], Awaitable[None]]) -> None:
    try:
        await step(run)
    except aiodq.StorageError as error:
        # Handles check at once whether the store has stopped.
        assert run.was_faulty
        assert isinstance(error, aiodq.StoreFailedError)
        run.stopped = True
        run.say("stopped:", error)


def run_at_random(seed: int, steps: int) -> None:
    """Take so many random steps on a disk that fails now and then.

    Raises:
        AssertionError: a promise was broken. Its notes tell the last steps, and how to repeat the run.
    """
    logging.getLogger("aiodq").addHandler(logging.NullHandler())
    run_simulated(lambda: _main(seed, steps))
