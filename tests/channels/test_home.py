"""Where a message may be settled: on the loop that opened its store, however little is looked at for that."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.delivery.leases import HELD
from aiodq.testing import SimulatedFileSystem
from tests.loops import LOOPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.channels.support import Machine


async def two_plain(jobs: aiodq.Queue) -> list[aiodq.Message]:
    """Return two messages that nobody measures, as most are."""
    await jobs.put_many([b"0", b"1"])
    messages = await jobs.get_many(2)
    for message in messages:
        message._run.marks[message._index] = HELD  # the first ones are all measured
    return messages


def refused(message: aiodq.Message) -> bool:
    try:
        message.ack_nowait()
    except aiodq.WrongContextError:
        return True
    return False


async def in_a_loop(message: aiodq.Message) -> bool:
    return refused(message)


@pytest.mark.parametrize("how", ["without a loop", "on a loop of its own"])
async def test_no_other_thread_settles_it(machine: Machine, how: str) -> None:
    work: Callable[[aiodq.Message], bool] = refused if how == "without a loop" else lambda m: asyncio.run(in_a_loop(m))
    async with machine.jobs() as jobs:
        results: list[bool] = []
        message, other = await two_plain(jobs)
        thread = threading.Thread(target=lambda: results.append(work(message)))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert results == [True]
        assert not message.settled
        message.ack_nowait()
        other.ack_nowait()
        assert jobs.empty()


@pytest.mark.parametrize("how", ["without a loop", "on the next loop"])
@pytest.mark.parametrize("kind", LOOPS)
def test_it_is_not_settled_once_the_loop_has_stopped(kind: str, how: str) -> None:
    async def begin() -> tuple[aiodq.Queue, aiodq.Message]:
        jobs = await aiodq.open_queue("/store", fs=SimulatedFileSystem())
        message, other = await two_plain(jobs)
        other.ack_nowait()
        return jobs, message

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        jobs, message = runner.run(begin())
        if how == "without a loop":
            assert refused(message)
        else:
            assert asyncio.run(in_a_loop(message))
        assert not message.settled
        runner.run(message.ack())
        runner.run(jobs.aclose())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_child_forked_while_the_loop_runs_settles_nothing(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        message, other = await two_plain(jobs)
        other.ack_nowait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads
            child = os.fork()
        if not child:
            os._exit(0 if refused(message) and not message.settled else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        message.ack_nowait()
