"""What a put, a get and an ack cost, counted instead of timed: Python frames, futures, callbacks of the loop.

`python -m tests.system.counts` prints the table beside its ceilings and the goals; with `--ceilings`, ceilings for
what is counted now, to be put into `CEILINGS`. `test_counts.py` fails where a count is above its ceiling, and where it
is so far below that the ceiling holds nothing.

Counted on asyncio's own loop, which is written in Python: uvloop runs the same of aiodq, and hides what is the loop's.
The files are the machine's, without waiting for the device. No clock decides anything: the store's stands still, and so
does the loop's while something is counted, so that no timer rings. Only what a thread does at which moment is left to
the machine: a lone call is counted many times, a long run a few times, and the least is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import aiodq
from aiodq.shared.consuming import demand
from aiodq.shared.server.early_answers import EarlyAnswers
from aiodq.testing import FakeClock
from tests.system.support import QuickFileSystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from types import FrameType
    from typing import Literal

    Policy = Literal["always", "interval", "os"]
    Where = Literal["alone", "owner", "beside"]
    Row = Callable[["Meter", Path], Coroutine[Any, Any, "Count"]]

__all__ = ["CEILINGS", "FIELDS", "GOALS", "PACKAGE", "ROWS", "Count", "CountingLoop", "compiled", "count", "idle"]

PACKAGE: Final = os.path.dirname(aiodq.__file__) + os.sep
_TESTS: Final = str(Path(__file__).parents[1]) + os.sep
_BODY: Final = b"x" * 100
_LONE: Final = 40
"""Times a call of one producer or consumer is counted, of which the least is taken."""
_WARM: Final = 500
_MANY: Final = 4_000
"""Messages over which a cost a message is spread, after the first `_WARM`."""
_PRODUCERS: Final = 100
_BATCH: Final = 1000
_REPEATS: Final = 3
_SAY: Final = EarlyAnswers.send.__code__
"""What a thread does for the client whose put it has synced: the put ends with it."""


@dataclass(frozen=True)
class Count:
    """What was counted, of one call or as a mean a message.

    Attributes:
        frames: functions and coroutines of aiodq called or resumed, on the loop's thread.
        python: those of any module there, tests excepted.
        futures: futures and tasks made by the loop.
        callbacks: handed to `call_soon` and `call_soon_threadsafe`.
        threads: as `python`, in the store's own threads. What a thread does after it has reported may be missing.
    """

    frames: float
    python: float
    futures: float
    callbacks: float
    threads: float


FIELDS: Final = tuple(Count.__annotations__)


def least(counts: list[Count]) -> Count:
    """Return the smallest of each."""
    return Count(*(min(getattr(one, field) for one in counts) for field in FIELDS))


def most(counts: list[Count]) -> Count:
    """Return the greatest of each."""
    return Count(*(max(getattr(one, field) for one in counts) for field in FIELDS))


class CountingLoop(asyncio.SelectorEventLoop):
    """Asyncio's loop, that knows how many futures it made and how many callbacks it was given."""

    futures = callbacks = 0
    _stopped_at: float | None = None

    def time(self) -> float:
        return super().time() if self._stopped_at is None else self._stopped_at

    def stop_clock(self) -> None:
        """Let no timer ring from now on."""
        self._stopped_at = self.time()

    def start_clock(self) -> None:
        """Go on with the machine's time."""
        self._stopped_at = None

    def create_future(self) -> asyncio.Future[Any]:
        self.futures += 1
        return super().create_future()

    def create_task(self, *args: Any, **kwargs: Any) -> asyncio.Task[Any]:
        self.futures += 1
        return super().create_task(*args, **kwargs)

    def call_soon(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        self.callbacks += 1
        return super().call_soon(*args, **kwargs)

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        self.callbacks += 1
        return super().call_soon_threadsafe(*args, **kwargs)


class Meter:
    """Counts between `begin` and `end`; made within `_threads_watched`, before the store is opened."""

    def __init__(self, loop: CountingLoop) -> None:
        self._loop = loop
        self._on = False
        self._files: list[str] = []
        self._elsewhere: list[str] = []
        self._before = (0, 0)
        self._over = threading.Event()
        self._over.set()

    def begin(self) -> None:
        """Count from here on."""
        self._files.clear()
        self._elsewhere.clear()
        self._before = self._loop.futures, self._loop.callbacks
        self._loop.stop_clock()
        self._on = True
        sys.setprofile(self._here)

    def end(self, messages: int = 1) -> Count:
        """Count no more; return what there was, divided by that many."""
        sys.setprofile(None)
        self._on = False
        loop = self._loop
        loop.start_clock()
        total = (
            sum(name.startswith(PACKAGE) for name in self._files),
            sum(not name.startswith(_TESTS) for name in self._files),
            loop.futures - self._before[0],
            loop.callbacks - self._before[1],
            sum(not name.startswith(_TESTS) for name in self._elsewhere),
        )
        return Count(*(round(number / messages, 2) for number in total))

    async def lone(self, call: Callable[[], Awaitable[object]], times: int = _LONE) -> Count:
        """Count one call at a time; return the least."""
        counts = []
        for _ in range(times):
            self._over.clear()
            try:
                self.begin()
                await call()
                counts.append(self.end())
            finally:
                self._over.set()
            await asyncio.sleep(0.001)  # what a thread still has to report
        return least(counts)

    def elsewhere(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call in a thread."""
        if self._on and event == "call":
            self._elsewhere.append(frame.f_code.co_filename)
        elif event == "return" and frame.f_code is _SAY and frame.f_locals["put"].answered:
            # Or the loop would have its report to handle, too, whenever the thread is the faster. A put that the thread
            # could not answer ends with that report.
            self._over.wait()

    def _here(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._files.append(frame.f_code.co_filename)


class _Window:
    """Counts a stretch of a long run: begins at one step, ends at another."""

    def __init__(self, meter: Meter, first: int = _WARM, steps: int = _MANY) -> None:
        self._meter = meter
        self._first, self._steps = first, steps
        self._seen = 0
        self.count: Count | None = None

    def step(self) -> bool:
        """One more message is done; return whether the last one that counts is."""
        self._seen += 1
        if self._seen == self._first:
            self._meter.begin()
        elif self._seen == self._first + self._steps:
            self.count = self._meter.end(self._steps)
        return self.count is not None

    @property
    def result(self) -> Count:
        assert self.count is not None, f"{self._seen} steps"
        return self.count


# --- rows


def _options(sync: Policy, **others: Any) -> aiodq.StoreOptions:
    # The kernel cannot sync files that wait for no device.
    return aiodq.StoreOptions(sync=sync, sync_backend="thread", **others)


def _open(path: Path, options: aiodq.StoreOptions) -> aiodq.StoreOpening:
    return aiodq.open(path, options, fs=QuickFileSystem(), clock=FakeClock())


def _put(sync: Policy, **labels: Any) -> Row:
    async def row(meter: Meter, path: Path) -> Count:
        async with _open(path, _options(sync)) as store:
            topic = store.topic("t")
            await topic.put(_BODY)
            return await meter.lone(lambda: topic.put(_BODY, **labels))

    return row


async def _put_without_a_thread(meter: Meter, path: Path) -> Count:
    """Put as where the kernel syncs: on the machine's files, which wait for the device."""
    async with aiodq.open(path, aiodq.StoreOptions(sync_backend="aio"), clock=FakeClock()) as store:
        topic = store.topic("t")
        await topic.put(_BODY)
        return await meter.lone(lambda: topic.put(_BODY))


@asynccontextmanager
async def _open_as(where: Where, path: Path, options: aiodq.StoreOptions) -> AsyncIterator[aiodq.Store]:
    """Open a store: alone, as the owner of one that is shared, or beside that owner: then both ends are counted."""
    mode: Literal["exclusive", "shared"] = "exclusive" if where == "alone" else "shared"
    async with aiodq.open(path, options, fs=QuickFileSystem(), clock=FakeClock(), mode=mode) as store:
        if where != "beside":
            yield store
            return
        async with aiodq.open(path, options, clock=FakeClock(), mode="client") as client:
            yield client


def _put_shared(sync: Policy, where: Where) -> Row:
    async def row(meter: Meter, path: Path) -> Count:
        async with _open_as(where, path, _options(sync)) as store:
            topic = store.topic("t")
            for _ in range(3):
                await topic.put(_BODY)
            return await meter.lone(lambda: topic.put(_BODY))

    return row


def _put_by_many(sync: Policy, where: Where = "alone") -> Row:
    async def row(meter: Meter, path: Path) -> Count:
        async with _open_as(where, path, _options(sync)) as store:
            topic, window = store.topic("t"), _Window(meter)

            async def produce() -> None:
                over = False
                while not over:
                    await topic.put(_BODY)
                    over = window.step()

            # Else the first of them would put for as long as a clock that stands still lets it, alone.
            await asyncio.gather(*(topic.put(_BODY) for _ in range(_PRODUCERS)))
            await asyncio.gather(*(produce() for _ in range(_PRODUCERS)))
            return window.result

    return row


def _put_many(sync: Policy, each: bytes | aiodq.Draft = _BODY) -> Row:
    async def row(meter: Meter, path: Path) -> Count:
        async with _open(path, _options(sync)) as store:
            topic, bodies = store.topic("t"), [each] * _BATCH
            await topic.put_many(bodies)
            return await meter.lone(lambda: topic.put_many(bodies), 10)

    return row


async def _put_nowait(meter: Meter, path: Path) -> Count:
    async with _open(path, _options("os")) as store:
        topic = store.topic("t")
        await topic.put(_BODY)
        meter.begin()
        for _ in range(_BATCH - 1):
            topic.put_nowait(_BODY)
        await topic.put_nowait(_BODY)
        return meter.end(_BATCH)


async def _filled(store: aiodq.Store, number: int = _WARM + _MANY + 10) -> aiodq.Channel:
    topic = store.topic("t")
    channel = topic.channel("c")
    await topic.put_many([_BODY] * number)
    return channel


async def _get(meter: Meter, path: Path) -> Count:
    async with _open(path, _options("os")) as store:
        channel = await _filled(store, _LONE + 10)
        await channel.get()
        return await meter.lone(channel.get)


async def _ack(meter: Meter, path: Path, sync: Policy, where: Where) -> Count:
    async with _open_as(where, path, _options(sync)) as store:
        channel = await _filled(store, _LONE + 10)
        messages = await channel.get_many(_LONE + 1)
        await messages.pop().ack()
        return await meter.lone(lambda: messages.pop().ack())


def _await_ack(sync: Policy, where: Where = "alone") -> Row:
    return lambda meter, path: _ack(meter, path, sync, where)


def _over_backlog(work: Callable[[Meter, aiodq.Channel], Awaitable[Count]], *, disk: bool) -> Row:
    async def row(meter: Meter, path: Path) -> Count:
        async with _open(path, _options("os")) as store:
            channel = await _filled(store)
            if not disk:
                return await work(meter, channel)
        async with _open(path, _options("os")) as store:
            return await work(meter, store.topic("t").channel("c"))

    return row


async def _get_many_of_a_queue(meter: Meter, path: Path) -> Count:
    async with _open(path, _options("os")) as store:
        queue = store.queue("t")
        await queue.put_many([_BODY] * (_WARM + _MANY + 10))
        return await _get_many(meter, queue)


async def _iterate(meter: Meter, channel: aiodq.Channel) -> Count:
    window = _Window(meter)
    async for message in channel:
        message.ack_nowait()
        if window.step():
            break
    return window.result


async def _iterate_beside(meter: Meter, path: Path) -> Count:
    """Iterate where the owner sends ahead as much as was asked for, which is less than is there.

    How much more a client asks for goes by how fast it is: with a clock that stands still, by nothing.
    """
    with patch.object(demand, "time", SimpleNamespace(monotonic=lambda: 0.0)):
        async with _open_as("beside", path, _options("os")) as store:
            channel = await _filled(store)
            engine: Any = channel._channel_engine
            with engine.wanting(_BATCH):
                return await _iterate(meter, channel)


async def _get_many(meter: Meter, channel: aiodq.Channel) -> Count:
    done = 0
    while done < _WARM:
        messages = await channel.get_many(_WARM - done)
        await channel.ack_many(messages)
        done += len(messages)
    meter.begin()
    while done < _WARM + _MANY:
        messages = await channel.get_many(min(_BATCH, _WARM + _MANY - done))
        await channel.ack_many(messages)
        done += len(messages)
    return meter.end(_MANY)


async def _ack_out_of_order(meter: Meter, channel: aiodq.Channel) -> Count:
    await channel.ack_many(await channel.get_many(_WARM))
    messages: list[aiodq.Message] = []
    while len(messages) < _MANY:
        messages += await channel.get_many(_MANY - len(messages))
    meter.begin()
    await channel.ack_many(messages[::2])
    await channel.ack_many(messages[1::2])
    return meter.end(_MANY)


async def _transact(meter: Meter, path: Path) -> Count:
    """Take messages and put others in transactions: what a worker does whose results are exact."""
    async with _open(path, _options("os")) as store:
        channel = await _filled(store)
        await channel.ack_many(await channel.get_many(_WARM))
        done = 0
        meter.begin()
        while done < _MANY:
            messages = await channel.get_many(min(_BATCH, _MANY - done))
            async with store.transaction() as tx:
                tx.ack_many(messages)
                tx.put_many("u", [message.body for message in messages])
            done += len(messages)
        return meter.end(_MANY)


def _of_a_kind(
    work: Callable[[Meter, aiodq.Channel], Awaitable[Count]], options: aiodq.ChannelOptions, **each: Any
) -> Row:
    """Return a row of what is more than plain: by the channel's options, or by those of each message."""

    async def row(meter: Meter, path: Path) -> Count:
        async with _open(path, _options("os")) as store:
            topic = store.topic("t")
            channel = topic.channel("c", options)
            await topic.put_many([aiodq.Draft(_BODY, **each)] * (_WARM + _MANY + 10))
            return await work(meter, channel)

    return row


def _between_others(work: Callable[[Meter, aiodq.Channel], Awaitable[Count]]) -> Row:
    """Return a row where a channel's tags want every other message."""

    async def row(meter: Meter, path: Path) -> Count:
        async with _open(path, _options("os")) as store:
            topic = store.topic("t")
            channel = topic.channel("c", aiodq.ChannelOptions(tags=["a"]))
            await topic.put_many([aiodq.Draft(_BODY, "a"), aiodq.Draft(_BODY, "b")] * (_WARM + _MANY + 10))
            return await work(meter, channel)

    return row


async def _again(meter: Meter, channel: aiodq.Channel) -> Count:
    """Get once more what was requeued."""
    for _ in range((_WARM + _MANY) // _BATCH):
        for message in await channel.get_many(_BATCH):
            message.nack_nowait()
    return await _get_many(meter, channel)


async def _consume(meter: Meter, channel: aiodq.Channel) -> Count:
    window, over = _Window(meter), asyncio.Event()

    async def handle(_: aiodq.Message) -> None:
        if window.step():
            over.set()

    consuming = asyncio.create_task(channel.consume(handle))
    await over.wait()
    await channel.stop()
    await consuming
    return window.result


ROWS: Final[dict[str, Row]] = {
    "put, os": _put("os"),
    "put, interval": _put("interval"),
    "put, always": _put("always"),
    "put, always, without a thread": _put_without_a_thread,
    "put with a key and headers, os": _put("os", key=b"k", headers={"name": "value"}),
    "put with a key and headers, always": _put("always", key=b"k", headers={"name": "value"}),
    "put by 100, os": _put_by_many("os"),
    "put by 100, interval": _put_by_many("interval"),
    "put by 100, always": _put_by_many("always"),
    "put over the socket, os": _put_shared("os", "beside"),
    "put over the socket, always": _put_shared("always", "beside"),
    "put over the socket by 100, always": _put_by_many("always", "beside"),
    "put by the owner of a shared store, os": _put_shared("os", "owner"),
    "put by the owner of a shared store, always": _put_shared("always", "owner"),
    "put_many of 1000, interval": _put_many("interval"),
    "put_many of 1000 drafts with a tag and a key, interval": _put_many("interval", aiodq.Draft(_BODY, "a", b"k")),
    "put_nowait, os": _put_nowait,
    "get": _get,
    "async for + ack_nowait, memory": _over_backlog(_iterate, disk=False),
    "async for + ack_nowait, disk": _over_backlog(_iterate, disk=True),
    "async for + ack_nowait, beside the owner": _iterate_beside,
    "get_many + ack_many of 1000, memory": _over_backlog(_get_many, disk=False),
    "get_many + ack_many of 1000, disk": _over_backlog(_get_many, disk=True),
    "get_many + ack_many of 1000, of a queue": _get_many_of_a_queue,
    "get_many + ack_many of 1000, max_attempts": _of_a_kind(_get_many, aiodq.ChannelOptions(max_attempts=5)),
    "get_many + ack_many of 1000, tags": _of_a_kind(_get_many, aiodq.ChannelOptions(tags=["a"]), tag="a"),
    "get_many + ack_many of 1000, ttl": _of_a_kind(_get_many, aiodq.ChannelOptions(), ttl=60),
    "get_many + ack_many of 1000, redelivered": _of_a_kind(_again, aiodq.ChannelOptions(max_in_flight=10_000)),
    "get_many + ack_many of 1000, every other by its tag": _between_others(_get_many),
    "async for + ack_nowait, every other by its tag": _between_others(_iterate),
    "ack_many of every other": _of_a_kind(_ack_out_of_order, aiodq.ChannelOptions(max_in_flight=10_000)),
    "get_many, ack_many and put_many of 1000 in a transaction": _transact,
    "async for + ack_nowait, max_attempts": _of_a_kind(_iterate, aiodq.ChannelOptions(max_attempts=5)),
    "await ack, os": _await_ack("os"),
    "await ack, always": _await_ack("always"),
    "await ack, beside the owner": _await_ack("os", "beside"),
    "consume": _over_backlog(_consume, disk=False),
}

# frames, python, futures, callbacks, threads
CEILINGS: Final[dict[str, Count]] = {
    "put, os": Count(8, 8, 0, 0, 0),
    "put, interval": Count(8, 8, 0, 0, 0),
    "put, always": Count(36, 60, 1, 2, 82),
    "put, always, without a thread": Count(57, 82, 1, 1, 0),
    "put with a key and headers, os": Count(39, 44, 0, 0, 0),
    "put with a key and headers, always": Count(69, 97, 1, 2, 82),
    "put by 100, os": Count(6.1, 16, 1, 1.09, 0),
    "put by 100, interval": Count(6.1, 16, 1, 1.09, 0.14),
    "put by 100, always": Count(6.38, 16, 1, 1.1, 0.94),
    "put over the socket, os": Count(85, 134, 1, 1, 0),
    "put over the socket, always": Count(89, 137, 1, 1, 60),
    "put over the socket by 100, always": Count(6.89, 16, 1, 1.1, 0.94),
    "put by the owner of a shared store, os": Count(77, 122, 1, 3, 0),
    "put by the owner of a shared store, always": Count(108, 162, 1, 4, 82),
    "put_many of 1000, interval": Count(58, 68, 0, 0, 0),
    "put_many of 1000 drafts with a tag and a key, interval": Count(185, 245, 0, 3, 0),
    "put_nowait, os": Count(5.35, 6.49, 0, 0.05, 0.02),
    "get": Count(14, 15, 0, 0, 0),
    "async for + ack_nowait, memory": Count(4.01, 5.04, 0, 0, 0),
    "async for + ack_nowait, disk": Count(4.09, 5.13, 0, 0, 0.19),
    "async for + ack_nowait, beside the owner": Count(3.1, 4.3, 0.02, 0.02, 0),
    "get_many + ack_many of 1000, memory": Count(0.4, 0.45, 0, 0, 0),
    "get_many + ack_many of 1000, disk": Count(0.46, 0.5, 0, 0, 0.12),
    "get_many + ack_many of 1000, of a queue": Count(0.54, 0.59, 0, 0, 0),
    "get_many + ack_many of 1000, max_attempts": Count(0.44, 0.48, 0, 0, 0.12),
    "get_many + ack_many of 1000, tags": Count(0.4, 0.45, 0, 0, 0),
    "get_many + ack_many of 1000, ttl": Count(0.41, 0.45, 0, 0, 0),
    "get_many + ack_many of 1000, redelivered": Count(2.54, 2.59, 0, 0, 0.12),
    "get_many + ack_many of 1000, every other by its tag": Count(8.26, 8.32, 0, 0, 0),
    "async for + ack_nowait, every other by its tag": Count(9.22, 12, 0, 0, 0),
    "ack_many of every other": Count(0.22, 0.78, 0, 0, 0.14),
    "get_many, ack_many and put_many of 1000 in a transaction": Count(0.92, 1.15, 0.05, 0.05, 0.68),
    "async for + ack_nowait, max_attempts": Count(19, 22, 0, 0, 0.19),
    "await ack, os": Count(66, 89, 1, 2, 0),
    "await ack, always": Count(81, 115, 1, 3, 55),
    "await ack, beside the owner": Count(184, 284, 3, 7, 0),
    "consume": Count(93, 162, 3, 5.25, 0.26),
}

GOALS: Final = {
    "put, os": "15 frames, 0 futures",
    "put, always": "40 frames, 1 future",
    "put_many of 1000, interval": "60 frames",
    "async for + ack_nowait, memory": "8 frames",
    "async for + ack_nowait, disk": "8 frames",
}
"""What the path is to come to; frames are those of aiodq."""


# --- counting


def compiled() -> bool:
    """Return whether something of aiodq is compiled: what has no frame cannot be counted."""
    modules = [module for name, module in sys.modules.items() if name.startswith("aiodq.")]
    return any(not (getattr(module, "__file__", None) or ".py").endswith(".py") for module in modules)


@contextmanager
def _threads_watched(meter: Meter) -> Iterator[None]:
    before, here = threading.getprofile(), sys.getprofile()
    threading.setprofile(meter.elsewhere)
    try:
        yield
    finally:
        threading.setprofile(before)
        sys.setprofile(here)


def _once(name: str) -> Count:
    loop = CountingLoop()
    meter = Meter(loop)
    running = asyncio.Runner(loop_factory=lambda: loop)
    with tempfile.TemporaryDirectory() as path, _threads_watched(meter), running as runner:
        return runner.run(ROWS[name](meter, Path(path)))


def runs(name: str, enough: Callable[[list[Count]], bool] = lambda _: False) -> list[Count]:
    """Return what a row of the table costs in each of a few runs, or in as many as are `enough`."""
    found: list[Count] = []
    while len(found) < _REPEATS and not (found and enough(found)):
        found.append(_once(name))
    return found


def count(name: str) -> Count:
    """Return what a row of the table costs: the least of a few runs."""
    return least(runs(name))


def ceiling_for(found: Count) -> Count:
    """Return ceilings a little above what was counted: exact where it is a small whole number."""

    def above(field: str) -> float:
        value: float = getattr(found, field)
        if value < 10 and value == int(value):
            return value
        # A pool of threads begins another one when it happens to find none idle.
        share, more = (1.6, 0.1) if field == "threads" else (1.04, 0.03)
        return ceil((value * share + more) * 100) / 100 if value < 10 else ceil(value * share)

    return Count(*(above(field) for field in FIELDS))


def idle(found: float, ceiling: float) -> bool:
    """Return whether a ceiling is so far above what is counted that it would let much pass."""
    return found < ceiling * 0.8 - 0.1


def _table(names: list[str]) -> None:
    print(f"{'a message':38} " + " ".join(f"{field:>15}" for field in FIELDS) + "  goal")
    for name in names:
        found, ceiling = count(name), CEILINGS[name]
        cells = [f"{getattr(found, field):g} / {getattr(ceiling, field):g}" for field in FIELDS]
        print(f"{name:38} " + " ".join(f"{cell:>15}" for cell in cells) + f"  {GOALS.get(name, '')}")


def _ceilings(names: list[str]) -> None:
    for name in names:
        ceiling = ceiling_for(count(name))
        print(f'    "{name}": Count({", ".join(f"{getattr(ceiling, field):g}" for field in FIELDS)}),')


def _main() -> None:
    parser = argparse.ArgumentParser(description="count frames, futures and callbacks of puts, gets and acks")
    parser.add_argument("--ceilings", action="store_true", help="print ceilings for what is counted now")
    parser.add_argument("rows", nargs="*", help="only the rows whose names contain one of these")
    arguments = parser.parse_args()
    names = [name for name in ROWS if not arguments.rows or any(part in name for part in arguments.rows)]
    (_ceilings if arguments.ceilings else _table)(names)


if __name__ == "__main__":
    _main()
