"""What is left of transactions after a power cut, on a full disk, and beside a failing one."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.committing import group_committer
from aiodq.engine.committing.group_committer import Committer
from aiodq.storage.state.transactions import transaction_log
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS, read_transactions
from aiodq.testing import Fault, FaultPlan, SimulatedFileSystem
from tests.channels.support import Machine, counts, ready, soon, until
from tests.transactions.test_commit import transact
from tests.watching.support import at_hand, flip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.engine.committing.entries import Entry
    from aiodq.engine.topic.topic_engine import TopicEngine


async def started(store: aiodq.Store, count: int = 3) -> aiodq.Queue:
    """Put messages that are to be worked off."""
    jobs, made = store.queue("jobs"), store.queue("made")
    await jobs.put_many([b"%d" % number for number in range(count)])
    await made.topic.settle_in()
    return jobs


async def shown(store: aiodq.Store, topic: str) -> list[bytes]:
    return [message.body async for message in store.topic(topic).scan()]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
async def test_what_was_committed_outlives_a_power_cut_under_any_policy(machine: Machine, sync: str) -> None:
    async with machine.store(sync=sync) as store:
        jobs = await started(store)
        await store.topic("jobs").sync()
        await transact(store, {"made": [b"a", b"b"], "log": [b"x"]}, await jobs.get())
        machine.crash()
    for _ in range(3):
        async with machine.store() as store:
            assert await shown(store, "made") == [b"a", b"b"]
            assert await shown(store, "log") == [b"x"]
            assert counts(store.queue("jobs")) == (2, 0, 0)
            machine.crash()


async def test_one_that_is_not_as_it_was_written_is_told(machine: Machine) -> None:
    async with machine.store() as store:
        for body in (b"first", b"second", b"third"):
            await transact(store, {"made": [body]})
        machine.crash()
    path = f"/s/{TRANSACTIONS}"
    flip(machine.fs, path, (machine.fs.image()[path] or b"").index(b"second"))
    async with machine.store() as store:
        assert await shown(store, "made") == [b"first", b"third"]
        (event,) = at_hand(store.events())
        assert (event.kind, event.topic) == ("damage", None)
        assert path in event.text


async def test_many_large_ones_at_once_are_no_more_than_the_next_owner_reads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_log, "_LARGEST", 70_000)
    monkeypatch.setattr(Committer, "largest", 50_000)
    monkeypatch.setattr(group_committer, "_LIMIT", 1)
    async with machine.store(sync="os") as store:
        topics = [f"t{number}" for number in range(6)]
        for topic in topics:
            await store.topic(topic).put(b"before")
        await asyncio.gather(*(transact(store, {topic: [bytes(40_000)]}) for topic in topics))
        machine.crash()
    async with machine.store() as store:
        for topic in topics:
            assert bytes(40_000) in await shown(store, topic)


async def test_those_that_wait_for_the_next_sync_are_committed_when_the_store_is_closed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Committer, "largest", 50_000)
    async with machine.store() as store:
        topics = [f"t{number}" for number in range(6)]
        for topic in topics:
            await store.topic(topic).put(b"before")
        committing = [asyncio.ensure_future(transact(store, {topic: [bytes(40_000)]})) for topic in topics]
        committer = store._store_engine.committer
        await until(lambda: len(committer._undecided) == len(topics))
        assert committer._waiting
    await asyncio.gather(*committing)
    assert not committer._undecided
    async with machine.store() as store:
        for topic in topics:
            assert await shown(store, topic) == [b"before", bytes(40_000)]


async def test_one_that_comes_while_others_are_committed_at_the_end_is_committed_or_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At closing, the file is emptied last. What comes meanwhile is committed, and what comes during that, too."""
    async with machine.store() as store:
        for topic in ("first", "last"):
            await store.topic(topic).put(b"before")
        committer, go = store._store_engine.committer, {"first": asyncio.Event(), "last": asyncio.Event()}
        create, empty, wait_durable = committer._create, committer._empty, committer._wait_durable

        async def created(engines: Sequence[TopicEngine]) -> None:
            await create(engines)
            await go[engines[0].name].wait()

        async def let(topic: str) -> None:
            go[topic].set()
            await until(lambda: committer._waiting)

        async def emptied() -> None:
            if not go["first"].is_set():
                await let("first")
            await empty()

        async def durable(entries: list[Entry]) -> None:
            if not go["last"].is_set():
                await let("last")
            await wait_durable(entries)

        for name, double in (("_create", created), ("_empty", emptied), ("_wait_durable", durable)):
            monkeypatch.setattr(committer, name, double)
        committing = [asyncio.ensure_future(transact(store, {topic: [b"x"]})) for topic in go]
        await asyncio.sleep(0)
    await asyncio.gather(*committing)
    assert read_transactions(machine.fs, "/s").blocks == []
    async with machine.store() as store:
        for topic in go:
            assert await shown(store, topic) == [b"before", b"x"]


async def test_what_is_there_already_is_not_put_again(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await until(lambda: store.topic("made").end_offset == 1)
        await store.topic("made").put(b"b")
        machine.crash()
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b"]


async def test_closed_it_leaves_nothing_to_do(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a"]}, await jobs.get())
    assert read_transactions(machine.fs, "/s").blocks == []
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a"]


async def test_consumed_and_gone_it_does_not_come_back(machine: Machine) -> None:
    async with machine.store(segment_bytes=4096) as store:
        jobs, made = await started(store), store.queue("made")
        for _ in range(3):
            await transact(store, {"made": [bytes(3000)]}, await jobs.get())
            await (await soon(made.get())).ack()
        await made.sync()
        machine.crash()
    async with machine.store() as store:
        assert counts(store.queue("made")) == (0, 0, 0)
        assert counts(store.queue("jobs")) == (0, 0, 0)


async def test_found_after_a_power_cut_and_consumed_since_it_does_not_come_back(machine: Machine) -> None:
    async with machine.store(segment_bytes=4096) as store:
        jobs, made = await started(store), store.queue("made")
        for _ in range(3):
            await transact(store, {"made": [bytes(3000)]}, await jobs.get())
        machine.crash()
    async with machine.store(segment_bytes=4096) as store:
        made = store.queue("made")
        for _ in range(3):
            await (await soon(made.get())).ack()
        for _ in range(3):
            await made.put(bytes(3000))  # a new segment: what is deleted is so durably
            await (await soon(made.get())).ack()
        await made.sync()
        machine.crash()
    async with machine.store() as store:
        assert counts(store.queue("made")) == (0, 0, 0)


@pytest.mark.parametrize("found", [False, True])
async def test_its_acks_are_on_disk_before_it_is_forgotten(machine: Machine, *, found: bool) -> None:
    """It is forgotten by who has committed it, or by who has found it after a power cut."""
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a"]}, await jobs.get())
        if not found:
            await store.topic("other").purge()
        machine.crash()
    async with machine.store() as store:
        if found:
            await store.topic("other").purge()
        assert read_transactions(machine.fs, "/s").blocks == []
        machine.crash()
    async with machine.store() as store:
        assert counts(store.queue("jobs")) == (2, 0, 0)
        assert await shown(store, "made") == [b"a"]


async def test_a_seek_stands_though_a_transaction_had_acked(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await jobs.seek("earliest")
        machine.crash()
    async with machine.store() as store:
        assert ready(store.queue("jobs")) == [b"0", b"1", b"2"]


async def test_a_purge_stands_though_a_transaction_had_put(machine: Machine) -> None:
    async with machine.store() as store:
        jobs, made = await started(store), store.queue("made")
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await made.purge()
        machine.crash()
    async with machine.store() as store:
        assert ready(store.queue("made")) == []


async def test_a_deleted_topic_stays_away(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await store.delete_topic("made")
        machine.crash()
    async with machine.store() as store:
        assert store.topics() == ["jobs"]


async def test_one_that_reads_what_another_put_holds_with_it(machine: Machine) -> None:
    async with machine.store() as store:
        jobs, made = await started(store), store.queue("made")
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await transact(store, {"done": [b"b"]}, await soon(made.get()))
        machine.crash()
    async with machine.store() as store:
        assert await shown(store, "done") == [b"b"]
        assert counts(store.queue("made")) == (0, 0, 0)


async def test_an_ack_of_what_a_transaction_put_holds(machine: Machine) -> None:
    async with machine.store() as store:
        jobs, made = await started(store), store.queue("made")
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await (await soon(made.get())).ack()
        machine.crash()
    async with machine.store() as store:
        assert counts(store.queue("made")) == (0, 0, 0)


async def test_on_a_full_disk_nothing_is_done_and_later_it_is(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        message = await jobs.get()
        machine.fs.capacity = 0
        with pytest.raises(aiodq.DiskFullError):
            await transact(store, {"made": [b"a"]}, message)
        assert counts(jobs) == (2, 1, 0)
        machine.fs.capacity = None
        await transact(store, {"made": [b"a"]}, message)
        await until(lambda: store.topic("made").end_offset == 1)


async def test_what_the_topic_has_no_room_for_comes_when_it_has(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"first"]}, await jobs.get())
        await until(lambda: store.topic("made").end_offset == 1)
        machine.fs.plan = FaultPlan([Fault("write", number, "ENOSPC", match="/made/") for number in (1, 2, 3)])
        await transact(store, {"made": [b"a"]}, await jobs.get())
        await transact(store, {"made": [b"b"]}, await jobs.get())
        await soon(arrived(store, 3))
        assert await shown(store, "made") == [b"first", b"a", b"b"]


async def arrived(store: aiodq.Store, end: int) -> None:
    while store.topic("made").end_offset < end:
        await asyncio.sleep(0.01)


async def test_what_waits_for_a_full_disk_counts_among_what_a_topic_may_hold(machine: Machine) -> None:
    async with machine.store(max_messages=3) as store:
        made = store.queue("made")
        await made.topic.settle_in()
        machine.fs.plan = FaultPlan([Fault("write", 1, "ENOSPC", lasting=True, match="/made/")])
        tasks = []
        for number in range(5):
            tasks.append(asyncio.ensure_future(transact(store, {"made": [b"%d" % number]})))
            if number < 3:
                await until(tasks[number].done)
        await asyncio.sleep(0.3)  # longer than it takes to try again
        assert [task.done() for task in tasks] == [True, True, True, False, False]
        machine.fs.plan = FaultPlan()
        await until(lambda: made.depth == 3)
        assert not tasks[3].done()
        assert [(await soon(made.get())).body for _ in range(3)] == [b"0", b"1", b"2"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (made.depth, made.topic.stats().pending) == (3, 0)


async def test_opened_on_a_full_disk_it_comes_when_there_is_room(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        machine.fs.plan = FaultPlan([Fault("write", 1, "ENOSPC", lasting=True, match="/made/")])
        await transact(store, {"made": [b"a"], "log": [b"x"]}, await jobs.get())
        machine.crash()
    machine.fs.capacity = sum(len(data or b"") for data in machine.fs.durable().values())
    async with machine.store() as store:
        assert counts(store.queue("jobs")) == (2, 0, 0)
        assert await shown(store, "made") == []
        machine.fs.capacity = None
        await soon(arrived(store, 1))
        assert await shown(store, "made") == [b"a"]
    async with machine.store() as store:
        assert await shown(store, "log") == [b"x"]


async def test_after_a_failed_sync_it_was_done_or_not_at_all(machine: Machine) -> None:
    for call in range(1, 6):
        machine.fs = SimulatedFileSystem()
        async with machine.store() as store:
            jobs = await started(store)
            machine.fs.plan = FaultPlan([Fault("sync", call, "EIO")])
            message = await jobs.get()
            failed = False
            try:
                await transact(store, {"made": [b"a"], "log": [b"x"]}, message)
            except aiodq.StoreFailedError:
                failed = True
            with pytest.raises(aiodq.StoreFailedError):
                for _ in range(9):
                    await store.topic("jobs").put(b"more")
            with pytest.raises(aiodq.StoreFailedError):
                await transact(store, {"made": [b"b"]})
            machine.crash()
        async with machine.store() as store:
            made, log = await shown(store, "made"), await shown(store, "log")
            assert (made, log) in {True: [([], []), ([b"a"], [b"x"])], False: [([b"a"], [b"x"])]}[failed]
            assert store.queue("jobs").stats().floor == len(made)


async def test_a_newer_version_is_left_alone(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a"]}, await jobs.get())
        machine.crash()
    image = machine.fs.durable()
    image[f"/s/{TRANSACTIONS}"] = newer(image[f"/s/{TRANSACTIONS}"] or b"")
    machine.fs = SimulatedFileSystem(image)
    with pytest.raises(aiodq.FormatVersionError):
        async with machine.store():
            pass
    assert machine.fs.durable() == image


def newer(data: bytes) -> bytes:

    head = data[:8] + (2).to_bytes(4, "little") + data[12:24]
    return head + zlib.crc32(head).to_bytes(4, "little") + data[28:]
