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
from tests.faults.known import LATE, Joined, Known, Sent, Topic
from tests.faults.run import Hand, Run, options_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.processes import Process

__all__ = ["ALONE", "AMID", "TOGETHER", "make_topic", "take_in"]

_SAID: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {"delay": 5.0},
    {"ttl": 50.0},
    {"delay": 5.0, "ttl": 50.0},
)
"""What is said of a put."""

_HOLDS: Final = 0.4
"""How often what was taken is settled later."""

_SEGMENTS: Final = (600, 2000, 100_000)


# --- putting


async def put(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    group = [topic.send(run.body()) for _ in range(run.rng.choice((1, 1, 1, 4, 10)))]
    said: dict[str, Any] = run.rng.choice(_SAID)
    for sent in group if "ttl" in said else ():
        sent.dies = run.now + said["ttl"]
        run.letters[sent.body] = sent
    process, first = run.some_process(), group[0]
    handle = process.store.topic(topic.name)
    run.say("put", topic.name, [sent.body[:6] for sent in group], said)
    drafts = [aiodq.Draft(sent.body, **said) for sent in group]
    what = f"put {first.body[:6]!r}"
    one = len(group) == 1
    ended = await run.call(process, what, lambda: handle.put(first.body, **said) if one else handle.put_many(drafts))
    for number, sent in enumerate(group):
        sent.put_ended(ended.error)
        if ended.error is None:
            sent.offset = (ended.value if one else ended.value.start) + number


async def put_nowait(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    process = run.some_process()
    handle, receipts = process.store.topic(topic.name), list[tuple[Sent, aiodq.Receipt]]()
    refused: aiodq.AiodqError | None = None
    for _ in range(run.rng.randint(1, 5)):
        sent = topic.send(run.body())
        run.say("put_nowait", topic.name, sent.body[:6])
        try:
            receipts.append((sent, handle.put_nowait(sent.body)))
        except aiodq.AiodqError as error:
            sent.put_ended(error)
            refused = error
            break
    for sent, receipt in receipts:
        ended = await run.call(process, f"receipt {sent.body[:6]!r}", partial(_same, receipt), cancels=0.0)
        sent.put_ended(ended.error)
        sent.offset = ended.value
    offsets = [sent.offset for sent, _ in receipts if sent.offset is not None]
    assert offsets == sorted(offsets), f"{topic.name} has another order than puts had: {offsets}"
    if refused is not None:
        raise refused


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
        writer = StagingWriter(run.fs, run.clock, run.path, f"job {run.bodies}", segment_bytes=500)
        for name, group in groups.items():
            writer.put(name, Columns([sent.body for sent in group]))
        staged = {name: tuple(files) for name, files in writer.finish().items()}
        assert not groups or commit_staged(
            run.fs, run.path, Commit(CommitKey(f"job {run.bodies}"), staged, run.clock.now_ns())
        )
        for group in groups.values():
            for sent in group:
                sent.put = Known.YES


# --- taking and settling


async def take(run: Run) -> None:
    if (some := run.some_channel()) is not None:
        patience = run.rng.choice((0.0, 0.0, 3.0)) if run.shared else 0.0
        await take_in(run, run.some_process(), *some, patience=patience)


async def take_in(run: Run, process: Process, topic: Topic, name: str, *, patience: float) -> None:
    """Have a process take messages, for which it waits so many seconds."""
    channel, most = run.channel(process, topic, name), run.rng.choice((1, 1, 3, 20))
    run.say("get", process, topic.name, name, most, patience or "")

    async def get() -> list[aiodq.Message]:
        with suppress(TimeoutError):
            if most == 1:
                return [await channel.get(timeout=patience)]
            async with asyncio.timeout(patience or 0.01):
                return await channel.get_many(most)
        return []

    ended = await run.call(process, f"get {topic.name}/{name}", get, cancels=0.0)
    if not ended.value or process not in run.processes:
        return  # with its end, it has given them back
    messages = [(arrived(run, process, topic, name, message), message) for message in ended.value]
    hand = Hand(process, topic, name, messages)
    if run.rng.random() < _HOLDS:
        run.hands.append(hand)
    else:
        await settle(run, hand)


def arrived(run: Run, process: Process, topic: Topic, channel: str, message: aiodq.Message) -> Sent:
    """Check a message that was just handed out."""
    sent, what = topic.sent.get(message.body), f"{topic.name}/{channel} {message!r}"
    assert sent is not None, f"{what} was never put"
    assert sent.put is not Known.NO, f"{what} was refused"
    assert sent.settled.get(channel) is not Known.YES, f"{what} was settled"
    assert sent.held.get(channel) not in run.processes, f"{what} is in somebody's hand"
    assert run.now <= sent.dies + LATE, f"{what} has no more time to live"
    sent.put = Known.YES
    sent.held[channel] = process
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
    messages = [message for _, message in hand.messages]

    async def call() -> None:
        await run.channel(hand.process, hand.topic, hand.channel).ack_many(messages)

    await _settled(run, hand, [sent for sent, _ in hand.messages], call)


async def _settled(run: Run, hand: Hand, some: list[Sent], call: Callable[[], Awaitable[None]]) -> None:
    for sent in some:
        sent.settling(hand.channel)
    ended = await run.call(hand.process, f"ack {some[0].body[:6]!r}", call)
    for sent in some:
        if isinstance(ended.error, aiodq.DeliveryError):
            lost = sent.held.get(hand.channel) is hand.process in run.processes and not run.was_faulty
            assert not lost, f"{hand.topic.name}/{hand.channel}: {hand.process} has lost {sent.body!r}: {ended.error}"
        sent.settling_ended(hand.process, hand.channel, ended.error)


async def ack_nowait(run: Run, hand: Hand) -> None:
    del run
    for sent, message in hand.messages:
        sent.settling(hand.channel)
        with suppress(aiodq.AiodqError):
            message.ack_nowait()
        sent.put_down(hand.process, hand.channel)


async def nack(run: Run, hand: Hand) -> None:
    delay = run.rng.choice((0.0, 3.0))
    for sent, message in hand.messages:
        sent.put_down(hand.process, hand.channel)
        if (await run.call(hand.process, f"nack {sent.body[:6]!r}", partial(message.nack, delay))).error is not None:
            sent.kept.add(hand.channel)


async def reject(run: Run, hand: Hand) -> None:
    for sent, message in hand.messages:
        sent.settling(hand.channel, reject=hand.channel == "z")
        if hand.channel == "z":
            run.letters[sent.body] = sent
        ended = await run.call(hand.process, f"reject {sent.body[:6]!r}", message.reject)
        sent.settling_ended(hand.process, hand.channel, ended.error)


async def transact(run: Run, hand: Hand) -> None:
    topics = [topic for _ in range(run.rng.randint(0, 3)) if (topic := run.some_topic()) is not None]
    puts = [(topic, topic.send(run.body())) for topic in topics]
    for sent, _ in hand.messages:
        sent.settling(hand.channel)

    async def commit() -> None:
        async with hand.process.store.transaction() as tx:
            tx.ack_many([message for _, message in hand.messages])
            for topic, sent in puts:
                tx.put(topic.name, sent.body)

    ended = await run.call(hand.process, f"transaction {[(topic.name, sent.body[:6]) for topic, sent in puts]}", commit)
    for _, sent in puts:
        sent.put_ended(ended.error)
    for sent, _ in hand.messages:
        sent.settling_ended(hand.process, hand.channel, ended.error)
    run.joined.append(Joined(puts, [(hand.topic, hand.channel, sent) for sent, _ in hand.messages]))


async def put_in_transaction(run: Run) -> None:
    if (some := run.some_channel()) is not None:
        await transact(run, Hand(run.some_process(), *some, []))


async def cancel_deferred(run: Run) -> None:
    if (some := run.some_channel()) is None:
        return
    (topic, name), process = some, run.some_process()
    channel = run.channel(process, topic, name)

    async def look() -> list[aiodq.DeferredMessage]:
        return [message async for message in channel.deferred_messages()]

    found = (await run.call(process, f"deferred {topic.name}/{name}", look)).value
    if found:
        message = run.rng.choice(found)
        sent = topic.sent[message.body]
        assert sent.put is not Known.NO, f"{topic.name}/{name} {message!r} was refused"
        run.say("cancel", topic.name, name, message.body[:6])
        sent.settling(name)
        ended = await run.call(process, f"cancel {message.body[:6]!r}", lambda: channel.cancel(message.offset))
        sent.settling_ended(process, name, ended.error)


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
    process, topic = run.some_process(), Topic(name, keep)
    handle = process.store.topic(name, options)
    run.doubtful.add(name)
    if (await run.call(process, f"sync {name}", handle.sync, cancels=0.0)).error is not None:
        return
    for channel in run.rng.sample("xyz", run.rng.randint(1, 3)):
        made = handle.channel(channel, options_of(channel))
        if (await run.call(process, f"refresh {name}/{channel}", made.refresh, cancels=0.0)).error is not None:
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
    process = run.some_process()
    ended = await run.call(process, f"delete {topic.name}", lambda: process.store.delete_topic(topic.name), cancels=0.0)
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
    process = run.some_process()
    handle = process.store.topic(topic.name)
    await run.call(process, f"delete {topic.name}/{name}", lambda: handle.delete_channel(name), cancels=0.0)


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
    process = run.some_process()
    await run.call(process, f"purge {topic.name}", process.store.topic(topic.name).purge, cancels=0.0)


async def seek(run: Run) -> None:
    if (some := run.some_channel()) is None:
        return
    topic, name = some
    where: Literal["earliest", "latest"] = run.rng.choice(("earliest", "latest"))
    run.say("seek", topic.name, name, where)
    for sent in topic.sent.values():
        sent.let_go(name)
    run.joined.clear()
    process = run.some_process()
    channel = run.channel(process, topic, name)
    await run.call(process, f"seek {topic.name}/{name}", lambda: channel.seek(where), cancels=0.0)


async def configure(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    run.say("configure", topic.name)
    retention = aiodq.Retention(consumed="keep") if topic.keeps else aiodq.Retention()
    segment = run.rng.choice(_SEGMENTS)
    options = aiodq.StoreOptions(sync=run.options.sync, sync_every=3, segment_bytes=segment, retention=retention)
    process = run.some_process()
    handle = process.store.topic(topic.name)
    await run.call(process, f"configure {topic.name}", lambda: handle.configure(options), cancels=0.0)


# --- looking


async def sync(run: Run) -> None:
    if (topic := run.some_topic()) is not None:
        process = run.some_process()
        run.say("sync", topic.name)
        await run.call(process, f"sync {topic.name}", process.store.topic(topic.name).sync)


async def look(run: Run) -> None:
    if (topic := run.some_topic()) is None:
        return
    run.say("look", topic.name)
    process = run.some_process()
    handle = process.store.topic(topic.name)

    async def scan() -> list[aiodq.Message]:
        return [message async for message in handle.scan()]

    for message in (await run.call(process, f"scan {topic.name}", scan)).value or []:
        sent = topic.sent.get(message.body)
        assert sent is not None, f"{topic.name} {message!r} was never put"
        assert sent.put is not Known.NO, f"{topic.name} {message!r} was refused"
    process.store.stats()
    process.store.health()


async def backup(run: Run) -> None:
    run.say("backup")
    process = run.some_process()
    await run.call(process, "backup", lambda: process.store.backup(f"/backup {len(run.done)}"))


async def let_time_pass(run: Run) -> None:
    seconds = run.rng.choice((0.1, 6.0, 120.0))
    run.say("time", seconds)
    run.clock.advance(seconds)
    await asyncio.sleep(seconds)


TOGETHER: Final = (put, put, put, put, put_nowait, put_in_transaction, put_in_transaction, sync, look)
"""The steps of which several are taken at once."""

AMID: Final = (*TOGETHER, *(put_in_transaction,) * 4, *(take,) * 6, *(settle_later,) * 4)
"""Those of which several are taken while a process goes."""

ALONE: Final = (
    *(put,) * 10, *(put_nowait,) * 4, *(take,) * 20, *(settle_later,) * 6, *(make_topic,) * 3, *(load,) * 2,
    *(cancel_deferred,) * 2, *(let_time_pass,) * 2, *(look,) * 2, sync, sync, configure, delete_topic, delete_channel,
    purge, seek, backup,
)  # fmt: skip
"""The steps that are taken one after the other, each as often as it stands here."""
