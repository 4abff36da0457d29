"""What a put, a get and an ack do is as much with many segments, channels and topics as with one.

Counted are the interpreter's instructions in functions of aiodq on the loop's thread, so that a loop over all segments
shows even where it calls nothing. No clock decides anything (see `counts.py`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest

import aiodq
from aiodq.delivery import stale_heap
from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.deferrals import Deferrals
from aiodq.delivery.leases import Lease
from aiodq.delivery.range_set import RangeSet
from aiodq.delivery.stale_heap import StaleHeap
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.channel.source.requeue_cache import RequeueCache
from aiodq.engine.loop.futures import MOST_AT_ONCE
from aiodq.engine.topic.retention.consumption import Consumption
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.testing import FakeClock, WatchedFileSystem
from tests.system.counts import PACKAGE, CountingLoop, compiled
from tests.system.support import QuickFile, QuickFileSystem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
    from pathlib import Path
    from types import CodeType, FrameType

    from aiodq.storage.io.filesystem import File
    from aiodq.storage.state.channel_journal import ChannelJournal

pytestmark = pytest.mark.skipif(compiled(), reason="what is compiled has no instructions to count")

ROOM = 64_000
"""Bytes of a segment: one of FILL, or a few hundred of SMALL."""
FILL = b"x" * 60_000
SMALL = b"x" * 20
TIMES = 100
PUTS = 512
FEW = 20
"""So many that what is looked at every few hundred puts only counts, too."""
KEEP = aiodq.Retention(consumed="keep", max_age=3600, max_bytes=1 << 30, max_segments=1000)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bounded": {"max_bytes": 1 << 25, "max_messages": 100_000},
    "kept": {"retention": KEEP},
}


class Effort:
    """Counts instructions between `begin` and `end`."""

    def __init__(self, loop: CountingLoop) -> None:
        self._loop = loop
        self._count = 0

    async def of(self, call: Callable[[], Awaitable[object]], times: int = TIMES) -> float:
        """Return the instructions of one call, as a mean."""
        self._count = 0
        self._loop.stop_clock()
        try:
            with self._counting():
                for _ in range(times):
                    await call()
        finally:
            self._loop.start_clock()
        return self._count / times

    @contextmanager
    def _counting(self) -> Iterator[None]:
        if sys.version_info >= (3, 12):
            # A trace function may miss the first calls of a function there.
            monitoring = sys.monitoring
            tool, event = monitoring.DEBUGGER_ID, monitoring.events.INSTRUCTION
            thread = threading.get_ident()

            def count(code: CodeType, _: int) -> Any:
                if not code.co_filename.startswith(PACKAGE):
                    return monitoring.DISABLE
                self._count += threading.get_ident() == thread
                return None

            monitoring.use_tool_id(tool, "effort")
            monitoring.register_callback(tool, event, count)
            monitoring.set_events(tool, event)
            try:
                yield
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)
        else:
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._count += 1
        return self._trace


def counted(main: Callable[[Effort], Coroutine[Any, Any, dict[str, float]]]) -> dict[str, float]:
    """Return what `main` has counted, on a loop whose clock can be stopped."""
    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(Effort(loop)))


def opened(path: Path, fs: QuickFileSystem | None = None, **options: Any) -> aiodq.StoreOpening:
    """Open a store whose segments have room for one FILL."""
    chosen = aiodq.StoreOptions(sync="os", segment_bytes=ROOM, **options)
    return aiodq.open(path, chosen, fs=fs or QuickFileSystem(), clock=FakeClock())


async def fill(topic: aiodq.Topic, segments: int, channels: int) -> None:
    """Let a topic have so many full segments, so many channels, and one more that will have none of it."""
    for number in range(channels):
        topic.channel(f"c{number}", aiodq.ChannelOptions(max_in_flight=1_000_000))
    topic.channel("slow")
    for _ in range(segments):
        await topic.put(FILL)
    await topic.put_many([SMALL] * 400)  # more than are measured before some are picked
    await topic.sync()


async def calls(effort: Effort, topic: aiodq.Topic) -> dict[str, float]:
    """Return what each kind of call costs, in a segment that has room for all of it."""
    channel = topic.channel("c0")
    await topic.sync()
    for _ in range(TIMES):
        await asyncio.sleep(0)  # what each topic's tasks begin with is not a put's
    await topic.put_many([SMALL] * TIMES)  # nor is the look at all channels once they are there
    found = {
        "put": await effort.of(lambda: topic.put(SMALL), PUTS),
        "put_many": await effort.of(lambda: topic.put_many([SMALL] * 5)),
    }
    while channel.qsize():
        await channel.ack_many(await channel.get_many(1000))
    await topic.sync()
    await topic.put_many([SMALL] * TIMES)
    messages: list[aiodq.Message] = []

    async def get() -> None:
        messages.append(await channel.get())

    async def ack() -> None:
        messages.pop(0).ack_nowait()

    found["get"] = await effort.of(get)
    found["ack"] = await effort.of(ack)
    return found


def costs(path: Path, options: str, *, segments: int = 1, channels: int = 1, topics: int = 1) -> dict[str, float]:
    """Return what each kind of call costs in a store of that size."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path, **OPTIONS[options]) as store:
            for number in range(1, topics):
                await fill(store.topic(f"t{number}"), 0, 1)
            await fill(store.topic("t"), segments, channels)
        # Opened again, so that nothing is in memory in either case.
        async with opened(path, **OPTIONS[options]) as store:
            return await calls(effort, store.topic("t"))

    return counted(main)


def alike(few: dict[str, float], many: dict[str, float]) -> None:
    """Check that growth costs nothing, but for a step or two of a search in what is in order."""
    for kind, before in few.items():
        assert many[kind] <= max(1.02 * before, before + 12), f"{kind}: {few}, with many {many}"


@pytest.fixture(scope="module")
def with_few(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, float]]:
    """Return what tells the costs in a store with one of everything; it counts once for each kind of options."""
    return cache(lambda options: costs(tmp_path_factory.mktemp("few"), options))


@pytest.mark.parametrize("options", OPTIONS)
def test_with_many_segments(options: str, with_few: Callable[[str], dict[str, float]], tmp_path: Path) -> None:
    alike(with_few(options), costs(tmp_path, options, segments=200))


def test_with_many_topics(with_few: Callable[[str], dict[str, float]], tmp_path: Path) -> None:
    alike(with_few("plain"), costs(tmp_path, "plain", topics=60))


@pytest.mark.parametrize("options", OPTIONS)
def test_with_many_channels(options: str, with_few: Callable[[str], dict[str, float]], tmp_path: Path) -> None:
    """Nobody waits in them: they look at the log's end themselves, and a put tells none of them."""
    alike(with_few(options), costs(tmp_path, options, channels=30))


def namings(path: Path, channels: int) -> dict[str, float]:
    """Return what it costs to name a channel that is new, and one that is there, beside so many."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path) as store:
            topic = store.topic("t")
            for number in range(channels):
                topic.channel(f"c{number}")
            numbers = iter(range(channels, channels + TIMES))

            async def new() -> None:
                topic.channel(f"c{next(numbers)}")

            async def again() -> None:
                topic.channel("c0")

            return {"new": await effort.of(new), "again": await effort.of(again)}

    return counted(main)


def test_naming_a_channel_among_many(tmp_path: Path) -> None:
    alike(namings(tmp_path / "few", 1), namings(tmp_path / "many", 150))


def changes(path: Path, channels: int) -> dict[str, float]:
    """Return what it costs the loop to change one channel beside so many."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path) as store:
            topic = store.topic("t")
            for number in range(channels + TIMES):
                topic.channel(f"c{number}")
            await topic.put_many([SMALL] * 10)
            await topic.sync()
            channel, numbers = topic.channel("c0"), iter(range(channels, channels + TIMES))

            async def delete() -> None:
                await topic.delete_channel(f"c{next(numbers)}")

            return {
                "sync": await effort.of(topic.sync),
                "settle in": await effort.of(topic.settle_in),
                "seek": await effort.of(lambda: channel.seek("earliest")),
                "configure": await effort.of(lambda: channel.configure(aiodq.ChannelOptions(max_in_flight=7))),
                "delete": await effort.of(delete),
            }

    return counted(main)


def test_changing_a_channel_among_many(tmp_path: Path) -> None:
    few, many = changes(tmp_path / "few", 1), changes(tmp_path / "many", 150)
    for kind, before in few.items():  # how many turns of the loop a thread takes is not always the same
        assert many[kind] <= 1.25 * before, f"{kind}: {few}, with many {many}"


async def test_channels_are_created_together_although_each_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, add = list[int](), TopicDescription.add_channels

    def counting(made: TopicDescription, channels: Any, *rest: Any) -> None:
        written.append(len(channels))
        add(made, channels, *rest)

    monkeypatch.setattr(TopicDescription, "add_channels", counting)
    async with opened(tmp_path) as store:
        topic, busy = store.topic("t"), threading.Event()
        await topic.put(SMALL)
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(topic._engine.operate(busy.wait))]
        await asyncio.sleep(0)
        for number in range(20):
            topic.channel(f"c{number}")
            waiting.append(asyncio.ensure_future(topic.settle_in()))
            await asyncio.sleep(0)
        busy.set()
        await asyncio.gather(*waiting)
        assert [topic.channel(f"c{number}").qsize() for number in (0, 19)] == [1, 0]
    assert written == [20]


class Watched(QuickFileSystem):
    """Counts what a thread opens to read, and reads, of segments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._thread = threading.get_ident()

    def called(self, path: str) -> None:
        """A file is opened or read."""
        self.calls += path.endswith(".seg") and threading.get_ident() == self._thread

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if not write and not create:
            self.called(path)
        return _WatchedFile(self, path, super().open(path, write=write, create=create))


class _WatchedFile(QuickFile):
    def __init__(self, fs: Watched, path: str, file: File) -> None:
        super().__init__(file)

        def read_at(size: int, position: int) -> bytes:
            fs.called(path)
            return file.read_at(size, position)

        self.read_at = read_at


def refusals(path: Path, segments: int) -> dict[str, float]:
    """Return what a put costs that finds so many full segments before the slowest channel, and is refused."""
    part = FILL[: len(FILL) // 4]
    most = (segments + 1) * ROOM

    async def main(effort: Effort) -> dict[str, float]:
        fs = Watched()
        async with opened(path, fs, max_bytes=most, overflow="reject") as store:
            topic = store.topic("t")
            channel, other = topic.channel("c"), topic.channel("other")
            for _ in range(4 * segments + 1):
                await topic.put(part)
            for one in (channel, other):
                # Into the middle of a full segment, so that its index is asked for as soon as that matters.
                await one.ack_many(await one.get_many(2))
            await channel.ack_many([await channel.get()])
            messages = [await channel.get() for _ in range(3)]

            async def refused() -> None:
                with pytest.raises(aiodq.QueueFull):
                    topic.put_nowait(part)

            async def ack() -> None:
                messages.pop(0).ack_nowait()

            await topic.sync()
            fs.calls = 0
            with pytest.raises(aiodq.QueueFull):
                while True:
                    await topic.put(part)
            while None in topic._engine.put_buffer.bound._indexes.values():
                await asyncio.sleep(0.001)
            held = max(channel.depth, other.depth) * len(part)
            assert 0.99 * most - len(part) < held <= most
            found = {"put": await effort.of(refused), "ack": await effort.of(ack, 3)}
            assert fs.calls == 0
            return found

    return counted(main)


@pytest.mark.parametrize("segments", [10, 200])
def test_at_the_bound_in_bytes(segments: int, tmp_path: Path) -> None:
    alike(refusals(tmp_path / "few", 2), refusals(tmp_path / "many", segments))


def droppings(path: Path, flying: int, *, apart: bool) -> dict[str, float]:
    """Return what a put costs that has the oldest message dropped which nobody has in hand, behind so many."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path, max_messages=1500, overflow="drop_oldest") as store:
            topic = store.topic("t")
            channel = topic.channel("c", aiodq.ChannelOptions(max_in_flight=10_000))
            await topic.put_many([SMALL] * 1500)
            held: list[aiodq.Message] = []
            while len(held) < flying:
                held += await channel.get_many(min(flying - len(held), 1000))
            for message in held if apart else ():
                await message.touch()
            await topic.put(SMALL)
            return {"put": await effort.of(lambda: topic.put(SMALL))}

    return counted(main)


@pytest.mark.parametrize("apart", [False, True])
def test_dropping_behind_many_in_flight(apart: bool, tmp_path: Path) -> None:
    alike(droppings(tmp_path / "few", 400, apart=apart), droppings(tmp_path / "many", 800, apart=apart))


def test_dropping_very_many_at_once() -> None:
    """Those in flight among them are passed over, and the others go in runs."""

    async def main(effort: Effort) -> dict[str, float]:
        state = ChannelState(0, 10**6, 10**6)
        for offset in range(0, 5000, 50):
            state.pick(offset)

        async def drop() -> None:
            assert len(state.drop(20_000)) == 20_000

        return {"drop": await effort.of(drop, 1)}

    assert counted(main)["drop"] < 40 * 20_000


def takings(path: Path, leases: int, *, by_queue: bool) -> dict[str, float]:
    """Count what it takes to put some messages and to take them, with that many leases of such in hand."""

    async def main(effort: Effort) -> dict[str, float]:
        async with aiodq.open(path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem(), clock=FakeClock()) as store:
            topic, options = store.topic("jobs"), aiodq.ChannelOptions(max_in_flight=10**6)
            # A queue knows which task has which message.
            channel = store.queue("jobs", options) if by_queue else topic.channel("c", options)

            async def take() -> None:
                await topic.put_many([SMALL] * FEW)
                messages.append(await channel.get_many(FEW))

            messages: list[list[aiodq.Message]] = []
            for _ in range(leases):
                await take()
            return {"take": await effort.of(take)}

    return counted(main)


@pytest.mark.parametrize("by_queue", [False, True])
def test_taking_with_many_leases_in_hand(by_queue: bool, tmp_path: Path) -> None:
    alike(takings(tmp_path / "few", 100, by_queue=by_queue), takings(tmp_path / "many", 200, by_queue=by_queue))


def timings(leases: int) -> dict[str, float]:
    """Count what it takes to ask for the next deadline, to look for what is late, and to begin a lease, among many."""

    async def main(effort: Effort) -> dict[str, float]:
        state = ChannelState(0, 10**6, 10**6)

        async def begin() -> None:
            lease = Lease(state.fresh(), FEW, 10**9)
            state.begin(lease)
            state.reach(lease)
            lease.next, lease.last = FEW, lease.number
            state.close_lease()

        async def next_moment() -> None:
            state.next_moment()

        async def tick() -> None:
            assert state.tick(1) == ([], [])

        for _ in range(leases):
            await begin()
        return {"next": await effort.of(next_moment), "tick": await effort.of(tick), "begin": await effort.of(begin)}

    return counted(main)


def test_the_next_deadline_among_many_leases() -> None:
    alike(timings(200), timings(2000))


def longest_touch(flying: int) -> dict[str, float]:
    """Count what the longest of very many touches takes, and then to ask for the next deadline."""

    async def main(effort: Effort) -> dict[str, float]:
        state = ChannelState(0, 10**6, 10**6)
        for offset in range(flying):
            state.deliver(offset, 100)
        moments = iter(range(100, 10**6))

        async def touch() -> None:
            moment = next(moments)
            state.touch(moment % flying, moment)

        async def next_moment() -> None:
            state.next_moment()

        longest = max([await effort.of(touch, 1) for _ in range(3 * flying)])
        for offset in range(flying):
            state.touch(offset, 10**6)
        return {"touch": longest, "next": await effort.of(next_moment, 1)}

    return counted(main)


@pytest.fixture
def _few_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look drops a fifth of what it may, so that far more are stale where there are not very many."""
    monkeypatch.setattr(stale_heap, "_MOST_STALE", 200)


@pytest.mark.usefixtures("_few_stale")
def test_no_touch_among_very_many_takes_long() -> None:
    alike(longest_touch(1000), longest_touch(1500))


def longest_deferral(deferred: int) -> dict[str, float]:
    """Count what the longest of very many deferrals takes, and then to ask for the next moment."""

    async def main(effort: Effort) -> dict[str, float]:
        deferrals, moments = Deferrals(), iter(range(10**6))

        async def defer() -> None:
            moment = next(moments)
            deferrals.add(moment % deferred, moment)

        async def next_moment() -> None:
            deferrals.next()

        longest = max([await effort.of(defer, 1) for _ in range(4 * deferred)])
        return {"defer": longest, "next": await effort.of(next_moment, 1)}

    return counted(main)


@pytest.mark.usefixtures("_few_stale")
def test_no_deferral_among_very_many_takes_long() -> None:
    alike(longest_deferral(600), longest_deferral(1200))


def expirings(flying: int) -> dict[str, float]:
    """Count what it takes to settle expired messages, with so many others in hand, in leases and apart from them."""

    async def main(effort: Effort) -> dict[str, float]:
        state = ChannelState(0, 10**6, 10**6)
        for _ in range(flying // 1000):
            lease = Lease(state.fresh(), 500, 10**9)
            state.begin(lease)
            state.reach(lease)
            lease.next = 500
            state.close_lease()
            for _ in range(500):
                state.deliver(state.fresh())
        starts = iter(range(500_000, 10**6, 20))

        async def expire() -> None:
            start = next(starts)
            assert state.expire_ranges([(start, start + 5), (start + 10, start + 15)]) == []

        return {"expire": await effort.of(expire)}

    return counted(main)


def test_what_expires_beside_many_in_flight() -> None:
    alike(expirings(1000), expirings(10_000))


def droppings_of_expired(kept: int) -> dict[str, float]:
    """Count what it takes to drop expired messages that are in memory beside so many others."""

    async def main(effort: Effort) -> dict[str, float]:
        cache = RequeueCache()
        for offset in range(kept):
            cache.keep(Batch(offset, 0, Columns([SMALL])))
        starts = iter(range(0, kept, 10))

        async def drop() -> None:
            start = next(starts)
            cache.discard_within([(start, start + 5)])
            assert start not in cache
            assert start + 5 in cache

        return {"drop": await effort.of(drop)}

    return counted(main)


def test_what_expires_in_memory_beside_many_others() -> None:
    alike(droppings_of_expired(1000), droppings_of_expired(10_000))


def closings(path: Path, flying: int) -> float:
    """Count what it takes to close a store with so many messages in flight."""

    async def main(effort: Effort) -> dict[str, float]:
        store = await aiodq.open(path, aiodq.StoreOptions(sync="os"), fs=QuickFileSystem(), clock=FakeClock())
        topic = store.topic("jobs")
        channel = topic.channel("c", aiodq.ChannelOptions(max_in_flight=10**6))
        await topic.put_many([SMALL] * 10_000)
        messages: list[aiodq.Message] = []
        while len(messages) < flying:
            messages += await channel.get_many(1000)
        return {"close": await effort.of(store.aclose, 1)}

    return counted(main)["close"]


def test_closing_with_many_in_flight(tmp_path: Path) -> None:
    assert closings(tmp_path / "many", 9000) - closings(tmp_path / "few", 1000) < 8000 / 2


class _Compared(asyncio.Future[Any]):
    """Counts how often one is compared with another: so that a search shows that is not in Python."""

    times = 0

    def __eq__(self, other: object) -> bool:
        type(self).times += 1
        return self is other

    __hash__ = asyncio.Future.__hash__


@pytest.mark.parametrize("line", ["getters", "putters", "joiners"])
async def test_whoever_gives_up_waiting_is_not_searched_for(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_future", lambda: _Compared(loop=loop))
    async with opened(tmp_path, max_messages=1) as store:
        topic = store.topic("t")
        channel = topic.channel("c")
        if line != "getters":
            await topic.put(SMALL)
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "getters": channel.get,
            "putters": lambda: topic.put(SMALL),
            "joiners": channel.join,
        }
        waiting = [asyncio.ensure_future(calls[line]()) for _ in range(200)]
        for _ in range(TIMES):
            await asyncio.sleep(0)
        _Compared.times = 0
        for each in reversed(waiting):
            each.cancel()
        await asyncio.wait(waiting)
        assert all(each.cancelled() for each in waiting)
        assert _Compared.times <= 2 * len(waiting)


class _Settled(asyncio.Future[Any]):
    """Notes in which turn of the loop each one is settled."""

    turn = 0
    turns: ClassVar[Counter[int]] = Counter()

    def set_result(self, result: Any) -> None:
        self.turns[self.turn] += 1
        super().set_result(result)

    def set_exception(self, exception: Any) -> None:
        self.turns[self.turn] += 1
        super().set_exception(exception)


def _take_turns(loop: asyncio.AbstractEventLoop) -> None:
    _Settled.turn += 1
    loop.call_soon(_take_turns, loop)


WAITING: dict[str, Callable[[aiodq.Store, Any], Coroutine[Any, Any, object]]] = {
    "getters": lambda _, jobs: jobs.get(),
    "joiners": lambda _, jobs: jobs.join(),
    "putters": lambda _, jobs: jobs.put(SMALL),
    "listeners": lambda store, _: anext(store.events(), None),
}


@pytest.mark.parametrize("line", WAITING)
async def test_very_many_who_wait_are_told_some_in_each_turn(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with opened(tmp_path, max_messages=1) as store:
        jobs = store.queue("t")
        if line != "getters":
            await jobs.put(SMALL)
        _take_turns(loop)
        monkeypatch.setattr(loop, "create_future", lambda: _Settled(loop=loop))
        waiting = [asyncio.ensure_future(WAITING[line](store, jobs)) for _ in range(3 * MOST_AT_ONCE)]
        await asyncio.sleep(0)
        _Settled.turns.clear()
        await store.aclose()
        await asyncio.gather(*waiting, return_exceptions=True)  # or the loop would report each error that nobody took
        assert _Settled.turns.total() >= len(waiting)
        assert max(_Settled.turns.values()) < 1.1 * MOST_AT_ONCE


async def test_very_many_getters_are_woken_some_in_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with opened(tmp_path) as store:
        jobs = store.queue("t", aiodq.ChannelOptions(max_in_flight=10_000))
        await jobs.put(SMALL)
        await (await jobs.get()).ack()
        _take_turns(loop)
        monkeypatch.setattr(loop, "create_future", lambda: _Settled(loop=loop))
        waiting = [asyncio.ensure_future(jobs.get()) for _ in range(3 * MOST_AT_ONCE)]
        await asyncio.sleep(0)
        _Settled.turns.clear()
        await jobs.put_many([SMALL] * len(waiting))
        assert [message.offset for message in await asyncio.gather(*waiting)] == list(range(1, len(waiting) + 1))
        assert max(_Settled.turns.values()) < 1.1 * MOST_AT_ONCE


async def test_very_many_getters_of_many_channels_are_woken_some_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with opened(tmp_path) as store:
        topic = store.topic("t")
        channels = [topic.channel(f"c{number}") for number in range(MOST_AT_ONCE // 20)]
        await topic.put(SMALL)
        for channel in channels:
            await (await channel.get()).ack()
        _take_turns(loop)
        monkeypatch.setattr(loop, "create_future", lambda: _Settled(loop=loop))
        waiting = [asyncio.ensure_future(channel.get()) for channel in channels for _ in range(60)]
        for _ in range(TIMES):
            await asyncio.sleep(0)
        _Settled.turns.clear()
        await topic.put_many([SMALL] * 60)
        found = await asyncio.gather(*waiting)
        assert [message.offset for message in found] == list(range(1, 61)) * len(channels)
        assert max(_Settled.turns.values()) < 1.1 * MOST_AT_ONCE


@pytest.mark.parametrize("sync", ["os", "always"])
async def test_very_many_who_put_are_told_some_in_each_turn(
    sync: Literal["os", "always"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    options = aiodq.StoreOptions(sync=sync, sync_backend="thread")
    async with aiodq.open(tmp_path, options, fs=QuickFileSystem()) as store:
        topic = store.topic("t")
        await topic.put(SMALL)
        _take_turns(loop)
        monkeypatch.setattr(loop, "create_future", lambda: _Settled(loop=loop))
        receipt = topic.put_nowait(SMALL)
        waiting = [asyncio.ensure_future(topic.put(SMALL)) for _ in range(3 * MOST_AT_ONCE)]
        last = asyncio.ensure_future(asyncio.sleep(0, lambda: topic.put_nowait(SMALL)))
        _Settled.turns.clear()
        later = (await last)()
        await topic.sync()
        assert (receipt.done(), later.done()) == (True, True)
        assert sorted(await asyncio.gather(*waiting)) == [*range(2, 3 * MOST_AT_ONCE + 2)]
        assert max(_Settled.turns.values()) < 1.1 * MOST_AT_ONCE


async def test_very_many_delays_are_entered_some_in_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, add_all = Counter[int](), StaleHeap.add_all

    def counting(heap: StaleHeap[Any], entries: list[Any], live: int) -> None:
        entered[_Settled.turn] += len(entries)
        add_all(heap, entries, live)

    monkeypatch.setattr(StaleHeap, "add_all", counting)
    async with opened(tmp_path) as store:
        topic = store.topic("t")
        channel = topic.channel("c")
        await topic.put_many([SMALL])
        _take_turns(asyncio.get_running_loop())
        await topic.put_many([aiodq.Draft(b"", delay=100 + number % 977) for number in range(3500)])
        assert (channel.deferred(), channel.qsize()) == (3500, 1)
        while entered.total() < 3500:
            await asyncio.sleep(0)
        assert max(entered.values()) <= 1000
        assert (channel.deferred(), channel.qsize()) == (3500, 1)


async def test_opening_gives_way_between_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store:
        for number in range(50):
            store.topic("t").channel(f"c{number}")
    monkeypatch.setattr("aiodq.engine.store.store_engine._LONGEST_TURN", 0)
    _take_turns(asyncio.get_running_loop())
    attached, attach = Counter[int](), ChannelEngine.attach

    def counting(engine: ChannelEngine[Any], journal: ChannelJournal, state: ChannelState) -> None:
        attached[_Settled.turn] += 1
        attach(engine, journal, state)

    monkeypatch.setattr(ChannelEngine, "attach", counting)
    async with opened(tmp_path):
        assert (attached.total(), max(attached.values())) == (50, 1)


async def test_deleting_a_topic_writes_nothing_about_its_channels(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with aiodq.open(tmp_path, fs=fs) as store:
        topic = store.topic("t")
        channels = [topic.channel(f"c{number}") for number in range(20)]
        await topic.put(SMALL)
        for channel in channels:
            await (await channel.get()).ack()
        fs.reset()
        await store.delete_topic("t")
        assert fs.calls["sync"] + fs.calls["sync_directory"] < 10


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_scan_gives_way_amid_what_was_read_at_once(
    mode: Literal["exclusive", "shared"], reverse: bool, tmp_path: Path
) -> None:
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), mode=mode) as store:
        topic, turns = store.topic("t"), Counter[int]()
        await topic.put_many([b"x"] * 6000)
        _take_turns(asyncio.get_running_loop())
        async for _ in topic.scan(reverse=reverse):
            turns[_Settled.turn] += 1
        assert (turns.total(), max(turns.values())) == (6000, 250)


def looks(path: Path, segments: int) -> dict[str, float]:
    """Count what it takes to tell the statistics of a topic with many channels that hold so many segments."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path) as store:
            topic = store.topic("t")
            await fill(topic, segments, 100)

            async def look() -> None:
                assert len(topic.stats().held) >= segments

            return {"stats": await effort.of(look, 1)}

    return counted(main)


def test_statistics_of_many_segments_that_many_channels_hold(tmp_path: Path) -> None:
    """Each channel and each segment has its cost, not each segment for each channel."""
    few, many = looks(tmp_path / "few", 10)["stats"], looks(tmp_path / "many", 60)["stats"]
    assert many - few < 50 * 100


async def test_giving_up_many_segments_is_a_step_for_each_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, miss = Counter[ChannelState](), ChannelState.miss

    def counting(state: ChannelState, start: int, stop: int) -> int:
        missing[state] += 1
        return miss(state, start, stop)

    monkeypatch.setattr(ChannelState, "miss", counting)
    async with opened(tmp_path) as store:
        topic = store.topic("t")
        await fill(topic, 30, 5)
        policy = aiodq.Retention(consumed="keep", unconsumed="delete", max_segments=2)
        await topic.configure(aiodq.StoreOptions(retention=policy))
        while topic.stats().segments > 2:
            await asyncio.sleep(0)
        assert topic.channel("c0").stats().dropped >= 29
        assert max(missing.values()) < 6


def deletions(path: Path, segments: int, channels: int) -> float:
    """Count what it takes to judge so many segments that all of so many channels have passed."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path) as store:
            topic = store.topic("t")
            await fill(topic, segments, channels)
            for one in topic._engine.channel_engines.values():
                assert one.state is not None
                one.state.purge()

            async def judge() -> None:
                retention = topic._engine.retention
                verdict = retention._going({}, cache(retention._consumption))
                assert verdict is not None
                assert len(verdict.segments) == segments

            return {"judge": await effort.of(judge, 1)}

    return counted(main)["judge"]


def test_judging_many_segments_that_many_channels_have_passed(tmp_path: Path) -> None:
    """Each channel and each segment has its cost, not each segment for each channel."""
    few, many = deletions(tmp_path / "few", 10, 100), deletions(tmp_path / "many", 60, 100)
    assert many - few < 50 * 200


async def test_taking_from_very_many_segments_at_once_gives_way(tmp_path: Path) -> None:
    """They are small, and what is read of them on the loop is little, but each has a file that is opened."""
    size = aiodq.StoreOptions(sync="os", segment_bytes=4096)
    async with aiodq.open(tmp_path, size, fs=QuickFileSystem()) as store:
        topic = store.topic("t")
        topic.channel("c")
        for _ in range(300):
            await topic.put(FILL[:3000])
    async with aiodq.open(tmp_path, size) as store:
        channel = store.topic("t").channel("c")
        await channel.get()
        _take_turns(asyncio.get_running_loop())
        before = _Settled.turn
        assert len(await channel.get_many(250)) == 250
        assert _Settled.turn - before >= 7


def tellings(path: Path, listeners: int) -> dict[str, float]:
    """Count what it takes to tell so many listeners of an event."""

    async def main(effort: Effort) -> dict[str, float]:
        async with opened(path) as store:
            listening = [store.events() for _ in range(listeners)]

            async def tell() -> None:
                store._store_engine.reporter.tell(aiodq.Event("dead"))

            found = {"tell": await effort.of(tell)}
            assert [(await anext(events)).kind for events in listening] == ["dead"] * listeners
            return found

    return counted(main)


def test_telling_many_listeners(tmp_path: Path) -> None:
    alike(tellings(tmp_path / "few", 1), tellings(tmp_path / "many", 500))


async def test_a_tick_looks_at_each_channel_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many segments there are, and whether or not any may be deleted."""
    async with opened(tmp_path) as store:
        topic = store.topic("t")
        await fill(topic, 30, 5)
        engine, looked = topic._engine, Counter[str]()
        consumption = Consumption.__init__

        def counting(made: Consumption, states: Sequence[ChannelState]) -> None:
            looked["all"] += 1
            looked["each"] += len(states)
            consumption(made, states)

        monkeypatch.setattr(Consumption, "__init__", counting)
        engine.io_loop._ticked()
        assert 0 < looked["each"] == 6 * looked["all"] <= 6 * 2


async def test_few_segments_are_checked_at_a_time_in_very_many_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.engine.topic.retention.consumption._CHECKS", 100)
    async with opened(tmp_path) as store:
        topic = store.topic("t")
        await fill(topic, 40, 9)
        engine, settled_all, checked = topic._engine, ChannelState.settled_all, Counter[str]()
        states = [one.state for one in engine.channel_engines.values() if one.state is not None]
        for state in states:
            state.purge(1, 45)

        def counting(state: ChannelState, start: int, stop: int) -> bool:
            checked["all"] += 1
            return settled_all(state, start, stop)

        monkeypatch.setattr(ChannelState, "settled_all", counting)
        await topic.sync()
        checked.clear()
        most = 0
        engine.retention.begin_round()
        while engine.log.listed.segments[1].base == 1:
            before = checked["all"]
            engine.retain_if_idle()
            most = max(most, checked["all"] - before)
            await asyncio.sleep(0)
        assert 0 < most <= 3 * 100


async def test_scattered_messages_that_a_transaction_acks_are_noted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is checked, but none is searched for or entered by itself."""
    calls, add, is_in_flight = Counter[str](), RangeSet.add, ChannelState.is_in_flight

    def adding(ranges: RangeSet, start: int, stop: int) -> int:
        calls["add"] += 1
        return add(ranges, start, stop)

    def searching(state: ChannelState, start: int, stop: int, delivery: int) -> bool:
        calls["search"] += 1
        return is_in_flight(state, start, stop, delivery)

    async with opened(tmp_path) as store:
        channel = store.topic("t").channel("c", aiodq.ChannelOptions(max_in_flight=10**6))
        await store.topic("t").put_many([SMALL] * 2000)
        held = await channel.get_many(2000)
        async with store.transaction() as transaction:
            monkeypatch.setattr(RangeSet, "add", adding)
            monkeypatch.setattr(ChannelState, "is_in_flight", searching)
            transaction.ack_many(held[:1000:2])
            transaction.ack_many(held[1::2])
            assert calls.total() < 10
            with pytest.raises(aiodq.AlreadySettledError):
                transaction.ack_many(held[996:1004])
            monkeypatch.undo()
        assert [message.settled for message in held] == [n < 1000 or n % 2 == 1 for n in range(2000)]


async def test_messages_that_a_transaction_gives_back_are_given_back_in_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in flight as before, and their timeout restarts; one that was taken away meanwhile stays so."""
    clock, looks, delivery = FakeClock(), 0, ChannelState.delivery

    def looking(state: ChannelState, offset: int) -> int | None:
        nonlocal looks
        looks += 1
        return delivery(state, offset)

    def full(*_: object) -> list[int]:
        monkeypatch.setattr(ChannelState, "delivery", looking)
        raise aiodq.DiskFullError("no space", "")

    options = aiodq.StoreOptions(sync="os")
    async with aiodq.open(tmp_path, options, fs=QuickFileSystem(), clock=clock) as store:
        channel = store.topic("t").channel("c", aiodq.ChannelOptions(max_in_flight=1000, visibility_timeout=10))
        await store.topic("t").put_many([SMALL] * 1000)
        messages = await channel.get_many(1000)
        clock.advance(6)
        with monkeypatch.context() as patched:
            patched.setattr(store._store_engine.committer._file, "append", full)
            with pytest.raises(aiodq.DiskFullError):
                async with store.transaction() as transaction:
                    transaction.ack_many(messages)
            assert looks < 20
        clock.advance(6)
        await asyncio.sleep(0)
        assert channel.in_flight() == 1000
        await channel.ack_many(messages[::2])
        clock.advance(5)
        while channel.stats().timed_out < 500:
            await asyncio.sleep(0)
        assert (channel.qsize(), channel.in_flight()) == (500, 0)
