"""The blocking client of a store that many processes have."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

import aiodq
import aiodq.sync
from aiodq.shared.requests.owner_state.visitors import ask_visitors
from tests.processes import WATCHDOG, killed_at_last

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWNER = """
import sys, aiodq.sync
with aiodq.sync.open_queue(sys.argv[1], mode="shared") as jobs:
    print("open", flush=True)
    for line in sys.stdin:
        exec(line)
        sys.stdout.flush()
"""


@contextmanager
def sharing(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that shares the queue, and runs the lines that it is sent."""
    command = [sys.executable, "-c", OWNER, str(directory)]
    with killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return one that owns it."""
    with sharing(tmp_path / "jobs") as child:
        yield child


def tell(owner: subprocess.Popen[str], line: str) -> None:
    assert owner.stdin is not None
    owner.stdin.write(line + "\n")
    owner.stdin.flush()


@pytest.mark.parametrize("mode", ["shared", "client"])
def test_the_verbs_work_beside_an_owner(tmp_path: Path, owner: subprocess.Popen[str], mode: str) -> None:
    with aiodq.sync.open_queue(tmp_path / "jobs", mode=mode) as jobs:  # type: ignore[arg-type]
        assert jobs.put_many([b"a", b"b", b"c"]) == range(3)
        tell(owner, "jobs.put(b'd')")
        seen = []
        for job in jobs:
            with job:
                seen.append(job.body)
            if len(seen) == 3:
                break
        jobs.get().ack()
        jobs.refresh()
        assert (seen, jobs.depth) == ([b"a", b"b", b"c"], 0)
        jobs.put_many([b"e", b"f"])
        first, second = jobs.get_nowait(), jobs.get(timeout=0)
        assert [first.body, second.body] == [b"e", b"f"]
        jobs.task_done()
        first.ack()  # `stop` below would wait for it
        with pytest.raises(aiodq.QueueEmpty):
            jobs.get_nowait()
        with pytest.raises(TimeoutError):
            jobs.get(timeout=0.01)
        assert [message.body for message in jobs.scan()] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        receipt = jobs.put_nowait(b"g")
        assert receipt.result() == 6
        handled = threading.Event()

        def stop() -> None:
            handled.wait(WATCHDOG)
            jobs.stop()

        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(stop)
            jobs.consume(lambda _: handled.set())
            stopping.result(WATCHDOG)


def test_another_takes_over_and_threads_that_wait_go_on(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    with aiodq.sync.open_queue(tmp_path / "jobs", mode="shared") as jobs, ThreadPoolExecutor(1) as pool:
        jobs.put(b"a")
        held = jobs.get()
        waiting = pool.submit(jobs.get)
        owner.send_signal(signal.SIGKILL)
        owner.wait(WATCHDOG)
        assert jobs.put(b"b") == 1
        assert waiting.result(WATCHDOG).body == b"b"
        held.ack()
        jobs.refresh()
        assert jobs.depth == 1


def test_a_client_is_told_that_nobody_serves(tmp_path: Path) -> None:
    with aiodq.sync.open_queue(tmp_path / "jobs"):
        pass
    with pytest.raises(aiodq.OwnerLostError):
        aiodq.sync.open_queue(tmp_path / "jobs", mode="client", failover=0.05)


def test_two_of_one_process_share_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(aiodq.sync.open_queue(tmp_path, mode="shared")) for _ in range(2))
        first.put(b"a")
        with second.get() as job:
            assert job.body == b"a"


def test_transactions_are_committed_whoever_owns_the_store(tmp_path: Path) -> None:
    with (
        aiodq.sync.open(tmp_path / "s", mode="shared") as owner,
        aiodq.sync.open(tmp_path / "s", mode="client") as client,
    ):
        for store in (owner, client):
            jobs = store.queue("jobs")
            jobs.put_many([b"1", b"2", b"3"])
            with store.transaction() as tx:
                with jobs.get() as job:
                    tx.put("made", job.body)
                tx.ack(jobs.get())
            with pytest.raises(LookupError), jobs.get().transaction() as tx:
                tx.put("made", b"x")
                raise LookupError
            with jobs.get().transaction() as tx:
                tx.put_many("made", [b"a", b"b"])
            jobs.refresh()
            assert (jobs.qsize(), jobs.in_flight()) == (0, 0)
        with pytest.raises(aiodq.MessageSizeError), client.transaction() as tx:
            tx.put_many("made", [bytes(1 << 23)] * 8)
        assert [message.body for message in owner.queue("made").get_many(9)] == [b"1", b"a", b"b"] * 2


def test_a_drain_that_has_no_time_is_one_all_the_same(tmp_path: Path) -> None:
    with (
        aiodq.sync.open(tmp_path, mode="shared") as owner,
        aiodq.sync.open(tmp_path, mode="client") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        jobs = client.queue("jobs")
        jobs.put(b"a")
        jobs.get().ack()
        waiting = pool.submit(jobs.get, timeout=WATCHDOG)
        client.drain(0)
        assert isinstance(waiting.exception(), aiodq.QueueShutDown)
        with pytest.raises(aiodq.QueueShutDown):
            owner.queue("jobs").put(b"b")


class Threads:
    """Threads that put and take by one client, and settle what they have in every way; counts what was acked."""

    def __init__(self, jobs: aiodq.sync.Queue, seed: int) -> None:
        self.jobs = jobs
        self.seed = seed
        self.put = [0] * 4
        self.acked: list[bytes] = []

    def produce(self, thread: int) -> None:
        for number in range(150):
            body = b"%d %d" % (thread, number)
            if number % 10:
                self.jobs.put(body)
            else:
                self.jobs.put_nowait(body).result()
            self.put[thread] += 1

    def consume(self, thread: int) -> None:
        rng = random.Random(self.seed + thread)
        while (job := self.jobs.get(timeout=WATCHDOG)).body != b"over":
            what = rng.random()
            if what < 0.1:
                job.nack()
            elif what < 0.2:
                job.release()
            elif what < 0.3:
                with pytest.raises(LookupError), job:
                    raise LookupError
            else:
                job.ack()
                self.acked.append(job.body)
        job.ack()


def test_threads_put_and_take_while_owners_are_killed(tmp_path: Path, owner: subprocess.Popen[str], seed: int) -> None:
    with (
        sharing(tmp_path / "jobs") as second,
        sharing(tmp_path / "jobs") as third,
        aiodq.sync.open_queue(tmp_path / "jobs", mode="client") as jobs,
        ThreadPoolExecutor(8) as pool,
    ):
        threads = Threads(jobs, seed)
        putting = [pool.submit(threads.produce, thread) for thread in range(4)]
        taking = [pool.submit(threads.consume, thread) for thread in range(4)]
        gone = {owner.pid: owner, second.pid: second, third.pid: third}
        for share in (100, 300):
            while sum(threads.put) < share and not any(each.done() for each in putting):
                time.sleep(0.001)
            pid = asyncio.run(ask_visitors(str(tmp_path / "jobs")))["owner"]["pid"]
            gone[pid].send_signal(signal.SIGKILL)
            gone.pop(pid).wait(WATCHDOG)
        for each in putting:
            each.result(WATCHDOG)
        while len(threads.acked) < 600 and not any(each.done() for each in taking):
            time.sleep(0.01)
        jobs.put_many([b"over"] * 4)
        for each in taking:
            each.result(WATCHDOG)
        bodies = sorted(b"%d %d" % (thread, number) for thread in range(4) for number in range(150))
        assert sorted(threads.acked) == bodies  # each once: its holder lives
        assert sorted(message.body for message in jobs.scan() if message.body != b"over") == bodies


def test_threads_commit_while_owners_are_killed(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    with aiodq.sync.open(tmp_path / "jobs", mode="shared") as store:
        started = threading.Event()

        def work(thread: int) -> None:
            for number in range(40):
                with store.transaction() as tx:
                    tx.put("a", b"%d %d" % (thread, number))
                    tx.put("b", b"%d %d" % (thread, number))
                started.set()

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work, thread) for thread in range(4)]
            assert started.wait(WATCHDOG)
            owner.kill()
            for one in working:
                one.result(WATCHDOG)
        found = [[message.body for message in store.topic(name).scan()] for name in ("a", "b")]
        expected = sorted(b"%d %d" % (thread, number) for thread in range(4) for number in range(40))
        assert [sorted(each) for each in found] == [expected, expected]


def test_dead_letters_are_chosen_what_happens_is_told_and_all_can_be_drained(tmp_path: Path) -> None:
    with (
        aiodq.sync.open(tmp_path / "s", mode="shared") as owner,
        aiodq.sync.open(tmp_path / "s", mode="client") as client,
    ):
        events = client.events()
        jobs = client.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        jobs.put_many([b"1", b"2", b"3"])
        for message in jobs.get_many(3):
            message.reject("why")
        assert {next(events).kind for _ in range(3)} == {"dead"}
        letters = client.queue("dead")
        for letter in [letters.get() for _ in range(3)]:
            letter.release()
        letters.refresh()
        assert client.requeue_dead("dead", where=lambda letter: letter.body == b"2") == 1
        with jobs.get() as message:
            assert message.body == b"2"
        assert client.drain(0.05) is False
        with pytest.raises(aiodq.QueueShutDown):
            owner.queue("jobs").put(b"x")
