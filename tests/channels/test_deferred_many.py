"""Very many messages with a delay, put at once, or in flight for too long at once: they count, and hold nobody up."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.consuming import deferred
from aiodq.engine.channel.source import message_source
from aiodq.engine.channel.source.requeue_cache import RequeueCache
from aiodq.engine.reading.prefetch_reader import PrefetchingReader
from aiodq.testing import FakeClock
from tests.channels.support import Machine, counts, ready, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.format.frame import Batch
    from aiodq.storage.read.log_reader import LogReader

MANY = 1700


def drafts(delay: float = 60.0) -> list[aiodq.Draft]:
    return [aiodq.Draft(b"%d" % number, delay=delay) for number in range(MANY)]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many are taken into memory at a time."""
    numbers: list[int] = []
    keep_of = RequeueCache.keep_of

    def noting(cache: RequeueCache, batch: Batch, offsets: Iterable[int], limit: int | None = None) -> None:
        those = list(offsets)
        numbers.append(len(those))
        keep_of(cache, batch, those, limit)

    monkeypatch.setattr(RequeueCache, "keep_of", noting)
    return numbers


async def test_they_count_at_once_and_are_kept_a_few_at_a_time(machine: Machine, kept: list[int]) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many(drafts())
        assert counts(jobs) == (0, 0, MANY)
        await until(lambda: sum(kept) == MANY)
        assert max(kept) <= 500
        machine.clock.advance(61)
        await until(lambda: jobs.qsize() == MANY)
        assert ready(jobs)[:2] == [b"0", b"1"]


async def test_nothing_is_kept_of_what_is_settled_meanwhile(
    machine: Machine, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns come when the test says: how many pass while a thread syncs is up to the machine."""
    later: deque[Callable[[], None]] = deque()

    class Turns:
        def call_soon(self, step: Callable[..., None], *arguments: object) -> None:
            later.append(partial(step, *arguments))

    monkeypatch.setattr(message_source, "_MOST_KEPT", 10)
    monkeypatch.setattr(message_source, "get_running_loop", Turns)
    async with machine.jobs() as jobs:
        await jobs.put_many(drafts())
        later.popleft()()
        assert kept == [10, 10]
        await jobs.purge()
        while later:
            later.popleft()()
        assert len(kept) == MANY // 10
        assert sum(kept) == 20
        assert counts(jobs) == (0, 0, 0)


async def test_those_among_others_and_behind_what_is_settled_come_when_they_are_due(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", *drafts()[:3], b"b"])
        await jobs.put_many(drafts()[:2])
        assert counts(jobs) == (2, 0, 5)
        await jobs.ack_many(await jobs.get_many(2))
        machine.clock.advance(61)
        await until(lambda: jobs.qsize() == 5)
        assert ready(jobs) == [b"0", b"1", b"2", b"0", b"1"]


async def in_turns(jobs: aiodq.Queue) -> list[int]:
    """Return how many were ready after each turn of the loop, until all are."""
    found = [jobs.qsize()]
    while found[-1] < MANY:
        await asyncio.sleep(0)
        found.append(jobs.qsize())
        assert sum(counts(jobs)) == MANY
    return found


async def test_what_is_due_at_once_is_made_ready_a_few_in_a_turn(machine: Machine) -> None:
    async with machine.jobs(max_in_flight=MANY) as jobs:
        await jobs.put_many(drafts())
        machine.clock.advance(60)
        found = await in_turns(jobs)
        assert found == sorted(found)
        assert 1 < max(after - before for before, after in pairwise(found)) <= 300
        assert ready(jobs) == [b"%d" % number for number in range(MANY)]


@pytest.mark.parametrize("again", [1, 2])
async def test_what_is_late_at_once_comes_again_a_few_in_a_turn(machine: Machine, again: int) -> None:
    """They are in hand by runs the first time, and each for itself when they have come again."""
    async with machine.jobs(max_in_flight=MANY, visibility_timeout=60) as jobs:
        await jobs.put_many([b"%d" % number for number in range(MANY)])
        for delivery in range(1, again + 1):
            messages = await jobs.get_many(MANY)
            assert [message.attempts for message in messages] == [delivery] * MANY
            machine.clock.advance(60)
            found = await in_turns(jobs)
            assert max(after - before for before, after in pairwise(found)) <= 300
        assert ready(jobs) == [b"%d" % number for number in range(MANY)]
        assert counts(jobs) == (0, MANY, 0)


class TickingClock(FakeClock):
    """Each look at the wall takes a second."""

    def now_ns(self) -> int:
        self.jump(1)
        return super().now_ns()


async def test_what_is_put_together_is_due_together(machine: Machine) -> None:
    machine.clock = TickingClock()
    async with machine.store() as store:
        jobs = store.queue("jobs")
        await jobs.put_many(drafts(3600.0))
        async with store.transaction() as transaction:
            transaction.put_many("jobs", drafts(3600.0))
        machine.clock.advance(3500)
        await asyncio.sleep(0)
        assert counts(jobs) == (0, 0, 2 * MANY)
        machine.clock.advance(100)
        await until(lambda: counts(jobs) == (2 * MANY, 0, 0))


@pytest.mark.parametrize("page", [1 << 20, 100])
async def test_those_due_in_no_order_are_read_many_at_a_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """What no longer fits into the bytes of a page is read by itself."""
    monkeypatch.setattr(deferred, "_PAGE_BYTES", page)
    delays = [float(60 + number * 7 % MANY) for number in range(MANY)]
    async with machine.jobs() as jobs:
        await jobs.put_many([aiodq.Draft(b"%d" % number, delay=delay) for number, delay in enumerate(delays)])
    looks = 0
    look = PrefetchingReader.look

    async def counting(reader: PrefetchingReader, function: Callable[[LogReader], Any]) -> Any:
        nonlocal looks
        looks += 1
        return await look(reader, function)

    monkeypatch.setattr(PrefetchingReader, "look", counting)
    async with machine.jobs() as jobs:
        found = [message async for message in jobs.deferred_messages()]
        assert [int(message.body) for message in found] == sorted(range(MANY), key=delays.__getitem__)
        assert all(earlier.due < later.due for earlier, later in pairwise(found))
    assert looks <= (10 if page > MANY else MANY)
