"""Many threads do all that they can do to one store, and a ledger tells what each message may have come to."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
import aiodq.sync
from tests.processes import WATCHDOG
from tests.sync.test_ends import left_since, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aiodq.opening import Mode

_EVERYTHING: Final = aiodq.Retention(consumed="keep")
_AUDIT: Final = aiodq.ChannelOptions(start="earliest")
_OPTIONS: Final = aiodq.ChannelOptions(visibility_timeout=3600, dead_letter="dead")


class HandlerError(Exception):
    """What a consumer's work ends with."""


class Ledger:
    """What was put, who holds what, and what became of it. Any number of threads write it."""

    def __init__(self) -> None:
        self.put: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.done: Counter[bytes] = Counter()
        self.dead: set[bytes] = set()
        self.results: set[bytes] = set()
        self.wrong: list[str] = []
        self._held: set[bytes] = set()
        self._lock = threading.Lock()

    def take(self, message: aiodq.sync.Message) -> None:
        body = message.body
        with self._lock:
            if body in self._held:
                self.wrong.append(f"{body!r} was handed out twice")
            if body in self.done or body in self.dead:
                self.wrong.append(f"{body!r} came again")
            self._held.add(body)

    def leave(self, *messages: aiodq.sync.Message) -> None:
        """Note that others may have messages from now on."""
        with self._lock:
            self._held -= {message.body for message in messages}

    def settle(self, *messages: aiodq.sync.Message) -> None:
        with self._lock:
            self._held -= {message.body for message in messages}
            self.done.update(message.body for message in messages)


class Worker:
    """What one thread does, by handles of its own."""

    def __init__(self, number: int, rng: random.Random, store: aiodq.sync.Store, ledger: Ledger) -> None:
        self._number, self._rng, self._store, self._ledger = number, rng, store, ledger
        self._jobs = store.queue("jobs", _OPTIONS)
        self._made = 0

    def _bodies(self, count: int) -> list[bytes]:
        self._made += count
        return [b"%d-%06d" % (self._number, n) for n in range(self._made - count, self._made)]

    # --- a producer

    def produce(self, rounds: int) -> None:
        for _ in range(rounds):
            way = self._rng.choice(
                (self._put, self._put, self._put_many, self._put_nowait, self._put_late, self._commit)
            )
            way()

    def _put(self) -> None:
        (body,) = self._bodies(1)
        self._jobs.put(body)
        self._ledger.put.add(body)

    def _put_many(self) -> None:
        bodies = self._bodies(self._rng.randint(1, 5))
        self._jobs.put_many(bodies)
        self._ledger.put.update(bodies)

    def _put_nowait(self) -> None:
        (body,) = self._bodies(1)
        with suppress(aiodq.QueueFull):
            self._jobs.put_nowait(body).result()
            self._ledger.put.add(body)

    def _put_late(self) -> None:
        (body,) = self._bodies(1)
        try:
            self._jobs.put(body, timeout=self._rng.choice((0, 0.001, 0.01, WATCHDOG)))
        except TimeoutError:
            self._ledger.perhaps.add(body)
        else:
            self._ledger.put.add(body)

    def _commit(self) -> None:
        bodies = self._bodies(2)
        fails = self._rng.random() < 0.3
        with suppress(HandlerError):
            with self._store.transaction() as tx:
                for body in bodies:
                    tx.put("jobs", body)
                if fails:
                    raise HandlerError
            self._ledger.put.update(bodies)

    # --- a consumer

    def consume(self, over: threading.Event) -> None:
        while not self._ledger.wrong and not (over.is_set() and self._jobs.depth == 0):
            taken = self._taken()
            if not taken:
                gc.collect(self._rng.randrange(3))  # what was forgotten comes again
            for message in taken:
                self._ledger.take(message)
                ways = (self._ack, self._ack, self._ack, self._requeue, self._fail, self._commit_one, self._forget)
                self._rng.choice((*ways, self._reject))(message)

    def _taken(self) -> list[aiodq.sync.Message]:
        with suppress(TimeoutError, aiodq.QueueEmpty):
            match self._rng.randrange(3):
                case 0:
                    return [self._jobs.get_nowait()]
                case 1:
                    return self._jobs.get_many(self._rng.randint(1, 5), timeout=self._rng.choice((0, 0.01, 0.1)))
            return [self._jobs.get(timeout=self._rng.choice((0, 0.001, 0.1)))]
        return []

    def _ack(self, message: aiodq.sync.Message) -> None:
        ways: list[Callable[[], object]] = [
            message.ack,
            message.ack_nowait,
            partial(self._jobs.ack_many, [message]),
            partial(self._jobs.task_done, message),
            partial(message.__exit__, None, None, None),
        ]
        self._rng.choice(ways)()
        self._ledger.settle(message)

    def _requeue(self, message: aiodq.sync.Message) -> None:
        self._ledger.leave(message)
        self._rng.choice((message.nack, partial(message.nack, 0.01), message.release))()

    def _fail(self, message: aiodq.sync.Message) -> None:
        error = self._rng.choice((HandlerError, SystemExit, KeyboardInterrupt))
        with suppress(error), message:
            self._ledger.leave(message)
            raise error

    def _reject(self, message: aiodq.sync.Message) -> None:
        message.reject("no")
        self._ledger.leave(message)
        self._ledger.dead.add(message.body)

    def _commit_one(self, message: aiodq.sync.Message) -> None:
        fails = self._rng.random() < 0.3
        with suppress(HandlerError):
            with self._store.transaction() as tx, message:
                tx.put("results", message.body)
                if fails:
                    self._ledger.leave(message)
                    raise HandlerError
            self._ledger.results.add(message.body)
            self._ledger.settle(message)

    def _forget(self, message: aiodq.sync.Message) -> None:
        """Leave a generator in a block, to be collected at some time, in some thread."""

        def begun() -> Iterator[None]:
            with block as entered:
                if isinstance(entered, aiodq.sync.Transaction):
                    entered.put("results", b"never")
                yield

        block = self._rng.choice((message, message.transaction()))
        held: list[Any] = [begun()]
        held.append(held)
        beginner = threading.Thread(target=next, args=held[:1])  # this thread would be in the transaction until then
        beginner.start()
        beginner.join()
        self._ledger.leave(message)

    # --- one who disturbs

    def disturb(self, over: threading.Event) -> None:
        ways: list[Callable[[], object]] = [
            self._jobs.pause,
            self._jobs.resume,
            lambda: [message.body for message in self._jobs.scan(0, 50)],
            lambda: next(iter(self._jobs.scan(0)), None),
            lambda: list(self._jobs.deferred_messages()),
            self._jobs.peek,
            self._jobs.refresh,
            self._store.stats,
            self._store.health,
            gc.collect,
        ]
        if not self._jobs.maxsize:  # otherwise puts would wait for the second channel
            audit = self._jobs.channel("audit", _AUDIT)
            ways += [
                lambda: audit.seek(self._rng.choice(("earliest", "latest", 0))),
                lambda: audit.ack_many(audit.get_many(10, timeout=0.01)),
                audit.purge,
            ]
        while not over.is_set():
            with suppress(TimeoutError, aiodq.NotInFlightError):
                self._rng.choice(ways)()
            counts = self._jobs.qsize(), self._jobs.in_flight(), self._jobs.deferred(), self._jobs.depth
            if min(counts) < 0:
                self._ledger.wrong.append(f"counts below zero: {counts}")
            time.sleep(0.002)
        self._jobs.resume()


def run(work: Callable[[], object], ledger: Ledger) -> threading.Thread:
    """Do something in a thread."""

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is wrong
            ledger.wrong.append(repr(error))

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread


def wait_for(begun: list[threading.Thread], ledger: Ledger) -> None:
    """Wait for threads to end, or for something to be wrong."""
    end = time.monotonic() + WATCHDOG
    for each in begun:
        while each.is_alive() and not ledger.wrong and time.monotonic() < end:
            each.join(0.1)
        if each.is_alive():
            ledger.wrong.append(f"{each.name} does not end")


def come_and_go(path: Path, rng: random.Random, ledger: Ledger) -> None:
    """Open the store again and again, put a little, and close it, perhaps as its owner."""
    for number in range(1000, 1005):
        with aiodq.sync.open(path, mode="shared") as store:
            Worker(number, random.Random(rng.random()), store, ledger).produce(2)


def bodies_of(queue: aiodq.sync.Channel) -> list[bytes]:
    return [queue.get(timeout=WATCHDOG).body for _ in range(queue.depth)]


def check_what_is_left(path: Path, ledger: Ledger) -> None:
    with aiodq.sync.open(path) as store:
        jobs = store.queue("jobs")
        assert jobs.depth == 0
        assert set(ledger.done.values()) <= {1}
        settled = ledger.done.keys() | ledger.dead
        assert settled >= ledger.put
        assert settled <= ledger.put | ledger.perhaps
        audit = jobs.channel("audit", _AUDIT)
        audit.seek("earliest")
        stored = bodies_of(audit)
        assert Counter(stored) == Counter(settled)
        by_producer: dict[bytes, list[bytes]] = {}
        for body in stored:
            by_producer.setdefault(body.split(b"-")[0], []).append(body)
        assert all(bodies == sorted(bodies) for bodies in by_producer.values())
        assert Counter(bodies_of(store.queue("results"))) == Counter(ledger.results)
        assert Counter(bodies_of(store.queue("dead"))) == Counter(ledger.dead)


def work_it(path: Path, rng: random.Random, modes: list[Mode], rounds: int) -> None:
    ledger, over = Ledger(), threading.Event()
    before = threads()
    gc.freeze()  # what other tests have left is not looked at by each of very many collections
    options = aiodq.StoreOptions(
        sync=rng.choice(("always", "os")),
        max_messages=rng.choice((None, 10)),
        segment_bytes=rng.choice((2000, 100_000_000)),
        retention=_EVERYTHING,
    )
    stores = [aiodq.sync.open(path, options, mode=mode) for mode in modes]
    for name in ("jobs", "results", "dead"):
        stores[0].topic(name, options if name == "jobs" else aiodq.StoreOptions(retention=_EVERYTHING))

    def worker(number: int) -> Worker:
        return Worker(number, random.Random(rng.random()), stores[number % len(stores)], ledger)

    producers = [run(partial(worker(number).produce, rounds), ledger) for number in range(6)]
    consumers = [run(partial(worker(number).consume, over), ledger) for number in range(100, 106)]
    disturbers = [run(partial(worker(number).disturb, over), ledger) for number in range(200, 202)]
    if modes[0] != "exclusive":
        producers.append(run(partial(come_and_go, path, random.Random(rng.random()), ledger), ledger))
    try:
        wait_for(producers, ledger)
        over.set()
        wait_for(consumers + disturbers, ledger)
    finally:
        over.set()
        gc.unfreeze()
        rng.shuffle(stores)
        for store in stores:
            store.close()
    assert ledger.wrong == []
    check_what_is_left(path, ledger)
    assert left_since(before) == []


@pytest.mark.parametrize("modes", [["exclusive"], ["shared"], ["shared", "shared", "client"]], ids="-".join)
def test_each_message_is_done_once_whatever_the_threads_do(tmp_path: Path, seed: int, modes: list[Mode]) -> None:
    work_it(tmp_path, random.Random(seed), modes, 15)


@pytest.mark.slow
@pytest.mark.parametrize("modes", [["exclusive"], ["shared"], ["shared", "shared", "client"]], ids="-".join)
def test_each_message_is_done_once_in_many_stores(tmp_path: Path, seed: int, modes: list[Mode]) -> None:
    rng = random.Random(seed)
    for number in range(10):
        work_it(tmp_path / str(number), rng, modes, 60)
