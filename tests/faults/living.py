"""How a store ends and is opened again, and what must be found then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiodq
from aiodq.storage.bulk.commits import read_commits
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import SimulatedFileSystem
from tests.faults.known import Known
from tests.faults.run import DEAD, PATH, PATIENCE
from tests.faults.steps import arrived

if TYPE_CHECKING:
    from tests.faults.known import Joined, Topic
    from tests.faults.run import Run

__all__ = ["end_and_open"]

_FAULTY: Final = 0.3
"""How many ends, and how many attempts to open, happen on a disk that still fails."""


async def end_and_open(run: Run) -> None:
    """Close the store, kill it or cut the power; then open it, perhaps with difficulty, and see what is there."""
    if run.rng.random() < 0.3:
        await goes_on(run)
    await end(run)
    report = verify_store(PATH, run.fs)
    assert report.ok, f"a verification finds {report.damages}"
    while run.rng.random() < _FAULTY:
        run.break_disk()
        ended = await run.call("open", run.open, cancels=0.1)
        if ended.value is not None:
            await run.call("close", ended.value.aclose, cancels=0.0)
        run.heal_disk()
    run.was_faulty = run.stopped = run.unsynced = False
    run.store = await run.open()
    for name in sorted(run.doubtful):
        await run.store.delete_topic(name)
    run.doubtful.clear()
    await check(run)


async def goes_on(run: Run) -> None:
    """Once the disk works, everything does, or says that the store has stopped."""
    run.heal_disk()
    run.say("goes on?")
    run.clock.advance(100.0)
    await asyncio.sleep(100.0)
    try:
        async with asyncio.timeout(PATIENCE):
            for topic in run.topics.values():
                await _works(run, topic)
    except aiodq.StoreFailedError:
        assert run.was_faulty
        run.say("stopped")


async def _works(run: Run, topic: Topic) -> None:
    handle, sent = run.store.topic(topic.name), topic.send(run.body())
    await handle.sync()
    sent.offset = await handle.put(sent.body)
    sent.put = Known.YES
    for name in sorted(topic.channels):
        channel = run.channel(topic, name)
        await channel.refresh()
        for message in await channel.get_many(1):
            taken = arrived(topic, name, message)
            taken.settling(name)
            await message.ack()
            taken.settling_ended(name, None)


async def end(run: Run) -> None:
    """End the store, and leave behind what its end leaves."""
    how = run.rng.choice(("close", "kill", "kill", "power"))
    if run.rng.random() >= _FAULTY:
        run.heal_disk()
    run.say("end:", how)
    image = None
    if how == "kill":
        image = run.fs.image()
    elif how == "power":
        image = run.fs.power_cut(run.rng.getrandbits(32)).image()
        run.was_faulty = True
    await run.call("close", run.store.aclose, cancels=0.0)
    run.heal_disk()
    if image is not None:
        run.fs = SimulatedFileSystem(image)
    run.hands.clear()
    for sent in run.all_sent():
        sent.held.clear()
        if run.options.sync != "always" and (how == "power" or run.unsynced):
            sent.may_be_lost()


async def check(run: Run) -> None:
    """What must be there is there, what must not be is not, and what could not be known is known now."""
    async with asyncio.timeout(PATIENCE):
        while read_commits(run.fs, PATH).pending:
            await asyncio.sleep(1.0)
    for topic in run.topics.values():
        await run.store.topic(topic.name).sync()
    await asyncio.sleep(5.0)
    letters = {message.body async for message in run.store.topic(DEAD).scan()}
    assert letters <= run.letters.keys(), "there are dead letters of what nobody rejected"
    logs = {name: await _log(run, topic) for name, topic in run.topics.items()}
    ready = {name: await _ready(run, topic) for name, topic in run.topics.items()}
    for joined in run.joined:
        _check_joined(joined, logs, ready)
    run.joined.clear()
    for topic in run.topics.values():
        _check_topic(topic, logs[topic.name], ready[topic.name], letters)


async def _log(run: Run, topic: Topic) -> dict[bytes, int]:
    return {message.body: message.offset async for message in run.store.topic(topic.name).scan()}


async def _ready(run: Run, topic: Topic) -> dict[str, set[bytes]]:
    """Return what each channel has not settled."""
    return {name: await _ready_in(run, topic, name) for name in sorted(topic.channels)}


async def _ready_in(run: Run, topic: Topic, name: str) -> set[bytes]:
    channel, taken = run.channel(topic, name), list[aiodq.Message]()
    while channel.qsize():
        taken.append(await channel.get())
    deferred = {message.body async for message in channel.deferred_messages()}
    for message in reversed(taken):
        message.release()
    return {message.body for message in taken} | deferred


def _check_topic(topic: Topic, log: dict[bytes, int], ready: dict[str, set[bytes]], letters: set[bytes]) -> None:
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
        elif sent.put is Known.YES:
            for name, those in ready.items():
                sent.found(name, ready=sent.body in those, dead=sent.body in letters)


def _check_joined(joined: Joined, logs: dict[str, dict[bytes, int]], ready: dict[str, dict[str, set[bytes]]]) -> None:
    """A transaction whose outcome was not told counts as a whole, or not at all."""
    there = [sent.put is Known.YES or sent.body in logs[topic.name] for topic, sent in joined.puts if topic.keeps]
    assert len(set(there)) <= 1, f"{joined} was done by half"
    for topic, name, sent in joined.acks:
        comes = sent.body in ready[topic.name].get(name, ())
        if there and sent.tries[name] == 1 and name in topic.channels:
            assert comes is not there[0], f"{joined}: {sent.body!r} {'comes' if comes else 'does not come'}"
