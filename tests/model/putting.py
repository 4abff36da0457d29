"""The steps that put messages, also in transactions with acks."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import aiodq
from tests.model.model import Channel, Sent, Topic
from tests.model.run import CANCELLED, PATIENCE, Run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["TAGS", "drawn", "learned", "put", "put_many", "put_nowait", "transact"]

TAGS: Final = (None, "red", "blue")


# --- putting


def drawn(run: Run) -> tuple[Sent, dict[str, Any]]:
    """Return a message, and how it is said to `put`."""
    sent, said = Sent(run.body(), run.rng.choice(TAGS)), dict[str, Any]()
    if sent.tag is not None:
        said["tag"] = sent.tag
    if run.rng.random() < 0.15:
        said["delay"] = run.rng.choice((2.0, 30.0))
        sent = sent._replace(due=run.now + said["delay"])
    if run.rng.random() < 0.15:
        said["ttl"] = run.rng.choice((5.0, 50.0))
        sent = sent._replace(expiry=run.now + said["ttl"])
    return sent, said


async def put(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    sent, said = drawn(run)
    run.say("put", topic.name, sent.body[:8], said)
    handle = run.topic(topic)
    await put_group(run, topic, [sent], lambda: handle.put(sent.body, **said))


async def put_many(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    group = [drawn(run) for _ in range(run.rng.randint(1, 8))]
    run.say("put_many", topic.name, [(sent.body[:8], said) for sent, said in group])
    handle, drafts = run.topic(topic), [aiodq.Draft(sent.body, **said) for sent, said in group]
    await put_group(run, topic, [sent for sent, _ in group], lambda: handle.put_many(drafts))


async def put_nowait(run: Run) -> None:
    if (topic := run.some_topic()) is None or topic.bounded:
        return
    group = [drawn(run) for _ in range(run.rng.randint(1, 4))]
    run.say("put_nowait", topic.name, [(sent.body[:8], said) for sent, said in group])
    handle = run.topic(topic)
    receipts = [handle.put_nowait(sent.body, **said) for sent, said in group]
    if topic.lossy or run.rng.random() < 0.5:
        async with asyncio.timeout(PATIENCE):
            for (sent, _), receipt in zip(group, receipts, strict=True):
                await run.append(topic, await receipt, [sent])
        return
    topic.perhaps += [[sent] for sent, _ in group]
    await learned(run, topic)
    assert all(sent in topic.log.values() for sent, _ in group), "what was accepted is there"


async def put_group(run: Run, topic: Topic, group: list[Sent], call: Callable[[], Awaitable[Any]]) -> None:
    """Put an atomic group, and note what came of it."""
    low, high = topic.backlogs()
    most = topic.options.max_messages or math.inf
    if topic.lossy and max((len(one.held()) for one in topic.channels.values()), default=0) + len(group) > most:
        return  # there might be nothing to drop
    blocks = high + len(group) > most and topic.options.overflow == "block"
    try:
        # What a lossy topic got may be gone before anybody can look whether it came.
        found = await run.attempt(call, cancels=0.0 if topic.lossy else 1.0 if blocks else None)
    except aiodq.QueueFull:
        assert topic.options.overflow == "reject", "nothing else refuses"
        assert high + len(group) > most, f"{topic.name} has at most {high}"
        return
    if found is CANCELLED:
        topic.perhaps.append(group)
        await learned(run, topic)
        return
    if run.world.exact and topic.options.overflow != "drop_oldest":
        assert low + len(group) <= most or low == 0, f"{topic.name} has at least {low}"
    first = found if isinstance(found, int) else found.start
    await run.append(topic, first, group)


async def learned(run: Run, topic: Topic) -> None:
    for member in run.world.members:
        await run.topic(topic, member).sync()
    await run.learn(topic)


# --- transactions


class Undone(Exception):  # noqa: N818 - what ends a block on purpose
    """A transaction is abandoned."""


async def transact(run: Run) -> None:
    """Acks and puts over several topics, all or nothing."""
    targets = [topic for topic in run.topics.values() if not topic.bounded and not topic.lossy]
    if not targets:
        return
    member, acked = held_by_one(run)
    puts = [(run.rng.choice(targets), *drawn(run)) for _ in range(run.rng.randint(1, 4))]
    undone = run.rng.random() < 0.2
    run.say("transaction", [f"{channel} {message.offset}" for channel, message in acked], "puts",
            [(topic.name, sent.body[:8]) for topic, sent, _ in puts], "undone" if undone else "")  # fmt: skip
    groups = {topic.name: [sent for target, sent, _ in puts if target is topic] for topic, _, _ in puts}

    async def commit() -> None:
        with suppress(Undone):
            async with member.transaction() as tx:
                for topic, sent, said in puts:
                    tx.put(topic.name, sent.body, **said)
                tx.ack_many([message for _, message in acked])
                if undone:
                    raise Undone

    ended = await run.attempt(commit)
    if ended is CANCELLED:
        await commit_after(run, member, groups)
    there = await found_in_logs(run, groups)
    assert ended is CANCELLED or there is not undone
    for channel, message in acked if there else ():
        channel.settle(message.offset, written=True)


async def found_in_logs(run: Run, groups: dict[str, list[Sent]]) -> bool:
    """Return whether the puts of a transaction that is over were done: all of them, or none."""
    for name, group in groups.items():
        run.topics[name].perhaps.append(group)
    for name in groups:
        await learned(run, run.topics[name])
    there = {sent in run.topics[name].log.values() for name, group in groups.items() for sent in group}
    assert len(there) == 1, "done by half"
    return there.pop()


def held_by_one(run: Run) -> tuple[aiodq.Store, list[tuple[Channel, aiodq.Message]]]:
    """Return a member, and messages of one or two channels in its hand; perhaps none."""
    member: aiodq.Store | None = None
    acked: dict[int, tuple[Channel, aiodq.Message]] = {}
    for channel, holds in filter(None, (run.some_held(3), run.some_held(3))):
        member = holds[0].member if member is None else member
        acked |= {id(hold.message): (channel, hold.message) for hold in holds if hold.member is member}
    return (member or run.world.any()), [*acked.values()]


async def commit_after(run: Run, member: aiodq.Store, groups: dict[str, list[Sent]]) -> None:
    """Wait until a transaction whose caller was cancelled is over: the next one commits after it."""
    async with asyncio.timeout(PATIENCE), member.transaction() as tx:
        for name in groups:
            mark = Sent(run.body())
            tx.put(name, mark.body)
            run.topics[name].perhaps.append([mark])
