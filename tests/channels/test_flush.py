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
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import Fault
from tests.channels.support import PATIENCE, Machine, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiodq.format.journal import Op

MANY = 5 * _PIECE + 2
GROUP = 20
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


@pytest.mark.parametrize("gives_way", [False, True])
async def test_those_who_ack_in_two_groups_become_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, gives_way: bool
) -> None:
    if gives_way:
        monkeypatch.setattr(channel_engine, "LONGEST_TURN", -1.0)
    syncs, begun, go, sync = 0, threading.Event(), threading.Event(), ChannelJournal.sync

    def held_up(journal: ChannelJournal) -> None:
        nonlocal syncs
        syncs += 1
        begun.set()
        go.wait(PATIENCE)
        sync(journal)

    async with machine.jobs() as jobs:
        await jobs.put_many([b"x"] * 2 * GROUP * ROUNDS)
        monkeypatch.setattr(ChannelJournal, "sync", held_up)

        async def work() -> None:
            for _ in range(ROUNDS):
                await (await jobs.get()).ack()

        workers = [asyncio.create_task(work()) for _ in range(GROUP)]
        await until(begun.is_set)
        workers += [asyncio.create_task(work()) for _ in range(GROUP)]
        await until(lambda: jobs.in_flight() == 0 and jobs.depth == 2 * GROUP * (ROUNDS - 1))
        go.set()
        await soon(asyncio.gather(*workers))
        assert jobs.depth == 0
        assert syncs <= ROUNDS + 1


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
