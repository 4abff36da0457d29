"""An event loop that is closed by hand while a store is open: what was accepted is written, and others go on."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import TYPE_CHECKING

import pytest

import aiodq
import aiodq.sync
from tests.processes import WATCHDOG
from tests.shared.support import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiodq.opening import Mode

MODES = pytest.mark.parametrize("mode", ["exclusive", "shared"])


@pytest.fixture
def left() -> Iterator[list[object]]:
    """Hold what a closed loop leaves behind, as a traceback or a notebook does; it is dropped at the end."""
    left: list[object] = []
    yield left
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        left.clear()
        gc.collect()


async def _under_way(path: Path, mode: Mode, left: list[object]) -> None:
    """Leave puts and a get under way, and a message that is acked and not written down yet."""
    store = await aiodq.open(path, QUICK, mode=mode)
    jobs, done = store.queue("jobs"), store.queue("done")
    await jobs.put(b"a")
    await done.put(b"x")
    (await done.get()).ack_nowait()
    waiting = [jobs.put(b"b"), jobs.put(b"c"), store.queue("empty").get()]
    tasks = [asyncio.ensure_future(each) for each in waiting]
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined] # as asyncio itself does
    left += [store, *tasks]
    await asyncio.sleep(0)


async def _found(path: Path, mode: Mode) -> tuple[list[bytes], int]:
    async with aiodq.open(path, QUICK, mode=mode) as store, asyncio.timeout(WATCHDOG):
        jobs, done = store.queue("jobs"), store.queue("done")
        await jobs.refresh()
        await done.refresh()
        return [message.body for message in await jobs.get_many(jobs.qsize())], done.qsize()


def _closed_by_hand(path: Path, mode: Mode, left: list[object]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_under_way(path, mode, left))
    loop.close()


@MODES
def test_it_is_opened_again_though_something_refers_to_it(tmp_path: Path, mode: Mode, left: list[object]) -> None:
    _closed_by_hand(tmp_path, mode, left)
    bodies, unacked = asyncio.run(_found(tmp_path, mode))
    assert bodies[:1] == [b"a"]
    if mode == "exclusive":  # of a shared store, what is under way may not have come to the owner
        assert (bodies, unacked) == ([b"a", b"b", b"c"], 0)


def test_nothing_is_printed_when_it_is_dropped(tmp_path: Path) -> None:
    async def opened() -> aiodq.Store:
        store = await aiodq.open(tmp_path, QUICK)
        await store.queue("jobs").put(b"a")
        return store

    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(opened())
    loop.close()
    with pytest.warns(ResourceWarning, match="never closed"):
        del store
        gc.collect()  # what a finalizer raises fails the test
    assert asyncio.run(_found(tmp_path, "exclusive")) == ([b"a"], 0)


def test_it_is_released_by_whichever_thread_drops_it(tmp_path: Path, left: list[object]) -> None:
    """A thread of the store's own collects its last handle, as garbage is collected wherever it is found."""
    close, closed = threading.Event(), threading.Event()

    def drop() -> None:
        close.wait(WATCHDOG)
        left.clear()
        gc.collect()
        closed.set()

    async def opened() -> None:
        store = await aiodq.open(tmp_path, QUICK)
        await store.queue("jobs").put(b"a")
        store._store_engine.threads.start(drop, lambda _, __: None)
        left.append(store)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(opened())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        close.set()
        assert closed.wait(WATCHDOG)
    assert asyncio.run(_found(tmp_path, "exclusive")) == ([b"a"], 0)


def test_who_was_connected_goes_on(tmp_path: Path, left: list[object]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_under_way(tmp_path, "shared", left))
    opening = loop.run_in_executor(None, lambda: aiodq.sync.open(tmp_path, QUICK, mode="client"))
    with loop.run_until_complete(opening) as other:
        loop.close()
        jobs = other.queue("jobs")
        with aiodq.sync.open(tmp_path, QUICK, mode="shared"):
            jobs.put(b"d", timeout=WATCHDOG)
            assert b"d" in [message.body for message in jobs.get_many(4, timeout=WATCHDOG)]
