"""Every public coroutine, cancelled after each of its steps in every way there is; or, in quick runs, after some.

The engine runs without threads here (`InlineOffload`), so the steps are the same each time and none is left out. What
runs with threads, at random, is in test_schedules.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import aiodq
from aiodq.engine.store import store_engine
from aiodq.testing import SimulatedFileSystem
from tests.queue.support import turns, until
from tests.system.cancelling import KINDS, MOST_STEPS, Case, Kind, opened_at_last
from tests.system.support import InlineOffload, QuickFileSystem, bodies, descriptors_under, drain, nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiodq import Message, Queue

Scenario: TypeAlias = Callable[[Case], Awaitable[bool]]
"""Runs one case, checks everything, and returns whether the operation completed in spite of the cancellation."""

HOUR = 3600.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def after_steps(number: int, call: Callable[[], Any]) -> Any:
    await turns(number)
    result = call()
    return await result if asyncio.iscoroutine(result) else result


# --- putting


async def put(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b"])
        outcome = await case.cancel(lambda: queue.put(b"x"))
        assert outcome.cancelled or outcome.result == 2
        await queue.topic.settle_in()
        there = queue.end_offset == 3
        assert there or outcome.cancelled
        assert await queue.put(b"y") == 2 + there
        got = bodies(drain(queue))
        assert got == [b"a", b"b", b"x", b"y"] if there else [b"a", b"b", b"y"]
    assert await case.reopened() == got
    return not outcome.cancelled


async def put_to_getter(case: Case) -> bool:
    async with case.open_queue() as queue:
        getter = asyncio.create_task(queue.get())
        await turns(2)
        outcome = await case.cancel(lambda: queue.put(b"x"))
        await queue.topic.settle_in()
        there = queue.end_offset == 1
        assert there or outcome.cancelled
        if not there:
            await queue.put(b"y")
        message = await getter
        assert message.body == (b"x" if there else b"y")
        assert queue.depth == queue.in_flight() == 1
    assert await case.reopened() == [message.body]
    return not outcome.cancelled


async def put_without_room(case: Case) -> bool:
    """Two puts wait for room; whatever becomes of the first, the second gets its turn."""
    got: list[bytes] = []

    async def work_off(queue: Queue) -> None:
        async for message in queue:
            got.append(message.body)
            await message.ack()
            if message.body == b"y":
                return

    async with case.open_queue(max_messages=1) as queue:
        await queue.put(b"a")
        outcome = await case.cancel(
            lambda: queue.put(b"x"), lambda: (case.beside(queue.put(b"y")), case.beside(work_off(queue)))
        )
        await case.others_end()
        assert got in ([b"a", b"x", b"y"], [b"a", b"y"])
        assert b"x" in got or outcome.cancelled
    assert await case.reopened() == []
    return not outcome.cancelled


async def put_beside_others(case: Case) -> bool:
    """The open batch loses one message and keeps those around it."""
    async with case.open_queue() as queue:
        first = case.beside(queue.put(b"1"))
        case.beside(queue.put_many([b"2", b"3"]))
        await turns(1)
        outcome = await case.cancel(lambda: queue.put(b"x"), lambda: case.beside(queue.put(b"4")))
        await case.others_end()
        assert first.result() == 0
        await queue.topic.settle_in()
        got = bodies(drain(queue))
        assert sorted(got) in ([b"1", b"2", b"3", b"4"], [b"1", b"2", b"3", b"4", b"x"])
        assert b"x" in got or outcome.cancelled
        assert queue.topic_stats().pending == 0
    assert await case.reopened() == got
    return not outcome.cancelled


async def put_many(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put(b"a")
        outcome = await case.cancel(lambda: queue.put_many([b"x", b"y", b"z"]))
        assert outcome.cancelled or outcome.result == range(1, 4)
        await queue.topic.settle_in()
        there = queue.end_offset == 4
        assert there or (outcome.cancelled and queue.end_offset == 1)
        got = bodies(drain(queue))
        assert got == ([b"a", b"x", b"y", b"z"] if there else [b"a"])
    assert await case.reopened() == got
    return not outcome.cancelled


async def receipt(case: Case) -> bool:
    """Cancelling who awaits a receipt does not take the message back."""
    async with case.open_queue() as queue:
        given = queue.put_nowait(b"x")

        async def wait() -> int:
            return await given

        outcome = await case.cancel(wait)
        assert await given == 0
    assert await case.reopened() == [b"x"]
    return not outcome.cancelled


# --- getting


async def second_gets(case: Case, queue: Queue, operation: Callable[[], Awaitable[Message]]) -> bool:
    """Two getters wait and one message comes. Cancelled, the first leaves it to the second."""
    second: list[asyncio.Task[Message]] = []

    def others() -> None:
        second.append(asyncio.create_task(queue.get()))
        case.beside(after_steps(2, lambda: queue.put(b"x")))

    outcome = await case.cancel(operation, others)
    await case.others_end()
    if not outcome.cancelled:
        assert outcome.result.body == b"x"
        await queue.put(b"y")
    message = await second[0]
    assert message.body == (b"x" if outcome.cancelled else b"y")
    assert message.attempts == 1
    assert queue.qsize() == 0
    assert queue.in_flight() == 1 + (not outcome.cancelled)
    return not outcome.cancelled


async def get(case: Case) -> bool:
    async with case.open_queue() as queue:
        completed = await second_gets(case, queue, queue.get)
    assert await case.reopened() == ([b"x", b"y"] if completed else [b"x"])
    return completed


async def get_with_timeout(case: Case) -> bool:
    async with case.open_queue() as queue:
        return await second_gets(case, queue, lambda: queue.get(HOUR))


async def iterate(case: Case) -> bool:
    async with case.open_queue() as queue:
        iterator = aiter(queue)

        async def step() -> Message:
            return await anext(iterator)

        return await second_gets(case, queue, step)


async def get_from_disk(case: Case) -> bool:
    """What has to be read first comes in order, to whoever is left."""
    async with case.open_queue(segment_bytes=100) as queue:
        await queue.put_many([b"a"])
        await queue.put_many([b"b"])
        await queue.put_many([b"c"])
    async with case.open_queue() as queue:
        second: list[asyncio.Task[Message]] = []
        outcome = await case.cancel(queue.get, lambda: second.append(asyncio.create_task(queue.get())))
        message = await second[0]
        assert outcome.cancelled or outcome.result.body == b"a"
        taken = [message.body] if outcome.cancelled else [b"a", message.body]
        assert taken + bodies(drain(queue)) == [b"a", b"b", b"c"]
    assert await case.reopened() == [b"a", b"b", b"c"]
    return not outcome.cancelled


async def lingering(case: Case, channel: aiodq.ChannelOptions) -> bool:
    async with case.open_queue(channel) as queue:
        await queue.put_many([b"a", b"b"])
        outcome = await case.cancel(
            lambda: queue.get_many(3, linger=HOUR), lambda: case.beside(after_steps(12, lambda: queue.put(b"c")))
        )
        await case.others_end()
        if outcome.cancelled:
            messages = await queue.get_many(3)
            assert [message.attempts for message in messages] == [1, 1, 1]
        else:
            messages = outcome.result
        assert bodies(messages) == [b"a", b"b", b"c"]
        assert queue.depth == queue.in_flight() == (0 if channel.auto_ack else 3)
        return not outcome.cancelled


async def get_many(case: Case) -> bool:
    completed = await lingering(case, aiodq.ChannelOptions())
    assert await case.reopened() == [b"a", b"b", b"c"]
    return completed


async def get_many_with_auto_ack(case: Case) -> bool:
    completed = await lingering(case, aiodq.ChannelOptions(auto_ack=True))
    assert await case.reopened() == []
    return completed


async def get_many_before_another(case: Case) -> bool:
    """What a lingering consumer gives back wakes the one that waits."""
    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b"])
        second: list[asyncio.Task[Message]] = []

        def others() -> None:
            case.beside(after_steps(12, lambda: queue.put(b"c")))
            second.append(asyncio.create_task(after_steps(4, queue.get)))

        outcome = await case.cancel(lambda: queue.get_many(2 if case.number > 20 else 3, linger=HOUR), others)
        await case.others_end()
        if not outcome.cancelled:
            await queue.put(b"d")
        message = await second[0]
        taken = [*bodies(outcome.result or []), message.body]
        assert sorted(taken + bodies(drain(queue))) == [b"a", b"b", b"c", b"d"][: 3 if outcome.cancelled else 4]
        return not outcome.cancelled


# --- settling


async def ack(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b"])
        message = await queue.get()
        outcome = await case.cancel(message.ack)
        assert message.settled
        assert (queue.in_flight(), queue.depth) == (0, 1)
        with pytest.raises(aiodq.AlreadySettledError):
            await message.ack()
    assert await case.reopened() == [b"b"]
    return not outcome.cancelled


async def ack_many(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b", b"c"])
        messages = await queue.get_many(2)

        async def settle() -> None:
            await queue.ack_many(messages)

        outcome = await case.cancel(settle)
        assert all(message.settled for message in messages)
        assert (queue.in_flight(), queue.depth) == (0, 1)
    assert await case.reopened() == [b"c"]
    return not outcome.cancelled


async def cancel_deferred(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put(b"a")
        await queue.put(b"b", delay=HOUR)
        outcome = await case.cancel(lambda: queue.cancel(1))
        await until(lambda: queue.deferred() == 0)
        assert (queue.depth, queue.stats().cancelled) == (1, 1)
    assert await case.reopened() == [b"a"]
    return not outcome.cancelled


async def nack(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put(b"a")
        message = await queue.get()
        second = asyncio.create_task(queue.get())
        await turns(2)
        outcome = await case.cancel(message.nack)
        assert message.settled
        again = await second
        assert (again.body, again.attempts) == (b"a", 2)
        assert queue.depth == queue.in_flight() == 1
    assert await case.reopened() == [b"a"]
    return not outcome.cancelled


async def reject(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b"])
        message = await queue.get()
        outcome = await case.cancel(message.reject)
        assert message.settled
        assert (queue.depth, queue.stats().dead) == (1, 1)
    assert await case.reopened() == [b"b"]
    return not outcome.cancelled


async def reject_to_topic(case: Case) -> bool:
    """Whenever it is cancelled, the message goes where it is to go."""
    async with case.open() as store:
        queue, dead = store.queue("queue", aiodq.ChannelOptions(dead_letter="dead")), store.queue("dead")
        await queue.put(b"a")
        message = await queue.get()
        outcome = await case.cancel(message.reject)
        assert message.settled
        assert (await dead.get()).body == b"a"
        await until(lambda: queue.depth == 0)
    assert await case.reopened() == []
    return not outcome.cancelled


async def transaction(case: Case) -> bool:
    """Whenever it is cancelled, all of it is done or nothing."""
    async with case.open() as store:
        queue, made = store.queue("queue"), store.queue("made")
        await queue.put(b"a")
        message = await queue.get()

        async def work() -> None:
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("made", b"b")

        outcome = await case.cancel(work)
        await made.sync()
        await until(lambda: bool(made.qsize()) == (queue.depth == 0))
        if not outcome.cancelled:
            assert (message.settled, made.qsize()) == (True, 1)
        done = made.qsize() == 1
    assert await case.reopened() == ([] if done else [b"a"])
    async with case.open() as store:
        assert bodies(drain(store.queue("made"))) == ([b"b"] if done else [])
    return not outcome.cancelled


async def touch(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put(b"a")
        message = await queue.get()
        outcome = await case.cancel(lambda: message.touch(HOUR))
        assert queue.in_flight() == 1
        await message.ack()
    assert await case.reopened() == []
    return not outcome.cancelled


async def consume(case: Case) -> bool:
    """What the handler had is released, or acked if it was done with it."""
    done: list[bytes] = []

    async def handler(message: Message) -> None:
        await turns(2)
        done.append(message.body)

    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b"])
        outcome = await case.cancel(
            lambda: queue.consume(handler, concurrency=2), lambda: case.beside(after_steps(15, queue.shutdown))
        )
        await case.others_end()
        assert queue.in_flight() == 0
    left = await case.reopened()
    assert set(left) | set(done) == {b"a", b"b"}
    assert left == [] or outcome.cancelled
    return not outcome.cancelled


async def stop(case: Case) -> bool:
    """It goes on: the handler ends, and nothing new is handed out."""
    done: list[bytes] = []

    async def handler(message: Message) -> None:
        await turns(10)
        done.append(message.body)

    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b"])
        consuming = asyncio.create_task(queue.consume(handler))
        while not queue.in_flight():
            await turns(1)
        outcome = await case.cancel(lambda: queue.stop(HOUR))
        await consuming
        assert (done, queue.in_flight(), queue.depth) == ([b"a"], 0, 1)
    assert await case.reopened() == [b"b"]
    return not outcome.cancelled


async def stop_store(case: Case) -> bool:
    """It goes on until the store is closed."""
    done: list[bytes] = []

    async def handler(message: Message) -> None:
        await turns(10)
        done.append(message.body)

    async with case.open() as store:
        queue = store.queue("queue")
        await queue.put_many([b"a", b"b"])
        consuming = asyncio.create_task(queue.consume(handler))
        while not queue.in_flight():
            await turns(1)
        outcome = await case.cancel(lambda: store.stop(HOUR))
        await consuming
        await store.stop()
        with pytest.raises(aiodq.QueueShutDown):
            await queue.put(b"c")
    assert (done, await case.reopened()) == ([b"a"], [b"b"])
    return not outcome.cancelled


async def seek(case: Case) -> bool:
    async with case.open_queue(retention=aiodq.Retention(consumed="keep")) as queue:
        await queue.put_many([b"a", b"b", b"c"])
        for _ in range(2):
            await (await queue.get()).ack()
        held = await queue.get()
        outcome = await case.cancel(lambda: queue.seek(1))
        await until(lambda: queue.qsize() == 2)
        with pytest.raises(aiodq.NotInFlightError):
            await held.ack()
    assert await case.reopened() == [b"b", b"c"]
    return not outcome.cancelled


async def delete_channel(case: Case) -> bool:
    async with case.open() as store:
        topic = store.topic("queue")
        channel, other = topic.channel("default"), topic.channel("other")
        await topic.put(b"a")
        waiting = case.beside(ends_with(aiodq.QueueShutDown, channel.get(), channel.get()))
        await turns(3)
        outcome = await case.cancel(lambda: topic.delete_channel("default"))
        await until(lambda: topic.channels() == ["other"])
        await case.others_end()
        assert waiting.done()
        assert bodies(drain(other)) == [b"a"]
        new = topic.channel("default", aiodq.ChannelOptions(start="latest"))
        await topic.put(b"b")
        assert bodies(drain(new)) == [b"b"]
    assert await case.reopened() == [b"b"]
    return not outcome.cancelled


async def ends_with(error: type[Exception], *operations: Awaitable[Any]) -> None:
    """Await all; the last ends so."""
    results = await asyncio.gather(*operations, return_exceptions=True)
    assert isinstance(results[-1], error)


async def drain_store(case: Case) -> bool:
    async with case.open() as store:
        queue = store.queue("queue")
        await queue.put_many([b"a", b"b"])
        message = await queue.get()

        async def work() -> None:
            await turns(10)
            await message.ack()
            await (await queue.get()).ack()

        outcome = await case.cancel(store.drain, lambda: case.beside(work()))
        await case.others_end()
        assert outcome.cancelled or outcome.result
        with pytest.raises(aiodq.QueueShutDown):
            await queue.put(b"c")
        assert queue.depth == 0
    assert await case.reopened() == []
    return not outcome.cancelled


async def pause(case: Case) -> bool:
    """It has its effect when called, and is durable some time."""
    async with case.open_queue() as queue:
        await queue.put(b"a")

        async def both() -> None:
            await queue.topic.pause()
            await queue.pause()
            await queue.topic.resume()

        outcome = await case.cancel(both)
        assert queue.paused
        await queue.resume()
        await queue.topic.resume()
        assert (await queue.get()).body == b"a"
    assert await case.reopened() == [b"a"]
    return not outcome.cancelled


async def configure(case: Case) -> bool:
    """It is done all the same, for the topic and for the channel."""
    retention = aiodq.Retention(max_segments=7)
    async with case.open_queue() as queue:
        await queue.put(b"a")
        of_topic = replace(queue.topic.options, retention=retention)
        outcome = await case.cancel(lambda: queue.topic.configure(of_topic))
        await until(lambda: queue.topic.options.retention == retention)
    assert await case.reopened() == [b"a"]
    return not outcome.cancelled


async def configure_channel(case: Case) -> bool:
    options = aiodq.ChannelOptions(max_in_flight=7)
    async with case.open_queue() as queue:
        await queue.put(b"a")
        outcome = await case.cancel(lambda: queue.configure(options))
        await until(lambda: queue.options == options)
    assert await case.reopened() == [b"a"]
    return not outcome.cancelled


async def requeue_dead(case: Case) -> bool:
    """Each letter is in one place and not in the other."""
    async with case.open() as store:
        jobs, dead = store.queue("queue", aiodq.ChannelOptions(dead_letter="dead")), store.queue("dead")
        await jobs.put(b"a")
        await (await jobs.get()).reject("no")
        outcome = await case.cancel(lambda: store.requeue_dead("dead"))
        await store.requeue_dead("dead")
        await until(lambda: (jobs.depth, dead.depth) == (1, 0))
    assert await case.reopened() == [b"a"]
    return not outcome.cancelled


async def message_as_context(case: Case) -> bool:
    """Cancelled in the block, it is released; cancelled in the ack behind the block, it is acked."""
    async with case.open_queue() as queue:
        await queue.put(b"a")
        message = await queue.get()
        second = asyncio.create_task(queue.get())
        finished = asyncio.Event()

        async def work() -> None:
            async with message:
                await finished.wait()

        outcome = await case.cancel(work, lambda: case.beside(after_steps(5, finished.set)))
        await case.others_end()
        acked = queue.stats().acked == 1
        assert acked or outcome.cancelled
        if acked:
            await queue.put(b"b")
        again = await second
        assert (again.body, again.attempts) == (b"b" if acked else b"a", 1)
        assert queue.depth == queue.in_flight() == 1
    assert await case.reopened() == [again.body]
    return not outcome.cancelled


async def renewing(case: Case) -> bool:
    """Cancelled in the block, the message is in flight as before, and times out as before."""
    async with case.open_queue() as queue:
        await queue.put(b"a")
        message = await queue.get()
        finished = asyncio.Event()

        async def work() -> None:
            async with message.renewing():
                await finished.wait()

        outcome = await case.cancel(work, lambda: case.beside(after_steps(3, finished.set)))
        await case.others_end()
        assert queue.in_flight() == 1
        await message.ack()
    assert await case.reopened() == []
    return not outcome.cancelled


# --- looking


async def with_backlog(case: Case) -> None:
    async with case.open_queue(segment_bytes=100) as queue:
        for body in (b"a", b"b", b"c"):
            await queue.put(body)


async def refresh(case: Case) -> bool:
    await with_backlog(case)
    async with case.open_queue() as queue:
        outcome = await case.cancel(queue.refresh)
        assert (queue.qsize(), queue.in_flight()) == (3, 0)
    assert await case.reopened() == [b"a", b"b", b"c"]
    return not outcome.cancelled


async def peek(case: Case) -> bool:
    await with_backlog(case)
    async with case.open_queue() as queue:
        outcome = await case.cancel(queue.peek)
        assert outcome.cancelled or outcome.result.body == b"a"
        assert (queue.qsize(), queue.in_flight()) == (3, 0)
        assert bodies(drain(queue)) == [b"a", b"b", b"c"]
    assert await case.reopened() == [b"a", b"b", b"c"]
    return not outcome.cancelled


async def deferred_messages(case: Case) -> bool:
    async with case.open_queue(segment_bytes=100) as queue:
        for body in (b"a", b"b", b"c"):
            await queue.put(body, delay=HOUR)

    async with case.open_queue() as queue:

        async def walk() -> list[bytes]:
            return [message.body async for message in queue.deferred_messages()]

        outcome = await case.cancel(walk)
        assert outcome.cancelled or outcome.result == [b"a", b"b", b"c"]
        assert await walk() == [b"a", b"b", b"c"]
        assert queue.deferred() == queue.depth == 3
    assert await case.reopened() == []
    return not outcome.cancelled


async def read(case: Case) -> bool:
    await with_backlog(case)
    async with case.open_queue() as queue:
        outcome = await case.cancel(lambda: queue.read(1))
        assert outcome.cancelled or outcome.result.body == b"b"
        assert [(await queue.read(offset)).body for offset in (2, 0)] == [b"c", b"a"]
    assert await case.reopened() == [b"a", b"b", b"c"]
    return not outcome.cancelled


async def scan(case: Case) -> bool:
    return await _scan(case, reverse=False)


async def scan_back(case: Case) -> bool:
    return await _scan(case, reverse=True)


async def _scan(case: Case, *, reverse: bool) -> bool:
    await with_backlog(case)
    expected = [b"c", b"b", b"a"] if reverse else [b"a", b"b", b"c"]
    async with case.open_queue() as queue:

        async def walk() -> list[bytes]:
            return [message.body async for message in queue.scan(reverse=reverse)]

        outcome = await case.cancel(walk)
        assert outcome.cancelled or outcome.result == expected
        assert await walk() == expected
        assert queue.qsize() == 3
    assert await case.reopened() == [b"a", b"b", b"c"]
    return not outcome.cancelled


async def offset_at(case: Case) -> bool:
    await with_backlog(case)
    async with case.open_queue() as queue:
        outcome = await case.cancel(lambda: queue.offset_at(EPOCH))
        assert outcome.cancelled or outcome.result == 0
        assert await queue.offset_at(datetime.now(UTC).replace(year=9000)) == 3
    assert await case.reopened() == [b"a", b"b", b"c"]
    return not outcome.cancelled


# --- the rest


async def purge(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put_many([b"a", b"b", b"c"])
        message = await queue.get()
        outcome = await case.cancel(queue.purge)
        assert outcome.cancelled or outcome.result == 3
        await until(lambda: queue.depth == 0)
        with pytest.raises(aiodq.NotInFlightError):
            await message.ack()
        await queue.put(b"d")
        assert bodies(drain(queue)) == [b"d"]
    assert await case.reopened() == [b"d"]
    return not outcome.cancelled


async def purge_channel(case: Case) -> bool:
    async with case.open() as store:
        topic = store.topic("queue")
        channel = topic.channel("default")
        await topic.put_many([b"a", b"b", b"c"])
        await channel.get()
        outcome = await case.cancel(channel.purge)
        assert outcome.cancelled or outcome.result == 3
        await until(lambda: channel.depth == 0)
        await topic.put(b"d")
        assert bodies(drain(channel)) == [b"d"]
    assert await case.reopened() == [b"d"]
    return not outcome.cancelled


async def sync(case: Case) -> bool:
    async with case.open_queue(sync="os") as queue:
        await queue.put_many([b"a", b"b"])
        (await queue.get()).ack_nowait()
        outcome = await case.cancel(queue.sync)
        assert outcome.cancelled or queue.durable_offset == 2
        await until(lambda: queue.durable_offset == 2)
        assert await queue.put(b"c") == 2
        await queue.sync()
        assert queue.durable_offset == 3
    assert await case.reopened() == [b"b", b"c"]
    return not outcome.cancelled


async def settle_in(case: Case) -> bool:
    async with case.open() as store:
        topic = store.topic("queue")
        receipts = [topic.put_nowait(body) for body in (b"a", b"b")]
        channel = topic.channel("default", aiodq.ChannelOptions(start="earliest"))
        outcome = await case.cancel(topic.settle_in)
        assert outcome.cancelled or channel.depth == 2
        assert [await receipt for receipt in receipts] == [0, 1]
        await topic.settle_in()
        assert bodies(drain(channel)) == [b"a", b"b"]
    assert await case.reopened() == [b"a", b"b"]
    return not outcome.cancelled


async def join(case: Case) -> bool:
    async with case.open_queue() as queue:
        await queue.put(b"a")
        message = await queue.get()
        outcome = await case.cancel(
            queue.join, lambda: (case.beside(queue.join()), case.beside(after_steps(8, message.ack)))
        )
        await case.others_end()
        assert queue.depth == 0
    assert await case.reopened() == []
    return not outcome.cancelled


async def event(case: Case) -> bool:
    async with case.open() as store:
        queue = store.queue("queue")
        await queue.put(b"a")
        message, events = await queue.get(), store.events()
        outcome = await case.cancel(lambda: anext(events), lambda: case.beside(after_steps(3, message.reject)))
        await case.others_end()
        found = await anext(events) if outcome.cancelled else outcome.result
        assert (found.kind, found.offset) == ("dead", 0)
    assert await case.reopened() == []
    return not outcome.cancelled


async def aclose(case: Case) -> bool:
    queue = await case.open_queue()
    await queue.put_many([b"a", b"b"])
    given = queue.put_nowait(b"c")
    message = await queue.get()
    message.ack_nowait()
    getter = asyncio.create_task(queue.join())
    await turns(1)
    outcome = await case.cancel(queue.aclose)
    await queue.aclose()
    assert await given == 2
    with suppress(aiodq.QueueShutDown):
        await getter
    assert await case.reopened() == [b"b", b"c"]
    return not outcome.cancelled


async def aclose_store(case: Case) -> bool:
    store = await case.open()
    topic = store.topic("queue")
    channel = topic.channel("default")
    await topic.put_many([b"a", b"b"])
    await topic.read(0)
    await channel.get()
    await channel.get()
    getter = asyncio.create_task(channel.get())
    await turns(1)
    outcome = await case.cancel(store.aclose)
    await store.aclose()
    with pytest.raises(aiodq.QueueShutDown):
        await getter
    assert await case.reopened() == [b"a", b"b"]
    return not outcome.cancelled


async def open_store(case: Case) -> bool:
    async def opening() -> aiodq.Store:
        return await case.open()

    return await _open(case, opening)


async def open_queue(case: Case) -> bool:
    async def opening() -> aiodq.Queue:
        return await case.open_queue()

    return await _open(case, opening)


async def open_store_as_context(case: Case) -> bool:
    fs = SimulatedFileSystem()

    async def work() -> None:
        async with aiodq.open("/store", fs=fs) as store:
            await store.topic("queue").put(b"d")

    outcome = await case.cancel(work)
    store = await opened_at_last(lambda: aiodq.open("/store", fs=fs))
    assert isinstance(store, aiodq.Store)
    assert store.topic("queue").end_offset == 1 or outcome.cancelled
    await store.aclose()
    return not outcome.cancelled


async def queue_as_context(case: Case) -> bool:
    queue = await case.open_queue()
    await queue.put(b"a")

    async def work() -> None:
        async with queue:
            await queue.put(b"b")

    outcome = await case.cancel(work)
    await queue.aclose()
    left = await case.reopened()
    assert left == [b"a", b"b"] or (outcome.cancelled and left == [b"a"])
    return not outcome.cancelled


async def open_queue_as_context(case: Case) -> bool:
    async def opening() -> None:
        async with case.open_queue() as queue:
            await queue.put(b"d")
            await (await queue.get()).ack()

    return await _open(case, opening)


async def _open(case: Case, opening: Callable[[], Awaitable[Any]]) -> bool:
    if case.number % 2:
        await with_backlog(case)
    outcome = await case.cancel(opening)
    if outcome.result is not None:
        await outcome.result.aclose()
    queue = await opened_at_last(case.open_queue)
    assert isinstance(queue, aiodq.Queue)
    depth = queue.depth
    await queue.put(b"e")
    await queue.aclose()
    assert descriptors_under(case.path) == []
    assert depth + 1 == len(await case.reopened()) >= (3 if case.number % 2 else 0)
    return not outcome.cancelled


async def delete_topic(case: Case) -> bool:
    """A topic of that name that is made anew has nothing to do with the one that goes."""
    async with case.open() as store:
        old = store.topic("queue")
        channel = old.channel("default")
        await old.put_many([b"a", b"b"])
        message = await channel.get()
        outcome = await case.cancel(lambda: store.delete_topic("queue"))
        topic = store.topic("queue")
        assert topic is not old
        topic.channel("default")
        assert await topic.put(b"new") == 0
        with pytest.raises((aiodq.QueueShutDown, aiodq.NotInFlightError)):
            await message.ack()
        with pytest.raises(aiodq.QueueShutDown):
            await old.put(b"late")
    assert await case.reopened() == [b"new"]
    return not outcome.cancelled


async def backup(case: Case) -> bool:
    """It is there whole, or nothing is left of it."""
    place = case.path.with_name(f"{case.path.name} copy")
    unfinished = place.with_name(f"{place.name}.aiodq-tmp")
    async with case.open() as store:
        await store.queue("queue").put_many([b"a", b"b"])
        outcome = await case.cancel(lambda: store.backup(place))
        assert outcome.cancelled or place.exists()
    assert not unfinished.exists()
    if place.exists():
        async with aiodq.open(place, fs=QuickFileSystem(), create=False) as copy:
            assert copy.queue("queue").depth == 2
    assert await case.reopened() == [b"a", b"b"]
    return not outcome.cancelled


async def delete_topic_before_aclose(case: Case) -> bool:
    store = await case.open()
    topic = store.topic("queue")
    await topic.put_many([b"a", b"b"])
    outcome = await case.cancel(lambda: store.delete_topic("queue"))
    await store.aclose()
    assert descriptors_under(case.path) == []
    async with case.open() as again:
        assert again.topics() == []
    return not outcome.cancelled


SCENARIOS: tuple[Scenario, ...] = (
    put,
    put_to_getter,
    put_without_room,
    put_beside_others,
    put_many,
    receipt,
    event,
    get,
    get_with_timeout,
    iterate,
    get_from_disk,
    get_many,
    get_many_with_auto_ack,
    get_many_before_another,
    ack,
    ack_many,
    cancel_deferred,
    deferred_messages,
    nack,
    reject,
    reject_to_topic,
    transaction,
    touch,
    renewing,
    stop,
    stop_store,
    consume,
    seek,
    delete_channel,
    drain_store,
    configure,
    configure_channel,
    requeue_dead,
    pause,
    message_as_context,
    peek,
    refresh,
    read,
    scan,
    scan_back,
    offset_at,
    purge,
    purge_channel,
    sync,
    settle_in,
    join,
    aclose,
    aclose_store,
    open_store,
    open_queue,
    open_store_as_context,
    open_queue_as_context,
    queue_as_context,
    delete_topic,
    backup,
    delete_topic_before_aclose,
)


async def tried(path: Path, scenario: Scenario, steps: Iterator[tuple[int, Kind]]) -> int:
    """Cancel a scenario's operation after these steps, until it completes in spite of that; return how many were."""
    for trials, (number, kind) in enumerate(steps, 1):
        with nothing_left():
            async with asyncio.timeout(30):
                if await scenario(Case(path / str(number), kind, number)):
                    return trials
    return pytest.fail("it never completes")


def some_steps(rng: random.Random) -> Iterator[tuple[int, Kind]]:
    number = rng.randint(1, 4)
    while number < MOST_STEPS:
        yield number, rng.choice(KINDS)
        number += rng.randint(1, 6)


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_engine, "WorkerThreads", InlineOffload)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_cancelled_after_steps_drawn_at_random(
    scenario: Scenario, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """After some two in seven of its steps, others on each loop, and in any of the ways each time."""
    rng = random.Random(f"{seed} {scenario.__name__} {type(asyncio.get_running_loop()).__module__}")
    record_property("trials", await tried(tmp_path, scenario, some_steps(rng)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_cancelled_after_each_step(
    scenario: Scenario, kind: Kind, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    steps = ((number, kind) for number in range(1, MOST_STEPS))
    record_property("trials", await tried(tmp_path, scenario, steps))
