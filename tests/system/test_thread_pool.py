"""The threads between a put and its sync: no more than needed, none left behind, and all that they got is done."""

from __future__ import annotations

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
