"""Settlement: ack, nack, release and the block; twice, too late, and after a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    Tasks,
    bodies_of,
    crash_image,
    fill,
    numbered,
    queue,
    ready_now,
    soon,
    store,
    take,
    turns,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestAck:
    async def test_it_never_comes_again(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            for message in await take(jobs, 2):
                await message.ack()
            assert (jobs.qsize(), jobs.in_flight(), jobs.depth) == (1, 0, 1)
        for _ in range(3):
            async with queue(path) as jobs:
                assert ready_now(jobs) == [b"2"]

    async def test_out_of_order(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(10))
            held = await take(jobs, 10)
            for number in (7, 2, 9, 3, 0):
                await held[number].ack()
            assert jobs.stats().floor == 1
        async with queue(path) as jobs:
            assert jobs.depth == 5
            assert ready_now(jobs) == [b"1", b"4", b"5", b"6", b"8"]

    async def test_it_counts_at_once_and_is_durable_when_it_returns(
        self, path: Path, tmp_path: Path, tasks: Tasks
    ) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(2))
            held = await take(jobs, 2)
            gate = fs.gate("sync", match="journal")
            acking = tasks.start(held[0].ack())
            await gate.wait()
            assert (jobs.depth, acking.done()) == (1, False)
            gate.open()
            await soon(acking)
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert ready_now(jobs) == [b"1"]

    async def test_acks_that_wait_together_share_a_sync(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put_many(numbered(101))
            held = await take(jobs, 101)
            gate = fs.gate("sync", match="journal")
            acking = [tasks.start(held[0].ack())]
            await gate.wait()
            acking += [tasks.start(message.ack()) for message in held[1:]]
            await turns()
            since = len(fs.passed)
            gate.open()
            await soon(asyncio.gather(*acking))
            assert len(fs.named("sync", match="journal", since=since)) == 1

    async def test_a_cancelled_ack_stands(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            message = await jobs.get()
            gate = fs.gate("sync", match="journal")
            acking = tasks.start(message.ack())
            await gate.wait()
            acking.cancel()
            await asyncio.wait([acking])
            gate.open()
            assert (jobs.depth, message.settled) == (0, True)
        async with queue(path) as jobs:
            assert jobs.depth == 0

    async def test_without_waiting_it_is_durable_with_the_next_commit(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            first, second = await take(jobs, 2)
            first.ack_nowait()
            await second.ack()
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert ready_now(jobs) == [b"2"]

    async def test_without_waiting_it_is_durable_some_time_even_if_nothing_follows(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            gate = fs.gate("sync", match="journal")
            jobs.get_nowait().ack_nowait()
            await gate.wait()
            gate.open()

    async def test_auto_ack(self, path: Path) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(auto_ack=True)) as jobs:
            await fill(jobs, numbered(6))
            found = [await jobs.get(), jobs.get_nowait(), await jobs.get(1), *await jobs.get_many(2)]
            assert bodies_of(found) == numbered(5)
            assert (jobs.in_flight(), jobs.depth) == (0, 1)
            with pytest.raises(aiodq.AlreadySettledError):
                await found[0].ack()
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"5"]


class TestNack:
    async def test_it_comes_again_with_one_attempt_more(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a", tag="t", key=b"k", headers={"h": "v"})
            for attempt in (1, 2, 3):
                message = jobs.get_nowait()
                assert message.attempts == attempt
                assert (message.body, message.tag, message.key, message.headers) == (b"a", "t", b"k", {"h": "v"})
                await message.nack()
            assert (jobs.qsize(), jobs.in_flight()) == (1, 0)

    async def test_without_counting(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            await jobs.get_nowait().nack(count_attempt=False)
            message = jobs.get_nowait()
            assert message.attempts == 1
            await message.nack()
            await jobs.get_nowait().nack(count_attempt=False)
            assert jobs.get_nowait().attempts == 2

    async def test_attempts_survive_a_restart(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            for _ in range(3):
                await jobs.get_nowait().nack()
        async with queue(path) as jobs:
            assert [(message.body, message.attempts) for message in await take(jobs, 2)] == [(b"0", 4), (b"1", 1)]

    async def test_it_wakes_a_getter(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            message = await jobs.get()
            getting = tasks.start(jobs.get())
            await turns()
            await message.nack()
            assert (await soon(getting)).attempts == 2


class TestRelease:
    async def test_as_if_it_had_never_been_handed_out(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            before = jobs.stats()
            jobs.get_nowait().release()
            after = jobs.stats()
            assert (after.ready, after.in_flight, after.delivered, after.requeued) == (
                before.ready, before.in_flight, before.delivered, before.requeued,
            )  # fmt: skip
            assert [(message.body, message.attempts) for message in await take(jobs, 2)] == [(b"0", 1), (b"1", 1)]


class TestBlock:
    async def test_success_acks(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            async with await jobs.get() as message:
                assert message.body == b"a"
                assert jobs.in_flight() == 1
            assert (message.settled, jobs.depth) == (True, 0)
        async with queue(path) as jobs:
            assert jobs.depth == 0

    async def test_an_exception_requeues_and_goes_on(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            with pytest.raises(KeyError):
                async with await jobs.get():
                    raise KeyError("mine")
            message = jobs.get_nowait()
            assert (message.body, message.attempts) == (b"0", 2)

    @pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
    async def test_being_ended_releases_without_counting(self, path: Path, error: type[BaseException]) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            message = await jobs.get()
            with pytest.raises(error):
                async with message:
                    raise error
            assert (jobs.in_flight(), jobs.qsize()) == (0, 2)
            assert [(found.body, found.attempts) for found in await take(jobs, 2)] == [(b"0", 1), (b"1", 1)]

    async def test_a_cancelled_task_releases(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            began = asyncio.Event()

            async def work() -> None:
                async with await jobs.get():
                    began.set()
                    await asyncio.Event().wait()

            working = tasks.start(work())
            await began.wait()
            assert jobs.in_flight() == 1
            working.cancel()
            await asyncio.wait([working])
            assert working.cancelled()
            assert jobs.get_nowait().attempts == 1

    @pytest.mark.parametrize("how", ["ack", "nack", "release"])
    async def test_what_was_settled_inside_stays_so(self, path: Path, how: str) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            async with await jobs.get() as message:
                if how == "ack":
                    await message.ack()
                elif how == "nack":
                    await message.nack()
                else:
                    message.release()
            assert jobs.depth == (0 if how == "ack" else 1)

    async def test_taken_away_meanwhile_a_success_is_told(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            with pytest.raises(aiodq.NotInFlightError):
                async with await jobs.get():
                    await jobs.purge()

    @pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
    async def test_taken_away_meanwhile_an_exception_is_not_hidden(
        self, path: Path, error: type[BaseException]
    ) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            with pytest.raises(error):
                async with await jobs.get():
                    await jobs.purge()
                    raise error

    @pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
    async def test_the_queue_being_closed_meanwhile_an_exception_is_not_hidden(
        self, path: Path, error: type[BaseException]
    ) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            message = await jobs.get()
        with pytest.raises(error):
            async with message:
                raise error


class TestTwice:
    SETTLE = ("ack", "nack", "release", "ack_nowait", "nack_nowait")

    async def settle(self, message: aiodq.Message, how: str) -> None:
        result = getattr(message, how)()
        if result is not None:
            await result

    @pytest.mark.parametrize("first", SETTLE)
    @pytest.mark.parametrize("second", SETTLE)
    async def test_the_second_is_refused_and_changes_nothing(self, path: Path, first: str, second: str) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            message = await jobs.get()
            await self.settle(message, first)
            before = jobs.stats()
            with pytest.raises(aiodq.AlreadySettledError):
                await self.settle(message, second)
            assert jobs.stats() == before

    @pytest.mark.parametrize("how", SETTLE)
    async def test_after_a_purge(self, path: Path, how: str) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            message = await jobs.get()
            await jobs.purge()
            await jobs.put(b"b")
            with pytest.raises(aiodq.NotInFlightError):
                await self.settle(message, how)
            assert (jobs.depth, jobs.in_flight(), message.settled) == (1, 0, False)
            with pytest.raises(aiodq.NotInFlightError):
                await self.settle(message, how)

    @pytest.mark.parametrize("how", SETTLE)
    async def test_an_older_delivery_of_what_is_in_flight_again(self, path: Path, how: str) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            old = await jobs.get()
            jobs._channel_engine.ack(old.offset, old._delivery)  # behind the message's back
            await jobs.put(b"b")
            with pytest.raises(aiodq.NotInFlightError):
                await self.settle(old, how)
            assert jobs.depth == 1

    @pytest.mark.parametrize("how", SETTLE)
    async def test_what_was_only_looked_at(self, path: Path, how: str) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            for message in (await jobs.read(0), await jobs.peek(), await anext(jobs.scan())):
                assert message is not None
                with pytest.raises(aiodq.NotInFlightError):
                    await self.settle(message, how)
            assert (jobs.qsize(), jobs.in_flight()) == (1, 0)


class TestTooLate:
    @pytest.mark.parametrize("how", TestTwice.SETTLE)
    async def test_after_closing(self, path: Path, how: str) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            message = await jobs.get()
        with pytest.raises(aiodq.QueueShutDown):
            await soon(TestTwice().settle(message, how))
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]

    @pytest.mark.parametrize("how", TestTwice.SETTLE)
    async def test_after_its_topic_was_deleted(self, path: Path, how: str) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await topic.put(b"a")
            message = await channel.get()
            await opened.delete_topic("a")
            with pytest.raises(aiodq.QueueShutDown):
                await soon(TestTwice().settle(message, how))

    async def test_acks_under_way_when_it_is_closed_are_kept(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, fs=fs)
        await jobs.put_many(numbered(3))
        held = await take(jobs, 3)
        gate = fs.gate("sync", match="journal")
        acking = [tasks.start(held[0].ack())]
        await gate.wait()
        acking.append(tasks.start(held[1].ack()))
        await turns()
        held[2].ack_nowait()
        closing = tasks.start(jobs.aclose())
        await turns()
        gate.open()
        await soon(asyncio.gather(closing, *acking))
        async with queue(path) as jobs:
            assert jobs.depth == 0
