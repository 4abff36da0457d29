"""What is handed out in runs though it is not plain: counted, tagged, with a time to live, due, or redelivered."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.leases import MEASURED
from aiodq.testing import SimulatedFileSystem
from tests.channels.support import Machine, counts, ready, until

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADERS = {"a": "b"}
MANY = 300


def leases(messages: Sequence[aiodq.Message]) -> int:
    """Return how many leases messages are of."""
    return len({id(message._run) for message in messages})


def bodies(messages: Sequence[aiodq.Message]) -> list[int]:
    return [int(message.body) for message in messages]


def numbered(count: int, **options: Any) -> list[aiodq.Draft]:
    return [aiodq.Draft(b"%d" % number, **options) for number in range(count)]


@pytest.mark.parametrize("kind", ["max_attempts", "tags", "ttl", "delay", "one by one"])
async def test_a_lease_is_of_many(machine: Machine, kind: str) -> None:
    """As many as of plain messages, but for the few whose latency is measured."""
    options = {"max_attempts": 3} if kind == "max_attempts" else {"tags": ["x"]} if kind == "tags" else {}
    async with machine.jobs(**options) as jobs:
        if kind == "one by one":
            for number in range(MANY):
                await jobs.put(b"%d" % number, tag="x")
        else:
            await jobs.put_many(
                numbered(MANY, tag="x", ttl=60 if kind == "ttl" else None, delay=10 if kind == "delay" else None)
            )
        machine.clock.advance(11)
        await until(lambda: jobs.qsize() == MANY)
        taken = await jobs.get_many(MANY)
        assert bodies(taken) == list(range(MANY))
        assert leases(taken) < 4
        await jobs.ack_many(taken)
        assert counts(jobs) == (0, 0, 0)


@pytest.mark.pure("a compiled module does not look again whether it is compiled")
@pytest.mark.parametrize("compiled", [False, True])
async def test_messages_made_together_are_each_in_its_place(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    monkeypatch.setattr("aiodq.engine.channel.lease.in_flight.COMPILED", compiled)
    async with machine.store() as store:
        queue = store.queue("jobs")
        await queue.put_many(numbered(MANY, tag="t"))
        first, *_ = [await queue.get() for _ in range(5)]
        messages = await queue.get_many(MANY)
        assert [(each.offset, each.tag) for each in messages] == [(number, "t") for number in range(5, MANY)]
        assert bodies(messages) == [*range(5, MANY)]
        assert {id(each._store_ref) for each in messages} == {id(first._store_ref)}


async def test_what_is_measured_does_not_divide_a_run(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        engine = jobs._channel_engine
        await jobs.put_many(numbered(20))
        engine.latency._stride = 7
        first = jobs.get_nowait()
        taken = engine.take_run(19, None)
        assert bodies(taken) == list(range(1, 20))
        assert [at for at, mark in enumerate(first._run.marks) if mark == MEASURED] == [0, 7, 14]
        figures = jobs.stats().put_to_deliver
        assert figures is not None
        assert figures.messages == 21
        await jobs.ack_many([first, *taken])
        assert counts(jobs) == (0, 0, 0)
        assert not engine.latency.open


async def test_what_is_measured_ends_no_run_that_may_not_go_on(machine: Machine) -> None:
    async with machine.jobs(max_in_flight=4) as jobs:
        engine = jobs._channel_engine
        await jobs.put_many(numbered(20))
        first = jobs.get_nowait()
        assert bodies(engine.take_run(19, None)) == [1, 2, 3]
        assert engine.take_next(None) is None
        first.ack_nowait()
        assert bodies(await jobs.get_many(19)) == [4]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("auto_ack", [False, True])
async def test_an_iteration_gives_each_in_order(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, compiled: bool, auto_ack: bool
) -> None:
    """By either of its two forms, of which a compiled aiodq uses the one, and plain Python the other."""
    monkeypatch.setattr("aiodq.consuming.iteration.COMPILED", compiled)
    async with machine.jobs(auto_ack=auto_ack) as jobs:
        await jobs.put_many(numbered(MANY))
        jobs.shutdown()
        found: list[int] = []
        async for message in jobs:
            found.append(int(message.body))
            assert message.settled is auto_ack
            if not auto_ack:
                message.ack_nowait()
        assert found == list(range(MANY))
        assert counts(jobs) == (0, 0, 0)


@pytest.mark.parametrize("compiled", [False, True])
async def test_an_iteration_notes_what_its_task_holds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    monkeypatch.setattr("aiodq.consuming.iteration.COMPILED", compiled)
    async with machine.jobs() as jobs:
        await jobs.put_many(numbered(MANY))
        async for message in jobs:
            jobs.task_done()
            assert message.settled
            if message.offset == MANY - 1:
                break
        assert counts(jobs) == (0, 0, 0)


@pytest.mark.parametrize("compiled", [False, True])
async def test_an_iteration_of_several_tasks_notes_what_each_holds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    monkeypatch.setattr("aiodq.consuming.iteration.COMPILED", compiled)
    async with machine.jobs() as jobs:
        await jobs.put_many(numbered(MANY))
        messages = aiter(jobs)

        async def other() -> aiodq.Message:
            message = await anext(messages)
            jobs.task_done()
            return message

        for _ in range(MANY // 4):
            mine = [await anext(messages)]
            assert (await asyncio.create_task(other())).settled
            mine += [await anext(messages), await anext(messages)]
            for left in (2, 1, 0):
                jobs.task_done()
                assert [message.settled for message in mine] == [False] * left + [True] * (3 - left)
        assert jobs.in_flight() == 0


async def test_due_times_that_are_past_hold_nothing_up_in_a_backlog(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put_many([*numbered(MANY, delay=10), aiodq.Draft(b"900", delay=60)])
    machine.clock.advance(11)
    async with machine.jobs() as jobs:
        taken = await jobs.get_many(MANY)
        assert bodies(taken) == list(range(MANY))
        assert leases(taken) < 4
        assert counts(jobs) == (0, MANY, 1)


async def test_what_ends_amid_a_lease_is_not_handed_out(machine: Machine) -> None:
    """Not even where nothing has gone round since that would have told so."""
    async with machine.jobs() as jobs:
        await jobs.put_many([
            aiodq.Draft(b"0", ttl=5), aiodq.Draft(b"1"), aiodq.Draft(b"2", ttl=5), aiodq.Draft(b"3", ttl=9),
        ])  # fmt: skip
        assert jobs.get_nowait().body == b"0"
        machine.clock.advance(6)
        assert ready(jobs) == [b"1", b"3"]
        assert jobs.stats().expired == 1


@pytest.mark.parametrize("before", [0, 100])
async def test_not_even_within_the_millisecond_in_which_nobody_looks(machine: Machine, before: int) -> None:
    async with machine.jobs() as jobs:
        engine = jobs._channel_engine
        if before:  # in a batch of their own, so that another lease begins amid the millisecond
            await jobs.put_many(numbered(before))
        await jobs.put_many(numbered(5, ttl=0.0005))
        engine._measure_at = 1_000  # what is measured is looked at by itself
        assert len(await jobs.get_many(before + 1)) == before + 1
        assert engine.open_lease.lease.limit - engine.open_lease.lease.next == 4
        machine.clock.advance(0.0006)
        assert engine.take_run(5, None) == []
        assert engine.take_next(None) is None
        assert ready(jobs) == []


async def test_of_what_ended_before_nothing_is_in_a_lease(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put_many([aiodq.Draft(b"%d" % n, ttl=5 if n % 3 else 60) for n in range(30)])
    machine.clock.advance(6)
    async with machine.jobs() as jobs:
        assert bodies(await jobs.get_many(30)) == list(range(0, 30, 3))


async def test_tags_are_passed_over_in_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[tuple[int, int]] = []
    skip = ChannelState.skip

    def noting(state: ChannelState, start: int, stop: int) -> None:
        skipped.append((start, stop))
        skip(state, start, stop)

    monkeypatch.setattr(ChannelState, "skip", noting)
    async with machine.jobs(tags=["x", "y"]) as jobs:
        tags = ["x"] * 5 + ["z", None] * 50 + ["y", "x"] * 3 + ["z"]
        await jobs.put_many([aiodq.Draft(b"%d" % number, tag=tag) for number, tag in enumerate(tags)])
        taken = await jobs.get_many(len(tags))
        assert bodies(taken) == [number for number, tag in enumerate(tags) if tag in {"x", "y"}]
        with pytest.raises(aiodq.QueueEmpty):
            jobs.get_nowait()
        assert counts(jobs) == (0, 11, 0)
        assert jobs.stats().filtered == 101
    assert skipped == [(111, 112)], "the others are a gap of the lease"


async def test_counted_deliveries_of_a_lease_are_written_once_and_in_full(machine: Machine) -> None:
    async with machine.jobs(max_attempts=5) as jobs:
        await jobs.put_many(numbered(10))
        first = await jobs.get_many(4)
        first[1].nack_nowait()
        jobs.ack_many([first[0], first[3]])
        await jobs.sync()
        machine.crash()
    async with machine.jobs(max_attempts=5) as jobs:
        assert [(int(m.body), m.attempts) for m in await jobs.get_many(10)] == [
            (1, 2), (2, 2), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1),
        ]  # fmt: skip
        state = jobs._channel_engine.state
        assert state is not None
        assert dict(state._attempts.noted.items()) == {1: 2, 2: 2} | dict.fromkeys(range(4, 10), 1)
        await jobs.purge()
        assert not state._attempts.noted


@pytest.mark.parametrize("how", ["nack", "delay", "timeout", "release"])
async def test_what_is_redelivered_comes_in_runs_and_in_order(machine: Machine, how: str, seed: int) -> None:
    chance = random.Random(seed)
    async with machine.jobs(visibility_timeout=30) as jobs:
        await jobs.put_many(numbered(MANY))
        taken = await jobs.get_many(MANY)
        those = list(taken)
        chance.shuffle(those)
        for message in those if how != "timeout" else ():
            if how == "release":
                message.release()
            else:
                message.nack_nowait(3 if how == "delay" else None)
        machine.clock.advance(31 if how == "timeout" else 3)
        await until(lambda: jobs.qsize() == MANY)
        again = await jobs.get_many(MANY)
        assert bodies(again) == list(range(MANY))
        assert {message.attempts for message in again} == {1 if how == "release" else 2}
        assert leases(again) <= 2 + MANY // 64  # a message by itself, then those in memory together
        assert jobs.stats().redelivered == (0 if how == "release" else MANY)
        assert counts(jobs) == (0, MANY, 0)
        engine = jobs._channel_engine
        assert engine.source.requeue_cache._cost == 0
        # Some of a run are measured, as of a lease; no message of it was taken by itself but the first.
        assert engine.latency.open.keys() & {message._delivery for message in again[1:]}
        # Each is its holder's, and each has its time.
        again[7].nack_nowait()
        assert jobs.get_nowait().attempts == again[7].attempts + 1
        jobs.ack_many(again[:5])
        machine.clock.advance(31)
        await until(lambda: jobs.qsize() == MANY - 5)
        for message in again[5:9]:
            with pytest.raises((aiodq.NotInFlightError, aiodq.AlreadySettledError)):
                message.ack_nowait()


async def test_runs_end_where_attempts_differ_or_something_else_is_to_be_looked_at(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([
            aiodq.Draft(b"0"), aiodq.Draft(b"1"), aiodq.Draft(b"2", headers=HEADERS),
            aiodq.Draft(b"3", key=b"k", tag="t"), aiodq.Draft(b"4", ttl=60),
        ])  # fmt: skip
        for number in range(5, 9):
            machine.clock.advance(1)
            await jobs.put(b"%d" % number)
        first = await jobs.get_many(9)
        for message in first:
            message.nack_nowait(count_attempt=message.offset != 5)
        taken = await jobs.get_many(9)
        assert bodies(taken) == list(range(9))
        # 0, then 1 to 3, 4 that is looked at by itself, 5, 6 as the next one, then 7 and 8.
        assert [sum(other._run is message._run for other in taken) for message in taken] == [1, 3, 3, 3, 1, 1, 1, 2, 2]
        assert [message.attempts for message in taken] == [2, 2, 2, 2, 2, 1, 2, 2, 2]
        assert [message.timestamp_ns for message in taken] == [message.timestamp_ns for message in first]
        assert (taken[2].headers, taken[3].key, taken[3].tag) == (HEADERS, b"k", "t")
        for message in taken:
            message.nack_nowait()
        assert bodies(await jobs.get_many(9)) == list(range(9))


async def test_what_was_its_last_attempt_is_in_no_run(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many(numbered(5))
        for message in await jobs.get_many(5):
            message.nack_nowait(0 if message.offset < 3 else 60)
        await jobs.configure(aiodq.ChannelOptions(max_attempts=1))
        assert jobs._channel_engine.take_run(5, None) == []
        assert ready(jobs) == []
        machine.clock.advance(61)
        assert ready(jobs) == []
        await until(lambda: jobs.depth == 0)
        assert jobs.stats().dead == 5


async def test_what_timed_out_for_the_last_time_is_in_no_run(machine: Machine) -> None:
    async with machine.jobs(max_attempts=1, visibility_timeout=5) as jobs:
        await jobs.put_many(numbered(5))
        await jobs.get_many(5)
        machine.clock.advance(6)
        jobs._channel_engine._ring()
        assert jobs._channel_engine.take_run(5, None) == []
        await until(lambda: jobs.depth == 0)
        assert jobs.stats().dead == 5


async def test_no_more_is_in_flight_than_may_be(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many(numbered(50))
        for message in await jobs.get_many(50):
            message.nack_nowait()
        await jobs.configure(aiodq.ChannelOptions(max_in_flight=20))
        taken = await jobs.get_many(50)
        assert bodies(taken) == list(range(20))
        await jobs.ack_many(taken[:3])
        assert bodies(await jobs.get_many(50)) == [20, 21, 22]


async def test_what_was_kept_for_later_is_let_go_of(machine: Machine) -> None:
    async with machine.jobs(visibility_timeout=5) as jobs:
        await jobs.put_many(numbered(10))
        for message in (await jobs.get_many(10))[5:]:
            message.nack_nowait()
        machine.clock.advance(6)
        await until(lambda: jobs.qsize() == 10)
        assert bodies(await jobs.get_many(10)) == list(range(10))
        assert not jobs._channel_engine.source.requeue_cache.batches


async def test_a_pause_holds_runs_back(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many(numbered(9))
        for message in await jobs.get_many(9):
            message.nack_nowait()
        await jobs.pause()
        assert jobs._channel_engine.take_run(9, None) == []
        getting = asyncio.ensure_future(jobs.get_many(9))
        await until(lambda: jobs._channel_engine.waits)
        await jobs.resume()
        assert bodies(await getting) == list(range(9))


async def redelivered(jobs: aiodq.Queue) -> list[aiodq.Message]:
    """Put 40 messages, and take them for the second time."""
    await jobs.put_many(numbered(40))
    for message in await jobs.get_many(40):
        message.nack_nowait()
    return await jobs.get_many(40)


async def test_a_run_is_settled_whole_or_not_at_all(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        again = await redelivered(jobs)
        again[17].nack_nowait()
        with pytest.raises(aiodq.AlreadySettledError):
            jobs.ack_many(again)
        assert counts(jobs) == (1, 39, 0)
        await jobs.ack_many([*again[:17], *again[18:]])
        assert counts(jobs) == (1, 0, 0)
        assert {message._delivery for message in again if message.offset != 17}.isdisjoint(
            jobs._channel_engine.latency.open
        )
        assert all(message.settled for message in again)
        await jobs.purge()
        machine.crash()
    async with machine.jobs() as jobs:
        assert jobs.depth == 0


async def test_a_run_that_was_taken_away_is_nobodys(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        again = await redelivered(jobs)
        await jobs.purge()
        with pytest.raises(aiodq.NotInFlightError):
            jobs.ack_many(again)


async def test_auto_ack_settles_what_get_many_gives(machine: Machine) -> None:
    async with machine.jobs(auto_ack=True) as jobs:
        await jobs.put_many(numbered(40))
        taken = await jobs.get_many(40)
        assert all(message.settled for message in taken)
        assert counts(jobs) == (0, 0, 0)


async def test_a_journal_that_is_free_again_is_written_with_the_next_delivery(machine: Machine) -> None:
    """Nothing has gone round in between; and only what finds no room waits for its time."""
    async with machine.jobs(max_attempts=3) as jobs:
        await jobs.put_many(numbered(3))
        journal = jobs._channel_engine.journal
        assert journal is not None
        with journal._mutex:
            jobs.get_nowait()
        jobs.get_nowait()
        machine.fs = SimulatedFileSystem(machine.fs.image())  # what the system has when the process dies
    async with machine.jobs(max_attempts=3) as jobs:
        assert [message.attempts for message in await jobs.get_many(3)] == [2, 2, 1]
