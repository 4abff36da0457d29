"""What has had its last attempt is settled then, though nobody asks for a message."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.engine.channel.acks.undeliverable import Undeliverable
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.testing import Fault, FaultPlan
from tests.channels.support import PATIENCE, counts, soon, until

if TYPE_CHECKING:
    from tests.channels.support import Machine

DYING = aiodq.ChannelOptions(visibility_timeout=5, max_attempts=1, dead_letter="dead")


async def test_after_its_last_attempt_timed_out_it_is_a_letter(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs", DYING)
        await jobs.put(b"x")
        await jobs.get()
        machine.clock.advance(5)
        letter = await soon(store.queue("dead").get())
        assert (letter.body, letter.headers["aiodq-attempts"]) == (b"x", "1")
        await until(lambda: counts(jobs) == (0, 0, 0))


async def test_a_bounded_topic_has_room_then(machine: Machine) -> None:
    options = aiodq.ChannelOptions(visibility_timeout=5, max_attempts=1)
    async with machine.store(max_messages=250, overflow="reject") as store:
        jobs = store.queue("jobs", options)
        await jobs.put_many([b"x"] * 250)
        await jobs.get_many(250)
        assert jobs.full()
        machine.clock.advance(5)
        await until(lambda: not jobs.full() and jobs.depth == 0)
        assert jobs.stats().dead == 250


async def test_what_died_with_its_process_is_a_letter_at_the_next_opening(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs", DYING)
        await jobs.put_many([b"x", b"y"])
        await jobs.get()
    async with machine.store() as store:
        jobs = store.queue("jobs", DYING)
        assert (await soon(store.queue("dead").get())).body == b"x"
        await until(lambda: counts(jobs) == (1, 0, 0))


@pytest.mark.parametrize("dead_letter", [None, "dead"])
@pytest.mark.parametrize("memory_bytes", [1 << 26, 65_536])
async def test_so_does_one_behind_others_that_may_be_delivered(
    machine: Machine, memory_bytes: int, dead_letter: str | None
) -> None:
    """Also where that is many, and what was handed out is in memory no longer."""
    options = aiodq.ChannelOptions(visibility_timeout=5, max_attempts=2, dead_letter=dead_letter)
    async with machine.store(sync="os", memory_bytes=memory_bytes, max_messages=300, overflow="reject") as store:
        jobs, dead = store.queue("jobs", options), store.queue("dead")
        bodies = [b"%d" % number + bytes(2_000) for number in range(300)]
        await jobs.put_many(bodies[:150])
        await jobs.put_many(bodies[150:])
        live, dying = (await jobs.get_many(150))[:20], await jobs.get_many(150)
        for message in dying:
            await message.nack()
        dying = await jobs.get_many(150)
        for message in live:
            await message.nack()
        del message, dying
        machine.clock.advance(5)
        await until(lambda: jobs.stats().dead == 150)
        assert not jobs.full()
        assert counts(jobs) == (150, 0, 0)
        if dead_letter is not None:
            assert sorted([(await soon(dead.get())).body for _ in range(150)]) == sorted(bodies[150:])
        assert [message.body for message in await jobs.get_many(300)] == bodies[:150]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("number", [10, 150])
async def test_a_disk_that_cannot_be_read_is_asked_again_each_second_and_not_all_the_time(
    machine: Machine, number: int, *, behind: bool
) -> None:
    options = aiodq.ChannelOptions(visibility_timeout=5, max_attempts=2, dead_letter="dead")
    async with machine.store(sync="os", memory_bytes=65_536) as store:
        jobs = store.queue("jobs", options)
        await jobs.put_many([bytes(2_000)] * 300)
        held = await jobs.get_many(number), await jobs.get_many(number)
        dying, live = held[behind], held[not behind]
        for message in dying:
            await message.nack()
        dying = await jobs.get_many(number)
        for message in live:
            await message.nack()
        before = machine.fs.calls.get("read", 0)
        plan, machine.fs.plan = machine.fs.plan, FaultPlan([Fault("read", 1, "EIO", lasting=True)])
        machine.clock.advance(5)
        await until(lambda: machine.fs.calls["read"] > before)
        look = Undeliverable.settle_ahead
        with mock.patch.object(Undeliverable, "settle_ahead", autospec=True, side_effect=look) as looks:
            # What is in memory is tried once, for want of a topic for its letters. Then nothing is asked any more.
            for _ in range(20):
                seen = looks.call_count, machine.fs.calls["read"]
                await asyncio.sleep(0.1)
                if seen == (looks.call_count, machine.fs.calls["read"]):
                    break
            assert seen == (looks.call_count, machine.fs.calls["read"])
            assert looks.call_count <= number + 10
        assert jobs.stats().dead == 0
        machine.fs.plan = plan
        machine.clock.advance(1)
        await until(lambda: jobs.stats().dead == number)


async def test_a_seek_meanwhile_passes_nothing_over(machine: Machine) -> None:
    options = aiodq.ChannelOptions(visibility_timeout=5, max_attempts=1, dead_letter="dead")
    async with machine.store(sync="os", memory_bytes=65_536) as store:
        jobs = store.queue("jobs", options)
        await jobs.put_many([aiodq.Draft(b"%d" % number + bytes(2_000), ttl=5) for number in range(300)])
        await jobs.put_many([b"last"] * 3)
        held = await jobs.get_many(10)
        await held[0].nack()
        held = held[1:]
        machine.clock.advance(5)
        await jobs.seek("earliest")
        await until(lambda: jobs.depth == 3)
        assert [message.body for message in await jobs.get_many(10)] == [b"last"] * 3


async def test_nothing_is_given_up_while_other_options_are_being_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.jobs(max_attempts=1, dead_letter="dead") as jobs:
        await jobs.put(b"a")
        await jobs.get()  # its one attempt
    looked, note, settle_some = threading.Event(), TopicDescription.choose_for_channel, Undeliverable._settle_some

    def note_later(description: TopicDescription, *args: Any) -> None:
        assert looked.wait(PATIENCE)
        note(description, *args)

    def looked_at(undeliverable: Undeliverable) -> None:
        settle_some(undeliverable)
        if not undeliverable.out_of_turn.reading:
            looked.set()

    monkeypatch.setattr(TopicDescription, "choose_for_channel", note_later)
    monkeypatch.setattr(Undeliverable, "_settle_some", looked_at)
    async with machine.store() as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=3))
        assert (await soon(jobs.get())).attempts == 2
        assert "dead" not in store.topics()
