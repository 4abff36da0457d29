"""The steps in which one of the processes goes and another one comes: the others are to notice nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiodq
from tests.faults.steps import take_in

if TYPE_CHECKING:
    from tests.faults.known import Topic
    from tests.faults.processes import Process
    from tests.faults.run import Run

__all__ = ["cut_off", "kill_one", "leave"]


async def kill_one(run: Run) -> None:
    """Kill a process, mostly the owner, while the others wait for what somebody may have in hand."""
    process = _one(run)
    async with asyncio.TaskGroup() as group:
        _want(run, group)
        await _a_moment(run)
        if process in run.processes:
            synced = run.rng.random() < 0.5
            run.say("kill", process, "once it has synced" if synced else "")
            number = _gone(run, process)
            if synced:
                await process.sync_once_more()
            await process.kill()
            await _replace(run, number, process)


def _want(run: Run, group: asyncio.TaskGroup) -> None:
    """Have all processes wait for messages of a channel of which somebody has some in hand."""
    hands = [hand for hand in run.hands if run.topics.get(hand.topic.name) is hand.topic]
    some = run.rng.choice([(hand.topic, hand.channel) for hand in hands]) if hands else run.some_channel()
    if some is not None and some[1] in some[0].channels:
        for process in run.processes:
            group.create_task(_take(run, process, *some))


async def _take(run: Run, process: Process, topic: Topic, name: str) -> None:
    with suppress(aiodq.StorageError, aiodq.QueueShutDown):
        await take_in(run, process, topic, name, patience=run.rng.choice((0.0, 3.0)))


async def _a_moment(run: Run) -> None:
    """Let others take some turns, or some time."""
    if run.rng.random() < 0.5:
        await asyncio.sleep(0.03 * run.rng.random())
    for _ in range(run.rng.choice((0, 1, 3, 10, 30))):
        await asyncio.sleep(0)


async def leave(run: Run) -> None:
    """Have a process close the store."""
    process = _one(run)
    if process not in run.processes or any(hand.process is process for hand in run.hands):
        return
    await _a_moment(run)
    if process not in run.processes:
        return
    run.say("leave", process)
    number = _gone(run, process)
    await run.call(process, f"close {process}", process.close, cancels=0.0)
    await _replace(run, number, process)


async def cut_off(run: Run) -> None:
    """Cut a process's connection to the owner, while the others wait for what it may have in hand."""
    async with asyncio.TaskGroup() as group:
        _want(run, group)
        await _a_moment(run)
        process = run.some_process()
        run.say("cut off", process)
        process.disconnect()


def _one(run: Run) -> Process:
    owners = [process for process in run.processes if process.owns]
    return run.rng.choice(owners if owners and run.rng.random() < 0.6 else run.processes)


def _gone(run: Run, process: Process) -> int:
    number = run.processes.index(process)
    run.processes.remove(process)
    for hand in [hand for hand in run.hands if hand.process is process]:
        run.hands.remove(hand)
        for sent, _ in hand.messages:
            sent.put_down(process, hand.channel)
    return number


async def _replace(run: Run, number: int, gone: Process) -> None:
    ended = await run.call(None, "open", lambda: run.open(gone.mode), cancels=0.0)
    if ended.value is None:
        run.heal_disk()
        ended = await run.call(None, "open", lambda: run.open(gone.mode), cancels=0.0)
        assert ended.error is None, ended.error
    run.processes.insert(number, ended.value)
