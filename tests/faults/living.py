"""How a store ends and is opened again, and what must be found then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import aiodq
from aiodq.storage.bulk.commits import read_commits
from aiodq.storage.offline.verify import verify_store
from tests.faults.known import Known
from tests.faults.run import DEAD, PATIENCE
from tests.faults.steps import arrived

if TYPE_CHECKING:
    from tests.faults.known import Joined, Topic
    from tests.faults.run import Run

__all__ = ["close_all", "end_and_open", "goes_on"]

_FAULTY: Final = 0.3
"""How many ends, and how many attempts to open, happen on a disk that still fails."""

_SETTLED: Final = 10.0
"""Seconds after which nothing is held back any more for whoever may come back."""


async def end_and_open(run: Run) -> None:
    """Close the store, kill it or cut the power; then open it, perhaps with difficulty, and see what is there."""
    if run.rng.random() < 0.3:
        await goes_on(run)
    await end(run)
    report = verify_store(run.path, run.fs)
    assert report.ok, f"a verification finds {report.damages}"
    while run.rng.random() < _FAULTY:
        run.break_disk()
        ended = await run.call(None, "open", run.open_all, cancels=0.1)
        for process in (ended.value or [])[::-1]:
            await run.call(process, "close", process.close, cancels=0.0)
        run.heal_disk()
    run.forget_unsynced()
    run.was_faulty = run.stopped = run.unsynced = False
    run.processes = await run.open_all()
    for name in sorted(run.doubtful):
        await run.some_process().store.delete_topic(name)
    run.doubtful.clear()
    await check(run)


async def goes_on(run: Run) -> None:
    """Once the disk works, everything does, or says that the store has stopped."""
    run.heal_disk()
    run.say("goes on?")
    for seconds in (100.0, 2.0):  # a dead letter may have been refused in the very step in which all had its next try
        run.clock.advance(seconds)
        await asyncio.sleep(seconds)
    run.forget_unsynced()  # another process may own the store since a sync failed, amid the very step that looks
    try:
        async with asyncio.timeout(PATIENCE):
            for topic in run.topics.values():
                await _works(run, topic)
        _let_all_go(run)
        await check(run, opened=False)
    except aiodq.StoreFailedError:
        assert run.was_faulty
        assert not run.shared, "nobody opens the store again"
        run.say("stopped")


def _let_all_go(run: Run) -> None:
    """Have consumers put down what they have in hand."""
    for hand in run.hands:
        for sent, message in hand.messages:
            sent.put_down(hand.process, hand.channel)
            with suppress(aiodq.DeliveryError, aiodq.QueueShutDown):
                message.release()
    run.hands.clear()


async def _works(run: Run, topic: Topic) -> None:
    process, sent = run.some_process(), topic.send(run.body())
    handle = process.store.topic(topic.name)
    await handle.sync()
    sent.offset = await handle.put(sent.body)
    sent.put = Known.YES
    for name in sorted(topic.channels):
        channel = run.channel(process, topic, name)
        await channel.refresh()
        for message in await channel.get_many(1):
            taken = arrived(run, process, topic, name, message)
            taken.settling(name)
            await message.ack()
            taken.settling_ended(process, name, None)


async def end(run: Run) -> None:
    """End all processes, and leave behind what their end leaves."""
    how = run.rng.choice(("close", "kill", "kill", "power"))
    if run.rng.random() >= _FAULTY:
        run.heal_disk()
    run.say("end:", how)
    if how == "close":
        await close_all(run)
    else:
        cut = run.fs.power_cut(run.rng.getrandbits(32)) if how == "power" else None
        for process in run.processes:
            process.disk.end()
        for process in run.processes:
            await process.kill()
        if cut is not None:
            cut.before, run.fs = run.fs.before, cut
    run.heal_disk()
    run.processes.clear()
    run.hands.clear()
    for sent in run.all_sent():
        sent.held.clear()
    run.unsynced = run.unsynced or how == "power"
    run.forget_unsynced()


async def close_all(run: Run) -> None:
    """Close the store in all processes, last in those that may own it: without an owner, the others could not."""
    for process in sorted(run.rng.sample(run.processes, len(run.processes)), key=lambda each: each.mode != "client"):
        await run.call(process, f"close {process}", process.close, cancels=0.0)


async def check(run: Run, *, opened: bool = True) -> None:
    """What must be there is there, what must not be is not; and once it was opened, what was not known is known."""
    async with asyncio.timeout(PATIENCE):
        while read_commits(run.fs, run.path).pending:
            await asyncio.sleep(1.0)
    process = run.some_process()
    for topic in run.topics.values():
        await process.store.topic(topic.name).sync()
    await asyncio.sleep(_SETTLED)
    letters = {message.body async for message in process.store.topic(DEAD).scan()}
    assert letters <= run.letters.keys(), "there are dead letters of what nobody rejected"
    logs = {name: await _log(run, topic) for name, topic in run.topics.items()}
    ready = {name: await _ready(run, topic) for name, topic in run.topics.items()}
    for joined in run.joined:
        _check_puts(joined, logs)
        if opened:  # else somebody may still have in hand what it did not settle
            _check_acks(joined, logs, ready, run.now)
    if opened:
        run.joined.clear()
    for topic in run.topics.values():
        _check_log(topic, logs[topic.name])
        for sent in topic.sent.values():
            if sent.put is Known.YES:
                for name, those in ready[topic.name].items():
                    sent.found(name, run.now, ready=sent.body in those, dead=sent.body in letters, opened=opened)


async def _log(run: Run, topic: Topic) -> dict[bytes, int]:
    found = [message async for message in run.some_process().store.topic(topic.name).scan()]
    log = {message.body: message.offset for message in found}
    assert len(log) == len(found), f"{topic.name} has a message twice: {found}"
    return log


async def _ready(run: Run, topic: Topic) -> dict[str, set[bytes]]:
    """Return what each channel has not settled."""
    return {name: await _ready_in(run, topic, name) for name in sorted(topic.channels)}


async def _ready_in(run: Run, topic: Topic, name: str) -> set[bytes]:
    channel, taken = run.channel(run.some_process(), topic, name), list[aiodq.Message]()
    with suppress(TimeoutError):
        while True:
            taken.append(await channel.get(timeout=1.0))
    deferred = {message.body async for message in channel.deferred_messages()}
    for message in reversed(taken):
        message.release()
    return {message.body for message in taken} | deferred


def _check_log(topic: Topic, log: dict[bytes, int]) -> None:
    topic.loading = False
    for body, offset in log.items():
        sent = topic.sent.get(body)
        assert sent is not None, f"{topic.name} has {body!r}, which was never put"
        assert sent.put is not Known.NO, f"{topic.name} has {body!r}, which was refused"
        assert sent.offset in {None, offset}, f"{topic.name} has {body!r} at {offset}, not {sent.offset}"
        sent.put, sent.offset = Known.YES, offset
    for sent in topic.sent.values():
        if sent.body not in log and topic.keeps:
            assert sent.put is not Known.YES, f"{topic.name} lost {sent.body!r}"
        if sent.body not in log and sent.put is not Known.YES:
            sent.put = Known.NO


def _there(joined: Joined, logs: dict[str, dict[bytes, int]]) -> list[bool]:
    return [sent.put is Known.YES or sent.body in logs[topic.name] for topic, sent in joined.puts if topic.keeps]


def _check_puts(joined: Joined, logs: dict[str, dict[bytes, int]]) -> None:
    """A transaction whose outcome was not told counts as a whole, or not at all."""
    assert len(set(_there(joined, logs))) <= 1, f"{joined} was done by half"


def _check_acks(
    joined: Joined, logs: dict[str, dict[bytes, int]], ready: dict[str, dict[str, set[bytes]]], now: float
) -> None:
    there = _there(joined, logs)
    for topic, name, sent in joined.acks:
        comes = sent.body in ready[topic.name].get(name, ())
        if there and sent.tries[name] == 1 and name in topic.channels and now < sent.dies:
            assert comes is not there[0], f"{joined}: {sent.body!r} {'comes' if comes else 'does not come'}"
