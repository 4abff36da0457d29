"""A store in mode "shared" and "client": the public objects, each as that of a store that one process has."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.clock import SystemClock
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.engine.channel.lease.open_lease import OpenLease
from aiodq.engine.loop.futures import MOST_AT_ONCE
from aiodq.engine.loop.home_loop import NOWHERE
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.shared.consuming import demand
from aiodq.shared.consuming.arrived import Arrived
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.handles.shared_channel import SharedChannel
from aiodq.shared.handles.shared_queue import SharedQueue
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.shared.handles.shared_topic import SharedTopic
from aiodq.shared.server.session import Session
from aiodq.storage.store_layout import SOCKET
from aiodq.testing import FakeClock
from tests.shared.support import PATIENCE, QUICK, counts, two, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path


# --- the objects


async def test_the_objects_are_those_of_the_public_interface(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as stores:
        for store in stores:
            queue = store.queue("jobs")
            assert isinstance(store, aiodq.Store)
            assert isinstance(queue, aiodq.Queue)
            assert isinstance(queue.topic, aiodq.Topic)
            assert isinstance(queue.channel("other"), aiodq.Channel)
            assert not isinstance(queue.channel("other"), aiodq.Queue)
    async with aiodq.open_queue(tmp_path / "q", mode="shared") as jobs:
        assert isinstance(jobs, aiodq.Queue)
        assert (
            repr(jobs) == f"<Queue 'queue' open, 0 ready, 0 in flight, 0 deferred [{os.path.realpath(tmp_path / 'q')}]>"
        )


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        (SharedStore, aiodq.Store),
        (SharedTopic, aiodq.Topic),
        (SharedChannel, aiodq.Channel),
        (SharedQueue, aiodq.Queue),
    ],
    ids=["store", "topic", "channel", "queue"],
)
def test_what_looks_into_an_engine_is_done_otherwise(shared: type[Any], own: type[Any]) -> None:
    names = {name for name in dir(own) if not name.startswith("_")}
    added = {name for name in dir(shared) if not name.startswith("_")} - names
    assert not added
    inherited = {name for name in names if getattr(shared, name) is getattr(own, name)}
    # These only ask what a remote engine answers, or call others.
    fine = {
        "path", "name", "store_ref", "put", "put_many", "put_nowait", "options", "begin_offset", "end_offset",
        "durable_offset", "check", "get", "empty", "consume", "stop", "topic", "maxsize", "full", "sync", "read",
        "scan", "offset_at", "channel", "channels", "delete_channel", "topic_stats", "task_done", "shutdown", "aclose",
        "not_awaited", "transaction", "queue",
    }  # fmt: skip
    assert inherited <= fine


async def test_a_message_is_settled_by_its_own_methods(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await other.put(b"a", tag="t", key=b"k", headers={"h": "v"})
        assert await queue.put_many([b"b", b"c", b"d", b"e"]) == range(1, 5)
        message = await queue.get()
        assert (message.body, message.offset, message.tag, message.key, message.attempts) == (b"a", 0, "t", b"k", 1)
        assert (dict(message.headers), message.channel, message.held) == ({"h": "v"}, "default", True)
        await message.ack()
        assert await counts(other) == (4, 0, 0)
        assert not message.held
        with pytest.raises(aiodq.AlreadySettledError):
            await message.ack()
        async with await queue.get():
            pass
        with pytest.raises(KeyError):
            async with await queue.get():
                raise KeyError
        again = await queue.get()
        assert (again.body, again.attempts) == (b"c", 2)
        again.release()
        rejected = await queue.get()
        await rejected.reject("no")
        assert await counts(queue) == (2, 0, 0)
        await (await queue.get()).nack(60)
        assert await counts(other) == (1, 0, 1)
        [left] = await queue.get_many(10)
        assert (left.body, left.attempts) == (b"e", 1)
        await queue.ack_many([left])
        assert await counts(queue) == (0, 0, 1)


async def test_a_get_that_is_cancelled_takes_nothing(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        for _ in range(20):
            getting = asyncio.ensure_future(queue.get())
            await asyncio.sleep(0)
            offset = await other.put(b"x")
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            message = getting.result() if not getting.cancelled() else await other.get()
            assert message.offset == offset
            await message.ack()
        assert await counts(other) == (0, 0, 0)


async def test_who_does_not_wait_any_more_has_nothing_sent(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await queue.refresh()
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.05)
        await queue.refresh()
        await other.put(b"x")
        assert await counts(other) == (1, 0, 0)
        sessions = owner._store_engine.owner.clients  # type: ignore[attr-defined]  # it stands in its place
        assert [one._given for each in sessions for one in each.handles.lendings.values()] == [0, 0]


async def test_those_who_wait_get_one_each_and_no_more_is_taken(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        getting = [asyncio.ensure_future(queue.get()) for _ in range(5)]
        await asyncio.sleep(0.01)
        await other.put_many([b"%d" % n for n in range(9)])
        messages = await asyncio.gather(*getting)
        assert [message.body for message in messages] == [b"%d" % n for n in range(5)]
        assert await counts(other) == (4, 5, 0)
        assert [message.body for message in await queue.get_many(3)] == [b"5", b"6", b"7"]
        async with asyncio.timeout(PATIENCE):
            while await counts(other) != (1, 8, 0):  # what crossed on the way goes back
                await asyncio.sleep(0.002)


async def test_get_nowait_asks_for_one_that_a_later_call_finds(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await owner.queue("jobs").put_many([b"x", b"y"])
        with pytest.raises(aiodq.QueueEmpty):
            queue.get_nowait()
        found: list[aiodq.Message] = []

        def look() -> bool:
            try:
                found.append(queue.get_nowait())
            except aiodq.QueueEmpty:
                return False
            return True

        await until(look)
        assert found[0].body == b"x"


@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_a_get_that_is_not_to_wait_finds_what_the_owner_has(tmp_path: Path, whose: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue, other = (owner if whose == "owner" else client).queue("jobs"), owner.queue("jobs")
        with pytest.raises(TimeoutError):
            await queue.get(0)
        await other.put_many([b"a", b"b", b"c", b"d"])
        found = [await queue.get(timeout) for timeout in (0, -1, 0)]
        assert [message.body for message in found] == [b"a", b"b", b"c"]
        await queue.refresh()
        assert (queue.qsize(), queue.in_flight()) == (1, 3)
        assert (await other.get()).body == b"d"  # nobody asks for one any more
        with pytest.raises(TimeoutError):
            await queue.get(0)
        queue.shutdown()
        with pytest.raises(aiodq.QueueShutDown):
            while True:
                with suppress(TimeoutError):
                    await queue.get(0)


@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_a_get_that_is_not_to_wait_finds_what_the_owner_has_to_read_first(tmp_path: Path, whose: str) -> None:
    async with aiodq.open_queue(tmp_path / "s") as queue:
        for _ in range(3):
            await queue.put_many([bytes(100_000)] * 30)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = (owner if whose == "owner" else client).queue("queue")
        assert [(await queue.get(0)).offset for _ in range(90)] == list(range(90))
        with pytest.raises(TimeoutError):
            await queue.get(0)


@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_who_does_not_wait_is_told_each_time_that_a_drained_store_gives_nothing_more(
    tmp_path: Path, whose: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue, other = (owner if whose == "owner" else client).queue("jobs"), owner.queue("jobs")
        await other.put_many([b"a", b"b"])
        held = await other.get()
        await client.drain(0)
        assert (await queue.get(0)).body == b"b"
        with pytest.raises(aiodq.QueueShutDown):
            await queue.get()
        for _ in range(5):
            with pytest.raises(aiodq.QueueShutDown):
                await queue.get(0)
        await held.nack()
        assert (await queue.get(0)).body == b"a"


async def test_a_get_that_is_not_to_wait_finds_one_beside_others_that_wait(tmp_path: Path) -> None:
    """The owner's task that waits for them has its turn only after what was asked was answered."""
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        waiting = asyncio.create_task(queue.get())
        await queue.refresh()
        await other.put_many([b"a", b"b"])
        found = [await queue.get(0), await waiting]
        assert sorted(message.body for message in found) == [b"a", b"b"]


async def test_nothing_is_left_of_a_channel_once_it_is_known_to_be_empty(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put_many([b"x"] * 3)
        await until(lambda: queue.stats().oldest_ns is not None)
        await queue.purge()
        await queue.refresh()
        stats = queue.stats()
        assert (stats.depth, stats.oldest_ns, stats.backlog_bytes) == (0, None, 0)


async def test_get_nowait_asks_for_the_next_one_as_soon_as_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For however long a message is kept that was asked for: once it is taken, another is."""
    monkeypatch.setattr("aiodq.shared.consuming.demand._KEPT", 10 * PATIENCE)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        await owner.queue("jobs").put_many([b"%d" % number for number in range(9)])
        queue, found = client.queue("jobs"), list[aiodq.Message]()
        while len(found) < 9:
            try:
                found.append(queue.get_nowait())
            except aiodq.QueueEmpty:
                await asyncio.sleep(0.001)
        assert [message.body for message in found] == [b"%d" % number for number in range(9)]
        assert [message.attempts for message in found] == [1] * 9


async def polled(queue: aiodq.Queue) -> list[aiodq.Message]:
    """Take messages with `get_nowait` until the queue is shut down, and requeue the last one once."""
    found = list[aiodq.Message]()
    while True:
        try:
            message = queue.get_nowait()
        except aiodq.QueueEmpty:
            await asyncio.sleep(0.001)
        except aiodq.QueueShutDown:
            if found[-1].settled:
                return found
            await found[-1].nack()
        else:
            if found and not found[-1].settled:
                await found[-1].ack()
            found.append(message)
            if message.attempts > 1:
                await message.ack()


@pytest.mark.parametrize("how", ["shutdown", "drain"])
@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_who_polls_gets_what_is_ready_and_is_told_of_the_end(tmp_path: Path, whose: str, how: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        store = owner if whose == "owner" else client
        queue = store.queue("jobs")
        await queue.put_many([b"a", b"b", b"c"])
        if how == "shutdown":
            queue.shutdown()
            found = await polled(queue)
        else:
            drained, found = await asyncio.gather(store.drain(), polled(queue))
            assert drained
        assert [(message.body, message.attempts) for message in found] == [(b"a", 1), (b"b", 1), (b"c", 1), (b"c", 2)]
        with pytest.raises(aiodq.QueueShutDown):
            queue.get_nowait()


async def test_the_end_of_a_queue_is_looked_for_anew_by_who_asks_later(tmp_path: Path) -> None:
    """What was deferred may be due by now: who consumes a queue that was shut down gets it all, as in one process."""
    clock = FakeClock()
    async with two(tmp_path / "s", QUICK, clock=clock) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put_many([aiodq.Draft(b"%d" % number, delay=5.0) for number in range(3)])
        queue.shutdown()
        assert [message async for message in queue] == []
        clock.advance(5.0)
        found = list[bytes]()
        async for message in queue:
            found.append(message.body)
            await message.ack()
        assert found == [b"0", b"1", b"2"]
        with pytest.raises(aiodq.QueueShutDown):
            await queue.get(0)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_a_put_that_waits_for_room_at_the_owner_while_the_wall_clock_jumps_is_in_time(
    tmp_path: Path, jump: float
) -> None:
    clock, options = FakeClock(SystemClock().now_ns()), replace(QUICK, max_messages=1)
    async with two(tmp_path / "s", options, clock=clock) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"1")
        putting = asyncio.create_task(queue.put(b"later", delay=3600))
        assert await counts(queue) == (1, 0, 0)
        clock.advance(1800)
        clock.jump(jump)
        await (await queue.get()).ack()
        await putting
        clock.advance(1700)
        assert await counts(queue) == (0, 0, 1)
        clock.advance(200)
        assert (await queue.get()).body == b"later"


async def test_who_asks_again_at_once_after_a_drain_is_told_again(tmp_path: Path) -> None:
    """In the same turn of the loop, before what it had asked for is withdrawn."""
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue, told = client.queue("jobs"), list[str]()

        async def ask() -> None:
            while len(told) < 3:
                with pytest.raises(aiodq.QueueShutDown) as shut:
                    await queue.get()
                told.append(str(shut.value))

        asking = asyncio.create_task(ask())
        await queue.refresh()
        assert await client.drain()
        await asking
        assert len(set(told)) == 1


@pytest.mark.parametrize("whose", ["owner", "client"])
async def test_who_does_not_wait_is_told_of_the_end_whenever_he_asks_after_a_drain(tmp_path: Path, whose: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        store = owner if whose == "owner" else client
        queue = store.queue("jobs")
        await queue.put(b"a")
        await (await queue.get()).ack()
        assert await owner.drain()
        for _ in range(4):
            with pytest.raises(aiodq.QueueShutDown):
                await queue.get(0)


async def test_who_requeues_a_message_as_a_drain_ends_the_getters_gets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has said that nothing is ready before it knew of that."""
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        held = [await queue.get()]
        getter = asyncio.create_task(queue.get())
        await queue.refresh()
        has_nothing = RemoteChannel._has_nothing

        def requeued(self: RemoteChannel, error: Exception) -> None:
            while held:
                held.pop().nack_nowait()
            has_nothing(self, error)

        monkeypatch.setattr(RemoteChannel, "_has_nothing", requeued)
        draining = asyncio.create_task(client.drain())
        again = await getter
        assert (again.body, again.attempts) == (b"x", 2)
        await again.ack()
        assert await draining
        with pytest.raises(aiodq.QueueShutDown):
            await queue.get()


@pytest.mark.parametrize("immediate", [True, False])
async def test_a_shutdown_ends_more_getters_than_are_woken_in_one_turn(tmp_path: Path, *, immediate: bool) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        getters = [asyncio.create_task(queue.get()) for _ in range(2 * MOST_AT_ONCE + 1)]
        await queue.refresh()
        queue.shutdown(immediate=immediate)
        ends = await asyncio.gather(*getters, return_exceptions=True)
        assert {type(end) for end in ends} == {aiodq.QueueShutDown}


async def test_the_end_of_a_queue_is_looked_for_only_as_long_as_somebody_waits(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.pause()
        await queue.put(b"x")
        queue.shutdown()
        getter = asyncio.create_task(queue.get())
        await queue.refresh()
        looking = queue._remote._ends  # type: ignore[attr-defined]  # it is one of a store that is shared
        getter.cancel()
        await asyncio.wait([getter, looking])
        getter = asyncio.create_task(queue.get())
        await owner.queue("jobs").purge()
        with pytest.raises(aiodq.QueueShutDown):
            await getter


async def one_here(queue: aiodq.Queue) -> None:
    """Have a message here that was asked for, and that nobody has taken."""
    await queue.put(b"0")
    with pytest.raises(aiodq.QueueEmpty):
        queue.get_nowait()
    await until(lambda: queue._remote._ready)  # type: ignore[attr-defined]  # it is one of a store that is shared


async def test_get_many_asks_for_more_though_one_is_here(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await one_here(queue)
        await owner.queue("jobs").put_many([b"1", b"2"])
        await queue.refresh()
        assert [message.body for message in await queue.get_many(3)] == [b"0", b"1", b"2"]


async def test_get_many_ends_as_the_queue_is_stopped_though_more_has_come_than_is_given_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "BACK_AT_ONCE", 1)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await one_here(queue)
        await owner.queue("jobs").put_many([b"1", b"2", b"3"])
        await queue.refresh()
        refresh = RemoteChannel.refresh

        async def stopped(self: RemoteChannel, *, bring: bool = False) -> Mapping[str, Any]:
            answer = await refresh(self, bring=bring)
            queue.shutdown(immediate=True)
            return answer

        monkeypatch.setattr(RemoteChannel, "refresh", stopped)
        assert [message.body for message in await queue.get_many(10)] == [b"0"]
        given_back = [(await owner.queue("jobs").get()).body for _ in range(3)]
        assert sorted(given_back) == [b"1", b"2", b"3"]


async def test_a_transaction_puts_into_a_queue_that_is_shut_down_here_only_if_it_acks(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        queue.shutdown()
        with pytest.raises(aiodq.QueueShutDown):
            async with client.transaction() as tx:
                tx.put("jobs", b"y")
        async with client.transaction() as tx, await queue.get():
            tx.put("jobs", b"z")
        assert [message.body async for message in queue.topic.scan()][-1] == b"z"


async def test_waits_shorter_than_the_way_to_the_owner_find_a_message(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        await owner.queue("jobs").put_many([b"x", b"y"])
        queue, found = client.queue("jobs"), list[bytes]()
        while len(found) < 2:
            try:
                found.append((await queue.get(timeout=1e-6)).body)
            except TimeoutError:
                await asyncio.sleep(0.001)
        assert found == [b"x", b"y"]


async def test_messages_go_round_among_processes(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        seen: dict[str, int] = {"owner": 0, "client": 0}

        def handler(name: str) -> Callable[[aiodq.Message], Any]:
            async def handle(_: aiodq.Message) -> None:
                seen[name] += 1
                await asyncio.sleep(0)

            return handle

        queues = {"owner": owner.queue("jobs"), "client": client.queue("jobs")}
        consuming = [asyncio.create_task(queue.consume(handler(name))) for name, queue in queues.items()]
        await asyncio.gather(*(client.queue("jobs").put(b"%d" % n) for n in range(60)))
        await queues["client"].join()
        assert sum(seen.values()) == 60
        assert min(seen.values()) >= 10
        for queue in queues.values():
            await queue.stop()
        await asyncio.gather(*consuming)


@pytest.mark.parametrize("grace", [PATIENCE, 0])
async def test_a_process_stops_and_leaves_the_store_to_the_others(tmp_path: Path, grace: float) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await queue.put_many([b"a", b"b"])
        begun, go = asyncio.Event(), asyncio.Event()

        async def handle(_: aiodq.Message) -> None:
            begun.set()
            await go.wait()

        consuming = asyncio.create_task(queue.consume(handle))
        await begun.wait()
        stopping = asyncio.create_task(client.stop(grace))
        if grace:
            await counts(other)
            assert not stopping.done()
            go.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(stopping, consuming)
        with pytest.raises(aiodq.QueueShutDown):
            await queue.put(b"c")
        left = [b"b"] if grace else [b"a", b"b"]
        assert await counts(other) == (len(left), 0, 0)
        again = [
            await other.get() for _ in left
        ]  # `get_many` takes what has arrived here, and may have come in two runs
        assert [(message.body, message.attempts) for message in again] == [(body, 1) for body in left]


async def test_a_run_of_which_something_was_taken_away_is_not_acked(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await queue.put_many([b"a", b"b", b"c"])
        messages = await queue.get_many(3)
        await other.seek(2)
        await until(lambda: not messages[0].held)
        with pytest.raises(aiodq.NotInFlightError):
            await queue.ack_many(messages)
        assert await counts(other) == (1, 0, 0)


async def test_a_message_is_kept_until_the_last_of_those_who_renew_it_ends(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"a")
        message, renewed = await queue.get(), queue._remote._timeouts._renewed  # type: ignore[attr-defined]  # a shared queue's
        async with message.renewing():
            async with message.renewing():
                assert list(renewed.values()) == [2]
            assert list(renewed.values()) == [1]
        assert renewed == {}


async def test_put_nowait_and_receipts(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs", options=aiodq.StoreOptions(sync="os", max_messages=3, overflow="reject"))
        receipts = [queue.put_nowait(b"%d" % n) for n in range(3)]
        assert [await receipt for receipt in receipts] == [0, 1, 2]
        assert queue.full()
        with pytest.raises(aiodq.QueueFull):
            queue.put_nowait(b"x")
        with pytest.raises(aiodq.QueueFull):
            await queue.put(b"x")
        with pytest.raises(aiodq.MessageSizeError):
            await queue.put(b"x" * (17 << 20))
        with pytest.raises(aiodq.InvalidMessageTypeError):
            await queue.put("text")  # type: ignore[arg-type]


async def test_a_put_waits_for_room_and_goes_on(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs", options=aiodq.StoreOptions(sync="os", max_messages=2))
        putting = [asyncio.ensure_future(queue.put(b"%d" % n)) for n in range(4)]
        await until(lambda: sum(put.done() for put in putting) == 2)
        for n in range(4):
            async with await owner.queue("jobs").get() as message:
                assert message.body == b"%d" % n
        assert await asyncio.gather(*putting) == [0, 1, 2, 3]


async def test_a_put_that_waits_for_room_holds_up_no_closing(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs", options=aiodq.StoreOptions(sync="os", max_messages=1))
        await queue.put(b"a")
        putting = asyncio.create_task(queue.put(b"b"))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE):
            await client.aclose()
        with pytest.raises(aiodq.QueueShutDown):
            await putting
        assert await counts(owner.queue("jobs")) == (1, 0, 0)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_message_given_up_is_not_counted_as_requeued(tmp_path: Path, mode: Any) -> None:
    async with aiodq.open(tmp_path / "s", mode=mode) as store, asyncio.timeout(PATIENCE):
        jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=2))
        await jobs.put(b"x")
        for _ in range(2):
            await (await jobs.get()).nack()
        await until(lambda: jobs.stats().dead)
        assert (jobs.stats().requeued, jobs.stats().dead, jobs.depth) == (1, 1, 0)


async def test_handlers_that_fail_and_dead_letters(tmp_path: Path) -> None:
    channel = aiodq.ChannelOptions(max_attempts=2, dead_letter="dead", backoff=aiodq.Backoff(first=0.001, limit=0.002))
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue, attempts = client.queue("jobs", channel), []

        async def handler(message: aiodq.Message) -> None:
            attempts.append((message.body, message.attempts))
            if message.body == b"bad":
                raise KeyError("why")
            if message.body == b"worse":
                raise aiodq.Reject("never")

        consuming = asyncio.create_task(queue.consume(handler))
        letters = client.queue("dead")
        for body in (b"good", b"bad", b"worse"):
            await queue.put(body)
        found = {letter.body: letter for letter in [await letters.get(), await letters.get()]}
        assert sorted(attempts) == [(b"bad", 1), (b"bad", 2), (b"good", 1), (b"worse", 1)]
        assert found[b"bad"].headers["aiodq-error"] == "KeyError: 'why'"
        assert found[b"bad"].headers["aiodq-reason"] == "delivered 2 times"
        assert (found[b"worse"].headers["aiodq-reason"], found[b"bad"].headers["aiodq-attempts"]) == ("never", "2")
        await queue.stop()
        await consuming
        for letter in found.values():
            await letter.nack()
        assert await client.requeue_dead("dead", limit=1) == 1


async def test_a_clock_set_back_while_puts_wait_for_an_owner_prolongs_no_wait(tmp_path: Path) -> None:
    clock = FakeClock()
    async with aiodq.open(tmp_path, QUICK, mode="shared", clock=clock):
        client = await aiodq.open(tmp_path, mode="client", clock=clock)
        queue = client.queue("jobs")
        await queue.refresh()
    putting = [
        asyncio.create_task(queue.put(b"later", delay=5)),
        asyncio.create_task(queue.put_many([b"over"], ttl=5)),
        asyncio.create_task(put_in_transaction(client, "jobs", b"also later", delay=5)),
    ]
    await until(lambda: queue.topic.stats().pending == 2)
    clock.jump(-3600)
    async with aiodq.open(tmp_path, QUICK, mode="shared", clock=clock), asyncio.timeout(PATIENCE):
        await asyncio.gather(*putting)
        clock.advance(5)
        found = await queue.get_many(2, linger=PATIENCE)
        assert {message.body for message in found} == {b"later", b"also later"}
        await queue.ack_many(found)
        assert await counts(queue) == (0, 0, 0)
        await client.aclose()


async def put_in_transaction(store: aiodq.Store, topic: str, body: bytes, *, delay: float) -> None:
    async with store.transaction() as tx:
        tx.put(topic, body, delay=delay)


async def test_a_message_times_out_and_its_holder_is_told(tmp_path: Path) -> None:
    clock = FakeClock()
    async with two(tmp_path / "s", QUICK, clock=clock) as (_, client):
        queue = client.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
        await queue.put(b"x")
        message = await queue.get()
        clock.advance(5)
        again = await queue.get()
        assert (again.body, again.attempts) == (b"x", 2)
        await again.ack()
        await until(lambda: not message.held)
        with pytest.raises(aiodq.NotInFlightError, match=r"visibility_timeout.*`message\.renewing\(\)`"):
            await message.ack()
        assert await counts(queue) == (0, 0, 0)


async def test_what_is_worked_off_does_not_time_out(tmp_path: Path) -> None:
    clock, done = FakeClock(), asyncio.Event()
    async with two(tmp_path / "s", QUICK, clock=clock) as (_, client):
        queue, calls = client.queue("jobs", aiodq.ChannelOptions(visibility_timeout=0.4)), []

        async def handler(message: aiodq.Message) -> None:
            calls.append(message.attempts)
            await done.wait()

        consuming = asyncio.create_task(queue.consume(handler))
        await queue.put(b"x")
        await until(lambda: calls)
        touch = ChannelEngine.touch
        with mock.patch.object(ChannelEngine, "touch", autospec=True, side_effect=touch) as touched:
            for _ in range(4):
                before = touched.call_count
                clock.advance(0.3)  # the owner's time goes on only when the client has told that it works on it
                while touched.call_count == before:
                    await asyncio.sleep(0.002)
        assert calls == [1]
        done.set()
        await queue.join()
        await queue.stop()
        await consuming
        assert calls == [1]


# --- what is asked of the owner


async def test_history_is_read_from_the_files(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        topic = client.topic("log", aiodq.StoreOptions(sync="os", retention=aiodq.Retention(consumed="keep")))
        assert [message.body async for message in topic.scan()] == []
        with pytest.raises(aiodq.OffsetError):
            await topic.read(0)
        before = datetime.now(UTC)
        await topic.put_many([b"%d" % n for n in range(500)])
        assert (await topic.read(7)).body == b"7"
        assert [message.offset async for message in topic.scan()] == list(range(500))
        assert [message.offset async for message in topic.scan(3, 6)] == [3, 4, 5]
        assert [message.offset async for message in topic.scan(3, 6, reverse=True)] == [5, 4, 3]
        assert await topic.offset_at(before - timedelta(hours=1)) == 0
        assert await topic.offset_at(before + timedelta(hours=1)) == 500
        with pytest.raises(aiodq.OffsetError):
            await topic.read(500)
        assert (topic.begin_offset, topic.end_offset) == (0, 500)
        await topic.sync()
        await until(lambda: topic.durable_offset == 500)


async def test_rare_calls(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        keep = aiodq.StoreOptions(sync="os", retention=aiodq.Retention(consumed="keep"))
        queue, other = client.queue("jobs", options=keep), owner.queue("jobs")
        await queue.put_many([b"a", b"b", b"c"])
        peeked = await queue.peek()
        assert peeked is not None
        assert peeked.body == b"a"
        await queue.put(b"later", delay=60)
        [waiting] = [message async for message in queue.deferred_messages()]
        assert (waiting.body, waiting.offset) == (b"later", 3)
        assert timedelta(seconds=50) < waiting.due - datetime.now(UTC) < timedelta(seconds=61)
        await queue.cancel(3)
        assert await counts(other) == (3, 0, 0)
        with pytest.raises(aiodq.OffsetError):
            await queue.cancel(3)
        message = await queue.get()
        await queue.seek("latest")
        assert await counts(other) == (0, 0, 0)
        await until(lambda: not message.held)
        with pytest.raises(aiodq.NotInFlightError):
            await message.ack()
        await queue.seek(1)
        assert (await queue.get()).body == b"b"
        with pytest.raises(aiodq.OffsetError):
            await queue.seek(99)
        await queue.pause()
        assert queue.paused
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.05)
        await queue.resume()
        assert (await queue.get(timeout=PATIENCE)).body == b"c"
        await queue.configure(aiodq.ChannelOptions(max_in_flight=7))
        assert queue.options.max_in_flight == 7
        await queue.configure(replace(keep, max_messages=9))
        await until(lambda: queue.maxsize == other.maxsize == 9)


async def test_all_that_is_deferred_is_shown_though_it_is_given_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.requests.calls._PAGE", 3)
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(7)], delay=60)
        await queue.put(b"7", delay=30)
        shown: list[int] = []
        async for message in queue.deferred_messages():
            shown.append(message.offset)
            await queue.cancel(message.offset)
        assert shown == [7, *range(7)]
        assert await counts(queue) == (0, 0, 0)


async def test_channels_and_topics_are_deleted(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        keep = aiodq.StoreOptions(sync="os", retention=aiodq.Retention(consumed="keep"))
        queue = client.queue("jobs", options=keep)
        await queue.put_many([b"a", b"b", b"c", b"d"])
        channel = queue.channel("second")
        await client.topic("jobs").settle_in()
        assert await channel.purge() == 0
        await client._store_engine.report.look_once()  # type: ignore[attr-defined]  # what it knows of the whole store
        assert set(queue.topic_stats().channels) == set(queue.channels()) == {"default", "second"}
        await queue.delete_channel("second")
        assert queue.channels() == ["default"]
        with pytest.raises(aiodq.QueueShutDown):
            await channel.get()
        assert await queue.purge() > 0
        assert client.topics() == ["jobs"]
        stats = client.stats()
        assert set(stats.topics) == {"jobs"}
        assert client.health().ok
        assert queue.topic_stats().end_offset == 4
        await client.delete_topic("jobs")
        assert client.topics() == []
        with pytest.raises(aiodq.QueueShutDown):
            await queue.put(b"x")
        assert await client.queue("jobs").put(b"anew") == 0


async def test_who_waits_in_a_channel_that_another_deletes_is_told(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        channel = client.topic("jobs").channel("c")
        getting = asyncio.create_task(channel.get())
        await asyncio.sleep(0.05)
        await owner.topic("jobs").delete_channel("c")
        with pytest.raises(aiodq.QueueShutDown):
            async with asyncio.timeout(PATIENCE):
                await getting


async def test_a_queue_is_shut_down_for_its_own_process(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await queue.put_many([b"a", b"b"])
        queue.shutdown()
        assert (await queue.get()).body == b"a"
        assert [message.body async for message in queue] == [b"b"]
        with pytest.raises(aiodq.QueueShutDown):
            await queue.get()
        with pytest.raises(aiodq.QueueShutDown):
            await queue.put(b"c")
        await other.put(b"d")
        assert (await other.get()).body == b"d"


async def test_who_joins_a_queue_shut_down_at_once_waits_for_its_own_process_alone(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await queue.put_many([b"a", b"b", b"c"])
        theirs, mine = await other.get(), await queue.get()
        joining = asyncio.create_task(queue.join())
        await asyncio.sleep(0.05)
        queue.shutdown(immediate=True)
        await asyncio.sleep(0.05)
        assert not joining.done()
        await mine.ack()
        await joining
        assert not theirs.settled


async def test_who_joins_a_queue_shut_down_at_once_waits_for_nothing_that_was_taken_away(tmp_path: Path) -> None:
    clock = FakeClock()
    async with two(tmp_path / "s", QUICK, clock=clock) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
        await queue.put(b"x")
        message = await queue.get()
        joining = asyncio.create_task(queue.join())
        await asyncio.sleep(0)
        queue.shutdown(immediate=True)
        await queue.refresh()
        assert not joining.done()
        clock.advance(5)
        await joining
        assert not message.held


async def test_what_is_only_for_one_process_says_so(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as stores:
        for store in stores:
            await store.topic("t#ephemeral").put(b"x")
            with pytest.raises(aiodq.ExclusiveOnlyError, match=r"exclusive|shared"):
                await store.topic("t#ephemeral").read(0)


# --- options


async def test_options_that_differ_name_the_field(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store:
        with pytest.raises(aiodq.InvalidOptionError, match=r"sync='os'.*sync='always'"):
            await aiodq.open(tmp_path / "s", aiodq.StoreOptions(), mode="client")
        store.topic("t", aiodq.StoreOptions(sync="os", max_messages=5))
        store.topic("t").channel("c", aiodq.ChannelOptions(max_in_flight=3))
        await store.topic("t").settle_in()
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            topic = client.topic("t", aiodq.StoreOptions(sync="os", max_messages=6))
            with pytest.raises(aiodq.InvalidOptionError, match=r"max_messages=5 since the store.*max_messages=6"):
                await topic.settle_in()
            with pytest.raises(aiodq.InvalidOptionError, match=r"max_messages"):
                await topic.put(b"x")
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            topic = client.topic("t")
            await topic.settle_in()
            assert topic.options.max_messages == 5
            channel = topic.channel("c", aiodq.ChannelOptions(max_in_flight=4))
            with pytest.raises(aiodq.InvalidOptionError, match=r"max_in_flight=3 since the store.*max_in_flight=4"):
                await channel.get()
            with pytest.raises(aiodq.InvalidOptionError, match=r"max_in_flight"):
                topic.channel("c", aiodq.ChannelOptions(max_in_flight=5))


async def test_options_named_later_are_the_owners_too(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        client.topic("t")
        options = aiodq.StoreOptions(sync="os", max_messages=1, overflow="reject")
        topic = client.topic("t", options)
        await topic.put(b"x")
        await owner.topic("t").settle_in()
        channel = client.topic("t").channel("c")
        client.topic("t").channel("c", aiodq.ChannelOptions(max_in_flight=2))
        await topic.settle_in()
        await channel.refresh()
        with pytest.raises(aiodq.QueueFull):
            await owner.topic("t").put(b"y")
        with pytest.raises(aiodq.InvalidOptionError, match=r"max_messages=1.*max_messages=2"):
            client.topic("t", aiodq.StoreOptions(sync="os", max_messages=2))


# --- the end of an owner


async def test_an_owner_that_closes_hands_over(tmp_path: Path) -> None:
    first = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as second:
        queue = second.queue("jobs")
        await queue.put_many([b"a", b"b"])
        held = await queue.get()
        waiting = asyncio.create_task(second.queue("empty").get())
        await asyncio.sleep(0.01)
        await first.aclose()
        assert await queue.put(b"c") == 2
        await held.ack()
        assert (await queue.get()).body == b"b"
        await second.queue("empty").put(b"at last")
        assert (await waiting).body == b"at last"
        assert second.stats().failed is None
        with pytest.raises(aiodq.QueueShutDown):
            await first.queue("jobs").put(b"x")


@pytest.mark.parametrize("attempts", [None, 1])
async def test_what_was_here_and_nobody_had_taken_is_delivered_by_the_next_owner(
    tmp_path: Path, attempts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.consuming.demand._KEPT", 3600)
    first = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as second:
        queue = second.queue("jobs", aiodq.ChannelOptions(max_attempts=attempts))
        await queue.put_many([b"a", b"b"])
        with pytest.raises(aiodq.QueueEmpty):
            queue.get_nowait()
        await until(lambda: queue._remote._ready)  # type: ignore[attr-defined]  # a shared queue's
        await first.aclose()
        async with asyncio.timeout(PATIENCE):
            while await counts(queue) != (2, 0, 0):
                await asyncio.sleep(0.002)
        messages = await queue.get_many(2, linger=PATIENCE)
        assert [(message.body, message.attempts) for message in messages] == [(b"a", 1), (b"b", 1)]


async def test_what_was_given_back_as_the_owner_went_comes_before_what_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_release", lambda *_: None)  # it is gone before it gets to that
        first = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        second = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        queue = second.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(6)])
        messages = await queue.get_many(4)
    async with second, asyncio.timeout(PATIENCE):
        for message in messages[:2]:
            message.release()
        await first.aclose()
        assert [message.offset for message in await queue.get_many(4, linger=PATIENCE)] == [0, 1, 4, 5]
        await queue.ack_many(messages[2:])
        assert await counts(queue) == (0, 4, 0)


@pytest.mark.parametrize("dead_letter", [None, "dead"])
async def test_what_outlives_its_time_in_a_hand_stays_there_when_the_owner_ends(
    tmp_path: Path, dead_letter: str | None
) -> None:
    clock, options = FakeClock(), aiodq.ChannelOptions(dead_letter=dead_letter, visibility_timeout=None)
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared", clock=clock)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared", clock=clock) as other:
        queue = other.queue("jobs", options)
        await queue.put_many([b"in hand", b"not"], ttl=5)
        message = await queue.get()
        clock.advance(10)
        async with asyncio.timeout(PATIENCE):
            while await counts(queue) != (0, 1, 0):
                await asyncio.sleep(0.002)
        await owner.aclose()
        await message.ack()
        assert await counts(queue) == (0, 0, 0)
        letters = [letter.body async for letter in other.topic("dead").scan()] if dead_letter else []
        assert letters == [b"not"] * len(letters)


async def test_what_was_touched_for_long_is_kept_for_as_long_when_the_owner_ends(tmp_path: Path) -> None:
    clock, options = FakeClock(), aiodq.ChannelOptions(visibility_timeout=5)
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared", clock=clock)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared", clock=clock) as other:
        queue = other.queue("jobs", options)
        await queue.put_many([b"long", b"long and no more", b"no"])
        messages = await queue.get_many(3)
        for message in messages[:2]:
            await message.touch(3600)
        await messages[1].touch()
        await owner.aclose()
        async with asyncio.timeout(PATIENCE):
            while await counts(queue) != (0, 3, 0):
                await asyncio.sleep(0.002)
        await until(lambda: queue._channel_engine.claimed)  # type: ignore[attr-defined]  # a remote one is in its place
        await queue.refresh()
        clock.advance(10)
        again = await queue.get_many(2)
        assert [message.body for message in again] == [b"long and no more", b"no"]
        await messages[0].ack()
        await queue.ack_many(again)
        assert await counts(queue) == (0, 0, 0)


async def test_what_is_in_a_hand_is_not_dropped_for_room_when_the_owner_ends(tmp_path: Path) -> None:
    three = aiodq.StoreOptions(sync="os", max_messages=3, overflow="drop_oldest")
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="client") as holding,
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as putting,
    ):
        queue, other = holding.queue("jobs", options=three), putting.queue("jobs", options=three)
        await queue.put(b"in hand")
        message = await queue.get()

        closing = asyncio.create_task(owner.aclose())
        async with asyncio.timeout(PATIENCE):
            while not closing.done():
                await other.put(b"before, amid or after the change")
            for _ in range(3):
                await other.put(b"after")
        await message.ack()
        assert await counts(other) == (2, 0, 0)


async def test_puts_go_on_while_owners_come_and_go(tmp_path: Path) -> None:
    first = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as store,
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as putter,
    ):
        queue = store.queue("jobs")
        putting = asyncio.create_task(put_one_by_one(putter.queue("jobs"), 200))
        await asyncio.sleep(0.02)
        await first.aclose()
        offsets = await putting
        assert offsets == sorted(set(offsets))
        assert [message.body async for message in queue.scan()] == [b"%d" % n for n in range(200)]


async def put_one_by_one(queue: aiodq.Queue, count: int) -> list[int]:
    return [await queue.put(b"%d" % n) for n in range(count)]


# --- bad input


@pytest.mark.parametrize("mode", ["Shared", "", "owner", None, 3])
async def test_a_mode_that_is_none(tmp_path: Path, mode: Any) -> None:
    kind = aiodq.InvalidOptionTypeError if not isinstance(mode, str) else aiodq.InvalidOptionError
    for opening in (aiodq.open, aiodq.open_queue):
        with pytest.raises(kind, match="mode"):
            opening(tmp_path / "s", mode=mode)


@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
async def test_a_client_waits_for_who_makes_the_store(tmp_path: Path, there: bool) -> None:
    """As where a service and its workers start at the same moment, for the first time."""
    path = tmp_path / "s"
    if there:
        path.mkdir()
    opening = asyncio.create_task(aiodq.open_queue(path, mode="client", failover=PATIENCE)._open())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not opening.done()
    assert path.exists() is there  # it has made nothing itself
    async with aiodq.open_queue(path, mode="shared") as owner:
        client = await opening
        await client.put(b"x")
        assert (await owner.get()).body == b"x"
        await client.aclose()


async def test_a_client_of_no_store_and_of_no_owner(tmp_path: Path) -> None:
    for path in tmp_path / "none", tmp_path:
        with pytest.raises(aiodq.StoreNotFoundError, match=r"meanwhile.*aiodq serve"):
            await aiodq.open(path, mode="client", failover=0.1)
        with pytest.raises(aiodq.StoreNotFoundError):
            await aiodq.open(path, mode="client", create=False)
        with pytest.raises(aiodq.StoreNotFoundError):
            await aiodq.open(path, mode="shared", create=False)
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("t").put(b"x")
    with pytest.raises(aiodq.OwnerLostError, match=r"0\.1 s") as raised:
        await aiodq.open(tmp_path / "s", mode="client", failover=0.1)
    assert raised.value.retriable
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for mode in ("client", "shared"):
        with pytest.raises(aiodq.NotAStoreError):
            await aiodq.open(tmp_path / "other", mode=mode)


async def test_a_store_that_somebody_has_alone(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s"):
        for mode in ("shared", "client"):
            with pytest.raises((aiodq.StoreLockedError, aiodq.OwnerLostError)) as raised:
                await aiodq.open(tmp_path / "s", mode=mode, failover=0.1)
            if mode == "shared":
                assert isinstance(raised.value, aiodq.StoreLockedError)
                assert raised.value.pid == os.getpid()
    async with aiodq.open(tmp_path / "s", mode="shared"):
        with pytest.raises(aiodq.StoreLockedError):
            await aiodq.open(tmp_path / "s")


async def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / ("e" * 100)
    path.parent.mkdir()
    async with two(path, QUICK) as (_, client):
        assert await client.queue("jobs").put(b"x") == 0


async def test_something_else_on_the_socket(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.topic("t").put(b"x")
    path = tmp_path / "s" / SOCKET
    path.write_bytes(b"a file")
    with pytest.raises(aiodq.ProtocolError, match="no socket"):
        await aiodq.open(tmp_path / "s", mode="client", failover=0.1)
    path.unlink()

    async def junk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    os.chdir(tmp_path / "s")
    server = await asyncio.start_unix_server(junk, SOCKET)
    with pytest.raises(aiodq.ProtocolError):
        await aiodq.open(tmp_path / "s", mode="client", failover=1)
    server.close()
    await server.wait_closed()
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(SOCKET)
    sock.close()
    with pytest.raises(aiodq.OwnerLostError):  # nobody serves it
        await aiodq.open(tmp_path / "s", mode="client", failover=0.1)
    async with aiodq.open(tmp_path / "s", mode="shared") as shared:
        assert await shared.topic("t").put(b"y") == 1


async def test_without_an_owner_everybody_is_told_and_goes_on_with_the_next(tmp_path: Path) -> None:
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="client", failover=0.1) as client:
        queue = client.queue("jobs")
        await queue.put(b"a")
        waiting = asyncio.create_task(queue.get())
        assert (await waiting).body == b"a"
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.01)
        await owner.aclose()
        with pytest.raises(aiodq.OwnerLostError):
            async with asyncio.timeout(PATIENCE):
                await queue.put(b"b")
        with pytest.raises(aiodq.OwnerLostError):
            await waiting
        async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as other:
            await other.queue("jobs").put(b"c")

            async def put() -> int | None:
                try:
                    return await queue.put(b"d")
                except aiodq.OwnerLostError:
                    return None

            async with asyncio.timeout(PATIENCE):
                while await put() is None:
                    await asyncio.sleep(0.01)


async def test_another_context_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"x")
        with pytest.raises(aiodq.WrongContextError):
            await asyncio.to_thread(queue.put_nowait, b"y")
        with pytest.raises(aiodq.WrongContextError):
            await asyncio.to_thread(queue.get_nowait)
        message = await queue.get()

        async def renew() -> None:
            async with message.renewing():
                pass

        asynchronous: list[Callable[[], Any]] = [message.ack, message.nack, message.touch, message.reject, renew]
        for settle in (message.ack_nowait, message.release, message.nack_nowait, partial(queue.ack_many, [message])):
            with pytest.raises(aiodq.WrongContextError):
                await asyncio.to_thread(settle)
        for do in asynchronous:
            with pytest.raises(aiodq.WrongContextError):
                await asyncio.to_thread(asyncio.run, do())
        assert queue._remote._timeouts._renewing is None  # type: ignore[attr-defined]  # a shared queue's
        assert await counts(queue) == (0, 1, 0)
        await message.ack()


async def test_a_store_that_is_dropped_is_said_to_be_open(tmp_path: Path) -> None:
    store = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    await store.queue("jobs").put(b"x")
    with pytest.warns(ResourceWarning, match="never closed"):
        del store
    async with asyncio.timeout(PATIENCE):
        async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as again:
            assert (await again.queue("jobs").get()).body == b"x"


async def test_a_message_of_a_deleted_channel_is_not_held(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as stores:
        for number, store in enumerate(stores):
            topic = store.topic("t")
            channel = topic.channel(f"c{number}")
            await topic.put(b"x")
            message = await channel.get()
            assert message.held
            await topic.delete_channel(channel.name)
            assert not message.held
            assert "taken away" in repr(message)
            with pytest.raises(aiodq.QueueShutDown):
                await message.ack()


async def _nowait(queue: aiodq.Queue) -> bytes:
    found: list[bytes] = []

    def taken() -> bool:
        with suppress(aiodq.QueueEmpty):
            found.append(queue.get_nowait().body)
        return bool(found)

    await until(taken)
    return found[0]


async def _get(queue: aiodq.Queue) -> bytes:
    return (await queue.get()).body


async def _get_many(queue: aiodq.Queue) -> bytes:
    return (await queue.get_many(5))[0].body


async def _iterate(queue: aiodq.Queue) -> bytes:
    return await anext(message.body async for message in queue)


@pytest.mark.parametrize("take", [_nowait, _get, _get_many, _iterate])
async def test_what_arrived_and_died_before_it_was_taken_is_not_handed_out(
    tmp_path: Path, take: Callable[[aiodq.Queue], Awaitable[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "_KEPT", 3600.0)
    clock = FakeClock()
    async with (
        aiodq.open(tmp_path / "s", mode="shared", clock=clock) as owner,
        aiodq.open(tmp_path / "s", mode="client", clock=clock) as client,
    ):
        queue = client.queue("jobs")
        await queue.topic.settle_in()
        with pytest.raises(aiodq.QueueEmpty):
            queue.get_nowait()  # from now on this process has one in hand
        for body, ttl in ((b"dead", 10), (b"alive", 1000)):
            await owner.queue("jobs").put(body, ttl=ttl)
        await until(lambda: queue._remote._ready)  # type: ignore[attr-defined]  # of the channel behind the handle
        clock.advance(11)
        async with asyncio.timeout(PATIENCE):
            assert await take(queue) == b"alive"
        await until(lambda: owner.queue("jobs").stats().expired == 1)


async def test_what_the_owner_finds_alive_is_handed_out_whatever_this_wall_clock_says(tmp_path: Path) -> None:
    ahead = FakeClock()
    ahead.advance(1_000_000.0)
    async with (
        aiodq.open(tmp_path / "s", mode="shared", clock=FakeClock()) as owner,
        aiodq.open(tmp_path / "s", mode="client", clock=ahead) as client,
    ):
        await owner.queue("jobs").put(b"alive", ttl=10)
        async with asyncio.timeout(PATIENCE):
            assert (await client.queue("jobs").get()).body == b"alive"


def test_of_a_run_only_what_lives_is_taken_in_order() -> None:
    batch = Batch(0, 1, Columns([b"%d" % number for number in range(6)]))
    arrived = Arrived(OpenLease("t", SystemClock().monotonic))
    lease = MessageLease("t", batch, number=100, attempts=1, channel_engine=None, home=NOWHERE)
    arrived.add(lease, batch.columns.bodies, [5.0, 5.0, inf, 5.0, 7.0, 5.0])
    assert arrived.take_dead(4.9) == []
    assert arrived.take_dead(5.0) == [range(100, 101), range(101, 102)]
    assert arrived.take(None, 4).body == b"2"
    assert lease.limit == lease.next == 3, "the next one is looked at first"
    assert arrived.take_dead(6.0) == [range(103, 104)]
    assert arrived.take(None, 4).body == b"4"
    assert (len(arrived), arrived.mortal) == (1, True)
    assert arrived.take_dead(6.0) == [range(105, 106)]
    assert (len(arrived), arrived.mortal) == (0, False)
