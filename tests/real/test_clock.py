"""A wall clock that jumps an hour back, a day ahead, to 1970: nothing is lost or stalls, every moment has a place."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
from aiodq.testing import FakeClock
from tests.queue.support import until
from tests.system.support import QuickFileSystem, bodies, drain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq import Queue, StoreOptions, Topic

    Record = Callable[[str, Any], None]

HOUR: Final = 3600
DAY: Final = 24 * HOUR
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def options(**retention: Any) -> StoreOptions:
    return aiodq.StoreOptions(
        segment_bytes=2_000, sync="interval", sync_interval=0.005, retention=aiodq.Retention(**retention)
    )


def opening(path: Path, clock: FakeClock, **retention: Any) -> aiodq.QueueOpening:
    return aiodq.open_queue(path, options(**retention), fs=QuickFileSystem(), clock=clock)


def to_1970(clock: FakeClock) -> None:
    clock.jump(-clock.now_ns() / 1e9)


class Wanderer:
    """Puts, gets and acks under a clock that jumps, beside a model: each message's time, and what was not acked."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.times: list[datetime] = []
        self.waiting: deque[bytes] = deque()
        self.jumps = 0

    def move(self) -> None:
        """Let a little time go by, or jump."""
        self.clock.advance(self.rng.uniform(0, 100))
        if self.rng.random() < 0.4:
            self.jumps += 1
            self.rng.choice((self.back, self.ahead, lambda: to_1970(self.clock), self.on_time))()

    def back(self) -> None:
        self.clock.jump(-min(HOUR, self.clock.now_ns() // 10**9))

    def ahead(self) -> None:
        self.clock.jump(DAY)

    def on_time(self) -> None:
        self.clock.jump((FakeClock().now_ns() - self.clock.now_ns()) / 1e9)

    async def put(self, queue: Queue) -> None:
        new = [self.rng.randbytes(self.rng.randrange(8, 600)) for _ in range(self.rng.randint(1, 4))]
        offsets = await queue.put_many(new)
        self.waiting.extend(new)
        self.times += [(await queue.read(offset)).timestamp for offset in offsets]
        await until(lambda: queue.topic.durable_offset == queue.end_offset)

    async def consume(self, queue: Queue) -> None:
        for _ in range(self.rng.randint(1, 6)):
            if not self.waiting:
                return
            message = await queue.get(timeout=60)
            assert message.body == self.waiting[0]
            if self.rng.random() < 0.2:
                await message.nack()
            else:
                await message.ack()
                self.waiting.popleft()

    async def look_up(self, topic: Topic) -> None:
        """Ask for moments near and far: the first message of that time or later, wherever its neighbours stand."""
        moments = [EPOCH, datetime(2100, 1, 1, tzinfo=UTC), EPOCH + timedelta(microseconds=self.clock.now_ns() // 1000)]
        moments += self.rng.sample(self.times, min(3, len(self.times)))
        for moment in moments:
            before = topic.begin_offset
            found = await topic.offset_at(moment)
            # Retention may take segments from the front meanwhile.
            right = {self.first(begin, moment) for begin in range(before, topic.begin_offset + 1)}
            assert found in right, f"{moment}: {found}, not {right}"

    def first(self, begin: int, moment: datetime) -> int:
        return next((n for n in range(begin, len(self.times)) if self.times[n] >= moment), len(self.times))

    async def live(self, steps: int) -> None:
        """Open, do this and that, and close."""
        async with opening(self.path, self.clock, consumed="keep", max_age=timedelta(hours=1)) as queue:
            await queue.topic.settle_in()
            assert queue.end_offset == len(self.times)
            for _ in range(steps):
                self.move()
                await (self.put(queue) if self.rng.random() < 0.5 else self.consume(queue))
                await self.look_up(queue.topic)
            assert queue.depth == len(self.waiting)
        self.move()


async def wander(path: Path, seed: int, lives: int) -> Wanderer:
    wanderer = Wanderer(path, seed)
    for _ in range(lives):
        await wanderer.live(20)
    async with opening(path, wanderer.clock) as queue:
        await queue.topic.settle_in()
        assert bodies([await queue.get(timeout=60) for _ in wanderer.waiting]) == list(wanderer.waiting)
        assert queue.topic_stats().damages == 0
    return wanderer


async def test_a_clock_that_jumps_loses_nothing_and_finds_every_moment(
    tmp_path: Path, seed: int, record_property: Record
) -> None:
    wanderer = await wander(tmp_path, seed, 5)
    record_property("trials", wanderer.jumps)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_clock_that_jumps_for_long_loses_nothing_and_finds_every_moment(
    tmp_path: Path, seed: int, record_property: Record
) -> None:
    jumps = 0
    for number in range(20):
        jumps += (await wander(tmp_path / str(number), seed + number, 10)).jumps
    record_property("trials", jumps)


async def fill_and_ack(queue: Queue, number: int) -> None:
    await queue.put_many([bytes(500)] * number)
    for _ in range(number):
        await (await queue.get(timeout=60)).ack()
    await queue.sync()


@pytest.mark.parametrize("away", [-HOUR, DAY, None], ids=["an hour back", "a day ahead", "1970"])
async def test_retention_by_age_goes_on_after_a_jump_and_back(tmp_path: Path, away: int | None) -> None:
    clock = FakeClock()
    start = clock.now_ns()
    async with opening(tmp_path, clock, consumed="keep", max_age=timedelta(hours=2)) as queue:
        await fill_and_ack(queue, 20)
        if away is None:
            to_1970(clock)
        else:
            clock.jump(away)
        await fill_and_ack(queue, 20)
        await queue.put(b"not acked")
        clock.jump((start - clock.now_ns()) / 1e9)
        clock.advance(2 * DAY)
        await queue.put_many([bytes(500)] * 8)
        await until(lambda: queue.begin_offset >= 37)
        assert queue.begin_offset <= 40
        assert bodies(drain(queue))[0] == b"not acked"


async def test_a_jump_to_1970_gives_up_nothing_that_is_waited_for(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opening(tmp_path, clock, consumed="keep", unconsumed="delete", max_age=timedelta(hours=1)) as queue:
        await queue.put_many([b"%d" % number + bytes(500) for number in range(20)])
        to_1970(clock)
        await queue.put_many([b"%d" % number + bytes(500) for number in range(20, 40)])
        await queue.sync()
        await until(lambda: queue.topic.durable_offset == 40)
        assert (queue.begin_offset, queue.depth) == (0, 40)


async def test_a_moment_in_the_future_does_not_keep_retention_by_age_for_years(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opening(tmp_path, clock, consumed="keep", max_age=timedelta(hours=1)) as queue:
        clock.jump(50 * 365 * DAY)
        await fill_and_ack(queue, 4)
        clock.jump(-50 * 365 * DAY)
        await fill_and_ack(queue, 40)
        clock.advance(DAY)
        await fill_and_ack(queue, 8)
        await fill_and_ack(queue, 8)
        assert queue.begin_offset > 0


@pytest.mark.parametrize("away", [HOUR, 3650 * DAY, -HOUR, None], ids=["ahead", "years ahead", "back", "1970"])
async def test_a_jump_of_the_clock_makes_no_message_too_old(tmp_path: Path, away: int | None) -> None:
    clock = FakeClock()
    start = clock.now_ns()
    async with opening(tmp_path, clock, consumed="keep", unconsumed="delete", max_age=1800.0) as queue:
        await put_in_time(queue, 0, 20)
        if away is None:
            to_1970(clock)
        else:
            clock.jump(away)
        await put_in_time(queue, 20, 40)
        clock.advance(60.0)
        await put_in_time(queue, 40, 60)
        clock.jump((start - clock.now_ns()) / 1e9)
        clock.advance(60.0)
        await put_in_time(queue, 60, 80)
        assert (queue.begin_offset, queue.depth) == (0, 80)


@pytest.mark.parametrize("away", [-HOUR, None], ids=["an hour back", "1970"])
async def test_what_is_too_old_goes_under_a_clock_that_was_set_back(tmp_path: Path, away: int | None) -> None:
    clock = FakeClock()
    async with opening(tmp_path, clock, consumed="keep", unconsumed="delete", max_age=1800.0) as queue:
        await put_in_time(queue, 0, 20)
        await put_in_time(queue, 20, 40)
        if away is None:
            to_1970(clock)
        else:
            clock.jump(away)
        clock.advance(4000.0)
        await put_in_time(queue, 40, 60)
        await until(lambda: queue.begin_offset >= 20)
        assert queue.begin_offset <= 40


async def put_in_time(queue: Queue, first: int, stop: int) -> None:
    """Put messages, several to a segment, and let retention look at them."""
    await queue.put_many([b"%d" % number + bytes(500) for number in range(first, stop)])
    await queue.sync()
    await until(lambda: queue.topic.durable_offset == stop)
    for _ in range(20):
        await asyncio.sleep(0.005)
