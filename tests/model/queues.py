"""The steps that use a topic and its channel `default` as a queue, by the names of `asyncio.Queue`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiodq
from tests.model.living import reopen
from tests.model.model import channels_of
from tests.model.run import PATIENCE, Run

if TYPE_CHECKING:
    from tests.model.model import Channel

__all__ = ["join", "shut_down", "task_done"]


def some_queue(run: Run, *, ready: bool) -> Channel | None:
    """Return a channel `default`, if there is one; with `ready`, one that may hand out something now."""
    queues = [
        channel
        for channel in channels_of(run.topics.values())
        if channel.name == "default"
        and not channel.topic.lossy
        and (not ready or (channel.ready(run.now) and channel.credit() > 0 and not channel.is_paused()))
    ]
    return run.rng.choice(queues) if queues else None


async def task_done(run: Run) -> None:
    """A task settles what it got, the last first, and no more than that."""
    if (channel := some_queue(run, ready=True)) is None:
        return
    member, most, apart = run.world.any(), run.rng.randint(1, 4), run.rng.choice(("ack", "nack", ""))
    queue, got, done = member.queue(channel.topic.name), list[aiodq.Message](), 0
    together = run.rng.random() < _TOGETHER
    run.say("task_done", channel, most, apart, "together" if together else "")

    async def work() -> None:
        nonlocal done
        got.extend(await queue.get_many(most) if together else [await queue.get()])
        with suppress(aiodq.QueueEmpty):
            got.extend(queue.get_nowait() for _ in range(len(got), most))
        if apart and got[0].held:
            await (got[0].ack() if apart == "ack" else got[0].nack(5.0))
        with suppress(ValueError):
            while True:
                queue.task_done()
                done += 1

    async with asyncio.timeout(PATIENCE):
        await asyncio.create_task(work())
    run.done[-1] += f" -> {[message.offset for message in got]}, {done} done"
    settled = [message for message in got if message.settled]
    assert done == (0 if channel.options.auto_ack else len(settled) - bool(apart)), f"{channel}: {done} done"
    assert settled == got or not run.world.exact
    for number, message in enumerate(got):
        run.check_taken(channel, message, channel.topic.begin)
        if number == 0 and apart == "nack" and not channel.options.auto_ack:
            run.given_back(channel, message.offset, message.attempts, run.now + 5.0)
        else:
            channel.settle(message.offset)


async def join(run: Run) -> None:
    """Who waits until nothing is left, waits that long and no longer."""
    channel = some_queue(run, ready=False)
    if channel is None:
        return
    await run.settle_in()
    run.say("join", channel, channel.depths())
    queue = run.world.any().queue(channel.topic.name)
    joining = asyncio.ensure_future(queue.join())
    try:
        for _ in range(run.rng.choice((1, 5, 20))):
            await asyncio.sleep(0)
        if channel.depths()[0]:
            assert not joining.done(), f"{channel} has {channel.depths()[0]}, and join ended"
        if channel.depths()[1]:
            await _finish(run, channel)
        if not channel.depths()[1]:
            async with asyncio.timeout(PATIENCE):
                await joining
    finally:
        joining.cancel()


async def _finish(run: Run, channel: Channel) -> None:
    """Settle all of a channel, if all of it is ready for sure."""
    left = channel.ready(run.now)
    if len(left) > _FEW or len(left) < channel.depths()[1] or channel.is_paused() or not channel.credit():
        return
    if any(channel.sent(offset).expiry <= run.now for offset in left):
        return
    member = run.world.any()
    handle = run.channel(channel, member)
    while channel.ready(run.now):
        async with asyncio.timeout(PATIENCE):
            messages = await handle.get_many(3)
        await run.took(channel, messages, member)
        mine = [message for message in messages if message.offset in channel.held()]
        if mine:
            await handle.ack_many(mine)
        for message in mine:
            channel.settle(message.offset)


_TOGETHER = 0.5
"""How often a task gets several messages at once."""

_FEW = 12
"""Messages that are settled to see a `join` end."""


async def shut_down(run: Run) -> None:
    """A queue that was shut down takes nothing more, and gives what is ready, or nothing."""
    channel = some_queue(run, ready=False)
    if channel is None or not run.world.exact:
        return
    await run.settle_in()
    at_once, member = run.rng.random() < 0.3, run.world.any()
    queue = member.queue(channel.topic.name)
    run.say("shut down", channel, "at once" if at_once else "")
    waiting = [] if channel.depths()[1] else [asyncio.ensure_future(queue.get())]
    await asyncio.sleep(0)
    queue.shutdown(at_once)
    async with asyncio.timeout(PATIENCE):
        ends = await asyncio.gather(queue.put(b"late"), *waiting, return_exceptions=True)
    assert {*map(type, ends)} == {aiodq.QueueShutDown}, f"{channel} was shut down, and gives {ends}"
    await _drain(run, channel, queue, member, at_once=at_once)
    await reopen(run)


async def _drain(run: Run, channel: Channel, queue: aiodq.Queue, member: aiodq.Store, *, at_once: bool) -> None:
    must = [] if at_once or channel.is_paused() else channel.ready(run.now)
    try:
        for _ in range(len(channel.entries) + 1):
            await run.took(channel, [queue.get_nowait()], member)
            assert not at_once, f"{channel} gives something after it was shut down at once"
    except aiodq.QueueShutDown:
        left = [offset for offset in must if offset in channel.ready(run.now)]
        assert not left, f"{channel} has {left}, and gives nothing"
    except aiodq.QueueEmpty:
        assert not at_once
        assert channel.held() or channel.is_paused() or channel.entries, f"{channel} has nothing"
