"""`stop` of a channel, a queue and a store: nothing new is handed out, and what is under way gets its time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio.from_thread
import pytest

import aiodq
from aiodq.testing import SimulatedFileSystem, run
from tests.channels.support import PATIENCE, Machine, counts, soon, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR = 3600


class Handler:
    """A handler that says when it has begun, and waits to be let on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.done: list[bytes] = []
        self.cancelled: list[bytes] = []

    async def __call__(self, message: aiodq.Message) -> None:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(message.body)
            raise
        self.done.append(message.body)


@pytest.fixture
async def handler() -> Handler:
    return Handler()


@asynccontextmanager
async def working(machine: Machine, handler: Handler, **options: Any) -> AsyncIterator[tuple[aiodq.Queue, Any]]:
    """Give a queue of three messages, of which the handler has the first, and the consumer."""
    async with machine.jobs(**options) as jobs:
        await jobs.put_many([b"a", b"b", b"c"])
        consuming = asyncio.create_task(jobs.consume(handler))
        await soon(handler.begun.wait())
        yield jobs, consuming
        handler.go_on.set()
        await soon(consuming)


class TestChannel:
    async def test_what_is_under_way_ends_and_nothing_new_begins(self, machine: Machine, handler: Handler) -> None:
        async with working(machine, handler) as (jobs, consuming):
            stopping = asyncio.create_task(jobs.stop())
            await asyncio.sleep(0)
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.get()
            await jobs.put(b"d")
            assert not stopping.done()
            handler.go_on.set()
            await soon(stopping)
            assert consuming.done()
            assert counts(jobs) == (3, 0, 0)
            await soon(jobs.consume(handler))
            assert [message.body async for message in jobs] == []
        assert handler.done == [b"a"]

    async def test_after_the_grace_handlers_are_cancelled_and_their_messages_released(
        self, machine: Machine, handler: Handler
    ) -> None:
        async with working(machine, handler, max_attempts=1) as (jobs, consuming):
            await soon(jobs.stop(grace=0.01))
            assert consuming.done()
            assert consuming.exception() is None
            assert counts(jobs) == (3, 0, 0)
        assert handler.cancelled == [b"a"]
        async with machine.jobs() as jobs:
            message = await jobs.get()
            assert (message.body, message.attempts) == (b"a", 1)

    async def test_a_block_of_a_loop_over_messages_has_its_time_too(self, machine: Machine) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async for message in jobs:
                async with message:
                    begun.set()
                    await go_on.wait()

        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b"])
            working = asyncio.create_task(work())
            await soon(begun.wait())
            stopping = asyncio.create_task(jobs.stop(HOUR))
            await asyncio.sleep(0)
            go_on.set()
            await soon(stopping)
            await soon(working)
            assert counts(jobs) == (1, 0, 0)

    async def test_what_others_hold_stays_theirs(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"a")
            message = await jobs.get()
            await soon(jobs.stop(0))
            assert jobs.in_flight() == 1
            await message.ack()
            assert jobs.depth == 0

    async def test_again_and_at_once_the_shortest_grace_counts(self, machine: Machine, handler: Handler) -> None:
        async with working(machine, handler) as (jobs, _):
            stops = [asyncio.create_task(jobs.stop(HOUR)) for _ in range(3)]
            await asyncio.sleep(0)
            assert not any(stop.done() for stop in stops)
            await soon(jobs.stop(timedelta(0)))
            await soon(asyncio.gather(*stops))
            await soon(jobs.stop())
        assert handler.cancelled == [b"a"]

    async def test_cancelled_it_goes_on(self, machine: Machine, handler: Handler) -> None:
        async with working(machine, handler) as (jobs, consuming):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(jobs.stop(0.05), 0.001)
            await soon(consuming)
            assert counts(jobs) == (3, 0, 0)
        assert handler.cancelled == [b"a"]

    @pytest.mark.parametrize("way", ["handler", "task", "on_error", "thread", "many"])
    @pytest.mark.parametrize("whole", [False, True])
    async def test_a_handler_may_call_it(self, machine: Machine, way: str, *, whole: bool) -> None:
        ended: list[bytes] = []

        async def stop() -> None:
            await (store.stop(HOUR) if whole else jobs.stop(HOUR))

        async def handler(message: aiodq.Message) -> None:
            if way == "task":
                await asyncio.gather(stop(), asyncio.create_task(stop()))
            elif way == "on_error":
                raise ValueError
            else:
                await stop()
            await asyncio.sleep(0)
            ended.append(message.body)

        def plain(message: aiodq.Message) -> None:
            anyio.from_thread.run(stop)
            ended.append(message.body)

        async def hook(message: aiodq.Message, _: BaseException) -> None:
            await stop()
            ended.append(message.body)

        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"a", b"b"] if way == "many" else [b"a"])
            chosen = plain if way == "thread" else handler
            await soon(jobs.consume(chosen, concurrency=2 if way == "many" else 1, on_error=hook))
            await soon(store.stop() if whole else jobs.stop())
        assert sorted(ended) == ([b"a", b"b"] if way == "many" else [b"a"])

    async def test_a_thread_has_until_the_grace_is_over(self, machine: Machine) -> None:
        go_on, begun, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

        def handler(_: aiodq.Message) -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(PATIENCE)

        for grace, left in ((HOUR, 1), (0.01, 2)):
            begun.clear()
            go_on.clear()
            async with machine.store() as store:
                jobs = store.queue(f"jobs{left}")
                await jobs.put_many([b"a", b"b"])
                consuming = asyncio.create_task(jobs.consume(handler))
                await soon(begun.wait())
                stopping = asyncio.create_task(jobs.stop(grace))
                await asyncio.sleep(0)
                if grace == HOUR:
                    go_on.set()
                await soon(stopping)
                await soon(consuming)
                go_on.set()
                assert counts(jobs) == (left, 0, 0)

    def test_who_does_not_let_himself_be_cancelled_holds_up_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> list[bytes]:
            fs, loop = SimulatedFileSystem(), asyncio.get_running_loop()
            release = asyncio.Event()

            async def stubborn(_: aiodq.Message) -> None:
                while not release.is_set():
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        await asyncio.sleep(0)

            async with aiodq.open_queue("/s", fs=fs) as jobs:
                await jobs.put(b"a")
                consuming = asyncio.create_task(jobs.consume(stubborn))
                await until(jobs.in_flight)
                since = loop.time()
                await jobs.stop(10)
                assert 15 <= loop.time() - since < 16
                assert counts(jobs) == (1, 0, 0)
                assert not consuming.done()
                release.set()
                await consuming
            async with aiodq.open_queue("/s", fs=fs) as jobs:
                return [(await jobs.get()).body]

        assert run(main) == [b"a"]
        assert "go on though they were cancelled" in caplog.text

    async def test_before_anything_and_after_everything(self, machine: Machine, handler: Handler) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await soon(jobs.stop())  # its files are not made yet
            await jobs.put(b"a")
            await soon(jobs.consume(handler))
            other = store.topic("jobs").channel("other", aiodq.ChannelOptions(start="earliest"))
            assert (await soon(other.get())).body == b"a"
        await soon(jobs.stop())
        await soon(store.stop())

    async def test_who_waits_is_told(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            getting = asyncio.create_task(jobs.get())
            many = asyncio.create_task(jobs.get_many(5))
            await asyncio.sleep(0)
            await jobs.pause()
            await jobs.put(b"a")
            joining = asyncio.create_task(jobs.join())
            await asyncio.sleep(0)
            await soon(jobs.stop())
            await soon(joining)
            for waiting in (getting, many):
                with pytest.raises(aiodq.QueueShutDown):
                    await soon(waiting)

    @pytest.mark.parametrize("grace", [-1, "10", None, float("nan"), True, timedelta(seconds=-1)])
    async def test_no_time(self, machine: Machine, grace: Any) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            for stop in (jobs.stop, store.stop):
                with pytest.raises(aiodq.InvalidOptionError, match="grace"):
                    await stop(grace)
            await jobs.put(b"a")
            await soon(jobs.get())


class TestStore:
    async def test_it_lets_handlers_end_hands_on_what_they_put_and_closes(
        self, machine: Machine, handler: Handler
    ) -> None:
        async with machine.store() as store:
            jobs, made = store.queue("jobs"), store.queue("made")

            async def work(message: aiodq.Message) -> None:
                await handler(message)
                await made.put(message.body)

            await jobs.put_many([b"a", b"b"])
            consuming = [asyncio.create_task(channel.consume(work)) for channel in (jobs, made)]
            await soon(handler.begun.wait())
            stopping = asyncio.create_task(store.stop(timedelta(hours=1)))
            await asyncio.sleep(0)
            handler.go_on.set()
            await soon(stopping)
            for task in consuming:
                await soon(task)
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.put(b"c")
        async with machine.store() as store:
            assert (store.queue("jobs").depth, store.queue("made").depth) == (1, 1)

    async def test_after_the_grace_it_closes_all_the_same(self, machine: Machine, handler: Handler) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=None))
            await jobs.put_many([b"a", b"b"])
            held = store.topic("jobs").channel("held", aiodq.ChannelOptions(start="earliest"))
            await held.get()
            consuming = asyncio.create_task(jobs.consume(handler, concurrency=2))
            await until(lambda: jobs.in_flight() == 2)
            await soon(store.stop(0.01))
            await soon(consuming)
        async with machine.store() as store:
            assert counts(store.queue("jobs")) == (2, 0, 0)

    async def test_a_store_that_has_failed_can_be_stopped(self, machine: Machine, handler: Handler) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"a")
            consuming = asyncio.create_task(jobs.consume(handler))
            await soon(handler.begun.wait())
            machine.fs.plan.add(aiodq.testing.Fault("sync", machine.fs.calls.get("sync", 0) + 1, "EIO"))
            with pytest.raises(aiodq.StoreFailedError):
                while True:
                    await soon(jobs.put(b"b"))
            handler.go_on.set()
            with pytest.raises(aiodq.StoreFailedError):
                await soon(consuming)
            await soon(jobs.stop(0))

    async def test_it_may_be_closed_meanwhile(self, machine: Machine, handler: Handler) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"a")
            consuming = asyncio.create_task(jobs.consume(handler))
            await soon(handler.begun.wait())
            stopping = asyncio.create_task(store.stop(HOUR))
            await asyncio.sleep(0)
            await soon(store.aclose())
            handler.go_on.set()
            await soon(consuming)
            await soon(stopping)
        async with machine.store() as store:
            assert counts(store.queue("jobs")) == (1, 0, 0)
