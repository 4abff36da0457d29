"""Ctrl-C, and whatever else a signal's handler raises, in a call that waits."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
import aiodq.sync
from aiodq.sync.background_loop import BackgroundLoop, Turn
from aiodq.sync.loop_thread import LoopThread
from tests.processes import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType


class SoftTimeLimitError(Exception):
    """What Celery, for one, raises in the middle of a task."""


@contextmanager
def signalled(until: Callable[[], Any], error: type[BaseException] = KeyboardInterrupt) -> Iterator[threading.Event]:
    """Send this process a signal, whose handler raises, once `until` has returned in another thread.

    Give what is set as soon as the handler is called.
    """

    handled = threading.Event()

    def handler(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise error

    def send() -> None:
        until()
        # More than once: one that comes just before a thread begins to wait is noticed by Python when it has waited.
        while not handled.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield handled
    finally:
        thread.join(WATCHDOG)
        signal.signal(signal.SIGUSR1, before)


def waiting(jobs: aiodq.sync.Queue) -> Callable[[], None]:
    """Return what waits until somebody waits for a message."""

    def until() -> None:
        while not jobs._loop_thread._loop.running:
            pass

    return until


def test_a_signal_that_ends_no_wait_of_the_system_s_is_noticed_all_the_same(tmp_path: Path) -> None:
    """As one that comes just before the system waits: Python is told of it, and nothing wakes the thread."""
    noticed: list[bool] = []
    handled = threading.Event()

    def handler(*_: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def send() -> None:
        waiting(jobs)()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        noticed.append(handled.wait(WATCHDOG / 6))
        if not noticed[0]:
            jobs.put(b"so that it ends")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with aiodq.sync.open_queue(tmp_path) as jobs:
            sender = threading.Thread(target=send)
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                jobs.get()
            sender.join()
            assert noticed == [True]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SoftTimeLimitError])
@pytest.mark.parametrize("verb", ["get", "get_many", "for", "join"])
def test_who_waits_is_interrupted_and_nothing_is_lost(tmp_path: Path, verb: str, error: type[BaseException]) -> None:
    with aiodq.sync.open_queue(tmp_path) as jobs:
        if verb == "join":
            jobs.put(b"a")
        calls: dict[str, Callable[[], Any]] = {
            "get": jobs.get,
            "get_many": lambda: jobs.get_many(2),
            "for": lambda: next(iter(jobs)),
            "join": jobs.join,
        }
        with pytest.raises(error), signalled(waiting(jobs), error):
            calls[verb]()
        if verb != "join":
            jobs.put(b"a")
        assert jobs.get(timeout=WATCHDOG).attempts == 1
        assert jobs.depth == 1


def test_a_message_that_comes_at_that_very_moment_goes_back(tmp_path: Path) -> None:
    # The message is there before the interruption arrives on the loop, and its getter is gone.
    with aiodq.sync.open_queue(tmp_path) as jobs:
        jobs.put_many([b"a", b"b"])
        loop_thread = jobs._loop_thread
        began = threading.Event()

        async def get() -> aiodq.sync.Message:
            message = await jobs._get(None)
            began.set()
            handled.wait(WATCHDOG)
            return message

        with pytest.raises(KeyboardInterrupt), signalled(began.wait) as handled:
            loop_thread.take(get, jobs._give_one_back)
        assert jobs.in_flight() == 0
        assert jobs.get().body == b"a"


@pytest.mark.parametrize("verb", ["get", "get_nowait", "get_many"])
def test_a_message_goes_back_if_the_interruption_comes_as_it_is_noted(tmp_path: Path, verb: str) -> None:
    with aiodq.sync.open_queue(tmp_path) as jobs:
        jobs.put_many([b"a", b"b"])
        calls: dict[str, Callable[[], Any]] = {
            "get": jobs.get,
            "get_nowait": jobs.get_nowait,
            "get_many": lambda: jobs.get_many(2),
        }
        jobs.topic.settle_in()
        noted: list[aiodq.sync.Message] = []

        def note(message: aiodq.sync.Message) -> None:
            noted.append(message)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), mock.patch.object(jobs._held, "note", note):
            calls[verb]()
        assert noted
        assert jobs.in_flight() == 0
        assert [message.attempts for message in jobs.get_many(2)] == [1, 1]


def test_an_ack_is_applied_though_the_interruption_comes_before_the_loop_has_seen_it(tmp_path: Path) -> None:
    with aiodq.sync.open_queue(tmp_path) as jobs:
        jobs.put(b"a")
        message = jobs.get()
        inbox, go_on = jobs._loop_thread._loop._inbox, threading.Event()

        def busy() -> None:
            go_on.wait(WATCHDOG)

        def wait_for(number: int) -> None:
            while len(inbox) < number:
                pass

        def release() -> None:
            wait_for(2)  # the ack, and that it is given up
            go_on.set()

        with ThreadPoolExecutor(2) as pool:
            blocking = pool.submit(jobs._loop_thread.call, busy)
            while not blocking.running() or inbox:
                pass
            releasing = pool.submit(release)
            with pytest.raises(KeyboardInterrupt), signalled(lambda: wait_for(1)):
                message.ack()
            releasing.result(WATCHDOG)
        assert message.settled
        assert jobs.depth == 0


def test_an_interrupted_block_gives_the_message_back_uncounted(tmp_path: Path) -> None:
    with aiodq.sync.open_queue(tmp_path) as jobs:
        jobs.put(b"a")
        entered = threading.Event()
        with pytest.raises(KeyboardInterrupt), signalled(entered.wait), jobs.get():
            entered.set()
            threading.Event().wait(WATCHDOG)
        assert jobs.get().attempts == 1


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SoftTimeLimitError])
def test_a_message_goes_back_if_the_interruption_comes_as_its_block_ends(
    tmp_path: Path, error: type[BaseException], joins: bool
) -> None:
    """Before the loop is asked for the ack, or whether it joins a transaction."""
    asked = Turn.__init__.__code__

    def interrupt(frame: FrameType, _event: str, _: object) -> None:
        if frame.f_code is asked:
            sys.settrace(None)
            raise error

    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
        before = sys.gettrace()
        with pytest.raises(error), store.transaction() if joins else nullcontext(), jobs.get():
            sys.settrace(interrupt)
        sys.settrace(before)
        assert jobs.get(timeout=WATCHDOG).attempts == 1


def test_a_transaction_is_undone(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
        entered = threading.Event()
        with pytest.raises(KeyboardInterrupt), signalled(entered.wait), store.transaction() as tx, jobs.get():
            tx.put("done", b"a")
            entered.set()
            threading.Event().wait(WATCHDOG)
        assert store.topics() == ["jobs"]
        assert jobs.get().attempts == 1
        with store.transaction() as tx:  # the thread is out of the other one
            tx.put("done", b"a")


def test_a_transaction_is_undone_though_the_interruption_comes_before_the_first_line_of_its_end(tmp_path: Path) -> None:
    ends = aiodq.sync.Transaction.__exit__.__code__

    def interrupt(frame: FrameType, _event: str, _: object) -> None:
        if frame.f_code is ends:
            sys.settrace(None)
            raise KeyboardInterrupt

    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")

        def work() -> None:
            with store.transaction() as tx, jobs.get():
                tx.put("done", b"a")
                sys.settrace(interrupt)

        before = sys.gettrace()
        with pytest.raises(KeyboardInterrupt) as interrupted:
            work()
        sys.settrace(before)
        del interrupted
        gc.collect()
        assert jobs.get(timeout=WATCHDOG).attempts == 1
        assert store.topics() == ["jobs"]


def test_closing_goes_on(tmp_path: Path) -> None:
    jobs = aiodq.sync.open_queue(tmp_path)
    closing, go_on = threading.Event(), threading.Event()
    inner = jobs._queue.aclose

    async def slow() -> None:
        closing.set()
        go_on.wait(WATCHDOG)
        await inner()

    def until() -> None:
        closing.wait(WATCHDOG)
        threading.Timer(0.1, go_on.set).start()

    with pytest.raises(KeyboardInterrupt), signalled(until):
        jobs._loop_thread.close(slow)
    jobs.close()
    with aiodq.sync.open_queue(tmp_path):
        pass


def test_an_interrupted_open_leaves_nothing(tmp_path: Path) -> None:
    with (
        mock.patch("aiodq.sync.loop_thread.BackgroundLoop", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        LoopThread(str(tmp_path))
    gc.collect()  # pytest reports what a finalizer raises
    aiodq.sync.open(tmp_path).close()


@pytest.mark.parametrize("greenlets", [False, True])
def test_an_open_that_is_interrupted_before_its_thread_starts_leaves_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, greenlets: bool
) -> None:
    loops: list[BackgroundLoop] = []

    def interrupted(loop: BackgroundLoop) -> None:
        loops.append(loop)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BackgroundLoop, "start", interrupted)
        patch.setattr("aiodq.sync.background_loop.threads_are_greenlets", lambda: greenlets)  # another kind of loop
        aiodq.sync.open(tmp_path)
    loop = loops.pop().loop
    gc.collect()
    assert loop.is_closed()


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_an_interruption_while_the_thread_starts_is_raised_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool, locked: bool
) -> None:
    """Also if it comes just after `threading` has released a lock, which it then fails to release once more."""
    start, started = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        if begun:
            start(thread)
        lock = threading.Lock()
        with lock if locked else nullcontext():
            if locked:
                lock.release()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        aiodq.sync.open(tmp_path)
    if begun:
        started[0].join(WATCHDOG)
        assert not started[0].is_alive()
    gc.collect()  # pytest reports what a finalizer raises
    aiodq.sync.open(tmp_path).close()


def test_nothing_is_called_in_which_a_message_could_be_lost_once_its_getter_has_it(tmp_path: Path) -> None:
    called: list[str] = []

    def calls(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_back is not None and frame.f_back.f_code is Turn.wait.__code__:
            called.append(frame.f_code.co_name)

    with aiodq.sync.open_queue(tmp_path / "s") as jobs:
        jobs.put(b"x")
        sys.setprofile(calls)
        try:
            jobs.get()
        finally:
            sys.setprofile(None)
    assert called == ["post", "_sleep", "_handed"]


def test_an_event_that_comes_just_as_its_listener_is_interrupted_is_not_lost(tmp_path: Path) -> None:
    sleep = Turn._sleep

    def interrupted(turn: Turn[Any]) -> None:
        sleep(turn)
        raise KeyboardInterrupt

    with aiodq.sync.open(tmp_path / "s") as store:
        events, jobs = store.events(), store.queue("jobs")
        for body in (b"a", b"b"):
            jobs.put(body)
            jobs.get().reject("why")
        with mock.patch.object(Turn, "_sleep", interrupted), pytest.raises(KeyboardInterrupt):
            next(events)
        assert [next(events).offset for _ in range(2)] == [0, 1]
