"""The step that works off all that is there before the store is closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiodq
from tests.model.living import reopen
from tests.model.model import channels_of
from tests.model.run import PATIENCE, Run

if TYPE_CHECKING:
    from tests.model.model import Channel

__all__ = ["drain"]

_MOMENT: Final = 0.05
"""Seconds in which not everything need be worked off."""


async def drain(run: Run) -> None:
    """No more puts; consumers get what is ready, and end, and who drains is told that nothing is left."""
    channels = [*channels_of(run.topics.values())]
    if any(channel.topic.lossy for channel in channels):
        return  # what a consumer holds may be taken away at any time
    if run.world.kind == "threads":
        return  # the store ends as its consumers still look at what they got
    await run.settle_in()
    member = run.world.any()
    certain = not any(channel.held() or channel.is_paused() for channel in channels)
    run.say("drain", "" if certain else "in part")
    if certain and not run.world.exact:
        # What a process has asked for and not taken goes back soon, perhaps only after all consumers have ended.
        await run.until(lambda: _nothing_in_flight(run, channels, member))
    ends = asyncio.Event()
    working = asyncio.gather(*(_work_off(run, channel, member, ends) for channel in channels))
    draining = asyncio.create_task(member.drain(PATIENCE if certain else _MOMENT))
    try:
        both: list[asyncio.Future[Any]] = [draining, working]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        drained = await draining
        assert drained or not certain, "something is ready or in flight"
        await _refused(run, member)
        if drained:
            await asyncio.wait([working], timeout=PATIENCE)
            assert working.done(), "who consumes goes on"
    finally:
        ends.set()
        await reopen(run)
        async with asyncio.timeout(PATIENCE):
            await working


async def _nothing_in_flight(run: Run, channels: list[Channel], member: aiodq.Store) -> None:
    for channel in channels:
        handle = run.channel(channel, member, queue=False)
        await handle.refresh()
        assert not handle.in_flight(), f"{channel} has {handle.in_flight()} in flight"


async def _work_off(run: Run, channel: Channel, member: aiodq.Store, ends: asyncio.Event) -> None:
    try:
        async for message in run.channel(channel, member, queue=False):
            await run.took(channel, [message], member)
            if message.offset in channel.held():
                await message.ack()
                channel.settle(message.offset)
    except aiodq.QueueShutDown:
        assert ends.is_set(), "who still works on a message is refused before the store is closed"


async def _refused(run: Run, member: aiodq.Store) -> None:
    topic = run.some_topic()
    if topic is None:
        return
    try:
        await run.topic(topic, member).put(run.body())
    except aiodq.QueueShutDown:
        return
    raise AssertionError(f"{topic.name} takes something after it was drained")
