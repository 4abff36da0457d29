"""However much was acked or requeued at once, it is written so that others on the loop have their turns."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.channel import channel_engine
from aiodq.engine.channel.acks.ack_persister import _PIECE
from aiodq.engine.loop.sync_backend import SyncBackend
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import Fault
from tests.channels.support import PATIENCE, Machine, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiodq.format.journal import Op

MANY = 5 * _PIECE + 2
ROUNDS = 10


class Turns:
    """Counts the turns of the event loop, and what is written to journals in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.written: Counter[int] = Counter()
        append = ChannelJournal.append

        def noting(journal: ChannelJournal, ops: Iterable[Op], **options: Any) -> bool:
            ops = list(ops)
            self.written[self.now] += len(ops)
            return append(journal, ops, **options)

        monkeypatch.setattr(ChannelJournal, "append", noting)

    async def count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["acked", "requeued", "deferred"])
async def test_much_is_written_a_piece_in_a_turn(machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async with machine.jobs(max_in_flight=10 * _PIECE) as jobs:
        await jobs.put_many([str(number).encode() for number in range(MANY)])
        messages = await jobs.get_many(MANY)
        assert len(messages) == MANY
        turns = Turns(monkeypatch)
        counting = asyncio.create_task(turns.count())
        for message in messages[1:-1:2]:
            if how == "acked":
                message.ack_nowait()
            else:
                message.nack_nowait(60 if how == "deferred" else None)
        await messages[-1].ack()
        counting.cancel()
        # A requeue that is deferred takes two operations. One floor is in it, too.
        assert max(turns.written.values()) <= _PIECE * (2 if how == "deferred" else 1) + 1
        assert len(turns.written) >= MANY // 2 // _PIECE
        machine.crash()
        async with machine.jobs(max_in_flight=10 * _PIECE) as again:
            wanted = {str(number).encode() for number in range(MANY - 1)}
            gone = {str(number).encode() for number in range(1, MANY - 1, 2)}
            attempts = {m.body: m.attempts for m in await again.get_many(MANY)}
            assert set(attempts) == (wanted if how == "requeued" else wanted - gone)
            assert (again.deferred() == len(gone)) is (how == "deferred")
            if how == "requeued":
                assert {body for body, number in attempts.items() if number > 1} >= gone


async def test_a_crash_between_two_pieces_loses_no_message(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine.jobs(max_in_flight=10 * _PIECE) as jobs:
        await jobs.put_many([str(number).encode() for number in range(MANY)])
        messages = await jobs.get_many(MANY)
        turns = Turns(monkeypatch)
        for message in messages[1::2]:
            message.ack_nowait()
        flushing = asyncio.create_task(jobs.sync())
        while not turns.written:
            await asyncio.sleep(0)
        machine.crash()
        flushing.cancel()
        async with machine.jobs(max_in_flight=10 * _PIECE) as again:
            found = ready(again)
            assert set(found) >= {message.body for message in messages[::2]}


class HeldUp:
    """Holds up the syncs of journals until told to go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        sync = ChannelJournal.sync

        def held_up(journal: ChannelJournal) -> None:
            self.syncs += 1
            self.begun.set()
            self.go.wait(PATIENCE)
            sync(journal)

        monkeypatch.setattr(ChannelJournal, "sync", held_up)


@pytest.mark.parametrize("gives_way", [False, True])
@pytest.mark.parametrize("group", [1, 20])
async def test_those_who_ack_in_two_groups_become_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, group: int, gives_way: bool
) -> None:
    if gives_way:
        monkeypatch.setattr(channel_engine, "LONGEST_TURN", -1.0)
    async with machine.jobs() as jobs:
        await jobs.put_many([b"x"] * 2 * group * ROUNDS)
        held_up = HeldUp(monkeypatch)

        async def work() -> None:
            for _ in range(ROUNDS):
                await (await jobs.get()).ack()

        workers = [asyncio.create_task(work()) for _ in range(group)]
        await until(held_up.begun.is_set)
        workers += [asyncio.create_task(work()) for _ in range(group)]
        await until(lambda: jobs.in_flight() == 0 and jobs.depth == 2 * group * (ROUNDS - 1))
        held_up.go.set()
        await soon(asyncio.gather(*workers))
        assert jobs.depth == 0
        assert held_up.syncs <= ROUNDS + 1


@pytest.mark.parametrize("what", ["sync", "close", "another channel's ack", "many acks"])
async def test_what_is_asked_for_while_the_ack_of_a_lone_consumer_is_synced_comes_after_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    done = list[str]()

    async def note(name: str, doing: Awaitable[object]) -> None:
        await doing
        done.append(name)

    async with machine.store() as store:
        topic = store.topic("jobs")
        jobs, others = topic.channel("jobs"), topic.channel("others")
        await topic.put_many([b"x"] * 10)
        await topic.settle_in()
        await (await jobs.get()).ack()
        first, *rest = await jobs.get_many(9)
        other = await others.get()
        held_up = HeldUp(monkeypatch)
        lone = asyncio.create_task(note("ack", first.ack()))
        await until(held_up.begun.is_set)
        assert topic._engine._persister.worker._task is None
        doing: dict[str, Callable[[], Awaitable[object]]] = {
            "sync": topic.sync,
            "close": store.aclose,
            "another channel's ack": other.ack,
            "many acks": lambda: asyncio.gather(*(message.ack() for message in rest)),
        }
        after = asyncio.create_task(note(what, doing[what]()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert held_up.syncs == 1
        assert not done
        held_up.go.set()
        await soon(asyncio.gather(lone, after))
        assert done == ["ack", what]
    machine.crash()
    async with machine.store() as store:
        left = store.topic("jobs").channel("jobs").depth, store.topic("jobs").channel("others").depth
        assert left == {"another channel's ack": (8, 9), "many acks": (0, 10)}.get(what, (8, 10))


async def test_an_ack_for_whose_sync_no_thread_is_free_is_synced_with_the_next_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: SyncBackend, what: object, report: Callable[[None, BaseException | None], None]) -> None:
        assert isinstance(what, ChannelJournal)
        report(None, aiodq.StorageError("no thread is free"))

    async with machine.jobs() as jobs:
        await jobs.put_many([b"1", b"2"])
        await (await jobs.get()).ack()
        message = await jobs.get()
        with monkeypatch.context() as patched, pytest.raises(aiodq.StorageError, match="no thread is free"):
            patched.setattr(SyncBackend, "start", refused)
            await message.ack()
        await jobs.topic.sync()
        machine.crash()
        async with machine.jobs() as again:
            assert again.depth == 0


async def test_whatever_the_sync_of_a_lone_ack_raises_somebody_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trapped(_: ChannelJournal) -> None:
        raise ZeroDivisionError("a trap")

    async with machine.jobs() as jobs:
        await jobs.put_many([b"1", b"2"])
        await (await jobs.get()).ack()
        message = await jobs.get()
        monkeypatch.setattr(ChannelJournal, "sync", trapped)
        with pytest.raises(aiodq.StoreFailedError, match="a trap"):
            await soon(message.ack())


async def test_a_store_that_stops_while_the_ack_of_a_lone_consumer_is_synced_tells_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(aiodq.StoreFailedError, match="pulled"):
        async with machine.jobs() as jobs:
            await jobs.put_many([b"1", b"2"])
            await (await jobs.get()).ack()
            message = await jobs.get()
            held_up = HeldUp(monkeypatch)
            lone = asyncio.create_task(message.ack())
            await until(held_up.begun.is_set)
            jobs.topic._engine.fail_store(RuntimeError("the plug was pulled"))
            with pytest.raises(aiodq.StoreFailedError, match="pulled"):
                await soon(lone)
            held_up.go.set()
            await jobs.put(b"3")


async def test_who_is_told_of_an_ack_gets_the_next_message_without_giving_way_once_more(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", b"b"])
        message = await jobs.get()
        machine.clock.advance(0.5)  # the turn in which that was taken is long over
        await message.ack()
        following = jobs.get()
        with pytest.raises(StopIteration) as got:
            following.send(None)
        assert got.value.value.body == b"b"


@pytest.mark.parametrize("what", ["ack", "get"])
async def test_a_failed_sync_as_a_journal_is_begun_anew_stops_the_store(machine: Machine, what: str) -> None:
    async with machine.jobs(max_attempts=5) as jobs:
        await jobs.put_many([b"1", b"2", b"3"])
        first, second = await jobs.get_many(2)
        await soon(first.ack())
        machine.fs.plan.add(Fault("truncate", 1, match="journal"))
        # The checkpoint is there, and a journal after it is not: what is written next begins it.
        await jobs.topic._engine._persister._fold(jobs._channel_engine)
        machine.fs.plan.clear()
        machine.fs.plan.add(Fault("sync", 1, match="journal"))
        calls: dict[str, Callable[[], Awaitable[object]]] = {"ack": second.ack, "get": jobs.get}
        with pytest.raises(aiodq.StoreFailedError):
            await soon(calls[what]())
        machine.fs.plan.clear()
        with pytest.raises(aiodq.StoreFailedError):
            await soon(jobs.put(b"4"))
        machine.crash()
    async with machine.jobs() as jobs:
        assert ready(jobs) == [b"2", b"3"]
