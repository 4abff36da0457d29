"""Delays, timeouts, times to live: when a message is delivered, or not, or again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import FakeClock, WatchedFileSystem
from tests.channels.support import Machine, counts, ready, soon, until

if TYPE_CHECKING:
    from pathlib import Path


async def used(store: aiodq.Store) -> aiodq.Queue:
    """Return a queue whose puts need nothing made or checked first."""
    jobs = store.queue("jobs")
    for _ in range(3):
        await jobs.put(b"x")
        await (await jobs.get()).ack()
    return jobs


class TestDelayedPuts:
    @pytest.mark.parametrize("sync", ["always", "os"])
    async def test_nobody_sees_it_early_and_who_waits_gets_it_when_it_is_due(self, machine: Machine, sync: str) -> None:
        async with machine.store(sync=sync) as store:
            jobs = await used(store)
            await jobs.put(b"later", delay=10)
            await jobs.put(b"now")
            assert counts(jobs) == (1, 0, 1)
            assert ready(jobs) == [b"now"]
            waiting = asyncio.ensure_future(jobs.get())
            machine.clock.advance(9.999)
            await asyncio.sleep(0)
            assert not waiting.done()
            machine.clock.advance(0.001)
            assert (await soon(waiting)).body == b"later"
            assert counts(jobs) == (0, 2, 0)

    @pytest.mark.parametrize("crash", [False, True])
    async def test_the_due_time_outlives_a_restart(self, machine: Machine, *, crash: bool) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", aiodq.Draft(b"b", delay=timedelta(seconds=60)), b"c"])
            if crash:
                machine.crash()
        for passed in (30, 29):
            machine.clock.advance(passed)
            async with machine.jobs() as jobs:
                assert counts(jobs) == (2, 0, 1)
                assert ready(jobs) == [b"a", b"c"]
        machine.clock.advance(1)
        async with machine.jobs() as jobs:
            assert counts(jobs) == (3, 0, 0)
            assert ready(jobs) == [b"a", b"b", b"c"]

    async def test_every_channel_defers_also_one_that_is_made_later(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            first = topic.channel("first")
            await topic.put(b"x", delay=5)
            second = topic.channel("second", aiodq.ChannelOptions(start="earliest"))
            await topic.settle_in()
            assert counts(first) == counts(second) == (0, 0, 1)
            machine.clock.advance(5)
            assert ready(first) == ready(second) == [b"x"]

    async def test_a_delayed_message_read_from_disk(self, machine: Machine) -> None:
        """Once it is due it is neither in the log's tail nor kept: it is read."""
        async with machine.store(memory_bytes=1 << 16) as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_in_flight=10_000))
            for number in range(50):
                await jobs.put(b"%d" % number + bytes(2_000), delay=100 - number)
            for _ in range(50):
                await jobs.put(bytes(2_000))
            for _ in range(50):
                await (await jobs.get()).ack()
            machine.clock.advance(100)
            assert [(await soon(jobs.get())).body.rstrip(b"\0") for _ in range(50)] == [b"%d" % n for n in range(50)]
            assert counts(jobs) == (0, 50, 0)

    async def test_order_among_those_that_are_due_is_that_of_the_log(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            for number, delay in enumerate((3, 2, 1, 0, 2)):
                await jobs.put(b"%d" % number, delay=delay)
            machine.clock.advance(2)
            assert ready(jobs) == [b"1", b"2", b"3", b"4"]

    async def test_a_wall_clock_that_is_set_back_while_it_is_written_delivers_it_no_later(self, tmp_path: Path) -> None:
        fs, clock = WatchedFileSystem(), FakeClock()
        async with aiodq.open_queue(tmp_path, fs=fs, clock=clock) as jobs:
            gate = fs.gate("sync", match=".seg")
            putting = asyncio.create_task(jobs.put_many([aiodq.Draft(b"later", delay=10), b"now"]))
            await soon(gate.wait())
            clock.jump(-3600)
            gate.open()
            await soon(putting)
            assert counts(jobs) == (1, 0, 1)
            clock.advance(10)
            assert ready(jobs) == [b"later", b"now"]

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0, -1_700_000_000.0])
    async def test_a_wall_clock_that_jumps_delivers_neither_early_nor_late(self, machine: Machine, jump: float) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"x", delay=10)
            machine.clock.jump(jump)
            machine.clock.advance(9)
            assert counts(jobs) == (0, 0, 1)
            machine.clock.advance(1)
            assert ready(jobs) == [b"x"]

    async def test_a_wall_clock_set_back_meanwhile_makes_nothing_wait_for_longer_than_it_was_to(
        self, machine: Machine
    ) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"put", delay=10)
            await jobs.put(b"requeued")
            await (await jobs.get()).nack(10)
            await jobs.sync()
        machine.clock.jump(-86_400)
        async with machine.jobs() as jobs:
            assert counts(jobs) == (0, 0, 2)
            machine.clock.advance(10.1)
            assert ready(jobs) == [b"put", b"requeued"]

    @pytest.mark.parametrize("jump", [3_600.0, 10 * 365 * 86_400.0])
    async def test_what_was_put_while_the_wall_clock_was_ahead_waits_no_longer_beside_what_was_put_before(
        self, machine: Machine, jump: float
    ) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"before", delay=10)
            machine.clock.jump(jump)
            await jobs.put(b"ahead", delay=10)
        machine.clock.jump(-jump)
        async with machine.jobs() as jobs:
            new = jobs.channel("new", aiodq.ChannelOptions(start="earliest"))
            await new.refresh()
            assert counts(jobs) == counts(new) == (0, 0, 2)
            machine.clock.advance(10.1)
            assert ready(jobs) == ready(new) == [b"before", b"ahead"]

    @pytest.mark.parametrize("way", ["one by one", "together", "transaction"])
    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    async def test_a_put_that_waits_for_room_while_the_wall_clock_jumps_is_in_time(
        self, machine: Machine, jump: float, way: str
    ) -> None:
        later, dying = aiodq.Draft(b"later", delay=10), aiodq.Draft(b"dying", ttl=20)
        async with machine.store(max_messages=2) as store:
            jobs = await used(store)
            await jobs.put_many([b"1", b"2"])

            async def put() -> None:
                if way == "one by one":
                    await asyncio.gather(jobs.put(b"later", delay=10), jobs.put(b"dying", ttl=20))
                elif way == "together":
                    await jobs.put_many([later, dying])
                else:
                    async with store.transaction() as tx:
                        tx.put_many("jobs", [later, dying])

            putting = asyncio.create_task(put())
            for _ in range(2):
                await asyncio.sleep(0)
            machine.clock.advance(4)
            machine.clock.jump(jump)
            await jobs.ack_many(await jobs.get_many(2))
            await soon(putting)
            assert counts(jobs) == (1, 0, 1)
            machine.clock.advance(5)
            assert counts(jobs) == (1, 0, 1)
            machine.clock.advance(1)
            assert counts(jobs) == (2, 0, 0)
            machine.clock.advance(10.1)
            assert ready(jobs) == [b"later"]

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    async def test_a_transaction_in_whose_block_the_wall_clock_jumps_is_in_time(
        self, machine: Machine, jump: float
    ) -> None:
        async with machine.store() as store:
            jobs = await used(store)
            async with store.transaction() as tx:
                tx.put("jobs", b"later", delay=10)
                machine.clock.advance(2)
                machine.clock.jump(jump)
                tx.put("jobs", b"dying", ttl=18)
                tx.put_many("jobs", [b"1", b"2"], delay=8)
                machine.clock.advance(2)
                machine.clock.jump(jump)
            assert counts(jobs) == (1, 0, 3)
            machine.clock.advance(5.9)
            assert counts(jobs) == (1, 0, 3)
            machine.clock.advance(0.1)
            assert counts(jobs) == (4, 0, 0)
            machine.clock.advance(10.1)
            assert ready(jobs) == [b"later", b"1", b"2"]

    @pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), timedelta(days=-1), "soon", True])
    async def test_a_delay_that_is_none_is_refused(self, machine: Machine, delay: float) -> None:
        async with machine.jobs() as jobs:
            for call in (jobs.put(b"x", delay=delay), jobs.put_many([b"x"], delay=delay), jobs.put(b"x", ttl=delay)):
                with pytest.raises(aiodq.InvalidMessageError):
                    await call
            assert (jobs.end_offset, jobs.depth) == (0, 0)
            await jobs.put(b"x")
            message = await jobs.get()
            with pytest.raises(aiodq.InvalidMessageError):
                await message.nack(delay)
            with pytest.raises(aiodq.InvalidMessageError):
                await message.touch(delay)
            await message.ack()


class TestRequeuedWithADelay:
    async def test_it_comes_when_it_is_due_with_its_attempts(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            await (await jobs.get()).nack(5)
            assert counts(jobs) == (0, 0, 1)
            machine.clock.advance(4)
            assert ready(jobs) == []
            machine.clock.advance(1)
            message = await soon(jobs.get())
            assert (message.attempts, message.body) == (2, b"x")
            await message.nack(0, count_attempt=False)
            assert (await jobs.get()).attempts == 2

    @pytest.mark.parametrize("crash", [False, True])
    async def test_due_time_and_attempts_outlive_a_restart(self, machine: Machine, *, crash: bool) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            await (await jobs.get()).nack(60)
            await jobs.sync()
            if crash:
                machine.crash()
        machine.clock.advance(59)
        for _ in range(2):
            async with machine.jobs() as jobs:
                assert counts(jobs) == (0, 0, 1)
                assert ready(jobs) == []
        machine.clock.advance(1)
        async with machine.jobs() as jobs:
            assert (await soon(jobs.get())).attempts == 2

    @pytest.mark.parametrize("jump", [3_600.0, 10 * 365 * 86_400.0])
    async def test_a_wall_clock_that_was_ahead_for_a_while_makes_nothing_come_early_after_a_crash(
        self, machine: Machine, jump: float
    ) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"ahead", b"before", b"after"])
            ahead, before, after = await jobs.get_many(3)
            await before.nack(60)
            await jobs.sync()
            machine.clock.jump(jump)
            await ahead.nack(60)
            await jobs.sync()
            machine.clock.jump(-jump)
            await after.nack(60)
            await jobs.sync()
            machine.crash()
        machine.clock.advance(59)
        async with machine.jobs() as jobs:
            assert (counts(jobs), ready(jobs)) == ((0, 0, 3), [])
            machine.clock.advance(1.1)
            assert sorted(ready(jobs)) == [b"after", b"ahead", b"before"]

    async def test_backoff_grows_from_attempt_to_attempt(self, machine: Machine) -> None:
        backoff = aiodq.Backoff(first=1, factor=3, limit=5, jitter=0)
        async with machine.jobs(backoff=backoff) as jobs:
            await jobs.put(b"x")
            for wait in (1, 3, 5, 5):
                await (await soon(jobs.get())).nack()
                machine.clock.advance(wait - 0.001)
                assert counts(jobs) == (0, 0, 1)
                machine.clock.advance(0.001)
                assert counts(jobs) == (1, 0, 0)
            await (await jobs.get()).nack(0)
            assert counts(jobs) == (1, 0, 0)

    def test_backoff_with_jitter_stays_within_it_and_never_overflows(self) -> None:
        backoff = aiodq.Backoff(first=2, factor=2, limit=900, jitter=0.25)
        assert [backoff.seconds(1, chance) for chance in (0.0, 0.5, 1.0)] == [1.5, 2.0, 2.5]
        assert backoff.seconds(10_000, 0.5) == 900
        assert aiodq.Backoff(factor=1, first=3).seconds(10_000, 0.5) == 3
        assert aiodq.Backoff(first=5e-324, factor=1.5e308).seconds(3, 0.5) == 900
        for wrong in ({"first": 0}, {"factor": 0.5}, {"limit": -1}, {"jitter": 2}, {"first": float("nan")}):
            with pytest.raises(aiodq.InvalidOptionError):
                aiodq.Backoff(**wrong)


class TestTimeout:
    async def test_what_is_not_settled_in_time_comes_again_and_the_old_delivery_settles_nothing(
        self, machine: Machine
    ) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put(b"x")
            late = await jobs.get()
            waiting = asyncio.ensure_future(jobs.get())
            machine.clock.advance(9.9)
            assert counts(jobs) == (0, 1, 0)
            machine.clock.advance(0.1)
            message = await soon(waiting)
            assert message.attempts == 2
            for call in (late.ack(), late.nack(), late.reject(), late.touch()):
                with pytest.raises(aiodq.NotInFlightError):
                    await call
            assert counts(jobs) == (0, 1, 0)
            await message.ack()
            assert (jobs.depth, jobs.stats().timed_out) == (0, 1)

    async def test_touch_begins_the_time_anew_as_often_as_one_likes(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put_many([b"x", b"y"])
            message, other = await jobs.get(), await jobs.get()
            for _ in range(5):
                machine.clock.advance(9)
                await message.touch()
            assert counts(jobs) == (1, 1, 0)
            await message.touch(100)
            machine.clock.advance(99)
            assert counts(jobs) == (1, 1, 0)
            await message.touch(timedelta(seconds=2))
            machine.clock.advance(2)
            assert counts(jobs) == (2, 0, 0)
            with pytest.raises(aiodq.NotInFlightError):
                await other.touch()

    async def test_attempts_of_what_timed_out_outlive_a_crash(self, machine: Machine) -> None:
        def journaled() -> int:
            journals = [data for path, data in machine.fs.durable().items() if path.endswith("/journal")]
            return sum(len(data.rstrip(b"\0")) for data in journals if data is not None)

        before: list[int] = []
        async with machine.jobs(visibility_timeout=1) as jobs:
            await jobs.put(b"x")
            for _ in range(3):
                await soon(jobs.get())
                before.append(journaled())
                machine.clock.advance(1)
                await until(lambda: journaled() > before[-1])
            machine.crash()
        async with machine.jobs() as jobs:
            assert (await soon(jobs.get())).attempts == 4

    async def test_without_a_timeout_it_stays_in_flight(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=None) as jobs:
            await jobs.put(b"x")
            message = await jobs.get()
            machine.clock.advance(1e9)
            await message.ack()

    async def test_many_in_flight_time_out_in_the_order_in_which_they_were_handed_out(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put_many([b"%d" % n for n in range(300)])
            held = []
            for _ in range(300):
                held.append(await jobs.get())
                machine.clock.advance(0.01)
            for message in held[::3]:
                await message.ack()
            machine.clock.advance(7.995)
            # 100 of the 300 are acked; the first 100 were handed out more than ten seconds ago.
            late = [n for n in range(300) if n % 3 and 0.01 * (300 - n) + 7.995 >= 10]
            assert counts(jobs) == (len(late), 200 - len(late), 0)
            assert ready(jobs) == [b"%d" % n for n in late]

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    async def test_a_wall_clock_that_jumps_times_nothing_out(self, machine: Machine, jump: float) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put(b"x")
            await jobs.get()
            machine.clock.jump(jump)
            machine.clock.advance(9)
            assert counts(jobs) == (0, 1, 0)
            machine.clock.advance(1)
            assert counts(jobs) == (1, 0, 0)

    async def test_real_time_takes_it_back_too(self) -> None:
        machine = Machine()
        async with aiodq.open("/s", fs=machine.fs) as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=0.05))
            await jobs.put(b"x")
            await jobs.put(b"later", delay=0.1)
            assert (await jobs.get()).attempts == 1
            assert {(await soon(jobs.get())).attempts for _ in range(2)} == {1, 2} or jobs.stats().timed_out


class TestTimeToLive:
    async def test_what_is_too_old_is_skipped_and_counted(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([aiodq.Draft(b"a", ttl=5), b"b", aiodq.Draft(b"c", ttl=timedelta(seconds=20))])
            machine.clock.advance(5)
            assert ready(jobs) == [b"b", b"c"]
            assert (jobs.stats().expired, jobs.depth) == (1, 2)
        machine.clock.advance(15)
        async with machine.jobs() as jobs:
            assert ready(jobs) == [b"b"]
            assert counts(jobs) == (0, 1, 0)

    async def test_it_is_skipped_also_when_it_comes_again(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"x", ttl=10)
            await (await jobs.get()).nack(20)
            machine.clock.advance(20)
            assert ready(jobs) == []
            assert (jobs.depth, jobs.stats().expired) == (0, 1)

    async def test_a_getter_goes_on_waiting_behind_what_is_too_old(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"old", ttl=1)
            machine.clock.advance(1)
            waiting = asyncio.ensure_future(jobs.get())
            await until(lambda: jobs.depth == 0)
            await jobs.put(b"new")
            assert (await soon(waiting)).body == b"new"

    async def test_it_goes_to_the_dead_letter_topic_where_there_is_one(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            dead = store.queue("dead")
            await jobs.put(b"x", ttl=1)
            machine.clock.advance(1)
            assert ready(jobs) == []
            message = await soon(dead.get())
            assert (message.body, message.headers["aiodq-reason"]) == (b"x", "expired")
            await until(lambda: jobs.depth == 0)

    @pytest.mark.parametrize(("jump", "sync"), [(3600, "always"), (-3600, "always"), (3600, "os"), (-3600, "os")])
    async def test_a_wall_clock_that_is_set_moves_nothing(self, machine: Machine, jump: float, sync: str) -> None:
        async with machine.store(sync=sync) as store:
            jobs = await used(store)
            await jobs.put(b"before", ttl=60)
            machine.clock.jump(jump)
            await jobs.put(b"after", ttl=90)
            machine.clock.jump(jump)
            await jobs.put(b"again", ttl=120)
            messages = [await soon(jobs.get()) for _ in range(3)]
            for seconds, left in ((59, 3), (1, 2), (29, 2), (1, 1), (29, 1), (1, 0)):
                for message in messages:
                    await message.nack()
                machine.clock.advance(seconds)
                messages = [jobs.get_nowait() for _ in range(left)]
                with pytest.raises(aiodq.QueueEmpty):
                    jobs.get_nowait()
            assert jobs.stats().expired == 3

    async def test_across_runs_the_stored_time_counts(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"short", ttl=60)
            await jobs.put(b"long", ttl=7200)
        machine.clock.jump(3600)
        async with machine.jobs() as jobs:
            machine.clock.jump(86_400)
            assert ready(jobs) == [b"long"]

    async def test_set_back_between_runs_nothing_lives_for_longer(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b"], ttl=60)
        machine.clock.jump(-3600)
        async with machine.jobs() as jobs:
            machine.clock.advance(60)
            assert ready(jobs) == []

    async def test_it_is_settled_when_its_time_comes_though_nobody_asks(self, machine: Machine) -> None:
        async with machine.store(max_messages=300, overflow="reject") as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"x"] * 299, ttl=10)
            await jobs.put(b"y", ttl=20)
            assert jobs.full()
            machine.clock.advance(10)
            await until(lambda: jobs.depth == 1)
            assert not jobs.full()
            machine.clock.advance(10)
            await until(lambda: jobs.depth == 0)
            assert jobs.stats().expired == 300

    async def test_it_becomes_a_letter_when_its_time_comes(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"x", ttl=1)
            machine.clock.advance(1)
            assert (await soon(store.queue("dead").get())).body == b"x"

    async def test_it_is_settled_when_its_time_comes_in_a_later_run(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"x"] * 3, ttl=10)
            await jobs.put(b"y", ttl=30)
        machine.clock.advance(5)
        async with machine.jobs() as jobs:
            machine.clock.advance(5)
            await until(lambda: jobs.depth == 1)
            machine.clock.advance(20)
            await until(lambda: jobs.depth == 0)

    async def test_what_comes_again_too_late_is_settled_at_once(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"x", b"y"], ttl=10)
            nacked, released = await jobs.get_many(2)
            machine.clock.advance(10)
            assert counts(jobs) == (0, 2, 0)
            await nacked.nack()
            released.release()
            machine.clock.advance(0)
            await until(lambda: jobs.depth == 0)

    async def test_join_ends_once_what_is_too_old_is_passed_over(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"old", ttl=1)
            machine.clock.advance(1)
            joining = asyncio.ensure_future(jobs.join())
            await asyncio.sleep(0)
            assert ready(jobs) == []
            await soon(joining)
