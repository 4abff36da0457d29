"""Random runs, each by a seed: `python -m tests.model MODE SEED STEPS` repeats one."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import aiodq
from aiodq.testing import run as run_simulated
from tests.model.cutting import cut_amid
from tests.model.living import make_channel, make_topic
from tests.model.run import Run
from tests.model.steps import STEPS
from tests.model.world import Kind, World

__all__ = ["run_at_random"]

_SHOWN: Final = 100
"""The last steps that are shown with a failure."""


async def _main(kind: Kind, seed: int, steps: int, directory: Path) -> None:
    logging.getLogger("aiodq").addHandler(logging.NullHandler())
    rng = Random(f"{kind} {seed}")
    options = aiodq.StoreOptions(sync=rng.choice(("always", "always", "interval", "os")), sync_every=4)
    world = World(kind, rng, directory, options)
    world.power = world.power and options.sync == "always"
    run = Run(world, rng, {}, [])
    choices, weights = zip(*STEPS, strict=True)
    await world.open()
    try:
        for step in (make_topic, make_topic, make_channel, make_channel):
            await step(run)
        for step in rng.choices(choices, weights, k=steps):
            await cut_amid(run, step)
            await run.await_letters()
        await run.check()
    except BaseException as error:
        number = len(run.done)
        for line in run.done[-_SHOWN:]:
            error.add_note(line)
        error.add_note(f"after {number} steps; repeat with: python -m tests.model {kind} {seed} {steps}")
        raise
    finally:
        await world.close()


def run_at_random(kind: Kind, seed: int, steps: int) -> None:
    """Take so many random steps, and compare the store with the model.

    Raises:
        AssertionError: they differ. Its notes tell the last steps, and how to repeat the run.
    """
    with tempfile.TemporaryDirectory(prefix="aiodq-model-") as directory:
        if kind == "simulated":
            run_simulated(lambda: _main(kind, seed, steps, Path(directory)))
        else:
            asyncio.run(_main(kind, seed, steps, Path(directory)))
