"""The steps that move what is there: seeks, purges, letters that go back; and those that look at it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import aiodq
from tests.model.model import Channel, Sent, Topic
from tests.model.run import CANCELLED, PATIENCE, Run, again_if_lost

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "AUTO_ACK",
    "BACKOFF",
    "cancel",
    "configure",
    "find_moment",
    "look",
    "look_at_deferred",
    "pause",
    "peek",
    "purge_channel",
    "purge_topic",
    "read",
    "requeue_dead",
    "seek",
]

BACKOFF: Final = aiodq.Backoff(first=3.0, factor=2.0, limit=20.0, jitter=0.0)

AUTO_ACK: Final = 0.15
"""How many channels settle what they hand out."""


# --- dead letters


async def requeue_dead(run: Run) -> None:
    topic = run.topics.get("dead")
    if topic is None or (len(topic.channels) != 1 and "default" not in topic.channels):
        return
    channel = topic.channels["default"] if "default" in topic.channels else next(iter(topic.channels.values()))
    await run.settle_in()
    may = [offset for offset in channel.ready(run.now) if goes_back(run, topic.log[offset])]
    limit, chosen = run.rng.choice((None, 1, 3)), list[int]()
    run.say("requeue_dead", may, limit)

    def choose(letter: aiodq.Message) -> bool:
        if letter.offset in may:
            chosen.append(letter.offset)
        return letter.offset in may

    member = run.world.any()
    async with asyncio.timeout(PATIENCE):
        try:
            moved = await member.requeue_dead("dead", where=choose, limit=limit)
            assert moved == len(chosen), f"chosen were {chosen}, and {moved} moved"
        except aiodq.OwnerLostError:
            left = set(chosen)  # which of them moved is unknown
            await run.settle_in()
            await again_if_lost(lambda: member.requeue_dead("dead", where=lambda letter: letter.offset in left))
    if run.world.exact:
        assert chosen == may[:limit], f"chosen were {chosen}"
    for offset in chosen:
        origin, one = way_back(run, channel, offset)
        origin.returning.append(one)
        channel.settle(offset, written=True)
    await run.settle_in()


def goes_back(run: Run, sent: Sent) -> bool:
    """Whether a letter's channel is there and wants it."""
    letter = sent.letter
    if letter is None or letter.topic not in run.topics or run.topics[letter.topic].bounded:
        return False
    origin = run.topics[letter.topic].channels.get(letter.channel)
    return origin is not None and (origin.options.tags is None or sent.tag in origin.options.tags)


def way_back(run: Run, channel: Channel, offset: int) -> tuple[Topic, Sent]:
    """Return where a letter goes back to, and as what."""
    sent = channel.sent(offset)
    assert sent.letter is not None
    return run.topics[sent.letter.topic], Sent(sent.body, sent.tag, only=sent.letter.channel)


# --- moving and emptying


async def moments(run: Run, topic: Topic) -> list[tuple[datetime, int]]:
    """Return when messages were put, and the first one of each moment."""
    found: dict[datetime, int] = {}
    async for message in run.topic(topic).scan():
        found.setdefault(message.timestamp, message.offset)
    return [] if topic.lossy else [*found.items()]


async def find_moment(run: Run) -> None:
    topic = run.some_topic()
    if topic is None or not (found := await moments(run, topic)):
        return
    moment, first = run.rng.choice(found)
    run.say("offset_at", topic.name, moment)
    offset = await run.topic(topic).offset_at(moment)
    # What lay there may have been deleted meanwhile.
    assert offset == max(first, topic.begin) or offset in {one for _, one in await moments(run, topic)}


async def configure(run: Run) -> None:
    if (channel := run.some_channel()) is None:
        return
    options = replace(
        channel.options, max_in_flight=max(len(channel.held()), run.rng.choice((1, 3, 1000))),
        backoff=run.rng.choice((None, BACKOFF)), auto_ack=run.rng.random() < AUTO_ACK,
    )  # fmt: skip
    run.say("configure", channel, options.max_in_flight, options.backoff, options.auto_ack)
    async with asyncio.timeout(PATIENCE):
        await run.channel(channel).configure(options)
        await run.all_told()
    channel.options = options
    await run.check()


async def seek(run: Run) -> None:
    if (channel := run.some_channel()) is None:
        return
    await run.check()
    topic, handle = channel.topic, run.channel(channel)
    somewhere = run.rng.randint(topic.begin, max(topic.begin, topic.end))
    places: list[tuple[Literal["earliest", "latest"] | int | datetime, int]] = [
        ("earliest", topic.begin),
        ("latest", topic.end),
        (somewhere, somewhere),
        *await moments(run, topic),
    ]
    position, start = run.rng.choice(places)
    run.say("seek", channel, position)
    try:
        # Two seeks bring back twice what has expired, and make two dead letters of it.
        cancels = 0.0 if channel.options.dead_letter else None
        if await run.attempt(lambda: handle.seek(position), cancels=cancels) is CANCELLED:
            await handle.seek(position)  # after the first one, which goes on
    except aiodq.OffsetError:
        await handle.refresh()
        assert start < run.topic(topic).begin_offset, f"{channel} cannot go to {position}"
        return
    await note_start(run, channel, start)


async def note_start(run: Run, channel: Channel, start: int) -> None:
    """Note that a channel begins at an offset, or at the first one kept after it."""
    topic = channel.topic
    for offset in channel.held():
        channel.take_away(offset)
    channel.entries.clear()
    channel.all_written()
    there = {message.offset async for message in run.topic(topic).scan()}
    dead = run.topics.get(channel.options.dead_letter or "")
    place = topic.name, channel.name
    under_way = {one.offset for one in (dead.letters if dead else ()) if (one.topic, one.channel) == place}
    for offset in topic.log:
        if offset >= max(start, topic.begin):
            channel.add(offset, unsure=offset not in there)
            channel.entries[offset].back = offset in under_way  # its letter may come from before
            if channel.sent(offset).expiry <= run.now:
                channel.entries[offset].unsure = True
                if channel.options.dead_letter is not None and channel.wants(channel.sent(offset)):
                    run.give_up(channel, offset, sure=False)
    topic.overflow()
    await run.check()  # what has expired is given up once more, and takes room in flight until it is


async def purge_channel(run: Run) -> None:
    if (channel := run.some_channel()) is None:
        return
    run.say("purge", channel)
    await run.settle_in()
    low, high = channel.depths()
    handle = run.channel(channel, queue=False)  # a queue's `purge` is that of its topic
    number = await run.attempt(lambda: again_if_lost(handle.purge))
    if number is CANCELLED:
        await again_if_lost(handle.purge)  # after the first one, which goes on
    elif number is not None:
        assert channel.topic.lossy or low <= number <= high, f"purged {number}, not {low} to {high}"
    purged(channel)


def purged(channel: Channel) -> None:
    for offset in [*channel.entries]:
        if channel.entries[offset].held is not None:
            channel.take_away(offset)
        channel.settle(offset, written=True)
    channel.all_written()


async def purge_topic(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    run.say("purge", topic.name)
    await run.settle_in()
    handle = run.topic(topic)
    if await run.attempt(lambda: again_if_lost(handle.purge)) is CANCELLED:
        await again_if_lost(handle.purge)  # as above
    for channel in topic.channels.values():
        purged(channel)
    await handle.sync()
    topic.begins(max(topic.end, handle.begin_offset))
    topic.purged = topic.begin


async def pause(run: Run) -> None:
    channel = run.some_channel()
    if channel is None:
        return
    whole = run.rng.random() < 0.3
    what: Channel | Topic = channel.topic if whole else channel
    handle: Any = run.topic(channel.topic) if whole else run.channel(channel)
    run.say("resume" if what.paused else "pause", what if isinstance(what, Channel) else what.name)
    async with asyncio.timeout(PATIENCE):
        await (handle.resume() if what.paused else handle.pause())
    what.paused = not what.paused


# --- looking


async def look(run: Run) -> None:
    run.say("look")
    await run.check()


async def peek(run: Run) -> None:
    if (channel := run.some_channel()) is None:
        return
    run.say("peek", channel)
    found = await run.channel(channel).peek()
    ready = channel.ready(run.now)
    if found is not None:
        run.check_content(channel.sent(found.offset), found)
    if run.world.exact and not channel.topic.lossy and ready:
        assert found is not None, f"{channel} shows nothing, and has {ready}"
        assert found.offset <= ready[0], f"{channel} shows {found}"


async def read(run: Run) -> None:
    topic = run.some_topic()
    if topic is None or not topic.needed():
        return
    offset = run.rng.choice(sorted(topic.needed()))
    run.say("read", topic.name, offset)
    try:
        run.check_content(topic.log[offset], await run.topic(topic).read(offset))
    except aiodq.OffsetError:
        assert topic.lossy, f"{topic.name} lacks {offset}"


async def look_at_deferred(run: Run) -> None:
    if (channel := run.some_channel()) is None:
        return
    await run.settle_in()
    run.say("deferred", channel)
    found = [message async for message in run.channel(channel).deferred_messages()]
    for message in found:
        assert message.offset in channel.entries, f"{channel} defers {message.offset}, which is settled"
        run.check_content(channel.sent(message.offset), message)
    if run.world.exact:
        missing = set(channel.deferred(run.now)) - {message.offset for message in found}
        assert not missing or channel.topic.lossy, f"{channel} does not defer {missing}"


async def cancel(run: Run) -> None:
    channel = run.some_channel()
    if channel is None or not (deferred := channel.deferred(run.now)) or channel.topic.lossy:
        return
    offset = run.rng.choice(deferred)
    run.say("cancel", channel, offset)
    handle = run.channel(channel)
    async with asyncio.timeout(PATIENCE):
        try:
            await handle.cancel(offset)
        except aiodq.OwnerLostError:
            with suppress(aiodq.OffsetError):  # as the first call has done it
                await again_if_lost(lambda: handle.cancel(offset))
    channel.settle(offset, written=True)
