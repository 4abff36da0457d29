"""What a random run does: each step calls the store, and notes what is known afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import aiodq
from aiodq.format.columns import Columns
from aiodq.storage.bulk.commits import Commit, CommitKey, commit_staged
from aiodq.storage.bulk.staging import StagingWriter
from tests.faults.known import Joined, Known, Sent, Topic
from tests.faults.run import PATH, Hand, Run, options_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["ALONE", "TOGETHER", "make_topic"]

_SEGMENTS: Final = (600, 2000, 100_000)


# --- putting


async def put(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    group = [topic.send(run.body()) for _ in range(run.rng.choice((1, 1, 1, 4, 10)))]
    said: dict[str, Any] = {"delay": 5.0} if run.rng.random() < 0.15 else {}
    handle, first = run.store.topic(topic.name), group[0]
    run.say("put", topic.name, [sent.body[:6] for sent in group], said)
    drafts = [aiodq.Draft(sent.body, **said) for sent in group]
    what = f"put {first.body[:6]!r}"
    one = len(group) == 1
    ended = await run.call(what, lambda: handle.put(first.body, **said) if one else handle.put_many(drafts))
    for number, sent in enumerate(group):
        sent.put_ended(ended.error)
        if ended.error is None:
            sent.offset = (ended.value if one else ended.value.start) + number


async def put_nowait(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    handle = run.store.topic(topic.name)
    for _ in range(run.rng.randint(1, 5)):
        sent = topic.send(run.body())
        run.say("put_nowait", topic.name, sent.body[:6])
        try:
            receipt = handle.put_nowait(sent.body)
        except aiodq.AiodqError as error:
            sent.put_ended(error)
            raise
        ended = await run.call(f"receipt {sent.body[:6]!r}", partial(_same, receipt), cancels=0.0)
        sent.put_ended(ended.error)
        sent.offset = ended.value


def _same(receipt: Awaitable[int]) -> Awaitable[int]:
    return receipt


async def load(run: Run) -> None:
    """A bulk writer stages messages beside the store, and commits them."""
    some = run.rng.sample(sorted(run.topics), min(len(run.topics), 2))
    groups = {name: [run.topics[name].send(run.body()) for _ in range(run.rng.randint(1, 4))] for name in some}
    run.say("load", {name: [sent.body[:6] for sent in group] for name, group in groups.items()})
    for name in groups:
        run.topics[name].loading = True
    with suppress(aiodq.StorageError):
        writer = StagingWriter(run.fs, run.clock, PATH, f"job {run.bodies}", segment_bytes=500)
        for name, group in groups.items():
            writer.put(name, Columns([sent.body for sent in group]))
        staged = {name: tuple(files) for name, files in writer.finish().items()}
        assert not groups or commit_staged(
            run.fs, PATH, Commit(CommitKey(f"job {run.bodies}"), staged, run.clock.now_ns())
        )
        for group in groups.values():
            for sent in group:
                sent.put = Known.YES


# --- taking and settling


async def take(run: Run) -> None:
    if (some := run.some_channel()) is None:
        return
    (topic, name), most = some, run.rng.choice((1, 1, 3, 20))
    channel = run.channel(topic, name)
    run.say("get", topic.name, name, most)

    async def get() -> list[aiodq.Message]:
        with suppress(TimeoutError):
            if most == 1:
                return [await channel.get(timeout=0.0)]
            async with asyncio.timeout(0.01):
                return await channel.get_many(most)
        return []

    ended = await run.call(f"get {topic.name}/{name}", get, cancels=0.0)
    hand = Hand(topic, name, [(arrived(topic, name, message), message) for message in ended.value or []])
    if not hand.messages:
        return
    if run.rng.random() < 0.25:
        run.hands.append(hand)
    else:
        await settle(run, hand)


def arrived(topic: Topic, channel: str, message: aiodq.Message) -> Sent:
    """Check a message that was just handed out."""
    sent, what = topic.sent.get(message.body), f"{topic.name}/{channel} {message!r}"
    assert sent is not None, f"{what} was never put"
    assert sent.put is not Known.NO, f"{what} was refused"
    assert sent.settled.get(channel) is not Known.YES, f"{what} was settled"
    assert channel not in sent.held, f"{what} is in somebody's hand"
    sent.put = Known.YES
    sent.held.add(channel)
    return sent


async def settle_later(run: Run) -> None:
    """Settle what was taken at some time before."""
    if run.hands:
        hand = run.hands.pop(run.rng.randrange(len(run.hands)))
        if run.topics.get(hand.topic.name) is hand.topic and hand.channel in hand.topic.channels:
            await settle(run, hand)


async def settle(run: Run, hand: Hand) -> None:
    way = run.rng.choice((ack, ack_many, ack_many, nack, ack_nowait, reject, transact, transact))
    run.say(way.__name__, hand.topic.name, hand.channel, [sent.body[:6] for sent, _ in hand.messages])
    await way(run, hand)


async def ack(run: Run, hand: Hand) -> None:
    for sent, message in hand.messages:
        await _settled(run, hand, [sent], message.ack)


async def ack_many(run: Run, hand: Hand) -> None:
    channel, messages = run.channel(hand.topic, hand.channel), [message for _, message in hand.messages]
    await _settled(run, hand, [sent for sent, _ in hand.messages], lambda: channel.ack_many(messages))


async def _settled(run: Run, hand: Hand, some: list[Sent], call: Callable[[], Awaitable[None]]) -> None:
    for sent in some:
        sent.settling(hand.channel)
    ended = await run.call(f"ack {some[0].body[:6]!r}", call)
    for sent in some:
        sent.settling_ended(hand.channel, ended.error)


async def ack_nowait(run: Run, hand: Hand) -> None:
    del run
    for sent, message in hand.messages:
        sent.settling(hand.channel)
        with suppress(aiodq.AiodqError):
            message.ack_nowait()
        sent.held.discard(hand.channel)


async def nack(run: Run, hand: Hand) -> None:
    delay = run.rng.choice((0.0, 3.0))
    for sent, message in hand.messages:
        sent.held.discard(hand.channel)
        await run.call(f"nack {sent.body[:6]!r}", partial(message.nack, delay))


async def reject(run: Run, hand: Hand) -> None:
    for sent, message in hand.messages:
        sent.settling(hand.channel, reject=hand.channel == "z")
        if hand.channel == "z":
            run.letters[sent.body] = sent
        ended = await run.call(f"reject {sent.body[:6]!r}", message.reject)
        sent.settling_ended(hand.channel, ended.error)


async def transact(run: Run, hand: Hand) -> None:
    topics = [topic for _ in range(run.rng.randint(0, 3)) if (topic := run.some_topic()) is not None]
    puts = [(topic, topic.send(run.body())) for topic in topics]
    for sent, _ in hand.messages:
        sent.settling(hand.channel)

    async def commit() -> None:
        async with run.store.transaction() as tx:
            tx.ack_many([message for _, message in hand.messages])
            for topic, sent in puts:
                tx.put(topic.name, sent.body)

    ended = await run.call(f"transaction {[(topic.name, sent.body[:6]) for topic, sent in puts]}", commit)
    for _, sent in puts:
        sent.put_ended(ended.error)
    for sent, _ in hand.messages:
        sent.settling_ended(hand.channel, ended.error)
    run.joined.append(Joined(puts, [(hand.topic, hand.channel, sent) for sent, _ in hand.messages]))


async def put_in_transaction(run: Run) -> None:
    if (some := run.some_channel()) is not None:
        await transact(run, Hand(*some, []))


async def cancel_deferred(run: Run) -> None:
    if (some := run.some_channel()) is None:
        return
    topic, name = some
    channel = run.channel(topic, name)

    async def look() -> list[aiodq.DeferredMessage]:
        return [message async for message in channel.deferred_messages()]

    found = (await run.call(f"deferred {topic.name}/{name}", look)).value
    if found:
        message = run.rng.choice(found)
        sent = topic.sent[message.body]
        assert sent.put is not Known.NO, f"{topic.name}/{name} {message!r} was refused"
        run.say("cancel", topic.name, name, message.body[:6])
        sent.settling(name)
        ended = await run.call(f"cancel {message.body[:6]!r}", lambda: channel.cancel(message.offset))
        sent.settling_ended(name, ended.error)


# --- topics and channels


async def make_topic(run: Run) -> None:
    name = run.rng.choice("abcd")
    if name in run.topics or name in run.doubtful:
        return
    keep = run.rng.random() < 0.5
    options = aiodq.StoreOptions(
        sync=run.options.sync, sync_every=3, segment_bytes=run.rng.choice(_SEGMENTS),
        retention=aiodq.Retention(consumed="keep") if keep else aiodq.Retention(),
    )  # fmt: skip
    run.say("make", name, "keep" if keep else "")
    handle, topic = run.store.topic(name, options), Topic(name, keep)
    run.doubtful.add(name)
    if (await run.call(f"sync {name}", handle.sync, cancels=0.0)).error is not None:
        return
    for channel in run.rng.sample("xyz", run.rng.randint(1, 3)):
        made = handle.channel(channel, options_of(channel))
        if (await run.call(f"refresh {name}/{channel}", made.refresh, cancels=0.0)).error is not None:
            return
        topic.channels.add(channel)
    run.doubtful.discard(name)
    run.topics[name] = topic


async def delete_topic(run: Run) -> None:
    topic = run.some_topic()
    if topic is None or topic.loading:
        return  # what is loaded would make it again
    run.say("delete", topic.name)
    del run.topics[topic.name]
    run.doubtful.add(topic.name)
    run.joined.clear()
    for sent in topic.sent.values():
        sent.let_go("z")
    ended = await run.call(f"delete {topic.name}", lambda: run.store.delete_topic(topic.name), cancels=0.0)
    if ended.error is None:
        run.doubtful.discard(topic.name)


async def delete_channel(run: Run) -> None:
    some = run.some_channel()
    if some is None or len(some[0].channels) == 1:
        return
    topic, name = some
    run.say("delete", topic.name, name)
    topic.channels.discard(name)
    for sent in topic.sent.values():
        sent.let_go(name)
        del sent.settled[name]
    handle = run.store.topic(topic.name)
    await run.call(f"delete {topic.name}/{name}", lambda: handle.delete_channel(name), cancels=0.0)


async def purge(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    run.say("purge", topic.name)
    for sent in topic.sent.values():
        for name in topic.channels:
            sent.let_go(name)
        if sent.put is Known.YES:
            sent.put = Known.PERHAPS
    run.joined.clear()
    await run.call(f"purge {topic.name}", run.store.topic(topic.name).purge, cancels=0.0)


async def seek(run: Run) -> None:
    if (some := run.some_channel()) is None:
        return
    topic, name = some
    where: Literal["earliest", "latest"] = run.rng.choice(("earliest", "latest"))
    run.say("seek", topic.name, name, where)
    for sent in topic.sent.values():
        sent.let_go(name)
    run.joined.clear()
    channel = run.channel(topic, name)
    await run.call(f"seek {topic.name}/{name}", lambda: channel.seek(where), cancels=0.0)


async def configure(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    run.say("configure", topic.name)
    retention = aiodq.Retention(consumed="keep") if topic.keeps else aiodq.Retention()
    segment = run.rng.choice(_SEGMENTS)
    options = aiodq.StoreOptions(sync=run.options.sync, sync_every=3, segment_bytes=segment, retention=retention)
    handle = run.store.topic(topic.name)
    await run.call(f"configure {topic.name}", lambda: handle.configure(options), cancels=0.0)


# --- looking


async def sync(run: Run) -> None:
    if (topic := run.some_topic()) is not None:
        run.say("sync", topic.name)
        await run.call(f"sync {topic.name}", run.store.topic(topic.name).sync)


async def look(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    run.say("look", topic.name)
    handle = run.store.topic(topic.name)

    async def scan() -> list[aiodq.Message]:
        return [message async for message in handle.scan()]

    for message in (await run.call(f"scan {topic.name}", scan)).value or []:
        sent = topic.sent.get(message.body)
        assert sent is not None, f"{topic.name} {message!r} was never put"
        assert sent.put is not Known.NO, f"{topic.name} {message!r} was refused"
    run.store.stats()
    run.store.health()


async def backup(run: Run) -> None:
    run.say("backup")
    await run.call("backup", lambda: run.store.backup(f"/backup {len(run.done)}"))


async def let_time_pass(run: Run) -> None:
    seconds = run.rng.choice((0.1, 6.0, 120.0))
    run.say("time", seconds)
    run.clock.advance(seconds)
    await asyncio.sleep(seconds)


TOGETHER: Final = (put, put, put, put, put_nowait, put_in_transaction, put_in_transaction, sync, look)
"""The steps of which several are taken at once."""

ALONE: Final = (
    *(put,) * 10, *(put_nowait,) * 4, *(take,) * 20, *(settle_later,) * 6, *(make_topic,) * 3, *(load,) * 2,
    *(cancel_deferred,) * 2, *(let_time_pass,) * 2, *(look,) * 2, sync, sync, configure, delete_topic, delete_channel,
    purge, seek, backup,
)  # fmt: skip
"""The steps that are taken one after the other, each as often as it stands here."""
