"""The steps that make a backup, and go on with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiodq
from tests.model.living import after_end, before_end
from tests.model.model import Sent, channels_of
from tests.model.run import CANCELLED, PATIENCE, Run

__all__ = ["restore"]


async def restore(run: Run) -> None:
    """Make a backup while somebody puts and acks, and use it instead of the store."""
    await before_end(run)
    await run.settle_in()
    for channel in channels_of(run.topics.values()):
        channel.all_written()
    path = run.world.another_place()
    run.say("backup", path)
    member = run.world.any()

    async def backup() -> None:
        await member.backup(path)

    put = Sent(run.body())
    beside = asyncio.create_task(_beside(run, put))
    try:
        made = await run.attempt(backup)
    except aiodq.OwnerLostError:
        made = CANCELLED
    finally:
        await beside
    if made is CANCELLED:
        await run.check()
        return
    power = run.rng.random() < 0.5
    async with asyncio.timeout(PATIENCE):
        await run.world.go_on_with(path, power=power)
    after_end(run, power=False)
    await run.settle_in()
    for channel in channels_of(run.topics.values()) if not run.world.exact else ():
        # What was put meanwhile may have been read ahead before it was copied.
        for offset in (one for one, sent in channel.topic.log.items() if sent == put and one in channel.entries):
            channel.entries[offset].high += channel.options.max_attempts is not None
            run.look_at(channel, offset)
    await run.check()


async def _beside(run: Run, sent: Sent) -> None:
    """Put into a topic, and ack a message, which may be in the copy or not."""
    topics = [topic for topic in run.topics.values() if not topic.bounded and not topic.lossy and topic.log]
    found = run.some_held()
    if found is not None and run.rng.random() < 0.5:
        channel, [hold] = found
        run.done[-1] += f", ack {channel} {hold.message.offset}"
        hold.message.ack_nowait()
        channel.settle(hold.message.offset)
    if topics and run.rng.random() < 0.5:
        topic = run.rng.choice(topics)
        run.done[-1] += f", put {topic.name}"
        with suppress(aiodq.QueueFull):
            await run.topic(topic).put(sent.body)
            topic.perhaps.append([sent])
