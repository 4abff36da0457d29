"""Topics and channels that live in memory and end with the store. What is dropped is counted."""

from __future__ import annotations

import asyncio
import gc
from types import CoroutineType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import Fault, FaultPlan
from tests.channels.support import Machine, counts, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = aiodq.StoreOptions(memory_bytes=1 << 18)


class TestTopics:
    async def test_it_works_as_any_other(self, store: aiodq.Store) -> None:
        topic = store.topic("events#ephemeral")
        first, second = topic.channel("a"), topic.channel("b")
        assert await topic.put_many([b"1", b"2"]) == range(2)
        assert await topic.put(b"3", tag="t") == 2
        message = await soon(first.get())
        await message.nack()
        assert ready(first) == [b"1", b"2", b"3"]
        assert ready(second) == [b"1", b"2", b"3"]
        assert (await topic.read(2)).tag == "t"
        assert [message.body async for message in topic.scan(reverse=True)] == [b"3", b"2", b"1"]
        assert store.topics() == ["events#ephemeral"]

    async def test_nothing_of_it_is_on_disk_and_nothing_comes_back(self, machine: Machine) -> None:
        async with machine.store() as store:
            before = machine.fs.image()
            queue = store.queue("events#ephemeral")
            await queue.put(b"1")
            await (await soon(queue.get())).ack()
            await queue.put(b"2")
            await queue.sync()
            assert machine.fs.image() == before
        async with machine.store() as store:
            assert store.topics() == []
            assert counts(store.queue("events#ephemeral")) == (0, 0, 0)

    async def test_a_failing_disk_does_not_concern_it(self, machine: Machine) -> None:
        async with machine.store() as store:
            queue = store.queue("events#ephemeral")
            machine.fs.plan = FaultPlan([Fault(call, 1, "EIO", lasting=True) for call in ("write", "sync", "create")])
            await queue.put(b"1")
            await (await soon(queue.get())).ack()
            machine.fs.plan = FaultPlan([])

    async def test_beyond_its_memory_the_oldest_are_dropped_and_counted(self, store: aiodq.Store) -> None:
        topic = store.topic("events#ephemeral", SMALL)
        channel = topic.channel("a")
        most = 0
        for number in range(800):
            await topic.put(b"%d " % number + bytes(2000))
            most = max(most, topic.stats().disk_bytes)
        dropped = topic.stats().dropped
        assert 0 < dropped < 800
        found = [int(body.split()[0]) for body in ready(channel)]
        assert found == list(range(dropped, 800))
        assert channel.stats().dropped == dropped
        assert most <= SMALL.memory_bytes

    async def test_without_a_channel_it_is_bounded_too(self, store: aiodq.Store) -> None:
        topic = store.topic("events#ephemeral", SMALL)
        for _ in range(300):
            await topic.put(bytes(2000))
        assert topic.begin_offset == topic.stats().dropped > 0
        assert topic.stats().disk_bytes <= SMALL.memory_bytes

    async def test_deleted_it_is_gone(self, store: aiodq.Store) -> None:
        await store.queue("events#ephemeral").put(b"1")
        await store.delete_topic("events#ephemeral")
        assert store.topics() == []
        assert counts(store.queue("events#ephemeral")) == (0, 0, 0)


class TestChannels:
    async def test_it_sees_the_topic_and_leaves_nothing(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("orders")
            durable = topic.channel("work")
            await topic.put(b"1")
            tail = topic.channel("tail#ephemeral")
            await topic.settle_in()
            before = machine.fs.image()
            await topic.put(b"2")
            message = await soon(tail.get())
            assert message.body == b"2"
            await message.ack()
            await tail.pause()
            assert [path for path in machine.fs.image() if "ephemeral" in path] == []
            assert machine.fs.image().keys() == before.keys()
            assert ready(durable) == [b"1", b"2"]
        async with machine.store() as store:
            assert store.topic("orders").channels() == ["work"]

    async def test_it_holds_no_segment_back_and_what_it_missed_is_counted(self, machine: Machine) -> None:
        async with machine.store(segment_bytes=4096) as store:
            topic = store.topic("orders")
            durable, tail = topic.channel("work"), topic.channel("tail#ephemeral")
            for number in range(20):
                await topic.put(b"%d " % number + bytes(1000))
            for _ in range(20):
                await (await soon(durable.get())).ack()
            await until(lambda: topic.stats().segments == 1)
            missed = tail.stats().dropped
            assert missed == topic.begin_offset > 10
            assert [int(body.split()[0]) for body in ready(tail)] == list(range(missed, 20))

    async def test_it_blocks_no_put(self, machine: Machine) -> None:
        async with machine.store(max_messages=2) as store:
            topic = store.topic("orders")
            durable, tail = topic.channel("work"), topic.channel("tail#ephemeral")
            for number in range(6):
                await soon(topic.put(b"%d" % number))
                await (await soon(durable.get())).ack()
            assert tail.depth == 6

    async def test_a_durable_channel_made_after_it_is_the_first(self, store: aiodq.Store) -> None:
        topic = store.topic("orders")
        await topic.put(b"1")
        topic.channel("tail#ephemeral")
        durable = topic.channel("work")
        await topic.settle_in()
        assert ready(durable) == [b"1"]

    async def test_deleted_it_is_gone_and_may_come_again(self, store: aiodq.Store) -> None:
        topic = store.topic("orders")
        topic.channel("work")
        tail = topic.channel("tail#ephemeral")
        await topic.put(b"1")
        await topic.delete_channel("tail#ephemeral")
        assert topic.channels() == ["work"]
        with pytest.raises(aiodq.QueueShutDown):
            await tail.get()
        again = topic.channel("tail#ephemeral", aiodq.ChannelOptions(start="earliest"))
        await topic.settle_in()
        assert ready(again) == [b"1"]


async def test_in_a_transaction_they_take_part_and_are_not_written(machine: Machine) -> None:
    async with machine.store() as store:
        topic, events = store.topic("orders"), store.queue("events#ephemeral")
        durable, tail = topic.channel("work"), topic.channel("tail#ephemeral")
        await topic.put(b"1")
        async with store.transaction() as tx:
            tx.ack(await soon(durable.get()))
            tx.ack(await soon(tail.get()))
            tx.put("events#ephemeral", b"seen")
            tx.put("made", b"2")
        assert (durable.depth, tail.depth) == (0, 0)
        assert ready(events) == [b"seen"]
        async with store.transaction() as tx:
            tx.put("events#ephemeral", b"alone")
        assert ready(events) == [b"alone"]
        machine.crash()
    async with machine.store() as store:
        assert store.topics() == ["made", "orders"]
        assert [message.body async for message in store.topic("made").scan()] == [b"2"]


def reached(start: object) -> Iterator[object]:
    """Yield what an object keeps in memory, but neither code nor what runs."""
    apart = (type, FunctionType, ModuleType, FrameType, CoroutineType, asyncio.Task, asyncio.AbstractEventLoop)
    found, pending = set[int](), [start]
    while pending:
        one = pending.pop()
        if id(one) not in found and not isinstance(one, apart):
            found.add(id(one))
            yield one
            pending += gc.get_referents(one)
            pending += one if isinstance(one, dict) else ()  # the collector leaves keys out that are text


async def test_nothing_is_kept_of_one_that_was_deleted(machine: Machine) -> None:
    """Who looks at a log that is kept gives each look a channel of its own, again and again."""
    keep = aiodq.Retention(consumed="keep")
    async with machine.store(sync="os", segment_bytes=500, retention=keep) as store:
        topic = store.topic("t")
        topic.channel("c")
        for _ in range(20):
            await topic.put(bytes(100))
        name = "look#ephemeral"
        look = topic.channel(name)
        await topic.put(b"x")
        message = await look.get()
        await message.ack()
        await topic.sync()
        await topic.delete_channel(name)
        del look, message
        gc.collect()
        await topic.sync()
        assert name not in [one for one in reached(topic._engine) if isinstance(one, str)]
