"""The steps that take messages, settle them, and let them time out."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Final

import aiodq
from tests.model.model import Channel, Hold, Sent, channels_of
from tests.model.run import CANCELLED, PATIENCE, Run, entry_of

__all__ = [
    "ack",
    "ack_many",
    "get",
    "in_context",
    "let_time_pass",
    "nack",
    "reject",
    "release",
    "settle_stale",
    "touch",
    "wait_and_put",
]

TAKEN: Final = (aiodq.DeliveryError, aiodq.QueueShutDown)

_TOLD: Final = 0.15
"""Seconds after which all processes were told that what they have read ahead has timed out."""


# --- getting


async def get(run: Run) -> None:
    if (channel := some_ready(run)) is None:
        return
    member = run.world.any()
    handle, must = run.channel(channel, member), bool(channel.ready(run.now)) and not channel.is_paused()
    must = must and channel.credit() > 0 and not channel.topic.lossy
    way = run.rng.choice(("get", "nowait", "many", "for"))
    run.say(way, channel, "which has" if must else "which may have", channel.ready(run.now)[:5])
    if not must:
        way = "nowait"
    with suppress(aiodq.QueueEmpty):
        found = await run.attempt(lambda: taken(run, handle, way))
        if found is CANCELLED:
            note_moved(channel)
            return
        run.done[-1] += f" -> {[message.offset for message in found]}"
        await run.took(channel, found, member)
        return
    assert not (must and run.world.exact), f"{channel} has {channel.ready(run.now)}, and gives nothing"


def some_ready(run: Run) -> Channel | None:
    """Return a channel, mostly one that has something to give."""
    full = [one for one in channels_of(run.topics.values()) if one.ready(run.now) and one.credit() > 0]
    return run.rng.choice(full) if full and run.rng.random() < 0.8 else run.some_channel()


async def taken(run: Run, handle: aiodq.Channel, way: str) -> list[aiodq.Message]:
    """Take messages in one of the ways."""
    if way == "nowait":
        return [handle.get_nowait()]
    if way == "get":
        return [await handle.get(run.rng.choice((None, PATIENCE)))]
    if way == "many":
        most = run.rng.randint(1, 5)
        found = await handle.get_many(most)
        assert 1 <= len(found) <= most
        return found
    async for message in handle:
        return [message]
    raise AssertionError("it was not shut down")


def note_moved(channel: Channel) -> None:
    """Note that some may have been handed out and given back."""
    for entry in channel.entries.values():
        entry.moved = True


async def wait_and_put(run: Run) -> None:
    """A waiting consumer gets what is put."""
    channel = run.some_channel()
    if channel is None or channel.is_paused() or channel.depths()[1] or channel.topic.bounded:
        return
    member, sent = run.world.any(), Sent(run.body(), next(iter(channel.options.tags or []), None))
    run.say("wait for", channel)
    waiting = asyncio.ensure_future(run.channel(channel, member).get())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        topic = channel.topic
        await run.append(topic, await run.topic(topic).put(sent.body, tag=sent.tag), [sent])
        await run.took(channel, [await waiting], member)


# --- settling


async def ack(run: Run) -> None:
    if (found := run.some_held()) is None:
        return
    channel, [hold] = found
    entry, offset = entry_of(channel, hold.message), hold.message.offset
    assert entry is not None
    if run.rng.random() < 0.4:
        run.say("ack_nowait", channel, offset)
        hold.message.ack_nowait()
        channel.settle(offset)
        return
    run.say("ack", channel, offset)
    if await run.attempt(hold.message.ack) is CANCELLED:
        channel.settle(offset)
        return
    channel.settle(offset)
    channel.all_written()


async def ack_many(run: Run) -> None:
    if (found := run.some_held(6)) is None:
        return
    channel, holds = found
    messages = [hold.message for hold in holds]
    run.say("ack_many", channel, [message.offset for message in messages])
    call = run.channel(channel, holds[0].member).ack_many

    async def settle() -> None:
        await call(messages)

    cancelled = await run.attempt(settle) is CANCELLED
    for message in messages:
        channel.settle(message.offset)
    if not cancelled:
        channel.all_written()


async def nack(run: Run) -> None:
    if (found := run.some_held()) is None:
        return
    channel, [hold] = found
    message, delay, counted = hold.message, run.rng.choice((None, None, 3.0, 40.0)), run.rng.random() < 0.8
    run.say("nack", channel, message.offset, "delay", delay, "" if counted else "uncounted")
    await run.attempt(lambda: message.nack(delay, count_attempt=counted))
    attempts = message.attempts - (not counted)
    if delay is None:
        run.failed(channel, message.offset, attempts)
    else:
        run.given_back(channel, message.offset, attempts, run.now + delay)


async def release(run: Run) -> None:
    if (found := run.some_held(3)) is None:
        return
    channel, holds = found
    for message in (hold.message for hold in holds):
        run.say("release", channel, message.offset)
        message.release()
        run.given_back(channel, message.offset, message.attempts - 1)


async def in_context(run: Run) -> None:
    """The message's own block acks, requeues or releases it."""
    if (found := run.some_held()) is None:
        return
    channel, [hold] = found
    message, error = hold.message, run.rng.choice((None, ValueError, asyncio.CancelledError))
    run.say("async with", channel, message.offset, error)
    with suppress(ValueError, asyncio.CancelledError):
        async with message:
            if error is not None:
                raise error
    if error is None:
        channel.settle(message.offset)
    elif error is ValueError:
        run.failed(channel, message.offset, message.attempts)
    else:
        run.given_back(channel, message.offset, message.attempts - 1)


async def reject(run: Run) -> None:
    if (found := run.some_held()) is None:
        return
    channel, [hold] = found
    run.say("reject", channel, hold.message.offset)
    await run.attempt(lambda: hold.message.reject("no"))
    run.give_up(channel, hold.message.offset)


async def touch(run: Run) -> None:
    if (found := run.some_held()) is None:
        return
    channel, [hold] = found
    extend = run.rng.choice((None, 100.0))
    run.say("touch", channel, hold.message.offset, extend)
    await hold.message.touch(extend)
    span = extend if extend is not None else channel.options.visibility_timeout
    deadline = run.now + float(span) if isinstance(span, float) else math.inf
    channel.entries[hold.message.offset].held = Hold(hold.message, hold.member, deadline)
    if not run.world.exact:
        await run.channel(channel, hold.member).refresh()


async def settle_stale(run: Run) -> None:
    """What was taken away can be settled no more."""
    channel = run.some_channel()
    if channel is None or not channel.stale:
        return
    message = channel.stale.pop(run.rng.randrange(len(channel.stale)))
    run.say("ack the stale", channel, message.offset)
    if message.settled:
        return
    try:
        async with asyncio.timeout(PATIENCE):
            await message.ack()
    except TAKEN:
        return
    raise AssertionError(f"{channel} {message.offset} was taken away, and could be acked")


# --- time


async def let_time_pass(run: Run) -> None:
    if run.world.child is not None:
        return  # its clock is its own
    await run.settle_in()
    seconds = run.rng.choice((1.0, 4.0, 15.0, 70.0))
    run.say("time passes:", seconds)
    run.world.clock.advance(seconds)
    run.time_passed(seconds)
    if not run.world.exact and any(one.options.visibility_timeout for one in channels_of(run.topics.values())):
        await asyncio.sleep(_TOLD)
    await run.settle_in()
