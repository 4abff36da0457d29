"""A machine whose clock is nonsense: a battery that is empty, a year that no file can say."""

from __future__ import annotations

import time
from typing import NoReturn

import pytest

import aiodq
from aiodq.testing import FakeClock, SimulatedFileSystem
from tests.channels.support import counts, soon

CENTURY = 100 * 365 * 86_400


def in_2263() -> NoReturn:
    """Answer as Python does where 64 bits of nanoseconds are not enough."""
    raise OverflowError("timestamp too large to convert to C _PyTime_t")


@pytest.mark.parametrize("now", [in_2263, lambda: (1 << 63) - 1, lambda: -(10**18)], ids=["2263", "2262", "1938"])
async def test_a_clock_that_is_wrong_by_centuries_stops_nothing(now: object, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimulatedFileSystem()
    async with aiodq.open("/s", fs=fs) as store:
        await store.topic("jobs").put(b"before")
    monkeypatch.setattr(time, "time_ns", now)
    async with aiodq.open("/s", fs=fs) as store:
        jobs = store.queue("jobs")
        await soon(jobs.put(b"later", delay=CENTURY))
        await soon(jobs.put(b"at once", ttl=CENTURY))
        message = await soon(jobs.get())
        await message.nack(CENTURY)
        async with store.transaction() as tx:
            tx.put("jobs", b"in a transaction", delay=CENTURY)
        await soon(jobs.sync())
        assert counts(jobs) == (1, 0, 3)
        assert store.stats().failed is None
    monkeypatch.undo()
    async with aiodq.open("/s", fs=fs) as store:
        assert store.queue("jobs").depth == 4


@pytest.mark.parametrize("now", [-(10**18), -1, 0], ids=["1938", "1969", "1970"])
async def test_a_clock_before_1970_holds_back_only_what_is_to_wait(now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: now)
    async with aiodq.open("/s", fs=SimulatedFileSystem()) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([aiodq.Draft(b"at once"), aiodq.Draft(b"later", delay=60), aiodq.Draft(b"over", ttl=0)])
        message = await soon(jobs.get())
        assert (message.body, message.timestamp_ns) == (b"at once", 1)
        await message.ack()
        assert counts(jobs) == (0, 0, 1)


@pytest.mark.parametrize("centuries", [3, 6, -1, -20])
async def test_a_fake_clock_may_be_set_anywhere(centuries: int) -> None:
    clock = FakeClock()
    async with aiodq.open("/s", fs=SimulatedFileSystem(), clock=clock) as store:
        jobs = store.queue("jobs")
        await soon(jobs.put(b"before"))
        clock.jump(centuries * CENTURY)
        await soon(jobs.put(b"at once"))
        await soon(jobs.put(b"later", delay=CENTURY))
        await soon(store.queue("more").put(b"in a new segment", ttl=CENTURY))
        assert [(await soon(jobs.get())).body for _ in range(2)] == [b"before", b"at once"]
        assert counts(jobs) == (0, 2, 1)
        assert store.stats().failed is None


async def test_what_has_only_one_of_the_clocks_is_refused() -> None:
    with pytest.raises(aiodq.InvalidOptionError, match="clock is an object with a method now_ns"):
        await aiodq.open("/s", fs=SimulatedFileSystem(), clock=time)  # type: ignore[arg-type]
