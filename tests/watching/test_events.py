"""`store.events()`: what a program hears of a store."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.monitoring.events import EventBuffer, Events
from aiodq.testing import FakeClock, FaultPlan, SimulatedFileSystem
from tests.channels.support import Machine, soon
from tests.watching.support import at_hand, flip, kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def a_segment(machine: Machine, messages: int = 20) -> str:
    """Return the path of a topic's only segment, which holds so many messages of their own."""
    async with machine.store() as store:
        jobs = store.queue("jobs")
        for number in range(messages):
            await jobs.put(b"%d" % number * 10)
    return "/s/jobs/00000000000000000000.seg"


class TestKinds:
    async def test_a_time_out_is_told_of_each_message(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
            await jobs.put_many([b"a", b"b", b"c"])
            events = store.events()
            await jobs.get_many(3)
            machine.clock.advance(5)
            found = at_hand(events)
            assert [(event.kind, event.topic, event.channel, event.offset) for event in found] == [
                ("timeout", "jobs", "default", offset) for offset in range(3)
            ]

    @pytest.mark.parametrize("letters", [None, "letters"])
    async def test_a_message_that_is_given_up(self, machine: Machine, letters: str | None) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter=letters))
            await jobs.put(b"a")
            events = store.events()
            await (await soon(jobs.get())).reject("no good")
            event = await soon(anext(events))
            assert (event.kind, event.topic, event.channel, event.offset) == ("dead", "jobs", "default", 0)
            assert "no good" in event.text
            assert ("letters" in event.text) == (letters is not None)
            assert ("for good" in event.text) == (letters is None)

    async def test_the_last_attempt_of_a_channel_without_dead_letters(self, machine: Machine) -> None:
        """It drops for good: what was silent (D20)."""
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1))
            await jobs.put(b"a")
            events = store.events()
            await (await soon(jobs.get())).nack()
            event = await soon(anext(events))
            assert (event.kind, event.offset) == ("dead", 0)
            assert "for good" in event.text

    async def test_damage_found_at_opening_is_heard_by_who_comes_right_after(self, machine: Machine) -> None:
        path = await a_segment(machine)
        flip(machine.fs, path, 300)
        async with machine.store() as store:
            found = at_hand(store.events())
            assert "damage" in kinds(found)
            assert {event.topic for event in found} == {"jobs"}
            assert any(path in event.text for event in found)
            assert kinds(at_hand(store.events())) == kinds(found)

    async def test_what_was_cut_off_at_opening(self, machine: Machine) -> None:
        await a_segment(machine)
        async with machine.store() as store:
            await store.queue("jobs").put(b"x" * 1000)
            machine.fs = SimulatedFileSystem(machine.fs.image())
        path = next(name for name in machine.fs.listdir("/s/jobs")[::-1] if name.endswith(".seg"))
        file = machine.fs.open(f"/s/jobs/{path}", write=True)
        file.write_at([b"half a frame"], file.size())
        file.close()
        async with machine.store() as store:
            found = at_hand(store.events())
            assert [(event.kind, event.topic) for event in found] == [("recovered", "jobs")]

    async def test_what_overflow_drops(self, machine: Machine) -> None:
        async with machine.store(max_messages=3, overflow="drop_oldest") as store:
            jobs, events = store.queue("jobs"), store.events()
            await jobs.put_many([b"a", b"b", b"c"])
            await jobs.put(b"d")
            (event,) = at_hand(events)
            assert (event.kind, event.topic, event.channel, event.offset) == ("dropped", "jobs", "default", 0)
            assert event.text.startswith("1 message: ")
            unread = store.topic("unread")
            await unread.put_many([b"a", b"b", b"c"])
            await unread.put(b"d")
            (event,) = at_hand(events)
            assert (event.kind, event.topic, event.channel, event.offset) == ("dropped", "unread", None, 0)

    async def test_what_retention_deletes_unread(self, machine: Machine) -> None:
        retention = aiodq.Retention(max_segments=2, unconsumed="delete")
        async with machine.store(segment_bytes=2000, retention=retention) as store:
            jobs, events = store.queue("jobs"), store.events()
            for _ in range(10):
                await jobs.put(b"x" * 900)
            found = [await soon(anext(events)), *at_hand(events)]
            assert {(event.kind, event.topic, event.channel) for event in found} == {("dropped", "jobs", "default")}
            assert all("retention" in event.text for event in found)

    @pytest.mark.parametrize("cold", [False, True])
    async def test_damage_that_a_channel_comes_to(self, machine: Machine, *, cold: bool) -> None:
        path = await a_segment(machine, 50)
        async with machine.store(memory_bytes=1 << 16) as store:
            jobs, events = store.queue("jobs"), store.events()
            flip(machine.fs, path, 1000)
            found: list[aiodq.Message] = []
            while len(found) < 49:
                found.append(jobs.get_nowait() if cold else await soon(jobs.get()))
            event, of_topic = await soon(anext(events)), await soon(anext(events))
            assert (event.kind, event.topic, event.channel) == ("damage", "jobs", "default")
            assert {message.offset for message in found} == set(range(50)) - {event.offset}
            assert (of_topic.kind, of_topic.channel, of_topic.offset) == ("damage", None, event.offset)
            assert f"{path} at byte " in of_topic.text
            assert at_hand(events) == []


class TestListening:
    async def test_several_hear_the_same(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"a", b"b"])
            first, second = store.events(), store.events()
            await (await soon(jobs.get())).reject()
            await (await soon(jobs.get())).reject()
            assert [event.offset for event in at_hand(first)] == [event.offset for event in at_hand(second)] == [0, 1]

    async def test_it_ends_at_close_once_everything_was_seen(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"a")
            waiting, later = store.events(), store.events()
            hearing = asyncio.ensure_future(collected(waiting))
            await (await soon(jobs.get())).reject()
        assert kinds(await soon(hearing)) == kinds(await soon(collected(later))) == ["dead"]
        assert await soon(collected(later)) == []

    async def test_a_store_that_failed_says_so(self, machine: Machine) -> None:
        store = await aiodq.open("/s", fs=machine.fs, clock=machine.clock)
        jobs = store.queue("jobs")
        await jobs.put(b"a")
        hearing = asyncio.ensure_future(collected(store.events()))
        machine.fs.plan = FaultPlan.parse("sync@1:EIO:lasting")
        with pytest.raises(aiodq.StoreFailedError):
            await jobs.put(b"b")
        await store.aclose()
        assert kinds(await soon(hearing)) == ["failed"]

    async def test_who_is_slow_loses_the_oldest_and_can_tell_how_many(self) -> None:
        buffer = EventBuffer(most=3)
        events = Events(buffer)
        for offset in range(10):
            buffer.add(aiodq.Event("dead", "t", "c", offset))
        assert [event.offset for event in at_hand(events)] == [7, 8, 9]
        assert events.dropped == 7

    async def test_a_cancelled_wait_loses_nothing(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
            await jobs.put(b"a")
            await soon(jobs.get())
            events = store.events()
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            machine.clock.advance(5)
            waiting.cancel()  # in the turn in which it was woken
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await soon(anext(events))).offset == 0

    async def test_two_tasks_may_share_one(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"a", b"b"])
            events = store.events()
            waiting = [asyncio.ensure_future(anext(events)) for _ in range(2)]
            await asyncio.sleep(0)
            for _ in range(2):
                await (await soon(jobs.get())).reject()
            assert sorted([(await soon(one)).offset or 0 for one in waiting]) == [0, 1]

    async def test_nobody_listens_any_more_where_the_iterator_is_gone(self, machine: Machine) -> None:
        async with machine.store() as store:
            listeners = store._store_engine.reporter.listeners
            assert not listeners
            events = store.events()
            assert listeners
            del events
            gc.collect()
            assert not listeners

    async def test_after_close_there_is_only_the_opening(self) -> None:
        store = await aiodq.open("/s", fs=Machine().fs, clock=FakeClock())
        await store.aclose()
        assert await soon(collected(store.events())) == []


async def collected(events: AsyncIterator[aiodq.Event]) -> list[aiodq.Event]:
    return [event async for event in events]
