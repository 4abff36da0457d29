"""A queue under random work on a simulated machine, against a plain model: sets of bodies, and what was promised."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

import anyio

import aiodq
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq import Message, Queue

__all__ = ["run_schedule"]

PATH: Final = "/store"
_PRODUCERS: Final = 3
_CONSUMERS: Final = 3
_STEPS: Final = 10
_LIVES: Final = 2
_LONG: Final = 60.0  # more than anything takes here, and little enough for all that looks around once a second


class _Cancelled(Exception):  # noqa: N818 - an outcome, not an error
    """The operation did not complete."""


class Simulation:
    """What was asked of a queue, what it answered, and what must follow from that.

    Attributes:
        stored: bodies that a put returned for, or that were accepted without waiting.
        perhaps: bodies of cancelled puts.
        acked: how often each body was acked.
        put_at: when each body's put began and ended, counted in events; those that never ended are not there.
        purges: when each purge began and ended.
        advanced: when time went by last, counted in events.
        due: before when a body must not be handed out, by the clock.
        buried: bodies that may have gone to the dead-letter topic.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.fs = SimulatedFileSystem()
        self.stored: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.held: dict[bytes, Message] = {}
        self.order: list[list[bytes]] = []
        self.put_at: dict[bytes, tuple[int, int]] = {}
        self.purges: list[tuple[int, int]] = []
        self.due: dict[bytes, float] = {}
        self.buried: set[bytes] = set()
        self.clock = FakeClock()
        self.advanced = 0
        self.channel = aiodq.ChannelOptions()
        self.trials = 0
        self._events = 0
        self._numbers = 0

    def event(self) -> int:
        """Return a moment."""
        self._events += 1
        return self._events

    # --- doing

    async def attempt(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        """Run an operation, perhaps cancelled in one of three ways after some time."""
        self.trials += 1
        way = self.rng.choice(("run", "run", "task", "timeout", "scope"))
        after = self.rng.choice((0.0, self.rng.random() * 0.002, self.rng.random() * 0.02))
        if way == "task":
            return await self._in_task(operation, after)
        try:
            if way == "scope":
                with anyio.move_on_after(after):
                    return await operation()
                raise _Cancelled
            async with asyncio.timeout(_LONG if way == "run" else after):
                return await operation()
        except TimeoutError:
            raise _Cancelled from None

    @staticmethod
    async def _in_task(operation: Callable[[], Awaitable[Any]], after: float) -> Any:
        task = asyncio.ensure_future(operation())
        try:
            await asyncio.sleep(after)
        finally:
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            raise _Cancelled
        return task.result()

    def bodies(self, count: int) -> list[bytes]:
        self._numbers += count
        numbers = range(self._numbers - count, self._numbers)
        return [b"%d:" % number + bytes(self.rng.choice((0, 10, 3000))) for number in numbers]

    async def produce(self, queue: Queue, mine: list[bytes]) -> None:
        for _ in range(_STEPS):
            bodies = self.bodies(self.rng.choice((1, 1, 3)))
            mine += bodies
            began = self.event()
            try:
                await self.put(queue, bodies)
            except _Cancelled:
                self.perhaps.update(body for body in bodies if body not in self.stored)
            except aiodq.QueueFull:
                mine[-len(bodies) :] = []
            else:
                self.stored.update(bodies)
            self.put_at |= dict.fromkeys(bodies, (began, self.event()))
            self.look(queue)
            await self.rest()

    async def put(self, queue: Queue, bodies: list[bytes]) -> None:
        if self.rng.random() < 0.15:
            self.due |= dict.fromkeys(bodies, self.clock.monotonic() + 3)
            await self.attempt(lambda: queue.put_many(bodies, delay=3))
        elif len(bodies) > 1:
            offsets = await self.attempt(lambda: queue.put_many(bodies))
            assert len(offsets) == len(bodies)
        elif self.rng.random() < 0.3:
            receipt = queue.put_nowait(bodies[0])
            self.stored.update(bodies)

            async def wait() -> int:
                return await receipt

            await self.attempt(wait)
        else:
            await self.attempt(lambda: queue.put(bodies[0]))

    async def consume(self, queue: Queue) -> None:
        while True:
            get = self.rng.choice((
                queue.get,
                lambda: queue.get(0.005),
                lambda: queue.get_many(3),
                lambda: queue.get_many(3, linger=0.002),
            ))  # fmt: skip
            with suppress(_Cancelled, TimeoutError):
                asked = self.event()
                found = await self.attempt(get)
                messages = found if isinstance(found, list) else [found]
                for message in messages:
                    self.took(message, asked)
                for message in messages:
                    await self.settle(message)
            self.look(queue)
            await self.rest()

    def took(self, message: Message, asked: int) -> None:
        """What is handed out must exist, be nobody else's, and not have ended before it was asked for."""
        body = message.body
        assert body in self.put_at or body in self.stored or self.order, "nobody put this"
        # Of who was handed something before time went by, nobody can tell whether it is still his.
        late = self.advanced > asked
        assert body not in self.acked or late, f"{body!r} came again after its ack"
        assert body not in self.held or self.purges or late, f"{body!r} was handed out twice"
        assert self.clock.monotonic() >= self.due.get(body, 0) or late, f"{body!r} came early"
        ended = self.put_at.get(body, (0, self._events + 1))[1]
        assert not any(ended < began and end < asked for began, end in self.purges), f"{body!r} was purged"
        if not late:
            self.held[body] = message

    async def settle(self, message: Message) -> None:
        choice = self.rng.choice(("ack", "ack", "ack_nowait", "nack", "later", "reject", "release", "context", "hold"))
        if choice == "hold" or (choice == "reject" and self.channel.dead_letter is None):
            return
        await self.rest()
        self.held.pop(message.body, None)
        with suppress(aiodq.NotInFlightError, _Cancelled):
            if choice == "ack":
                await self.attempt(lambda: self.ack(message))
            elif choice == "ack_nowait":
                message.ack_nowait()
                self.acked[message.body] += 1
            elif choice == "nack":
                await self.attempt(message.nack)
            elif choice == "later":
                message.nack_nowait(2)
                self.due[message.body] = self.clock.monotonic() + 2
            elif choice == "reject":
                self.buried.add(message.body)
                await self.attempt(message.reject)
            elif choice == "release":
                message.release()
            else:
                await self.attempt(lambda: self.in_context(message))

    async def ack(self, message: Message) -> None:
        message.ack_nowait()
        self.acked[message.body] += 1
        # What `ack` waits for.
        assert message._channel_engine is not None
        await message._channel_engine.committed()

    async def in_context(self, message: Message) -> None:
        async with message:
            await self.rest()
            message.ack_nowait()
            self.acked[message.body] += 1

    async def maintain(self, queue: Queue) -> None:
        for _ in range(_STEPS // 2):
            choice = self.rng.choice(("purge", "sync", "peek", "read", "scan", "join", "time"))
            await self.rest()
            with suppress(_Cancelled, aiodq.OffsetError):
                if choice == "purge" and self.rng.random() < 0.4:
                    await self.purge(queue)
                elif choice == "read" and queue.begin_offset < queue.durable_offset:
                    await self.attempt(lambda: queue.read(queue.durable_offset - 1))
                elif choice == "time":
                    # What is in flight may be for too long now, and come again.
                    self.held.clear()
                    self.advanced = self.event()
                    self.clock.advance(self.rng.choice((1.0, 4.0)))
                elif choice == "scan":
                    await self.attempt(lambda: self.walk(queue))
                elif choice in {"sync", "peek", "join"}:
                    await self.attempt(getattr(queue, choice))

    async def purge(self, queue: Queue) -> None:
        """Cancelled or not, it is done; only its end is not known then."""
        number = len(self.purges)
        self.purges.append((self.event(), self._events + 10**9))
        await self.attempt(queue.purge)
        self.purges[number] = (self.purges[number][0], self.event())

    @staticmethod
    async def walk(queue: Queue) -> None:
        offsets = [message.offset async for message in queue.scan()]
        assert offsets == sorted(set(offsets))

    async def rest(self) -> None:
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice((0.0, self.rng.random() * 0.01)))

    @staticmethod
    def look(queue: Queue) -> None:
        """The counts agree at every moment."""
        ready, in_flight, deferred, depth = queue.qsize(), queue.in_flight(), queue.deferred(), queue.depth
        assert min(ready, in_flight, deferred) >= 0
        assert depth == ready + in_flight + deferred
        assert queue.empty() is (ready == 0)
        assert queue.durable_offset <= queue.end_offset

    # --- lives

    async def live(self, options: aiodq.StoreOptions, channel: aiodq.ChannelOptions, depth: int | None) -> int:
        """Open, work, close; return the depth then."""
        executor = SimulatedExecutor(asyncio.get_running_loop(), self.fs, self.rng.getrandbits(32))
        async with aiodq.open_queue(PATH, options, channel, fs=self.fs, clock=self.clock, executor=executor) as queue:
            assert depth is None or queue.depth == depth
            workers = [asyncio.create_task(self.consume(queue)) for _ in range(_CONSUMERS)]
            lists: list[list[bytes]] = [[] for _ in range(_PRODUCERS)]
            self.order += lists
            await asyncio.gather(self.maintain(queue), *(self.produce(queue, mine) for mine in lists))
            for worker in workers:
                worker.cancel()
            for result in await asyncio.gather(*workers, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result
            if self.channel.dead_letter is None and self.rng.random() < 0.5:
                await queue.topic.settle_in()
                depth = queue.depth
            else:
                depth = None
            self.look(queue)
        # What consumers had in hand comes again.
        self.held.clear()
        return -1 if depth is None else depth

    async def main(self) -> None:
        rng = self.rng
        options = aiodq.StoreOptions(
            sync=rng.choice(("always", "interval", "os")),
            segment_bytes=rng.choice((2_000, 20_000)),
            max_messages=rng.choice((None, 8)),
            memory_bytes=1 << 16,
        )
        dead_letter = rng.choice((None, "dead"))
        channel = self.channel = aiodq.ChannelOptions(
            max_in_flight=rng.choice((6, 1000)),
            visibility_timeout=rng.choice((None, 3.0)),
            dead_letter=dead_letter,
            max_attempts=None if dead_letter is None else rng.choice((None, 3)),
        )
        depth: int | None = None
        for _ in range(_LIVES):
            found = await self.live(options, channel, depth)
            depth = None if found < 0 else found
        executor = SimulatedExecutor(asyncio.get_running_loop(), self.fs, self.seed)
        # Named anew: what is stored might let no more than six be in hand, or give up what is only looked at.
        everything = aiodq.ChannelOptions(max_in_flight=1000, visibility_timeout=None)
        async with aiodq.open_queue(PATH, channel=everything, fs=self.fs, clock=self.clock, executor=executor) as queue:
            assert depth is None or queue.depth == depth
            self.clock.advance(10)
            left: list[Message] = []
            # What the last life gave up, and had not settled yet, may be settled meanwhile.
            with suppress(TimeoutError):
                while len(left) < queue.depth:
                    left.append(await queue.get(_LONG))
            assert (queue.depth, queue.in_flight(), queue.topic_stats().damages) == (len(left), len(left), 0)
        self.judge(left)

    def dead(self) -> list[bytes]:
        """Return what is in the dead-letter topic."""
        reader = StoreReader(PATH, self.fs)
        return [message.body for message in reader.topic("dead").scan()] if "dead" in reader.topics() else []

    def judge(self, left: list[Message]) -> None:
        """Each message ends exactly once: acked, dead, purged, or still there; and in the order of who put it."""
        dead = self.dead()
        assert self.channel.max_attempts is not None or set(dead) <= self.buried, "nobody gave this up"
        there = [message.body for message in left]
        offsets = [message.offset for message in left]
        assert offsets == sorted(set(offsets))
        times = self.acked + Counter(there) + Counter(dead)
        assert not {body: n for body, n in times.items() if n != 1}, "acked twice, or acked and still there"
        assert times.keys() <= self.stored | self.perhaps, "nobody put this"
        lost = {body for body in self.stored - times.keys() if not self.may_be_purged(body)}
        assert not lost, f"lost: {sorted(lost)}"
        for mine in self.order:
            mine_left = [body for body in there if body in set(mine)]
            assert mine_left == [body for body in mine if body in set(mine_left)], "out of order"

    def may_be_purged(self, body: bytes) -> bool:
        return any(self.put_at[body][0] < end for _, end in self.purges)


def run_schedule(seed: int) -> int:
    """Run one schedule, always the same for the same seed; return how many operations it had."""
    simulation = Simulation(seed)
    try:
        run(simulation.main)
    except BaseException as error:
        error.add_note(f"the simulated schedule of seed {seed}: run_schedule({seed})")
        raise
    return simulation.trials
