"""A bounded backlog: who waits, who is refused, what is dropped; and the bound of memory that is always there."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest

import aiodq
from aiodq.engine.batch.put_batch import OVERHEAD
from aiodq.testing import Marked, SimulatedFileSystem, WatchedFileSystem
from tests.queue.support import Tasks, drain, fill, numbered, options, queue, ready_now, soon, store, take, turns, until

if TYPE_CHECKING:
    from pathlib import Path


class TestBlock:
    async def test_by_messages(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=3) as jobs:
            putting = [tasks.start(jobs.put(body)) for body in numbered(10)]
            await until(lambda: jobs.depth == 3)
            await turns(20)
            assert (jobs.depth, jobs.full(), jobs.maxsize) == (3, True, 3)
            for body in numbered(10):
                message = await soon(jobs.get())
                assert message.body == body
                assert jobs.depth <= 3
                await message.ack()
            await soon(asyncio.gather(*putting))

    async def test_taking_is_not_enough_and_acking_is(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2) as jobs:
            await fill(jobs, numbered(2))
            held = await take(jobs, 2)
            putting = tasks.start(jobs.put(b"2"))
            await turns(20)
            assert not putting.done()
            await held[0].nack()
            await turns(20)
            assert not putting.done()
            await held[1].ack()
            assert await soon(putting) == 2

    async def test_by_bytes(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_bytes=100_000) as jobs:
            putting = [tasks.start(jobs.put(bytes([number]) * 10_000)) for number in range(30)]
            await until(lambda: jobs.full() or jobs.depth >= 8)
            await turns(50)
            assert 8 <= jobs.depth <= 10
            found: list[int] = []
            while len(found) < 30:
                message = await soon(jobs.get())
                found.append(message.body[0])
                await message.ack()
                assert jobs.depth <= 10
            assert found == list(range(30))
            await soon(asyncio.gather(*putting))

    async def test_what_is_written_and_not_synced_yet_counts_once(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, max_bytes=50_000, overflow="reject") as jobs:
            await jobs.put(bytes(10_000))
            await jobs.put(bytes(10_000))
            gate = fs.gate("sync", match=".seg")
            putting = [tasks.start(jobs.put(bytes(10_000)))]
            await until(lambda: jobs.topic_stats().end_offset == 3)  # written
            await turns(20)
            putting.append(tasks.start(jobs.put(bytes(10_000))))
            await turns(20)
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(bytes(10_000))
            gate.open()
            await soon(asyncio.gather(*putting))
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(bytes(10_000))

    async def test_those_who_wait_are_served_in_turn(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=1) as jobs:
            await jobs.put(b"first")
            putting = []
            for body in numbered(8):
                putting.append(tasks.start(jobs.put(body)))
                await turns()
            found = []
            for _ in range(9):
                message = await soon(jobs.get())
                found.append(message.body)
                await message.ack()
            assert found == [b"first", *numbered(8)]
            await soon(asyncio.gather(*putting))

    async def test_what_retention_deletes_makes_room(self, path: Path) -> None:
        """The oldest message is in flight, and the segments after it go once they are acked, with the next tick."""
        async with queue(path, max_bytes=100_000, segment_bytes=15_000, sync_interval=0.1) as jobs:
            await fill(jobs, [bytes(10_000)] * 8)
            await jobs.get()
            await jobs.ack_many(await take(jobs, 7))
            assert await soon(jobs.put_many([bytes(10_000)] * 4)) == range(8, 12)

    @pytest.mark.parametrize(("late", "most"), [(False, 100_000), (True, 100_000), (True, 90_000)])
    async def test_what_goes_behind_a_segment_still_needed_makes_room_at_once(
        self, path: Path, tasks: Tasks, *, late: bool, most: int
    ) -> None:
        """Nobody waits for the next tick, which does not come here."""
        options = aiodq.StoreOptions(segment_bytes=1000, max_bytes=most)
        async with queue(path, segment_bytes=1000, max_bytes=100_000, sync="os", sync_interval=1e6) as jobs:
            buffer = jobs.topic._engine.put_buffer
            putting = tasks.start(fill(jobs, [bytes(900)] * 200))
            await until(lambda: buffer.lacks_bytes)
            await jobs.topic.configure(options)  # where the backlog is over the bound, it takes more than an ack
            if not late:
                putting.cancel()
            messages = await take(jobs, jobs.depth)
            for message in messages[70:]:  # after more than are looked at in one go
                await message.ack()
            if not late:
                await until(lambda: not buffer.lacks_bytes)
                putting = tasks.start(fill(jobs, [bytes(900)]))
            await until(lambda: jobs.depth > 70)

    async def test_one_who_needs_more_room_keeps_nobody_else_for_ever(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=4) as jobs:
            await fill(jobs, numbered(4))
            many = tasks.start(jobs.put_many(numbered(3, start=10)))
            await turns()
            one = tasks.start(jobs.put(b"one"))
            await turns()
            for message in await take(jobs, 4):
                await message.ack()
            await soon(asyncio.gather(many, one))
            assert jobs.depth == 4

    async def test_more_than_the_bound_goes_in_when_it_is_empty(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2) as jobs:
            assert await soon(jobs.put_many(numbered(5))) == range(5)
            assert jobs.full()
            putting = tasks.start(jobs.put_many(numbered(3)))
            await turns(20)
            assert not putting.done()
            await drain(jobs)
            assert await soon(putting) == range(5, 8)

    async def test_the_slowest_channel_counts(self, path: Path, tasks: Tasks) -> None:
        async with store(path, max_messages=2) as opened:
            topic = opened.topic("a")
            quick, slow = topic.channel("quick"), topic.channel("slow")
            await fill(topic, numbered(2))
            await drain(quick)
            putting = tasks.start(topic.put(b"2"))
            await turns(20)
            assert not putting.done()
            await (await slow.get()).ack()
            await soon(putting)

    async def test_without_a_channel_the_log_counts(self, path: Path, tasks: Tasks) -> None:
        async with store(path, max_messages=2) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(2))
            putting = tasks.start(topic.put(b"2"))
            await turns(20)
            assert not putting.done()
            topic.channel("late", aiodq.ChannelOptions(start="latest"))
            await soon(putting)

    async def test_a_backlog_from_before_counts(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
        async with queue(path, max_messages=3) as jobs:
            assert jobs.full()
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(b"5")
            putting = tasks.start(jobs.put(b"5"))
            for message in await take(jobs, 2):
                await message.ack()
            await turns(20)
            assert not putting.done()
            await (await jobs.get()).ack()
            await soon(putting)

    async def test_at_random_never_over_and_nobody_is_left(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path, max_messages=5, sync="os", segment_bytes=500) as jobs:
            total, done = 0, 0

            async def produce(name: int) -> None:
                nonlocal total
                for number in range(30):
                    body = b"%d-%d" % (name, number)
                    if rng.random() < 0.2:
                        await jobs.put_many([body, body])
                        total += 2
                    elif rng.random() < 0.2:
                        try:
                            jobs.put_nowait(body)
                            total += 1
                        except aiodq.QueueFull:
                            continue
                    else:
                        putting = asyncio.create_task(jobs.put(body))
                        await turns(rng.randrange(3))
                        if rng.random() < 0.1:
                            putting.cancel()
                            await asyncio.wait([putting])
                        else:
                            await putting
                            total += 1

            async def consume() -> None:
                nonlocal done
                async for message in jobs:
                    assert jobs.depth <= 5
                    await turns(rng.randrange(4))
                    if rng.random() < 0.2:
                        await message.nack()
                    else:
                        message.ack_nowait()
                        done += 1

            consuming = [asyncio.create_task(consume()) for _ in range(3)]
            await soon(asyncio.gather(*(produce(name) for name in range(6))))
            await soon(jobs.join())
            jobs.shutdown()
            await soon(asyncio.gather(*consuming))
            assert done >= total  # a cancelled put may have been stored

    async def test_whoever_gives_up_waiting_lets_those_behind_in_who_fit(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=5) as jobs:
            await fill(jobs, numbered(3))
            large = tasks.start(jobs.put_many(numbered(4)))
            await turns(20)
            small = tasks.start(jobs.put(b"z"))
            await turns(20)
            assert not small.done()
            large.cancel()
            assert await soon(small) == 3
            assert await soon(jobs.put(b"later")) == 4
            assert jobs.full()


class TestChannels:
    """Whoever is furthest behind counts, whatever was known of the channels before."""

    KEPT: ClassVar[dict[str, Any]] = {
        "max_messages": 3,
        "overflow": "reject",
        "retention": aiodq.Retention(consumed="keep"),
    }

    async def test_one_that_goes_back_counts_from_there(self, path: Path) -> None:
        async with queue(path, **self.KEPT) as jobs:
            await fill(jobs, numbered(3))
            await drain(jobs)
            await fill(jobs, numbered(1))
            await soon(jobs.seek("earliest"))
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(b"more")
            await drain(jobs)
            await fill(jobs, numbered(3))

    async def test_a_new_one_counts_from_where_it_begins(self, path: Path) -> None:
        async with store(path, **self.KEPT) as opened:
            topic = opened.topic("a")
            first = topic.channel("first")
            await fill(topic, numbered(3))
            await drain(first)
            await fill(topic, numbered(1))
            topic.channel("late", aiodq.ChannelOptions(start="earliest"))
            await soon(topic.settle_in())
            with pytest.raises(aiodq.QueueFull):
                topic.put_nowait(b"more")

    async def test_one_that_was_deleted_counts_no_longer(self, path: Path) -> None:
        async with store(path, **self.KEPT) as opened:
            topic = opened.topic("a")
            quick = topic.channel("quick")
            topic.channel("slow")
            await fill(topic, numbered(3))
            await drain(quick)
            with pytest.raises(aiodq.QueueFull):
                topic.put_nowait(b"more")
            await soon(topic.delete_channel("slow"))
            await fill(topic, numbered(3))
            with pytest.raises(aiodq.QueueFull):
                topic.put_nowait(b"more")

    async def test_who_is_refused_asks_no_channel_but_the_deepest(self, path: Path) -> None:
        async with store(path, **self.KEPT) as opened:
            topic = opened.topic("a")
            channels = [topic.channel(f"c{number}") for number in range(5)]
            await fill(topic, numbered(3))
            for channel in channels[1:]:
                await drain(channel)
            bound = topic._engine.put_buffer.bound
            with pytest.raises(aiodq.QueueFull):
                topic.put_nowait(b"more")
            looks = bound.looks
            for _ in range(10):
                with pytest.raises(aiodq.QueueFull):
                    topic.put_nowait(b"more")
            assert bound.looks == looks > 0
            await drain(channels[0])
            await fill(topic, numbered(3))
            assert bound.looks == looks + 1


class TestReject:
    async def test_by_messages(self, path: Path) -> None:
        async with queue(path, max_messages=2, overflow="reject") as jobs:
            await fill(jobs, numbered(2))
            for call in (jobs.put(b"2"), jobs.put_many([b"2"])):
                with pytest.raises(aiodq.QueueFull) as caught:
                    await soon(call)
                assert isinstance(caught.value, asyncio.QueueFull)
                assert caught.value.retriable
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(b"2")
            await (await jobs.get()).ack()
            assert await jobs.put(b"2") == 2
            with pytest.raises(aiodq.QueueFull):
                await jobs.put_many([b"3", b"4"])
            assert await drain(jobs) == [b"1", b"2"]

    async def test_by_bytes(self, path: Path) -> None:
        async with queue(path, max_bytes=100_000, overflow="reject") as jobs:
            with pytest.raises(aiodq.QueueFull):
                for number in range(30):
                    await soon(jobs.put(bytes([number]) * 10_000))
            assert 8 <= jobs.depth <= 10
            for message in await take(jobs, jobs.qsize()):
                await message.ack()
            await jobs.put(bytes(10_000))

    async def test_what_is_on_its_way_counts(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, max_messages=2, overflow="reject") as jobs:
            gate = fs.gate("sync", match=".seg")
            putting = [tasks.start(jobs.put(body)) for body in numbered(2)]
            await gate.wait()
            with pytest.raises(aiodq.QueueFull):
                await soon(jobs.put(b"2"))
            gate.open()
            await soon(asyncio.gather(*putting))

    @pytest.mark.parametrize("overflow", ["reject", "drop_oldest"])
    async def test_a_full_write_buffer_is_waited_for(self, path: Path, tasks: Tasks, overflow: str) -> None:
        """It passes by itself, so it is no reason to refuse, nor to drop any."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, memory_bytes=1 << 16, max_messages=1000, overflow=overflow) as jobs:
            gate = fs.gate("sync", match=".seg")
            putting = [tasks.start(jobs.put(bytes(5000))) for _ in range(20)]
            await gate.wait()
            await turns(20)
            assert not any(task.done() for task in putting)
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(bytes(5000))
            gate.open()
            assert sorted(await soon(asyncio.gather(*putting))) == list(range(20))

    async def test_whoever_waited_for_the_write_buffer_is_refused_as_well(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=5, overflow="reject", memory_bytes=1 << 20) as jobs:
            putting = [tasks.start(jobs.put(bytes(300_000))) for _ in range(20)]
            found = await soon(asyncio.gather(*putting, return_exceptions=True))
            assert [type(each) for each in found] == [int] * 5 + [aiodq.QueueFull] * 15

    @pytest.mark.parametrize("overflow", ["reject", "drop_oldest"])
    async def test_whoever_waits_when_the_option_changes_goes_by_it(
        self, path: Path, tasks: Tasks, overflow: Literal["reject", "drop_oldest"]
    ) -> None:
        async with queue(path, max_messages=2) as jobs:
            await fill(jobs, numbered(2))
            putting = [tasks.start(jobs.put(body)) for body in numbered(5)]
            await turns(20)
            await jobs.topic.configure(aiodq.StoreOptions(max_messages=2, overflow=overflow))
            found = await soon(asyncio.gather(*putting, return_exceptions=True))
            assert {type(each) for each in found} == {aiodq.QueueFull if overflow == "reject" else int}
            assert jobs.depth == 2


class TestDropOldest:
    @pytest.mark.parametrize("sync", ["always", "os"])
    async def test_many_who_put_at_once_make_room_for_one_another(self, path: Path, tasks: Tasks, sync: str) -> None:
        async with queue(path, max_messages=3, overflow="drop_oldest", sync=sync) as jobs:
            putting = [tasks.start(jobs.put(body)) for body in numbered(20)]
            assert await soon(asyncio.gather(*putting)) == list(range(20))
            assert jobs.depth == 3
            assert jobs.stats().dropped == 17
            assert [message.body for message in await take(jobs, 3)] == numbered(20)[17:]

    @pytest.mark.slow_on_uvloop  # what a power cut leaves is asked of the disk
    async def test_no_power_cut_takes_what_was_dropped_for_a_message_that_it_takes_too(self, seed: int) -> None:
        bounded, channel = options(max_messages=2, overflow="drop_oldest"), aiodq.ChannelOptions(start="earliest")
        fs = SimulatedFileSystem(record=True)
        async with aiodq.open("/s", bounded, fs=fs) as opened:
            topic = opened.topic("jobs")
            one, other = [topic.channel(name, channel) for name in ("one", "other")]
            await topic.put_many(numbered(2))
            await (await one.get()).ack()
            held = await other.get()
            fs.mark("durable")
            # An ack that is awaited has all that was settled in its channel written at once.
            await asyncio.gather(topic.put(b"2"), held.ack())
            assert [each.depth for each in (one, other)] == [2, 2]
        assert fs.trace is not None
        durable = next(number for number, done in enumerate(fs.trace) if isinstance(done, Marked))
        cuts = [(number, files) for number, files in fs.power_cuts(seed) if number > durable]
        for number, files in random.Random(seed).sample(cuts, min(60, len(cuts))):
            async with aiodq.open("/s", bounded, fs=SimulatedFileSystem(files)) as opened:
                found = ready_now(opened.topic("jobs").channel("other", channel))
            assert {b"1", b"2"} & set(found), number

    async def test_a_put_that_fails_has_nothing_dropped(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, max_messages=1, overflow="drop_oldest") as jobs:
            await jobs.put(b"latest")
            fs.fail(errno.ENOSPC, "write", "pwritev", "allocate", match=".seg")
            with pytest.raises(aiodq.DiskFullError):
                await jobs.put(b"later")
            fs.heal()
            assert (jobs.depth, jobs.stats().dropped) == (1, 0)
            await jobs.put(b"later still")
            assert ready_now(jobs) == [b"later still"]

    @pytest.mark.parametrize("overfull", [False, True])
    async def test_what_is_dropped_is_never_the_message_that_it_is_dropped_for(
        self, path: Path, tasks: Tasks, *, overfull: bool
    ) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, max_messages=2, overflow="drop_oldest", sync="always") as jobs:
            await fill(jobs, numbered(2))
            gate = fs.gate("sync", match=".seg")
            putting = tasks.start(jobs.put(b"2"))
            await gate.wait()
            assert jobs.depth == 2
            held = await take(jobs, 1 + overfull)
            gate.open()
            await soon(putting)
            assert jobs.depth == 2 + overfull, "until one of those in flight is settled"
            assert ready_now(jobs) == [b"2"]
            for message in held:
                await message.ack()

    async def test_a_batch_that_is_over_the_bound_itself_is_whole(self, path: Path) -> None:
        async with queue(path, max_messages=3, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(3))
            await soon(jobs.put_many(numbered(5, start=3)))
            assert (jobs.depth, jobs.stats().dropped) == (5, 3)
            await soon(jobs.put(b"8"))
            assert await drain(jobs) == numbered(3, start=6)

    async def test_what_was_dropped_takes_no_memory(self, path: Path) -> None:
        async with queue(path, max_messages=5, overflow="drop_oldest", sync="os") as jobs:
            for body in numbered(30):
                await jobs.put(body, delay=3600)
            kept = jobs._channel_engine.source.requeue_cache
            assert len(kept.batches) == 5
            assert kept._cost < 5 * 1000

    async def test_by_messages(self, path: Path) -> None:
        async with queue(path, max_messages=5, overflow="drop_oldest") as jobs:
            for body in numbered(20):
                await soon(jobs.put(body))
                assert jobs.depth <= 5
            assert (jobs.stats().dropped, jobs.topic_stats().dropped) == (15, 15)
            assert await drain(jobs) == numbered(5, start=15)
        async with queue(path) as jobs:
            assert jobs.depth == 0

    async def test_it_is_kept_over_a_restart(self, path: Path) -> None:
        async with queue(path, max_messages=5, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(20))
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(5, start=15)

    async def test_what_is_in_flight_is_spared(self, path: Path) -> None:
        async with queue(path, max_messages=3, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(3))
            held = await jobs.get()
            await fill(jobs, numbered(4, start=3))
            assert (jobs.in_flight(), jobs.depth) == (1, 3)
            await held.ack()
            assert await drain(jobs) == [b"5", b"6"]

    async def test_what_was_requeued_is_the_oldest(self, path: Path) -> None:
        async with queue(path, max_messages=3, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(3))
            await (await jobs.get()).nack()
            await jobs.put(b"3")
            assert await drain(jobs) == [b"1", b"2", b"3"]

    async def test_with_all_in_flight_it_waits(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(2))
            held = await take(jobs, 2)
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(b"2")
            putting = tasks.start(jobs.put(b"2"))
            await turns(20)
            assert not putting.done()
            await held[1].ack()
            await soon(putting)
            assert jobs.stats().dropped == 0

    async def test_by_bytes(self, path: Path) -> None:
        async with queue(path, max_bytes=100_000, overflow="drop_oldest") as jobs:
            for number in range(30):
                await soon(jobs.put(bytes([number]) * 10_000))
            found = [body[0] for body in await drain(jobs)]
            assert 5 <= len(found) <= 10
            assert found == list(range(30 - len(found), 30))
            assert jobs.stats().dropped == 30 - len(found)

    async def test_by_bytes_nothing_goes_that_makes_no_room(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_bytes=100_000, overflow="drop_oldest") as jobs:
            for number in range(8):
                await soon(jobs.put(bytes([number]) * 10_000))
            held = await jobs.get()
            putting = tasks.start(jobs.put_many([bytes([number]) * 10_000 for number in range(8, 12)]))
            await turns(20)
            assert not putting.done()
            assert (jobs.depth, jobs.stats().dropped) == (8, 0)
            await held.ack()
            await soon(putting)
            left = [body[0] for body in await drain(jobs)]
            assert left == list(range(12 - len(left), 12))
            assert len(left) >= 6

    async def test_by_bytes_who_is_furthest_behind_makes_room(self, path: Path) -> None:
        async with store(path, max_bytes=100_000, overflow="drop_oldest") as opened:
            topic = opened.topic("a")
            behind, deep = topic.channel("behind"), topic.channel("deep")
            for number in range(8):
                await soon(topic.put(bytes([number]) * 10_000))
            first, *others = await take(behind, 8)
            await behind.ack_many(others)
            await first.nack()
            await deep.ack_many(await take(deep, 5))
            for number in range(8, 10):
                await soon(topic.put(bytes([number]) * 10_000))
            assert (behind.stats().dropped, deep.stats().dropped) == (1, 0)
            assert [body[0] for body in await drain(deep)] == [5, 6, 7, 8, 9]

    async def test_nothing_goes_that_leaves_too_many_in_flight(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=5, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(5))
            held = await take(jobs, 3)
            putting = tasks.start(jobs.put_many(numbered(3, start=5)))
            await turns(20)
            assert not putting.done()
            assert (jobs.depth, jobs.stats().dropped) == (5, 0)
            await held[1].ack()
            await soon(putting)
            assert jobs.stats().dropped == 2
            assert ready_now(jobs) == numbered(3, start=5)

    async def test_many_at_once(self, path: Path) -> None:
        async with queue(path, max_messages=5, overflow="drop_oldest") as jobs:
            await fill(jobs, numbered(5))
            await soon(jobs.put_many(numbered(3, start=5)))
            assert (jobs.depth, jobs.stats().dropped) == (5, 3)
            await soon(jobs.put_many(numbered(9, start=8)))
            assert ready_now(jobs) == numbered(9, start=8)

    async def test_a_channel_within_the_bound_loses_nothing(self, path: Path) -> None:
        async with store(path, max_messages=3, overflow="drop_oldest") as opened:
            topic = opened.topic("a")
            quick, slow = topic.channel("quick"), topic.channel("slow")
            found = []
            for body in numbered(9):
                await topic.put(body)
                found += await drain(quick)
            assert found == numbered(9)
            assert quick.stats().dropped == 0
            assert slow.stats().dropped == 6
            assert await drain(slow) == numbered(3, start=6)

    async def test_without_a_channel(self, path: Path) -> None:
        async with store(path, max_messages=3, overflow="drop_oldest") as opened:
            topic = opened.topic("a")
            for body in numbered(9):
                await soon(topic.put(body))
            channel = topic.channel("late", aiodq.ChannelOptions(start="earliest"))
            await topic.settle_in()
            assert ready_now(channel)[-3:] == numbered(3, start=6)


class TestMemory:
    async def test_what_is_accepted_and_not_written_is_bounded(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        limit = 1 << 16
        async with queue(path, fs=fs, memory_bytes=limit) as jobs:
            put_buffer = jobs._engine.put_buffer
            gate = fs.gate("sync", match=".seg")
            putting = [tasks.start(jobs.put(bytes(1000))) for _ in range(500)]
            await gate.wait()
            await turns(20)
            assert 0 < put_buffer.cost <= limit // 2 + 1000 + OVERHEAD
            assert put_buffer.cost == put_buffer.pending * (1000 + OVERHEAD)
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(bytes(1000))
            gate.open()
            await soon(asyncio.gather(*putting))
            assert (put_buffer.cost, put_buffer.pending, jobs.depth) == (0, 0, 500)

    async def test_what_is_not_body_counts_as_well(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        limit = 1 << 16
        async with queue(path, fs=fs, memory_bytes=limit) as jobs:
            gate = fs.gate("sync", match=".seg")
            long = "x" * 10_000
            extras: list[dict[str, Any]] = [{"tag": long}, {"key": long.encode()}, {"headers": {"h": long}}]
            putting = [tasks.start(jobs.put(b"", **given)) for given in extras * 10]
            await gate.wait()
            await turns(20)
            assert jobs.topic_stats().pending <= limit // 2 // 10_000 + 1
            gate.open()
            await soon(asyncio.gather(*putting))

    async def test_one_larger_than_the_bound_goes_alone(self, path: Path) -> None:
        async with queue(path, memory_bytes=1 << 16) as jobs:
            bodies = [bytes([number]) * 200_000 for number in range(5)]
            await soon(asyncio.gather(*(jobs.put(body) for body in bodies)))
            assert [message.body for message in await take(jobs, 5)] == bodies

    async def test_the_count_is_exact_whatever_becomes_of_them(self, path: Path, tasks: Tasks, seed: int) -> None:
        rng = random.Random(seed)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=20_000, memory_bytes=1 << 16) as jobs:
            fault = fs.fail(errno.ENOSPC, "write", "create", match=".seg", at=30, times=15)
            running: list[asyncio.Task[Any]] = []
            for number in range(300):
                size = rng.choice([0, 10, 1000, 5000])
                if rng.random() < 0.3:
                    running.append(tasks.start(jobs.put_many([bytes(size)] * rng.randrange(1, 4))))
                else:
                    running.append(tasks.start(jobs.put(bytes(size))))
                await turns(rng.randrange(2))
                if rng.random() < 0.2:
                    rng.choice(running).cancel()
                if number % 60 == 59:
                    await soon(asyncio.gather(*running, return_exceptions=True))
            await soon(asyncio.gather(*running, return_exceptions=True))
            await soon(jobs.sync())
            assert fault.hits
            put_buffer = jobs._engine.put_buffer
            assert (put_buffer.cost, put_buffer.pending) == (0, 0)


async def test_the_bound_is_not_looked_at_from_another_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with queue(path, max_messages=9, sync="os") as jobs:
        await fill(jobs, numbered(2))
        looking: list[int] = []
        bound, ours = jobs.topic._engine.put_buffer.bound, threading.get_ident()
        admits = bound.admits

        def watched(messages: int, cost: int) -> bool:
            looking.append(threading.get_ident())
            return admits(messages, cost)

        monkeypatch.setattr(bound, "admits", watched)
        with pytest.raises(aiodq.WrongContextError):
            await asyncio.to_thread(asyncio.run, jobs.topic.put(b"x"))
        assert await jobs.put(b"y") == 2
        assert set(looking) == {ours}
