"""Leases with gaps: what a tag, a delay, a time to live or an earlier ack leaves out does not end a lease."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.channel.source.delivery_filter import DeliveryFilter
from tests.channels.support import Machine, counts, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.format.frame import Batch

MANY = 300
EVERY_THIRD = list(range(0, MANY, 3))
REST = sorted(set(range(MANY)) - set(EVERY_THIRD))
MINUTE = 60.0


def leases(messages: Sequence[aiodq.Message]) -> int:
    """Return how many leases messages are of."""
    return len({id(message._run) for message in messages})


def bodies(messages: Sequence[aiodq.Message]) -> list[int]:
    return [int(message.body) for message in messages]


def noted(jobs: aiodq.Queue) -> list[int]:
    """Return the messages in flight whose deliveries count though their process may die."""
    state = jobs._channel_engine.state
    assert state is not None
    return sorted(state._attempts.noted)


async def put_every_third(machine: Machine, jobs: aiodq.Queue, gaps: str = "tags") -> None:
    """Put messages, every third of which is to be delivered now."""
    drafts = [aiodq.Draft(b"%d" % number, tag=("x", "y", None)[number % 3]) for number in range(MANY)]
    if gaps == "delay":
        drafts = [replace(draft, delay=MINUTE if number % 3 else None) for number, draft in enumerate(drafts)]
    elif gaps == "ttl":
        drafts = [replace(draft, ttl=2.0 if number % 3 else MINUTE) for number, draft in enumerate(drafts)]
    await jobs.put_many(drafts)
    if gaps == "ttl":
        machine.clock.advance(3)
        await until(lambda: jobs.qsize() == MANY // 3)


async def taken_by(jobs: aiodq.Queue, way: str, count: int) -> list[aiodq.Message]:
    """Take so many messages one way or the other."""
    taken: list[aiodq.Message] = []
    while len(taken) < count:
        if way == "get_many":
            taken += await jobs.get_many(count - len(taken))
        elif way == "iteration":
            async for message in jobs:
                taken.append(message)
                if len(taken) == count:
                    break
        else:
            taken.append(await jobs.get() if way == "get" else jobs.get_nowait())
    return taken


def ready(jobs: aiodq.Queue, most: int) -> list[aiodq.Message]:
    """Take what may be delivered now, up to so many messages, now and then many by one call."""
    taken = list[aiodq.Message]()
    with suppress(aiodq.QueueEmpty):
        while len(taken) < most:
            taken.append(jobs.get_nowait())
            taken += jobs._channel_engine.take_run((most - len(taken)) // 2, jobs._store_ref)
    return taken


@pytest.mark.parametrize("way", ["get_many", "get", "get_nowait", "iteration"])
@pytest.mark.parametrize("gaps", ["tags", "delay", "ttl"])
async def test_a_lease_goes_on_behind_what_is_not_to_be_delivered(machine: Machine, gaps: str, way: str) -> None:
    async with machine.jobs(tags=["x"] if gaps == "tags" else None, visibility_timeout=10 * MINUTE) as jobs:
        await put_every_third(machine, jobs, gaps)
        taken = await taken_by(jobs, way, MANY // 3)
        assert [message.offset for message in taken] == bodies(taken) == EVERY_THIRD
        assert leases(taken) < 6
        assert jobs.in_flight() == MANY // 3
        for message in taken[1::2]:
            message.nack_nowait()
        await jobs.ack_many(taken[0::2])
        assert bodies(await jobs.get_many(MANY)) == EVERY_THIRD[1::2]
        stats = jobs.stats()
        assert stats.filtered == (len(REST) if gaps == "tags" else 0)
        assert stats.expired == (len(REST) if gaps == "ttl" else 0)
        if gaps == "delay":
            machine.clock.advance(MINUTE)
            await until(lambda: jobs.qsize() == len(REST))
            assert bodies(await jobs.get_many(MANY)) == REST


async def test_a_lease_goes_on_behind_what_was_acked_in_an_earlier_run(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await put_every_third(machine, jobs)
        taken = await jobs.get_many(MANY)
        await jobs.ack_many([message for message in taken if message.offset % 3])
        del taken
    async with machine.jobs(max_attempts=5) as jobs:
        taken = await jobs.get_many(MANY)
        assert bodies(taken) == EVERY_THIRD
        assert leases(taken) < 6
        assert noted(jobs) == EVERY_THIRD
        await jobs.ack_many(taken)
        assert counts(jobs) == (0, 0, 0)
    async with machine.jobs() as jobs:
        assert (jobs.qsize(), jobs._channel_engine.position) == (0, MANY)


async def test_what_is_skipped_is_settled_on_disk_with_the_next_ack(machine: Machine) -> None:
    async with machine.jobs(tags=["x"]) as jobs:
        await put_every_third(machine, jobs)
        await jobs.ack_many(await jobs.get_many(20))
        await jobs.sync()
        machine.crash()
    async with machine.jobs(tags=["x", "y"]) as jobs:
        assert bodies(await jobs.get_many(2)) == [58, 60], "57 was the last that was acked"


async def test_tags_that_change_hold_for_all_behind_the_last_message_that_was_handed_out(machine: Machine) -> None:
    async with machine.jobs(tags=["x"]) as jobs:
        await put_every_third(machine, jobs)
        assert bodies(await jobs.get_many(10)) == EVERY_THIRD[:10]
        await jobs.configure(aiodq.ChannelOptions(tags=["y"]))
        assert bodies(await jobs.get_many(10)) == [number + 1 for number in EVERY_THIRD[9:19]]


async def test_behind_a_gap_no_more_is_in_flight_than_may_be(machine: Machine) -> None:
    async with machine.jobs(tags=["x"], max_in_flight=4) as jobs:
        await put_every_third(machine, jobs)
        taken = await jobs.get_many(MANY)
        assert bodies(taken) == EVERY_THIRD[:4]
        with pytest.raises(aiodq.QueueEmpty):
            jobs.get_nowait()
        taken[2].ack_nowait()
        assert bodies([jobs.get_nowait()]) == EVERY_THIRD[4:5]
        with pytest.raises(aiodq.QueueEmpty):
            jobs.get_nowait()
        assert jobs.in_flight() == 4


async def test_what_is_redelivered_comes_before_what_is_behind_a_gap(machine: Machine) -> None:
    async with machine.jobs(tags=["x"]) as jobs:
        await put_every_third(machine, jobs)
        first, second = await jobs.get_many(2)
        first.nack_nowait()
        assert bodies([jobs.get_nowait() for _ in range(3)]) == [0, 6, 9]
        second.nack_nowait()
        assert bodies(await jobs.get_many(3)) == [3, 12, 15]


async def test_what_comes_due_in_a_gap_comes_before_what_is_behind_it(machine: Machine) -> None:
    async with machine.jobs(visibility_timeout=10 * MINUTE) as jobs:
        await put_every_third(machine, jobs, "delay")
        assert bodies(await jobs.get_many(3)) == [0, 3, 6]
        machine.clock.advance(MINUTE)
        await until(lambda: not jobs.deferred())
        assert bodies(await jobs.get_many(MANY)) == [1, 2, 4, 5, *range(7, MANY)]


async def test_messages_between_gaps_time_out_as_all_others_do(machine: Machine) -> None:
    async with machine.jobs(tags=["x"], visibility_timeout=5) as jobs:
        await put_every_third(machine, jobs)
        early = await jobs.get_many(20)
        machine.clock.advance(2)
        late = await jobs.get_many(20)
        machine.clock.advance(3.5)
        await until(lambda: jobs.in_flight() == 20)
        assert all(message.held for message in late)
        assert not any(message.held for message in early)
        assert bodies(await jobs.get_many(20)) == EVERY_THIRD[:20]


async def test_deliveries_between_gaps_are_counted_and_nothing_is_of_a_gap(machine: Machine) -> None:
    async with machine.jobs(tags=["x"], max_attempts=5) as jobs:
        await put_every_third(machine, jobs)
        first = await jobs.get_many(20)
        first[0].nack_nowait()
        await jobs.sync()
        assert noted(jobs) == EVERY_THIRD[1:20]
        machine.crash()
    async with machine.jobs(tags=["x"], max_attempts=5) as jobs:
        again = await jobs.get_many(30)
        assert bodies(again) == EVERY_THIRD[:30]
        assert [message.attempts for message in again] == [2] * 20 + [1] * 10


async def test_latency_is_measured_between_gaps(machine: Machine) -> None:
    async with machine.jobs(tags=["x"]) as jobs:
        await put_every_third(machine, jobs)
        jobs._channel_engine.latency._stride = 9
        taken = await jobs.get_many(MANY)
        await jobs.ack_many(taken)
        figures = jobs.stats().put_to_deliver
        assert figures is not None
        assert 20 < figures.messages <= MANY
        assert not jobs._channel_engine.latency.open


async def test_a_lease_that_is_ended_early_again_and_again_does_not_span_much(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each message that comes due would cost as much as a lease of a thousand."""
    spans: list[int] = []
    run_with_gaps = ChannelEngine._run_with_gaps

    def noting(
        engine: ChannelEngine[aiodq.Message], state: ChannelState, batch: Batch, number: int, count: int
    ) -> bytearray | None:
        marks = run_with_gaps(engine, state, batch, number, count)
        spans.append(engine._span)
        return marks

    monkeypatch.setattr(ChannelEngine, "_run_with_gaps", noting)
    async with machine.jobs(tags=["x"]) as jobs:
        for _ in range(5):
            await put_every_third(machine, jobs)
        assert bodies(await taken_by(jobs, "get_many", MANY // 3 * 4)) == EVERY_THIRD * 4
        assert spans == sorted(spans)
        assert max(spans) == 1000
        spans.clear()
        for _ in range(5):
            await jobs.get()
            await jobs.configure(aiodq.ChannelOptions(tags=["x"], visibility_timeout=len(spans) + 30))
        assert set(spans[1:]) == {128}


async def test_where_no_lease_can_go_on_little_is_looked_at(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other message has expired, and nobody had a turn to settle it: each would be the end of a lease."""
    looked: list[int] = []
    leave_out = DeliveryFilter.leave_out

    def noting(self: DeliveryFilter, batch: Batch, number: int, marks: bytearray) -> int:
        looked.append(len(marks))
        return leave_out(self, batch, number, marks)

    monkeypatch.setattr(DeliveryFilter, "leave_out", noting)
    async with machine.jobs() as jobs:
        await jobs.put_many([aiodq.Draft(b"%d" % number, ttl=2 if number % 2 else MINUTE) for number in range(3000)])
        machine.clock.advance(3)
        taken = [jobs.get_nowait() for _ in range(500)]
        assert bodies(taken) == list(range(0, 1000, 2))
        assert len(looked) > 400
        assert max(looked) <= 256


def any_drafts(rng: random.Random, first: int) -> list[aiodq.Draft]:
    """Return messages whose bodies are their offsets, some with a delay, every other with a tag that is wanted."""
    return [
        aiodq.Draft(
            b"%d" % number, tag=rng.choice(["x", "x", "y", "z", "z", None]), delay=rng.choice([None, None, None, 1, 9])
        )
        for number in range(first, first + rng.choice([1, 30, 200]))
    ]


def settle_some(rng: random.Random, taken: list[aiodq.Message]) -> list[int]:
    """Ack most of these messages, nack the others, in any order; return those that are acked."""
    rng.shuffle(taken)
    acked = [message for message in taken if rng.random() < 0.8]
    for message in taken:
        if message in acked:
            message.ack_nowait()
        else:
            message.nack_nowait(rng.choice([None, 2.0]))
    return bodies(acked)


async def test_any_gaps_hide_nothing_and_give_nothing_twice(machine: Machine, seed: int) -> None:
    """Messages with any tags and delays, taken by any way, acked or nacked: each wanted one is acked once."""
    rng = random.Random(f"gaps {seed}")
    wanted, acked, count = set[int](), list[int](), 0
    async with machine.jobs(tags=["x", "y"], max_in_flight=rng.choice([5, 40, 1000])) as jobs:
        for _ in range(25):
            drafts = any_drafts(rng, count)
            wanted |= {int(draft.body) for draft in drafts if draft.tag in {"x", "y"}}
            count += len(drafts)
            await jobs.put_many(drafts)
            for _ in range(rng.randrange(8)):
                taken = ready(jobs, rng.choice([1, 3, 50]))
                assert bodies(taken) == sorted(bodies(taken))
                acked += settle_some(rng, taken)
                machine.clock.advance(rng.choice([0, 0.5, 3]))
                await asyncio.sleep(0)
        machine.clock.advance(20)
        await until(lambda: not jobs.deferred())
        while taken := ready(jobs, 1000):
            await jobs.ack_many(taken)
            acked += bodies(taken)
        assert sorted(acked) == sorted(wanted)
        assert counts(jobs) == (0, 0, 0)
