"""The newest segment: it goes as the others do, once it is consumed and idle, or old; and the offsets go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.topic.retention.consumption import Consumption
from aiodq.engine.topic.retention.topic_retention import _IDLE as IDLE
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.holds import Hold, write_hold
from tests.channels.fixtures import machine
from tests.channels.support import Machine, counts, ready
from tests.queue.support import soon, until

if TYPE_CHECKING:
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["machine"]

QUICK: dict[str, Any] = {"sync_interval": 0.002}


def files(machine: Machine, topic: str = "jobs") -> list[tuple[int, int]]:
    """Return the segments on disk, each with its first offset and its size."""
    image = machine.fs.image()
    found = [path for path in image if path.startswith(f"/s/{topic}/") and path.endswith(".seg")]
    return [(int(path.rsplit("/", 1)[1][:-4]), len(image[path] or b"")) for path in sorted(found)]


async def ticks(store: aiodq.Store, count: int = 3) -> None:
    """Let a store's topics look around some times."""
    for _ in range(count):
        for name in store.topics():
            engine = store.topic(name)._engine
            engine.schedule_tick()
            while engine.tick_scheduled:
                await asyncio.sleep(0.001)
            await engine.settle_in()
            await engine.persist(lambda: None)


async def worked_off(queue: aiodq.Queue, count: int) -> None:
    for _ in range(count):
        await (await soon(queue.get())).ack()


def empty(machine: Machine, base: int) -> bool:
    return files(machine) == [(base, 64)]


async def test_it_goes_once_it_is_consumed_and_idle(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"secret"] * 5)
        await worked_off(jobs, 4)
        machine.clock.advance(10 * IDLE)
        await ticks(store)
        assert files(machine)[0][0] == 0
        await worked_off(jobs, 1)
        await until(lambda: empty(machine, 5))
        assert (jobs.begin_offset, jobs.end_offset, jobs.depth) == (5, 5, 0)
        assert not any(b"secret" in (data or b"") for data in machine.fs.image().values())
        assert await soon(jobs.put(b"a")) == 5


async def test_not_while_it_is_in_use(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        for _ in range(5):
            await jobs.put(b"a")
            await worked_off(jobs, 1)
            machine.clock.advance(IDLE * 0.9)
            await ticks(store)
        assert [base for base, _ in files(machine)] == [0]


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "cut"])
async def test_the_offsets_go_on_over_restarts(machine: Machine, crash: bool) -> None:
    for number in range(3):
        async with machine.store(**QUICK) as store:
            jobs = store.queue("jobs")
            assert (jobs.end_offset, counts(jobs)) == (number * 3, (0, 0, 0))
            assert await soon(jobs.put_many([b"a"] * 3)) == range(number * 3, number * 3 + 3)
            await worked_off(jobs, 3)
            await jobs.sync()
            machine.clock.advance(2 * IDLE)
            base = number * 3 + 3
            await until(partial(empty, machine, base))
            assert jobs.topic_stats().damages == 0
            if crash:
                machine.crash()
        found = verify_store("/s", machine.fs)
        assert (found.damages, found.losses) == ((), ())  # a watermark that was not written yet is a note
    # A power cut may bring back what was deleted last; it is as consumed as it was.
    reader = StoreReader("/s", machine.fs).topic("jobs")
    assert (reader.end_offset, len(list(reader.scan()))) == (9, 3 * crash)


async def test_when_the_store_is_opened_what_is_consumed_goes_after_a_while(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a"] * 3)
        await worked_off(jobs, 3)
    assert [base for base, _ in files(machine)] == [0]
    async with machine.store(**QUICK) as store:
        store.queue("jobs")
        machine.clock.advance(2 * IDLE)
        await until(lambda: empty(machine, 3))


async def test_channels_begin_where_they_should(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a"] * 3)
        await worked_off(jobs, 3)
        machine.clock.advance(2 * IDLE)
        await until(lambda: empty(machine, 3))
        earliest = jobs.topic.channel("earliest", aiodq.ChannelOptions(start="earliest"))
        latest = jobs.topic.channel("latest", aiodq.ChannelOptions(start="latest"))
        first = jobs.topic.channel("first", aiodq.ChannelOptions(start=0))
        await jobs.put(b"b")
        assert ready(earliest) == ready(latest) == ready(first) == ready(jobs) == [b"b"]
        assert earliest.stats().lost == first.stats().lost == 0
    assert verify_store("/s", machine.fs).ok


async def test_every_channel_has_to_have_acked_it(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        slow = jobs.topic.channel("slow")
        await jobs.put_many([b"a"] * 3)
        await worked_off(jobs, 3)
        machine.clock.advance(10 * IDLE)
        await ticks(store)
        assert [base for base, _ in files(machine)] == [0]
        await jobs.topic.delete_channel("slow")
        assert slow.name == "slow"
        await until(lambda: empty(machine, 3))


async def test_without_a_channel_it_stays(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        await store.topic("jobs").put(b"a")
        machine.clock.advance(10 * IDLE)
        await ticks(store)
        assert [base for base, _ in files(machine)] == [0]


async def test_a_hold_keeps_it_and_does_not_break_it_up(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        await jobs.put(b"a")
        write_hold(machine.fs, "/s", "spark", Hold({"jobs": 0}))
        for _ in range(4):
            await worked_off(jobs, 1)
            machine.clock.advance(2 * IDLE)
            await ticks(store)
            await jobs.put(b"a")
        assert [base for base, _ in files(machine)] == [0]
        await worked_off(jobs, 1)
        write_hold(machine.fs, "/s", "spark", Hold({"jobs": 5}))

        def gone() -> bool:
            machine.clock.advance(2)
            return empty(machine, 5)

        await until(gone)


class TestAge:
    def options(self, **policy: Any) -> dict[str, Any]:
        return {**QUICK, "retention": aiodq.Retention(max_age=timedelta(hours=1), **policy)}

    async def test_what_was_kept_for_replay_goes(self, machine: Machine) -> None:
        async with machine.store(**self.options(consumed="keep")) as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"a"] * 3)
            await worked_off(jobs, 3)
            machine.clock.advance(3599)
            await ticks(store)
            assert [message.body async for message in jobs.scan()] == [b"a"] * 3
            machine.clock.advance(2)
            await until(lambda: empty(machine, 3))
            machine.crash()
        async with machine.store(**self.options(consumed="keep")) as store:
            # A power cut may bring a deleted file back; the next owner deletes it again.
            jobs = store.queue("jobs")
            await until(lambda: empty(machine, 3))
            assert (jobs.begin_offset, jobs.end_offset) == (3, 3)

    async def test_what_was_not_consumed_is_exempt_unless_it_is_told_otherwise(self, machine: Machine) -> None:
        for unconsumed in ("keep", "delete"):
            async with machine.store(**self.options(unconsumed=unconsumed)) as store:
                jobs = store.topic(unconsumed)
                channel = jobs.channel("one")
                await jobs.put_many([b"a"] * 3)
                machine.clock.advance(4000)
                if unconsumed == "delete":
                    await until(lambda: files(machine, "delete") == [(3, 64)])
                    assert (channel.depth, channel.stats().dropped) == (0, 3)
                else:
                    await ticks(store)
                    assert ready(channel) == [b"a"] * 3
        assert verify_store("/s", machine.fs).ok

    async def test_a_topic_without_channels_that_is_told_so(self, machine: Machine) -> None:
        async with machine.store(**self.options(unconsumed="delete")) as store:
            await store.topic("jobs").put(b"a")
            machine.clock.advance(4000)
            await until(lambda: empty(machine, 1))
        assert verify_store("/s", machine.fs).findings == ()

    async def test_a_topic_in_use_lets_go_of_its_oldest_in_time(self, machine: Machine) -> None:
        """None outlives its hour by more than a quarter, though no segment is ever full or idle."""
        async with machine.store(**self.options(consumed="keep")) as store:
            jobs = store.queue("jobs")
            put_at: dict[int, float] = {}
            for _ in range(40):
                machine.clock.advance(400)
                put_at[await jobs.put(b"a")] = machine.clock.monotonic()
                await worked_off(jobs, 1)
                await ticks(store, 4)
                now = machine.clock.monotonic()
                old = [offset for offset, at in put_at.items() if now - at > 1.25 * 3600 + 400]
                assert not old or jobs.begin_offset > old[-1]
                young = [offset for offset, at in put_at.items() if now - at < 3600]
                assert jobs.begin_offset <= young[0]

    async def test_a_clock_set_back_and_ahead_takes_nothing_too_early(self, machine: Machine) -> None:
        async with machine.store(**self.options(consumed="keep")) as store:
            jobs = store.queue("jobs")
            machine.clock.jump(-7200)
            await jobs.put(b"a")
            await worked_off(jobs, 1)
            await ticks(store)
            assert [message.body async for message in jobs.scan()] == [b"a"]


async def test_a_full_disk_puts_it_off(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a"] * 3)
        await worked_off(jobs, 3)
        await jobs.sync()
        machine.fs.capacity = 0
        machine.clock.advance(2 * IDLE)
        await ticks(store)
        machine.fs.capacity = None
        machine.clock.advance(2 * IDLE)
        await until(lambda: empty(machine, 3))
        assert await soon(jobs.put(b"b")) == 3


async def test_a_topic_where_nothing_happens_wakes_nobody(machine: Machine) -> None:
    async with machine.store(**QUICK) as store:
        idle, kept, waiting = store.queue("jobs"), store.topic("kept"), store.queue("waiting")
        await idle.put(b"a")
        await worked_off(idle, 1)
        await kept.put(b"a")
        await waiting.put(b"a")
        machine.clock.advance(2 * IDLE)
        await until(lambda: empty(machine, 1))
        timers = [topic._engine.io_loop.ticker for topic in (idle.topic, kept, waiting.topic)]
        await until(lambda: not any(timer.due for timer in timers))
        await ticks(store)
        assert not any(timer.due for timer in timers)


@pytest.mark.parametrize("segments", [2, 200])
async def test_puts_and_acks_look_at_no_segments(
    machine: Machine, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    covers = Consumption.covers

    def counting(consumption: Consumption, segment: Segment) -> bool:
        nonlocal looked
        looked += 1
        return covers(consumption, segment)

    async with machine.store(segment_bytes=6000, sync_interval=3600) as store:
        jobs = store.queue("jobs")
        while jobs.topic_stats().segments < segments:
            await jobs.put_many([bytes(1000)] * 5)
        await jobs.put(b"")  # the first that settles all of the oldest segment does not count
        (await jobs.get()).ack_nowait()
        await jobs.sync()
        monkeypatch.setattr(Consumption, "covers", counting)
        for _ in range(200):
            await jobs.put(b"a")
            await jobs.sync()
        rolled = jobs.topic_stats().segments - segments
        for _ in range(3):
            await (await jobs.get()).ack()
        assert 1 <= rolled <= 4
        assert looked <= rolled * 3
