"""What concerns very many channels or messages at once is done some in each turn of the loop; counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiodq
from aiodq import requeue
from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.channel.acks import undeliverable
from aiodq.engine.channel.acks.out_of_turn import OutOfTurn
from aiodq.engine.channel.channel_core import ChannelCore
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.committing import group_committer, reserved_room
from aiodq.engine.committing.reserved_room import ReservedRoom
from aiodq.engine.loop import sync_backend
from aiodq.engine.loop.sync_backend import SyncBackend
from aiodq.engine.topic import topic_engine
from aiodq.engine.topic.commit import publisher
from aiodq.engine.topic.creation import Creation
from aiodq.engine.topic.puts.put_buffer import PutBuffer
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.engine.transactions import pending_puts
from aiodq.engine.transactions.pending_puts import PendingPuts
from aiodq.testing import FakeClock
from tests.system.counts import compiled
from tests.system.support import QuickFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(compiled(), reason="what is compiled cannot be watched")

BODY = b"x" * 20
CHANNELS = 25
AT_ONCE = 4


class Turns:
    """Counts what happens in each turn of the loop.

    Attributes:
        each: how often it happened, by turn.
    """

    def __init__(self) -> None:
        self.each: Counter[int] = Counter()
        self._turn = 0
        self._next()

    def _next(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._next)

    def counted(self, function: Callable[..., Any], weight: Callable[..., int] = lambda *_: 1) -> Callable[..., Any]:
        """Return a function that counts, and does what this one does."""

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.each[self._turn] += weight(*args)
            return function(*args, **kwargs)

        return counting


async def many_channels(store: aiodq.Store) -> list[aiodq.Channel]:
    """Return the channels of a topic, each of which has had a message."""
    topic = store.topic("t")
    channels = [topic.channel(f"c{number}") for number in range(CHANNELS)]
    await topic.put(BODY)
    for channel in channels:
        await (await channel.get()).ack()
    return channels


@pytest.fixture
def few_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few channels are told of a delay in one turn."""
    monkeypatch.setattr(publisher, "_NOTED_AT_ONCE", AT_ONCE)


@pytest.mark.usefixtures("few_noted")
@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize("messages", [1, 100])
async def test_a_delay_is_told_to_some_channels_in_each_turn(
    sync: Literal["os", "always"], messages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come meanwhile wait, so that what is still to be told stays little."""
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync=sync), fs=QuickFileSystem()) as store:
        channels, topic, turns = await many_channels(store), store.topic("t"), Turns()
        monkeypatch.setattr(ChannelEngine, "note_dues", turns.counted(ChannelEngine.note_dues))
        waiting = 0
        for _ in range(3):
            await topic.put_many([aiodq.Draft(BODY, delay=60)] * messages)
            waiting = max(waiting, len(topic._engine.publisher._untold))
        while any(channel.deferred() != 3 * messages for channel in channels):
            await asyncio.sleep(0)
        assert turns.each.total() == 3 * CHANNELS
        assert max(turns.each.values()) <= AT_ONCE
        assert waiting <= 1
        assert [channel.qsize() for channel in channels] == [0] * CHANNELS
        await asyncio.wait_for(topic.put(BODY), 60)
        assert [(await channel.get()).offset for channel in channels] == [3 * messages + 1] * CHANNELS


@pytest.mark.usefixtures("few_noted")
async def test_a_channel_that_is_told_late_delivers_nothing_early(tmp_path: Path) -> None:
    clock = FakeClock()
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem(), clock=clock) as store:
        channels = await many_channels(store)
        joining = [asyncio.ensure_future(channel._channel_engine.join(deferred=False)) for channel in channels]
        await store.topic("t").put(BODY, delay=60)
        for channel in channels:
            with pytest.raises(asyncio.QueueEmpty):
                channel.get_nowait()
        await asyncio.wait_for(asyncio.gather(*joining), 60)
        assert [(channel.deferred(), channel.qsize()) for channel in channels] == [(1, 0)] * CHANNELS
        clock.advance(61)
        found = await asyncio.wait_for(asyncio.gather(*[channel.get() for channel in channels]), 60)
        assert [message.attempts for message in found] == [1] * CHANNELS


@pytest.mark.usefixtures("few_noted")
async def test_who_waits_for_a_channel_that_is_told_late_is_woken(tmp_path: Path) -> None:
    """What is ready before the channel knows of the delay is none of what is waited for."""
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        channels = await many_channels(store)
        await store.topic("t").put(BODY, delay=60)
        assert channels[-1].deferred() == 0, "not told yet"
        await asyncio.wait_for(channels[-1]._channel_engine.join(deferred=False), 60)


async def test_what_expires_in_hand_at_once_is_settled_some_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undeliverable, "_MOST_HELD", 100)
    clock, many = FakeClock(), 1000
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem(), clock=clock) as store:
        channel, turns = store.topic("t").channel("c"), Turns()
        looked_at = turns.counted(
            ChannelState.expire_ranges, lambda _, ranges: sum(stop - start for start, stop in ranges)
        )
        monkeypatch.setattr(ChannelState, "expire_ranges", looked_at)
        await store.topic("t").put_many([aiodq.Draft(BODY, ttl=5)] * many)
        messages = await channel.get_many(many)
        clock.advance(6)
        while turns.each.total() < many:
            await asyncio.sleep(0)
        assert max(turns.each.values()) <= 100
        assert channel.stats().expired == 0, "whoever has them may still ack them"
        await channel.ack_many(messages[:500])
        for message in messages[500:]:
            await message.nack()
        while channel.stats().expired < 500:
            await asyncio.sleep(0)
        assert (channel.qsize(), channel.stats().acked) == (0, 500)


def test_of_what_outlived_its_time_in_hand_little_stays_in_memory() -> None:
    """However many there were: none of the later ones takes long to note."""
    state, out_of_turn, looks = ChannelState(0, 10_000, 10_000), OutOfTurn(), 0
    for offset in range(5000):
        state.deliver(offset)
    out_of_turn.outlived(range(5000), state)
    state.ack(0, 5000)
    delivery = state.delivery

    def counting(offset: int) -> int | None:
        nonlocal looks
        looks += 1
        return delivery(offset)

    state.delivery = counting  # type: ignore[method-assign]  # to count
    for offset in range(5000, 10_000):
        state.deliver(offset)
        looks = 0
        out_of_turn.outlived([offset], state)
        assert looks <= 2
        state.ack(offset)
    assert len(out_of_turn._outlived) < 100
    assert not out_of_turn.back(7)


async def test_the_syncs_of_many_channels_are_begun_some_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_backend, "_BEGUN_AT_ONCE", AT_ONCE)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os")) as store:
        if store.stats().sync_backend != "aio":
            pytest.skip("no syncs of the kernel's here")
        channels = await many_channels(store)
        await store.topic("t").sync()
        await store.topic("t").put(BODY)
        for channel in channels:
            (await channel.get()).ack_nowait()
        turns = Turns()
        monkeypatch.setattr(SyncBackend, "start", turns.counted(SyncBackend.start))
        await store.topic("t").sync()
        assert turns.each.total() >= CHANNELS
        assert max(turns.each.values()) <= AT_ONCE


async def test_what_is_redelivered_is_taken_up_to_a_thousand_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, runs, deliver_again = 2500, list[int](), ChannelState.deliver_again

    def counting(state: ChannelState, *args: Any) -> tuple[range, int, int] | None:
        found = deliver_again(state, *args)
        runs.append(0 if found is None else len(found[0]))
        return found

    monkeypatch.setattr(ChannelState, "deliver_again", counting)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        channel = store.topic("t").channel("c", aiodq.ChannelOptions(max_in_flight=many))
        await store.topic("t").put_many([BODY] * many)
        for message in await channel.get_many(many):
            await message.nack()
        found = await channel.get_many(many)
        assert [message.offset for message in found] == list(range(many))
        assert {message.attempts for message in found} == {2}
        assert max(runs) == 1000


async def test_of_many_channels_with_a_getter_each_some_are_looked_at_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a channel costs more than waking one getter."""
    monkeypatch.setattr(publisher, "MOST_AT_ONCE", 2 * CHANNELS)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        channels, turns = await many_channels(store), Turns()
        getting = [asyncio.ensure_future(channel.get()) for channel in channels]
        for _ in range(20):
            await asyncio.sleep(0)
        monkeypatch.setattr(ChannelEngine, "wake", turns.counted(ChannelEngine.wake))
        await store.topic("t").put(BODY)
        assert [message.offset for message in await asyncio.gather(*getting)] == [1] * CHANNELS
        assert max(turns.each.values()) < CHANNELS


@pytest.mark.parametrize("deleted", [False, True])
async def test_the_end_of_a_topic_is_told_to_some_channels_in_each_turn(
    deleted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_engine, "_AT_ONCE", AT_ONCE)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        channels, ended, refused = await many_channels(store), Turns(), Turns()
        monkeypatch.setattr(ChannelEngine, "end_getters", ended.counted(ChannelEngine.end_getters))
        monkeypatch.setattr(ChannelEngine, "refuse", refused.counted(ChannelEngine.refuse))
        getting = [asyncio.ensure_future(channel.get()) for channel in channels]
        await asyncio.sleep(0)
        await (store.delete_topic("t") if deleted else store.aclose())
        for one in await asyncio.gather(*getting, return_exceptions=True):
            assert isinstance(one, aiodq.QueueShutDown)
        assert (refused.each.total(), max(refused.each.values())) == (CHANNELS, AT_ONCE)
        assert (ended.each.total(), max(ended.each.values())) == (2 * CHANNELS, AT_ONCE)


async def test_a_transaction_over_many_topics_does_some_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_committer, "_TOPICS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(reserved_room, "_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(pending_puts, "_TOPICS_AT_ONCE", AT_ONCE)
    watched = [
        (PendingPuts, "columns"),
        (Creation, "create"),
        (ReservedRoom, "_take"),
        (PutBuffer, "accept_committed"),
        (TopicEngine, "sync"),
        (ChannelCore, "committed"),
    ]
    turns = {name: Turns() for _, name in watched}
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        channels = await many_channels(store)
        await store.topic("t").put(BODY)
        messages = [await channel.get() for channel in channels]
        for owner, name in watched:
            monkeypatch.setattr(owner, name, turns[name].counted(getattr(owner, name)))
        for number in range(2):
            async with store.transaction() as transaction:
                transaction.ack_many(messages[number::2])
                for topic in range(CHANNELS):
                    transaction.put(f"t{topic}", BODY)
        await store._store_engine.committer._empty()
        for name, counted in turns.items():
            assert counted.each.total() >= CHANNELS, name
            assert max(counted.each.values()) <= 2 * AT_ONCE, name


async def test_letters_are_put_back_some_in_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "_IN_A_TURN", AT_ONCE)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        jobs = store.queue("t", aiodq.ChannelOptions(dead_letter="dead"))
        await jobs.put_many([BODY] * 120)
        await asyncio.gather(*(message.reject() for message in await jobs.get_many(120)))
        taken, put = Turns(), Turns()
        monkeypatch.setattr(ChannelState, "pick", taken.counted(ChannelState.pick))
        monkeypatch.setattr(aiodq.Transaction, "_put_for", put.counted(aiodq.Transaction._put_for))
        assert await store.requeue_dead("dead") == 120
        for turns in (taken, put):
            assert (turns.each.total(), max(turns.each.values())) == (120, AT_ONCE)
        assert jobs.qsize() == 120


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_committed_in_many_topics_is_there_though_the_loop_ends_amid_that(
    cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each topic has the messages of all transactions, in the order of their commits."""
    monkeypatch.setattr(group_committer, "_TOPICS_AT_ONCE", AT_ONCE)
    names, entering = [f"t{number}" for number in range(CHANNELS)], asyncio.Event()
    accept = PutBuffer.accept_committed

    def accepting(buffer: PutBuffer, columns: Any, cost: int) -> Any:
        entering.set()
        return accept(buffer, columns, cost)

    async def commit(store: aiodq.Store, body: bytes) -> None:
        async with store.transaction() as transaction:
            for name in names:
                transaction.put(name, body)

    with suppress(aiodq.StoreFailedError):
        store = await aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"))
        await commit(store, b"0")
        monkeypatch.setattr(PutBuffer, "accept_committed", accepting)
        commits = [asyncio.ensure_future(commit(store, body)) for body in (b"1", b"2")]
        await entering.wait()
        if cancelled:
            for task in asyncio.all_tasks() - {asyncio.current_task(), *commits}:
                task.cancel()
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        if cancelled:
            assert all(isinstance(outcome, aiodq.StoreFailedError) for outcome in outcomes)
        else:
            assert outcomes == [None, None]
        await store.aclose()
    async with aiodq.open(tmp_path) as store:
        for name in names:
            found = [bytes(record.body) async for record in store.topic(name).scan()]
            assert found == [b"0", b"1", b"2"], name


async def test_who_comes_while_a_topic_ends_gets_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_engine, "_AT_ONCE", 1)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        channels, deleting = await many_channels(store), asyncio.ensure_future(store.delete_topic("t"))
        outcomes = list[BaseException]()
        while not deleting.done():
            for call in (channels[0].get, channels[-1].get):
                waiting = asyncio.ensure_future(call())
                waiting.add_done_callback(lambda done: outcomes.append(done.exception() or AssertionError()))
            await asyncio.sleep(0)
        await deleting
        await asyncio.sleep(0)
        assert len(outcomes) > 2 * CHANNELS
        assert {type(outcome) for outcome in outcomes} == {aiodq.QueueShutDown}
