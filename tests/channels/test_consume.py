"""`Channel.consume`: how a handler may end, what follows from it, and what no handler can do to the others."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
import threading
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

import aiodq
from aiodq.testing import Fault
from tests.channels.support import PATIENCE, Machine, counts, soon, until
from tests.channels.test_counted import killed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DEAD: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead"}


@asynccontextmanager
async def consuming(
    channel: aiodq.Channel, handler: Callable[[aiodq.Message], object], **options: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """Consume as long as the block lasts."""
    task = asyncio.create_task(channel.consume(handler, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def letter_of(machine: Machine, store: aiodq.Store, jobs: aiodq.Queue) -> aiodq.Message:
    """Let time go by until there is a dead letter, and return it."""
    dead = store.queue("dead")
    while dead.empty():
        await until(lambda: jobs.deferred() or not dead.empty() or not jobs.in_flight())
        machine.clock.advance(3)
        await asyncio.sleep(0)
    return await soon(dead.get())


class TestCancellation:
    """D2: only who cancels `consume` from outside ends it."""

    async def _raises(self, _: aiodq.Message) -> None:
        raise asyncio.CancelledError

    async def _cancels_itself(self, _: aiodq.Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def _cancels_itself_and_returns(self, _: aiodq.Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def _waits_for_one_that_was_cancelled(self, _: aiodq.Message) -> None:
        other = asyncio.ensure_future(asyncio.sleep(PATIENCE))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    async def _leaves_a_scope_cancelled(self, _: aiodq.Message) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        raise asyncio.CancelledError

    @pytest.mark.parametrize(
        "way",
        ["raises", "cancels_itself", "cancels_itself_and_returns", "waits_for_one_that_was_cancelled",
         "leaves_a_scope_cancelled"],
    )  # fmt: skip
    async def test_a_handlers_own_cancellation_is_a_failed_attempt_and_its_worker_lives_on(
        self, machine: Machine, way: str
    ) -> None:
        handled: list[bytes] = []

        async def handler(message: aiodq.Message) -> None:
            if message.body == b"bad":
                await getattr(self, f"_{way}")(message)
            else:
                handled.append(message.body)

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put_many([b"bad", b"1", b"bad", b"2"])
            async with consuming(jobs, handler, concurrency=2) as task:
                await until(lambda: counts(jobs) == (0, 0, 2))
                machine.clock.advance(3)
                await soon(jobs.join())
                await jobs.put(b"3")
                await soon(jobs.join())
                assert not task.done()
            letter = await soon(store.queue("dead").get())
        assert handled == [b"1", b"2", b"3"]
        assert letter.headers["aiodq-error"].startswith("asyncio.exceptions.CancelledError")

    @pytest.mark.parametrize("way", ["task.cancel", "asyncio.timeout", "anyio.move_on_after", "task group"])
    @pytest.mark.parametrize("threaded", [False, True])
    async def test_cancelled_from_outside_it_releases_what_is_under_way(
        self, machine: Machine, way: str, *, threaded: bool
    ) -> None:
        begun, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        async def wait(_: aiodq.Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        def block(_: aiodq.Message) -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(PATIENCE)

        async def consume() -> None:
            await jobs.consume(block if threaded else wait, concurrency=2)

        async def cancel() -> None:
            await soon(begun.wait())
            raise RuntimeError

        async with machine.jobs(max_attempts=1) as jobs:
            await jobs.put(b"x")
            if way == "task.cancel":
                task = asyncio.create_task(consume())
                await soon(begun.wait())
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif way == "asyncio.timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await consume()
            elif way == "anyio.move_on_after":
                with anyio.move_on_after(0.05) as scope:
                    await consume()
                assert scope.cancelled_caught
            else:
                with pytest.raises(ExceptionGroup):
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(consume())
                        tasks.create_task(cancel())
            go_on.set()
            assert counts(jobs) == (1, 0, 0)
            assert (await jobs.get()).attempts == 1

    async def test_a_handler_that_is_done_all_the_same_is_done(self, machine: Machine) -> None:
        begun = asyncio.Event()

        async def handler(_: aiodq.Message) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)

        async with machine.jobs() as jobs:
            await jobs.put_many([b"x", b"y"])
            async with consuming(jobs, handler):
                await soon(begun.wait())
            assert counts(jobs) == (1, 0, 0)
            assert (await jobs.get()).body == b"y"

    async def test_cancelled_while_it_waits_for_the_ack_it_does_nothing_twice(self, machine: Machine) -> None:
        seen: list[bytes] = []

        async def handler(message: aiodq.Message) -> None:
            seen.append(message.body)

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler):
                await until(lambda: seen)
            assert jobs.depth == 0

    async def test_cancelled_again_and_again_it_waits_for_its_handlers(self, machine: Machine) -> None:
        begun, tidied = asyncio.Event(), asyncio.Event()

        async def handler(_: aiodq.Message) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await tidied.wait()

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler) as task:
                await soon(begun.wait())
                for _ in range(5):
                    task.cancel()
                    await asyncio.sleep(0)
                assert (task.done(), jobs.in_flight()) == (False, 1)
                tidied.set()
                await asyncio.wait([task])
            assert counts(jobs) == (1, 0, 0)


class Outcome(BaseException):
    """Not to be caught by chance, as those of pytest.fail() and pytest.skip()."""


class TestFailures:
    """D5: what fails waits, and holds nobody up."""

    @pytest.mark.parametrize("by", ["coroutine", "thread", "hook"])
    @pytest.mark.parametrize(
        "error",
        [Outcome("no"), GeneratorExit("no"), BaseExceptionGroup("no", [Outcome()])],
        ids=lambda it: type(it).__name__,
    )
    async def test_whatever_does_not_end_the_program_is_a_failed_attempt(
        self, machine: Machine, by: str, error: BaseException
    ) -> None:
        handled: list[bytes] = []

        def plain(message: aiodq.Message) -> None:
            if message.body == b"bad":
                raise ValueError("no") if by == "hook" else error
            handled.append(message.body)

        async def handler(message: aiodq.Message) -> None:
            plain(message)

        def hook(_: aiodq.Message, told: BaseException) -> None:
            if by == "hook":
                raise error
            assert told is error

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1, dead_letter="dead"))
            await jobs.put_many([b"bad", b"1", b"bad", b"2"])
            async with consuming(jobs, plain if by == "thread" else handler, concurrency=2, on_error=hook) as task:
                await soon(jobs.join())
                await jobs.put(b"3")
                await soon(jobs.join())
                assert not task.done()
            letter = await soon(store.queue("dead").get())
        assert sorted(handled) == [b"1", b"2", b"3"]
        assert ": no" in letter.headers["aiodq-error"]

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_what_ends_the_program_ends_it(self, error: type[BaseException]) -> None:
        async def main() -> None:
            async def handler(_: aiodq.Message) -> None:
                raise error

            async with Machine().jobs() as jobs:
                await jobs.put(b"a")
                await jobs.consume(handler)

        with pytest.raises(error):
            asyncio.run(main())

    async def test_one_poison_message_starves_nobody(self, machine: Machine) -> None:
        handled: list[int] = []
        tried = 0

        async def handler(message: aiodq.Message) -> None:
            nonlocal tried
            if message.body == b"poison":
                tried += 1
                raise ValueError("no")
            handled.append(int(message.body))

        async with machine.jobs() as jobs:
            await jobs.put(b"poison")
            async with consuming(jobs, handler):
                for second in range(100):
                    await jobs.put(b"%d" % second)
                    await until(lambda: counts(jobs) == (0, 0, 1))
                    machine.clock.advance(1)
            assert handled == list(range(100))
        # After 1, 2, 4, 8, 16 and 32 s, each a tenth more or less.
        assert 6 <= tried <= 8

    async def test_the_wait_doubles_up_to_a_quarter_of_an_hour(self, machine: Machine) -> None:
        waits: list[float] = []

        async def handler(_: aiodq.Message) -> None:
            raise ValueError("no")

        async with machine.jobs() as jobs:
            await jobs.put(b"poison")
            async with consuming(jobs, handler):
                for _ in range(13):
                    await until(jobs.deferred)
                    since = machine.clock.monotonic()
                    while jobs.deferred():
                        machine.clock.advance(0.05)
                    waits.append(machine.clock.monotonic() - since)
        for number, wait in enumerate(waits):
            assert 0.9 * min(2**number, 900) <= wait <= 1.1 * min(2**number, 900) + 0.1

    async def test_the_channels_own_backoff_comes_first(self, machine: Machine) -> None:
        tried: list[float] = []

        async def handler(_: aiodq.Message) -> None:
            tried.append(machine.clock.monotonic())
            raise ValueError("no")

        async with machine.jobs(backoff=aiodq.Backoff(first=7, jitter=0)) as jobs:
            await jobs.put(b"poison")
            async with consuming(jobs, handler):
                for number in range(1, 23):
                    await until(lambda: counts(jobs) == (0, 0, 1))
                    machine.clock.advance(1)
                    assert number
        assert tried == [0, 7, 21]

    async def test_a_nack_of_the_handlers_own_waits_for_nothing(self, machine: Machine) -> None:
        async def handler(message: aiodq.Message) -> None:
            if message.attempts < 50:
                await message.nack()

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            jobs.shutdown()
            await soon(jobs.consume(handler))
            assert (jobs.depth, jobs.stats().requeued) == (0, 49)

    @pytest.mark.parametrize("block", ["message", "transaction", "store.transaction"])
    async def test_what_fails_in_a_block_of_the_handlers_waits_likewise(
        self, machine: Machine, caplog: pytest.LogCaptureFixture, block: str
    ) -> None:
        tried = 0

        async def fail(message: aiodq.Message) -> None:
            nonlocal tried
            if block == "message":
                async with message:
                    tried += 1
                    raise ValueError("no")
            elif block == "transaction":
                async with message.transaction() as tx:
                    tx.put("out", b"never")
                    tried += 1
                    raise ValueError("no")
            else:
                async with store.transaction() as tx, message:
                    tx.put("out", b"never")
                    tried += 1
                    raise ValueError("no")

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put(b"x")
            async with consuming(jobs, fail):
                await until(jobs.deferred)
                assert tried == 1
                letter = await letter_of(machine, store, jobs)
        assert (tried, letter.headers["aiodq-error"]) == (2, "ValueError: no")
        lines = [record for record in caplog.records if hasattr(record, "next")]
        assert [record.exc_info is not None for record in lines] == [False, True]

    async def test_a_dead_letter_says_type_and_text_of_the_exception(self, machine: Machine) -> None:
        async def handler(_: aiodq.Message) -> None:
            raise ValueError("no such address")

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put(b"x", headers={"aiodq-error": "an older one", "a": "b"})
            async with consuming(jobs, handler):
                letter = await letter_of(machine, store, jobs)
        assert letter.headers["aiodq-error"] == "ValueError: no such address"
        assert letter.headers["aiodq-reason"] == "delivered 2 times"
        assert letter.headers["a"] == "b"

    @pytest.mark.parametrize(
        ("text", "header"),
        [
            ("", "ValueError"),
            ("x" * 5000, "ValueError: " + "x" * 1009 + "…"),
            ("é" * 5000, "ValueError: " + "é" * 504 + "…"),
            ("not \ud800 Unicode", "ValueError: not \\ud800 Unicode"),
        ],
        ids=["empty", "long", "wide", "surrogate"],
    )
    async def test_an_error_of_any_text_goes_into_a_header(self, machine: Machine, text: str, header: str) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1, dead_letter="dead"))
            await jobs.put(b"x")
            with pytest.raises(ValueError, match=r"^"):
                async with await jobs.get():
                    raise ValueError(text)
            letter = await soon(store.queue("dead").get())
            assert letter.headers["aiodq-error"] == header
            assert len(header.encode()) <= 1024

    async def test_an_error_that_cannot_say_what_it_is_stops_nothing(self, machine: Machine) -> None:
        class MuteError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        async def handler(_: aiodq.Message) -> None:
            raise MuteError

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put(b"x")
            async with consuming(jobs, handler):
                letter = await letter_of(machine, store, jobs)
        assert "MuteError" in letter.headers["aiodq-error"]

    async def test_a_reason_of_any_text_can_be_stored(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"x")
            await soon((await jobs.get()).reject("\ud800" + "y" * 5000))
            letter = await soon(store.queue("dead").get())
            assert letter.headers["aiodq-reason"].startswith("\\ud800yyy")

    async def test_a_file_that_cannot_be_read_now_ends_nothing(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aiodq.consuming.consumer._WAIT", aiodq.Backoff(first=0.001))
        seen: list[bytes] = []

        async def handler(message: aiodq.Message) -> None:
            seen.append(message.body)

        async with machine.jobs() as jobs:
            await jobs.put(b"x" * 1000)
        async with machine.jobs() as jobs:
            machine.fs.plan.add(Fault("read", machine.fs.calls.get("read", 0) + 1, "EIO"))
            async with consuming(jobs, handler):
                await soon(jobs.join())
        assert seen == [b"x" * 1000]


class TestCrashes:
    """D7 in `consume`: a message that kills its process kills it ever more rarely, and takes no other with it."""

    async def _live(self, machine: Machine, done: list[bytes], seconds: float = 0) -> Machine | None:
        """Consume until a message kills the process; return what it leaves, or None where nothing is left to do."""
        left: list[Machine] = []

        async def handler(message: aiodq.Message) -> None:
            if message.body == b"killer":
                left.append(killed(machine))
                await asyncio.Event().wait()
            end = machine.clock.monotonic() + seconds
            while machine.clock.monotonic() < end:
                await asyncio.sleep(0)
            done.append(message.body)

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=4, dead_letter="dead"))
            await jobs.topic.settle_in()
            async with consuming(jobs, handler, concurrency=8):
                while not left and jobs.depth:
                    for _ in range(5 if seconds else 0):
                        await asyncio.sleep(0)
                    await until(lambda: left or seconds or not (jobs.qsize() or jobs.in_flight()))
                    machine.clock.advance(0.01)
        return left[0] if left else None

    async def test_who_is_in_hand_beside_a_killer_does_not_die_with_it(self, machine: Machine) -> None:
        bodies = [b"%d" % number for number in range(7)]
        async with machine.jobs(max_attempts=4) as jobs:
            await jobs.put_many([*bodies, b"killer"])
        done: list[bytes] = []
        lives, after = 0, await self._live(machine, done)
        began = machine.clock.monotonic()
        assert sorted(done) == bodies  # but killed with them, before their acks were written
        while after is not None:
            lives += 1
            after.clock.advance(machine.clock.monotonic() - after.clock.monotonic())
            machine = after
            after = await self._live(machine, done)
        assert lives == 4
        assert machine.clock.monotonic() - began >= 0.9 * (1 + 2 + 4)
        async with machine.store() as store:
            letter = await soon(store.queue("dead").get())
            assert (letter.body, store.queue("dead").depth) == (b"killer", 1)
            assert letter.headers["aiodq-attempts"] == "4"
        assert set(done) == set(bodies)

    async def test_nor_does_who_takes_long(self, machine: Machine) -> None:
        async with machine.jobs(max_attempts=4) as jobs:
            await jobs.put_many([b"killer", *(b"%d" % number for number in range(7))])
        done: list[bytes] = []
        lives, after = 0, await self._live(machine, done, seconds=1.5)
        while after is not None:
            lives += 1
            after.clock.advance(machine.clock.monotonic() - after.clock.monotonic())
            machine = after
            after = await self._live(machine, done, seconds=1.5)
        assert lives == 4
        async with machine.store() as store:
            letters = store.queue("dead")
            await letters.topic.settle_in()
            assert [(await soon(letters.get())).body for _ in range(letters.depth)] == [b"killer"]
        assert {b"%d" % number for number in range(7)} <= set(done)

    async def test_who_was_in_hand_at_a_kill_waits_and_others_do_not(
        self, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with machine.jobs(max_attempts=4) as jobs:
            await jobs.put_many([b"in hand", b"not"])
            await jobs.get()
            machine = killed(machine)
        seen: list[tuple[bytes, int]] = []

        async def handler(message: aiodq.Message) -> None:
            seen.append((message.body, message.attempts))

        slowly = aiodq.Backoff(first=5, jitter=0)
        async with machine.jobs(max_attempts=4, backoff=slowly) as jobs, consuming(jobs, handler):
            await until(lambda: counts(jobs) == (0, 0, 1))
            assert seen == [(b"not", 1)]
            machine.clock.advance(5)
            await soon(jobs.join())
        assert seen == [(b"not", 1), (b"in hand", 2)]
        assert "its process ended while it was in flight; again in 5 s" in caplog.text

    @pytest.mark.parametrize("how", ["stopped", "killed"])
    async def test_who_failed_and_waits_for_its_turn_is_no_suspect(
        self, machine: Machine, caplog: pytest.LogCaptureFixture, how: str
    ) -> None:
        async with machine.jobs(max_attempts=4) as jobs:
            await jobs.put_many([b"%d" % number for number in range(20)])
            failed = await jobs.get_many(20)
            for message in failed[:10]:
                message.nack_nowait(5)
            for message in failed[10:]:
                await message.nack()
            machine.clock.advance(6)
            await until(lambda: counts(jobs) == (20, 0, 0) and not jobs._engine._persister.unsynced)
            if how == "killed":
                machine = killed(machine)
                machine.clock.advance(6)
        at_once: set[bytes] = set()
        together = asyncio.Event()

        async def handler(message: aiodq.Message) -> None:
            at_once.add(message.body)
            if len(at_once) == 20:
                together.set()
            await together.wait()

        async with machine.jobs(max_attempts=4) as jobs, consuming(jobs, handler, concurrency=20):
            await soon(jobs.join())
        assert "its process ended" not in caplog.text

    async def test_who_waited_for_its_time_over_a_restart_does_not_wait_again(self, machine: Machine) -> None:
        async with machine.jobs(max_attempts=4) as jobs:
            await jobs.put(b"a")
            await (await jobs.get()).nack(60)
        machine.clock.advance(60)
        seen: list[int] = []

        async def handler(message: aiodq.Message) -> None:
            seen.append(message.attempts)

        async with machine.jobs(max_attempts=4) as jobs, consuming(jobs, handler):
            await soon(jobs.join())
        assert seen == [2]


class TestRetryAndReject:
    async def test_retry_chooses_the_wait(self, machine: Machine) -> None:
        tried: list[float] = []
        delays: list[float | timedelta | None] = [5, timedelta(seconds=7), 0, None]

        async def handler(message: aiodq.Message) -> None:
            tried.append(machine.clock.monotonic())
            if message.attempts <= len(delays):
                raise aiodq.Retry(delays[message.attempts - 1])

        async with machine.jobs(backoff=aiodq.Backoff(first=1, factor=3, jitter=0)) as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler):
                for _ in range(40):
                    await until(lambda: not jobs.in_flight() and not jobs.qsize())
                    machine.clock.advance(1)
            assert jobs.depth == 0
        assert tried == [0, 5, 12, 12, 39]

    async def test_the_last_retry_is_the_last(self, machine: Machine) -> None:
        async def handler(_: aiodq.Message) -> None:
            try:
                int("busy")
            except ValueError:
                raise aiodq.Retry(1)  # noqa: B904 - what was under way counts as the cause

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put(b"x")
            async with consuming(jobs, handler):
                letter = await letter_of(machine, store, jobs)
        assert (letter.headers["aiodq-reason"], letter.headers["aiodq-error"]) == (
            "delivered 2 times",
            "ValueError: invalid literal for int() with base 10: 'busy'",
        )

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_reject_gives_up_at_once_and_says_why(self, machine: Machine, *, threaded: bool) -> None:
        def plain(_: aiodq.Message) -> None:
            raise aiodq.Reject("no such customer") from KeyError(7)

        async def handler(message: aiodq.Message) -> None:
            plain(message)

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"x")
            async with consuming(jobs, plain if threaded else handler):
                letter = await soon(store.queue("dead").get())
        assert letter.headers["aiodq-reason"] == "no such customer"
        assert letter.headers["aiodq-error"] == "KeyError: 7"
        assert letter.headers["aiodq-attempts"] == "1"

    async def test_in_a_messages_block_they_choose_too_and_go_on(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put_many([b"x", b"y"])
            with pytest.raises(aiodq.Retry):
                async with await jobs.get():
                    raise aiodq.Retry(60)
            assert jobs.deferred() == 1
            with pytest.raises(aiodq.Reject):
                async with await jobs.get():
                    raise aiodq.Reject("no")
            letter = await soon(store.queue("dead").get())
            assert (letter.headers["aiodq-reason"], letter.headers.get("aiodq-error")) == ("no", None)

    @pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5", True, timedelta(seconds=-1)])
    def test_no_wait(self, delay: Any) -> None:
        with pytest.raises(aiodq.InvalidOptionError, match="delay"):
            aiodq.Retry(delay)


class TestOnError:
    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_it_hears_of_each_failed_attempt(self, machine: Machine, *, asynchronous: bool) -> None:
        heard: list[tuple[bytes, int, str]] = []

        def hook(message: aiodq.Message, error: BaseException) -> None:
            heard.append((message.body, message.attempts, type(error).__name__))

        async def hook_that_waits(message: aiodq.Message, error: BaseException) -> None:
            await asyncio.sleep(0)
            hook(message, error)

        async def handler(message: aiodq.Message) -> None:
            if message.body == b"cancelled":
                raise asyncio.CancelledError
            if message.body == b"late":
                await asyncio.Event().wait()
            if message.body == b"retry":
                raise aiodq.Retry
            if message.body == b"reject":
                raise aiodq.Reject
            raise ValueError

        async with machine.jobs(max_attempts=1) as jobs:
            await jobs.put_many([b"raised", b"cancelled", b"late", b"retry", b"reject"])
            on_error = hook_that_waits if asynchronous else hook
            async with consuming(jobs, handler, timeout=0.01, on_error=on_error):
                await until(lambda: jobs.depth == 0 and len(heard) == 3)
        assert heard == [
            (b"raised", 1, "ValueError"),
            (b"cancelled", 1, "CancelledError"),
            (b"late", 1, "TimeoutError"),
        ]

    @pytest.mark.parametrize("error", [RuntimeError("hook"), asyncio.CancelledError()])
    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_what_it_raises_is_logged_and_changes_nothing(
        self, machine: Machine, caplog: pytest.LogCaptureFixture, error: BaseException, *, asynchronous: bool
    ) -> None:
        def hook(_: aiodq.Message, __: BaseException) -> None:
            raise error

        async def hook_that_waits(message: aiodq.Message, cause: BaseException) -> None:
            await asyncio.sleep(0)
            hook(message, cause)

        async def handler(_: aiodq.Message) -> None:
            raise ValueError

        async with machine.jobs(max_attempts=2) as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler, on_error=hook_that_waits if asynchronous else hook) as task:
                await until(jobs.deferred)
                machine.clock.advance(3)
                await soon(jobs.join())
                await jobs.put(b"y")
                await until(jobs.deferred)
                assert not task.done()
        assert sum("on_error failed" in record.getMessage() for record in caplog.records) >= 2


class TestTimeout:
    @pytest.mark.parametrize("timeout", [0.01, timedelta(seconds=0.01)])
    async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(
        self, machine: Machine, timeout: float | timedelta
    ) -> None:
        cancelled = 0

        async def handler(_: aiodq.Message) -> None:
            nonlocal cancelled
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put(b"x")
            async with consuming(jobs, handler, timeout=timeout):
                letter = await letter_of(machine, store, jobs)
        assert cancelled == 2
        assert letter.headers["aiodq-reason"] == "delivered 2 times, the last for longer than 0.01 s"
        assert letter.headers["aiodq-error"] == "TimeoutError: the handler took longer than 0.01 s"

    async def test_one_that_returns_all_the_same_is_done(self, machine: Machine) -> None:
        async def handler(_: aiodq.Message) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler, timeout=0.01):
                await soon(jobs.join())
            assert jobs.stats().acked == 1

    async def test_a_timeout_of_its_own_is_not_ours(self, machine: Machine) -> None:
        async def handler(_: aiodq.Message) -> None:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(**DEAD))
            await jobs.put(b"x")
            async with consuming(jobs, handler, timeout=PATIENCE):
                letter = await letter_of(machine, store, jobs)
        assert letter.headers["aiodq-reason"] == "delivered 2 times"
        assert letter.headers["aiodq-error"] == "TimeoutError"

    async def test_a_thread_cannot_be_stopped_but_its_message_goes_on(self, machine: Machine) -> None:
        go_on, running, most = threading.Event(), 0, 0

        def handler(message: aiodq.Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if message.body == b"hangs":
                go_on.wait(PATIENCE)
            running -= 1

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1, dead_letter="dead"))
            await jobs.put_many([b"hangs", b"y"])
            async with consuming(jobs, handler, timeout=0.01):
                letter = await soon(store.queue("dead").get())
                assert letter.body == b"hangs"
                await until(lambda: not jobs.in_flight())  # a dead letter may be had before its message is settled
                assert counts(jobs) == (1, 0, 0)  # its worker waits for the thread
                go_on.set()
                await soon(jobs.join())
        assert (running, most) == (0, 1)


class TestRenewal:
    """D6: a message does not time out while somebody works on it."""

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_no_handler_is_run_again_beside_itself(self, machine: Machine, *, threaded: bool) -> None:
        begun, go_on, thread_go_on = asyncio.Event(), asyncio.Event(), threading.Event()
        loop, runs = asyncio.get_running_loop(), 0

        async def handler(_: aiodq.Message) -> None:
            nonlocal runs
            runs += 1
            begun.set()
            await go_on.wait()

        def plain(_: aiodq.Message) -> None:
            nonlocal runs
            runs += 1
            loop.call_soon_threadsafe(begun.set)
            thread_go_on.wait(PATIENCE)

        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, plain if threaded else handler, concurrency=2):
                await soon(begun.wait())
                for seconds in (5, 5, 9, 11, 100, 10_000):
                    machine.clock.advance(seconds)
                    await asyncio.sleep(0)
                    assert counts(jobs) == (0, 1, 0)
                go_on.set()
                thread_go_on.set()
                await soon(jobs.join())
            assert (runs, jobs.stats().timed_out, jobs.stats().acked) == (1, 0, 1)

    async def test_without_it_the_message_comes_again(self, machine: Machine) -> None:
        begun = asyncio.Event()

        async def handler(message: aiodq.Message) -> None:
            if message.attempts == 1:
                begun.set()
                await asyncio.Event().wait()

        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler, concurrency=2, renew=False):
                await soon(begun.wait())
                machine.clock.advance(10)
                await soon(jobs.join())
            assert jobs.stats().timed_out == 1

    async def test_outside_consume_a_block_does(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put(b"x")
            message = await jobs.get()
            async with message.renewing():
                machine.clock.advance(9)
                async with message.renewing() as same:
                    assert same is message
                    machine.clock.advance(100)
                machine.clock.advance(100)
                assert counts(jobs) == (0, 1, 0)
            machine.clock.advance(9.9)
            assert counts(jobs) == (0, 1, 0)
            machine.clock.advance(0.2)
            assert counts(jobs) == (1, 0, 0)
            with pytest.raises(aiodq.NotInFlightError):
                async with message.renewing():
                    pass

    async def test_what_is_settled_in_the_block_stays_so(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put_many([b"x", b"y"])
            async with await jobs.get() as message, message.renewing():
                await message.ack()
            with pytest.raises(aiodq.AlreadySettledError):
                async with message.renewing():
                    pass
            async with await jobs.get() as message, message.renewing():
                machine.clock.advance(50)
            assert jobs.depth == 0

    async def test_a_seek_takes_it_away_all_the_same(self, machine: Machine) -> None:
        async with machine.jobs(visibility_timeout=10) as jobs:
            await jobs.put(b"x")
            message = await jobs.get()
            async with message.renewing():
                await jobs.seek("earliest")
                again = await jobs.get()
                machine.clock.advance(10)
                assert counts(jobs) == (1, 0, 0)
            assert again.attempts == 1


class TestHandlers:
    """D12: what may be given as a handler, and what is refused before the first message."""

    async def test_a_plain_function_runs_in_a_thread_of_its_own_limit(self, machine: Machine) -> None:
        threads: set[int] = set()
        running = most = 0
        together = threading.Barrier(3)

        def handler(message: aiodq.Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
            assert message.body == b"x"
            together.wait(PATIENCE)
            running -= 1

        async with machine.jobs() as jobs:
            await jobs.put_many([b"x"] * 6)
            jobs.shutdown()
            await soon(jobs.consume(handler, concurrency=3))
            assert jobs.stats().acked == 6
        assert threading.get_ident() not in threads
        assert most == 3

    async def test_settling_in_a_thread_is_refused_in_words(self, machine: Machine) -> None:
        said: list[str] = []

        def handler(message: aiodq.Message) -> None:
            for settle in (message.ack_nowait, message.nack_nowait, message.release):
                with pytest.raises(aiodq.WrongContextError) as refused:
                    settle()
                said.append(str(refused.value))
            anyio.from_thread.run(message.nack, 60)

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler):
                await until(jobs.deferred)
        assert len(said) == 3
        assert all("thread" in text and "event loop" in text for text in said)

    async def test_whatever_is_asynchronous_runs_on_the_loop(self, machine: Machine) -> None:
        threads: list[int] = []

        class Worker:
            async def __call__(self, message: aiodq.Message) -> None:
                await self.work(message)

            async def work(self, _: aiodq.Message) -> None:
                await asyncio.sleep(0)
                threads.append(threading.get_ident())

        async def with_more(_: str, message: aiodq.Message, *, more: int = 0) -> None:
            await Worker().work(message)
            assert more == 1

        worker = Worker()
        handlers: list[Callable[[aiodq.Message], object]] = [
            worker,
            worker.work,
            functools.partial(with_more, "a", more=1),
            functools.partial(functools.partial(Worker.__call__), worker),
            functools.partial(worker),
            lambda message: worker.work(message),  # noqa: PLW0108 - as users write it
        ]
        async with machine.jobs() as jobs:
            for number, handler in enumerate(handlers, 1):
                await jobs.put(b"x")
                async with consuming(jobs, handler):
                    await soon(jobs.join())
                assert jobs.stats().acked == number
        assert threads == [threading.get_ident()] * len(handlers)

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 is the first to mark what is asynchronous")
    async def test_an_object_that_is_marked_as_asynchronous_is_called_on_the_loop(self, machine: Machine) -> None:
        called = 0

        class Marked:
            def __call__(self, _: aiodq.Message) -> asyncio.Task[None]:
                nonlocal called
                called += 1
                return asyncio.create_task(asyncio.sleep(0))  # which no thread could do

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            handler = Marked()
            if sys.version_info >= (3, 12):
                inspect.markcoroutinefunction(handler)
            async with consuming(jobs, handler):
                await until(lambda: called)
                await soon(jobs.join())
            assert jobs.stats().acked == 1

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_a_decorator_gives_what_it_wraps_more_than_the_message(
        self, machine: Machine, threaded: bool
    ) -> None:
        called: list[tuple[object, ...]] = []

        def with_store(function: Callable[..., object]) -> Callable[..., object]:
            @functools.wraps(function)
            def plain(*given: object) -> object:
                return function(*given, store="a store")

            @functools.wraps(function)
            async def asynchronous(*given: object) -> None:
                function(*given, store="a store")

            return plain if threaded else asynchronous

        @with_store
        def handler(message: aiodq.Message, *, store: str) -> None:
            called.append((message.body, store))
            raise ValueError("of this test")

        @with_store
        def hook(message: aiodq.Message, error: BaseException, store: str) -> None:
            called.append((message.body, str(error), store))

        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            async with consuming(jobs, handler, on_error=hook):
                await until(lambda: len(called) == 2)
        assert called == [(b"x", "a store"), (b"x", "of this test", "a store")]

    async def test_what_is_no_handler_is_refused_before_a_message_is_taken(self, machine: Machine) -> None:
        async def good(_: aiodq.Message) -> None: ...

        async def none() -> None: ...

        async def two(_: aiodq.Message, __: str) -> None: ...

        async def keyword(_: aiodq.Message, *, store: str) -> None: ...

        async def yields(_: aiodq.Message) -> AsyncIterator[int]:
            yield 1

        def yields_plainly(_: aiodq.Message) -> Any:
            yield 1

        class Worker:
            def __init__(self, store: str) -> None: ...

            async def __call__(self, message: aiodq.Message) -> None: ...

        nothing: Any = None
        handlers: dict[str, Any] = {
            "give the function": good(nothing),
            "must be a function": None,
            "must be a function, not 'good'": "good",
            "takes ()": none,
            "takes (_: 'aiodq.Message', __: 'str')": two,
            "takes (_: 'aiodq.Message', *, store: 'str')": keyword,
            "yield": yields,
            "a `yield`": yields_plainly,
            "give an instance": Worker,
        }
        async with machine.jobs() as jobs:
            await jobs.put(b"x")
            for words, handler in handlers.items():
                with pytest.raises(aiodq.InvalidOptionError) as refused:
                    await jobs.consume(handler)
                assert words in str(refused.value)
            assert counts(jobs) == (1, 0, 0)

    @pytest.mark.parametrize(
        "options",
        [
            {"concurrency": 0}, {"concurrency": True}, {"concurrency": 2.5}, {"concurrency": "4"},
            {"concurrency": 100_001},
            {"timeout": 0}, {"timeout": -1}, {"timeout": "5"}, {"timeout": float("nan")}, {"timeout": timedelta(0)},
            {"renew": 1}, {"on_error": "log"}, {"on_error": lambda message: message},
        ],
        ids=lambda options: next(iter(options)),
    )  # fmt: skip
    async def test_options_out_of_range_are_refused(self, machine: Machine, options: dict[str, Any]) -> None:
        async def handler(_: aiodq.Message) -> None: ...

        async with machine.jobs() as jobs:
            with pytest.raises(aiodq.InvalidOptionError, match=next(iter(options))):
                await jobs.consume(handler, **options)

    async def test_with_auto_ack_a_failure_is_told_and_nothing_comes_again(
        self, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def handler(_: aiodq.Message) -> None:
            raise ValueError

        async with machine.jobs(auto_ack=True) as jobs:
            await jobs.put(b"x")
            jobs.shutdown()
            await soon(jobs.consume(handler))
            assert jobs.depth == 0
        assert "it was settled before that" in caplog.text


class TestLog:
    async def test_one_line_a_retry_and_the_traceback_only_with_the_last(
        self, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def handler(_: aiodq.Message) -> None:
            raise ValueError("two\nlines")

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=3, dead_letter="dead"))
            await jobs.put(b"x")
            async with consuming(jobs, handler):
                await letter_of(machine, store, jobs)
        lines = [record for record in caplog.records if hasattr(record, "next")]
        assert {(record.name, record.levelno) for record in lines} == {("aiodq.delivery", logging.WARNING)}
        assert [record.exc_info is not None for record in lines] == [False, False, True]
        for attempt, record in enumerate(lines, 1):
            told = vars(record)
            assert (told["topic"], told["channel"], told["offset"], told["attempt"]) == ("jobs", "default", 0, attempt)
            assert "\n" not in record.getMessage()
            assert "ValueError: two lines" in record.getMessage()
            assert told["next"] in record.getMessage()
        assert [vars(record)["next"][:5] for record in lines] == ["again", "again", "given"]

    async def test_a_rejection_has_no_traceback_unless_it_has_a_cause(
        self, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def handler(message: aiodq.Message) -> None:
            raise aiodq.Reject("no") from (ValueError() if message.body == b"cause" else None)

        async with machine.jobs() as jobs:
            await jobs.put_many([b"x", b"cause"])
            jobs.shutdown()
            await soon(jobs.consume(handler))
        lines = [record for record in caplog.records if hasattr(record, "next")]
        assert [record.exc_info is not None for record in lines] == [False, True]
