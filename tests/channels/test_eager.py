"""A loop whose tasks begin at once: what their first step may do, and what follows from it."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

import aiodq
from tests.channels.support import Machine, soon

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 is the first with eager tasks")


def _begin_at_once() -> None:
    if sys.version_info < (3, 12):
        raise AssertionError("it is skipped")
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop does not take asyncio's factory from 3.13 on
@pytest.mark.parametrize("turns", [0, 1])
async def test_a_letter_is_put_or_refused_as_the_store_closes(machine: Machine, turns: int) -> None:
    """It is put, or it is not and is said not to be."""
    _begin_at_once()
    async with machine.jobs(dead_letter="dead") as jobs:
        await jobs.put(b"x")
        rejecting = asyncio.create_task((await jobs.get()).reject())
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not rejecting.done()
    (refused,) = await soon(asyncio.gather(rejecting, return_exceptions=True))
    assert isinstance(refused, aiodq.QueueShutDown) == (turns == 0)
    async with machine.store() as store:
        jobs, dead = store.queue("jobs"), store.topic("dead")
        assert (jobs.depth, dead.end_offset) == ((1, 0) if refused else (0, 1))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_program_gives_its_message_back(error: type[BaseException]) -> None:
    machine = Machine()

    async def main() -> None:
        _begin_at_once()

        async def handler(_: aiodq.Message) -> None:
            raise error

        async with machine.jobs(max_attempts=3) as jobs:
            await jobs.put(b"x")
            await jobs.consume(handler)

    async def attempts() -> int:
        async with machine.jobs() as jobs:
            return (await jobs.get()).attempts

    with pytest.raises(error):
        asyncio.run(main())
    assert asyncio.run(attempts()) == 1
    gc.collect()  # asyncio tells of the handler's task that nobody asked for its exception: here, not amid another test
