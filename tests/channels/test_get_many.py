"""What becomes of messages that `get_many` has taken when something happens while it waits for more."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.channels.support import counts, soon, until

if TYPE_CHECKING:
    from tests.channels.support import Machine


async def test_with_auto_ack_nobody_is_given_what_was_purged_meanwhile(machine: Machine) -> None:
    async with machine.jobs(auto_ack=True) as jobs:
        await jobs.put(b"a")
        getting = asyncio.ensure_future(jobs.get_many(3, linger=60))
        await until(lambda: jobs.in_flight() == 1)
        await jobs.purge()
        await jobs.put_many([b"b", b"c"])
        assert [message.body for message in await soon(getting)] == [b"b", b"c"]
        assert counts(jobs) == (0, 0, 0)


async def test_with_auto_ack_it_waits_for_more_where_all_was_purged(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingers: list[asyncio.Timeout] = []
    timeout_at = asyncio.timeout_at

    def noted(when: float | None) -> asyncio.Timeout:
        lingers.append(timeout_at(when))
        return lingers[-1]

    monkeypatch.setattr(asyncio, "timeout_at", noted)
    async with machine.jobs(auto_ack=True) as jobs:
        await jobs.put_many([b"a", b"b"])
        getting = asyncio.ensure_future(jobs.get_many(3, linger=60))
        await until(lambda: jobs.in_flight() == 2)
        await jobs.purge()
        lingers[0].reschedule(0)
        await until(lingers[0].expired)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not getting.done()
        await jobs.put(b"c")
        await until(lambda: len(lingers) == 2)
        lingers[1].reschedule(0)
        assert [message.body for message in await soon(getting)] == [b"c"]


@pytest.mark.parametrize("error", [aiodq.QueueShutDown("over"), aiodq.StoreFailedError("over")])
async def test_cancelled_as_its_channel_ends_it_is_cancelled(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def over(_: aiodq.Message) -> None:
        raise error

    async with machine.jobs() as jobs:
        await jobs.put(b"a")
        getting = asyncio.ensure_future(jobs.get_many(5, linger=60))
        await until(lambda: jobs.in_flight() == 1)
        monkeypatch.setattr(aiodq.Message, "release", over)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert getting.cancelled()


async def test_a_release_takes_a_redelivery_back(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put(b"a")
        await (await jobs.get()).nack()
        for _ in range(3):
            (await jobs.get()).release()
        found = jobs.stats()
        assert (found.delivered, found.redelivered, found.requeued) == (1, 0, 1)


async def test_a_time_to_live_goes_before_a_delay_after_a_seek(machine: Machine) -> None:
    async with machine.store(retention=aiodq.Retention(consumed="keep")) as store:
        topic = store.topic("jobs")
        for dead in (None, "dead"):
            topic.channel(f"c{dead}", aiodq.ChannelOptions(start="earliest", dead_letter=dead))
        await topic.put(b"a", delay=1000, ttl=5)
        await topic.put(b"b")
        machine.clock.advance(6)
        for name in ("cNone", "cdead"):
            channel = topic.channel(name)
            await until(partial(standing, channel, (1, 0, 0)))
            await channel.seek("earliest")
            assert (await soon(channel.get())).body == b"b"
            await until(partial(standing, channel, (0, 1, 0)))


def standing(channel: aiodq.Channel, expected: tuple[int, int, int]) -> bool:
    return counts(channel) == expected


class Outcome(BaseException):
    """What a test's own `fail` raises is such."""


async def test_an_exception_of_a_kind_of_its_own_counts_as_an_attempt(machine: Machine) -> None:
    async with machine.jobs(max_attempts=2) as jobs:
        await jobs.put(b"a")
        for _ in range(2):
            with pytest.raises(Outcome):
                async with await soon(jobs.get()):
                    raise Outcome
        assert jobs.depth == 0
        assert jobs.stats().dead == 1
