"""What is deferred: looked at without being taken, and given up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import aiodq
from aiodq.starting import move_channel
from tests.channels.support import Machine, counts, ready, soon

HOUR = 3600


async def deferred(channel: aiodq.Channel) -> list[bytes]:
    return [message.body async for message in channel.deferred_messages()]


class TestLooking:
    async def test_the_earliest_due_first_with_its_moment(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"ready")
            await jobs.put(b"late", delay=3 * HOUR, tag="t", key=b"k", headers={"h": "v"})
            await jobs.put(b"soon", delay=HOUR)
            await (await jobs.get()).nack(delay=2 * HOUR)
            found = [message async for message in jobs.deferred_messages()]
            assert [message.body for message in found] == [b"soon", b"ready", b"late"]
            assert [message.attempts for message in found] == [0, 1, 0]
            late = found[-1]
            assert (late.offset, late.tag, late.key, dict(late.headers)) == (1, "t", b"k", {"h": "v"})
            assert late.due.utcoffset() == timedelta(0)
            assert abs(late.due - late.timestamp - timedelta(hours=3)) < timedelta(milliseconds=1)
            with pytest.raises(aiodq.NotInFlightError):
                await late.ack()
            assert counts(jobs) == (0, 0, 3)

    async def test_what_comes_from_disk(self, machine: Machine) -> None:
        bodies = [b"%d" % number for number in range(200)]
        async with machine.jobs() as jobs:
            for body in bodies[:100]:
                await jobs.put(body, delay=HOUR + int(body))
            await jobs.put_many([aiodq.Draft(body, delay=HOUR + int(body)) for body in bodies[100:]])
        async with machine.jobs() as jobs:
            assert await deferred(jobs) == bodies
            machine.clock.advance(HOUR + 150)
            assert await deferred(jobs) == bodies[151:]

    async def test_at_once_after_a_seek_back(self, machine: Machine) -> None:
        async with machine.store(retention=aiodq.Retention(consumed="keep")) as store:
            jobs = store.queue("jobs")
            await jobs.put_many([aiodq.Draft(b"%d" % number, delay=(number % 2) * HOUR) for number in range(6)])
            await jobs.put(b"due by now", delay=10)
            machine.clock.advance(20)
            await jobs.seek("latest")
            await jobs.put(b"late", delay=2 * HOUR)
            for first in (0, 3, 7):
                await jobs.seek(first or "earliest")
                left = [b"1", b"3", b"5"][first // 2 :] if first < 6 else []
                assert await deferred(jobs) == [*left, b"late"]
                assert counts(jobs) == (7 - first - len(left), 0, len(left) + 1)
            await jobs.seek("earliest")
            await jobs.cancel(3)
            machine.clock.advance(HOUR)
            assert ready(jobs) == [b"0", b"1", b"2", b"4", b"5", b"due by now"]
            await jobs.seek("latest")
            assert counts(jobs) == (0, 0, 0)

    async def test_what_is_put_while_it_seeks(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"a", delay=HOUR)

            async def moving(*arguments: Any) -> None:
                await jobs.put_many([aiodq.Draft(b"b", delay=HOUR + 1), b"c"])
                await move_channel(*arguments)

            monkeypatch.setattr("aiodq.channel.move_channel", moving)
            await jobs.seek("earliest")
            assert (await deferred(jobs), counts(jobs)) == ([b"a", b"b"], (1, 0, 2))

    async def test_at_once_in_a_channel_just_named(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"a", delay=HOUR)
            new = jobs.channel("new", aiodq.ChannelOptions(start="earliest"))
            assert await deferred(new) == [b"a"]

    async def test_what_changes_meanwhile(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            for number in range(5):
                await jobs.put(b"%d" % number, delay=HOUR + number)
            found = []
            async for message in jobs.deferred_messages():
                found.append(message.body)
                if message.offset == 0:
                    await jobs.cancel(1)
                    await jobs.cancel(3)
            assert found == [b"0", b"2", b"4"]
            async for _ in jobs.deferred_messages():
                await jobs.seek("latest")
            assert await deferred(jobs) == []

    async def test_it_ends_with_its_store(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"a", delay=HOUR)
            await jobs.put(b"b", delay=HOUR)
            messages = aiter(jobs.deferred_messages())
            await anext(messages)
        with pytest.raises(aiodq.QueueShutDown):
            await anext(messages)


class TestGivingUp:
    @pytest.mark.parametrize("way", ["put", "nack"])
    async def test_it_never_comes(self, machine: Machine, way: str) -> None:
        async with machine.jobs(dead_letter="dead") as jobs:
            await jobs.put(b"a", delay=HOUR if way == "put" else None)
            if way == "nack":
                await (await jobs.get()).nack(delay=HOUR)
            await jobs.put(b"b")
            await jobs.cancel(0)
            assert counts(jobs) == (1, 0, 0)
            assert (jobs.stats().cancelled, jobs.stats().dead) == (1, 0)
            machine.crash()
        async with machine.jobs() as jobs:
            machine.clock.advance(2 * HOUR)
            assert ready(jobs) == [b"b"]

    async def test_in_the_turn_in_which_it_was_put(self, machine: Machine) -> None:
        async with machine.store(sync="os") as store:
            jobs = store.queue("jobs")
            await jobs.topic.settle_in()
            jobs.put_nowait(b"a", delay=HOUR)
            await jobs.cancel(0)
            await soon(jobs.join())

    async def test_other_channels_have_it_still(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            other = jobs.channel("other")
            await jobs.put(b"a", delay=HOUR)
            await jobs.cancel(0)
            assert (jobs.depth, other.deferred()) == (0, 1)
            machine.clock.advance(2 * HOUR)
            assert ready(other) == [b"a"]

    @pytest.mark.parametrize(
        ("offset", "says"), [(0, "settled"), (1, "in flight"), (2, "ready"), (3, "not written"), (-1, "settled")]
    )
    async def test_what_is_not_deferred_is_refused(self, machine: Machine, offset: int, says: str) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b", b"c"])
            await (await jobs.get()).ack()
            message = await jobs.get()
            with pytest.raises(aiodq.OffsetError, match=f"{says}"):
                await jobs.cancel(offset)
            assert counts(jobs) == (1, 1, 0)
            await message.ack()

    @pytest.mark.parametrize("offset", [None, "0", 0.0, True])
    async def test_what_is_no_offset_is_refused(self, machine: Machine, offset: Any) -> None:
        async with machine.jobs() as jobs:
            with pytest.raises(aiodq.InvalidOptionTypeError, match="what put"):
                await jobs.cancel(offset)

    async def test_twice(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"a", delay=HOUR)
            await jobs.cancel(0)
            with pytest.raises(aiodq.OffsetError, match="settled"):
                await jobs.cancel(0)
            assert jobs.stats().cancelled == 1
