"""The threads between a put and its sync: no more than needed, none left behind, and all that they got is done."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.loop.thread_pool import ThreadPool
from aiodq.engine.loop.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from pathlib import Path

NAME = "pool of a test"


def alive() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


def until_gone(timeout: float = 10.0) -> bool:
    end = time.monotonic() + timeout
    while alive() and time.monotonic() < end:
        time.sleep(0.001)
    return not alive()


def test_a_thread_that_waits_is_used_again_and_more_come_only_while_it_is_busy() -> None:
    pool = ThreadPool(2, NAME)
    assert alive() == 0
    done: list[int] = []
    for number in range(3):
        pool.submit(done.append, number)
        while len(pool._idle) < 1:
            time.sleep(0.001)
    assert (done, alive()) == ([0, 1, 2], 1)
    go = Event()
    for _ in range(5):
        pool.submit(lambda _: go.wait(10), None)
    assert alive() == 2
    go.set()
    pool.shutdown()
    assert alive() == 0


def test_one_of_the_threads_may_end_them_all() -> None:
    pool = ThreadPool(2, NAME)
    raised: list[Exception] = []
    go, ended = Event(), Event()

    def end(_: None) -> None:
        go.wait(10)
        try:
            pool.shutdown()
        except RuntimeError as error:
            raised.append(error)
        ended.set()

    pool.submit(end, None)
    go.set()
    assert ended.wait(10)
    assert not raised
    assert until_gone()


def test_what_was_given_is_done_before_the_threads_end() -> None:
    pool = ThreadPool(1, NAME)
    done: list[int] = []
    pool.submit(time.sleep, 0.02)
    for number in range(20):
        pool.submit(done.append, number)
    pool.shutdown()
    assert done == list(range(20))
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(done.append, 0)
    pool.shutdown()


def test_a_pool_that_nobody_holds_ends_its_threads() -> None:
    pool = ThreadPool(3, NAME)
    held = Event()
    pool.submit(Event.set, held)
    assert held.wait(10)
    del pool
    gc.collect()
    assert until_gone()


def test_a_system_that_gives_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, done = ThreadPool(2, NAME), Event()
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", none_left)
        with pytest.raises(RuntimeError, match="start new"):
            pool.submit(Event.set, Event())
    go = Event()
    pool.submit(lambda _: go.wait(10), None)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", none_left)
        pool.submit(Event.set, done)
    go.set()
    assert done.wait(10)
    pool.shutdown()


def test_a_thread_whose_start_was_interrupted_is_used_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    start, began, go = Thread.start, threading.Semaphore(0), Event()

    def interrupted(thread: Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def work(_: None) -> None:
        began.release()
        go.wait(10)

    pool = ThreadPool(3, NAME)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(work, None)
    pool.submit(work, None)
    for _ in range(2):
        assert began.acquire(timeout=10)
    go.set()
    pool.shutdown()
    assert alive() == 0


@pytest.mark.parametrize("where", ["before it is taken", "once it is taken"])
def test_a_report_is_not_lost_where_ctrl_c_comes_instead(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A loop that goes on has forgotten the callback; and of what is half done nobody is left waiting."""
    loop, failed = asyncio.new_event_loop(), list[BaseException]()
    threads = WorkerThreads(loop)
    threads.fail = failed.append
    threads._nudging = where == "once it is taken"  # then nothing else looks at the time

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def ended(task: asyncio.Task[bool]) -> bool:
        async with asyncio.timeout(10):
            return await task

    try:
        go = Event()
        task = loop.create_task(threads.call(go.wait, 10))
        loop.run_until_complete(asyncio.sleep(0))
        with monkeypatch.context() as patch:
            if where == "once it is taken":
                patch.setattr(time, "thread_time", interrupted)
            else:
                patch.setattr(WorkerThreads, "_tell_next", interrupted)
            go.set()
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(task)
        if where == "once it is taken":
            assert [type(error) for error in failed] == [KeyboardInterrupt]
        else:
            assert loop.run_until_complete(ended(task))
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        threads.shutdown()
        loop.close()


async def test_a_failed_sync_stops_the_store_whatever_its_caller_makes_of_it(tmp_path: Path) -> None:
    def work() -> None:
        raise error

    async with aiodq.open(tmp_path / "s") as store:
        threads = store._store_engine.threads
        error: aiodq.StorageError = aiodq.DiskFullError("there is no room")
        with pytest.raises(aiodq.DiskFullError):
            await threads.call(work)
        assert store.health().failed is None
        error = aiodq.StoreFailedError("fsync failed")
        with pytest.raises(aiodq.StoreFailedError):
            await threads.call(work)
        assert store.health().failed == "fsync failed"


@pytest.mark.parametrize("text", ["start new thread", "create new thread at interpreter shutdown"])
async def test_a_store_that_gets_no_thread_is_not_called_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def none_left(_: Thread) -> None:
        raise RuntimeError(f"can't {text}")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", none_left)
        with pytest.raises(aiodq.StorageError, match=f"no thread is free: can't {text}"):
            await aiodq.open(tmp_path)
    await (await aiodq.open(tmp_path)).aclose()


def test_an_interpreter_that_ends_waits_for_what_was_given() -> None:
    code = (
        "import time; from aiodq.engine.loop.thread_pool import ThreadPool; pool = ThreadPool(1, 'p')\n"
        "pool.submit(lambda _: (time.sleep(0.3), print('done', flush=True)), None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "done\n"
