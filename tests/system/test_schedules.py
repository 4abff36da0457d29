"""Random work with random cancellations, with threads and on real files: each message ends exactly once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from tests.delivery.support import in_flight
from tests.processes import WATCHDOG
from tests.queue.support import turns
from tests.system.cancelling import KINDS, Outcome, ended, started
from tests.system.support import QuickFileSystem, descriptors_under, drain, engine_threads, nothing_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiodq import Message, Queue

SCHEDULES = 48
EXHAUSTIVELY = 1000
PUTS = 12
"""By each producer."""


class Schedule:
    """A queue with producers and consumers who are cancelled at any step, and what each of them was told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.stored: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.held: dict[int, Message] = {}
        self.order: list[list[bytes]] = []
        self._number = 0

    async def maybe_cancelled(self, operation: Callable[[], Awaitable[Any]]) -> Outcome:
        """Run an operation to its end, or cancel it after some steps in one of the ways."""
        task, cancel = started(self.rng.choice(KINDS), operation)
        try:
            if self.rng.random() < 0.6:
                await turns(1 + int(self.rng.expovariate(0.1)))
                if not task.done():
                    cancel()
            return await ended(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise

    def fresh(self) -> bytes:
        self._number += 1
        return b"%d:" % self._number + bytes(self.rng.choice((0, 10, 3000)))

    async def produce(self, queue: Queue) -> None:
        mine: list[bytes] = []
        self.order.append(mine)
        for _ in range(PUTS):
            bodies = [self.fresh() for _ in range(self.rng.choice((1, 1, 3)))]
            mine += bodies
            outcome = await self.maybe_cancelled(self.put(queue, bodies))
            (self.perhaps if outcome.cancelled else self.stored).update(bodies)

    def put(self, queue: Queue, bodies: list[bytes]) -> Callable[[], Awaitable[Any]]:
        if len(bodies) > 1:
            return lambda: queue.put_many(bodies)
        if self.rng.random() < 0.2:
            with suppress(aiodq.QueueFull):
                receipt = queue.put_nowait(bodies[0])

                async def wait() -> int:
                    return await receipt

                return wait
        return lambda: queue.put(bodies[0])

    async def consume(self, queue: Queue) -> None:
        while True:
            operation = self.rng.choice((queue.get, lambda: queue.get_many(3), lambda: queue.get_many(3, linger=0.001)))
            outcome = await self.maybe_cancelled(operation)
            if outcome.cancelled:
                await asyncio.sleep(0)
                continue
            messages = outcome.result if isinstance(outcome.result, list) else [outcome.result]
            for message in messages:
                await self.settle(message)

    async def settle(self, message: Message) -> None:
        choice = self.rng.choice(("ack", "ack", "nack", "release", "context", "hold"))
        if choice == "ack":
            await self.maybe_cancelled(lambda: self.ack(message))
        elif choice == "nack":
            await self.maybe_cancelled(message.nack)
        elif choice == "release":
            message.release()
        elif choice == "context":
            outcome = await self.maybe_cancelled(lambda: self.in_context(message))
            assert outcome.cancelled or outcome.result
        elif len(self.held) < 3:
            self.held[message.offset] = message
        else:
            await message.nack(count_attempt=False)

    async def ack(self, message: Message) -> None:
        self.acked[message.body] += 1
        await message.ack()

    async def in_context(self, message: Message) -> bool:
        async with message:
            await asyncio.sleep(0)
            if self.rng.random() < 0.5:
                await asyncio.sleep(0.0001)
            # From here to the ack nothing suspends: it is acked, whatever comes.
            self.acked[message.body] += 1
        return True

    async def look(self, queue: Queue) -> None:
        while True:
            await self.maybe_cancelled(self.rng.choice((queue.peek, queue.sync, queue.topic.settle_in, queue.join)))
            begin, end = queue.begin_offset, queue.end_offset
            if begin < end:
                with suppress(aiodq.OffsetError):
                    await self.maybe_cancelled(lambda: queue.read(self.rng.randrange(begin, end)))
            await self.maybe_cancelled(lambda: self.walk(queue))

    @staticmethod
    async def walk(queue: Queue) -> None:
        offsets = [message.offset async for message in queue.scan()]
        assert offsets == sorted(set(offsets))

    async def run(self, queue: Queue) -> list[bytes]:
        """Work until the producers are through; return what is left in the queue, in order."""
        workers = [asyncio.create_task(self.consume(queue)) for _ in range(3)]
        workers.append(asyncio.create_task(self.look(queue)))
        await asyncio.gather(*(self.produce(queue) for _ in range(3)))
        # Who waits for room was let in; now the consumers go, each in the middle of something.
        for worker in workers:
            worker.cancel()
        for result in await asyncio.gather(*workers, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result
        await queue.topic.settle_in()
        await queue.configure(aiodq.ChannelOptions(max_in_flight=1_000_000))
        left = {message.offset: message.body for message in drain(queue)}
        left |= {offset: message.body for offset, message in self.held.items()}
        # What a consumer had in hand when it was cancelled is still in flight.
        state = queue._channel_engine.state
        for offset in () if state is None else in_flight(state).keys() - left.keys():
            left[offset] = (await queue.read(offset)).body
        assert queue.depth == len(left) == queue.in_flight()
        return [left[offset] for offset in sorted(left)]

    def judge(self, left: list[bytes]) -> None:
        """Each message ends exactly once: acked or still there."""
        times = self.acked + Counter(left)
        assert not {body: n for body, n in times.items() if n != 1}, "acked twice, or acked and still there"
        assert times.keys() >= self.stored, "lost"
        assert times.keys() <= self.stored | self.perhaps, "nobody put this"
        for mine in self.order:
            mine_left = [body for body in left if body in set(mine)]
            assert mine_left == [body for body in mine if body in set(mine_left)], "out of order"


async def one_schedule(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    options = aiodq.StoreOptions(
        sync=rng.choice(("always", "interval", "os")),
        segment_bytes=rng.choice((2_000, 20_000)),
        max_messages=rng.choice((None, 8)),
        memory_bytes=1 << 16,
    )
    channel = aiodq.ChannelOptions(max_in_flight=rng.choice((6, 1000)))
    schedule = Schedule(rng)
    with nothing_left():
        async with asyncio.timeout(WATCHDOG), aiodq.open_queue(path, options, channel, fs=QuickFileSystem()) as queue:
            left = await schedule.run(queue)
        schedule.judge(left)
        async with aiodq.open_queue(path, fs=QuickFileSystem()) as queue:
            assert [message.body for message in drain(queue)] == left
            assert queue.topic_stats().damages == 0
    assert descriptors_under(path) == []
    assert engine_threads() == []


async def run_schedules(path: Path, seed: int, number: int) -> None:
    for schedule in range(seed, seed + number):
        try:
            await one_schedule(path / str(schedule), schedule)
        except BaseException as error:
            error.add_note(f"the schedule of seed {schedule}")
            raise


@pytest.mark.parametrize("part", range(2))
async def test_random_schedules(part: int, tmp_path: Path, seed: int) -> None:
    half = SCHEDULES // 4  # two parts, on two loops
    await run_schedules(tmp_path, seed + part * half, half)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
async def test_a_thousand_random_schedules(part: int, tmp_path: Path, seed: int) -> None:
    size = EXHAUSTIVELY // 20
    await run_schedules(tmp_path, seed + part * size, size)
