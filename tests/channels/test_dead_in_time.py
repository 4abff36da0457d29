"""What has had its last attempt is settled then, though nobody asks for a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiodq
from tests.channels.support import counts, soon, until

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
