"""What a transaction does when it commits, and that it does nothing otherwise."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, get_args

import pytest

import aiodq
from aiodq.engine.committing import group_committer
from aiodq.engine.committing.group_committer import Committer
from aiodq.engine.store.store_engine import StoreEngine
from aiodq.opening import Mode
from aiodq.testing import Fault, SimulatedFileSystem, WatchedFileSystem
from tests.channels.support import PATIENCE, Machine, counts, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.topic.stored_options import StoredOptions


async def transact(store: aiodq.Store, puts: dict[str, list[bytes]], *messages: aiodq.Message) -> None:
    async with store.transaction() as tx:
        for message in messages:
            tx.ack(message)
        for topic, bodies in puts.items():
            for body in bodies:
                tx.put(topic, body)


async def test_what_it_acks_is_settled_and_what_it_puts_is_there(store: aiodq.Store) -> None:
    jobs, made, audit = store.queue("jobs"), store.queue("made"), store.queue("audit")
    await jobs.put_many([b"1", b"2"])
    message = await jobs.get()
    async with store.transaction() as tx:
        tx.ack(message)
        tx.put("made", b"a", tag="t", key=b"k", headers={"x": "y"})
        tx.put("audit", b"c")
        tx.put("made", b"b")
        assert counts(jobs) == (1, 1, 0)
        assert not message.settled
    assert message.settled
    assert counts(jobs) == (1, 0, 0)
    first, second = await soon(made.get()), await soon(made.get())
    assert (first.body, first.tag, first.key, first.headers) == (b"a", "t", b"k", {"x": "y"})
    assert (first.offset, second.offset, second.body) == (0, 1, b"b")
    assert (await soon(audit.get())).body == b"c"
    assert store.stats().transactions == 1
    assert jobs.stats().acked == 1


async def test_an_exception_in_the_block_undoes_everything(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put(b"1")
    message = await jobs.get()
    with pytest.raises(LookupError):
        async with store.transaction() as tx:
            tx.ack(message)
            tx.put("made", b"a")
            raise LookupError
    assert counts(jobs) == (0, 1, 0)
    assert store.topics() == ["jobs"]
    await message.ack()


async def test_what_goes_with_a_body_counts_among_what_it_holds(
    store: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Committer, "largest", 10_000)
    async with store.transaction() as tx:
        for common in ({"key": bytes(10_000)}, {"tag": "t" * 10_000}, {"headers": {"h": "x" * 10_000}}):
            with pytest.raises(aiodq.MessageSizeError):
                tx.put("made", b"a", **common)
        tx.put("made", b"a", key=bytes(5_000))
        with pytest.raises(aiodq.MessageSizeError):
            tx.put_many("made", [b"b", aiodq.Draft(b"c", key=bytes(5_000))])
    assert store.topic("made").end_offset == 1


async def test_without_anything_in_it_nothing_is_written(machine: Machine, store: aiodq.Store) -> None:
    before = machine.fs.durable()
    async with store.transaction():
        pass
    assert machine.fs.durable() == before
    assert store.stats().transactions == 0


async def test_delay_and_time_to_live_are_counted_from_the_put(machine: Machine, store: aiodq.Store) -> None:
    made = store.queue("made")
    await made.topic.settle_in()
    async with store.transaction() as tx:
        tx.put("made", b"later", delay=10)
        tx.put("made", b"short", ttl=5)
        tx.put("made", b"now")
    await until(lambda: made.depth == 3)
    assert counts(made) == (2, 0, 1)
    machine.clock.advance(5)
    assert ready(made) == [b"now"]
    machine.clock.advance(5)
    assert ready(made) == [b"later"]


async def test_it_wakes_who_waits_and_ends_a_join(store: aiodq.Store) -> None:
    jobs, made = store.queue("jobs"), store.queue("made")
    await jobs.put(b"1")
    message = await jobs.get()
    waiting, joining = (
        asyncio.ensure_future(made.get()),
        asyncio.ensure_future(store.topic("jobs").channel("default").join()),
    )
    await asyncio.sleep(0)
    await transact(store, {"made": [b"a"]}, message)
    assert (await soon(waiting)).body == b"a"
    await soon(joining)


async def test_a_message_is_settled_once(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    first, second = await jobs.get(), await jobs.get()
    await first.ack()
    async with store.transaction() as tx:
        with pytest.raises(aiodq.AlreadySettledError):
            tx.ack(first)
        tx.ack(second)
        with pytest.raises(aiodq.AlreadySettledError):
            tx.ack(second)
    with pytest.raises(aiodq.AlreadySettledError):
        await second.ack()


async def test_a_message_settled_meanwhile_fails_the_whole(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    first, second = await jobs.get(), await jobs.get()
    with pytest.raises(aiodq.NotInFlightError):
        async with store.transaction() as tx:
            tx.ack(first)
            tx.ack(second)
            tx.put("made", b"a")
            await second.nack()
    assert counts(jobs) == (1, 1, 0)
    assert store.topic("made").end_offset == 0
    await first.ack()


async def test_a_message_that_timed_out_is_not_acked(machine: Machine, store: aiodq.Store) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
    await jobs.put(b"1")
    message = await jobs.get()
    with pytest.raises(aiodq.NotInFlightError):
        async with store.transaction() as tx:
            tx.ack(message)
            machine.clock.advance(6)
            await until(lambda: jobs.qsize() == 1)
    assert ready(jobs) == [b"1"]


async def test_of_another_store_or_only_looked_at_it_is_refused(store: aiodq.Store) -> None:
    async with Machine().store() as other:
        for place in (other, store):
            await place.queue("jobs").put(b"1")
        stranger, seen = await other.queue("jobs").get(), await store.topic("jobs").read(0)
        async with store.transaction() as tx:
            for message in (stranger, seen):
                with pytest.raises(aiodq.NotInFlightError):
                    tx.ack(message)
        await stranger.ack()


async def test_it_is_used_in_its_block_and_once(store: aiodq.Store) -> None:
    tx = store.transaction()
    with pytest.raises(aiodq.WrongContextError):
        tx.put("made", b"a")
    async with tx:
        tx.put("made", b"a")
    with pytest.raises(aiodq.WrongContextError):
        tx.put("made", b"b")
    with pytest.raises(aiodq.WrongContextError):
        await tx.__aenter__()


async def test_what_cannot_be_stored_is_refused_at_once(store: aiodq.Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(aiodq.InvalidNameError):
            tx.put("..", b"a")
        with pytest.raises(aiodq.InvalidMessageError):
            tx.put("made", b"a", delay=-1)
        with pytest.raises(aiodq.MessageSizeError):
            tx.put("made", bytes(aiodq.StoreOptions().max_message_bytes + 1))
        wrong: Any = "text"
        with pytest.raises(TypeError):
            tx.put("made", wrong)
        tx.put("made", b"b")
    await until(lambda: store.topic("made").end_offset == 1)


async def test_a_full_topic_refuses_it_and_nothing_is_done(machine: Machine) -> None:
    async with machine.store(max_messages=2, overflow="reject") as store:
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        message = await jobs.get()
        await store.topic("made").put_many([b"a", b"b"])
        with pytest.raises(aiodq.QueueFull):
            await transact(store, {"log": [b"x"], "made": [b"c"]}, message)
        assert counts(jobs) == (0, 1, 0)
        assert (store.topic("log").end_offset, store.topic("made").end_offset) == (0, 2)
        await transact(store, {"log": [b"x"]}, message)


@pytest.mark.parametrize("named_before", [False, True])
@pytest.mark.parametrize("overflow", ["block", "reject"])
async def test_however_many_come_at_once_a_topic_holds_no_more_than_its_bound(
    machine: Machine, overflow: str, *, named_before: bool
) -> None:
    async with machine.store(max_messages=3, overflow=overflow) as store:
        made = store.queue("made")
        if named_before:
            await made.topic.settle_in()
        tasks = [asyncio.ensure_future(transact(store, {"made": [b"%d" % number]})) for number in range(50)]
        await until(lambda: made.depth == 3)
        for _ in range(50):
            await asyncio.sleep(0)
            await made.topic.settle_in()
            assert made.depth == 3
        assert sum(task.done() and task.exception() is None for task in tasks) == 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (made.depth, made.topic.stats().pending) == (3, 0)


@pytest.mark.parametrize("overflow", ["block", "reject", "drop_oldest"])
async def test_what_it_settles_makes_room_for_what_it_puts(machine: Machine, overflow: str) -> None:
    async with machine.store(max_messages=3, overflow=overflow) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3"])
        producer = asyncio.ensure_future(jobs.put(b"more")) if overflow == "block" else None
        first, second = await jobs.get(), await jobs.get()
        await soon(asyncio.gather(transact(store, {"jobs": [b"a"]}, first), transact(store, {"jobs": [b"b"]}, second)))
        assert jobs.depth == 3
        assert producer is None or not producer.done()
        await soon(transact(store, {"jobs": [b"c"]}, await jobs.get(), await jobs.get()))
        await until(lambda: jobs.topic.stats().pending == 0)
        if producer is not None:
            await soon(producer)
        assert (jobs.depth, jobs.stats().dropped) == (3 if producer else 2, 0)
        assert ready(jobs) == [b"b", b"c", b"more"][: jobs.depth]


@pytest.mark.parametrize("overflow", ["block", "reject", "drop_oldest"])
async def test_what_it_settles_makes_room_where_there_is_more_than_the_bound(machine: Machine, overflow: str) -> None:
    async with machine.store(max_messages=2, overflow=overflow) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3"])  # more than the bound, as it was empty
        for body in (b"1", b"2"):
            message = await jobs.get()
            assert message.body == body
            await soon(transact(store, {"jobs": [b"next"]}, message))
        assert jobs.stats().dropped == 0
        assert ready(jobs) == [b"3", b"next", b"next"]


async def test_what_it_settles_makes_room_also_once_the_write_buffer_has_some(machine: Machine) -> None:
    async with machine.store(max_messages=4, memory_bytes=1 << 16) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"%d" % number for number in range(4)])
        large = bytes(30_000)
        waiting = asyncio.ensure_future(jobs.put(b"behind them"))
        messages = [await jobs.get() for _ in range(4)]
        moving = [asyncio.ensure_future(transact(store, {"jobs": [large]}, message)) for message in messages]
        await soon(asyncio.gather(*moving))
        assert not waiting.done()
        assert ready(jobs) == [large] * 4
        waiting.cancel()


async def test_where_nothing_is_settled_in_the_end_no_room_was_made(machine: Machine) -> None:
    async with machine.store(max_messages=2, overflow="reject") as store:
        jobs, other = store.queue("jobs"), store.queue("other")
        await jobs.put_many([b"1", b"2"])
        await other.put(b"x")
        first, taken = await jobs.get(), await other.get()
        turn = store._store_engine.committer._turn
        async with turn:
            seeking = asyncio.ensure_future(other.seek("earliest"))
            await until(lambda: turn._waiters)
            moving = asyncio.ensure_future(transact(store, {"jobs": [b"a"]}, first, taken))
            await until(lambda: store._store_engine.committer._waiting)
        with pytest.raises(aiodq.NotInFlightError):
            await moving
        await seeking
        for count in (2, 3):
            with pytest.raises(aiodq.QueueFull):
                await transact(store, {"jobs": [b"a"] * count}, first)
            with pytest.raises(aiodq.QueueFull):
                await jobs.put(b"more")
        assert (counts(jobs), jobs.topic.stats().pending) == ((1, 1, 0), 0)


async def test_cancelled_before_its_turn_nothing_of_it_is_done_or_kept(store: aiodq.Store) -> None:
    jobs, committer = store.queue("jobs"), store._store_engine.committer
    await jobs.put(b"1")
    message = await jobs.get()
    async with committer._turn:
        moving = asyncio.ensure_future(transact(store, {"made": [b"a"]}, message))
        await until(lambda: committer._waiting)
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
    assert committer._undecided == {}
    assert (store.topic("made").stats().pending, store.stats().transactions) == (0, 0)
    await message.ack()
    await transact(store, {"made": [b"b"]})
    assert ready(store.queue("made")) == [b"b"]


async def test_nothing_of_it_is_done_where_a_topic_is_deleted_just_before_its_turn(store: aiodq.Store) -> None:
    jobs, committer = store.queue("jobs"), store._store_engine.committer
    await jobs.put(b"1")
    await store.topic("made").put(b"old")
    message, deleting = await jobs.get(), list[asyncio.Task[None]]()

    async def move() -> None:
        async with store.transaction() as tx:
            tx.ack(message)
            tx.put("log", b"x")
            tx.put("made", b"a")
            deleting.append(asyncio.ensure_future(store.delete_topic("made")))
            await until(lambda: committer._turn._waiters)

    async with committer._turn:
        moving = asyncio.ensure_future(move())
        await until(lambda: committer._waiting)
    with pytest.raises(aiodq.QueueShutDown):
        await soon(moving)
    await deleting[0]
    assert (store.topics(), store.topic("log").end_offset, counts(jobs)) == (["jobs", "log"], 0, (0, 1, 0))
    await transact(store, {"log": [b"x"], "made": [b"a"]}, message)
    assert (counts(jobs), ready(store.queue("made"))) == ((0, 0, 0), [b"a"])


async def test_nothing_more_is_committed_where_the_file_is_long_and_a_full_disk_keeps_it_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_committer, "_LIMIT", 0)
    async with machine.store() as store:
        jobs, made = store.queue("jobs"), store.topic("made")
        await jobs.put_many([b"1", b"2"])
        await made.put(b"old")
        first, second = await jobs.get_many(2)
        machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, match="/made/"))
        await transact(store, {"made": [b"a"]}, first)
        with pytest.raises(aiodq.DiskFullError):
            await transact(store, {"log": [b"x"]}, second)
        assert (counts(jobs), made.end_offset, store.topic("log").end_offset) == ((0, 1, 0), 1, 0)
        machine.fs.plan.clear()
        await until(lambda: made.end_offset == 2)
        await transact(store, {"log": [b"x"]}, second)
        assert (counts(jobs), store.topic("log").end_offset) == ((0, 0, 0), 1)


async def test_what_waits_for_a_full_disk_goes_with_its_topic(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("made").put(b"old")
        machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, match="/made/"))
        await transact(store, {"made": [b"a"], "log": [b"x"]})
        await soon(store.delete_topic("made"))
        machine.fs.plan.clear()
        await soon(store.topic("log").purge())
        machine.crash()
    async with machine.store() as store:
        assert store.topics() == ["log"]


async def test_what_one_channel_settles_makes_no_room_in_another(machine: Machine) -> None:
    async with machine.store(max_messages=2, overflow="reject") as store:
        jobs = store.queue("jobs")
        other = jobs.topic.channel("other")
        await jobs.put_many([b"1", b"2"])
        message, same = await jobs.get(), await other.get()
        with pytest.raises(aiodq.QueueFull):
            await transact(store, {"jobs": [b"a"]}, message)
        await transact(store, {"jobs": [b"a"]}, message, same)
        assert (jobs.depth, other.depth) == (2, 2)


async def test_it_waits_for_room_and_cancelled_there_nothing_is_done(machine: Machine) -> None:
    async with machine.store(max_messages=1) as store:
        jobs, made = store.queue("jobs"), store.queue("made")
        await jobs.put(b"1")
        await made.put(b"0")
        message = await jobs.get()
        waiting = asyncio.ensure_future(transact(store, {"log": [b"x"], "made": [b"a"]}, message))
        await until(lambda: made.topic._engine.put_buffer._waiting.line)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert store.topic("log").stats().pending == 0
        assert counts(jobs) == (0, 1, 0)
        waiting = asyncio.ensure_future(transact(store, {"log": [b"x"], "made": [b"a"]}, message))
        await asyncio.sleep(0)
        await (await made.get()).ack()
        await soon(waiting)
        assert (await soon(made.get())).body == b"a"


async def test_two_that_wait_for_the_same_topics_do_not_wait_for_each_other(machine: Machine) -> None:
    async with machine.store(max_messages=2) as store:
        a, b = store.queue("a"), store.queue("b")
        both = [
            asyncio.ensure_future(transact(store, puts))
            for puts in ({"a": [b"1", b"2"], "b": [b"1"]}, {"b": [b"2", b"3"], "a": [b"3"]})
        ]
        for _ in range(3):
            for queue in (a, b):
                await (await soon(queue.get())).ack()
        await soon(asyncio.gather(*both))


async def test_the_topics_it_puts_into_are_made_at_the_same_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_under_way = threading.Barrier(4)
    make_log = StoreEngine.make_log

    def make(store_engine: StoreEngine, name: str, record: StoredOptions) -> TopicLog:
        all_under_way.wait(PATIENCE)
        return make_log(store_engine, name, record)

    async with machine.store() as store:
        monkeypatch.setattr(StoreEngine, "make_log", make)
        await soon(transact(store, {name: [b"1"] for name in "abcd"}))
        assert [store.topic(name).end_offset for name in "abcd"] == [1] * 4


async def test_after_the_end_it_is_refused(machine: Machine) -> None:
    async with machine.store() as store:
        tx = store.transaction()
        async with tx:
            pass
    with pytest.raises(aiodq.QueueShutDown):
        store.transaction()
    async with machine.store() as store:
        with pytest.raises(aiodq.QueueShutDown):
            async with store.transaction() as tx:
                tx.put("made", b"a")
                await store.aclose()
    async with machine.store() as store:
        assert store.topics() == []


async def test_what_a_drain_refuses_makes_no_topic(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put(b"one")
    assert not await store.drain(0)
    with pytest.raises(aiodq.QueueShutDown):
        async with store.transaction() as tx:
            tx.put("new", b"refused")
    with pytest.raises(aiodq.QueueShutDown):
        async with store.transaction() as tx:
            tx.put_many("new", [b"refused"])
            tx.put("other", b"refused")
    assert store.topics() == ["jobs"]
    async with store.transaction() as tx:  # it acks what was read, so what comes of that is accepted
        tx.ack(await jobs.get())
        tx.put("new", b"done")
    assert store.topics() == ["jobs", "new"]


async def test_a_drain_lets_workers_finish_what_they_read(store: aiodq.Store) -> None:
    jobs, made = store.queue("jobs"), store.queue("made")
    await jobs.put(b"1")
    message = await jobs.get()
    draining = asyncio.ensure_future(store.drain())
    await asyncio.sleep(0)
    await transact(store, {"made": [b"a"]}, message)
    await (await soon(made.get())).ack()
    assert await soon(draining)
    with pytest.raises(aiodq.QueueShutDown):
        await transact(store, {"made": [b"b"]})


async def test_a_seek_while_it_waits_takes_its_message_away(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put(b"1")
    message = await jobs.get()
    seeking = asyncio.ensure_future(jobs.seek("earliest"))
    await asyncio.sleep(0)
    taken_away = False
    try:
        await transact(store, {"made": [b"a"]}, message)
    except aiodq.NotInFlightError:
        taken_away = True  # unless a thread was so slow that the commit came first
    await seeking
    assert ready(jobs) == [b"1"]
    assert store.topic("made").end_offset == (0 if taken_away else 1)


async def test_a_seek_before_the_commit_takes_its_message_away(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    await jobs.put(b"1")
    message = await jobs.get()
    with pytest.raises(aiodq.NotInFlightError):
        async with store.transaction() as tx:
            tx.put("made", b"a")
            tx.ack(message)
            await jobs.seek("earliest")
    assert ready(jobs) == [b"1"]
    assert store.topic("made").end_offset == 0


async def test_a_topic_deleted_meanwhile_refuses_it(store: aiodq.Store) -> None:
    await store.topic("made").put(b"old")
    with pytest.raises(aiodq.QueueShutDown):
        async with store.transaction() as tx:
            tx.put("made", b"a")
            await store.delete_topic("made")
    assert store.topics() == []
    await transact(store, {"made": [b"new"]})
    await until(lambda: store.topic("made").end_offset == 1)


@pytest.mark.parametrize("mode", get_args(Mode))
async def test_it_is_so_in_every_mode_and_its_message_stays(tmp_path: Path, mode: Mode) -> None:
    async with AsyncExitStack() as stack:
        if mode == "client":
            await stack.enter_async_context(aiodq.open(tmp_path, mode="shared"))
        store = await stack.enter_async_context(aiodq.open(tmp_path, mode=mode))
        jobs = store.queue("jobs")
        await jobs.put(b"job")
        await store.topic("made").put(b"old")
        message = await jobs.get()
        with pytest.raises(aiodq.QueueShutDown, match="topic 'made' was deleted"):
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("made", b"a")
                await store.delete_topic("made")
                store.topic("made")
        async with store.transaction() as tx:
            tx.ack(message)
            tx.put("made", b"b")
        assert [each.body async for each in store.topic("made").scan()] == [b"b"]


async def test_each_costs_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_committer, "_PERIOD", 3600.0)  # emptying the transaction log costs syncs of its own
    machine = Machine()
    machine.fs = SimulatedFileSystem(record=True)
    async with machine.store() as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"%d" % number for number in range(20)])
        await transact(store, {"made": [b"first"]}, await jobs.get())
        await until(lambda: store.topic("made").end_offset == 1)
        before = syncs(machine.fs)
        for number in range(10):
            await transact(store, {"made": [b"a%d" % number], "log": [b"b"]} if number else {}, await jobs.get())
        made = syncs(machine.fs) - before
    # The topic `log` is new: its files cost some of their own.
    assert made - 10 <= 8


async def test_a_rejection_waits_for_no_other_sync() -> None:
    machine, journaled = Machine(), threading.Event()

    def before(call: str, path: str) -> None:
        if call == "sync" and path.endswith("journal"):
            journaled.wait(PATIENCE)

    async with machine.store() as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await jobs.put_many([b"%d" % number for number in range(3)])
        await (await jobs.get()).reject()  # makes the topic
        machine.fs.before = before
        try:
            for _ in range(2):
                await soon((await jobs.get()).reject())
            assert not journaled.is_set()
        finally:
            journaled.set()


def syncs(fs: SimulatedFileSystem) -> int:
    assert fs.trace is not None
    return sum(type(operation).__name__ == "Synced" for operation in fs.trace)


async def test_many_at_once_share_syncs() -> None:
    machine = Machine()
    machine.fs = SimulatedFileSystem(record=True)
    async with machine.store() as store:
        await transact(store, {"made": [b"first"]})
        await until(lambda: store.topic("made").end_offset == 1)
        before = syncs(machine.fs)
        await asyncio.gather(*(transact(store, {"made": [b"%d" % number]}) for number in range(100)))
        assert syncs(machine.fs) - before <= 4
        await until(lambda: store.topic("made").end_offset == 101)


async def test_no_ack_is_durable_of_a_message_that_lies_only_in_the_transaction_log(tmp_path: Path) -> None:
    """It would be appended again at another offset, and be delivered again."""
    fs = WatchedFileSystem()
    async with aiodq.open(tmp_path / "s", fs=fs) as store:
        made = store.queue("made")
        for body in (b"1", b"2"):
            await made.put(body)
            await (await made.get()).ack()
        gate = fs.gate("sync", match=".seg")
        await transact(store, {"made": [b"3"]})
        since = len(fs.passed)
        acking = asyncio.ensure_future((await soon(made.get())).ack())
        await until(lambda: gate.reached or acking.done())
        early = fs.named("sync", match="journal", since=since)
        gate.open()
        await soon(acking)
        assert early == []
        assert fs.named("sync", match="journal", since=since)


@pytest.mark.parametrize("committed", [False, True])
async def test_one_that_found_no_room_keeps_no_segment_of_the_topics_it_would_have_put_into(
    machine: Machine, committed: bool
) -> None:
    async with machine.store(segment_bytes=500, sync_interval=0.01) as store:
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        if committed:
            await transact(store, {"jobs": [b"2"]})
        machine.fs.plan.add(Fault("create", 1, "ENOSPC", match="#transactions"))
        machine.fs.plan.add(Fault("write", 1, "ENOSPC", match="#transactions"))
        with pytest.raises(aiodq.DiskFullError):
            await transact(store, {"jobs": [b"3"]})
        machine.fs.plan.clear()
        deletion = jobs.topic._engine.segment_deletion
        assert (deletion.pinned is not None) == committed, "what is committed stays until it is durable in the topic"
        for _ in range(20):
            await jobs.put(bytes(100))
        await jobs.ack_many(await jobs.get_many(30))
        async with asyncio.timeout(PATIENCE):
            while len([name for name in machine.fs.listdir("/s/jobs") if name.endswith(".seg")]) > 1:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("asked", ["seek", "purge", "delete_topic"])
async def test_a_failed_sync_as_others_have_the_log_emptied_stops_the_store(machine: Machine, asked: str) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs")
        await transact(store, {"jobs": [b"1"]})
        machine.fs.plan.add(Fault("sync", 1, match="#transactions"))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "seek": lambda: jobs.seek("latest"),
            "purge": jobs.topic.purge,
            "delete_topic": lambda: store.delete_topic("jobs"),
        }
        with pytest.raises(aiodq.StoreFailedError):
            await soon(calls[asked]())
        machine.fs.plan.clear()
        assert not store.health().ok
        with pytest.raises(aiodq.StoreFailedError):
            await jobs.put(b"2")
