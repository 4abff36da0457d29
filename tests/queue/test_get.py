"""Getting: waiting, trying, several at once, iterating; in which order, and how many at a time."""

from __future__ import annotations

import asyncio
import errno
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.engine.channel.wait_queue import WaitQueue
from aiodq.engine.loop.futures import MOST_AT_ONCE
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    FakeClock,
    Tasks,
    bodies_of,
    drain,
    fill,
    numbered,
    queue,
    ready_now,
    soon,
    take,
    turns,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestMessage:
    async def test_what_it_tells(self, path: Path) -> None:
        clock = FakeClock()
        async with aiodq.open_queue(path, clock=clock, fs=WatchedFileSystem()) as jobs:
            await jobs.put(b"a")
            clock.move(1.5)
            await jobs.put(b"b", tag="t", key=b"k", headers={"h": "v"})
            first, second = await take(jobs, 2)
        assert (first.body, first.offset, first.id, first.attempts) == (b"a", 0, "0000000000000000", 1)
        assert (first.tag, first.key, first.headers) == (None, None, {})
        assert (second.offset, second.id) == (1, "0000000000000001")
        assert (second.tag, second.key, second.headers) == ("t", b"k", {"h": "v"})
        assert (second.topic, second.channel) == ("queue", "default")
        assert first.timestamp_ns == clock.now - 1_500_000_000
        assert second.timestamp_ns == clock.now
        assert first.timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        assert second.timestamp - first.timestamp == (second.timestamp - first.timestamp).__class__(seconds=1.5)

    async def test_the_same_from_disk_as_from_memory(self, path: Path) -> None:
        clock = FakeClock()
        async with aiodq.open_queue(path, clock=clock, fs=WatchedFileSystem()) as jobs:
            for body in numbered(5):
                clock.move(0.001)
                await jobs.put(body, tag="t")
            await jobs.put_many(numbered(5, start=5))
            before = [(m.offset, m.body, m.timestamp_ns, m.tag) for m in await take(jobs, 10)]
        async with queue(path) as jobs:
            assert [(m.offset, m.body, m.timestamp_ns, m.tag) for m in await take(jobs, 10)] == before

    async def test_it_shows_itself_without_its_whole_body(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"x" * 10_000)
            assert len(repr(jobs.get_nowait())) < 200


class TestGet:
    async def test_it_waits_for_a_put(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = tasks.start(jobs.get())
            await turns()
            assert not getting.done()
            await jobs.put(b"a")
            assert (await soon(getting)).body == b"a"

    async def test_before_the_topic_has_files(self, path: Path, tasks: Tasks) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as opened:
            topic = opened.topic("a")
            getting = tasks.start(topic.channel("c").get())
            await turns()
            await topic.put(b"a")
            assert (await soon(getting)).body == b"a"

    async def test_many_wait_and_each_gets_one(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = [tasks.start(jobs.get()) for _ in range(20)]
            await turns()
            await jobs.put_many(numbered(20))
            found = await soon(asyncio.gather(*getting))
            assert bodies_of(found) == numbered(20)

    async def test_the_first_who_waits_is_served_first(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = [tasks.start(jobs.get()) for _ in range(5)]
            await turns()
            for number, body in enumerate(numbered(5)):
                await jobs.put(body)
                assert (await soon(getting[number])).body == body
                assert not any(task.done() for task in getting[number + 1 :])

    @pytest.mark.parametrize("timeout", [0, -1, 0.0, 0.005])
    async def test_a_timeout(self, path: Path, timeout: float) -> None:
        async with queue(path) as jobs:
            with pytest.raises(TimeoutError):
                await soon(jobs.get(timeout))
            await jobs.put(b"a")
            assert (await jobs.get(timeout)).body == b"a"

    async def test_a_timeout_that_is_not_needed(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = tasks.start(jobs.get(3600))
            await turns()
            await jobs.put(b"a")
            assert (await soon(getting)).body == b"a"

    async def test_a_timeout_loses_nothing(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, sync="os") as jobs:
            found: list[bytes] = []

            async def consume() -> None:
                while len(found) < 200:
                    with suppress(TimeoutError):
                        message = await jobs.get(rng.choice([0, 0.0001, 0.001, 1]))
                        found.append(message.body)
                        message.ack_nowait()

            consuming = [asyncio.create_task(consume()) for _ in range(3)]
            for body in numbered(200):
                await jobs.put(body)
                if rng.random() < 0.2:
                    await asyncio.sleep(0.0005)
            await soon(jobs.join())
            assert sorted(found, key=int) == numbered(200)
            jobs.shutdown()
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)

    @pytest.mark.parametrize("way", ["timeout=", "asyncio.timeout"])
    async def test_who_waits_no_longer_than_a_turn_of_the_loop_gets_what_is_there(self, path: Path, way: str) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
            await take(jobs, 1)
            found: list[bytes] = []
            for _ in range(4 * 3):
                await asyncio.sleep(0.002)  # the turn of the getters is over
                with suppress(TimeoutError):
                    if way == "timeout=":
                        found.append((await jobs.get(timeout=1e-6)).body)
                    else:
                        async with asyncio.timeout(0):
                            found.append((await jobs.get()).body)
            assert found == numbered(4, 1)

    async def test_a_cancelled_getter_passes_its_wake_up_on(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, sync="os") as jobs:
            await jobs.put(b"0")
            await (await jobs.get()).ack()
            first, second = tasks.start(jobs.get()), tasks.start(jobs.get())
            await turns()
            await jobs.put(b"a")  # wakes the first, which has not run yet when it is cancelled
            first.cancel()
            await asyncio.wait([first])
            assert first.cancelled()
            assert (await soon(second)).body == b"a"
            assert jobs.depth == 1

    async def test_cancelled_at_random_nothing_is_lost_and_the_order_is_kept(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, sync="os") as jobs:
            found: list[bytes] = []
            running: list[asyncio.Task[None]] = []

            async def consume() -> None:
                message = await jobs.get()
                found.append(message.body)
                message.ack_nowait()

            async def produce() -> None:
                for body in numbered(300):
                    await jobs.put(body)
                    await asyncio.sleep(0)

            producing = asyncio.create_task(produce())
            while len(found) < 300:
                running.append(asyncio.create_task(consume()))
                await turns(rng.randrange(3))
                rng.choice(running).cancel()
                running = [task for task in running if not task.done()]
            await producing
            assert found == numbered(300)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class TestGetNoWait:
    async def test_nothing_there(self, path: Path) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.QueueEmpty) as caught:
                jobs.get_nowait()
            assert isinstance(caught.value, asyncio.QueueEmpty)
            assert caught.value.retriable

    async def test_cold_after_reopening(self, path: Path) -> None:
        async with queue(path, segment_bytes=2000) as jobs:
            await fill(jobs, numbered(200))
        async with queue(path) as jobs:
            assert not jobs.empty()
            assert ready_now(jobs) == numbered(200)

    async def test_not_empty_and_credit_left_means_success(self, path: Path, seed: int) -> None:
        """With memory for next to nothing, and messages of all sizes."""
        rng = random.Random(seed)
        bodies = [rng.randbytes(rng.choice([0, 1, 100, 5_000, 70_000, 200_000])) for _ in range(120)]
        async with queue(path, segment_bytes=300_000, memory_bytes=1 << 16) as jobs:
            for body in bodies:
                await jobs.put(body)
            found = []
            while not jobs.empty():
                message = jobs.get_nowait()
                found.append(message.body)
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
                message.ack_nowait()
            assert found == bodies

    async def test_no_credit(self, path: Path) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=2)) as jobs:
            await fill(jobs, numbered(3))
            held = [jobs.get_nowait(), jobs.get_nowait()]
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            assert (jobs.qsize(), jobs.in_flight(), jobs.depth) == (1, 2, 3)
            held[0].ack_nowait()
            assert jobs.get_nowait().body == b"2"


class TestGetMany:
    async def test_up_to_so_many_of_what_is_there(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put_many(numbered(5))
            assert bodies_of(await jobs.get_many(3)) == numbered(3)
            assert bodies_of(await jobs.get_many(100)) == [b"3", b"4"]

    async def test_at_least_one(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = tasks.start(jobs.get_many(10))
            await turns()
            assert not getting.done()
            await jobs.put(b"a")
            assert bodies_of(await soon(getting)) == [b"a"]

    @pytest.mark.parametrize("wrong", [0, -1])
    async def test_not_none(self, path: Path, wrong: int) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.InvalidOptionError):
                await jobs.get_many(wrong)

    async def test_lingering_until_there_are_enough(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = tasks.start(jobs.get_many(4, linger=3600))
            for body in numbered(3):
                await jobs.put(body)
                await turns()
            assert not getting.done()
            await jobs.put(b"3")
            assert bodies_of(await soon(getting)) == numbered(4)

    async def test_lingering_until_the_time_is_up(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            assert bodies_of(await soon(jobs.get_many(4, linger=0.005))) == [b"a"]

    async def test_lingering_until_shutdown(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            getting = tasks.start(jobs.get_many(4, linger=3600))
            await turns()
            jobs.shutdown()
            assert bodies_of(await soon(getting)) == [b"a"]
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.get_many(4)

    @pytest.mark.parametrize("auto_ack", [False, True])
    async def test_cancelled_while_lingering_all_are_there_again(
        self,
        path: Path,
        tasks: Tasks,
        auto_ack: bool,
    ) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(auto_ack=auto_ack)) as jobs:
            await jobs.put_many(numbered(3))
            getting = tasks.start(jobs.get_many(4, linger=3600))
            await turns()
            getting.cancel()
            await asyncio.wait([getting])
            assert (jobs.qsize(), jobs.in_flight()) == (3, 0)
            found = await jobs.get_many(3)
            assert [(message.body, message.attempts) for message in found] == [(body, 1) for body in numbered(3)]

    async def test_no_more_than_credit(self, path: Path) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=2)) as jobs:
            await jobs.put_many(numbered(5))
            assert bodies_of(await soon(jobs.get_many(5))) == numbered(2)

    async def test_of_a_far_backlog(self, path: Path) -> None:
        async with queue(path, segment_bytes=2000) as jobs:
            await jobs.put_many(numbered(500))
        async with queue(path) as jobs:
            assert bodies_of(await jobs.get_many(1000)) == numbered(500)


class TestIterating:
    async def test_it_ends_at_shutdown_with_everything_handed_out(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put_many(numbered(5))
            jobs.shutdown()
            found = []
            async for message in jobs:
                found.append(message.body)
                await message.ack()
            assert found == numbered(5)
            assert jobs.depth == 0

    async def test_it_ends_when_the_queue_is_closed(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:

            async def consume() -> list[bytes]:
                return [message.body async for message in jobs]

            consuming = [tasks.start(consume()) for _ in range(3)]
            await jobs.put_many(numbered(6))
            await turns()
        assert sorted(chain.from_iterable(await soon(asyncio.gather(*consuming)))) == numbered(6)

    async def test_what_was_accepted_before_the_shutdown_still_comes(self, path: Path, tasks: Tasks) -> None:
        """A producer that is done shuts the queue down; its last messages may still be on their way to the disk."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")

            async def consume() -> list[bytes]:
                return [message.body async for message in jobs]

            consuming = tasks.start(consume())
            for body in numbered(5):
                jobs.put_nowait(body)
            jobs.shutdown()
            await gate.wait()
            await turns(20)
            assert not consuming.done()
            gate.open()
            assert await soon(consuming) == numbered(5)

    async def test_thousands_wait_for_the_end_of_a_pause_after_a_shutdown_without_being_woken(
        self, path: Path, tasks: Tasks
    ) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"x")
            await jobs.pause()
            getters = [tasks.start(jobs.get()) for _ in range(3 * MOST_AT_ONCE)]
            await turns()
            jobs.shutdown()
            await turns(20)
            with mock.patch.object(WaitQueue, "wake") as wake:
                await turns(20)
            assert not wake.called
            await jobs.resume()
            ends = await soon(asyncio.gather(*getters, return_exceptions=True))
            assert sorted(type(end).__name__ for end in ends) == ["Message", *["QueueShutDown"] * (len(getters) - 1)]

    @pytest.mark.parametrize("withdrawn", [True, False])
    async def test_it_ends_at_shutdown_though_the_last_put_does_not_come(
        self, path: Path, tasks: Tasks, *, withdrawn: bool
    ) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")

            async def consume() -> list[bytes]:
                return [message.body async for message in jobs]

            consuming = [tasks.start(consume()) for _ in range(2)]
            first = tasks.start(jobs.put(b"first"))
            await gate.wait()
            last = tasks.start(jobs.put(b"last"))
            await turns()
            jobs.shutdown()
            if withdrawn:
                last.cancel()
                await asyncio.wait([last])
            else:
                fs.fail(errno.ENOSPC, "write", match=".seg", times=1)
            gate.open()
            assert await soon(first) == 0
            assert sorted(await soon(asyncio.gather(*consuming))) == [[], [b"first"]]
            assert last.cancelled() == withdrawn
            assert withdrawn or isinstance(last.exception(), aiodq.DiskFullError)

    async def test_it_acks_nothing_by_itself(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put_many(numbered(3))
            jobs.shutdown()
            assert [message.body async for message in jobs] == numbered(3)
            assert (jobs.depth, jobs.in_flight()) == (3, 3)
        async with queue(path) as jobs:
            assert jobs.qsize() == 3

    async def test_breaking_out_leaves_the_rest(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put_many(numbered(3))
            async for message in jobs:
                await message.ack()
                break
            assert jobs.qsize() == 2

    async def test_a_consumer_that_always_finds_something_lets_others_run(self, path: Path) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=100_000)) as jobs:
            await jobs.put_many([b"x"] * 20_000)
            ran = 0

            async def other() -> None:
                nonlocal ran
                while True:
                    await asyncio.sleep(0)
                    ran += 1

            task = asyncio.create_task(other())
            for _ in range(20_000):
                await jobs.get()
            task.cancel()
            assert ran > 2
            await asyncio.gather(task, return_exceptions=True)


class TestOrder:
    async def test_offset_order(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, segment_bytes=500) as jobs:
            bodies = numbered(150)
            at = 0
            while at < len(bodies):
                count = rng.randint(1, 7)
                await jobs.put_many(bodies[at : at + count])
                at += count
            assert await drain(jobs) == bodies

    async def test_what_is_requeued_comes_ahead_of_newer_messages_in_offset_order(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put_many(numbered(8))
            held = await take(jobs, 6)
            for number in (4, 1, 3):
                await held[number].nack()
            assert bodies_of(await take(jobs, 5)) == [b"1", b"3", b"4", b"6", b"7"]

    async def test_one_in_flight_gives_strict_order(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=1)) as jobs:
            await jobs.put_many(numbered(30))
            done: list[bytes] = []

            async def work() -> None:
                while len(done) < 30:
                    with suppress(TimeoutError):
                        message = await jobs.get(0.01)
                        await turns(rng.randrange(3))
                        if rng.random() < 0.4:
                            await message.nack()
                        else:
                            done.append(message.body)
                            await message.ack()

            await soon(asyncio.gather(*(work() for _ in range(4))))
            assert done == numbered(30)


class TestCredit:
    async def test_never_more_than_that_in_flight(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=3), sync="os") as jobs:
            most, done = 0, 0

            async def work() -> None:
                nonlocal most, done
                while done < 100:
                    try:
                        message = await jobs.get(0.01)
                    except TimeoutError:
                        continue
                    most = max(most, jobs.in_flight())
                    await turns(rng.randrange(4))
                    if rng.random() < 0.3:
                        message.nack_nowait()
                    elif rng.random() < 0.2:
                        message.release()
                    else:
                        message.ack_nowait()
                        done += 1

            producing = asyncio.gather(*(jobs.put(body) for body in numbered(100)))
            await soon(asyncio.gather(*(work() for _ in range(6))))
            await producing
            assert (most, jobs.depth) == (3, 0)

    async def test_settling_wakes_who_waits_for_credit(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=1)) as jobs:
            await jobs.put_many(numbered(4))
            held = await jobs.get()
            for settle, expected in ((held.ack, b"1"), (None, b"1"), (None, b"2")):
                getting = tasks.start(jobs.get())
                await turns()
                assert not getting.done()
                if settle is not None:
                    await held.ack()
                elif held.attempts == 1:
                    await held.nack()
                else:
                    held.ack_nowait()
                held = await soon(getting)
                assert held.body == expected

    async def test_it_may_be_changed_while_it_is_used_up(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c", aiodq.ChannelOptions(max_in_flight=1))
            await topic.put_many(numbered(3))
            await channel.get()
            with pytest.raises(aiodq.QueueEmpty):
                channel.get_nowait()
            await channel.configure(aiodq.ChannelOptions(max_in_flight=3))
            assert ready_now(channel) == [b"1", b"2"]

    async def test_naming_the_channel_again_without_options_changes_nothing(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as opened:
            topic = opened.topic("a")
            topic.channel("c", aiodq.ChannelOptions(max_in_flight=1))
            await topic.put_many(numbered(3))
            assert ready_now(topic.channel("c")) == [b"0"]


class TestInTheSameTurn:
    @pytest.mark.parametrize("sync", ["os", "interval"])
    async def test_what_was_accepted_in_this_turn_is_there_for_who_looks(self, path: Path, sync: Any) -> None:
        async with aiodq.open_queue(path, aiodq.StoreOptions(sync=sync)) as jobs:
            receipt = jobs.put_nowait(b"a")
            assert (jobs.qsize(), jobs.empty(), jobs.depth) == (1, False, 1)
            message = jobs.get_nowait()
            assert (message.body, message.offset) == (b"a", 0)
            assert await receipt == 0
            jobs.put_nowait(b"b")
            jobs.put_nowait(b"c")
            assert [message.body for message in await jobs.get_many(5)] == [b"b", b"c"]
            jobs.put_nowait(b"d")
            found = await jobs.peek()
            assert found is not None
            assert found.body == b"d"

    async def test_what_is_not_durable_yet_is_not_there_under_always(self, path: Path) -> None:
        async with aiodq.open_queue(path) as jobs:
            receipt = jobs.put_nowait(b"a")
            assert (jobs.qsize(), jobs.empty()) == (0, True)
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            await receipt
            assert jobs.get_nowait().body == b"a"

    async def test_another_thread_that_looks_writes_nothing(self, path: Path) -> None:
        async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os")) as jobs:
            jobs.put_nowait(b"a")
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(jobs.qsize).result() == 0
            assert jobs.qsize() == 1
