"""The verbs of the blocking client, in one thread and in many."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiodq
import aiodq.sync
from aiodq.sync.spans import in_pages
from tests.processes import WATCHDOG, environment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from aiodq.opening import Mode


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[aiodq.sync.Queue]:
    with aiodq.sync.open_queue(tmp_path / "jobs") as queue:
        yield queue


def depth(path: Path) -> int:
    """Return what is left in a queue on disk."""
    return aiodq.open_reader(path).topic("queue").stats().channels["default"].depth


def test_importing_aiodq_does_not_import_it() -> None:
    code = "import sys, aiodq; assert 'aiodq.sync' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


def test_what_is_put_comes_and_an_ack_is_on_disk(tmp_path: Path) -> None:
    with aiodq.sync.open_queue(tmp_path) as jobs:
        assert jobs.put(b"a", tag="t", key=b"k", headers={"h": "1"}) == 0
        assert jobs.put_many([b"b", aiodq.Draft(b"c", tag="draft")]) == range(1, 3)
        message = jobs.get()
        assert (message.body, message.tag, message.key, message.headers) == (b"a", "t", b"k", {"h": "1"})
        assert (message.attempts, message.channel, message.topic, message.held) == (1, "default", "queue", True)
        message.ack()
        assert message.settled
        assert jobs.get().body == b"b"
    assert depth(tmp_path) == 2


def test_a_backup_is_a_store(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path / "s") as store:
        store.queue("jobs").put(b"a")
        assert store.backup(tmp_path / "b").messages == 1
        with pytest.raises(aiodq.NotAStoreError):
            store.backup(tmp_path / "b")
    with aiodq.sync.open(tmp_path / "b", create=False) as backup:
        assert backup.queue("jobs").get().body == b"a"


def test_a_block_acks_requeues_and_releases(jobs: aiodq.sync.Queue) -> None:
    jobs.put_many([b"a", b"b"])
    with jobs.get() as message:
        assert message.body == b"a"
    with suppress(ValueError), jobs.get() as message:
        raise ValueError
    again = jobs.get()
    assert (again.body, again.attempts) == (b"b", 2)
    with suppress(KeyboardInterrupt), again:
        raise KeyboardInterrupt
    assert jobs.get().attempts == 2


def test_iterating_ends_at_shutdown(jobs: aiodq.sync.Queue) -> None:
    jobs.put_many([b"a", b"b"])
    jobs.shutdown()
    with pytest.raises(aiodq.QueueShutDown):
        jobs.put(b"c")
    seen = []
    for message in jobs:
        with message:
            seen.append(message.body)
    assert seen == [b"a", b"b"]


def test_a_time_out_is_python_s_and_takes_nothing(jobs: aiodq.sync.Queue) -> None:
    with pytest.raises(TimeoutError):
        jobs.get(timeout=timedelta(milliseconds=1))
    with pytest.raises(TimeoutError):
        jobs.get_many(2, timeout=0.001)
    with pytest.raises(aiodq.QueueEmpty):
        jobs.get_nowait()
    jobs.put(b"a")
    with pytest.raises(TimeoutError):
        jobs.join(timeout=0.001)
    assert jobs.get(timeout=0).body == b"a"


@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
def test_what_is_ready_is_taken_without_any_time(tmp_path: Path, mode: Mode) -> None:
    with aiodq.sync.open(tmp_path) as store:
        store.queue("jobs").put_many([b"a", b"b", b"c"])
    with ExitStack() as stack:
        if mode == "client":
            stack.enter_context(aiodq.sync.open(tmp_path, mode="shared"))
        jobs = stack.enter_context(aiodq.sync.open(tmp_path, mode=mode)).queue("jobs")
        with pytest.raises(aiodq.InvalidOptionError, match="max_items"):
            jobs.get_many(0, timeout=0)
        bodies = [message.body for _ in range(3) for message in jobs.get_many(1, timeout=0)]
        assert bodies == [b"a", b"b", b"c"]
        with pytest.raises(TimeoutError):
            jobs.get_many(2, timeout=timedelta())


@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
def test_as_many_as_are_ready_are_taken_without_any_time(tmp_path: Path, mode: Mode) -> None:
    with aiodq.sync.open(tmp_path) as store:
        for _ in range(5):
            store.queue("jobs").put_many([bytes(100_000)] * 60)
    with ExitStack() as stack:
        if mode == "client":
            stack.enter_context(aiodq.sync.open(tmp_path, mode="shared"))
        jobs = stack.enter_context(aiodq.sync.open(tmp_path, mode=mode)).queue("jobs")
        assert [len(jobs.get_many(200, timeout=0)) for _ in range(2)] == [200, 100]
        jobs.refresh()
        assert jobs.in_flight() == 300


def test_a_put_into_a_full_queue_times_out_and_is_not_stored(tmp_path: Path) -> None:
    with aiodq.sync.open_queue(tmp_path, aiodq.StoreOptions(max_messages=1)) as jobs:
        jobs.put(b"a")
        assert jobs.full()
        with pytest.raises(TimeoutError):
            jobs.put(b"b", timeout=0.01)
        with pytest.raises(TimeoutError):
            jobs.put_many([b"b"], timeout=0.01)
        assert [message.body for message in jobs.scan()] == [b"a"]


def test_settling_in_other_ways(jobs: aiodq.sync.Queue) -> None:
    jobs.put_many([b"a", b"b", b"c", b"d"])
    first, *others = jobs.get_many(3)
    first.nack(count_attempt=False)
    assert jobs.get_nowait().attempts == 1
    jobs.ack_many(others)
    with pytest.raises(aiodq.AlreadySettledError):
        jobs.ack_many(others)
    with pytest.raises(aiodq.InvalidOptionError):
        jobs.ack_many([b"no message"])  # type: ignore[list-item]
    last = jobs.get()
    last.touch()
    last.reject("no use")
    with pytest.raises(aiodq.AlreadySettledError):
        last.release()
    assert jobs.stats().in_flight == 1


def test_task_done_means_what_this_thread_got_last(jobs: aiodq.sync.Queue) -> None:
    jobs.put_many([b"a", b"b", b"c"])
    mine = jobs.get()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(jobs.get).result()
        last = jobs.get()
        pool.submit(jobs.task_done).result()
        assert (mine.settled, other.settled, last.settled) == (False, True, False)
        with pytest.raises(ValueError, match="this thread holds no message"):
            pool.submit(jobs.task_done).result()
    jobs.task_done()
    assert (mine.settled, last.settled) == (False, True)
    jobs.put_many([b"d", b"e"])
    mine, last = jobs.get(), jobs.get()
    last.ack()
    jobs.task_done()
    assert mine.settled, "what is settled already is none of those it has"
    with pytest.raises(aiodq.InvalidOptionError, match="takes the message that get"):
        jobs.task_done(b"c")  # type: ignore[arg-type]


def test_task_done_of_another_queues_message(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs, letters = store.queue("jobs"), store.queue("letters")
        letters.put(b"a")
        letter = letters.get()
        with pytest.raises(aiodq.NotInFlightError, match="not by 'jobs', channel 'default'"):
            jobs.task_done(letter)
        assert letters.in_flight() == 1
        letters.task_done(letter)
        assert letters.depth == 0


def test_a_receipt_gives_the_offset_once_it_is_durable(jobs: aiodq.sync.Queue) -> None:
    receipt = jobs.put_nowait(b"a")
    assert receipt.result(timeout=60) == 0
    assert receipt.done()
    assert repr(receipt) == "<Receipt offset 0>"


def test_looking_without_taking(jobs: aiodq.sync.Queue) -> None:
    bodies = [b"%d" % number for number in range(600)]
    jobs.put_many(bodies)
    assert [message.body for message in jobs.scan()] == bodies
    assert [message.body for message in jobs.scan(1, 3, reverse=True)] == [b"2", b"1"]
    assert jobs.read(7).body == b"7"
    with pytest.raises(aiodq.OffsetError):
        jobs.read(600)
    first = jobs.peek()
    assert first is not None
    assert first.body == b"0"
    with pytest.raises(aiodq.NotInFlightError):
        first.ack()
    assert jobs.offset_at(datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert (jobs.begin_offset, jobs.end_offset, jobs.durable_offset) == (0, 600, 600)
    assert (jobs.qsize(), jobs.in_flight(), jobs.deferred(), jobs.depth, jobs.empty()) == (600, 0, 0, 600, False)


def test_a_scan_given_up_early_is_closed(jobs: aiodq.sync.Queue) -> None:
    jobs.put_many([b"%d" % number for number in range(600)])
    scan = jobs.scan()
    assert next(scan).body == b"0"
    del scan
    jobs.close()  # else this would wait for ever, or the thread would find a generator that was never closed


@pytest.mark.parametrize(("size", "most"), [(1, 1000), (200_000, 10)])
def test_a_scan_reads_a_little_ahead_and_raises_what_comes_after_the_messages(
    jobs: aiodq.sync.Queue, size: int, most: int
) -> None:
    read: list[int] = []

    async def found() -> AsyncGenerator[aiodq.Message]:
        for offset in range(2000):
            read.append(offset)
            yield SimpleNamespace(body=bytes(size), offset=offset)  # type: ignore[misc]  # nothing else is asked of it
        raise aiodq.CorruptionError("it is damaged", "x.seg", 5)

    scan = in_pages(jobs._loop_thread, found())
    assert next(scan).offset == 0
    assert len(read) <= most
    for offset in range(1, 2000):
        assert next(scan).offset == offset
    with pytest.raises(aiodq.CorruptionError):
        next(scan)


def test_what_is_deferred_is_seen_and_given_up(jobs: aiodq.sync.Queue) -> None:
    offset = jobs.put(b"later", delay=3600)
    (message,) = jobs.deferred_messages()
    assert (message.offset, message.body) == (offset, b"later")
    assert message.due > datetime.now(UTC)
    jobs.cancel(offset)
    assert list(jobs.deferred_messages()) == []


def test_topics_and_channels(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        orders = store.topic("orders")
        audit = orders.channel("audit", aiodq.ChannelOptions(start="earliest"))
        billing = orders.channel("billing")
        orders.put(b"tea")
        orders.sync()
        assert (audit.get().body, billing.get().body) == (b"tea", b"tea")
        audit.seek("earliest")
        assert audit.get().body == b"tea"
        assert audit.purge() == 1
        billing.pause()
        assert billing.paused
        billing.resume()
        assert not billing.paused
        billing.configure(aiodq.ChannelOptions(max_in_flight=7))
        assert billing.options.max_in_flight == 7
        orders.configure(aiodq.StoreOptions(max_messages=9))
        assert orders.options.max_messages == 9
        orders.delete_channel("audit")
        assert orders.channels() == ["billing"]
        assert store.queue("jobs").channels() == ["default"]
        assert store.topics() == ["jobs", "orders"]
        store.delete_topic("jobs")
        assert list(store.stats().topics) == ["orders"]
        assert store.health().ok
        orders.pause()
        assert billing.paused
        orders.resume()
        assert not billing.paused
        assert orders.purge() == 1
        assert orders.stats().channels["billing"].depth == 0


def test_errors_keep_their_type(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        with pytest.raises(aiodq.InvalidNameError):
            store.topic("no/name")
        with pytest.raises(aiodq.MessageSizeError):
            store.topic("t", aiodq.StoreOptions(max_message_bytes=1)).put(b"xx")
        with pytest.raises(TypeError):
            store.topic("t").put("text")  # type: ignore[arg-type]
        with pytest.raises(aiodq.StoreLockedError):
            aiodq.sync.open(tmp_path)
    with pytest.raises(aiodq.StoreNotFoundError):
        aiodq.sync.open(tmp_path / "none", create=False)
    with pytest.raises(aiodq.InvalidOptionError):
        aiodq.sync.open_queue("~/jobs")


def test_errors_advise_calls_as_they_are_written_here(tmp_path: Path) -> None:
    wrong: Any = "a"
    with aiodq.sync.open(tmp_path) as store:
        topic = store.topic("t")
        channel = topic.channel("c", aiodq.ChannelOptions(max_attempts=2))
        topic.put(b"x")
        with pytest.raises(aiodq.InvalidOptionError, match=r": write message\.ack\(\) for one"):
            channel.ack_many(wrong)
        with pytest.raises(aiodq.InvalidOptionError, match=r"what `channel\.get_many\(100\)` gave"):
            channel.ack_many([wrong])
        with pytest.raises(aiodq.InvalidOptionError, match=r"what `channel\.get\(\)` gave"), store.transaction() as tx:
            tx.ack(wrong)
        with pytest.raises(aiodq.InvalidOptionError, match=r" channel\.configure\(options\)"):
            topic.channel("c", aiodq.ChannelOptions(max_attempts=3))
        message = channel.get()
        with message:
            pass
        with pytest.raises(aiodq.AlreadySettledError, match=r"`with message` settles it, once"):
            message.ack()


def test_other_words_of_errors_stay_as_they_are(tmp_path: Path) -> None:
    class OwnError(aiodq.AiodqError):
        pass

    def where(_: object) -> bool:
        raise OwnError("await channel.get() was ours")

    with aiodq.sync.open(tmp_path) as store:
        with pytest.raises(aiodq.InvalidNameError, match="'await jobs' is no name"):
            store.queue("await jobs")
        channel = store.topic("t").channel("c", aiodq.ChannelOptions(dead_letter="dead"))
        store.topic("t").put(b"x")
        channel.get().reject("why")
        with pytest.raises(OwnError, match=r"await channel\.get\(\) was ours"):
            store.requeue_dead("dead", where=where)


def test_transactions_join_what_the_same_thread_does(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put_many([b"a", b"b", b"c"])
        done = store.queue("done")
        with store.transaction() as tx, jobs.get() as job:
            tx.put("done", job.body)
        assert done.get().body == b"a"
        with suppress(ValueError), store.transaction() as tx:
            tx.put_many("done", [b"x", b"y"])
            with jobs.get():
                raise ValueError
        assert (done.qsize(), jobs.qsize()) == (0, 2)
        with jobs.get().transaction() as tx:
            tx.put("done", b"third")
        assert done.get().body == b"third"
        held = jobs.get()
        with store.transaction() as tx:
            tx.ack_many([held])
            with pytest.raises(aiodq.AlreadySettledError):
                tx.ack(held)
            with pytest.raises(aiodq.WrongContextError, match="do not nest"), store.transaction():
                pass
            with pytest.raises(aiodq.WrongContextError):
                store.requeue_dead("dead")
        assert jobs.depth == 0
        with pytest.raises(aiodq.WrongContextError):
            tx.ack(held)


def test_another_thread_s_block_does_not_join(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
        message = jobs.get()

        def settle() -> None:
            with message:
                pass

        with suppress(ValueError), store.transaction(), ThreadPoolExecutor(1) as pool:
            pool.submit(settle).result()
            raise ValueError
        assert jobs.depth == 0


def test_a_transaction_that_is_ended_in_another_thread_leaves_both_threads_theirs(tmp_path: Path) -> None:
    """As when a generator that has begun it is closed, or collected, elsewhere."""

    def begun() -> Iterator[None]:
        with store.transaction() as tx:
            tx.put("done", b"never")
            yield

    def end_one_and_fail() -> None:
        with suppress(ValueError), store.transaction():
            generator.close()
            with jobs.get():
                pass
            raise ValueError

    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
        generator: Any = begun()
        next(generator)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(end_one_and_fail).result()
        assert jobs.depth == 1
        with store.transaction() as tx:
            tx.put("done", b"x")
        assert store.queue("done").get().body == b"x"
        assert store.queue("done").depth == 1


def test_a_block_that_began_outside_a_transaction_ends_as_if_there_were_none(tmp_path: Path) -> None:
    """As that of a generator, which is collected whenever, and wherever, there is much garbage."""

    def begun(jobs: aiodq.sync.Queue) -> Iterator[None]:
        with jobs.get():
            yield

    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put_many([b"a", b"b"])
        closed, finished = begun(jobs), begun(jobs)
        next(closed)
        next(finished)
        with suppress(ValueError), store.transaction():
            assert next(finished, None) is None
            raise ValueError
        assert jobs.depth == 1
        with store.transaction() as tx:
            tx.put("done", b"x")
            closed.close()  # type: ignore[attr-defined]  # it is a generator
        assert jobs.get().attempts == 1
        assert store.queue("done").depth == 1


def test_a_message_s_block_that_failed_ends_the_transaction_even_if_that_was_caught(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
        with pytest.raises(aiodq.WrongContextError, match="ended with an exception"), store.transaction() as tx:
            with suppress(ValueError), jobs.get():
                raise ValueError
            tx.put("done", b"x")
        assert jobs.get().attempts == 2


def test_dead_letters_go_back(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        letters = store.queue("dead")
        jobs.put_many([b"a", b"b"])
        for job in jobs.get_many(2):
            job.reject("why")
        letters.peek()
        with pytest.raises(aiodq.InvalidOptionError, match="where is a function of a letter"):
            store.requeue_dead("dead", where="b")  # type: ignore[arg-type]
        assert store.requeue_dead("dead", where=lambda letter: letter.body == b"b") == 1
        assert jobs.get().body == b"b"


class Leaving(Mapping[str, str]):
    """Headers that end the program when they are read."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __getitem__(self, _: str) -> str:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_in_a_function_that_runs_on_the_loop_ends_its_caller_alone(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def where(_: aiodq.sync.Message) -> bool:
        raise error

    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        jobs.put(b"a")
        jobs.get().reject()
        with pytest.raises(error):
            store.requeue_dead("dead", where=where)
        with ThreadPoolExecutor(1) as pool, pytest.raises(error):
            pool.submit(jobs.put_nowait, b"b", headers=Leaving(error)).result(WATCHDOG)
        with pytest.raises(error):
            jobs.put(b"b", headers=Leaving(error))
        assert store.requeue_dead("dead") == 1
        assert jobs.get().body == b"a"


def test_events_are_told_and_end_with_the_store(tmp_path: Path) -> None:
    store = aiodq.sync.open(tmp_path)
    events = store.events()
    jobs = store.queue("jobs")
    jobs.put(b"a")
    jobs.get().reject("why")
    assert next(events).kind == "dead"
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, events)
        store.close()
        assert rest.result() == []
    assert events.dropped == 0


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_slow_listener_sees_the_events_before_the_end_of_the_store(
    mode: Literal["exclusive", "shared"], tmp_path: Path
) -> None:
    store = aiodq.sync.open(tmp_path, mode=mode)
    events = store.events()
    jobs = store.queue("jobs")
    jobs.put_many([b"a", b"b", b"c"])
    for _ in range(3):
        jobs.get().reject("why")
    assert next(events).offset == 0
    store.close()
    assert [event.offset for event in events] == [1, 2]
    assert next(events, None) is None


def test_many_threads_put_and_get_each_message_once(jobs: aiodq.sync.Queue) -> None:
    def produce(number: int) -> None:
        for index in range(25):
            jobs.put(b"%d %d" % (number, index))

    def work(_: int) -> list[bytes]:
        seen = []
        for message in jobs:
            with message:
                seen.append(message.body)
        return seen

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        list(pool.map(produce, range(4)))
        jobs.join()
        jobs.shutdown()
        seen = [body for worker in workers for body in worker.result()]
    assert sorted(seen) == sorted(b"%d %d" % (number, index) for number in range(4) for index in range(25))


def test_drain_waits_for_consumers(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
        assert not store.drain(timeout=0.01)
        jobs.task_done() if jobs.in_flight() else jobs.get().ack()
        assert store.drain()


def test_a_queue_of_a_store_is_shut_down_and_the_store_goes_on(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        with store.queue("jobs") as jobs:
            jobs.put(b"a")
        with pytest.raises(aiodq.QueueShutDown):
            jobs.put(b"b")
        store.queue("others").put(b"c")
