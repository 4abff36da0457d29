"""The names of `asyncio.Queue` as of Python 3.13: the intent of CPython's `test_asyncio/test_queues.py`, with a disk.

Where a test of CPython's has no meaning here (a loop of its own, `repr` of an unbounded queue, LIFO and priority
queues), it is left out. What differs on purpose: `get` returns a message; an item is unfinished until it is acked, so a
restart of the queue gives it again; `shutdown(immediate=True)` drops nothing; and `put_nowait` gives a receipt, as the
item can be had only once it is on disk.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import Tasks, bodies_of, fill, numbered, outcome, queue, ready_now, soon, take, turns

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [
    "put", "get", "put_nowait", "get_nowait", "qsize", "empty", "full", "join", "maxsize", "task_done", "shutdown",
]  # fmt: skip


class TestNames:
    async def test_all_are_there(self, path: Path) -> None:
        async with queue(path) as jobs:
            assert all(hasattr(jobs, name) for name in NAMES)
            assert {name for name in dir(asyncio.Queue) if name[0] != "_"} | {"maxsize"} <= set(dir(jobs))

    def test_exceptions_are_asyncios_too(self) -> None:
        assert issubclass(aiodq.QueueEmpty, asyncio.QueueEmpty)
        assert issubclass(aiodq.QueueFull, asyncio.QueueFull)
        if sys.version_info >= (3, 13):
            assert issubclass(aiodq.QueueShutDown, asyncio.QueueShutDown)
        for error in (aiodq.QueueEmpty, aiodq.QueueFull, aiodq.QueueShutDown):
            assert issubclass(error, aiodq.AiodqError)


class TestBasics:
    async def test_maxsize(self, path: Path, tmp_path: Path) -> None:
        async with queue(path, max_messages=7) as jobs:
            assert jobs.maxsize == 7
        async with queue(tmp_path / "other") as jobs:
            assert jobs.maxsize == 0
            assert not jobs.full()

    async def test_empty_full_and_qsize(self, path: Path) -> None:
        async with queue(path, max_messages=2) as jobs:
            assert (jobs.empty(), jobs.full(), jobs.qsize()) == (True, False, 0)
            await jobs.put(b"a")
            assert (jobs.empty(), jobs.full(), jobs.qsize()) == (False, False, 1)
            await jobs.put(b"b")
            assert (jobs.empty(), jobs.full(), jobs.qsize()) == (False, True, 2)

    async def test_order(self, path: Path) -> None:
        async with queue(path) as jobs:
            for body in (b"1", b"3", b"2"):
                await jobs.put(body)
            assert [jobs.get_nowait().body for _ in range(3)] == [b"1", b"3", b"2"]

    async def test_puts_wait_while_it_is_full(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2) as jobs:
            started = []

            async def putter() -> bool:
                for number in range(3):
                    await jobs.put(b"%d" % number)
                    started.append(number)
                return True

            putting = tasks.start(putter())
            while len(started) < 2:
                await asyncio.sleep(0)
            await turns(20)
            assert started == [0, 1]
            jobs.task_done(await jobs.get())
            assert await soon(putting)
            assert bodies_of(await take(jobs, 2)) == [b"1", b"2"]


class TestGet:
    async def test_blocking(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = tasks.start(jobs.get())
            await turns()
            await jobs.put(b"1")
            assert (await soon(getting)).body == b"1"

    async def test_with_putters_waiting(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=1) as jobs:
            await jobs.put(b"1")
            putting = tasks.start(jobs.put(b"2"))
            await turns()
            assert not putting.done()
            message = await jobs.get()
            await message.ack()
            assert await soon(putting) == 1
            assert jobs.get_nowait().body == b"2"

    async def test_cancelled(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(jobs.get(), 0.005)
            getting = tasks.start(jobs.get())
            await turns()
            await jobs.put(b"1")
            assert (await soon(getting)).body == b"1"

    async def test_cancelled_race(self, path: Path, tasks: Tasks) -> None:
        """Two getters, the first cancelled as the item comes: the second gets it."""
        async with queue(path) as jobs:
            first, second = tasks.start(jobs.get()), tasks.start(jobs.get())
            await turns()
            first.cancel()
            await turns()
            assert first.done()
            await jobs.put(b"a")
            await jobs.put(b"b")
            assert (await soon(second)).body == b"a"

    async def test_many_cancelled_in_a_row(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2) as jobs:
            for _ in range(5):
                doomed = [tasks.start(jobs.get()) for _ in range(3)]
                await turns()
                for task in doomed:
                    task.cancel()
                await asyncio.wait(doomed)
                await jobs.put(b"x")
                await (await soon(jobs.get())).ack()

    async def test_a_getter_woken_and_robbed_waits_on(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, sync="os") as jobs:
            await jobs.put(b"0")
            await (await jobs.get()).ack()
            waiting = tasks.start(jobs.get())
            await turns()
            await jobs.put(b"a")  # wakes it, and it has not run yet
            assert jobs.get_nowait().body == b"a"
            await turns()
            assert not waiting.done()
            await jobs.put(b"b")
            assert (await soon(waiting)).body == b"b"

    async def test_why_are_getters_waiting(self, path: Path) -> None:
        async with queue(path, max_messages=1, channel=aiodq.ChannelOptions(auto_ack=True)) as jobs:

            async def consumer() -> list[bytes]:
                return [(await jobs.get()).body for _ in range(5)]

            found, *_ = await soon(asyncio.gather(consumer(), *(jobs.put(body) for body in numbered(5))))
            assert found == numbered(5)


class TestPut:
    async def test_blocking(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=1) as jobs:
            await jobs.put(b"1")
            putting = tasks.start(jobs.put(b"2"))
            await turns()
            assert not putting.done()
            await (await jobs.get()).ack()
            await soon(putting)

    async def test_nowait_when_full(self, path: Path) -> None:
        async with queue(path, max_messages=1) as jobs:
            await jobs.put_nowait(b"1")
            with pytest.raises(asyncio.QueueFull):
                jobs.put_nowait(b"2")
            assert jobs.qsize() == 1

    async def test_nowait_counts_what_is_on_its_way(self, path: Path) -> None:
        async with queue(path, max_messages=3) as jobs:
            for body in numbered(3):
                jobs.put_nowait(body)
            assert jobs.full()
            with pytest.raises(aiodq.QueueFull):
                jobs.put_nowait(b"4")

    async def test_cancelled_while_it_waits(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=1) as jobs:
            await jobs.put(b"1")
            doomed, kept = tasks.start(jobs.put(b"2")), tasks.start(jobs.put(b"3"))
            await turns()
            doomed.cancel()
            await asyncio.wait([doomed])
            await (await jobs.get()).ack()
            await soon(kept)
            assert ready_now(jobs) == [b"3"]

    async def test_cancelled_race(self, path: Path, tasks: Tasks) -> None:
        """A putter is woken and cancelled before it runs: the room goes to the next one."""
        async with queue(path, max_messages=1) as jobs:
            await jobs.put(b"1")
            doomed, kept = tasks.start(jobs.put(b"2")), tasks.start(jobs.put(b"3"))
            await turns()
            jobs.get_nowait().ack_nowait()
            doomed.cancel()
            await soon(kept)
            assert doomed.cancelled()
            assert ready_now(jobs) == [b"3"]

    async def test_why_are_putters_waiting(self, path: Path, tasks: Tasks) -> None:
        async with queue(path, max_messages=2) as jobs:
            putting = [tasks.start(jobs.put(body)) for body in numbered(4)]
            await turns()
            for _ in range(4):
                await (await soon(jobs.get())).ack()
            await soon(asyncio.gather(*putting))
            assert jobs.empty()

    async def test_accepted_and_cancelled_the_room_goes_to_who_waits(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, max_messages=2) as jobs:
            gate = fs.gate("sync", match=".seg")
            first = tasks.start(jobs.put(b"first"))
            await gate.wait()
            doomed = tasks.start(jobs.put(b"doomed"))
            await turns()
            waiting = tasks.start(jobs.put(b"waits"))
            await turns()
            doomed.cancel()
            await asyncio.wait([doomed])
            gate.open()
            assert list(await soon(asyncio.gather(first, waiting))) == [0, 1]


class TestTaskDone:
    async def test_too_often(self, path: Path) -> None:
        async with queue(path) as jobs:
            with pytest.raises(ValueError, match="task_done"):
                jobs.task_done()
            await jobs.put(b"a")
            with pytest.raises(ValueError, match="task_done"):
                jobs.task_done()
            await jobs.get()
            jobs.task_done()
            with pytest.raises(ValueError, match="task_done"):
                jobs.task_done()

    async def test_of_a_message(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            held = await take(jobs, 2)
            jobs.task_done(held[1])
            assert (jobs.in_flight(), jobs.depth) == (1, 2)
            with pytest.raises(aiodq.AlreadySettledError):
                jobs.task_done(held[1])
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"0", b"2"]

    async def test_of_another_queues_message(self, path: Path) -> None:
        async with aiodq.open(path) as store:
            jobs, letters = store.queue("jobs"), store.queue("letters")
            await letters.put(b"a")
            letter = await letters.get()
            with pytest.raises(aiodq.NotInFlightError, match="not by 'jobs', channel 'default'"):
                jobs.task_done(letter)
            with pytest.raises(aiodq.NotInFlightError, match="only looked at"):
                letters.task_done(await letters.read(0))
            assert letters.in_flight() == 1
            letters.task_done(letter)
            assert letters.depth == 0

    async def test_without_one_it_is_what_this_task_got_last(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(4))
            first, second, third = await jobs.get(), jobs.get_nowait(), (await jobs.get_many(1))[0]
            jobs.task_done()
            assert (first.settled, second.settled, third.settled) == (False, False, True)
            await second.nack()
            jobs.task_done()
            assert first.settled
            with pytest.raises(ValueError, match="name the message"):
                jobs.task_done()

    async def test_without_one_it_is_never_another_tasks(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            got, go = asyncio.Event(), asyncio.Event()

            async def worker() -> aiodq.Message:
                message = await jobs.get()
                got.set()
                await go.wait()
                jobs.task_done()
                return message

            slow = asyncio.ensure_future(worker())
            await soon(got.wait())
            with pytest.raises(ValueError, match="name the message"):
                jobs.task_done()
            mine = await jobs.get()
            jobs.task_done()
            assert mine.body == b"1"
            assert jobs.in_flight() == 1
            go.set()
            assert (await soon(slow)).settled
            assert jobs.depth == 0

    async def test_without_one_after_wait_for(self, path: Path) -> None:
        """It gets in another task before Python 3.12, and who counts on it is told so; `timeout` is no such thing."""
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            await jobs.get(timeout=10)
            jobs.task_done()
            message = await asyncio.wait_for(jobs.get(), 10)
            if sys.version_info >= (3, 12):
                jobs.task_done()
            else:
                with pytest.raises(ValueError, match=r"as with asyncio\.wait_for .*name the message"):
                    jobs.task_done()
                jobs.task_done(message)
            assert jobs.depth == 0

    async def test_without_one_through_another_handle(self, path: Path) -> None:
        async with aiodq.open(path) as store:
            await store.queue("jobs").put(b"a")
            await store.queue("jobs").get()
            store.queue("jobs").task_done()
            assert store.queue("jobs").depth == 0

    async def test_without_one_what_was_taken_away_does_not_count(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            await jobs.get()
            await jobs.purge()
            with pytest.raises(ValueError, match="name the message"):
                jobs.task_done()

    async def test_tasks_that_are_gone_are_forgotten(self, path: Path) -> None:
        async with queue(path, channel=aiodq.ChannelOptions(max_in_flight=100_000)) as jobs:
            await fill(jobs, numbered(20))
            for _ in range(20):
                await asyncio.ensure_future(jobs.get())
            await jobs.put(b"last")
            await (await jobs.get()).ack()
            gc.collect()
            assert len(jobs._channel_engine.held_by_task) == 1

    async def test_what_is_settled_out_of_order_does_not_pile_up(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(1000))
            held = await jobs.get()
            for _ in range(999):
                message = await jobs.get()
                await held.nack(0) if held.offset % 2 else held.ack_nowait()
                held = message
            assert standing(jobs) < 50

    async def test_without_one_it_is_the_last_of_those_that_were_taken_at_once(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(8))
            first = [await jobs.get(), *await jobs.get_many(3)]
            second = await jobs.get_many(3)
            order: list[int] = []
            second[1].ack_nowait()
            for _ in range(5):
                jobs.task_done()
                order += [m.offset for m in first + second if m.settled and m.offset not in (5, *order)]
            assert order == [6, 4, 3, 2, 1]
            async for message in jobs:
                jobs.task_done()
                assert message.settled
                break
            jobs.task_done()
            assert first[0].settled
            with pytest.raises(ValueError, match="name the message"):
                jobs.task_done()

    async def test_what_is_taken_and_settled_at_once_is_not_kept(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(7))
            held = await jobs.get()
            await jobs.ack_many(await jobs.get_many(3))
            before = standing(jobs)
            batch = await jobs.get_many(3)
            assert standing(jobs) > before
            await jobs.ack_many(batch)
            assert standing(jobs) <= before
            jobs.task_done()
            assert held.settled

    async def test_what_was_taken_with_it_and_is_not_settled_stays(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(4))
            await jobs.get()
            batch = await jobs.get_many(3)
            await jobs.ack_many([batch[0], batch[2]])
            jobs.task_done()
            assert batch[1].settled

    @pytest.mark.parametrize("how", ["acked", "purged"])
    async def test_what_is_taken_at_once_does_not_pile_up(self, path: Path, how: str) -> None:
        async with queue(path) as jobs:
            for _ in range(30):
                await jobs.put_many(numbered(100))
                messages = await jobs.get_many(100)
                await (jobs.ack_many(messages) if how == "acked" else jobs.purge())
            assert standing(jobs) < 500

    async def test_join_waits_for_every_one(self, path: Path, tasks: Tasks, seed: int) -> None:
        rng = random.Random(seed)
        async with queue(path) as jobs:
            await fill(jobs, numbered(50))
            total = 0
            running = True

            async def worker() -> None:
                nonlocal total
                while running:
                    message = await jobs.get()
                    total += int(message.body)
                    await turns(rng.randrange(4))
                    jobs.task_done(message)

            workers = [tasks.start(worker()) for _ in range(3)]
            await soon(jobs.join())
            assert total == sum(range(50))
            running = False
            for task in workers:
                task.cancel()
            await asyncio.wait(workers)


class TestJoin:
    async def test_of_an_empty_queue(self, path: Path) -> None:
        async with queue(path) as jobs:
            await soon(jobs.join())
            await soon(jobs.join())

    async def test_it_waits_for_what_is_in_flight(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            joining = [tasks.start(jobs.join()), tasks.start(jobs.join())]
            message = await jobs.get()
            await turns()
            assert not any(task.done() for task in joining)
            await message.nack()
            await turns()
            assert not any(task.done() for task in joining)
            await (await jobs.get()).ack()
            await soon(asyncio.gather(*joining))

    async def test_it_waits_for_what_is_on_its_way(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            jobs.put_nowait(b"a")
            joining = tasks.start(jobs.join())
            message = await soon(jobs.get())
            await turns()
            assert not joining.done()
            await message.ack()
            await soon(joining)

    async def test_a_purge_ends_it(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            await jobs.get()
            joining = tasks.start(jobs.join())
            await turns()
            await jobs.purge()
            await soon(joining)

    async def test_after_a_restart_what_was_not_acked_is_waited_for(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            await (await jobs.get()).ack()
        async with queue(path) as jobs:
            joining = tasks.start(jobs.join())
            await turns()
            assert not joining.done()
            await (await jobs.get()).ack()
            await soon(joining)

    async def test_cancelled(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            joining = [tasks.start(jobs.join()), tasks.start(jobs.join())]
            await turns()
            joining[0].cancel()
            await asyncio.wait(joining[:1])
            await (await jobs.get()).ack()
            await soon(joining[1])

    async def test_closing_ends_it(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            joining = tasks.start(jobs.join())
            await turns()
        await asyncio.wait([joining], timeout=20)
        assert isinstance(outcome(joining), aiodq.QueueShutDown)


class TestShutdown:
    """CPython's `_QueueShutdownTestMixin`."""

    async def test_of_an_empty_queue(self, path: Path) -> None:
        async with queue(path) as jobs:
            jobs.shutdown()
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.put(b"data")
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.get()
            with pytest.raises(aiodq.QueueShutDown):
                jobs.get_nowait()
            with pytest.raises(aiodq.QueueShutDown):
                jobs.put_nowait(b"data")
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.put_many([b"data"])

    async def test_of_a_queue_with_items(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            jobs.shutdown()
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.put(b"data")
            assert [(await jobs.get()).body, jobs.get_nowait().body] == numbered(2)
            with pytest.raises(aiodq.QueueShutDown):
                await jobs.get()
            with pytest.raises(aiodq.QueueShutDown):
                jobs.get_nowait()

    async def test_immediately(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            jobs.shutdown(immediate=True)
            for _ in range(2):
                with pytest.raises(aiodq.QueueShutDown):
                    await jobs.get()
                with pytest.raises(aiodq.QueueShutDown):
                    jobs.get_nowait()
                with pytest.raises(aiodq.QueueShutDown):
                    await jobs.put(b"data")
            assert jobs.depth == 2  # asyncio's would be empty; here what is left comes when it is next opened
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(2)

    async def test_repeatedly(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            jobs.shutdown()
            jobs.shutdown()
            assert jobs.get_nowait().body == b"a"
            jobs.shutdown(immediate=True)
            jobs.shutdown(immediate=True)
            jobs.shutdown()
            with pytest.raises(aiodq.QueueShutDown):
                jobs.get_nowait()

    @pytest.mark.parametrize("immediate", [False, True])
    async def test_getters_that_wait_are_told(self, path: Path, tasks: Tasks, immediate: bool) -> None:
        async with queue(path) as jobs:
            getting = [tasks.start(jobs.get()), tasks.start(jobs.get()), tasks.start(jobs.get(3600))]
            await turns()
            jobs.shutdown(immediate)
            await asyncio.wait(getting, timeout=20)
            assert all(isinstance(outcome(task), aiodq.QueueShutDown) for task in getting)

    @pytest.mark.parametrize("immediate", [False, True])
    async def test_putters_that_wait_are_told(self, path: Path, tasks: Tasks, immediate: bool) -> None:
        async with queue(path, max_messages=1) as jobs:
            await jobs.put(b"a")
            putting = [tasks.start(jobs.put(b"b")), tasks.start(jobs.put_many([b"c", b"d"]))]
            await turns()
            jobs.shutdown(immediate)
            await asyncio.wait(putting, timeout=20)
            assert all(isinstance(outcome(task), aiodq.QueueShutDown) for task in putting)
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_join_goes_on_until_all_is_done(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            joining = tasks.start(jobs.join())
            held = jobs.get_nowait()
            jobs.shutdown()
            await turns()
            assert not joining.done()
            jobs.task_done(held)
            await turns()
            assert not joining.done()
            jobs.task_done(jobs.get_nowait())
            await soon(joining)

    async def test_immediately_join_is_released(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(2))
            joining = tasks.start(jobs.join())
            await turns()
            jobs.shutdown(immediate=True)
            await soon(joining)
            await soon(jobs.join())

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    async def test_immediately_join_waits_for_what_is_in_flight(self, path: Path, tasks: Tasks, mode: Any) -> None:
        async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os"), mode=mode) as jobs:
            await fill(jobs, numbered(4))
            held = [await jobs.get() for _ in range(3)]
            before = tasks.start(jobs.join())
            await turns()
            jobs.shutdown(immediate=True)
            after = tasks.start(jobs.join())
            for settled in (held[0].ack(), held[1].nack(), held[2].nack(3600)):
                await turns(20)
                assert not before.done()
                assert not after.done()
                await settled
            await soon(asyncio.gather(before, after))
            await soon(jobs.join())

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    async def test_a_stop_ends_join(self, path: Path, tasks: Tasks, mode: Any) -> None:
        async with aiodq.open_queue(path, aiodq.StoreOptions(sync="os"), mode=mode) as jobs:
            await fill(jobs, numbered(3))
            handling, go_on = asyncio.Event(), asyncio.Event()

            async def handler(_: aiodq.Message) -> None:
                handling.set()
                await go_on.wait()

            consuming, joining = tasks.start(jobs.consume(handler)), tasks.start(jobs.join())
            await soon(handling.wait())
            stopping = tasks.start(jobs.stop())
            await turns(20)
            assert not joining.done()
            go_on.set()
            await soon(asyncio.gather(stopping, consuming, joining))

    async def test_a_message_in_flight_may_still_be_settled(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            held = await take(jobs, 2)
            acking = tasks.start(held[0].ack())
            await asyncio.sleep(0)
            jobs.shutdown(immediate=True)
            await soon(acking)
            await held[1].nack()
            assert jobs.qsize() == 2
        async with queue(path) as jobs:
            assert [(message.body, message.attempts) for message in await take(jobs, 2)] == [(b"1", 2), (b"2", 1)]

    async def test_puts_that_were_accepted_become_durable(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            putting = tasks.start(jobs.put(b"a"))
            await asyncio.sleep(0)
            jobs.shutdown(immediate=True)
            assert await soon(putting) == 0
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]

    async def test_a_store_goes_on_with_other_queues(self, path: Path) -> None:
        async with aiodq.open(path) as opened:
            one, other = opened.queue("one"), opened.queue("other")
            await one.put(b"1")
            one.shutdown()
            await other.put(b"2")
            assert (await other.get()).body == b"2"
            await other.aclose()
            with pytest.raises(aiodq.QueueShutDown):
                await other.put(b"3")
            await opened.topic("third").put(b"4")


def standing(jobs: aiodq.Queue) -> int:
    """Return how many messages are noted as taken by tasks, besides the last of each."""
    taken = jobs._channel_engine.held_by_task._by_id.values()
    return sum(len(block) for each in taken for block in each._blocks)
