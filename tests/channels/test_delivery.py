"""Dead letters, tags, pauses, seeks, handlers."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from aiodq.testing import FakeClock, Fault, Marked, SimulatedFileSystem
from tests.channels.killed_giving_up import KILLED
from tests.channels.support import PATIENCE, Machine, counts, ready, soon, until
from tests.processes import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiodq.format.transactions import Commit
    from aiodq.testing import Image


class TestDeadLetters:
    @pytest.mark.parametrize("anew", [False, True])
    async def test_a_topic_that_is_being_deleted_gives_up_nothing_more(self, machine: Machine, *, anew: bool) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put_many([b"expires", b"rejected"], ttl=1)
            expires, rejected = await jobs.get_many(2)
            machine.clock.advance(2)
            deleting = asyncio.ensure_future(store.delete_topic("jobs"))
            await asyncio.sleep(0)
            expires.nack_nowait()
            if anew:
                store.queue("jobs")
            with pytest.raises(aiodq.QueueShutDown, match="deleted"):
                await soon(rejected.reject())
            await soon(deleting)
            await store.queue("other").put(b"x")
            assert "dead" not in store.topics()

    @pytest.mark.parametrize("way", ["nack", "timeout", "raise"])
    async def test_after_so_many_attempts_it_goes_to_the_dead_letter_topic(self, machine: Machine, way: str) -> None:
        options = aiodq.ChannelOptions(max_attempts=3, dead_letter="dead", visibility_timeout=10)
        async with machine.store() as store:
            jobs = store.queue("jobs", options)
            dead = store.queue("dead")
            await jobs.put(b"x", tag="t", key=b"k", headers={"a": "b"})
            for attempt in (1, 2, 3):
                message = await soon(jobs.get())
                assert message.attempts == attempt
                if way == "nack":
                    await message.nack()
                elif way == "timeout":
                    machine.clock.advance(10)
                else:
                    with pytest.raises(RuntimeError):
                        async with message:
                            raise RuntimeError
            assert ready(jobs) == []
            letter = await soon(dead.get())
            assert (letter.body, letter.tag, letter.key) == (b"x", "t", b"k")
            headers = dict(letter.headers)
            assert datetime.fromisoformat(headers.pop("aiodq-time")).tzinfo is not None
            assert headers.pop("aiodq-reason") == "delivered 3 times"
            assert headers.pop("aiodq-error", None) == ("RuntimeError" if way == "raise" else None)
            assert headers == {
                "a": "b", "aiodq-topic": "jobs", "aiodq-channel": "default", "aiodq-offset": "0", "aiodq-attempts": "3",
            }  # fmt: skip
            await until(lambda: jobs.depth == 0)
            assert jobs.stats().dead == 1

    async def test_attempts_count_over_restarts(self, machine: Machine) -> None:
        for attempt in (1, 2):
            async with machine.jobs(max_attempts=2) as jobs:
                if attempt == 1:
                    await jobs.put(b"x")
                message = await soon(jobs.get())
                assert message.attempts == attempt
                await message.nack()
        async with machine.jobs(max_attempts=2) as jobs:
            assert ready(jobs) == []
            assert jobs.depth == 0

    async def test_without_a_topic_it_is_dropped_and_counted(self, machine: Machine) -> None:
        async with machine.jobs(max_attempts=1) as jobs:
            await jobs.put_many([b"x", b"y"])
            await (await jobs.get()).nack()
            await (await jobs.get()).reject("bad")
            assert (jobs.depth, jobs.stats().dead) == (0, 2)

    async def test_what_is_not_counted_does_not_kill(self, machine: Machine) -> None:
        async with machine.jobs(max_attempts=2) as jobs:
            await jobs.put(b"x")
            for _ in range(5):
                await (await jobs.get()).nack(count_attempt=False)
            message = await jobs.get()
            message.release()
            assert counts(jobs) == (1, 0, 0)

    async def test_rejected_it_is_there_once_that_returns(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"x")
            message = await jobs.get()
            await message.reject("no such customer")
            with pytest.raises(aiodq.AlreadySettledError):
                await message.ack()
            machine.crash()
        async with machine.store() as store:
            assert store.queue("jobs").depth == 0
            letter = await soon(store.queue("dead").get())
            assert letter.headers["aiodq-reason"] == "no such customer"

    @staticmethod
    def _cuts(machine: Machine) -> list[tuple[int, Image]]:
        assert machine.fs.trace is not None
        durable = next(number for number, done in enumerate(machine.fs.trace) if isinstance(done, Marked))
        return [(number, files) for number, files in machine.fs.power_cuts(seed=1) if number > durable]

    @staticmethod
    async def _kept(files: Image) -> list[bytes]:
        """Return what a store still has, delivered or as a dead letter."""
        async with aiodq.open("/s", fs=SimulatedFileSystem(files), clock=FakeClock()) as store:
            letters = [letter.body async for letter in store.topic("dead").scan()] if "dead" in store.topics() else []
            return letters + ready(store.queue("jobs"))

    async def test_a_letter_that_cannot_be_put_keeps_the_message(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"x")
            dead = store.queue("dead")
            await dead.topic.settle_in()
            message = await jobs.get()
            machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, match="transactions"))
            with pytest.raises(aiodq.DiskFullError):
                await message.reject()
            machine.fs.plan.clear()
            assert counts(jobs) == (0, 0, 1)
            machine.clock.advance(1)
            message = await soon(jobs.get())
            await message.reject()
            assert (await soon(dead.get())).body == b"x"

    async def test_a_letter_waits_for_room_on_the_disk_once_its_message_is_settled(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"x")
            dead = store.queue("dead")
            await dead.topic.settle_in()
            machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, match="dead"))
            await (await jobs.get()).reject()
            assert (counts(jobs), ready(dead)) == ((0, 0, 0), [])
            machine.crash()
        machine.fs.plan.clear()
        async with machine.store() as store:
            assert store.queue("jobs").depth == 0
            assert (await soon(store.queue("dead").get())).body == b"x"

    @pytest.mark.slow_on_uvloop  # what a power cut leaves is asked of the disk
    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_a_power_cut_leaves_a_message_or_its_letter_and_never_both(
        self, machine: Machine, policy: str, seed: int
    ) -> None:
        machine.fs = SimulatedFileSystem(record=True)
        async with machine.store(sync=policy, sync_interval=3600) as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put_many([b"x", b"y", b"z"])
            await jobs.sync()
            machine.fs.mark("durable")
            await asyncio.gather(*(message.reject() for message in await jobs.get_many(2)))
        cuts = self._cuts(machine)
        tried = random.Random(seed).sample(cuts, min(len(cuts), 40))
        found = [(number, sorted(await self._kept(files))) for number, files in tried]
        assert [cut for cut in found if cut[1] != [b"x", b"y", b"z"]] == []

    async def test_letters_that_are_under_way_together_are_one_transaction(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with machine.store() as store:
            first, second = (store.queue(name, aiodq.ChannelOptions(dead_letter="dead")) for name in ("a", "b"))
            for jobs in (first, second):
                await jobs.put_many([b"x"] * 200)
            await store.queue("dead").topic.settle_in()
            held = [message for jobs in (first, second) for message in await jobs.get_many(200)]
            appended = list[int]()
            append = TransactionFile.append

            def counted(file: TransactionFile, commits: Sequence[Commit], now_ns: int) -> list[int]:
                appended.extend(len(commit.puts[0].columns.bodies) for commit in commits)
                return append(file, commits, now_ns)

            monkeypatch.setattr(TransactionFile, "append", counted)
            await asyncio.gather(*(message.reject() for message in held))
            assert sum(appended) == 400
            assert len(appended) <= 5
            for jobs in (first, second):
                stats = jobs.stats()
                assert (stats.depth, stats.dead, stats.acked) == (0, 200, 0)
            assert store.stats().transactions == 0
            assert len(ready(store.queue("dead"))) == 400

    async def test_a_message_taken_away_meanwhile_gets_no_letter_and_the_others_do(self, machine: Machine) -> None:
        async with machine.store() as store:
            options = aiodq.ChannelOptions(dead_letter="dead")
            first, second = store.queue("a", options), store.queue("b", options)
            await first.put(b"x")
            await second.put(b"y")
            dead = store.queue("dead")
            await dead.topic.settle_in()
            rejecting = [asyncio.ensure_future((await jobs.get()).reject()) for jobs in (first, second)]
            async with store._store_engine.committer._turn:
                await until(lambda: bool(store._store_engine.committer._waiting))
                await until(lambda: dead.topic._engine.put_buffer.pending == 2)
                for _ in range(5):
                    await asyncio.sleep(0)
                channel_engine = store._store_engine.topics["a"].channel_engines["default"]
                assert channel_engine.state is not None
                channel_engine.state.seek(0)
            with pytest.raises(aiodq.NotInFlightError):
                await soon(rejecting[0])
            await soon(rejecting[1])
            assert (first.depth, second.depth, dead.topic._engine.put_buffer.pending) == (1, 0, 0)
            assert ready(dead) == [b"y"]

    @pytest.mark.parametrize(
        ("point", "way"),
        [
            ("before", "reject"),
            ("after", "nack"),
            pytest.param("before", "nack", marks=pytest.mark.slow),
            pytest.param("after", "reject", marks=pytest.mark.slow),
        ],
    )
    def test_a_killed_process_leaves_a_message_or_its_letter_and_never_both(
        self, tmp_path: Path, point: str, way: str
    ) -> None:
        arguments = [sys.executable, "-m", "tests.channels.killed_giving_up", str(tmp_path), point, way]
        assert subprocess.run(arguments, check=False, cwd=ROOT, env=environment()).returncode == KILLED

        async def letters() -> list[bytes]:
            async with aiodq.open(tmp_path) as store:
                jobs, dead = store.queue("jobs"), store.queue("dead")
                # It has had its only attempt: if it was not given up yet, it is now.
                await until(lambda: jobs.depth == 0)
                return ready(dead)

        assert asyncio.run(letters()) == [b"x"]

    async def test_closing_with_letters_under_way_loses_none(self, machine: Machine) -> None:
        async with machine.store(max_messages=1) as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await store.queue("dead").put(b"in the way")
            await jobs.put(b"x")
            rejecting = asyncio.ensure_future((await jobs.get()).reject())
            await asyncio.sleep(0)
        with pytest.raises((aiodq.QueueShutDown, asyncio.CancelledError)):
            await soon(rejecting)
        machine.clock.advance(1)
        async with machine.jobs() as jobs:
            assert ready(jobs) == [b"x"]

    async def test_a_crash_before_the_letter_is_put_gives_no_further_attempt(self, machine: Machine) -> None:
        options = aiodq.ChannelOptions(max_attempts=1, dead_letter="dead")
        async with machine.store(max_messages=1) as store:
            jobs = store.queue("jobs", options)
            await store.queue("dead").put(b"in the way")
            await jobs.put(b"x")
            await (await jobs.get()).nack()
            await jobs.sync()
            machine.crash()
        async with machine.store() as store:
            jobs, dead = store.queue("jobs", options), store.queue("dead")
            assert (await soon(dead.get())).body == b"in the way"
            assert ready(jobs) == []
            letter = await soon(dead.get())
            assert (letter.body, letter.headers["aiodq-attempts"]) == (b"x", "1")

    def test_options_that_cannot_be(self) -> None:
        for wrong in ({"max_attempts": 0}, {"visibility_timeout": 0}, {"visibility_timeout": -1}, {"tags": "red"}):
            with pytest.raises(aiodq.InvalidOptionError):
                aiodq.ChannelOptions(**wrong)
        with pytest.raises(aiodq.InvalidNameError):
            aiodq.ChannelOptions(dead_letter="no/name")

    async def test_a_topic_is_not_its_own_dead_letter_topic(self, machine: Machine) -> None:
        async with machine.store() as store:
            with pytest.raises(aiodq.InvalidOptionError):
                store.topic("t").channel("c", aiodq.ChannelOptions(dead_letter="t"))


class TestTags:
    async def test_only_what_is_tagged_so_is_delivered(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            red = topic.channel("red", aiodq.ChannelOptions(tags=["red", "pink"]))
            every = topic.channel("all")
            for tag in ("red", None, "blue", "pink", "red"):
                await topic.put(str(tag).encode(), tag=tag)
            assert ready(red) == [b"red", b"pink", b"red"]
            assert len(ready(every)) == 5
            assert (red.depth, red.stats().filtered) == (3, 2)
            waiting = asyncio.ensure_future(red.get())
            await topic.put(b"no", tag="blue")
            await topic.put(b"yes", tag="red")
            assert (await soon(waiting)).body == b"yes"

    async def test_what_was_passed_over_stays_so_and_frees_its_segment(self, machine: Machine) -> None:
        async with machine.store(segment_bytes=1000) as store:
            red = store.queue("t", aiodq.ChannelOptions(tags={"red"}))
            for _ in range(10):
                await red.put(bytes(200), tag="blue")
            await red.put(b"x", tag="red")
            await (await soon(red.get())).ack()
            assert red.depth == 0
            await until(lambda: red.topic_stats().segments <= 2)
        async with machine.store() as store:
            assert store.queue("t").depth == 0


class TestPause:
    async def test_nothing_is_delivered_and_what_is_in_flight_may_be_settled(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b"])
            message = await jobs.get()
            await jobs.pause()
            assert jobs.paused
            waiting = asyncio.ensure_future(jobs.get())
            await jobs.put(b"c")
            await asyncio.sleep(0)
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            assert (waiting.done(), jobs.qsize()) == (False, 2)
            await message.ack()
            await jobs.resume()
            assert (await soon(waiting)).body == b"b"

    async def test_it_takes_effect_at_once_and_is_durable_once_awaited(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            one, two = topic.channel("one"), topic.channel("two")
            await topic.put(b"x")
            one.pause()
            assert (ready(one), len(ready(two))) == ([], 1)
            await topic.pause()
            assert one.paused
            assert two.paused
            machine.crash()
        async with machine.store() as store:
            topic = store.topic("t")
            one, two = topic.channel("one"), topic.channel("two")
            assert ready(one) == ready(two) == []
            await topic.resume()
            assert (ready(one), len(ready(two))) == ([], 1)
            await one.resume()
            assert ready(one) == [b"x"]
        async with machine.store() as store:
            assert not store.topic("t").channel("one").paused

    async def test_one_that_waits_for_its_new_options_to_be_on_disk_is_not_paused(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            await topic.put(b"x")
            await topic.channel("c").refresh()
            channel = topic.channel("c", aiodq.ChannelOptions(max_attempts=2))
            assert ready(channel) == []
            assert (channel.paused, channel.stats().paused, "paused" in repr(channel)) == (False, False, False)
            await topic.settle_in()
            assert ready(channel) == [b"x"]

    @pytest.mark.parametrize("whole_topic", [False, True])
    @pytest.mark.parametrize("steps", [0, 1, 2, 5])
    async def test_who_is_cancelled_while_it_is_made_durable(
        self, machine: Machine, steps: int, *, whole_topic: bool
    ) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            one = topic.channel("one")
            await topic.put(b"x")

            async def pause() -> None:
                await (topic if whole_topic else one).pause()

            pausing = asyncio.ensure_future(pause())
            for _ in range(1 + steps):
                await asyncio.sleep(0)
            pausing.cancel()
            await asyncio.wait([pausing])
            assert ready(one) == []
        async with machine.store() as store:
            assert ready(store.topic("t").channel("one")) == []

    async def test_timeouts_run_while_it_is_paused(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=5) as jobs:
            await jobs.put(b"x")
            await jobs.get()
            await jobs.pause()
            machine.clock.advance(5)
            assert counts(jobs) == (1, 0, 0)


class TestSeek:
    async def test_back_and_forth(self, machine: Machine) -> None:
        async with machine.store(retention=aiodq.Retention(consumed="keep")) as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"%d" % n for n in range(6)])
            for _ in range(4):
                await (await jobs.get()).ack()
            held = await jobs.get()
            await jobs.seek(2)
            assert counts(jobs) == (4, 0, 0)
            with pytest.raises(aiodq.NotInFlightError):
                await held.ack()
            assert ready(jobs) == [b"2", b"3", b"4", b"5"]
            await jobs.seek("latest")
            assert counts(jobs) == (0, 0, 0)
            await jobs.put(b"new")
            assert ready(jobs) == [b"new"]
            await jobs.seek("earliest")
            assert len(ready(jobs)) == 7

    async def test_to_a_time(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"old")
            machine.clock.advance(60)
            moment = datetime.fromtimestamp(machine.clock.now_ns() / 1e9, UTC)
            await jobs.put(b"new")
            await jobs.seek(moment)
            assert ready(jobs) == [b"new"]

    async def test_the_last_of_several_seeks_decides_though_earlier_ones_take_longer(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b"])
            moment = (await jobs.read(0)).timestamp
            before = asyncio.all_tasks()
            cancelled = asyncio.ensure_future(jobs.seek(moment))
            await asyncio.sleep(0)
            cancelled.cancel()
            await soon(jobs.seek("latest"))
            if left := asyncio.all_tasks() - before:
                await soon(asyncio.wait(left))
            assert jobs.empty()

    @pytest.mark.parametrize("fold", [False, True])
    async def test_it_outlives_a_crash(self, machine: Machine, *, fold: bool) -> None:
        async with machine.store(retention=aiodq.Retention(consumed="keep")) as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"%d" % n for n in range(6)])
            message = await jobs.get()
            await message.nack(60)
            for _ in range(4):
                await (await jobs.get()).ack()
            await jobs.seek(1)
            await (await jobs.get()).nack()
            await jobs.sync()
            if not fold:
                machine.crash()
        async with machine.store() as store:
            jobs = store.queue("jobs")
            assert counts(jobs) == (5, 0, 0)
            assert (await jobs.get()).attempts == 2

    async def test_delayed_messages_stay_so(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put(b"x", delay=10)
            await jobs.put(b"y")
            await jobs.seek("earliest")
            assert ready(jobs) == [b"y"]
            assert counts(jobs) == (0, 1, 1)
            machine.clock.advance(10)
            assert ready(jobs) == [b"x"]

    async def test_beyond_the_log_is_refused_and_changes_nothing(self, machine: Machine) -> None:
        async with machine.store(segment_bytes=100) as store:
            jobs = store.queue("jobs")
            for number in range(6):
                await jobs.put(b"%d" % number + bytes(50))
            for _ in range(4):
                await (await jobs.get()).ack()
            await until(lambda: jobs.begin_offset > 0)
            nowhere: Any = "nowhere"
            for wrong in (7, jobs.begin_offset - 1, -1):
                with pytest.raises((aiodq.OffsetError, aiodq.InvalidOptionError)):
                    await jobs.seek(wrong)
            with pytest.raises(aiodq.InvalidOptionError):
                await jobs.seek(nowhere)
            with pytest.raises(aiodq.InvalidOptionError):
                await jobs.seek(datetime(2026, 1, 1))  # noqa: DTZ001 - a time without a zone is what is refused
            assert counts(jobs) == (2, 0, 0)

    async def test_segments_that_are_wanted_again_stay(self, machine: Machine) -> None:
        async with machine.store(segment_bytes=100) as store:
            topic = store.topic("t")
            slow, fast = topic.channel("slow"), topic.channel("fast")
            await topic.settle_in()
            for number in range(6):
                await topic.put(b"%d" % number + bytes(50))
            for _ in range(6):
                await (await fast.get()).ack()
            await fast.seek("earliest")
            for _ in range(6):
                await (await slow.get()).ack()
            assert [body[:1] for body in ready(fast)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


class TestConsume:
    async def test_a_handler_that_returns_acks_one_that_raises_requeues(self, machine: Machine) -> None:
        seen: list[bytes] = []

        async def handler(message: aiodq.Message) -> None:
            seen.append(message.body)
            await asyncio.sleep(0)
            if message.body == b"bad" and message.attempts < 3:
                raise RuntimeError("no")

        async with machine.jobs() as jobs:
            await jobs.put_many([b"good", b"bad", b"fine"])
            consuming = asyncio.ensure_future(jobs.consume(handler))
            for _ in range(2):
                await until(lambda: counts(jobs) == (0, 0, 1))
                machine.clock.advance(3)
            await soon(jobs.join())
            jobs.shutdown()
            await soon(consuming)
        assert seen == [b"good", b"bad", b"fine", b"bad", b"bad"]

    async def test_as_many_at_once_as_asked_for(self, machine: Machine) -> None:
        running = most = 0

        async def handler(_: aiodq.Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        async with machine.jobs() as jobs:
            await jobs.put_many([b"x"] * 20)
            jobs.shutdown()
            await soon(jobs.consume(handler, concurrency=4))
            with pytest.raises(aiodq.InvalidOptionError):
                await jobs.consume(handler, concurrency=0)
        assert most == 4

    @pytest.mark.parametrize("way", ["cancel", "timeout"])
    async def test_cancelled_it_releases_what_is_under_way(self, machine: Machine, way: str) -> None:
        begun = asyncio.Event()

        async def handler(_: aiodq.Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            consuming = asyncio.ensure_future(jobs.consume(handler, concurrency=2))
            await soon(begun.wait())
            if way == "cancel":
                consuming.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await consuming
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consuming, 0)
            assert counts(jobs) == (1, 0, 0)
            assert (await jobs.get()).attempts == 1

    async def test_what_the_handler_settled_itself_stays_so(self, machine: Machine) -> None:
        async def handler(message: aiodq.Message) -> None:
            await message.nack(60)

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            jobs.topic.put_nowait(b"y")
            consuming = asyncio.ensure_future(jobs.consume(handler))
            await until(lambda: jobs.deferred() == 2)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)

    async def test_one_that_is_too_slow_is_logged_and_work_goes_on(self, machine: Machine) -> None:
        async def handler(message: aiodq.Message) -> None:
            if message.attempts == 1:
                machine.clock.advance(60)

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            jobs.shutdown()
            await soon(jobs.consume(handler, renew=False))
            assert (jobs.depth, jobs.stats().timed_out) == (0, 1)


class TestDeleteChannel:
    async def test_it_is_gone_for_good_and_so_is_what_only_it_held_back(self, machine: Machine) -> None:
        async with machine.store(segment_bytes=200) as store:
            topic = store.topic("t")
            keep, doomed = topic.channel("keep"), topic.channel("doomed")
            await topic.settle_in()
            for number in range(8):
                await topic.put(b"%d" % number + bytes(90))
            for _ in range(8):
                await (await keep.get()).ack()
            held = await doomed.get()
            assert topic.stats().segments > 3
            await topic.delete_channel("doomed")
            await until(lambda: topic.stats().segments == 1)
            assert topic.channels() == ["keep"]
            for call in (held.ack(), doomed.get()):
                with pytest.raises(aiodq.QueueShutDown):
                    await soon(call)
            await topic.delete_channel("doomed")
            assert not machine.fs.exists("/s/t/channels/doomed")
        async with machine.store() as store:
            assert store.topic("t").channels() == ["keep"]

    async def test_named_again_it_is_a_new_channel(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            topic.channel("other")
            first = topic.channel("c")
            await topic.put_many([b"a", b"b"])
            await (await first.get()).ack()
            await first.pause()
            await topic.delete_channel("c")
            again = topic.channel("c", aiodq.ChannelOptions(start="earliest"))
            await topic.settle_in()
            assert (again.paused, ready(again)) == (False, [b"a", b"b"])

    @pytest.mark.parametrize("call", ["peek", "join", "get_nowait", "get"])
    async def test_the_handle_of_a_deleted_one_has_no_more_messages(self, machine: Machine, call: str) -> None:
        async with machine.store() as store:
            topic, events = store.topic("t"), store.events()
            old = topic.channel("c")
            await topic.put_many([b"a", b"b"])
            await topic.settle_in()
            await topic.delete_channel("c")
            topic.channel("other")
            await topic.settle_in()
            await topic.purge()

            async def called() -> None:
                if call == "get_nowait":
                    old.get_nowait()
                else:
                    await getattr(old, call)()

            with pytest.raises(aiodq.QueueShutDown, match="channel 'c' was deleted"):
                await called()
        assert [event async for event in events] == []

    @pytest.mark.parametrize("call", ["pause", "resume", "configure"])
    async def test_the_handle_of_a_deleted_one_changes_nothing_of_a_new_one(self, machine: Machine, call: str) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            old = topic.channel("c")
            await topic.put(b"a")
            await topic.delete_channel("c")
            new = topic.channel("c", aiodq.ChannelOptions(start="earliest"))
            await topic.settle_in()
            if call == "resume":
                await new.pause()
            calls = {"pause": old.pause, "resume": old.resume}
            with pytest.raises(aiodq.QueueShutDown, match="channel 'c' was deleted"):
                await (old.configure(aiodq.ChannelOptions(tags=["x"])) if call == "configure" else calls[call]())
        async with machine.store() as store:
            channel = store.topic("t").channel("c")
            await store.topic("t").settle_in()
            assert (channel.paused, channel.options.tags) == (call == "resume", None)

    async def test_what_was_asked_of_one_as_it_was_deleted_is_not_done_to_a_new_one(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            old = topic.channel("c")
            await topic.put(b"a")
            calls = [
                asyncio.ensure_future(call)
                for call in (
                    topic.delete_channel("c"),
                    old.configure(aiodq.ChannelOptions(max_attempts=3)),
                    topic.delete_channel("c"),
                )
            ]
            await until(lambda: not topic.channels())
            new = topic.channel("c", aiodq.ChannelOptions(max_attempts=5, start="earliest"))
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert results[::2] == [None, None]
            await topic.settle_in()
            assert (topic.channels(), new.options.max_attempts, ready(new)) == (["c"], 5, [b"a"])

    async def test_named_while_it_is_deleted_it_leaves_no_options_behind(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            old = topic.channel("c")
            await topic.put(b"a")
            deleting = asyncio.ensure_future(topic.delete_channel("c"))
            await until(lambda: "deleted" in repr(old) or not topic.channels())
            topic.channel("c", aiodq.ChannelOptions(max_attempts=3))
            await deleting
            assert topic.channel("c", aiodq.ChannelOptions(max_attempts=5)).options.max_attempts == 5

    async def test_files_that_a_deletion_left_behind_say_nothing_of_a_new_channel(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            channel = topic.channel("c")
            await topic.put_many([b"a", b"b"])
            await (await channel.get()).ack()
            machine.fs.plan.add(Fault("remove", machine.fs.calls.get("remove", 0) + 1, "EIO"))
            with pytest.raises(aiodq.StorageError):
                await topic.delete_channel("c")
            machine.crash()
        async with machine.store() as store:
            topic = store.topic("t")
            assert topic.channels() == []
            topic.channel("c")
            await topic.settle_in()
            assert ready(topic.channel("c")) == [b"a", b"b"]


class TestPurge:
    @pytest.mark.parametrize("whole", [False, True])
    async def test_it_takes_what_is_ready_in_flight_and_deferred(self, machine: Machine, *, whole: bool) -> None:
        """NSQ's *empty* (B16): a later ack of what was in flight is refused."""
        async with machine.store() as store:
            topic = store.topic("t")
            channel = topic.channel("c")
            await topic.put_many([b"a", b"b", b"c", aiodq.Draft(b"d", delay=60)])
            held = await channel.get()
            await (await channel.get()).nack(60)
            assert counts(channel) == (1, 1, 2)
            await (topic.purge() if whole else channel.purge())
            assert counts(channel) == (0, 0, 0)
            with pytest.raises(aiodq.NotInFlightError):
                await held.ack()
            machine.clock.advance(60)
            assert counts(channel) == (0, 0, 0)
            await topic.put(b"new")
            assert ready(channel) == [b"new"]
        machine.clock.advance(60)
        async with machine.store() as store:
            assert ready(store.topic("t").channel("c")) == [b"new"]

    async def test_dropping_the_oldest_drops_what_is_deferred_and_nothing_in_flight(self, machine: Machine) -> None:
        async with machine.store(max_messages=3, overflow="drop_oldest") as store:
            jobs = store.queue("jobs")
            await jobs.put(b"held")
            held = await jobs.get()
            await jobs.put(b"later", delay=60)
            for number in range(3):
                await jobs.put(b"%d" % number)
            assert counts(jobs) == (2, 1, 0)
            assert ready(jobs) == [b"1", b"2"]
            await held.ack()
            machine.clock.advance(60)
            assert counts(jobs) == (2, 0, 0)  # it is these two that timed out

    async def test_retention_drops_what_is_deferred_only_if_told_to(self, machine: Machine) -> None:
        for left, retention in (
            (1, aiodq.Retention(max_segments=1, unconsumed="keep")),
            (0, aiodq.Retention(max_segments=1, unconsumed="delete")),
        ):
            async with machine.store(segment_bytes=200, retention=retention) as store:
                jobs = store.queue(f"jobs{left}")
                await jobs.put(b"later" + bytes(90), delay=60)
                for number in range(8):
                    await jobs.put(b"%d" % number + bytes(90))
                    await (await jobs.get()).ack()
                await jobs.sync()
                assert jobs.deferred() == left
                assert jobs.stats().dropped == 1 - left


class TestDrain:
    async def test_it_refuses_puts_and_waits_for_consumers(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs, idle = store.queue("jobs"), store.queue("idle")
            await jobs.put_many([b"a", b"b", aiodq.Draft(b"later", delay=60)])
            held = await jobs.get()
            draining = asyncio.ensure_future(store.drain())
            await asyncio.sleep(0)
            for queue in (jobs, idle, store.queue("new")):
                with pytest.raises(aiodq.QueueShutDown):
                    await queue.put(b"c")
            seen: list[bytes] = []

            async def work(message: aiodq.Message) -> None:
                seen.append(message.body)

            await soon(jobs.consume(work))
            assert (seen, draining.done()) == ([b"b"], False)
            await held.ack()
            assert await soon(draining) is True
            assert counts(jobs) == (0, 0, 1)

    async def test_it_goes_on_without_what_is_deleted_meanwhile(self, machine: Machine) -> None:
        async with machine.store() as store:
            topic, other = store.topic("jobs"), store.topic("other")
            kept, gone, elsewhere = topic.channel("kept"), topic.channel("gone"), other.channel("channel")
            await topic.put(b"a")
            await other.put(b"b")
            held = await kept.get()
            await gone.get()
            await elsewhere.get()
            draining = asyncio.ensure_future(store.drain())
            await asyncio.sleep(0)
            await topic.delete_channel("gone")
            await store.delete_topic("other")
            await asyncio.sleep(0.01)
            assert not draining.done()
            await held.ack()
            assert await soon(draining) is True

    async def test_a_store_that_is_closed_meanwhile_is_not_said_to_be_drained(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"a")
            draining = asyncio.ensure_future(store.drain())
            await asyncio.sleep(0)
        with pytest.raises(aiodq.QueueShutDown):
            await soon(draining)

    async def test_it_gives_up_after_a_time_and_nothing_is_lost(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"a")
            assert await store.drain(0.01) is False
            assert (await jobs.get()).body == b"a"
        async with machine.jobs() as jobs:
            assert ready(jobs) == [b"a"]

    @pytest.mark.parametrize("cancelled", [False, True])
    async def test_however_short_the_time_those_who_wait_for_messages_are_told(
        self, machine: Machine, *, cancelled: bool
    ) -> None:
        async with machine.store() as store:
            jobs, idle = store.queue("jobs"), store.queue("idle")
            await idle.topic.settle_in()
            await jobs.put_many([b"a", b"b"])
            held = await jobs.get()
            waiting = asyncio.ensure_future(idle.get())
            await asyncio.sleep(0)
            if cancelled:
                draining = asyncio.ensure_future(store.drain())
                await asyncio.sleep(0)
                draining.cancel()
                await asyncio.wait([draining])
            else:
                assert await store.drain(0) is False
            with pytest.raises(aiodq.QueueShutDown):
                await soon(waiting)
            seen = []
            async with asyncio.timeout(PATIENCE):
                async for message in jobs:
                    seen.append(message.body)
                    await message.ack()
            assert seen == [b"b"]
            await held.ack()
            assert await soon(store.drain()) is True

    async def test_it_refuses_what_goes_into_new_topics_unless_a_message_is_worked_off_by_it(
        self, machine: Machine
    ) -> None:
        async with machine.store() as store:
            named = store.topic("named")
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put_many([b"a", b"b"])
            done, dead = await jobs.get(), await jobs.get()
            draining = asyncio.ensure_future(store.drain())
            await asyncio.sleep(0)
            for topic in (named, store.topic("new")):
                with pytest.raises(aiodq.QueueShutDown):
                    await topic.put(b"c")
                with pytest.raises(aiodq.QueueShutDown):
                    async with store.transaction() as tx:
                        tx.put(topic.name, b"c")
            await store.delete_topic("named")
            with pytest.raises(aiodq.QueueShutDown):
                await store.topic("named").put(b"c")
            async with store.transaction() as tx:
                tx.ack(done)
                tx.put("made", b"made of a")
            await dead.reject()
            assert (await soon(store.queue("made").get())).body == b"made of a"
            assert (await soon(store.queue("dead").get())).body == b"b"
            assert await soon(draining)
            assert [store.topic(name).end_offset for name in ("new", "named")] == [0, 0]

    async def test_dead_letters_still_reach_their_topic(self, machine: Machine) -> None:
        async with machine.store() as store:
            dead = store.queue("dead")
            await dead.put(b"first")
            await (await dead.get()).ack()
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"a")
            message = await jobs.get()
            draining = asyncio.ensure_future(store.drain(0))
            await soon(draining)
            await message.reject()
            assert (await soon(dead.get())).body == b"a"
