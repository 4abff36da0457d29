"""`store.health()`, and what the log says of a slow disk, a full one, and a loop that is held up."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import threading
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiodq
from aiodq.engine.monitoring.metrics import LEAST_FREE, SyncTimer
from aiodq.engine.monitoring.reporter import _QUIET
from aiodq.engine.store import watch
from aiodq.engine.store.watch import Watch
from aiodq.shared.client import owner_report
from aiodq.shared.requests.owner_state import overview
from aiodq.testing import FakeClock, FaultPlan, SimulatedExecutor, SimulatedFileSystem, WatchedFileSystem, run
from tests.channels.support import Machine, until
from tests.queue.support import FakeClock as PlainClock
from tests.queue.support import until as until_it
from tests.system.support import descriptors_under
from tests.watching.support import told

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.testing.faults import Call


async def test_a_new_store_is_well_and_says_what_it_does_not_know_yet(machine: Machine) -> None:
    machine.fs.capacity = 1 << 30
    async with machine.store() as store:
        assert store.health() == aiodq.Health(
            ok=True, reasons=(), failed=None, oldest_age=None, depth=0, disk_free=None, sync_latency=0.0
        )
        await until(lambda: store.health().disk_free is not None)
        assert store.health().ok


async def test_the_machine_s_own_disk_is_looked_at(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "store") as store:
        await until_it(lambda: store.health().disk_free is not None)
        assert (store.health().disk_free or 0) > 0


async def test_little_space_is_a_reason(machine: Machine) -> None:
    machine.fs.capacity = LEAST_FREE
    async with machine.store() as store:
        await store.topic("t").put(b"x")
        store._store_engine._watch._sample()
        await until(lambda: not store.health())
        assert "bytes are free" in store.health().reasons[0]


async def test_a_full_disk_shows_until_there_is_room_again(machine: Machine, lines: pytest.LogCaptureFixture) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put(b"x")
        machine.fs.plan = FaultPlan.parse("write@1:ENOSPC:lasting")
        for _ in range(3):
            with pytest.raises(aiodq.DiskFullError):
                await topic.put(b"x")
        health = store.health()
        assert (health.ok, health.failed) == (False, None)
        assert "topic 't': the disk is full" in health.reasons[0]
        (warned,) = told(lines, "aiodq.topic", logging.WARNING)
        assert warned.__dict__["topic"] == "t"
        machine.fs.plan = FaultPlan()
        await topic.put(b"x")
        assert store.health().ok


@pytest.mark.parametrize("error", ["EROFS", "EIO"])
async def test_a_disk_that_takes_no_writes_shows_until_it_does_again(
    machine: Machine, error: str, lines: pytest.LogCaptureFixture
) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put(b"x")
        machine.fs.plan = FaultPlan.parse(f"write@1:{error}:lasting")
        with pytest.raises(aiodq.StorageError):
            await topic.put(b"x")
        health = store.health()
        assert (health.ok, health.failed) == (False, None)
        assert "topic 't': it cannot be written" in health.reasons[0]
        machine.fs.plan = FaultPlan.parse("write@1:ENOSPC:lasting")
        with pytest.raises(aiodq.DiskFullError):
            await topic.put(b"x")
        assert len(told(lines, "aiodq.topic", logging.WARNING)) == 1, "that it is full is told after that, too"
        machine.fs.plan = FaultPlan()
        await topic.put(b"x")
        assert store.health().ok


async def test_a_closed_store_is_not_healthy(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("t").put(b"x")
        closing = asyncio.ensure_future(store.aclose())
        await asyncio.sleep(0)
        assert store.health().reasons == ("the store is closing",)
        await closing
        health = store.health()
        assert (health.ok, bool(health), health.failed, health.reasons) == (
            False,
            False,
            None,
            ("the store is closed",),
        )


async def looked(store: aiodq.Store) -> None:
    """Let the watch look at the disk once."""
    watch = store._store_engine._watch
    await until_it(lambda: not watch._sampling)
    watch._sample()
    await until_it(lambda: not watch._sampling)


async def test_a_topic_whose_directory_was_deleted_takes_no_more_puts(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(sync="os")) as store:
        a, b = store.queue("a"), store.queue("b")
        async with store.transaction() as transaction:
            transaction.put("a", b"0")
            transaction.put("b", b"0")
        async with await a.get():
            getting = asyncio.create_task(a.get())
            await asyncio.sleep(0)
        shutil.rmtree(tmp_path / "s" / "a")
        await looked(store)
        for attempt in (getting, a.put(b"1"), store.topic("a").put(b"1"), a.sync()):
            with pytest.raises(aiodq.StoreNotFoundError, match="'a' was deleted while the store was open"):
                await attempt
        assert not store.health()
        assert "topic 'a' cannot be used" in store.health().reasons[0]
        (warned,) = told(lines, "aiodq.store", logging.WARNING)
        assert warned.__dict__["topic"] == "a"
        async with await b.get(), store.transaction() as transaction:
            transaction.put("b", b"1")
        await b.purge()
        await store.delete_topic("a")
        assert await store.queue("a").put(b"anew") == 0
        assert store.health()
        await b.put(b"2")
    async with aiodq.open(tmp_path / "s") as store:
        assert [message.body async for message in store.queue("a").scan()] == [b"anew"]
        assert [message.body for message in await store.queue("b").get_many(9)] == [b"2"]


@pytest.mark.parametrize("anew", [False, True])
async def test_the_files_of_a_topic_whose_directory_was_deleted_are_closed_with_the_store(
    tmp_path: Path, anew: bool
) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        queue = store.queue("a")
        await queue.put_many([b"0", b"1"])
        async with await queue.get():
            pass
        shutil.rmtree(tmp_path / "s" / "a")
        await looked(store)
        with pytest.raises(aiodq.StoreNotFoundError, match="'a' was deleted while the store was open"):
            await queue.put(b"2")
        if anew:
            await store.delete_topic("a")
            assert await store.queue("a").put(b"anew") == 0
    assert descriptors_under(tmp_path) == []


async def test_a_topic_whose_directory_was_deleted_is_deleted_with_what_a_transaction_could_not_write(
    tmp_path: Path,
) -> None:
    fs = WatchedFileSystem()

    async def put_by_transaction(topic: str) -> None:
        async with store.transaction() as transaction:
            transaction.put(topic, b"by transaction")

    async with aiodq.open(tmp_path / "s", fs=fs) as store:
        await store.topic("a").put(b"0")
        await store.topic("b").put(b"0")
        fs.fail(errno.EIO, "write", match="a/0")
        await put_by_transaction("a")
        shutil.rmtree(tmp_path / "s" / "a")
        await looked(store)
        with pytest.raises(aiodq.StoreNotFoundError, match="'a' was deleted while the store was open"):
            await store.topic("a").put(b"1")
        fs.heal()
        await store.delete_topic("a")
        await store.delete_topic("b")
        await put_by_transaction("b")
    async with aiodq.open(tmp_path / "s") as store:
        assert store.topics() == ["b"]
        assert [message.body async for message in store.topic("b").scan()] == [b"by transaction"]


async def test_a_topic_whose_segment_being_written_was_deleted_takes_no_more_puts(tmp_path: Path) -> None:
    """They would go into a file without a name, and with it once the store is closed."""
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(segment_bytes=4096)) as store:
        a, b = store.queue("a"), store.queue("b")
        await a.put(b"0")
        await b.put(b"0")
        await looked(store)
        (a_path,) = (tmp_path / "s" / "a").glob("*.seg")
        a_path.unlink()
        await looked(store)
        assert store.health(), "nothing was put since"
        await a.put(b"1")
        await looked(store)
        for attempt in (a.put(b"2"), a.get(), a.sync()):
            with pytest.raises(
                aiodq.StoreNotFoundError, match="a segment's file of topic 'a' was deleted while"
            ) as gone:
                await attempt
            assert gone.value.path == str(a_path)
        assert "topic 'a' cannot be used" in store.health().reasons[0]
        await b.put(b"1")
    async with aiodq.open(tmp_path / "s") as store:
        assert store.topic("a").stats().damages
        assert [message.body async for message in store.queue("b").scan()] == [b"0", b"1"]


async def test_a_segment_that_retention_deletes_during_a_look_is_not_missed(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(segment_bytes=4096)) as store:
        queue = store.queue("a")
        await queue.put(b"0")
        (path,) = (tmp_path / "s" / "a").glob("*.seg")
        watch, deleted = store._store_engine._watch, threading.Event()
        await until_it(lambda: not watch._sampling)
        unlinked = watch._unlinked
        watch._unlinked = lambda paths: unlinked(paths) if deleted.wait(60) else []
        watch._sizes.clear()
        watch._sample()
        while path.exists():
            await queue.put(bytes(1500))
            await queue.ack_many(await queue.get_many(9))
        deleted.set()
        await until_it(lambda: not watch._sampling)
        assert store.health()


async def test_a_store_whose_topic_was_deleted_under_it_is_closed_and_opened_again(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await asyncio.gather(*(store.queue(name).put(b"0") for name in "ab"))
        shutil.rmtree(tmp_path / "s" / "a")
        await looked(store)
        assert not store.health()
    async with aiodq.open(tmp_path / "s") as store:
        assert store.health()
        assert await store.queue("a").put(b"0") == 0
        assert (await store.queue("b").get()).body == b"0"


async def test_no_topic_is_taken_for_deleted_that_has_no_directory_yet_or_moved_with_the_store(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        named, kept, gone = store.topic("named"), store.topic("kept"), store.topic("gone")
        await asyncio.gather(*(topic.put(b"0") for topic in (kept, gone, store.topic("memory#ephemeral"))))
        looking = asyncio.create_task(looked(store))
        await asyncio.sleep(0)
        await store.delete_topic("gone")
        await looking
        await store.topic("gone").put(b"1")
        (tmp_path / "s").rename(tmp_path / "moved")
        (tmp_path / "s").mkdir()
        await kept.put(b"1")
        await looked(store)
        (tmp_path / "s").rmdir()
        (tmp_path / "moved").rename(tmp_path / "s")
        await looked(store)
        assert store.health()
        await named.put(b"0")
        assert await kept.put(b"2") == 2


async def test_a_failed_store_tells_why(machine: Machine) -> None:
    store = await aiodq.open("/s", fs=machine.fs, clock=machine.clock)
    await store.topic("t").put(b"x")
    machine.fs.plan = FaultPlan.parse("sync@1:EIO:lasting")
    with pytest.raises(aiodq.StoreFailedError):
        await store.topic("t").put(b"x")
    health = store.health()
    assert not health.ok
    assert health.failed is not None
    assert health.reasons == (f"failed: {health.failed}",)
    await store.aclose()
    assert not store.health()


async def test_a_full_disk_does_not_show_any_longer_than_the_topic_is_there(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put(b"x")
        machine.fs.plan = FaultPlan.parse("write@1:ENOSPC:lasting")
        with pytest.raises(aiodq.DiskFullError):
            await topic.put(b"x")
        machine.fs.plan = FaultPlan()
        assert not store.health()
        await store.delete_topic("t")
        assert store.health()


async def test_a_slow_sync_of_acks_counts_as_one_of_puts() -> None:
    fs, clock = SimulatedFileSystem(), PlainClock()

    def slow(call: Call, path: str) -> None:
        if call == "sync" and path.endswith("journal"):
            clock.move(1.5)

    async with aiodq.open("/s", fs=fs, clock=clock) as store:
        topic = store.topic("t")
        channel = topic.channel("c")
        await topic.put(b"x")
        message = await channel.get()
        fs.before = slow
        await message.ack()
        fs.before = None
        assert (store.health().ok, store.health().sync_latency) == (False, 3.0)  # as below


async def test_a_slow_sync_is_told_once_and_forgotten_in_time(lines: pytest.LogCaptureFixture) -> None:
    fs, clock = SimulatedFileSystem(), PlainClock()

    def slow(call: Call, path: str) -> None:
        if call == "sync" and path.endswith(".seg"):
            clock.move(1.5)

    async with aiodq.open("/s", fs=fs, clock=clock) as store:
        topic = store.topic("t")
        await topic.put(b"x")
        lines.clear()
        fs.before = slow
        for _ in range(3):
            await topic.put(b"x")
        fs.before = None
        (warned,) = told(lines, "aiodq.store", logging.WARNING)
        assert "took 3.0 s" in warned.getMessage()  # the hook is called twice within a sync
        health = store.health()
        assert (health.ok, health.sync_latency) == (False, 3.0)
        assert "slow" in health.reasons[0]
        clock.move(120)
        assert (store.health().ok, store.health().sync_latency) == (True, 0.0)


async def test_a_slow_disk_is_told_once_a_store_however_many_topics(
    machine: Machine, lines: pytest.LogCaptureFixture
) -> None:
    topics = 20
    async with machine.store() as store:
        metrics, reporter = store._store_engine.metrics, store._store_engine.reporter
        for number in range(topics):
            metrics.began(timer := SyncTimer(metrics, f"t{number}"))
            machine.clock.advance(1.5)
            metrics.ended(timer)
        (warned,) = told(lines, "aiodq.store", logging.WARNING)
        assert "topic 't0': a sync took 1.5 s" in warned.getMessage()
        assert warned.__dict__["topic"] == "t0"
        lines.clear()
        for _ in range(_QUIET):
            reporter.tick()
        (summed,) = told(lines, "aiodq.store", logging.WARNING)
        assert summed.getMessage() == f"/s: {topics - 1} more slow syncs"
    assert told(lines, "aiodq.topic", logging.WARNING) == []


async def test_a_sync_that_hangs_shows_before_it_ends(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    fs, clock = WatchedFileSystem(), PlainClock()
    async with aiodq.open(tmp_path / "store", fs=fs, clock=clock) as store:
        topic = store.topic("t")
        await topic.put(b"x")
        gate = fs.gate("sync", match=".seg")
        putting = asyncio.ensure_future(topic.put(b"x"))
        await gate.wait()
        clock.move(7)
        store._store_engine.metrics.tick()
        assert store.health().sync_latency == 7
        assert not store.health()
        assert "under way for 7.0 s" in told(lines, "aiodq.store", logging.WARNING)[0].getMessage()
        fs.heal()
        await putting


def test_a_loop_that_is_held_up_is_told(lines: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop, fs = asyncio.get_running_loop(), SimulatedFileSystem()
        executor = SimulatedExecutor(loop, fs, seed=1)
        async with aiodq.open("/s", fs=fs, clock=FakeClock(), executor=executor):
            await asyncio.sleep(10)
            assert told(lines, "aiodq.store", logging.WARNING) == []
            loop._simulated.time += 3  # type: ignore[attr-defined]  # as a callback does that takes so long
            await asyncio.sleep(10)

    run(main)
    (warned,) = told(lines, "aiodq.store", logging.WARNING)
    assert 2 < warned.__dict__["seconds"] <= 3


def test_a_loop_that_is_held_up_is_no_slow_disk(lines: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop, fs, clock = asyncio.get_running_loop(), SimulatedFileSystem(), PlainClock()
        executor = SimulatedExecutor(loop, fs, seed=1)
        async with aiodq.open("/s", fs=fs, clock=clock, executor=executor) as store:
            await asyncio.sleep(10)
            metrics = store._store_engine.metrics
            one, other = SyncTimer(metrics, "one"), SyncTimer(metrics, "other")
            one.began()
            other.began()
            clock.move(3)
            loop._simulated.time += 3  # type: ignore[attr-defined]  # as a callback does that takes so long
            assert store.health()
            one.ended()
            metrics.tick()
            other.ended()
            assert store.health()
            one.began()
            await asyncio.sleep(10)
            clock.move(3)
            assert not store.health()
            one.ended()
            assert not store.health()

    run(main)
    held, slow = [each.getMessage() for each in told(lines, "aiodq.store", logging.WARNING)]
    assert "held up" in held
    assert "took 3.0 s" in slow


def test_health_does_no_i_o() -> None:
    async def main() -> None:
        loop, fs = asyncio.get_running_loop(), SimulatedFileSystem()
        async with aiodq.open("/s", fs=fs, clock=FakeClock(), executor=SimulatedExecutor(loop, fs, 1)) as store:
            for number in range(50):
                await store.queue(f"t{number}").put(b"x")
            before = dict(fs.calls)
            assert store.health().depth == 1
            assert fs.calls == before

    run(main)


async def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watch look at the disk a few times."""
    looked = asyncio.Semaphore(0)
    loop, look = asyncio.get_running_loop(), Watch._look

    def counted(self: Watch, *args: Any) -> Any:
        loop.call_soon_threadsafe(looked.release)
        return look(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "_look", counted)
        for _ in range(3):
            await looked.acquire()


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("instead", ["nothing", "directory", "store"])
async def test_a_store_whose_path_leads_elsewhere_goes_on_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: pytest.LogCaptureFixture,
    mode: Literal["exclusive", "shared"],
    instead: str,
) -> None:
    for module, name in (watch, "_INTERVAL"), (owner_report, "_LOOK"), (overview, "_FRESH"):
        monkeypatch.setattr(module, name, 0.02)
    path, moved = tmp_path / "s", tmp_path / "moved"
    async with aiodq.open(path, mode=mode) as store:
        jobs, events = store.queue("jobs"), store.events()
        await jobs.put(b"0")
        if instead == "store":
            await store.backup(tmp_path / "backup")
        path.rename(moved)
        if instead == "store":
            (tmp_path / "backup").rename(path)
        elif instead == "directory":
            path.mkdir()
        await until_it(lambda: not store.health())
        alarm = await anext(events)
        await looks(monkeypatch)
        (reason,) = store.health().reasons
        assert str(path) in reason
        what = {"nothing": "No such file", "directory": "another directory is there", "store": "another store is there"}
        for text in (reason, alarm.text):
            assert what[instead] in text
        assert (alarm.kind, alarm.topic) == ("alarm", None)
        assert len(told(lines, "aiodq.store", logging.WARNING)) == 1, "each look found it, but one told"
        assert await jobs.put(b"1") == 1
        if instead != "nothing":
            path.rename(tmp_path / "other")
        moved.rename(path)
        assert (await anext(events)).kind == "cleared"
        await until_it(lambda: bool(store.health()))
        async with await jobs.get():
            pass
