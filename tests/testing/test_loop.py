"""Simulated time, and threads that take turns: nothing waits, and everything repeats."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, SimulatedLoop, StalledError, run
from tests.testing.support import PATH, PRODUCERS, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.testing import Call

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop()
    yield made
    made.close()


# --- time


def test_an_hour_costs_nothing_and_timers_keep_their_order() -> None:
    rang: list[tuple[str, float]] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()

        async def ring(name: str, after: float) -> None:
            await asyncio.sleep(after)
            rang.append((name, loop.time()))

        await asyncio.gather(ring("day", 86_400), ring("minute", 60), ring("hour", 3_600), ring("now", 0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3_600):
                await loop.create_future()
        return loop.time()

    assert run(main) == pytest.approx(86_400 + 3_600)
    assert [name for name, _ in rang] == ["now", "minute", "hour", "day"]
    assert [at for _, at in rang] == pytest.approx([0, 60, 3_600, 86_400])


def test_a_task_that_is_always_ready_lets_no_time_go_by() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main) == 0


def test_who_waits_for_nothing_is_told_instead_of_hanging() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("unwound")

    with pytest.raises(StalledError):
        run(waits)
    assert ended == ["unwound"]


def test_a_getter_that_nobody_serves_is_told() -> None:
    async def main() -> None:
        fs = SimulatedFileSystem()
        executor = SimulatedExecutor(asyncio.get_running_loop(), fs, 1)
        queue = await aiodq.open_queue(PATH, aiodq.StoreOptions(sync="os"), fs=fs, executor=executor)
        try:
            async with asyncio.timeout(300):
                await queue.get()
        finally:
            await queue.aclose()

    with pytest.raises(TimeoutError):
        run(main)


def test_what_can_be_read_at_once_is_read_in_the_order_in_which_it_was_asked_for(loop: SimulatedLoop) -> None:
    pairs = sorted((os.pipe() for _ in range(12)), key=lambda pair: -pair[0])
    read: list[int] = []

    def take(here: int) -> None:
        read.append(int(os.read(here, 9)))

    for here, there in pairs:
        loop.add_reader(here, take, here)
        os.write(there, b"%d" % here)
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    for here, there in pairs:
        loop.remove_reader(here)
        os.close(here)
        os.close(there)
    assert read == [here for here, _ in pairs]


# --- threads


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    found: list[list[str]] = []
    for hashes in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": ROOT}
        command = [sys.executable, "-m", "tests.testing.support", "1", "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
        found.append(done.stdout.splitlines())
    assert len(found[0]) == 2
    assert found[1:] == found[:1] * 2


def test_seeds_give_different_runs(record_property: Callable[[str, object], None]) -> None:
    runs = [trace_of(seed) for seed in range(12)]
    assert len({digest for _, digest in runs}) > 8
    assert len({tuple(bodies) for bodies, _ in runs}) > 4
    for bodies, _ in runs:
        assert len(set(bodies)) == len(bodies) == PRODUCERS * 3
        for producer in range(PRODUCERS):
            mine = [body for body in bodies if body.startswith(b"%d:" % producer)]
            assert mine == [b"%d:%d" % (producer, number) for number in range(3)]
    record_property("trials", len(runs))


def test_a_thread_hands_over_at_each_call_and_within_a_sync(loop: SimulatedLoop) -> None:
    fs = SimulatedFileSystem({"/f": b""})
    executor = SimulatedExecutor(loop, fs, 1, longest=0)
    seen: list[str] = []

    def work() -> int:
        file = fs.open("/f", write=True)
        seen.append("opened")
        file.write_at([b"x"], 0)
        seen.append("written")
        file.sync()
        seen.append("synced")
        return 7

    async def main() -> int:
        future = executor.submit(work)
        turns = 0
        while not future.done():
            turns += 1
            seen.append("loop")
            await asyncio.sleep(0)
        assert turns > 4
        return future.result()

    assert loop.run_until_complete(main()) == 7
    work_only = [name for name in seen if name != "loop"]
    assert work_only == ["opened", "written", "synced"]
    for name in work_only:
        assert seen[seen.index(name) - 1] == "loop"
    # A sync hands over twice: before it is decided what it covers, and after.
    assert seen.index("synced") - seen.index("written") == 3


def test_what_is_done_on_the_loop_hands_nothing_over(loop: SimulatedLoop) -> None:
    fs = SimulatedFileSystem({"/f": b"x"})
    SimulatedExecutor(loop, fs, 1)

    async def main() -> bytes:
        return fs.open("/f").read_at(1, 0)

    assert loop.run_until_complete(main()) == b"x"


def test_only_one_thread_moves_at_a_time(loop: SimulatedLoop) -> None:
    fs = SimulatedFileSystem({"/f": b"x"})
    executor = SimulatedExecutor(loop, fs, 3)
    moving: set[int] = set()
    most = [0]

    def work() -> None:
        for _ in range(20):
            moving.add(threading.get_ident())
            most[0] = max(most[0], len(moving))
            moving.discard(threading.get_ident())
            fs.listdir("/")

    async def main() -> None:
        await asyncio.gather(*(asyncio.wrap_future(executor.submit(work)) for _ in range(6)))

    loop.run_until_complete(main())
    assert most == [1]


def test_a_thread_that_waits_for_anothers_lock_lets_that_one_go_on(
    loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.testing.loop._STUCK_SECONDS", 0.2)
    fs = SimulatedFileSystem({"/f": b"x"})
    executor = SimulatedExecutor(loop, fs, 1, longest=0)
    mutex, order = threading.Lock(), []

    def work(name: str) -> None:
        with mutex:
            order.append(name)
            fs.listdir("/")
            fs.listdir("/")
            order.append(name)

    async def main() -> None:
        await asyncio.gather(*(asyncio.wrap_future(executor.submit(work, name)) for name in "abc"))

    loop.run_until_complete(main())
    assert "".join(order) in {"aabbcc", "aaccbb"}


def test_shutdown_ends_what_was_submitted_and_takes_nothing_more(loop: SimulatedLoop) -> None:
    fs = SimulatedFileSystem({"/f": b"x"})
    executor = SimulatedExecutor(loop, fs, 1)
    futures = [executor.submit(fs.listdir, "/") for _ in range(5)]

    def fails() -> list[str]:
        raise KeyError("the work's")

    futures.append(executor.submit(fails))
    executor.shutdown()
    assert all(future.done() for future in futures)
    assert "f" in futures[0].result()
    assert isinstance(futures[5].exception(), KeyError)
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(fs.listdir, "/")
    executor.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name == "aiodq simulated"]


def test_shutdown_may_cancel_what_has_not_begun(loop: SimulatedLoop) -> None:
    fs = SimulatedFileSystem({"/f": b"x"})
    executor = SimulatedExecutor(loop, fs, 1, longest=0)
    begun = executor.submit(fs.listdir, "/")
    cancelled = executor.submit(fs.remove, "/f")
    assert cancelled.cancel()

    async def main() -> None:
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    later = executor.submit(fs.remove, "/f")
    executor.shutdown(cancel_futures=True)
    assert begun.result()
    assert cancelled.cancelled()
    assert later.cancelled()
    assert fs.exists("/f")


def test_shutdown_without_waiting_lets_the_loop_end_it(loop: SimulatedLoop) -> None:
    fs = SimulatedFileSystem({"/f": b"x"})
    executor = SimulatedExecutor(loop, fs, 1)
    future = executor.submit(fs.listdir, "/")
    executor.shutdown(wait=False)
    assert not future.done()

    async def main() -> list[str]:
        return await asyncio.wrap_future(future)

    assert "f" in loop.run_until_complete(main())


def test_closing_a_store_ends_its_simulated_threads(loop: SimulatedLoop) -> None:
    async def main() -> None:
        fs = SimulatedFileSystem()
        executor = SimulatedExecutor(loop, fs, 5)
        async with aiodq.open(PATH, fs=fs, clock=FakeClock(), executor=executor) as store:
            await store.topic("t").put(b"x")
            calls: list[Call] = []
            hand_over = fs.before
            assert hand_over is not None

            def before(call: Call, path: str) -> None:
                calls.append(call)
                hand_over(call, path)

            fs.before = before
            await store.topic("t").put(b"y")
            assert calls.count("sync") == 2

    loop.run_until_complete(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "aiodq simulated"]
