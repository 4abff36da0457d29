"""How long messages take, how many bytes wait: measured beside the work, and right enough."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.monitoring.latency import _SAMPLES, Histogram, LatencyMeter, latency
from aiodq.storage.log.backlog_bytes import BacklogBytes, segment_at
from aiodq.testing import FakeClock
from tests.channels.support import Machine, soon, until

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.stats import Latency


def test_percentiles_are_right_to_six_percent(seed: int) -> None:
    rng = Random(seed)
    durations = [int(math.exp(rng.uniform(8, 35))) for _ in range(5000)]
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration, 1)
    found = latency(histogram)
    assert found is not None
    assert (found.messages, found.max) == (5000, max(durations) / 1e9)
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        right = sorted(durations)[math.ceil(share * 5000) - 1] / 1e9
        assert value == pytest.approx(right, rel=0.0625, abs=1.1e-6)


def test_a_histogram_stays_small() -> None:
    histogram = Histogram()
    for bits in range(64):
        for duration in ((1 << bits) - 1, 1 << bits, (1 << bits) * 5 // 4):
            histogram.add(duration, 1)
    assert len(histogram.counts) <= 64 * 3
    assert latency(Histogram()) is None


class TestMeter:
    def feed(self, meter: LatencyMeter, clock: FakeClock, messages: int, seconds: float) -> int:
        """Deliver and ack so many evenly over a time, each after 5 ms; return how many were measured."""
        measured = at = 0
        for delivery in range(messages):
            if delivery >= at:
                at = meter.delivered(delivery, delivery, clock.now_ns() - 5_000_000, 1)
                measured += 1
            if delivery in meter.open:
                meter.acked(delivery)
            clock.advance(seconds / messages)
        return measured

    def test_few_are_all_measured(self) -> None:
        clock = FakeClock()
        meter = LatencyMeter(clock, lambda _offset, _delivery: True)
        assert self.feed(meter, clock, 200, 10) == 200
        for found in (meter.put_to_deliver(), meter.put_to_ack()):
            assert found is not None
            assert found.messages == 200
            assert found.p50 == pytest.approx(0.005, rel=0.0625)

    def test_of_many_a_sample_stands_for_all(self) -> None:
        clock = FakeClock()
        meter = LatencyMeter(clock, lambda _offset, _delivery: True)
        measured = self.feed(meter, clock, 100_000, 10)
        assert measured <= 15 * _SAMPLES
        found = meter.put_to_ack()
        assert found is not None
        assert found.messages == pytest.approx(100_000, rel=0.05)

    def test_a_minute_later_nothing_is_left(self) -> None:
        clock = FakeClock()
        meter = LatencyMeter(clock, lambda _offset, _delivery: True)
        self.feed(meter, clock, 10, 1)
        clock.advance(31)
        assert meter.put_to_deliver() is not None
        self.feed(meter, clock, 1, 1)
        assert (meter.put_to_deliver() or (0,))[0] == 11
        clock.advance(60)
        assert (meter.put_to_deliver(), meter.put_to_ack()) == (None, None)

    def test_it_tells_whether_it_is_worth_asking(self) -> None:
        clock = FakeClock()
        meter = LatencyMeter(clock, lambda _offset, _delivery: True)
        seen = [meter.idle]
        for age in (0, 59, 2):
            if not age:
                meter.delivered(1, 1, clock.now_ns(), 1)
            clock.advance(age)
            shown = meter.put_to_deliver()
            seen.append(meter.idle)
            assert meter.idle is (shown is None)
        meter.acked(1)
        assert [*seen, meter.idle] == [True, False, False, True, False]

    def test_what_is_never_acked_takes_no_memory(self) -> None:
        clock = FakeClock()
        meter = LatencyMeter(clock, lambda _offset, _delivery: True)
        for delivery in range(20_000):
            meter.delivered(delivery, delivery, clock.now_ns(), 1)
            clock.advance(1)
            assert len(meter.open) <= 4096
        assert set(meter.open) == set(range(20_000 - len(meter.open), 20_000)), "the oldest are forgotten"

    def test_what_is_no_longer_in_flight_is_forgotten_and_nothing_else(self) -> None:
        clock, flying, looks = FakeClock(), set(range(50)), 0

        def holds(offset: int, delivery: int) -> bool:
            nonlocal looks
            looks += 1
            return delivery in flying and offset == 2 * delivery

        meter = LatencyMeter(clock, holds)
        for delivery in range(10_000):
            meter.delivered(delivery, 2 * delivery, clock.now_ns(), 1)
            clock.advance(1)
            assert len(meter.open) <= 128
        assert flying < set(meter.open)
        assert looks < 30_000, "it costs each message the same"


class TestStats:
    async def test_of_a_channel(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            assert jobs.stats().put_to_deliver is None
            await jobs.put(b"x")
            machine.clock.advance(2)
            message = await soon(jobs.get())
            machine.clock.advance(3)
            await message.ack()
            found = jobs.stats()
            assert rounded(found.put_to_deliver) == (1, 2, 2)
            assert rounded(found.put_to_ack) == (1, 5, 5)

    async def test_a_delay_is_no_latency(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"x", delay=100)
            machine.clock.advance(101)
            message = await soon(jobs.get())
            machine.clock.advance(9)
            await message.ack()
            found = jobs.stats()
            assert (rounded(found.put_to_deliver), rounded(found.put_to_ack)) == ((1, 1, 1), (1, 10, 10))

    async def test_a_redelivery_is_no_first_delivery(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"x")
            machine.clock.advance(1)
            await (await soon(jobs.get())).nack()
            machine.clock.advance(9)
            await (await soon(jobs.get())).ack()
            found = jobs.stats()
            assert (rounded(found.put_to_deliver), rounded(found.put_to_ack)) == ((1, 1, 1), (1, 10, 10))

    async def test_what_is_taken_and_never_acked_takes_no_memory(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"slow", b"x"])
            slow = await soon(jobs.get())
            for _ in range(300):
                await (await soon(jobs.get())).nack()
                machine.clock.advance(0.1)
            assert len(jobs._channel_engine.latency.open) <= 130
            await slow.ack()
            found = jobs.stats().put_to_ack
            assert found is not None
            assert found.messages >= 1, "what is in flight is remembered"

    async def test_an_ack_in_a_transaction_counts(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"x", b"y"])
            machine.clock.advance(4)
            messages = await jobs.get_many(2)
            with pytest.raises(ZeroDivisionError):
                async with store.transaction() as tx:
                    tx.ack(messages[0])
                    raise ZeroDivisionError
            async with store.transaction() as tx:
                tx.ack(messages[0])
            await messages[1].ack()
            assert rounded(jobs.stats().put_to_ack) == (2, 4, 4)


def rounded(found: Latency | None) -> tuple[int, int, int]:
    """Return messages, p50 and max in whole seconds."""
    assert found is not None
    return found.messages, round(found.p50), round(found.max)


class TestBacklogBytes:
    async def test_it_follows_the_backlog(self, tmp_path: Path) -> None:
        async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(sync="os", segment_bytes=100_000)) as store:
            topic = store.topic("t")
            channel = topic.channel("c")
            for _ in range(40):
                await topic.put_many([bytes(1000)] * 10)
            waiting = 400
            assert topic.stats().segments > 4
            while True:
                assert channel.stats().backlog_bytes == pytest.approx(waiting * 1000, rel=0.03, abs=2000)
                assert topic.stats().backlog_bytes == channel.stats().backlog_bytes
                if not waiting:
                    break
                for message in await soon(channel.get_many(50)):
                    message.ack_nowait()
                waiting = channel.depth

    async def test_of_a_topic_without_channels_and_one_opened_again(self, machine: Machine) -> None:
        async with machine.store() as store:
            await store.topic("t").put_many([bytes(1000)] * 10)
            assert 10_000 <= store.topic("t").stats().backlog_bytes < 11_000
        async with machine.store() as store:
            assert 10_000 <= store.stats().topics["t"].backlog_bytes < 11_000
            channel = store.topic("t").channel("c")
            await store.topic("t").settle_in()
            for message in await soon(channel.get_many(5)):
                message.ack_nowait()
            calls = dict(machine.fs.calls)
            assert 5000 <= channel.stats().backlog_bytes < 5500
            assert store.topic("t").stats().backlog_bytes == channel.stats().backlog_bytes
            assert machine.fs.calls == calls

    async def test_what_is_acked_within_counts_no_longer(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([bytes(1000)] * 10)
            for message in (await soon(jobs.get_many(10)))[1:]:
                await message.ack()
            await until(lambda: jobs.depth == 1)
            assert 1000 <= jobs.stats().backlog_bytes < 1100

    def test_nothing_is_none(self) -> None:
        assert BacklogBytes().of((), 0, 0) == 0
        assert segment_at((), 0) is None
