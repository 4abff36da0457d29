"""Transactions of a shared store: as those of one that one process has, and each once, however often it comes."""

from __future__ import annotations

import asyncio
import errno
import threading
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.format import transactions as transactions_format
from aiodq.format.columns import Columns
from aiodq.shared.consuming.remote_settlement import RemoteSettlement
from aiodq.shared.requests.client_transactions import ClientTransactions
from aiodq.shared.server.session import Session
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from aiodq.storage.state.transactions.transaction_origins import ORIGINS, read_origins
from aiodq.testing import FakeClock, WatchedFileSystem
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Ack, Call, Done, Fail, Gone, Held, Ping, Pong, Put, Range, Resume, Txn
from tests.shared.support import PATIENCE, QUICK, TIME, RawClient, counts, owned, until
from tests.shared.support import two as stores_of_two

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from pathlib import Path

    from aiodq.format.producers import Origin
    from aiodq.shared.client.remote_store import RemoteStore
    from aiodq.shared.consuming.holdings import Reserved
    from aiodq.shared.requests.client_transactions import Asked

LANE = 1 << 40


two = partial(stores_of_two, options=QUICK)


async def bodies(store: aiodq.Store, topic: str) -> list[bytes]:
    return [message.body async for message in store.topic(topic).scan()]


# --- as of a store that one process has


@pytest.mark.parametrize("who", [0, 1], ids=["owner", "client"])
async def test_what_it_acks_is_settled_and_what_it_puts_is_there(tmp_path: Path, who: int) -> None:
    async with two(tmp_path / "s") as stores:
        store, other = stores[who], stores[1 - who]
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3", b"4"])
        first, *rest = await jobs.get_many(3)
        async with store.transaction() as tx:
            tx.ack(first)
            tx.ack_many(rest)
            tx.put("made", b"a", tag="paid", headers={"x": "y"})
            tx.put_many("made", [b"b", aiodq.Draft(b"c", key=b"k")])
            tx.put("later", b"d", delay=3600)
            assert repr(tx).startswith("<Transaction under way, 3 to ack, 4 to put")
        assert (jobs.qsize(), jobs.in_flight()) == (1, 0), "as soon as it is committed"
        assert all(message.settled for message in (first, *rest))
        with pytest.raises(aiodq.AlreadySettledError):
            await first.ack()
        made = await other.queue("made").get_many(3)
        assert [(m.body, m.tag, m.key, dict(m.headers)) for m in made] == [
            (b"a", "paid", None, {"x": "y"}), (b"b", None, None, {}), (b"c", None, b"k", {}),
        ]  # fmt: skip
        assert await counts(other.queue("later")) == (0, 0, 1)
    async with aiodq.open(tmp_path / "s") as after:
        assert after.queue("jobs").depth == 1


@pytest.mark.parametrize("who", [0, 1], ids=["owner", "client"])
async def test_an_exception_in_the_block_undoes_everything(tmp_path: Path, who: int) -> None:
    async with two(tmp_path / "s") as stores:
        store = stores[who]
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        message = await jobs.get()
        with pytest.raises(LookupError):
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("made", b"a")
                raise LookupError
        assert await counts(jobs) == (0, 1, 0)
        await message.ack()
        assert await counts(jobs) == (0, 0, 0)
        assert await bodies(store, "made") == []


async def test_a_messages_own_block_joins(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (_, store):
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3"])
        async with store.transaction() as tx:
            async with await jobs.get() as job:
                tx.put("made", job.body)
            assert not job.settled
            with pytest.raises(aiodq.WrongContextError, match="nest"):
                async with store.transaction():
                    pass
        assert job.settled
        with pytest.raises(LookupError):
            async with store.transaction() as tx:
                async with await jobs.get():
                    tx.put("made", b"x")
                async with await jobs.get():
                    raise LookupError
        assert await counts(jobs) == (2, 0, 0)
        again = await jobs.get_many(2)
        assert [message.attempts for message in again] == [2, 2]
        async with again[0].transaction() as tx:
            tx.put("made", b"y")
        with pytest.raises(LookupError):
            async with again[1].transaction() as tx:
                tx.put("made", b"z")
                raise LookupError
        assert await counts(jobs) == (1, 0, 0)
        assert await bodies(store, "made") == [b"1", b"y"]


async def test_a_message_is_settled_once_and_by_its_own_store(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, store), aiodq.open(tmp_path / "other", QUICK) as stranger:
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3"])
        first, second, third = await jobs.get_many(3)
        await stranger.queue("jobs").put(b"1")
        theirs = await stranger.queue("jobs").get()
        async with store.transaction() as tx:
            tx.ack(first)
            with pytest.raises(aiodq.AlreadySettledError):
                tx.ack(first)
            with pytest.raises(aiodq.NotInFlightError):
                tx.ack(theirs)
            await second.ack()
            with pytest.raises(aiodq.AlreadySettledError):
                tx.ack(second)
        with pytest.raises(aiodq.NotInFlightError):
            async with owner.transaction() as tx:
                tx.ack(third)
        await theirs.ack()


async def test_while_it_is_committed_nobody_else_settles_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s") as (_, store):
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        message = await jobs.get()
        held, go_on = asyncio.Event(), asyncio.Event()
        plain = ClientTransactions.commit

        async def commit(self: ClientTransactions, origin: Origin, asked: Asked) -> None:
            held.set()
            await go_on.wait()
            await plain(self, origin, asked)

        monkeypatch.setattr(ClientTransactions, "commit", commit)

        async def work() -> None:
            async with store.transaction() as tx:
                tx.ack(message)

        working = asyncio.create_task(work())
        await held.wait()
        assert not message.held
        with pytest.raises(aiodq.NotInFlightError, match="a transaction settles it"):
            await message.ack()
        go_on.set()
        await working
        assert await counts(jobs) == (0, 0, 0)


async def test_a_full_topic_refuses_it_and_nothing_is_done(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (_, store):
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        full = store.topic("full", aiodq.StoreOptions(sync="os", max_messages=1, overflow="reject"))
        full.channel("c")
        await full.put(b"x")
        message = await jobs.get()
        with pytest.raises(aiodq.QueueFull):
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("made", b"a")
                tx.put("full", b"b")
        assert await counts(jobs) == (0, 1, 0)
        assert message.held
        await message.ack()
        assert await counts(jobs) == (0, 0, 0)
        assert await bodies(store, "made") == []


@pytest.mark.parametrize("joined", [False, True], ids=["acked", "joined"])
async def test_cancelled_while_it_waits_for_room_nothing_is_done(tmp_path: Path, *, joined: bool) -> None:
    async with two(tmp_path / "s") as (owner, store):
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        full = store.queue("full", options=aiodq.StoreOptions(sync="os", max_messages=1))
        await full.put(b"x")
        message = await jobs.get()

        async def work() -> None:
            async with store.transaction() as tx:
                if joined:
                    async with message:
                        pass
                else:
                    tx.ack(message)
                tx.put("full", b"b")

        working = asyncio.create_task(work())
        transacting = owner._store_engine.owner.transacting  # type: ignore[attr-defined]
        await until(lambda: transacting)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await until(lambda: not transacting)
        if joined:
            again = await jobs.get(timeout=PATIENCE)
            assert again.attempts == 1
            await again.ack()
        else:
            await message.ack()
        async with await full.get():
            pass
        await full.put(b"y")
        assert await bodies(store, "full") == [b"x", b"y"]
        assert await counts(jobs) == (0, 0, 0)


def held_as_they_are_written(
    owner: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold transactions as their owner writes them; return what says that one is, and what lets them go on."""
    committer = owner._store_engine.owner.engine.committer  # type: ignore[attr-defined]
    plain, held, go_on = committer._wait_durable, asyncio.Event(), asyncio.Event()

    async def wait_durable(entries: object) -> None:
        held.set()
        await go_on.wait()
        await plain(entries)

    monkeypatch.setattr(committer, "_wait_durable", wait_durable)
    return held, go_on


async def cancelled_as_it_is_written(
    owner: aiodq.Store, store: aiodq.Store, message: aiodq.Message, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Event:
    """Cancel a transaction that acks a message and puts one, as its owner writes it; return what lets that go on."""
    held, go_on = held_as_they_are_written(owner, monkeypatch)

    async def work() -> None:
        async with store.transaction() as tx:
            tx.ack(message)
            tx.put("made", b"a")

    working = asyncio.create_task(work())
    await held.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    return go_on


async def test_cancelled_while_it_is_committed_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(tmp_path / "s") as (owner, store):
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        message = await jobs.get()
        go_on = await cancelled_as_it_is_written(owner, store, message, monkeypatch)
        assert not message.settled
        go_on.set()
        await until(lambda: message.settled)
        assert await bodies(store, "made") == [b"a"]
        assert await counts(jobs) == (0, 0, 0)


async def test_neighbours_that_are_acked_one_by_one_in_it_are_reserved_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many, each with a reservation of its own, a cancellation would hold up the loop."""
    plain, reserved = RemoteSettlement.begin_commit, list[range]()

    def begin_commit(channel: RemoteSettlement, numbers: Iterable[range]) -> list[Reserved]:
        reserved.extend(numbers)
        return plain(channel, reserved)

    monkeypatch.setattr(RemoteSettlement, "begin_commit", begin_commit)
    async with two(tmp_path / "s") as (_, store):
        jobs = store.queue("jobs")
        await jobs.put_many([b"x"] * 20)
        messages = await jobs.get_many(20)
        async with store.transaction() as tx:
            for message in messages[:5] + messages[10:]:
                tx.ack(message)
        assert sum(map(len, reserved)) == 15
        assert len(reserved) < 5, "one for each run of neighbours"
        assert await counts(jobs) == (0, 5, 0)


async def its_block(_: aiodq.Store, message: aiodq.Message) -> None:
    with suppress(KeyError):
        async with message:
            raise KeyError


async def its_ack(_: aiodq.Store, message: aiodq.Message) -> None:
    await message.ack()


async def its_nack(_: aiodq.Store, message: aiodq.Message) -> None:
    await message.nack()


async def its_reject(_: aiodq.Store, message: aiodq.Message) -> None:
    await message.reject("no")


async def its_release(_: aiodq.Store, message: aiodq.Message) -> None:
    message.release()


async def another_transaction(store: aiodq.Store, message: aiodq.Message) -> None:
    async with store.transaction() as tx:
        tx.ack(message)


@pytest.mark.parametrize(
    ("settle", "comes_again"),
    [(its_block, 2), (its_ack, None), (its_nack, 2), (its_reject, None), (its_release, 1), (another_transaction, None)],
)
async def test_its_message_is_settled_by_others_as_soon_as_it_was_cancelled(
    settle: Callable[[aiodq.Store, aiodq.Message], Coroutine[Any, Any, None]], comes_again: int | None, tmp_path: Path
) -> None:
    async with two(tmp_path / "s") as (owner, store):
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        full = store.queue("full", options=aiodq.StoreOptions(sync="os", max_messages=1))
        await full.put(b"x")
        message = await jobs.get()

        async def work() -> None:
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("full", b"b")

        working = asyncio.create_task(work())
        transacting = owner._store_engine.owner.transacting  # type: ignore[attr-defined]
        await until(lambda: transacting)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert message.held
        async with asyncio.timeout(PATIENCE):
            await settle(store, message)
        assert message.settled
        if comes_again is not None:
            again = await jobs.get(timeout=PATIENCE)
            assert again.attempts == comes_again
            await again.ack()
        assert await counts(jobs) == (0, 0, 0)
        assert await bodies(store, "full") == [b"x"]


@pytest.mark.parametrize("settle", [its_block, its_ack, its_nack, its_reject, its_release])
async def test_its_message_comes_no_more_whatever_was_to_settle_it_if_it_was_cancelled_and_is_done(
    settle: Callable[[aiodq.Store, aiodq.Message], Coroutine[Any, Any, None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two(tmp_path / "s") as (owner, store):
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2"])
        message = await jobs.get()
        go_on = await cancelled_as_it_is_written(owner, store, message, monkeypatch)
        settling = asyncio.create_task(settle(store, message))
        await asyncio.sleep(0)
        go_on.set()
        refused = settle in {its_ack, its_reject}  # the others do not wait for the owner
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(aiodq.NotInFlightError) if refused else nullcontext():
                await settling
        assert not message.held
        await until(lambda: not owner._store_engine.owner.transacting)  # type: ignore[attr-defined]
        assert (await jobs.get(timeout=PATIENCE)).body == b"2"
        assert await bodies(store, "made") == [b"a"]
        assert await counts(jobs) == (0, 1, 0)


async def test_closing_finishes_it_and_what_waits_for_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        store = await aiodq.open(tmp_path / "s", QUICK, mode="client")
        full = store.queue("full", options=aiodq.StoreOptions(sync="os", max_messages=1))
        await full.put(b"x")

        async def work(topic: str) -> None:
            async with store.transaction() as tx:
                tx.put(topic, b"b")

        held, go_on = held_as_they_are_written(owner, monkeypatch)
        waiting, quick = asyncio.create_task(work("full")), asyncio.create_task(work("made"))
        await held.wait()
        closing = asyncio.create_task(store.aclose())
        await until(waiting.done)
        go_on.set()
        await closing
        with pytest.raises(aiodq.QueueShutDown):
            await waiting
        await quick
        assert await bodies(owner, "made") == [b"b"]
        assert await bodies(owner, "full") == [b"x"]


async def test_none_is_begun_while_its_store_closes(tmp_path: Path) -> None:
    """Nobody would wait for it: it would be done, and yet said to be refused."""
    fs = WatchedFileSystem()
    async with aiodq.open(tmp_path / "s", mode="shared", fs=fs) as owner:
        store = await aiodq.open(tmp_path / "s", mode="client")
        jobs, slow = store.queue("jobs"), store.queue("slow")
        await jobs.put(b"a")
        await slow.put(b"b")
        message, gate = await jobs.get(), fs.gate("sync", match="slow")

        async def work() -> None:
            async with store.transaction() as tx:
                tx.ack(message)

        putting = asyncio.create_task(slow.put(b"c"))
        await gate.wait()
        closing = asyncio.create_task(store.aclose())
        await asyncio.sleep(0)
        refused = asyncio.create_task(work())
        await asyncio.wait([refused], timeout=PATIENCE)
        gate.open()
        await asyncio.gather(putting, closing)
        with pytest.raises(aiodq.QueueShutDown):
            await refused
        assert await counts(owner.queue("jobs")) == (1, 0, 0)


async def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (_, store):
        small = store.topic("small", aiodq.StoreOptions(sync="os", max_message_bytes=3))
        await small.put(b"x")
        async with store.transaction() as tx:
            with pytest.raises(aiodq.MessageSizeError):
                tx.put("small", b"long")
            with pytest.raises(aiodq.InvalidNameError):
                tx.put("a/b", b"x")
            with pytest.raises(aiodq.MessageSizeError, match="a transaction holds up to"):
                tx.put_many("large", [bytes(8 << 20)] * 8)
        with pytest.raises(aiodq.WrongContextError):
            tx.put("made", b"x")
        assert set(store.topics()) <= {"small", "large"}


async def test_a_message_that_somebody_else_has_got_meanwhile_fails_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with two(tmp_path / "s", clock=clock) as (owner, store):
        options = aiodq.ChannelOptions(visibility_timeout=5)
        mine, theirs = store.queue("jobs", options), owner.queue("jobs", options)
        await mine.put(b"1")
        message = await mine.get()
        with pytest.raises(aiodq.NotInFlightError):
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("made", b"a")
                clock.advance(5)
                again = await theirs.get(timeout=PATIENCE)
        assert again.attempts == 2
        assert await bodies(store, "made") == []
        await again.ack()


# --- once


async def joined(path: Path, producer: int = 7) -> RawClient:
    """Return a client that has a topic as 1, its queue as 2, and another topic as 3."""
    client = await RawClient.connected(path)
    await client.hello(producer)
    await client.open(1, "jobs")
    await client.open(2, "jobs", "default")
    await client.open(3, "made")
    return client


def txn(sequence: int, *made: bytes, acks: Sequence[Ack] = (), handle: int = 3) -> Txn:
    """Return a transaction that puts this."""
    puts = (Put(handle, 0, len(made), encode_messages(Columns(list(made)), TIME)),) if made else ()
    return Txn(sequence, tuple(acks), puts)


async def test_one_that_comes_again_counts_once_by_any_connection_and_any_owner(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        client = await joined(tmp_path / "s")
        await client.answer(client.put(1, 1, [b"a", b"b"]))
        (_, first, _), (_, second, _) = await client.take(2, 2, 2)
        said = txn(LANE + 1, b"x", acks=[Ack(2, owner.epoch, (Range(0, first, 1),))])
        requests = [client.send(said), client.send(said)]
        assert [await client.answer(each) for each in requests] == [Done(), Done()]
        other, stranger = await joined(tmp_path / "s"), await joined(tmp_path / "s", producer=8)
        assert await other.ask(said) == Done()
        assert await stranger.ask(txn(LANE + 1, b"of another")) == Done()
        assert await client.ask(txn(1, b"of another lane")) == Done()
        assert await client.ask(txn(LANE + 2, b"y", acks=[Ack(2, owner.epoch, (Range(1, second, 1),))])) == Done()
        assert await client.ask(said) == Done(), "what is older than what is known is, too"
        made = [b"x", b"of another", b"of another lane", b"y"]
        assert await bodies(store, "made") == made
        assert store.queue("jobs").depth == 0
        for each in (client, other, stranger):
            await each.close()
    async with owned(tmp_path / "s") as (store, _):
        client = await joined(tmp_path / "s")
        assert [await client.ask(txn(LANE + n, b"%d" % n)) for n in (2, 3)] == [Done(), Done()]
        assert await bodies(store, "made") == [*made, b"3"]
        await client.close()


async def test_it_counts_once_after_the_file_of_transactions_was_emptied_and_the_owner_killed(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        client = await joined(tmp_path / "s")
        assert await client.ask(txn(1, b"x")) == Done()
        async with store._store_engine.without_transactions():
            pass
        assert [origin for origin, _ in read_origins(WatchedFileSystem(), str(tmp_path / "s"))] == [(7, 1)]
        assert await client.ask(txn(2, b"y")) == Done(), "known by its block alone"
        await client.close()
        copy = copied(tmp_path / "s", tmp_path / "killed")
    async with aiodq.open(copy) as alone, alone.transaction() as tx:
        tx.put("made", b"z")
    async with owned(copy) as (store, _):
        client = await joined(copy)
        assert [await client.ask(txn(sequence, b"again")) for sequence in (1, 2)] == [Done(), Done()]
        assert await client.ask(txn(3, b"new")) == Done()
        assert await bodies(store, "made") == [b"x", b"y", b"z", b"new"]
        await client.close()
    assert verify_store(str(copy), WatchedFileSystem()).ok


def copied(path: Path, target: Path) -> Path:
    """Copy a store as a kill would leave it."""
    for source in path.rglob("*"):
        if source.is_file():
            copy = target / source.relative_to(path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    return target


async def test_whoever_knows_nothing_of_it_steps_over_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await joined(tmp_path / "s")
        await client.answer(client.put(1, 1, [b"a", b"b"]))
        (_, delivery, _), _ = await client.take(2, 2, 2)
        acks = [Ack(2, owner.epoch, (Range(0, delivery, 1),))]
        assert await client.ask(txn(1, b"x", acks=acks)) == Done()
        copy = copied(tmp_path / "s", tmp_path / "killed")
        await client.close()
    monkeypatch.setattr(transactions_format, "_ORIGIN", "of no aiodq")  # as in those that were released before
    assert verify_store(str(copy), WatchedFileSystem()).ok
    async with aiodq.open(copy) as store:
        assert [message.body for message in await store.queue("jobs").get_many(9)] == [b"b"]
        assert await bodies(store, "made") == [b"x"]
        assert store.topics() == ["jobs", "made"]
        assert store.topic("jobs").channels() == ["default"]


async def test_one_that_comes_again_while_it_waits_for_room_counts_once(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        topic = store.topic("jobs", aiodq.StoreOptions(max_messages=1))
        queue = store.queue("jobs")
        await topic.put(b"a")
        client, again = await joined(tmp_path / "s"), await joined(tmp_path / "s")
        requests = [(each, each.send(txn(1, b"b", handle=1))) for each in (client, again)]
        for each in (client, again):
            await each.ask(Ping(1))
        await client.close()
        await until(lambda: len(owner.clients) == 1)
        async with await queue.get():
            pass
        assert await again.answer(requests[1][1]) == Done()
        assert await bodies(store, "jobs") == [b"a", b"b"]
        await again.close()


async def test_what_its_client_does_not_hold_it_cannot_settle(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        client = await joined(tmp_path / "s")
        await client.answer(client.put(1, 1, [b"a", b"b"]))
        (_, first, _), (_, second, _) = await client.take(2, 2, 2)
        wrong = [
            (Ack(2, owner.epoch + 2, (Range(0, first, 1),)),),
            (Ack(2, 0, (Range(0, first, 1),)),),
            (Ack(2, owner.epoch, (Range(0, first, 1), Range(0, first, 1))),),
            (Ack(2, owner.epoch, (Range(0, first, 1), Range(1, first, 1))),),
            (Ack(2, owner.epoch, (Range(0, first, 1), Range(2, second + 1, 1 << 31))),),
            (Ack(2, owner.epoch, (Range(0, first, 3),)),),
        ]
        for number, acks in enumerate(wrong, 1):
            assert isinstance(fail := await client.ask(txn(number, b"x", acks=acks)), Fail)
            assert fail.name == "NotInFlightError"
        assert (queue.in_flight(), await bodies(store, "made")) == (2, [])
        right = [Ack(2, owner.epoch, (Range(0, first, 1), Range(1, second, 1)))]
        assert [each.holds() for each in owner.clients] == [{"jobs/default": 2}]
        assert await client.ask(txn(9, b"x", acks=right)) == Done()
        assert queue.depth == 0
        assert [each.holds() for each in owner.clients] == [{}]
        await client.close()


async def test_what_is_too_large_for_a_topic_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        store.topic("made", aiodq.StoreOptions(min_message_bytes=2, max_message_bytes=3))
        client = await joined(tmp_path / "s")
        for number, wrong in enumerate((b"1", b"4444"), 1):
            assert isinstance(fail := await client.ask(txn(number, b"22", wrong, b"333")), Fail)
            assert fail.name == "MessageSizeError"
        assert await client.ask(txn(3, b"22", b"333")) == Done()
        assert await bodies(store, "made") == [b"22", b"333"]
        await client.close()


async def test_what_a_client_that_is_gone_was_to_settle_goes_back_when_it_comes_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        begun, go = threading.Event(), threading.Event()

        def fails_later(*_: object) -> None:
            begun.set()
            go.wait(PATIENCE)
            raise aiodq.DiskFullError("no space")

        monkeypatch.setattr(TransactionFile, "append", fails_later)
        client, queue = await joined(tmp_path / "s"), store.queue("jobs")
        await client.answer(client.put(1, 1, [b"a"]))
        ((_, delivery, _),) = await client.take(2, 1, 1)
        client.send(txn(5, b"x", acks=[Ack(2, owner.epoch, (Range(0, delivery, 1),))]))
        await until(begun.is_set)
        await client.close()
        await until(lambda: not owner.clients)
        assert queue.in_flight() == 1
        go.set()
        message = await queue.get(timeout=PATIENCE)
        assert (message.body, message.attempts) == (b"a", 1)


@pytest.mark.parametrize("how", ["gone", "withdrawn"])
async def test_who_claims_messages_does_not_wait_for_a_transaction_that_was_given_up_behind_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        begun, go, append = threading.Event(), threading.Event(), TransactionFile.append

        def slowly(*given: Any) -> Any:
            begun.set()
            go.wait(PATIENCE)
            return append(*given)

        monkeypatch.setattr(TransactionFile, "append", slowly)
        client = await joined(tmp_path / "s")
        await client.answer(client.put(1, 1, [b"a"]))
        ((_, delivery, _),) = await client.take(2, 1, 1)
        client.send(txn(5, b"x"))
        await until(begun.is_set)
        client.send(txn(6, b"y", acks=[Ack(2, owner.epoch, (Range(0, delivery, 1),))]))
        await until(lambda: len(owner.engine.committer.deciding) == 2)
        again = await joined(tmp_path / "s")
        claiming = again.send(Resume(2, owner.epoch, (Held(0, delivery, 1, 1),)))
        assert await again.ask(Ping(1)) == Pong(1)
        if how == "gone":
            await client.close()
        else:
            client.send(Call("withdraw", {"sequence": 6}))
        await until(lambda: len(owner.transacting) == (0 if how == "gone" else 1))
        go.set()
        answer = await again.answer(claiming)
        assert isinstance(answer, Done)
        assert answer.facts is not None
        [[offset, number, messages]] = answer.facts["held"]
        assert (offset, messages) == (0, 1)
        assert await again.ask(Ack(2, owner.epoch, (Range(0, number, 1),))) == Done()
        assert await bodies(store, "made") == [b"x"]
        await client.close()
        await again.close()


async def test_two_parts_for_one_topic_are_no_transaction(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await joined(tmp_path / "s")
        await client.open(4, "made")
        client.send(Txn(1, (), (*txn(1, b"a").puts, *txn(1, b"b", handle=4).puts)))
        assert "one part" in (await client.hear(Fail)).text
        await until(lambda: not owner.clients)
        await client.close()


async def test_one_that_waits_for_room_can_be_withdrawn_and_its_messages_come_back(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        store.queue("made", options=aiodq.StoreOptions(max_messages=1))
        await store.topic("made").put(b"full")
        client = await joined(tmp_path / "s")
        await client.answer(client.put(1, 1, [b"a"]))
        ((_, delivery, _),) = await client.take(2, 1, 1)
        acks = [Ack(2, owner.epoch, (Range(0, delivery, 1),))]
        request = client.send(txn(5, b"x", acks=acks))
        assert await client.ask(Call("withdraw", {"sequence": 5})) == Done(None, {"result": False})
        assert isinstance(fail := await client.answer(request), Fail)
        assert "withdrawn" in fail.text
        assert await client.ask(Call("withdraw", {"sequence": 6})) == Done(None, {"result": False})
        assert await client.ask(txn(6, acks=acks)) == Done()
        assert await client.ask(Call("withdraw", {"sequence": 6})) == Done(None, {"result": True})
        assert await bodies(store, "made") == [b"full"]
        await client.close()


async def test_a_message_whose_time_is_up_while_it_waits_for_room_is_its_clients_no_more(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        made = store.queue("made", options=aiodq.StoreOptions(max_messages=1))
        await made.put(b"full")
        queue = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=0.05))
        await queue.put(b"a")
        client = await joined(tmp_path / "s")
        ((_, delivery, _),) = await client.take(2, 1, 1)
        request = client.send(txn(1, b"x", acks=[Ack(2, owner.epoch, (Range(0, delivery, 1),))]))
        await until(lambda: queue.qsize() == 1)
        async with await made.get():
            pass
        assert isinstance(fail := await client.answer(request), Fail)
        assert fail.name == "NotInFlightError"
        assert await client.hear(Gone) == Gone(2, owner.epoch, (Range(0, delivery, 1),))
        assert await bodies(store, "made") == [b"full"]
        await client.close()


@pytest.mark.parametrize("owner_dies", [False, True], ids=["connection", "owner"])
async def test_what_dies_between_the_commit_and_the_answer_does_not_do_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, owner_dies: bool
) -> None:
    plain, died = ClientTransactions.commit, 0

    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as first:
        stores = [await aiodq.open(tmp_path / "s", QUICK, mode="shared") for _ in range(2)]
        jobs = stores[0].queue("jobs")
        await jobs.put_many([b"1", b"2"])

        async def commit(self: ClientTransactions, origin: Origin, asked: Asked) -> None:
            nonlocal died
            await plain(self, origin, asked)
            if not died:
                died += 1
                owner: Any = first._store_engine.owner  # type: ignore[attr-defined]
                for connection in list(owner._connections):
                    connection.abort()
                if owner_dies:
                    asyncio.get_running_loop().create_task(first.aclose())
                await asyncio.Event().wait()

        monkeypatch.setattr(ClientTransactions, "commit", commit)
        messages = await jobs.get_many(2)
        async with asyncio.timeout(PATIENCE), stores[0].transaction() as tx:
            tx.ack(messages[0])
            tx.put("made", b"a")
        assert died == 1
        assert messages[0].settled
        assert await bodies(stores[1], "made") == [b"a"]
        await messages[1].ack()
        assert await counts(stores[1].queue("jobs")) == (0, 0, 0)
        async with stores[0].transaction() as tx:
            tx.put("made", b"b")
        assert await bodies(stores[1], "made") == [b"a", b"b"]
        for store in stores:
            await store.aclose()


async def test_one_that_was_not_committed_is_asked_of_the_next_owner_by_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked_of = ClientTransactions.commit, []

    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as first:
        store = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2"])

        async def commit(self: ClientTransactions, origin: Origin, asked: Asked) -> None:
            asked_of.append(origin)
            if len(asked_of) == 1:
                asyncio.get_running_loop().create_task(first.aclose())
                await asyncio.Event().wait()
            await plain(self, origin, asked)

        monkeypatch.setattr(ClientTransactions, "commit", commit)
        await (await jobs.get()).ack()
        message = await jobs.get()
        async with asyncio.timeout(PATIENCE), store.transaction() as tx:
            tx.ack(message)
            tx.put("made", b"a")
        assert len(set(asked_of)) == 1
        assert len(asked_of) == 2
        assert await bodies(store, "made") == [b"a"]
        assert await counts(jobs) == (0, 0, 0)
        await store.aclose()


async def test_one_whose_message_an_owner_in_between_has_given_to_somebody_else_fails(tmp_path: Path) -> None:
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="client") as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2"])
        messages = await jobs.get_many(2)
        await owner.aclose()

        async def work() -> None:
            async with store.transaction() as tx:
                tx.ack_many(messages)
                tx.put("made", b"a")

        working = asyncio.create_task(work())
        await until(lambda: store._store_engine.committer.pending)  # type: ignore[attr-defined]
        async with aiodq.open(tmp_path / "s", QUICK, wait=PATIENCE) as between:
            await (await between.queue("jobs").get()).ack()
        async with aiodq.open(tmp_path / "s", QUICK, mode="shared"):
            with pytest.raises(aiodq.NotInFlightError):
                await working
            assert await bodies(store, "made") == []
            assert [message.held for message in messages] == [False, True]
            await messages[1].ack()
            assert await counts(jobs) == (0, 0, 0)


@pytest.mark.parametrize("who", [0, 1], ids=["owner", "client"])
async def test_one_whose_sync_fails_is_asked_of_who_opens_the_store_anew(tmp_path: Path, who: int) -> None:
    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared", fs=fs) as owner,
        aiodq.open(tmp_path / "s", QUICK, mode="client") as client,
    ):
        store = (owner, client)[who]
        jobs = store.queue("jobs")
        await jobs.put_many([b"1", b"2"])
        async with store.transaction() as tx:
            tx.put("made", b"a")
        message = await jobs.get()
        fs.fail(errno.EIO, "sync", match="#transactions", times=1)
        async with asyncio.timeout(PATIENCE), store.transaction() as tx:
            tx.ack(message)
            tx.put("made", b"b")
        assert await bodies(client, "made") == [b"a", b"b"]
        assert await counts(jobs) == (1, 0, 0)


async def test_on_a_full_disk_nothing_is_done_and_later_it_is(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared", fs=fs),
        aiodq.open(tmp_path / "s", QUICK, mode="client") as store,
    ):
        jobs = store.queue("jobs")
        await jobs.put(b"1")
        async with store.transaction() as tx:
            tx.put("made", b"a")
        message = await jobs.get()
        fs.fail(errno.ENOSPC, "write", match="#transactions", times=1)
        with pytest.raises(aiodq.DiskFullError):
            async with store.transaction() as tx:
                tx.ack(message)
                tx.put("made", b"b")
        assert message.held
        assert await bodies(store, "made") == [b"a"]
        async with store.transaction() as tx:
            tx.ack(message)
            tx.put("made", b"c")
        assert await bodies(store, "made") == [b"a", b"c"]


async def test_a_topic_that_another_process_has_deleted_is_made_anew(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, store):
        for body in (b"a", b"b"):
            async with store.transaction() as tx:
                tx.put("made", body)
            assert await bodies(owner, "made") == [body]
            await owner.delete_topic("made")


async def test_many_at_once_do_not_wait_for_each_other_and_few_are_remembered(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store:
        full = store.queue("full", options=aiodq.StoreOptions(sync="os", max_messages=1))
        await full.put(b"x")

        async def work(topic: str) -> None:
            async with store.transaction() as tx:
                tx.put(topic, b"b")

        waiting = [asyncio.create_task(work("full")) for _ in range(3)]
        for _ in range(20):
            await asyncio.gather(*(work("made") for _ in range(5)))
        assert not any(task.done() for task in waiting)
        for _ in waiting:
            async with await full.get():
                pass
        await asyncio.gather(*waiting)
        assert len(await bodies(store, "made")) == 100
        remote: RemoteStore = store._store_engine  # type: ignore[assignment]
        assert remote.owner is not None
        async with remote.owner.engine.without_transactions():
            pass
        assert len(read_origins(WatchedFileSystem(), str(tmp_path / "s"))) <= 8


async def test_a_file_of_origins_that_cannot_be_read_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    async with owned(tmp_path / "s"):
        client = await joined(tmp_path / "s")
        assert await client.ask(txn(1, b"x")) == Done()
        await client.close()
    path = tmp_path / "s" / ORIGINS
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"7", b"8", 1))
    report = verify_store(str(tmp_path / "s"), WatchedFileSystem())
    assert [finding.path for finding in report.damages] == [str(path)]
    kept = [action.kept for action in repair_store(str(tmp_path / "s"), WatchedFileSystem())]
    assert kept == [f"{path}.damaged-000000000000"]
    assert verify_store(str(tmp_path / "s"), WatchedFileSystem()).ok
    path.write_bytes(whole.replace(b"7", b"8", 1))
    async with owned(tmp_path / "s") as (store, _):
        client = await joined(tmp_path / "s")
        assert await client.ask(txn(2, b"y")) == Done()
        assert await bodies(store, "made") == [b"x", b"y"]
        await client.close()
    assert verify_store(str(tmp_path / "s"), WatchedFileSystem()).ok
    path.write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises((aiodq.CorruptionError, aiodq.FormatVersionError)):
        read_origins(WatchedFileSystem(), str(tmp_path / "s"))


async def test_what_a_transaction_put_is_in_the_counts_when_it_is_committed(tmp_path: Path) -> None:
    async with stores_of_two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        queue = client.queue("jobs")
        await queue.refresh()
        for number in range(1, 6):
            async with client.transaction() as tx:
                tx.put("jobs", b"x")
            assert (topic.end_offset, queue.qsize()) == (number, number)


async def test_messages_acked_in_any_order_are_one_range_of_their_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[int] = []
    transact = Session._transact

    def transacted(self: Session, packet: Txn, request: int) -> None:
        ranges.extend(len(ack.ranges) for ack in packet.acks)
        transact(self, packet, request)

    monkeypatch.setattr(Session, "_transact", transacted)
    async with two(tmp_path / "s") as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await asyncio.gather(*(queue.put(b"x") for _ in range(20)))
        messages = [await queue.get() for _ in range(20)]
        async with client.transaction() as tx:
            for message in messages[1::2] + messages[::2]:
                tx.ack(message)
        assert await counts(queue) == (0, 0, 0)
    assert ranges == [1]
