"""The steps that make and delete topics and channels, and end processes."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiodq
from aiodq.names import is_ephemeral
from tests.model.model import Channel, Sent, Topic, channels_of
from tests.model.moving import AUTO_ACK, BACKOFF, note_start
from tests.model.run import CANCELLED, PATIENCE, Run

__all__ = [
    "crash",
    "delete_channel",
    "delete_topic",
    "kill_owner",
    "make_channel",
    "make_topic",
    "own_elsewhere",
    "remake_topic",
    "reopen",
    "replace_member",
]
_BOUND: Final = 0.3
"""How many ephemeral topics have a bound."""

_EPHEMERAL: Final = 0.15
"""How many channels are ephemeral."""


# --- making and deleting


def topic_options(run: Run) -> aiodq.StoreOptions:
    keep = aiodq.Retention(consumed="keep")
    lossy = aiodq.Retention(consumed="keep", unconsumed="delete", **run.rng.choice((
        {"max_bytes": 6000}, {"max_segments": 3}, {"max_age": 60.0})))  # fmt: skip
    segment = run.rng.choice((500, 2000, 100_000))
    bound: dict[str, Any] = run.rng.choice((
        {}, {}, {}, {"max_messages": 8, "overflow": run.rng.choice(("block", "reject", "drop_oldest"))}))  # fmt: skip
    retention = aiodq.Retention() if bound else run.rng.choice((aiodq.Retention(), keep, lossy))
    return aiodq.StoreOptions(segment_bytes=segment, retention=retention, memory_bytes=1 << 16, **bound)


def channel_options(run: Run, topic: str) -> aiodq.ChannelOptions:
    most = run.rng.choice((None, None, 2, 3))
    dead = "dead" if topic != "dead" and run.rng.random() < 0.6 else None
    timeout = run.rng.choice((None, 10.0, 60.0)) if run.world.exact or most is None else None
    return aiodq.ChannelOptions(
        start=run.rng.choice((None, "earliest", "latest")), visibility_timeout=timeout, dead_letter=dead,
        max_in_flight=run.rng.choice((1, 4, 1000)), max_attempts=most,
        tags=run.rng.choice((None, None, None, ["red"])),
        backoff=run.rng.choice((None, BACKOFF)), auto_ack=run.rng.random() < AUTO_ACK,
    )  # fmt: skip


async def make_topic(run: Run) -> None:
    missing = sorted({"a", "b", "c", "dead"} - set(run.topics))
    if "dead" not in missing and run.world.exact and not any(map(is_ephemeral, run.topics)):
        missing.append(f"in{run.bodies}#ephemeral")  # in a shared store it cannot be looked at
    if not missing:
        return
    name = "dead" if "dead" in missing else run.rng.choice(missing)
    options = topic_options(run)
    if is_ephemeral(name):
        bound: dict[str, Any] = {"max_messages": 8, "overflow": "drop_oldest"} if run.rng.random() < _BOUND else {}
        options = aiodq.StoreOptions(segment_bytes=options.segment_bytes, memory_bytes=1 << 20, **bound)
    if name == "dead":
        options = aiodq.StoreOptions(segment_bytes=2000, retention=aiodq.Retention(consumed="keep"))
    run.say("make", name, options.retention, options.max_messages, options.overflow)
    member, topic, sent = run.world.any(), Topic(name, options, not run.world.exact), Sent(run.body())
    offset = await member.topic(name, options).put(sent.body)
    await run.append(topic, offset, [sent])
    run.topics[name] = topic


async def make_channel(run: Run) -> None:
    topic = run.some_topic()
    missing = sorted({"default", "x", "y"} - set(topic.channels)) if topic else []
    if not topic or not missing:
        return
    # Elsewhere such a channel may miss messages, and counts for no bound.
    if run.rng.random() < _EPHEMERAL and topic.options.retention.consumed == "keep":
        missing = [f"in{run.bodies}#ephemeral"]
        run.bodies += 1
    options = channel_options(run, topic.name)
    channel = Channel(topic, run.rng.choice(missing), options)
    await run.settle_in()
    run.say("make", channel, options)
    before = max(topic.begin, run.topic(topic).begin_offset)
    member = run.world.any()
    await run.topic(topic, member).channel(channel.name, options).refresh()
    counting = [name for name in topic.channels if is_ephemeral(topic.name) or not is_ephemeral(name)]
    earliest = options.start == "earliest" or (options.start is None and not counting)
    topic.channels[channel.name] = channel
    await note_start(run, channel, before if earliest else topic.end)


async def delete_channel(run: Run) -> None:
    channel = run.some_channel()
    if channel is None:
        return
    run.say("delete", channel)
    await run.settle_in()
    handle = run.topic(channel.topic)
    if await run.attempt(lambda: handle.delete_channel(channel.name)) is CANCELLED:
        await handle.delete_channel(channel.name)  # as above
    await run.all_told()
    del channel.topic.channels[channel.name]


async def delete_topic(run: Run) -> None:
    topic = run.some_topic()
    if topic is None or topic.letters:
        return  # letters that are on their way would make it anew
    run.say("delete", topic.name)
    await run.settle_in()
    member = run.world.any()
    if await run.attempt(lambda: member.delete_topic(topic.name)) is CANCELLED:
        await member.delete_topic(topic.name)  # as above
    await run.all_told()
    del run.topics[topic.name]


async def remake_topic(run: Run) -> None:
    """A topic is deleted, and while that goes on, one of its name is put into and looked at."""
    topic = run.some_topic()
    if topic is None or topic.letters or is_ephemeral(topic.name) or not run.world.exact:
        return
    if run.world.kind == "threads":
        return  # nobody knows which comes first
    await run.settle_in()
    member, group = run.world.any(), [Sent(run.body()) for _ in range(run.rng.randint(1, 3))]
    run.say("delete and make", topic.name, [sent.body[:8] for sent in group])
    deleting = asyncio.create_task(member.delete_topic(topic.name))
    await asyncio.sleep(0)
    made = member.topic(topic.name)
    puts = [asyncio.create_task(made.put(sent.body)) for sent in group]
    looks = made.channel("x").qsize, lambda: made.end_offset, lambda: made.channel("x").depth
    async with asyncio.timeout(PATIENCE):
        for _ in range(run.rng.randint(1, 30)):
            run.rng.choice(looks)()
            await asyncio.sleep(0)
        await deleting
        offsets = await asyncio.gather(*puts)
    await made.channel("x").refresh()
    assert offsets == [*range(len(group))], f"{topic.name} made anew has {offsets}"
    anew = run.topics[topic.name] = Topic(topic.name, run.world.options, not run.world.exact)
    await run.append(anew, 0, group)
    channel = anew.channels["x"] = Channel(anew, "x", aiodq.ChannelOptions())
    await note_start(run, channel, 0)
    await run.check()


# --- ends


async def reopen(run: Run) -> None:
    await before_end(run)
    run.say("reopen")
    await run.settle_in()
    async with asyncio.timeout(PATIENCE):
        await run.world.close()
        for channel in channels_of(run.topics.values()):
            channel.all_written()
        after_end(run, power=False)
        await run.world.open()
    await run.check()


async def crash(run: Run) -> None:
    power = run.world.power and run.rng.random() < 0.5
    await before_end(run)
    run.say("power cut" if power else "kill")
    async with asyncio.timeout(PATIENCE):
        await run.world.crash(power=power)
    after_end(run, power=power)
    await run.check()


async def before_end(run: Run) -> None:
    """Delete ephemeral channels of a shared store, as the next owner has them anew, at another place."""
    for channel in [*channels_of(run.topics.values())] if not run.world.exact else ():
        if is_ephemeral(channel.name):
            await run.topic(channel.topic).delete_channel(channel.name)
            await run.all_told()
            del channel.topic.channels[channel.name]


def after_end(run: Run, *, power: bool) -> None:
    """Note that all processes have ended, and with them what is ephemeral."""
    for topic in [*run.topics.values()]:
        if is_ephemeral(topic.name):
            del run.topics[topic.name]
        for name in [*filter(is_ephemeral, topic.channels)]:
            del topic.channels[name]
    another_owner(run, power=power)
    for channel in channels_of(run.topics.values()):
        channel.killed(power=power, ahead=not run.world.exact)
        channel.stale.clear()
        for offset in [*channel.entries]:
            run.look_at(channel, offset)


async def own_elsewhere(run: Run) -> None:
    """Another process is to own the store from now on."""
    if run.world.kind != "client" or run.world.child is not None:
        return
    await before_end(run)
    run.say("another process owns the store")
    await run.settle_in()
    async with asyncio.timeout(PATIENCE):
        await run.world.close()
        after_end(run, power=False)
        await run.world.open(elsewhere=True)
    await run.check()


async def kill_owner(run: Run) -> None:
    """The owner's process is killed: nobody loses what is in his hand, nor what he has settled."""
    if run.world.child is None:
        return
    await before_end(run)
    run.say("the owner is killed")
    async with asyncio.timeout(PATIENCE):
        await run.world.kill_owner()
    another_owner(run)
    await run.check()


def another_owner(run: Run, *, power: bool = False) -> None:
    """Note that the store was opened again."""
    for topic in run.topics.values():
        if power or topic.lossy:
            topic.begin = topic.purged  # what retention has deleted, or overflow dropped, may be back


async def replace_member(run: Run) -> None:
    """One process leaves, perhaps the owner; what it held comes to the others."""
    if run.world.exact:
        return
    await before_end(run)
    await run.settle_in()
    number = run.rng.randrange(len(run.world.members))
    run.say("member", number, "is replaced")
    async with asyncio.timeout(PATIENCE):
        gone = await run.world.replace(number)
    another_owner(run)
    for channel in channels_of(run.topics.values()):
        for offset, hold in channel.held().items():
            if hold.member is gone:
                # It held a message of a channel with `auto_ack` only if that was set since.
                counted = channel.options.max_attempts is not None and not channel.options.auto_ack
                channel.take_away(offset)
                run.given_back(channel, offset, hold.message.attempts - (not counted))
    await run.check()
