"""The steps in which several tasks use the store at once, and handlers that fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiodq
from tests.model.model import Sent, Topic
from tests.model.putting import drawn
from tests.model.run import PATIENCE, Run
from tests.model.taking import some_ready

if TYPE_CHECKING:
    from tests.model.model import Channel, Hold

__all__ = ["at_once", "consume"]


async def at_once(run: Run) -> None:
    """Puts, acks and consumers beside each other."""
    topics = [topic for topic in run.topics.values() if not topic.bounded and not topic.lossy]
    channel, found = some_ready(run), run.some_held(5)
    if not topics or channel is None:
        return
    member, put, got = run.world.any(), list[tuple[Topic, int, Sent]](), list[aiodq.Message]()
    acks: list[Hold] = found[1] if found else []
    run.say("at once: get", channel, "ack", found and found[0], [hold.message.offset for hold in acks])

    async def produce(topic: Topic) -> None:
        for _ in range(run.rng.randint(1, 3)):
            sent, said = drawn(run)
            put.append((topic, await run.topic(topic).put(sent.body, **said), sent))

    async def take(handle: aiodq.Channel) -> None:
        for _ in range(run.rng.randint(1, 4)):
            await asyncio.sleep(0)
            with suppress(aiodq.QueueEmpty):
                got.append(handle.get_nowait())

    takers = [take(run.channel(channel, member)) for _ in range(2)]
    producers = [produce(topic) for topic in run.rng.choices(topics, k=3)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*producers, *takers, *(hold.message.ack() for hold in acks))
    for topic, offset, sent in sorted(put, key=lambda one: one[:2][1]):
        await run.append(topic, offset, [sent])
    for hold in acks:
        assert found is not None
        found[0].settle(hold.message.offset, written=True)
    await run.took(channel, sorted(got, key=lambda message: message.offset), member)


async def consume(run: Run) -> None:
    """Handlers return, want to try again, or give up."""
    channel = None if run.world.kind == "threads" else some_ready(run)  # there it cannot be cancelled
    if channel is None or channel.is_paused() or channel.options.max_attempts is not None or channel.topic.lossy:
        return
    wanted = min(len(channel.ready(run.now)), channel.credit(), run.rng.randint(1, 6))
    if not wanted:
        return
    run.say("consume", channel, wanted, "of", channel.ready(run.now)[:8])
    handled: list[tuple[aiodq.Message, str]] = []
    late: list[tuple[aiodq.Message, str]] = []
    enough = asyncio.Event()

    async def handle(message: aiodq.Message) -> None:
        if len(handled) >= wanted:
            late.append((message, "late"))
            await asyncio.sleep(2 * PATIENCE)  # until it is cancelled, and the message released
        handled.append((message, run.rng.choice(("done", "done", "later", "never"))))
        if len(handled) == wanted:
            enough.set()
        if handled[-1][1] == "later":
            raise aiodq.Retry(2.0)
        if handled[-1][1] == "never":
            raise aiodq.Reject("no")

    member = run.world.any()
    worker = asyncio.create_task(run.channel(channel, member).consume(handle, concurrency=run.rng.choice((1, 3))))
    async with asyncio.timeout(PATIENCE):
        await enough.wait()
        await asyncio.sleep(0)
        worker.cancel()
        await asyncio.wait([worker])
    run.done[-1] += f" -> {[(message.offset, how) for message, how in handled]}"
    for message, how in [*handled, *late] if channel.options.auto_ack else handled:
        note_handled(run, channel, message, how)
    for entry in channel.entries.values():
        entry.moved = True


def note_handled(run: Run, channel: Channel, message: aiodq.Message, how: str) -> None:
    """Note what follows of a handler's end."""
    run.check_taken(channel, message, channel.topic.begin)
    if how == "done" or channel.options.auto_ack:
        channel.settle(message.offset)
    elif how == "later":
        channel.requeue(message.offset, message.attempts, run.now + 2.0)
    else:
        run.give_up(channel, message.offset)
