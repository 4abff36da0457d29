"""A message's own block inside a transaction's: one commit for both."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING
from unittest import mock

import pytest

import aiodq
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from tests.channels.support import Machine, counts, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aiodq.format.transactions import Commit


async def filled(store: aiodq.Store, *bodies: bytes) -> aiodq.Queue:
    jobs = store.queue("jobs")
    await jobs.put_many(bodies)
    return jobs


async def test_a_messages_block_is_not_acked_before_the_commit(machine: Machine, store: aiodq.Store) -> None:
    jobs = await filled(store, b"1")
    async with store.transaction() as tx:
        async with await jobs.get() as job:
            tx.put("made", b"a")
        await jobs.sync()
        assert counts(jobs) == (0, 1, 0)
        assert not job.settled
    assert job.settled
    assert counts(jobs) == (0, 0, 0)
    machine.crash()
    async with machine.store() as after:
        assert after.queue("jobs").depth == 0
        assert (await soon(after.queue("made").get())).body == b"a"


async def test_what_a_crash_before_the_commit_leaves_is_the_message(machine: Machine, store: aiodq.Store) -> None:
    jobs = await filled(store, b"1")
    async with store.transaction() as tx:
        async with await jobs.get():
            tx.put("made", b"a")
        await jobs.sync()
        machine.crash()
    async with machine.store() as after:
        assert ready(after.queue("jobs")) == [b"1"]
        assert after.topics() == ["jobs"]


async def test_its_exception_ends_the_transaction_and_it_comes_again(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")
    with pytest.raises(LookupError):
        async with store.transaction() as tx:
            async with await jobs.get():
                tx.put("made", b"a")
            async with await jobs.get():
                tx.put("made", b"b")
                raise LookupError
    assert counts(jobs) == (2, 0, 0)
    assert [(await jobs.get()).attempts for _ in range(2)] == [2, 2]
    assert store.topics() == ["jobs"]


async def test_its_exception_ends_the_transaction_even_if_it_is_caught(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2", b"3")
    with pytest.raises(aiodq.WrongContextError, match="ended with an exception") as caught:
        async with store.transaction() as tx:
            async with await jobs.get():
                tx.put("made", b"a")
            with pytest.raises(LookupError):
                async with await jobs.get():
                    raise LookupError
            with pytest.raises(aiodq.WrongContextError):
                tx.put("made", b"b")
            with pytest.raises(aiodq.WrongContextError):
                async with await jobs.get():
                    pass
    assert isinstance(caught.value.__cause__, LookupError)
    assert counts(jobs) == (3, 0, 0)
    assert store.topics() == ["jobs"]


async def test_cancelled_in_the_block_it_is_released(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")
    inside = asyncio.Event()

    async def work() -> None:
        async with store.transaction() as tx:
            async with await jobs.get():
                tx.put("made", b"a")
            async with await jobs.get():
                inside.set()
                await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert counts(jobs) == (2, 0, 0)
    assert [(await jobs.get()).attempts for _ in range(2)] == [1, 1]


async def test_an_exception_behind_it_gives_it_back_too(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")
    with pytest.raises(LookupError):
        async with store.transaction() as tx:
            async with await jobs.get():
                pass
            tx.ack(await jobs.get())
            raise LookupError
    # What was acked by name is still its holder's.
    assert counts(jobs) == (1, 1, 0)


async def test_a_commit_that_is_refused_gives_it_back(machine: Machine) -> None:
    async with machine.store(max_messages=2, overflow="reject") as store:
        jobs = await filled(store, b"1")
        await store.topic("made").put_many([b"a", b"b"])
        with pytest.raises(aiodq.QueueFull):
            async with store.transaction() as tx, await jobs.get():
                tx.put("made", b"c")
        assert counts(jobs) == (1, 0, 0)


async def test_a_message_taken_away_meanwhile_gives_the_others_back(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")
    with pytest.raises(aiodq.NotInFlightError):
        async with store.transaction() as tx:
            async with await jobs.get():
                pass
            taken = await jobs.get()
            tx.ack(taken)
            await taken.nack()
    assert counts(jobs) == (2, 0, 0)


async def test_what_it_settled_itself_stays_so(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2", b"3")
    async with store.transaction() as tx:
        async with await jobs.get() as first:
            await first.ack()
            assert counts(jobs) == (2, 0, 0)
        async with await jobs.get() as second:
            tx.ack(second)
        async with await jobs.get() as third:
            await third.nack()
        assert counts(jobs) == (1, 1, 0)
    assert counts(jobs) == (1, 0, 0)


async def test_what_another_task_does_is_not_the_transactions(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2", b"3")

    async def beside() -> None:
        async with await jobs.get():
            pass

    async with store.transaction() as tx:
        async with await jobs.get():
            await asyncio.ensure_future(beside())
            assert counts(jobs) == (1, 1, 0)

            async def named() -> None:
                tx.ack(await jobs.get())

            await asyncio.ensure_future(named())
        assert counts(jobs) == (0, 2, 0)
    assert jobs.depth == 0


async def test_an_exception_in_another_tasks_block_does_not_end_it(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1")

    async def beside() -> None:
        async with await jobs.get():
            raise LookupError

    async with store.transaction() as tx:
        await asyncio.gather(beside(), return_exceptions=True)
        tx.put("made", b"a")
    assert await soon(store.queue("made").get())
    assert jobs.qsize() == 1


async def test_iterating_inside_it_joins_every_message(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2", b"3")
    async with store.transaction() as tx:
        async for job in jobs:
            async with job:
                tx.put("made", job.body * 2)
            if job.body == b"3":
                break
        assert counts(jobs) == (0, 3, 0)
    assert jobs.depth == 0
    made = store.queue("made")
    assert made.qsize() == 3
    await made.topic.settle_in()  # it is made from then on, and gives messages
    assert ready(made) == [b"11", b"22", b"33"]


async def test_a_generator_that_is_closed_elsewhere_leaves_its_task_free(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")

    async def within() -> AsyncIterator[aiodq.Message]:
        async with store.transaction():
            yield await jobs.get()

    generator = within()
    message = await anext(generator)
    await asyncio.ensure_future(generator.aclose())  # type: ignore[attr-defined]  # it is a generator
    await message.ack()
    async with store.transaction(), await jobs.get():
        pass
    assert jobs.depth == 0


async def test_transactions_do_not_nest_in_one_task(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")
    with pytest.raises(aiodq.WrongContextError, match="do not nest"):
        async with store.transaction() as tx:
            tx.put("made", b"a")
            async with store.transaction():
                pytest.fail("it nests")
    assert store.topics() == ["jobs"]
    async with store.transaction(), await jobs.get():
        pass
    message = await jobs.get()
    async with store.transaction() as tx:
        with pytest.raises(aiodq.WrongContextError):
            async with message.transaction():
                pytest.fail("it nests")
        tx.ack(message)
    assert jobs.depth == 0


async def test_a_message_of_another_store_settles_itself(store: aiodq.Store) -> None:
    async with Machine().store() as other:
        await filled(other, b"1")
        theirs = other.queue("jobs")
        async with store.transaction() as tx:
            tx.put("made", b"a")
            async with await theirs.get():
                pass
            assert theirs.depth == 0
            async with other.transaction() as beside:
                beside.put("made", b"b")


async def test_what_acks_itself_is_not_in_it(store: aiodq.Store) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(auto_ack=True))
    await jobs.put(b"1")
    async with store.transaction() as tx:
        async with await jobs.get():
            tx.put("made", b"a")
        assert jobs.depth == 0


async def test_a_message_that_is_gone_when_its_block_ends_ends_the_transaction(
    machine: Machine, store: aiodq.Store
) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
    await jobs.put_many([b"1", b"2"])
    with pytest.raises(aiodq.NotInFlightError):
        async with store.transaction():
            async with await jobs.get():
                pass
            async with await jobs.get() as late:
                machine.clock.advance(4)
                await late.touch()
                machine.clock.advance(6)
                await until(lambda: jobs.qsize() == 2)
    assert counts(jobs) == (2, 0, 0)


async def test_cancelled_while_it_waits_for_room_everything_comes_again(machine: Machine) -> None:
    async with machine.store(max_messages=1) as store:
        jobs, made = await filled(store, b"1"), store.queue("made")
        await made.put(b"0")

        async def work() -> None:
            async with store.transaction() as tx, await jobs.get():
                tx.put("log", b"x")
                tx.put("made", b"a")

        waiting = asyncio.ensure_future(work())
        await until(lambda: made.topic._engine.put_buffer._waiting.line)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert counts(jobs) == (1, 0, 0)
        assert (await jobs.get()).attempts == 1


@pytest.mark.parametrize("full", [False, True])
async def test_cancelled_while_it_is_committed_it_is_done_or_comes_again(*, full: bool) -> None:
    machine = Machine()
    async with machine.store() as store:
        jobs = await filled(store, b"1")
        message = await jobs.get()
        append = TransactionFile.append

        async def work() -> None:
            async with message.transaction() as tx:
                tx.put("made", b"a")

        def late(file: TransactionFile, commits: Sequence[Commit], now_ns: int) -> list[int]:
            store._store_engine.loop.call_soon_threadsafe(working.cancel)
            if full:
                raise aiodq.DiskFullError("no space")
            return append(file, commits, now_ns)

        with mock.patch.object(TransactionFile, "append", late):
            working = asyncio.ensure_future(work())
            with pytest.raises(asyncio.CancelledError):
                await working
        if full:
            await until(lambda: counts(jobs) == (1, 0, 0))
            assert (await jobs.get()).attempts == 1
        else:
            await until(lambda: message.settled)
            assert jobs.depth == 0
            assert (await soon(store.queue("made").get())).body == b"a"


async def test_a_messages_transaction_acks_it(machine: Machine, store: aiodq.Store) -> None:
    jobs = await filled(store, b"1")
    message = await jobs.get()
    async with message.transaction() as tx:
        tx.put("made", b"a")
        assert not message.settled
        async with message:
            tx.put_many("made", [b"b", aiodq.Draft(b"c", tag="t")], tag="s")
    assert message.settled
    assert jobs.depth == 0
    made = store.queue("made")
    found = [await soon(made.get()) for _ in range(3)]
    assert [(each.body, each.tag) for each in found] == [(b"a", None), (b"b", "s"), (b"c", "t")]
    machine.crash()
    async with machine.store() as after:
        assert after.queue("jobs").depth == 0
        assert len(await after.queue("made").get_many(9)) == 3


async def test_a_messages_transaction_requeues_it_after_an_exception(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1")
    with pytest.raises(LookupError):
        async with (await jobs.get()).transaction() as tx:
            tx.put("made", b"a")
            raise LookupError
    assert counts(jobs) == (1, 0, 0)
    assert (await jobs.get()).attempts == 2
    assert store.topics() == ["jobs"]


async def test_a_messages_transaction_is_refused_where_it_cannot_be_acked(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2")
    settled, seen = await jobs.get(), await jobs.read(1)
    await settled.ack()
    with pytest.raises(aiodq.AlreadySettledError):
        settled.transaction()
    with pytest.raises(aiodq.NotInFlightError):
        seen.transaction()
    taken = await jobs.get()
    begun = taken.transaction()
    await taken.nack()
    with pytest.raises(aiodq.AlreadySettledError):
        await begun.__aenter__()
    async with store.transaction() as tx:
        tx.ack(await jobs.get())
    assert jobs.depth == 0


async def test_many_are_acked_or_none(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1", b"2", b"3")
    messages = await jobs.get_many(3)
    await messages[2].ack()
    async with store.transaction() as tx:
        for wrong in (messages, [messages[0], messages[0]]):
            with pytest.raises(aiodq.AlreadySettledError):
                tx.ack_many(wrong)
        with pytest.raises(aiodq.MessageSizeError):
            tx.put_many("made", [b"a", bytes(aiodq.StoreOptions().max_message_bytes + 1)])
        tx.put_many("none", [])
    assert counts(jobs) == (0, 2, 0)
    assert store.topics() == ["jobs"]
    async with store.transaction() as tx:
        tx.ack_many(messages[:2])
    assert jobs.depth == 0


async def test_transactions_that_their_tasks_never_left_are_forgotten(store: aiodq.Store) -> None:
    jobs = await filled(store, b"1")
    alive: weakref.WeakSet[aiodq.Transaction] = weakref.WeakSet()

    async def enter() -> None:
        tx = await store.transaction().__aenter__()
        tx.put("made", b"never")
        alive.add(tx)

    async with store.transaction() as tx:
        for _ in range(1000):
            await asyncio.create_task(enter())
        gc.collect()
        assert len(alive) < 250
        async with await jobs.get():  # the one that is still open is joined
            tx.put("made", b"a")
        assert counts(jobs) == (0, 1, 0)
    assert counts(jobs) == (0, 0, 0)
    assert ready(store.queue("made")) == [b"a"]


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
async def test_a_message_that_is_also_settled_apart_is_named_by_the_commit(store: aiodq.Store, how: str) -> None:
    jobs = await filled(store, b"1", b"2")
    first, second = await jobs.get_many(2)
    with pytest.raises(aiodq.NotInFlightError, match="message 1 of 'jobs' was settled apart from the transaction"):
        async with store.transaction() as tx:
            tx.ack_many([first, second])
            tx.put("made", b"a")
            await getattr(second, how)()
    assert store.topics() == ["jobs"]
    assert (second.settled, first.settled) == (True, False)
    await first.ack()
