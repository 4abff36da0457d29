"""Handlers in threads of `consume`."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

import aiodq
import aiodq.sync
from aiodq.testing import FakeClock
from tests.processes import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiodq.sync import Message


@pytest.fixture
def store(tmp_path: Path) -> Iterator[aiodq.sync.Store]:
    with aiodq.sync.open(tmp_path) as opened:
        yield opened


def test_handlers_run_side_by_side_and_their_messages_are_acked(store: aiodq.sync.Store) -> None:
    jobs = store.queue("jobs")
    together = threading.Barrier(3)
    names = set()

    def handler(message: Message) -> None:
        together.wait(WATCHDOG)
        names.add(threading.current_thread().name)
        if message.offset == 5:
            store.stop()

    jobs.put_many([b"%d" % number for number in range(6)])
    jobs.consume(handler, concurrency=3)
    assert jobs.depth == 0
    assert len(names) == 3  # threads serve more than once
    store.close()


def test_a_handler_may_use_the_store(store: aiodq.sync.Store) -> None:
    jobs, done = store.queue("jobs"), store.queue("done")

    def handler(message: Message) -> None:
        with message.transaction() as tx:
            tx.put("done", message.body)
        done.get().ack()
        jobs.stop()

    jobs.put(b"a")
    jobs.consume(handler)
    assert (jobs.depth, done.depth, done.stats().acked) == (0, 0, 1)


def test_a_failure_waits_and_the_hook_is_told_in_a_thread(
    store: aiodq.sync.Store, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1, dead_letter="dead"))
    told = []

    def handler(message: Message) -> None:
        raise ValueError(message.body)

    def hook(message: Message, error: BaseException) -> None:
        told.append((message.body, repr(error), message.settled))
        jobs.stop(0)

    jobs.put(b"a")
    with caplog.at_level(logging.CRITICAL, "aiodq"):
        jobs.consume(handler, on_error=hook)
    assert told == [(b"a", "ValueError(b'a')", True)]
    assert store.queue("dead").get().headers["aiodq-error"] == "ValueError: b'a'"


def test_retry_and_reject_choose(store: aiodq.sync.Store) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))

    def handler(message: Message) -> None:
        if message.body == b"stop":
            jobs.stop()
        elif message.attempts == 1:
            raise aiodq.Retry(0)
        else:
            raise aiodq.Reject("why")

    jobs.put_many([b"a", b"stop"])
    jobs.consume(handler)
    assert store.queue("dead").get().headers["aiodq-reason"] == "why"


def test_a_handler_that_takes_too_long_goes_on_unheard(
    store: aiodq.sync.Store, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(backoff=aiodq.Backoff(first=3600.0)))
    late, refused = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        late.wait(WATCHDOG)
        try:
            message.ack()
        except aiodq.AlreadySettledError:
            refused.set()

    def hook(_: Message, error: BaseException) -> None:
        assert isinstance(error, TimeoutError)
        jobs.stop(0)
        late.set()

    jobs.put(b"a")
    with caplog.at_level(logging.CRITICAL, "aiodq"):
        jobs.consume(handler, timeout=0.01, on_error=hook)
    assert refused.wait(WATCHDOG)
    assert jobs.deferred() == 1


def test_the_error_of_one_that_goes_on_is_not_reported_as_one_that_nobody_retrieved(
    store: aiodq.sync.Store, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(backoff=aiodq.Backoff(first=3600.0)))
    late, workers = threading.Event(), list[threading.Thread]()

    def handler(_: Message) -> None:
        workers.append(threading.current_thread())
        late.wait(WATCHDOG)
        raise ValueError

    jobs.put(b"a")
    with caplog.at_level(logging.CRITICAL, "aiodq"):
        jobs.consume(handler, timeout=0.01, on_error=lambda *_: jobs.stop(0))
    late.set()
    workers[0].join(WATCHDOG)
    for _ in range(3):  # as many turns as the loop needs to end and drop the task
        store._loop_thread.call(gc.collect)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_ends_it(store: aiodq.sync.Store, error: type[BaseException]) -> None:
    jobs = store.queue("jobs")

    def handler(_: Message) -> None:
        raise error

    jobs.put(b"a")
    with pytest.raises(error):
        jobs.consume(handler, concurrency=2)
    assert jobs.get().attempts == 1


@pytest.mark.parametrize("error", [GeneratorExit(), BaseExceptionGroup("no", [SystemExit()])], ids=["exit", "group"])
def test_what_ends_no_program_is_a_failed_attempt(store: aiodq.sync.Store, error: BaseException) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1))
    errors = []

    def handler(_: Message) -> None:
        raise error

    def hook(_: Message, error: BaseException) -> None:
        errors.append(error)
        jobs.stop(0)

    jobs.put(b"a")
    jobs.consume(handler, on_error=hook)
    assert errors == [error]
    assert jobs.stats().dead == 1


def test_a_handler_may_raise_anything(store: aiodq.sync.Store, caplog: pytest.LogCaptureFixture) -> None:
    jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1))
    errors = []

    def handler(_: Message) -> None:
        raise StopIteration

    def hook(_: Message, error: BaseException) -> None:
        errors.append(error)
        jobs.stop(0)

    jobs.put(b"a")
    with caplog.at_level(logging.CRITICAL, "aiodq"):
        jobs.consume(handler, on_error=hook)
    assert isinstance(errors[0].__cause__, StopIteration)


def test_closing_does_not_wait_for_a_handler(tmp_path: Path) -> None:
    store = aiodq.sync.open(tmp_path)
    jobs = store.queue("jobs")
    begun, end = threading.Event(), threading.Event()

    def handler(_: Message) -> None:
        begun.set()
        end.wait(WATCHDOG)

    with ThreadPoolExecutor(1) as pool:
        jobs.put(b"a")
        consuming = pool.submit(jobs.consume, handler)
        begun.wait(WATCHDOG)
        store.close()
        assert not consuming.done()
        with aiodq.sync.open(tmp_path) as again:
            assert again.queue("jobs").depth == 1
        end.set()
        consuming.result(WATCHDOG)


def test_a_handler_may_close(tmp_path: Path) -> None:
    jobs = aiodq.sync.open_queue(tmp_path)
    jobs.put(b"a")
    jobs.consume(lambda _: jobs.close())
    with aiodq.sync.open_queue(tmp_path) as jobs:
        assert jobs.depth == 1


async def _coroutine(_: object, __: object = None) -> None: ...


class _Asynchronous:
    async def __call__(self, _: object, __: object = None) -> None: ...


@pytest.mark.parametrize("function", [_coroutine, _Asynchronous(), AsyncMock()], ids=["def", "class", "mock"])
def test_only_plain_functions_are_handlers(store: aiodq.sync.Store, function: Any) -> None:
    jobs = store.queue("jobs")
    with pytest.raises(aiodq.InvalidOptionError, match=r"handler .* calls plain functions"):
        jobs.consume(function)
    with pytest.raises(aiodq.InvalidOptionError, match=r"on_error .* calls plain functions"):
        jobs.consume(print, on_error=function)


def test_functions_that_cannot_be_called_and_numbers_out_of_range_are_refused(store: aiodq.sync.Store) -> None:
    jobs = store.queue("jobs")
    with pytest.raises(TypeError, match=r"called with the message, .*: def handler\(message: aiodq.sync.Message\)"):
        jobs.consume(lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match=r": def on_error\(message: aiodq.sync.Message, "):
        jobs.consume(print, on_error=1)  # type: ignore[arg-type]
    with pytest.raises(aiodq.InvalidOptionError):
        jobs.consume(print, concurrency=0)
    with pytest.raises(aiodq.InvalidOptionError, match="from 1 to 100000"):
        jobs.consume(print, concurrency=100_001)


def test_a_message_is_kept_while_its_block_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("aiodq.opening.SystemClock", lambda: clock)
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=30))
        jobs.put(b"a")
        message = jobs.get()
        events = store.events()
        with message, message.renewing():
            store._loop_thread.call(clock.advance, 60)
            assert message.held
        jobs.put(b"b")
        jobs.get()
        store._loop_thread.call(clock.advance, 30)
        assert next(events).offset == 1  # the other's time was up; the first one's never was
