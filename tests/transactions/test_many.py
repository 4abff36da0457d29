"""Transactions of very many messages: others have their turns meanwhile, and it is all or nothing all the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.batch.put_batch import columns_cost, columns_of
from aiodq.engine.channel.acks.transaction_holds import TransactionHolds
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.committing import entries, group_committer, topic_appender
from aiodq.engine.topic.puts import put_buffer
from aiodq.engine.transactions import pending_puts
from aiodq.format.columns import Columns
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from aiodq.testing import SimulatedFileSystem
from tests.channels.support import PATIENCE, Machine, counts, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aiodq.engine.batch.put_batch import Accepted

MANY = 600
"""Messages of which every other one is settled, each a run of its own."""
LARGE = aiodq.ChannelOptions(max_in_flight=10 * MANY)


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._task = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    counting = Turns()
    yield counting
    await counting.end()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_PIECE", 90)


async def taken(store: aiodq.Store) -> tuple[aiodq.Queue, list[aiodq.Message]]:
    jobs = store.queue("jobs", LARGE)
    await jobs.put_many([b"%d" % number for number in range(2 * MANY)])
    return jobs, await jobs.get_many(2 * MANY)


async def ack_all(store: aiodq.Store, messages: list[aiodq.Message]) -> None:
    async with store.transaction() as tx:
        tx.ack_many(messages)


async def test_others_have_their_turns_while_it_holds_and_settles(
    store: aiodq.Store, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, messages = await taken(store)
    held: dict[int, int] = {}
    settled: dict[int, int] = {}
    hold, ack = ChannelState.hold, ChannelState.ack

    def holding(state: ChannelState, start: int, stop: int | None = None) -> int:
        held[turns.number] = held.get(turns.number, 0) + 1
        return hold(state, start, stop)

    def acking(state: ChannelState, start: int, stop: int | None = None) -> None:
        settled[turns.number] = settled.get(turns.number, 0) + 1
        ack(state, start, stop)

    monkeypatch.setattr(ChannelState, "hold", holding)
    monkeypatch.setattr(ChannelState, "ack", acking)
    await ack_all(store, messages[::2])
    assert sum(held.values()) == sum(settled.values()) == MANY
    assert max(held.values()) <= 20
    assert max(settled.values()) <= 20
    assert counts(jobs) == (0, MANY, 0)


async def test_others_have_their_turns_while_what_it_puts_is_put_in_order(
    store: aiodq.Store, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_at: dict[int, int] = {}

    def sorting(messages: Sequence[tuple[Accepted, bytes]]) -> Columns:
        sorted_at[turns.number] = sorted_at.get(turns.number, 0) + len(messages)
        return columns_of(messages)

    monkeypatch.setattr(pending_puts, "columns_of", sorting)
    drafts = [aiodq.Draft(b"%d" % number, tag="t", headers={"number": str(number)}) for number in range(MANY)]
    async with store.transaction() as tx:
        for draft in drafts:
            tx.put("made", draft.body, tag=draft.tag, headers=draft.headers)
        tx.put_many("made", drafts)
        for draft in drafts:
            tx.put_many("made", [draft])
    assert (sum(sorted_at.values()), max(sorted_at.values())) == (2 * MANY, 500)
    messages = await store.queue("made", LARGE).get_many(3 * MANY)
    assert [(one.body, one.tag, one.headers) for one in messages] == [
        (draft.body, draft.tag, draft.headers) for draft in drafts * 3
    ]


async def test_very_many_at_once_are_committed_in_several_groups(
    store: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, groups = TransactionFile.append, list[int]()

    def noted(file: TransactionFile, commits: Sequence[Any], now_ns: int) -> list[int]:
        groups.append(len(commits))
        return append(file, commits, now_ns)

    monkeypatch.setattr(TransactionFile, "append", noted)
    _, messages = await taken(store)
    go_on = asyncio.Event()

    async def settle_one(message: aiodq.Message) -> None:
        async with store.transaction() as tx:
            tx.ack(message)
            await go_on.wait()

    settling = [asyncio.create_task(settle_one(message)) for message in messages]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*settling)
    assert sum(groups) == len(messages) == 2 * MANY
    assert max(groups) <= 256


async def test_what_many_messages_cost_is_found_out_once(store: aiodq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def counting(columns: Columns) -> int:
        counted.append(len(columns.bodies))
        return columns_cost(columns)

    for module in (put_buffer, topic_appender):
        monkeypatch.setattr(module, "columns_cost", counting)
    async with store.transaction() as tx:
        tx.put_many("made", [aiodq.Draft(b"%d" % number, tag="t") for number in range(MANY)])
    assert store.topic("made").end_offset == MANY
    assert not counted


async def test_neighbours_are_held_and_settled_at_once(store: aiodq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, messages = await taken(store)
    held: list[int] = []
    hold = ChannelState.hold

    def holding(state: ChannelState, start: int, stop: int | None = None) -> int:
        held.append((start + 1 if stop is None else stop) - start)
        return hold(state, start, stop)

    monkeypatch.setattr(ChannelState, "hold", holding)
    async with store.transaction() as tx:
        tx.ack_many([*messages[:300], *messages[400:700]])
        tx.put("made", b"done")
    assert held == [300, 300]
    assert counts(jobs) == (0, 2 * MANY - 600, 0)
    assert [message.settled for message in (messages[0], messages[299], messages[300])] == [True, True, False]
    assert jobs.stats().acked == 600


async def test_one_that_is_taken_away_while_others_are_held_undoes_all(store: aiodq.Store) -> None:
    jobs, messages = await taken(store)
    last = messages[-2]
    commit = asyncio.ensure_future(ack_all(store, messages[::2]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    last.nack_nowait(60)
    with pytest.raises(aiodq.NotInFlightError):
        await commit
    assert counts(jobs) == (0, 2 * MANY - 1, 1)
    assert not any(message.settled for message in messages if message is not last)
    for message in messages:
        if message is not last:
            message.ack_nowait()
    assert counts(jobs) == (0, 0, 1)


async def test_cancelled_while_it_holds_it_does_nothing(store: aiodq.Store) -> None:
    jobs, messages = await taken(store)
    commit = asyncio.ensure_future(ack_all(store, messages[::2]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert counts(jobs) == (0, 2 * MANY, 0)
    await jobs.ack_many(messages)
    assert counts(jobs) == (0, 0, 0)


async def test_its_acks_are_in_the_journals_before_the_file_forgets_them(
    store: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, messages = await taken(store)
    left: list[int] = []
    reset = TransactionFile.reset

    def noting(file: TransactionFile, *arguments: Any) -> None:
        left.append(jobs.in_flight())
        reset(file, *arguments)

    held_up: list[tuple[Any, ...]] = []
    settle = group_committer.Committer._settle

    def begun(*arguments: Any) -> None:
        """Settle the first few; the others wait until the test goes on with them."""
        if held_up or counts(jobs)[1] < 2 * MANY:
            held_up.append(arguments)
        else:
            settle(*arguments)

    monkeypatch.setattr(TransactionFile, "reset", noting)
    monkeypatch.setattr(group_committer.Committer, "_settle", begun)
    commit = asyncio.ensure_future(ack_all(store, messages[::2]))
    await until(lambda: bool(held_up))
    # What goes back waits until nothing is owed any more.
    purge = asyncio.ensure_future(store.topic("other").purge())
    await asyncio.sleep(0.1)
    assert left == []
    assert not purge.done()
    monkeypatch.setattr(group_committer.Committer, "_settle", settle)
    settle(*held_up[0])
    await purge
    assert left == [MANY]
    await commit


async def test_who_no_longer_waits_for_what_is_owed_takes_nothing_from_those_who_commit(
    store: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, messages = await taken(store)
    committer, settling = store._store_engine.committer, asyncio.Event()
    settle = group_committer.Committer._settle

    def begun(committer: group_committer.Committer, *arguments: Any) -> None:
        settling.set()
        settle(committer, *arguments)

    monkeypatch.setattr(group_committer.Committer, "_settle", begun)
    commit = asyncio.ensure_future(ack_all(store, messages[::2]))
    await settling.wait()
    waiting = asyncio.ensure_future(committer.without_transactions().__aenter__())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await commit
    assert waiting.cancelled()
    assert counts(jobs) == (0, MANY, 0)


async def ended_under(turns: int) -> BaseException | None:
    """Return what a commit says under which the store's own tasks are cancelled, as they are when a loop ends."""
    machine = Machine()
    with suppress(aiodq.QueueShutDown):
        async with aiodq.open("/s", fs=machine.fs, clock=machine.clock) as store:
            _, messages = await taken(store)
            commit = asyncio.ensure_future(ack_all(store, messages[::2]))
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task(), commit}:
                task.cancel()
            await asyncio.wait([commit], timeout=PATIENCE)
    return commit.exception()


@pytest.mark.parametrize("turns", [*range(1, 60, 20), *range(60, 76, 2), *range(80, 140, 20)])
def test_nobody_waits_for_a_commit_when_the_loop_ends_under_the_store(turns: int) -> None:
    error = asyncio.run(ended_under(turns))
    assert error is None or isinstance(error, aiodq.AiodqError)


async def test_what_was_settled_by_runs_stays_so_after_a_power_cut(machine: Machine, store: aiodq.Store) -> None:
    _, messages = await taken(store)
    await ack_all(store, [*messages[:100], *messages[200:300:2]])
    after = SimulatedFileSystem(machine.fs.durable())
    async with aiodq.open("/s", fs=after, clock=machine.clock) as again:
        jobs = again.queue("jobs", LARGE)
        assert jobs.depth == 2 * MANY - 150
        assert [message.offset for message in await jobs.get_many(101)] == [*range(100, 200), 201]


async def test_whoever_gives_up_waiting_for_a_commit_is_not_searched_for(
    store: aiodq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    class Entry(entries.Entry):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = object.__hash__

    monkeypatch.setattr(group_committer, "Entry", Entry)
    committer = store._store_engine.committer
    _, messages = await taken(store)
    async with committer._turn:
        settling = [asyncio.create_task(ack_all(store, [message])) for message in messages]
        await until(lambda: len(committer._waiting) == len(messages))
        for each in reversed(settling):
            each.cancel()
        await asyncio.wait(settling)
        assert all(each.cancelled() for each in settling)
        assert not committer._waiting
    assert compared <= 2 * len(messages)


async def test_what_waits_for_earlier_puts_is_put_some_at_a_time(
    store: aiodq.Store, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.topic("t")
    await topic.put(b"0")
    engine = store._store_engine.topics["t"]
    accept, accepted = put_buffer.PutBuffer.accept_committed, Counter[int]()

    def accepting(buffer: put_buffer.PutBuffer, columns: Columns, cost: int) -> asyncio.Future[range]:
        accepted[turns.number] += 1
        return accept(buffer, columns, cost)

    monkeypatch.setattr(put_buffer.PutBuffer, "accept_committed", accepting)
    # Of an appender that the committer does not know, nobody waits for its end amid the test.
    appender = topic_appender.TopicAppender(engine)
    for number in range(1, 2 * MANY):  # in one step: the first is under way, and all others wait for it
        appender.add(Columns([b"%d" % number], transaction=number))
    assert accepted.total() == 1
    await appender.idle()
    assert accepted.total() == 2 * MANY - 1
    assert max(accepted.values()) == topic_appender._MOST_AT_ONCE
    assert engine.put_buffer.pending == 0
    assert [message.body async for message in topic.scan()] == [b"%d" % number for number in range(2 * MANY)]


async def test_those_given_in_no_order_are_checked_held_and_written_in_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    runs, check_all, hold = Counter[str](), ChannelEngine.check_all, TransactionHolds.hold

    def checked(engine: ChannelEngine[Any], start: int, stop: int, delivery: int) -> None:
        runs["checked"] += 1
        check_all(engine, start, stop, delivery)

    def held(holds: TransactionHolds, start: int, stop: int, delivery: int) -> int:
        runs["held"] += 1
        return hold(holds, start, stop, delivery)

    monkeypatch.setattr(ChannelEngine, "check_all", checked)
    monkeypatch.setattr(TransactionHolds, "hold", held)
    async with machine.store() as store:
        channels = [store.topic("jobs").channel(name, LARGE) for name in ("a", "b")]
        await store.topic("jobs").put_many([b""] * MANY)
        messages = [message for channel in channels for message in await channel.get_many(MANY)]
        random.Random(seed).shuffle(messages)
        async with store.transaction() as tx:
            tx.ack_many(messages[: MANY // 2])
            with pytest.raises(aiodq.AlreadySettledError, match=f"message {messages[3].offset} of 'jobs'"):
                tx.ack_many([*messages[MANY // 2 :], messages[3], messages[4]])
            with pytest.raises(aiodq.AlreadySettledError, match=f"message {messages[-1].offset} of 'jobs'"):
                tx.ack_many([*messages[MANY // 2 :], messages[-1], messages[-2]])
            runs.clear()
            tx.ack_many(messages[MANY // 2 :])
            assert runs["checked"] < MANY
        assert runs["held"] < MANY
        assert [counts(channel) for channel in channels] == [(0, 0, 0)] * 2
