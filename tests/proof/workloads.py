"""The programs whose traces are cut. Each does what a service does, with every message noted in the ledger."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

import aiodq
from aiodq import diskqueue
from aiodq.cli.commands.diskqueue import taken_over
from aiodq.storage.bulk.commits import CommitKey
from aiodq.testing import Fault
from tests.proof.clients import puts_of_clients, puts_of_clients_through_memory, work_of_clients
from tests.proof.world import PATH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.testing.faults import Pages
    from tests.proof.world import World

__all__ = ["WORKLOADS", "Workload", "workload"]

SMALL = aiodq.StoreOptions(segment_bytes=700)
"""Segments so small that every few messages one rolls."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A program with a name, and what it is about."""

    name: str
    about: str
    program: Callable[[World], Awaitable[None]]


WORKLOADS: dict[str, Workload] = {}


def workload(program: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    """Add a program to those that are explored."""
    name = program.__name__.replace("_", " ")
    WORKLOADS[name] = Workload(name, (program.__doc__ or "").split("\n")[0], program)
    return program


@workload
async def single_puts(world: World) -> None:
    """One producer, one message at a time, nobody consumes."""
    async with world.store() as store:
        queue = world.queue(store, "jobs")
        for _ in range(6):
            await world.put(queue, "p")


@workload
async def the_first_message(world: World) -> None:
    """A store, a topic and a channel are made for a single message."""
    async with world.store() as store:
        await world.put(world.queue(store, "jobs"), "p")


@workload
async def put_many(world: World) -> None:
    """Batches, one of them larger than a frame, between single messages."""
    async with world.store(aiodq.StoreOptions(segment_bytes=100_000)) as store:
        queue = world.queue(store, "jobs")
        for count, size in ((5, 20), (3, 30_000), (40, 0)):
            await world.put_many(queue, "m", count, size)
            await world.put(queue, "p")


@workload
async def many_producers(world: World) -> None:
    """Eight producers at once: a put that is written while a sync runs must wait for the next one."""
    async with world.store(SMALL) as store:
        await _eight_produce(world, world.queue(store, "jobs"))


async def _eight_produce(world: World, queue: aiodq.Queue) -> None:
    async def produce(name: str) -> None:
        for _ in range(4):
            await world.put(queue, name)
            await world.rest()

    await asyncio.gather(*(produce(f"p{number}") for number in range(8)))


@workload
async def synced_now_and_then(world: World) -> None:
    """Messages of one size that are only written, with a sync now and then: what is lost is lost from the end."""
    async with world.store(aiodq.StoreOptions(sync="os", segment_bytes=3000)) as store:
        queue = world.queue(store, "jobs")
        for _ in range(3):
            for _ in range(5):
                await world.write(queue, "p", 40)
            await world.sync(queue)
        for _ in range(3):
            await world.write(queue, "p", 40)


@workload
async def unsynced_tails(world: World) -> None:
    """A few messages of one size that are only written: what an earlier life left lies just where they go."""
    for count in (1, 6):
        async with world.store(aiodq.StoreOptions(sync="os")) as store:
            queue = world.queue(store, "jobs")
            for _ in range(count):
                await world.write(queue, "p", 40)
            await world.sync(queue)


@workload
async def unsynced_batches(world: World) -> None:
    """A few batches of one size that are only written: what an earlier life left lies just where they go."""
    for count in (1, 4):
        async with world.store(aiodq.StoreOptions(sync="os")) as store:
            queue = world.queue(store, "jobs")
            for _ in range(count):
                await world.write_many(queue, "m", 2, 40)
            await world.sync(queue)


@workload
async def acks_of_what_is_lost(world: World) -> None:
    """Acks that reach the disk before their messages do: what later gets the same numbers is not settled by them."""
    async with world.store(aiodq.StoreOptions(sync="os", segment_bytes=3000)) as store:
        queue = world.queue(store, "jobs")
        for _ in range(2):
            await world.write(queue, "p", 40)
        await world.sync(queue)
        for _ in range(3):
            await world.write(queue, "p", 40)
        await queue.topic.settle_in()
        for _ in range(queue.qsize()):
            world.ack_soon(await queue.get())
        await asyncio.sleep(0.1)
    async with world.store() as store:
        for _ in range(2):
            await world.put(store.queue("jobs"), "q")


@workload
async def larger_than_a_sector(world: World) -> None:
    """Messages of several sectors, of which a power cut may bring some and not others."""
    async with world.store(aiodq.StoreOptions(sync="os")) as store:
        queue = world.queue(store, "jobs")
        for _ in range(2):
            for size in (1500, 5000, 2500):
                await world.write(queue, "p", size)
            await world.sync(queue)
        await world.write(queue, "p", 3000)


@workload
async def written_while_syncing(world: World) -> None:
    """Batches that go to the disk while an earlier one is being synced: they have to wait for a sync of their own."""
    with mock.patch("aiodq.engine.topic.commit.group_commit._OVERLAP", 1):
        async with world.store() as store:
            await _eight_produce(world, world.queue(store, "jobs"))


workload(puts_of_clients)
workload(puts_of_clients_through_memory)
workload(work_of_clients)


@workload
async def puts_and_acks(world: World) -> None:
    """Producers beside a consumer that acks, requeues, and leaves some in flight."""
    async with world.store() as store:
        queue = world.queue(store, "jobs")
        await asyncio.gather(_produce(world, queue, 10), _consume(world, queue, 7))


@workload
async def written_ahead(world: World) -> None:
    """Messages that go into zeros written ahead of them, in segments that are sealed, closed, and opened again."""
    with mock.patch("aiodq.storage.log.preallocation._PAGE", 64):
        for _ in range(2):
            async with world.store(SMALL) as store:
                queue = world.queue(store, "jobs")
                for size in (40, 150, 40, 300, 100):
                    await world.put(queue, "p", size)
                await _consume(world, queue, 3)


@workload
async def written_through_memory(world: World) -> None:
    """Messages that are stored in write windows, over zeros, in segments that are synced, sealed and opened again."""
    with mock.patch.multiple(
        "aiodq.storage.log.preallocation", _PAGE=64, _FIRST_WINDOW=1, _SMALL=500, _MOST=9000, GRANULARITY=1
    ):
        for _ in range(2):
            async with world.store(aiodq.StoreOptions(sync="os", segment_bytes=24_000)) as store:
                queue = world.queue(store, "jobs")
                for size in (4100, 40, 300, 4100, 40):
                    await world.write(queue, "p", size)
                await world.sync(queue)
                for size in (40, 4100, 40, 4100, 300, 4100, 40):
                    await world.write(queue, "p", size)


@workload
async def roll_and_retention(world: World) -> None:
    """Segments that fill, roll, are acked, and are deleted, while two channels are at different places."""
    async with world.store(SMALL) as store:
        topic = store.topic("jobs")
        fast, slow = world.channel(topic, "fast"), world.channel(topic, "slow")
        await world.put(topic, "p")
        for _ in range(3):
            for _ in range(6):
                await world.put(topic, "p", 100)
            await _consume(world, fast, 6)
            await _consume(world, slow, 4)
        world.channel(topic, "late", earliest=False)
        await world.put(topic, "p")


@workload
async def the_newest_segment(world: World) -> None:
    """All is acked, time goes by, and the last segment is deleted; one that is not all acked stays."""
    async with world.store(SMALL) as store:
        topic = store.topic("jobs")
        one, two = world.channel(topic, "one"), world.channel(topic, "two")
        for round_ in range(3):
            for _ in range(3):
                await world.put(topic, "p", 60)
            await asyncio.gather(_take(world, one, one.qsize()), _take(world, two, two.qsize() - round_ % 2))
            await topic.sync()
            world.let_pass(topic, 30)
            await asyncio.sleep(40)
        await world.put(topic, "p")


@workload
async def purging(world: World) -> None:
    """Purges between puts and acks."""
    async with world.store(SMALL) as store:
        queue = world.queue(store, "jobs")
        for _ in range(2):
            await world.put_many(queue, "m", 8, 60)
            await _consume(world, queue, 2)
            await world.purge(queue)
            await world.put(queue, "p")


@workload
async def checkpoints(world: World) -> None:
    """Acks so many that the journal is folded into a checkpoint again and again."""
    with mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 3):
        async with world.store(SMALL) as store:
            queue = world.queue(store, "jobs")
            await world.put_many(queue, "m", 20, 30)
            taken = await queue.get_many(20)
            for message in taken[::2]:
                await world.ack(message)
            for message in taken[1::4]:
                await message.nack()
            await world.put(queue, "p")


@workload
async def several_topics(world: World) -> None:
    """Topics made, used beside each other, and deleted."""
    async with world.store() as store:
        names = ("a", "b", "c")
        for name in names:
            world.queue(store, name)
        await asyncio.gather(*(_produce(world, store.queue(name), 4) for name in names))
        await _consume(world, store.queue("a"), 3)
        await world.delete(store, "b")
        await world.put(store.queue("c"), "q")


@workload
async def reopening(world: World) -> None:
    """The store is closed and opened between puts and acks."""
    for _ in range(3):
        async with world.store(SMALL) as store:
            queue = world.queue(store, "jobs")
            await _produce(world, queue, 4)
            await _consume(world, queue, 2)


async def _produce(world: World, queue: aiodq.Queue, count: int) -> None:
    for _ in range(count):
        await world.put(queue, "p")
        await world.rest()


async def _consume(world: World, channel: aiodq.Channel, count: int) -> None:
    """Take some; ack most, at once or durably, requeue some, and leave one in flight."""
    for number in range(count):
        message = await channel.get()
        way = world.random.randrange(4)
        if number == count - 1:
            break
        if way == 0:
            await message.nack()
        elif way == 1:
            world.ack_soon(message)
        else:
            await world.ack(message)


@workload
async def a_failed_sync(world: World) -> None:
    """A sync fails, the system forgets what it was to write, and the store is opened again in the same process."""
    error, at = world.random.choice(("EIO", "ENOSPC", "EDQUOT")), world.random.randint(1, 25)
    pages: Pages = world.random.choice(("kept", "dropped", "evicted"))
    of_a_file = world.random.random() < 0.7
    world.fs.plan.add(Fault("sync", at, error, pages=pages) if of_a_file else Fault("sync_directory", at, error))
    with suppress(aiodq.StoreFailedError):
        async with world.store(SMALL) as store:
            queue = world.queue(store, "jobs")
            for _ in range(3):
                await _produce(world, queue, 4)
                await _consume(world, queue, 3)
    world.fs.plan.clear()
    async with world.store(SMALL) as store:
        queue = world.queue(store, "jobs")
        await _produce(world, queue, 3)
        await _consume(world, queue, 2)


@workload
async def delays_and_requeues(world: World) -> None:
    """Messages put and requeued with delays, timeouts, and time going by; the journal is folded in between."""
    with mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 4):
        async with world.store(SMALL) as store:
            queue = world.queue(store, "jobs")
            await queue.topic.settle_in()
            for _ in range(2):
                await world.put_later(queue, "later", 3600)
                for _ in range(3):
                    await world.put(queue, "p")
                await world.defer(queue, await queue.get(), 3600)
                await _consume(world, queue, 2)
            world.let_pass(queue, 4000)
            await _consume(world, queue, 2)
            await world.put_later(queue, "later", 3600)


@workload
async def counted_deliveries(world: World) -> None:
    """Messages handed out, requeued, released, acked and left in flight, each delivery counted."""
    with mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 6):
        async with world.store(SMALL) as store:
            queue = world.queue(store, "jobs")
            queue = store.queue("jobs", aiodq.ChannelOptions(max_attempts=50))
            for _ in range(4):
                await world.put(queue, "p")
            for _ in range(2):
                left, back = await world.hand_out(queue), await world.hand_out(queue)
                await world.rest()
                await back.nack()
                again = await world.hand_out(queue)
                await world.count(queue, left, again)
                await world.give_back(queue, again)
                await world.rest()
                await world.ack(await world.hand_out(queue))


@workload
async def dead_letters(world: World) -> None:
    """Messages given up, at the first delivery and at a later one: they are in one topic or the other.

    None is out of attempts by being killed in hand: to open the store would give it up, and to look would change it.
    """
    async with world.store() as store:
        queue = world.queue(store, "jobs")
        queue = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead", max_attempts=9))
        for _ in range(6):
            await world.put(queue, "p")
        for _ in range(2):
            await world.reject(await queue.get(), "dead")
            message = await queue.get()
            if message.attempts == 1:
                await message.nack()
                message = await queue.get()
            await world.reject(message, "dead")
        await _consume(world, queue, 2)


@workload
async def requeued_letters(world: World) -> None:
    """Dead letters that go back to one of two channels: each is here or there, and the other channel sees none."""
    async with world.store(SMALL) as store:
        topic = store.topic("jobs")
        work, other = world.channel(topic, "work", dead_letter="dead"), world.channel(topic, "other")
        dead = world.queue(store, "dead")
        for channel in (work, other, dead):
            await _take(world, channel, channel.qsize())
        for number in range(3):
            await world.put(topic, f"r{number}")
        await _take(world, other, 2)
        for _ in range(2):
            await world.reject(await work.get(), "dead")
            await world.rest()
        await world.requeue(store, "dead")
        await _take(world, other, 1)


@workload
async def seeking(world: World) -> None:
    """A channel goes back and ahead between acks."""
    keep = aiodq.Retention(consumed="keep")
    async with world.store(aiodq.StoreOptions(segment_bytes=700, retention=keep)) as store:
        queue = world.queue(store, "jobs")
        for _ in range(8):
            await world.put(queue, "p")
        for _ in range(2):
            await _consume(world, queue, min(5, queue.qsize()))
            await world.seek(queue, "jobs", world.random.randint(queue.begin_offset, queue.end_offset))
            await world.put(queue, "p")
        await _consume(world, queue, min(2, queue.qsize()))


@workload
async def transactions(world: World) -> None:
    """Two workers in a row, each acking what it read and putting what it made of it in one transaction."""
    async with world.store(SMALL) as store:
        first, second = world.queue(store, "jobs"), world.queue(store, "made")
        for _ in range(5):
            await world.put(first, "p")

        async def work(queue: aiodq.Queue, puts: dict[str, int], count: int) -> None:
            for _ in range(count):
                await world.transact(store, [await queue.get()], puts)
                await world.rest()

        await asyncio.gather(work(first, {"made": 1, "log": 1}, 4), work(second, {"done": 2}, 3))
        await asyncio.sleep(1.5)
        await world.transact(store, [await first.get()], {"made": 1})
        await world.transact(store, [], {"done": 1, "log": 2})


@workload
async def transactions_among_others(world: World) -> None:
    """Transactions beside plain puts and acks, with a roll, a seek and a purge in between."""
    async with world.store(SMALL) as store:
        queue, other = world.queue(store, "jobs"), world.queue(store, "made")
        for _ in range(6):
            await world.put(queue, "p")

        async def beside() -> None:
            for _ in range(4):
                await world.put(other, "q")
                await world.rest()

        async def work() -> None:
            for _ in range(3):
                await world.transact(store, [await queue.get()], {"made": 1})

        await asyncio.gather(beside(), work())
        await _consume(world, other, 3)
        await world.seek_to_begin(queue)
        await world.transact(store, [await queue.get(), await queue.get()], {"made": 3})
        await world.purge(other)
        await world.transact(store, [await queue.get()], {"made": 1})
        await _consume(world, other, 1)


@workload
async def joined_transactions(world: World) -> None:
    """Messages whose own blocks stand inside a transaction's, of one channel or two: no ack comes before the commit."""
    async with world.store(SMALL) as store:
        first, second = world.queue(store, "jobs"), world.queue(store, "made")
        for _ in range(4):
            await world.put(first, "p")
            await world.put(second, "q")
        for _ in range(2):
            await world.join(store, [first], {"made": 1})
            await world.join(store, [first, second], {"done": 2})


@workload
async def a_namesake(world: World) -> None:
    """A channel is deleted and made again, and sees again what is there."""
    async with world.store() as store:
        topic = store.topic("jobs")
        for _ in range(2):
            channel = world.channel(topic, "one")
            await world.put(topic, "p")
            await world.ack(await channel.get())
            await world.close_channel(topic, "one")
        world.channel(topic, "one")
        await world.put(topic, "p")


@workload
async def topics_come_and_go(world: World) -> None:
    """Topics that transactions put into are deleted, and made again by others."""
    async with world.store(SMALL) as store:
        queue = world.queue(store, "jobs")
        for _ in range(4):
            await world.put(queue, "p")
        await world.transact(store, [await queue.get()], {"made": 2, "done": 1})
        await world.delete(store, "made")
        await world.transact(store, [await queue.get()], {"made": 1})
        await world.delete(store, "done")
        await world.transact(store, [await queue.get()], {"done": 2})
        await world.delete(store, "made")


@workload
async def channels_come_and_go(world: World) -> None:
    """Three channels of a topic, one of them deleted and made again, each at its own pace."""
    async with world.store(SMALL) as store:
        topic = store.topic("jobs")
        one, two = world.channel(topic, "one"), world.channel(topic, "two")
        for _ in range(4):
            await world.put(topic, "p")
        await asyncio.gather(_take(world, one, 4), _take(world, two, 2))
        three = world.channel(topic, "three", earliest=False)
        for _ in range(4):
            await world.put(topic, "p")
        await world.close_channel(topic, "two")
        await _take(world, one, 3)
        two = world.channel(topic, "two", earliest=False)
        await world.put(topic, "p")
        await asyncio.gather(_take(world, three, 3), _take(world, two, 1), _take(world, one, 1))


@workload
async def times_to_live(world: World) -> None:
    """Messages that expire before anybody asks for them, between others that do not."""
    async with world.store(SMALL) as store:
        topic = store.topic("jobs")
        channel, other = world.channel(topic, "one"), world.channel(topic, "two")
        for _ in range(5):
            await world.put(topic, "p")
            await world.put_mortal(topic, "m", 60)
        await _take(world, channel, 2)
        await world.let_die(topic, "m", 61)
        await asyncio.gather(_take(world, channel, 3), _take(world, other, 5))


async def _take(world: World, channel: aiodq.Channel, count: int) -> None:
    for _ in range(count):
        await world.ack(await channel.get())
        await world.rest()


@workload
async def stored_options(world: World) -> None:
    """A topic's history is kept, let go and kept again, by who names options and by who does not."""
    keep = aiodq.StoreOptions(segment_bytes=700, retention=aiodq.Retention(consumed="keep"), max_messages=1000)
    let_go = aiodq.StoreOptions(segment_bytes=900, max_messages=2000)
    async with world.store() as store:
        queue = world.queue(store, "jobs")
        async with world.going_by(store, "jobs", keep):
            await world.put(queue, "p", 100)
        for _ in range(9):
            await world.put(queue, "p", 100)
        await _take(world, queue, 9)
    async with world.store(SMALL) as store:
        queue = world.queue(store, "jobs")
        await world.put(queue, "p", 100)
        async with world.going_by(store, "jobs", let_go):
            await _take(world, queue, 1)
        for _ in range(4):
            await world.put(queue, "p", 200)
        await world.choose(queue.topic, keep)
        await _take(world, queue, 3)
        await world.put(queue, "p", 100)
    async with world.store() as store:
        await world.choose(store.topic("jobs"), let_go)
        await world.put(store.queue("jobs"), "p", 100)


@workload
async def pauses_and_options_of_channels(world: World) -> None:
    """A topic and its channels are paused, resumed and configured between puts and acks."""
    async with world.store(SMALL) as store:
        topic = store.topic("jobs")
        # One that is there keeps its options: to name it with others would change them.
        one, two = (
            topic.channel(name) if name in topic.channels() else world.channel(topic, name) for name in ("one", "two")
        )
        for name in ("", "one", "two"):
            await world.pause(topic, name, paused=False)
        await world.put(topic, "p")
        await asyncio.gather(world.pause(topic, "one", paused=True), world.put(topic, "p"), _take(world, two, 1))
        await world.configure(topic, "one", aiodq.ChannelOptions(max_attempts=9))
        await asyncio.gather(world.pause(topic, paused=True), world.configure(topic, "two", aiodq.ChannelOptions()))
        await world.put(topic, "p")
        await world.pause(topic, "one", paused=False)
        await asyncio.gather(world.pause(topic, paused=False), _take(world, one, 2), _take(world, two, 1))
        await world.configure(topic, "one", aiodq.ChannelOptions(max_attempts=5, visibility_timeout=7))
        await world.pause(topic, "two", paused=True)
        if world.random.random() < 0.5:
            await world.close_channel(topic, "two")
            world.channel(topic, "two")
        await world.put(topic, "p")


@workload
async def an_import(world: World) -> None:
    """What a go-diskqueue on the same disk holds is written and taken over, while a consumer acks."""
    directory = f"/queue{world.life}"
    world.fs.make_directory(directory)
    bodies = [world.message("i")[1] for _ in range(9)]
    diskqueue.write(directory, "jobs", bodies, max_bytes_per_file=400, fs=world.fs)
    found = diskqueue.read(directory, "jobs", fs=world.fs)
    async with world.store(SMALL) as store:
        queue = world.queue(store, "jobs")
        async for taken in taken_over(found, partial(world.put_bodies, queue), at_once=4):
            await _consume(world, queue, len(taken))


@workload
async def bulk_loads(world: World) -> None:
    """Segments that a writer beside the store has staged are committed, and adopted between puts and acks."""
    if not world.life:
        world.fs.make_directory(PATH)
    async with world.store(SMALL) as store:
        queue, other = world.queue(store, "jobs"), world.queue(store, "made")
        await world.put(queue, "p")
        await world.put(other, "p")
        for number in range(2):
            puts = world.load(CommitKey("stream", 2 * world.life + number), {"jobs": 12, "made": 2, "new": 1}, 100)
            await asyncio.gather(_produce(world, queue, 3), _consume(world, queue, 2), asyncio.sleep(2.5))
            await world.find(store, puts)
            await _take(world, other, 2)
        await _consume(world, queue, min(9, queue.qsize()))
    world.load(CommitKey(f"single {world.life}"), {"jobs": 2})
    world.load(CommitKey(f"once {world.life}", once=True), {"jobs": 2, "later": 1})
    async with world.store(SMALL) as store:
        await world.put(world.queue(store, "jobs"), "p")
        await _consume(world, store.queue("jobs"), 2)
