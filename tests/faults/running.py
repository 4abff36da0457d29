"""Random runs, each by a seed: `python -m tests.faults KIND SEED STEPS` repeats one."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from unittest import mock
from uuid import UUID

import aiodq
from aiodq.testing import SimulatedFileSystem
from aiodq.testing import run as run_simulated
from tests.faults.leaving import cut_off, kill_one, leave
from tests.faults.living import close_all, end_and_open, goes_on
from tests.faults.processes import Threads
from tests.faults.run import Run
from tests.faults.steps import ALONE, AMID, TOGETHER, make_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aiodq.opening import Mode

__all__ = ["MODES", "Kind", "run_at_random"]

Kind: TypeAlias = Literal["exclusive", "shared"]
MODES: Final[dict[Kind, tuple[Mode, ...]]] = {"exclusive": ("exclusive",), "shared": ("shared", "shared", "client")}
"""By kind, the modes in which processes open the store."""

_SHOWN: Final = 60
"""The last lines that are shown with a failure."""

_BREAKS: Final = 0.12
_HEALS: Final = 0.3
_ENDS: Final = 0.05
_ENDS_REFUSED: Final = 0.5
_ENDS_STOPPED: Final = 0.5
_GOES: Final = 0.15
_LOOKS: Final = 0.4
"""How often the disk breaks and heals before a step; the store ends: at any time, right after something failed, and
once it has stopped; one of several processes goes; and how often it is looked then whether all goes on without it."""


async def _main(kind: Kind, seed: int, steps: int, path: str) -> None:
    rng = Random(f"faults {kind} {seed}")
    options = aiodq.StoreOptions(
        sync=rng.choice(("always", "always", "always", "interval", "os")), sync_every=3, segment_bytes=2000
    )
    loop, fs = asyncio.get_running_loop(), SimulatedFileSystem({path: None})
    run = Run(rng, path, MODES[kind], options, fs, Threads(loop, fs, rng.getrandbits(32)))
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        run.processes = await run.open_all()
        for _ in range(4):
            await make_topic(run)
        for _ in range(steps):
            await _step(run)
            assert not unhandled, unhandled
        await end_and_open(run)
        await close_all(run)
    except BaseException as error:
        for line in run.done[-_SHOWN:]:
            error.add_note(line)
        error.add_note(f"repeat with: python -m tests.faults {kind} {seed} {steps}")
        for process in run.processes:
            process.disk.end()
        run.threads.end()  # the loop, which ends now, would wait for them
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
    gone = rng.choice((kill_one, kill_one, leave, cut_off)) if run.shared and rng.random() < _GOES else None
    if rng.random() < 0.25 or gone is not None:
        async with asyncio.TaskGroup() as group:
            for step in rng.choices(TOGETHER, k=5) if gone is None else rng.choices(AMID, k=8):
                group.create_task(_safely(run, step))
            if gone is not None:
                group.create_task(_safely(run, gone))
        if gone is not None and rng.random() < _LOOKS:
            await goes_on(run)
    else:
        await _safely(run, rng.choice(ALONE))
    if run.shared:  # else only an end shows what is there
        run.forget_unsynced()


async def _safely(run: Run, step: Callable[[Run], Awaitable[None]]) -> None:
    try:
        await step(run)
    except aiodq.StorageError as error:
        # Handles check at once whether the store has stopped, or why it has no owner.
        assert run.was_faulty
        assert run.shared or isinstance(error, aiodq.StoreFailedError)
        run.stopped = True
        run.say("stopped:", error)


def run_at_random(kind: Kind, seed: int, steps: int) -> None:
    """Take so many random steps on a disk that fails now and then.

    Raises:
        AssertionError: a promise was broken. Its notes tell the last steps, and how to repeat the run.
    """
    logging.getLogger("aiodq").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="aiodq-faults-") as directory, ExitStack() as stack:
        for each in _repeatable(Random(seed)):
            stack.enter_context(each)
        run_simulated(lambda: _in_its_time(kind, seed, steps, directory))


async def _in_its_time(kind: Kind, seed: int, steps: int, path: str) -> None:
    now = asyncio.get_running_loop().time
    with mock.patch("time.monotonic", now), mock.patch("aiodq.shared.connection.wires.socket_wire.monotonic", now):
        await _main(kind, seed, steps, path)


def _repeatable(rng: Random) -> Iterator[mock._patch[Any]]:
    """Yield patches of what is chosen at random."""

    def made_up() -> UUID:
        return UUID(int=rng.getrandbits(128), version=4)

    for name in ("state.topic.topic_meta", "state.store_identity", "bulk.staging"):
        yield mock.patch(f"aiodq.storage.{name}.uuid4", made_up)
    yield mock.patch("aiodq.engine.channel.channel_engine.token_hex", lambda size: rng.randbytes(size).hex())
    yield mock.patch.multiple("secrets", randbits=rng.getrandbits, randbelow=rng.randrange)
    yield mock.patch("random.uniform", rng.uniform)
