"""A slow disk holds nobody up, a sync acknowledges what it covers and nothing else, a busy loop starves no sync.

Nothing is measured by a clock: the disk stands still until the test lets it go on, and what happens meanwhile is
counted in steps of the loop.
"""

from __future__ import annotations

import asyncio
import pkgutil
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import aiodq
from aiodq.clock import SystemClock
from aiodq.engine.batch.many_messages import checked_items
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.loop import worker_threads
from aiodq.engine.loop.worker_threads import _HOGGED, WorkerThreads
from aiodq.engine.store.taking_over import _start_topic
from aiodq.producer import _FEW
from aiodq.storage.log.topic_log import TopicLog
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import FakeClock, WrappedFileSystem
from tests.processes import WATCHDOG
from tests.queue.support import turns, until
from tests.system.support import QuickFileSystem, StallingFileSystem, bodies, descriptors_under, drain, nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq import Message, Queue, Receipt
    from aiodq.testing import Call

T = TypeVar("T")

TICKS = 2000
MIB = 1 << 20


async def stalled(fs: StallingFileSystem, queue: Queue, body: bytes) -> asyncio.Task[int]:
    """Begin a put and return it once its sync stands still."""
    fs.hold = True
    before = fs.syncs
    put = asyncio.create_task(queue.put(body))
    await until(lambda: fs.syncs > before)
    return put


# --- the loop goes on


async def test_slow_sync_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    fs = StallingFileSystem()
    with nothing_left():
        async with aiodq.open_queue(tmp_path, fs=fs) as queue:
            await queue.put_many([b"a", b"b"])
            put = await stalled(fs, queue, b"c")
            await turns(TICKS)
            assert fs.in_flight == 1
            assert not put.done()
            # What was there before can be worked on as if nothing were.
            message = await queue.get()
            await message.ack()
            await (await queue.get()).nack()
            assert (await queue.read(1)).body == b"b"
            assert [m.body async for m in queue.scan()] == [b"a", b"b"]
            # And what the disk has not confirmed is not delivered.
            assert (queue.end_offset, queue.durable_offset, queue.qsize()) == (3, 2, 1)
            assert not put.done()
            fs.release()
            assert await put == 2
            assert bodies(drain(queue)) == [b"b", b"c"]


async def test_very_many_small_batches_are_not_encoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, staged, most = TopicLog.stage, 0, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal staged
        staged += 1
        return stage(*args, **options)

    async def watch() -> None:
        nonlocal staged, most
        while True:
            most, staged = max(most, staged), 0
            await asyncio.sleep(0)

    monkeypatch.setattr(TopicLog, "stage", counted)
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="always"), fs=QuickFileSystem()) as store:
        topic = store.topic("t")
        await topic.put(b"first")
        watching = asyncio.create_task(watch())
        puts = await asyncio.gather(*(topic.put_many([b"a", b"b"]) for _ in range(2000)))
        watching.cancel()
        assert [put.start for put in puts] == list(range(1, 4001, 2))
        assert 0 < most <= 256


async def test_the_acks_of_very_many_channels_are_not_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, written, most = ChannelJournal.append, 0, 0

    def counted(*args: Any, **options: Any) -> bool:
        nonlocal written
        written += 1
        return append(*args, **options)

    async def watch() -> None:
        nonlocal written, most
        while True:
            most, written = max(most, written), 0
            await asyncio.sleep(0)

    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem()) as store:
        topic = store.topic("t")
        channels = [topic.channel(f"c{number}") for number in range(300)]
        await topic.put(b"a")
        messages = [await channel.get() for channel in channels]
        monkeypatch.setattr(ChannelJournal, "append", counted)
        watching = asyncio.create_task(watch())
        for message in messages:
            message.ack_nowait()
        await topic.sync()
        watching.cancel()
        assert 0 < most <= 100


class StallingReads(WrappedFileSystem):
    """A disk on which reads of segments stand still while the test says so; what the loop itself asks passes.

    Attributes:
        began: how many stood still.
        go_on: unset, they do.
    """

    def __init__(self) -> None:
        super().__init__(QuickFileSystem())
        self.began = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        on_the_loop = threading.current_thread() is threading.main_thread()
        if call == "read" and path.endswith(".seg") and not on_the_loop and not self.go_on.is_set():
            self.began += 1
            assert self.go_on.wait(WATCHDOG)
        return super().passing(call, path, perform, *args)


async def walk(queue: Queue, *, reverse: bool = False) -> list[bytes]:
    return [message.body async for message in queue.scan(reverse=reverse)]


async def test_read_under_way_holds_up_neither_the_loop_nor_another_read(tmp_path: Path) -> None:
    """Nobody waits for who reads: not who closes its files, not who deletes them, not the next who reads."""
    fs = StallingReads()
    with nothing_left():
        async with aiodq.open(tmp_path, fs=fs) as store:
            queue = store.queue("t")
            await queue.put_many([b"a", b"b"])
            fs.go_on.clear()
            reads = [asyncio.create_task(queue.read(offset)) for offset in (0, 1)]
            await until(lambda: fs.began == len(reads))
            scan = asyncio.create_task(walk(queue))
            await until(lambda: fs.began > len(reads))
            scan.cancel()
            for message in drain(queue):
                await message.ack()
            await store.delete_topic("t")
            await store.topic("t").put(b"new")
            assert not any(read.done() for read in reads)
            fs.go_on.set()
            assert [message.body for message in await asyncio.gather(*reads)] == [b"a", b"b"]
        with pytest.raises(asyncio.CancelledError):
            await scan
    assert descriptors_under(tmp_path) == []


class LastFirst(ThreadPoolExecutor):
    """Threads to which work may come in the opposite order, as to any that are woken at once."""

    held: list[Callable[[], object]] | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self.held is None:
            return super().submit(fn, *args, **kwargs)
        self.held.append(partial(fn, *args, **kwargs))
        return Future()

    def let_go(self) -> None:
        """Do what was held back."""
        held, self.held = self.held or [], None
        for work in reversed(held):
            self.submit(work).result()


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_scan_that_was_cancelled_before_it_read_leaves_no_file_open(tmp_path: Path, reverse: bool) -> None:
    threads = LastFirst()
    async with aiodq.open_queue(tmp_path, aiodq.StoreOptions(sync="os"), executor=threads) as queue:
        await queue.put(b"a")
        before = descriptors_under(tmp_path)
        threads.held = []
        scan = asyncio.create_task(walk(queue, reverse=reverse))
        await until(lambda: threads.held)
        scan.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scan
        assert len(threads.held) == 2  # to read, and to close
        threads.let_go()
        assert descriptors_under(tmp_path) == before


async def begun(fs: StallingReads, queue: Queue) -> asyncio.Task[list[Message]]:
    """Begin a `get_many` of 150 messages and return it once it has some, and the read of more stands still."""
    assert (await queue.get()).body == bytes(20_000)
    fs.go_on.clear()
    getting = asyncio.create_task(queue.get_many(150))
    await until(lambda: fs.began)
    await turns(TICKS)
    assert not getting.done(), "what has to be read is not read on the loop"
    assert 1 < queue.in_flight() < 150
    return getting


@pytest.mark.parametrize("end", ["read", "cancelled", "paused", "closed"])
@pytest.mark.usefixtures("unshown")  # closing would wait for figures under way first
async def test_slow_read_of_more_holds_up_neither_the_loop_nor_what_was_taken(tmp_path: Path, end: str) -> None:
    fs = StallingReads()
    async with aiodq.open_queue(tmp_path) as queue:
        for number in range(0, 200, 10):
            await queue.put_many([number.to_bytes(2, "little") * 10_000] * 10)
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        getting = await begun(fs, queue)
        if end == "cancelled":
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            assert queue.in_flight() == 1, "nothing is lost"
            getting = asyncio.create_task(queue.get_many(150))
        elif end == "paused":
            queue.pause()
        closing = asyncio.create_task(queue.aclose() if end == "closed" else asyncio.sleep(0))
        await turns(3)
        if end == "closed":
            await until(lambda: queue._channel_engine.over)
            await turns(TICKS)
            assert not closing.done()
        fs.go_on.set()
        messages = await getting
        assert [message.offset for message in messages] == list(range(1, 1 + len(messages)))
        assert len(messages) == 150 if end in {"read", "cancelled"} else 0 < len(messages) < 150
        await closing


async def test_slow_read_of_what_is_looked_at_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    fs = StallingReads()
    async with aiodq.open_queue(tmp_path) as queue:
        await queue.put_many([b"a", b"b"])
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        fs.go_on.clear()
        looks = [asyncio.create_task(queue.peek()) for _ in range(2)]
        await until(lambda: fs.began)
        looks.pop().cancel()
        await turns(TICKS)
        assert not looks[0].done()
        fs.go_on.set()
        message = await looks[0]
        assert message is not None
        assert (message.body, queue.qsize()) == (b"a", 2)


async def test_slow_topic_does_not_hold_up_another(tmp_path: Path) -> None:
    fs = StallingFileSystem("/slow/")
    async with aiodq.open(tmp_path, fs=fs) as store:
        slow, quick = store.queue("slow"), store.queue("quick")
        await slow.put(b"a")
        put = await stalled(fs, slow, b"b")
        for number in range(20):
            assert await quick.put(b"%d" % number) == number
            await (await quick.get()).ack()
        await store.topic("new").put(b"x")
        await store.delete_topic("new")
        assert fs.in_flight == 1
        assert not put.done()
        fs.release()
        assert await put == 1


async def test_aclose_waits_for_the_disk_beside_the_loop(tmp_path: Path) -> None:
    fs = StallingFileSystem()
    with nothing_left():
        queue = await aiodq.open_queue(tmp_path, fs=fs)
        await queue.put(b"a")
        put = await stalled(fs, queue, b"b")
        receipt = queue.put_nowait(b"c")
        closing = asyncio.create_task(queue.aclose())
        await turns(TICKS)
        assert not closing.done()
        with pytest.raises(aiodq.StoreLockedError):
            await aiodq.open(tmp_path)
        fs.release()
        await closing
        assert (await put, await receipt) == (1, 2)


async def test_what_waits_for_a_slow_disk_is_bounded(tmp_path: Path) -> None:
    fs = StallingFileSystem()
    options = aiodq.StoreOptions(memory_bytes=MIB)
    async with aiodq.open_queue(tmp_path, options, fs=fs) as queue:
        await queue.put(b"a")
        put = await stalled(fs, queue, b"b")
        receipts: list[Receipt] = []
        with pytest.raises(aiodq.QueueFull):
            while True:
                receipts.append(queue.put_nowait(bytes(10_000)))
                await turns(3)
                assert len(receipts) * 10_000 <= MIB
        more = [asyncio.create_task(queue.put(bytes(10_000))) for _ in range(100)]
        await turns(TICKS)
        assert not put.done()
        assert not any(receipt.done() for receipt in receipts)
        assert not any(task.done() for task in more)
        assert queue.topic_stats().pending <= len(receipts) + 1
        fs.release()
        async with asyncio.timeout(WATCHDOG):
            await asyncio.gather(put, *receipts, *more)
        assert queue.end_offset == 2 + len(receipts) + len(more)


async def test_time_running_out_is_no_acknowledgement(tmp_path: Path) -> None:
    fs = StallingFileSystem()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put(b"a")
        put = await stalled(fs, queue, b"b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await put
        assert put.cancelled()
        assert (queue.durable_offset, queue.qsize()) == (1, 1)
        fs.release()
        await queue.topic.settle_in()
        # It was written before the caller lost patience, so it is kept; only the caller does not know.
        assert bodies(drain(queue)) == [b"a", b"b"]


# --- group commit


async def test_puts_during_a_sync_share_the_next(tmp_path: Path) -> None:
    fs = StallingFileSystem()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put(b"a")
        before = fs.syncs
        first = await stalled(fs, queue, b"first")
        events = len(fs.events)
        others = [asyncio.create_task(queue.put(b"other%d" % number)) for number in range(50)]
        many = asyncio.create_task(queue.put_many([b"many1", b"many2"]))
        await turns(TICKS)
        assert len(fs.events) == events, "something was written beside the sync"
        fs.let_go()
        assert await first == 1
        await until(lambda: fs.syncs == before + 2)
        await turns(TICKS)
        assert not any(task.done() for task in (*others, many))
        fs.let_go()
        assert sorted(await asyncio.gather(*others)) + list(await many) == list(range(2, 54))
        assert fs.syncs == before + 2
        fs.release()


async def test_sync_under_way_does_not_acknowledge_what_came_later(tmp_path: Path) -> None:
    """So much comes that it is written beside the sync. It still waits for the next one."""
    fs = StallingFileSystem()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put(b"a")
        before = fs.syncs
        first = await stalled(fs, queue, b"first")
        later = asyncio.create_task(queue.put(bytes(2 * MIB)))
        await turns(TICKS)
        fs.let_go()
        await first
        await until(lambda: fs.syncs == before + 2)
        await turns(TICKS)
        assert not later.done()
        assert queue.durable_offset == 2
        fs.let_go()
        assert await later == 2
        fs.release()


async def test_each_acknowledged_put_was_covered_by_a_sync(tmp_path: Path, seed: int) -> None:
    """Random sizes, rolls and stalls: between a put's write and its return lies a whole sync."""
    rng = random.Random(seed)
    fs = StallingFileSystem()
    told: dict[bytes, int] = {}

    async def produce(queue: Queue, producer: int) -> None:
        for number in range(12):
            mark = b"<%d.%d>" % (producer, number)
            body = mark + rng.randbytes(rng.choice((0, 100, 70_000, 600_000)))
            await (queue.put_many([body, b"x"]) if rng.random() < 0.3 else queue.put(body))
            told[mark] = len(fs.events)

    async with aiodq.open_queue(tmp_path, aiodq.StoreOptions(segment_bytes=2 * MIB), fs=fs) as queue:
        fs.hold = True
        producers = asyncio.gather(*(produce(queue, producer) for producer in range(8)))
        while not producers.done():
            await turns(rng.randrange(50))
            if fs.in_flight:
                fs.let_go()
        await producers
        fs.release()
    assert len(told) == 96
    for mark, position in told.items():
        assert covered(fs.events[:position], mark), f"{mark!r} was acknowledged too early"


def covered(events: list[tuple[str, bytes | int]], mark: bytes) -> bool:
    """Return whether a sync began after the mark was written, and ended."""
    written = next(n for n, (kind, what) in enumerate(events) if kind == "write" and mark in bytes(what))
    begun = {what for kind, what in events[written:] if kind == "sync"}
    return any(kind == "synced" and what in begun for kind, what in events[written:])


# --- a busy loop

SPIN = 3_000
"""Turns of an empty loop in one callback: some 50 µs."""

MANY = 20_000
MOST_CALLBACKS = 800
"""Callbacks of the busy loop that a put with its ack may take on average: 40 in fact, and 2600 without a remedy."""


async def test_busy_loop_does_not_starve_a_sync(tmp_path: Path) -> None:
    """Callbacks back to back leave the interpreter to nobody; the sync's thread needs it to report."""
    loop = asyncio.get_running_loop()
    callbacks = 0
    busy = True

    def spin() -> None:
        nonlocal callbacks
        callbacks += 1
        for _ in range(SPIN):
            pass
        if busy:
            loop.call_soon(spin)

    puts = 30
    async with aiodq.open_queue(tmp_path, fs=QuickFileSystem()) as queue:
        await queue.put(b"warm")
        loop.call_soon(spin)
        try:
            for number in range(puts):
                await queue.put(b"%d" % number)
                await (await queue.get()).ack()
        finally:
            busy = False
    assert callbacks < puts * MOST_CALLBACKS


async def test_a_loop_that_waits_is_not_put_to_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What helps the sync's thread beside a busy loop would only hold up the others beside one that is not."""
    nudges, slept, spent, nudge = 0, 0, 0.0, WorkerThreads._nudge

    def counted(threads: WorkerThreads) -> None:
        nonlocal nudges
        nudges += 1
        nudge(threads)

    def sleep(_: float) -> None:
        nonlocal slept
        slept += 1

    async def nudged(number: int) -> None:
        nonlocal nudges
        nudges = 0
        await until(lambda: nudges >= number)

    fs = StallingFileSystem()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put(b"warm")
        monkeypatch.setattr(WorkerThreads, "_nudge", counted)
        # How much of the processor's time the loop takes, the test says: what is busy beside it is pytest, and `until`.
        monkeypatch.setattr(worker_threads, "time", SimpleNamespace(sleep=sleep, thread_time=lambda: spent))
        put = await stalled(fs, queue, b"x")
        await nudged(20)
        waiting = slept
        while slept < waiting + 4:  # a report of other work may come between
            spent += 2 * _HOGGED
            await nudged(1)
        fs.release()
        await put
    assert waiting == 0


async def test_putting_without_a_pause_leaves_turns_to_others(tmp_path: Path) -> None:
    """Puts and gets that need not wait give way all the same."""
    turns = 0
    busy = True

    async def tick() -> None:
        nonlocal turns
        while busy:
            turns += 1
            await asyncio.sleep(0)

    options = aiodq.StoreOptions(sync="os")
    async with aiodq.open_queue(tmp_path, options, fs=QuickFileSystem()) as queue:
        ticker = asyncio.create_task(tick())
        for number in range(MANY):
            await queue.put(b"%d" % number)
        after_puts = turns
        assert after_puts > 10
        for _ in range(MANY):
            (await queue.get()).ack_nowait()
        assert turns > after_puts + 10
        busy = False
        with suppress(asyncio.CancelledError):
            await ticker


class TickingClock(SystemClock):
    """A clock that goes on by a quarter of a millisecond whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.00025
        return self.now


async def test_a_thread_that_encodes_very_many_messages_gives_way_to_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep, pauses, spent, loop = time.sleep, list[float](), count(), threading.get_ident()

    def slept(seconds: float) -> None:
        if threading.get_ident() != loop:
            pauses.append(seconds)
        sleep(seconds)

    async with aiodq.open_queue(tmp_path) as queue:
        monkeypatch.setattr(time, "sleep", slept)
        monkeypatch.setattr(time, "thread_time", lambda: next(spent) / 100)  # whatever is done takes long
        await queue.put_many([b"x" * 100] * 1000)
        assert not pauses
        await queue.put_many([b"x" * 100] * 20_000)
        assert len(pauses) >= 20  # a frame holds a thousand
        assert max(pauses) < 0.001


async def test_taking_very_many_at_once_leaves_turns_to_others(tmp_path: Path) -> None:
    turns = 0
    busy = True

    async def tick() -> None:
        nonlocal turns
        while busy:
            turns += 1
            await asyncio.sleep(0)

    options = aiodq.StoreOptions(sync="os")
    async with aiodq.open(tmp_path, options, fs=QuickFileSystem(), clock=TickingClock()) as store:
        topic = store.topic("t")
        channel = topic.channel("c", aiodq.ChannelOptions(max_in_flight=MANY * 2))
        await topic.put_many([b"a"] * MANY * 2)
        await channel.ack_many([await channel.get()])
        ticker = asyncio.create_task(tick())
        before = turns
        messages = await channel.get_many(MANY * 2 - 1)
        assert len(messages) == MANY * 2 - 1
        assert turns >= before + 5
        busy = False
        await ticker


class Looks:
    """Counts the turns of the event loop, and how many messages a put looks at in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn = 0
        self.looked: Counter[int] = Counter()

        def noting(buffer: Any, options: aiodq.StoreOptions, items: list[Any], *others: Any) -> object:
            self.looked[self.turn] += len(items)
            return checked_items(buffer, options, items, *others)

        monkeypatch.setattr("aiodq.engine.batch.acceptance.checked_items", noting)

    async def go_on(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("end", ["put", "cancelled", "shut down", "refused"])
async def test_looking_at_very_many_drafts_leaves_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    looks = Looks(monkeypatch)
    async with aiodq.open_queue(tmp_path, fs=QuickFileSystem(), clock=FakeClock()) as queue:
        await queue.put(b"before")
        drafts = [aiodq.Draft(b"%d" % number, tag=str(number), key=b"k") for number in range(4 * _FEW + 1)]
        if end == "refused":
            drafts[-1] = aiodq.Draft(b"last", tag="x" * 100_000)
        turning = asyncio.create_task(looks.go_on())
        putting = asyncio.create_task(queue.put_many(drafts))
        while looks.looked.total() < 2 * _FEW and not putting.done() and end != "put":
            await asyncio.sleep(0)
        if end == "cancelled":
            putting.cancel()
        elif end == "shut down":
            queue.shutdown()
        if end == "put":
            assert await putting == range(1, len(drafts) + 1)
            found = [(message.body, message.tag, message.key) async for message in queue.scan()][1:]
            assert found == [(draft.body, draft.tag, draft.key) for draft in drafts]
        else:
            with pytest.raises((asyncio.CancelledError, aiodq.QueueShutDown, aiodq.InvalidMessageError)):
                await putting
            assert queue.end_offset == 1
        turning.cancel()
        assert 0 < max(looks.looked.values()) <= _FEW


async def test_of_those_who_get_in_one_turn_one_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a commit that a hundred consumers waited for: the others are handed what that one has found."""
    looks = 0
    take = ChannelEngine.take

    def counted(channel_engine: ChannelEngine[Any], *args: Any, **others: Any) -> object:
        nonlocal looks
        looks += 1
        return take(channel_engine, *args, **others)

    clock = FakeClock()
    async with aiodq.open_queue(tmp_path, fs=QuickFileSystem(), clock=clock) as queue:
        await queue.put_many([b"%d" % number for number in range(900)])
        assert len(await queue.get_many(800)) == 800  # of so many, not each is measured by now
        clock.advance(0.01)
        monkeypatch.setattr(ChannelEngine, "take", counted)
        messages = await asyncio.gather(*(asyncio.create_task(queue.get()) for _ in range(10)))
        monkeypatch.undo()
        assert [int(message.body) for message in messages] == list(range(800, 810))
    assert 0 < looks <= 5


@pytest.mark.parametrize("most", [20, 150, 1000])
async def test_batches_are_handed_out_in_order(tmp_path: Path, most: int) -> None:
    """Whoever returns first has what comes first, also where each of those who take batches gives way."""
    taken: list[int] = []

    async def consume(queue: aiodq.Queue) -> None:
        while len(taken) < 900:
            messages = await queue.get_many(most)
            taken.extend(message.offset for message in messages)
            await queue.ack_many(messages)

    async with aiodq.open_queue(tmp_path, fs=QuickFileSystem(), clock=TickingClock()) as queue:
        for first in range(0, 900, 9):
            await queue.put_many([b"%d" % number for number in range(first, first + 9)])
        async with asyncio.timeout(WATCHDOG), asyncio.TaskGroup() as consumers:
            tasks = [consumers.create_task(consume(queue)) for _ in range(3)]
            await queue.join()
            for task in tasks:
                task.cancel()
    assert taken == list(range(900))


@pytest.mark.parametrize("number", [10, 50])
async def test_tasks_that_put_at_once_are_written_in_the_order_of_their_calls(tmp_path: Path, number: int) -> None:
    """Also where the turn of the loop takes so long that one who went on putting would give way to others."""
    options = aiodq.StoreOptions(sync="os")
    async with aiodq.open_queue(tmp_path, options, fs=QuickFileSystem(), clock=TickingClock()) as queue:
        for _ in range(3):
            await queue.put(b"the first ones make the topic")
        for _ in range(5):
            first = queue.end_offset
            offsets = await asyncio.gather(*(queue.put(b"%d" % each) for each in range(number)))
            assert offsets == list(range(first, first + number))


@pytest.mark.parametrize(
    "step", ["aiodq.engine.store.taking_over._start_topic", "aiodq.engine.topic.commit.io_loop.IoLoop.begin"]
)
async def test_a_store_of_many_topics_is_opened_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
        await asyncio.gather(*(store.queue(f"t{number}").put(b"%d" % number) for number in range(20)))
    place, _, name = step.rpartition(".")
    holder = pkgutil.resolve_name(place)
    does, steps, seen = getattr(holder, name), [0], [0]

    def counted(*args: Any) -> Any:
        steps[0] += 1
        return does(*args)

    async def watch() -> None:
        while seen[-1] < 20:
            await asyncio.sleep(0)
            seen.append(steps[0])

    monkeypatch.setattr(holder, name, counted)
    monkeypatch.setattr("aiodq.engine.store.store_engine._LONGEST_TURN", 0.0)
    async with asyncio.timeout(WATCHDOG), asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
            bodies = [(await store.queue(f"t{number}").get()).body for number in range(20)]
    assert bodies == [b"%d" % number for number in range(20)]
    assert max(after - before for before, after in pairwise(seen)) == 1


async def test_an_opening_that_is_given_up_amid_its_topics_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
        for number in range(5):
            queue = store.queue(f"t{number}")
            await queue.put(b"x", delay=3600)
    monkeypatch.setattr("aiodq.engine.store.store_engine._LONGEST_TURN", 0.0)
    started, begun = _start_topic, list[str]()

    def counted(store: Any, name: str, *args: Any) -> Any:
        begun.append(name)
        return started(store, name, *args)

    monkeypatch.setattr("aiodq.engine.store.taking_over._start_topic", counted)
    opening = asyncio.create_task(aiodq.open(tmp_path, fs=QuickFileSystem()))
    async with asyncio.timeout(WATCHDOG):
        while len(begun) < 3:
            await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert len(begun) == 3
    async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
        assert [store.queue(name).deferred() for name in store.topics()] == [1] * 5
