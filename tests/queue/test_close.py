"""Closing, deleting a topic, and what is told about a store."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import os
from typing import TYPE_CHECKING, Literal

import pytest

import aiodq
from aiodq.storage.io.lock import is_locked
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    CHANGES,
    Camera,
    Tasks,
    drain,
    fill,
    numbered,
    odd_files,
    outcome,
    queue,
    ready_now,
    segments,
    soon,
    store,
    take,
    turns,
)

if TYPE_CHECKING:
    from pathlib import Path


async def _cancel_closing(jobs: aiodq.Queue, path: Path, fs: WatchedFileSystem, tasks: Tasks) -> None:
    """Cancel a task that closes a store while what was put is synced."""
    gate = fs.gate("sync", match=".seg")
    closing = tasks.start(jobs.aclose())
    await gate.wait()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert is_locked(str(path))
    gate.open()


class TestClosing:
    async def test_again_does_nothing(self, path: Path) -> None:
        opened = await aiodq.open(path)
        await opened.topic("a").put(b"a")
        for _ in range(3):
            await soon(opened.aclose())
        jobs = await aiodq.open_queue(path)
        for _ in range(3):
            await soon(jobs.aclose())

    async def test_at_once_by_several(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        opened = await aiodq.open(path, fs=fs)
        receipt = opened.topic("a").put_nowait(b"a")
        gate = fs.gate("sync", match=".seg")
        closing = [tasks.start(opened.aclose()) for _ in range(4)]
        await gate.wait()
        await turns()
        assert not any(task.done() for task in closing)
        gate.open()
        await soon(asyncio.gather(*closing))
        assert await receipt == 0
        assert fs.open_files == 0

    async def test_cancelled_it_goes_on_and_may_be_awaited_again(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, fs=fs)
        jobs.put_nowait(b"a")
        await _cancel_closing(jobs, path, fs, tasks)
        await soon(jobs.aclose())
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_cancelled_it_is_waited_for_by_who_opens_again(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, fs=fs)
        jobs.put_nowait(b"a")
        await _cancel_closing(jobs, path, fs, tasks)
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_what_was_accepted_is_finished(self, path: Path, tasks: Tasks) -> None:
        jobs = await aiodq.open_queue(path, aiodq.StoreOptions(segment_bytes=500), fs=WatchedFileSystem())
        putting = [tasks.start(jobs.put(body)) for body in numbered(20)]
        await asyncio.sleep(0)
        receipts = [jobs.put_nowait(body) for body in numbered(20, start=20)]
        await soon(jobs.aclose())
        assert [await task for task in putting] == list(range(20))
        assert [await receipt for receipt in receipts] == list(range(20, 40))
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(40)

    async def test_who_waits_is_told(self, path: Path, tasks: Tasks) -> None:
        async with store(path, max_messages=1) as opened:
            full, empty = opened.queue("full"), opened.queue("empty")
            await full.put(b"a")
            await full.get()
            waiting = [
                tasks.start(call)
                for call in (
                    empty.get(), empty.get(3600), empty.get_many(3), anext(aiter(empty)), full.get(),
                    full.put(b"b"), full.put_many([b"b"]), full.join(),
                )
            ]  # fmt: skip
            await turns()
            assert not any(task.done() for task in waiting)
        await asyncio.wait(waiting, timeout=20)
        told = [type(outcome(task)) for task in waiting]
        assert told == [aiodq.QueueShutDown] * 3 + [StopAsyncIteration] + [aiodq.QueueShutDown] * 4

    async def test_nothing_works_afterwards(self, path: Path) -> None:
        async with store(path) as opened:
            jobs = opened.queue("a")
            await jobs.put(b"a")
        topic = jobs.topic
        calls = [
            jobs.put(b"b"), jobs.put_many([b"b"]), jobs.put_many([]), jobs.get(), jobs.get(0), jobs.get_many(2),
            jobs.sync(), jobs.join(), jobs.purge(), topic.purge(), jobs.read(0), jobs.peek(), topic.settle_in(),
            opened.delete_topic("a"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(aiodq.QueueShutDown):
                await soon(call)
        for attempt in (
            jobs.get_nowait, lambda: jobs.put_nowait(b"b"), lambda: opened.topic("a"), lambda: opened.topic("b"),
            lambda: opened.queue("a"), lambda: topic.channel("c"), topic.scan,
        ):  # fmt: skip
            with pytest.raises(aiodq.QueueShutDown):
                attempt()
        assert (jobs.qsize(), jobs.depth, jobs.end_offset) == (1, 1, 1)
        assert opened.stats().topics["a"].end_offset == 1
        async with queue(path):
            pass

    async def test_the_lock_is_free_when_it_returns(self, path: Path) -> None:
        for number in range(20):
            async with queue(path) as jobs:
                assert await jobs.put(b"a") == number

    async def test_an_exception_inside_comes_out_and_the_store_is_closed(self, path: Path) -> None:
        with pytest.raises(KeyError):
            async with queue(path) as jobs:
                jobs.put_nowait(b"a")
                raise KeyError("mine")
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_a_queue_of_a_store_closes_only_itself(self, path: Path) -> None:
        async with store(path) as opened:
            async with opened.queue("a") as jobs:
                await jobs.put(b"a")
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.put(b"b")
            await opened.topic("b").put(b"b")

    async def test_every_file_is_closed_and_nothing_is_left_over(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs, segment_bytes=300) as opened:
            for name in ("a", "b"):
                topic = opened.topic(name)
                one, other = topic.channel("one"), topic.channel("other")
                await fill(topic, numbered(30))
                await drain(one)
                await (await other.get()).nack()
                await topic.read(5)
                await anext(aiter(topic.scan()))
        gc.collect()
        await turns()
        assert fs.open_files == 0
        assert odd_files(path) == []

    async def test_without_a_leak_over_many_times(self, path: Path) -> None:
        async def once() -> None:
            async with queue(path, segment_bytes=300) as jobs:
                await fill(jobs, numbered(10))
                await jobs.read(jobs.begin_offset)
                await drain(jobs)

        await once()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await once()
        assert len(os.listdir("/proc/self/fd")) == before

    async def test_without_a_leak_over_many_failures(self, path: Path) -> None:
        async def once(number: int) -> None:
            fs = WatchedFileSystem()
            jobs = await aiodq.open_queue(path, aiodq.StoreOptions(segment_bytes=300), fs=fs)
            await fill(jobs, numbered(10))
            await jobs.read(jobs.begin_offset)
            fs.fail(errno.EIO, "sync", at=1 + number % 3)
            with pytest.raises(aiodq.StoreFailedError):
                while True:
                    await jobs.put(b"x")
                    await (await jobs.get()).ack()
            await jobs.aclose()
            assert fs.open_files == 0

        await once(0)
        before = len(os.listdir("/proc/self/fd"))
        for number in range(9):
            await once(number)
        assert len(os.listdir("/proc/self/fd")) == before


async def _put_by_transaction(opened: aiodq.Store, topic: str) -> None:
    async with opened.transaction() as tx:
        tx.put(topic, b"by transaction")


@pytest.mark.usefixtures("unshown")
class TestDeleting:
    async def test_it_is_gone_with_everything(self, path: Path) -> None:
        async with store(path, segment_bytes=300) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(20))
            await opened.topic("b").put(b"b")
            await channel.get()
            await opened.delete_topic("a")
            assert opened.topics() == ["b"]
            assert sorted(os.listdir(path)) == ["#store", "LOCK", "b"]
            await opened.delete_topic("a")
            await opened.delete_topic("never-was")
        async with store(path) as opened:
            assert opened.topics() == ["b"]

    async def test_it_may_be_made_again(self, path: Path) -> None:
        async with store(path) as opened:
            for number in range(3):
                topic = opened.topic("a")
                channel = topic.channel("c")
                assert await topic.put(b"%d" % number) == 0
                assert ready_now(channel) == [b"%d" % number]
                await opened.delete_topic("a")
        async with store(path) as opened:
            assert opened.topics() == []

    async def test_made_again_while_it_is_being_deleted(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await opened.topic("a").put(b"old")
            gate = fs.gate("rename", match="#deleted")
            deleting = tasks.start(opened.delete_topic("a"))
            await gate.wait()
            putting = tasks.start(opened.topic("a").put(b"new"))
            await turns(20)
            gate.open()
            await soon(deleting)
            assert await soon(putting) == 0
            assert opened.topics() == ["a"]
        async with store(path) as opened:
            assert [message.body async for message in opened.topic("a").scan()] == [b"new"]

    @pytest.mark.parametrize("sync", ["os", "interval"])
    async def test_what_is_put_and_looked_at_while_an_earlier_one_is_being_deleted_is_not_deleted_with_it(
        self, path: Path, tasks: Tasks, sync: Literal["os", "interval"]
    ) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs, sync=sync) as opened:
            await opened.topic("a").put(b"old")
            gate = fs.gate("rename", match="#deleted")
            deleting = tasks.start(opened.delete_topic("a"))
            await gate.wait()
            topic = opened.topic("a")
            channel, putting = topic.channel("c"), tasks.start(topic.put(b"new"))
            for _ in range(10):
                await turns()
                assert channel.qsize() == 0
            gate.open()
            await soon(deleting)
            assert await soon(putting) == 0
            assert ready_now(channel) == [b"new"]
        async with store(path) as opened:
            assert [message.body async for message in opened.topic("a").scan()] == [b"new"]

    async def test_deleted_twice_at_once(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await opened.topic("a").put(b"old")
            gate = fs.gate("rename", match="#deleted")
            deleting = [tasks.start(opened.delete_topic("a")), tasks.start(opened.delete_topic("a"))]
            await gate.wait()
            again = opened.topic("a")
            putting = tasks.start(again.put(b"new"))
            await turns()
            deleting.append(tasks.start(opened.delete_topic("a")))
            await turns()
            gate.open()
            await soon(asyncio.gather(*deleting))
            await asyncio.wait([putting], timeout=20)
            assert opened.topics() == []
        assert os.listdir(path) == ["LOCK"]

    async def test_who_waits_is_told_and_old_handles_do_nothing(self, path: Path, tasks: Tasks) -> None:
        async with store(path, max_messages=1) as opened:
            topic = opened.topic("a")
            channel, other = topic.channel("c"), topic.channel("d")
            await topic.put(b"a")
            await drain(other)
            getting, putting = tasks.start(other.get()), tasks.start(topic.put(b"b"))
            joining = tasks.start(channel.join())
            await turns()
            await opened.delete_topic("a")
            await asyncio.wait([getting, putting, joining], timeout=20)
            assert isinstance(outcome(getting), aiodq.QueueShutDown)
            assert isinstance(outcome(putting), aiodq.QueueShutDown)
            for call in (topic.put(b"c"), channel.get(), topic.sync(), topic.purge(), channel.purge()):
                with pytest.raises(aiodq.QueueShutDown):
                    await soon(call)
            with pytest.raises(aiodq.QueueShutDown):
                await soon(topic.channel("e").get())
            assert opened.topics() == []
            assert os.listdir(path) == ["LOCK"]

    async def test_what_was_not_used_yet(self, path: Path) -> None:
        async with store(path) as opened:
            opened.topic("a")
            await opened.delete_topic("a")
            assert await opened.topic("a").put(b"a") == 0

    async def test_a_crash_in_the_middle_leaves_it_whole_or_gone(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        camera = Camera(fs, path, tmp_path, *CHANGES)
        async with store(path, fs=fs, segment_bytes=300) as opened:
            topic = opened.topic("a")
            topic.channel("c")
            await fill(topic, numbered(20))
            fs.add(camera)
            await opened.delete_topic("a")
            fs.heal()
        seen = set()
        for copy in camera.copies:
            async with store(copy) as opened:
                seen.add(tuple(opened.topics()))
                if opened.topics():
                    assert [message.body async for message in opened.topic("a").scan()] == numbered(20)
            assert not [name for name in os.listdir(copy) if "deleted" in name]
        assert seen == {("a",), ()}

    async def test_one_that_cannot_be_deleted_says_so(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await opened.topic("a").put(b"a")
            fs.fail(errno.EACCES, "rename", match="#deleted")
            with pytest.raises(aiodq.ReadOnlyError):
                await soon(opened.delete_topic("a"))
            fs.heal()
            await opened.topic("b").put(b"b")
        async with store(path) as opened:
            assert opened.topics() == ["a", "b"]

    async def test_one_that_transactions_hold_up_is_not_opened_twice(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            old = opened.topic("a")
            async with opened.transaction() as tx:
                tx.put("a", b"by transaction")
            fs.fail(errno.EMFILE, "write", match="#transactions", times=1)
            await soon(opened.delete_topic("a"))
            assert await opened.topic("a").put(b"new") == 0
            with pytest.raises(aiodq.QueueShutDown):
                await old.put(b"old")
        async with store(path) as opened:
            assert [message.body async for message in opened.topic("a").scan()] == [b"new"]

    @pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EIO])
    async def test_one_that_the_transaction_log_holds_up_for_good_says_so(self, path: Path, error: int) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            channel = opened.topic("a").channel("c")
            await opened.topic("a").put(b"first")
            async with opened.transaction() as tx:
                tx.ack(await channel.get())
                tx.put("a", b"by transaction")
                tx.put("b", b"elsewhere")
            fs.fail(error, "write", match="#transactions")
            with pytest.raises(aiodq.StorageError, match="#transactions") as caught:
                await soon(opened.delete_topic("a"))
            assert caught.value.errno == error
            fs.heal()
            async with opened.transaction() as tx:
                tx.put("b", b"also")
        assert opened._store_engine.committer._file.size == 0  # the old topic holds up no other transaction
        async with store(path) as opened:
            assert ready_now(opened.topic("a").channel("c")) == [b"by transaction"]
            await soon(opened.delete_topic("a"))
            assert opened.topics() == ["b"]
            assert [message.body async for message in opened.topic("b").scan()] == [b"elsewhere", b"also"]

    async def test_one_is_deleted_while_a_transaction_finds_that_it_cannot_be_written(
        self, path: Path, tasks: Tasks
    ) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await opened.topic("a").put(b"first")
            await opened.topic("b").put(b"elsewhere")
            gate = fs.gate("make_directory", match="channels/c")
            fs.fail(errno.EIO, "make_directory", match="channels/c")
            opened.topic("a").channel("c")
            committing = tasks.start(_put_by_transaction(opened, "a"))
            await soon(gate.wait())
            await turns(20)
            deleting = tasks.start(opened.delete_topic("a"))
            await turns(20)
            gate.open()
            await soon(asyncio.gather(deleting, committing))
            fs.heal()
            await soon(_put_by_transaction(opened, "a"))
            await soon(opened.delete_topic("b"))
            assert opened.topics() == ["a"]
        async with store(path) as opened:
            assert [message.body async for message in opened.topic("a").scan()] == [b"by transaction"]

    @pytest.mark.parametrize("match", ["#transactions", "#deleted"])
    async def test_one_that_could_not_be_deleted_keeps_what_each_channel_has_not_had(
        self, path: Path, match: str
    ) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs, segment_bytes=300) as opened:
            topic = opened.topic("a")
            channels = [topic.channel(name) for name in "cd"]
            await fill(topic, numbered(20))
            async with opened.transaction() as tx:
                tx.put("b", b"b")
            fs.fail(errno.EACCES, "write" if match == "#transactions" else "rename", match=match)
            with pytest.raises(aiodq.ReadOnlyError):
                await soon(opened.delete_topic("a"))
            fs.heal()
            assert opened.topics() == ["a", "b"]
            with pytest.raises(aiodq.ReadOnlyError, match="'a' is half deleted: delete it again, or open the store"):
                await opened.topic("a").put(b"new")
            with pytest.raises(aiodq.ReadOnlyError, match="'a' is half deleted: delete it again, or open the store"):
                opened.topic("a").channel("c")
            assert not opened.health().ok
            for old in (topic.put(b"old"), channels[0].get()):
                with pytest.raises(aiodq.QueueShutDown):
                    await soon(old)
        async with store(path) as opened:
            topic = opened.topic("a")
            assert topic.channels() == ["c", "d"]
            assert await drain(topic.channel("c")) == numbered(20)
            assert ready_now(topic.channel("d")) == numbered(20)

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
    async def test_one_that_a_power_cut_may_bring_back_stops_the_store(self, path: Path, code: int) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            other = opened.topic("b")
            await opened.topic("a").put(b"a")
            fs.fail(code, "sync_directory")
            with pytest.raises(aiodq.StoreFailedError):
                await soon(opened.delete_topic("a"))
            fs.heal()
            with pytest.raises(aiodq.StoreFailedError):
                await other.put(b"b")
        async with store(path) as opened:
            assert opened.topics() == []

    async def test_one_that_could_not_be_deleted_is_deleted_by_the_next_call(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            async with opened.transaction() as tx:
                tx.put("a", b"a")
            fs.fail(errno.EACCES, "rename", match="#deleted")
            gate = fs.gate("write", match="#transactions")
            deleting = tasks.start(opened.delete_topic("a"))
            await soon(gate.wait())
            named = opened.topic("a")
            putting = tasks.start(named.put(b"b"))
            await turns()
            gate.open()
            for task in (deleting, putting):
                with pytest.raises(aiodq.ReadOnlyError):
                    await soon(task)
            with pytest.raises(aiodq.ReadOnlyError, match="half deleted"):
                await soon(named.put(b"c"))
            with pytest.raises(aiodq.ReadOnlyError):
                await soon(opened.delete_topic("a"))
            fs.heal()
            left = opened.topic("a")
            await soon(opened.delete_topic("a"))
            assert opened.topics() == []
            assert not (path / "a").exists()
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await soon(left.put(b"d"))
            assert await soon(opened.topic("a").put(b"new")) == 0

    async def test_what_one_could_not_remove_is_in_no_other_s_way(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await opened.topic("a").put(b"first")
            fs.fail(errno.EIO, "remove", match="#deleted", times=1)
            with pytest.raises(aiodq.StorageError):
                await soon(opened.delete_topic("a"))
            assert opened.topics() == []
            assert await opened.topic("a").put(b"second") == 0
            await soon(opened.delete_topic("a"))
            assert not list(path.glob("a*"))

    async def test_a_channel_that_could_not_be_deleted_is_deleted_by_the_next_call(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await topic.put(b"a")
            fs.fail(errno.ENOSPC, "create", match="topic.json")
            with pytest.raises(aiodq.DiskFullError):
                await soon(topic.delete_channel("c"))
            fs.heal()
            assert topic.channels() == ["c"]
            with pytest.raises(aiodq.QueueShutDown):
                await soon(channel.get())
            await soon(topic.delete_channel("c"))
            assert topic.channels() == []
        async with store(path) as opened:
            assert opened.topic("a").channels() == []


class TestTopics:
    async def test_it_is_kept_from_its_first_put_or_channel_on(self, path: Path) -> None:
        async with store(path) as opened:
            opened.topic("named")
            opened.topic("b").channel("c")
            await opened.topic("a").put(b"a")
            await opened.topic("b").settle_in()
            assert opened.topics() == ["a", "b"]
        async with store(path) as opened:
            assert opened.topics() == ["a", "b"]

    async def test_naming_one_is_the_same_one(self, path: Path) -> None:
        async with store(path) as opened:
            assert opened.topic("a") is opened.topic("a")
            assert await opened.topic("a").put(b"a") == 0
            assert await opened.topic("a").put(b"a") == 1

    async def test_many(self, path: Path) -> None:
        names = [f"t{number:03}" for number in range(40)]
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await asyncio.gather(*(opened.topic(name).put(name.encode()) for name in names))
        async with store(path, fs=fs) as opened:
            assert opened.topics() == names
            for name in names:
                assert (await opened.topic(name).read(0)).body == name.encode()
        assert fs.open_files == 0


class TestStats:
    async def test_of_a_store(self, path: Path) -> None:
        async with store(path, segment_bytes=300) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(20))
            held = await take(channel, 3)
            await held[0].ack()
            stats = opened.stats()
            assert (stats.path, stats.failed, list(stats.topics)) == (str(path), None, ["a"])
            told = stats.topics["a"]
            assert told == topic.stats()
            assert (told.name, told.begin_offset, told.end_offset, told.durable_offset, told.pending) == (
                "a",
                0,
                20,
                20,
                0,
            )
            found = segments(path, "a")
            assert (told.segments, told.disk_bytes) == (len(found), sum(file.stat().st_size for file in found))
            assert (told.dropped, told.damages, told.recovered_bytes, told.bytes_read) == (0, 0, 0, 0)
            assert told.fsyncs > 0
            assert (told.channels["c"].depth, told.channels["c"].in_flight) == (19, 2)
            with pytest.raises(dataclasses.FrozenInstanceError):
                told.__setattr__("pending", 1)

    async def test_they_do_no_io(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(5))
            await jobs.sync()
            since = len(fs.passed)
            jobs.stats()
            jobs.topic_stats()
            assert (jobs.qsize(), jobs.depth, jobs.in_flight(), jobs.empty(), jobs.full()) == (5, 5, 0, False, False)
            assert fs.passed[since:] == []

    async def test_of_a_failed_store(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            await opened.topic("a").put(b"a")
            fs.fail(errno.EIO, "sync", match=".seg")
            with pytest.raises(aiodq.StoreFailedError):
                await opened.topic("a").put(b"b")
            failed = opened.stats().failed
            assert failed is not None
            assert "sync" in failed
