"""Errors that nobody foresaw, injected at every place of the engine: whoever waits is told, and the store is let go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import pkgutil
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
from aiodq.clock import SystemClock
from aiodq.storage.log.topic_log import TopicLog
from aiodq.testing import WatchedFileSystem
from tests.queue.support import PATIENCE, Tasks, fill, numbered, outcome, soon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.testing import Passed


class InjectedError(MemoryError):
    """As raised where an import finds no memory."""


_LIVES = 10
"""Lives within which each place is reached: some are reached only where nothing else happens meanwhile."""


class Trap:
    """Raises at the n-th time, once."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0

    @property
    def sprung(self) -> bool:
        return self.seen >= self.at

    def step(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            raise InjectedError(f"injected at {self.at}")

    def on(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return function(*args, **kwargs)

        return trapped


async def worked(store: aiodq.Store, tasks: Tasks) -> None:
    """Wait in every way a user can, and see that every wait ends: by itself, or since the store stopped."""
    topic, other = store.topic("queue"), store.topic("other")
    queue, late = store.queue("queue"), topic.channel("late")
    idle = other.channel("idle")

    async def consumer() -> None:
        for _ in range(3):
            async with await queue.get():
                pass
        async with store.transaction() as tx:
            tx.ack(await queue.get())
            tx.put("other", b"by transaction")
        await (await late.get()).ack()
        await (await idle.get()).nack(delay=3600)

    finite: list[asyncio.Task[Any]] = [tasks.start(topic.put(b"%d" % number)) for number in range(3)]
    finite += [tasks.start(topic.put_many([b"a", b"b"])), tasks.start(consumer()), tasks.start(other.put(b"c"))]
    endless: list[asyncio.Task[Any]] = [
        tasks.start(queue.join()),
        tasks.start(idle.join()),
        tasks.start(store.topic("dull").channel("c").get()),
    ]
    await asyncio.sleep(0)
    finite += [tasks.start(topic.sync()), tasks.start(topic.put(b"z")), tasks.start(fill(other, numbered(5)))]

    async def watch() -> None:
        while not all(task.done() for task in finite):
            failed = store._store_engine.failure is not None
            if not failed and tasks.running[4].done() is False and any(map(hurt, finite)):
                return  # the consumer waits for a message whose put was refused
            await asyncio.sleep(0.001)

    try:
        await soon(watch())
    except TimeoutError:
        assert [task for task in finite if not task.done()] == [], store._store_engine.failure
    if store._store_engine.failure is not None:
        await asyncio.wait(endless, timeout=PATIENCE)
        assert [task for task in endless if not task.done()] == []
        assert caused_by_injection(store._store_engine.failure)
        for task in [*finite, *endless]:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, aiodq.AiodqError | InjectedError), repr(error)


def hurt(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def caused_by_injection(error: BaseException | None) -> bool:
    """Return whether an injected error is in the chain of causes."""
    while error is not None:
        if isinstance(error, InjectedError):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(map(caused_by_injection, error.exceptions))
        error = error.__cause__ or error.__context__
    return False


PLACES: Final = [
    "anyio create_task_group",
    "aiodq.engine.topic.commit.io_loop:IoLoop _advance",
    "aiodq.engine.topic.commit.group_commit:GroupCommit write",
    "aiodq.engine.topic.commit.group_commit:GroupCommit _sync_lone",
    "aiodq.engine.topic.commit.group_commit:GroupCommit synced",
    "aiodq.engine.topic.commit.group_commit:GroupCommit synced_lone",
    "aiodq.engine.batch.put_batch:OpenBatch take",
    "aiodq.engine.batch.put_batch:Part resolve",
    "aiodq.engine.topic.commit.segment_writer:SegmentWriter write_at_once",
    "aiodq.engine.topic.commit.segment_writer:SegmentWriter _stage",
    "aiodq.engine.topic.commit.publisher:Publisher written",
    "aiodq.engine.topic.commit.publisher:Publisher _publish",
    "aiodq.engine.topic.commit.publisher:Publisher _tell",
    "aiodq.engine.topic.commit.publisher:Publisher _wake",
    "aiodq.engine.channel.channel_engine:ChannelEngine attach",
    "aiodq.engine.channel.channel_engine:ChannelEngine _take_of_lease",
    "aiodq.engine.channel.channel_engine:ChannelEngine wake",
    "aiodq.engine.reading.tail_cache:TailCache append",
    "aiodq.engine.topic.commit.syncer:Syncer ended",
    "aiodq.engine.topic.commit.syncer:Syncer start",
    "aiodq.engine.topic.commit.syncer:Syncer resolve",
    "aiodq.engine.channel.acks.ack_persister:AckPersister flush",
    "aiodq.engine.channel.acks.ack_persister:AckPersister _commit_lone",
    "aiodq.engine.channel.acks.ack_persister:AckPersister _committed",
    "aiodq.engine.channel.acks.ack_persister:AckPersister _write",
    "aiodq.engine.channel.acks.ack_persister:AckPersister _sync_journals",
    "aiodq.engine.channel.acks.ack_persister:AckPersister _keep_up",
    "aiodq.engine.topic.creation:Creation again",
    "aiodq.engine.store.channel_management open_channel",
    "aiodq.engine.loop.worker_threads:WorkerThreads start",
    "aiodq.engine.committing.group_committer:Committer _work",
    "aiodq.engine.committing.group_committer:Committer _taken",
    "aiodq.engine.committing.group_committer:Committer _commit",
    "aiodq.engine.committing.group_committer:Committer _enter",
    "aiodq.engine.committing.group_committer:Committer _empty",
    "aiodq.engine.committing.topic_appender:TopicAppender add",
    "aiodq.engine.committing.topic_appender:TopicAppender _ended",
    "aiodq.engine.committing.topic_appender:TopicAppender _round_ended",
    "aiodq.engine.channel.acks.transaction_holds:TransactionHolds settle",
    "aiodq.engine.channel.acks.settlement:Settlement acked",
    "aiodq.delivery.channel_state:ChannelState take_ops",
    "aiodq.delivery.channel_state:ChannelState follow",
    "aiodq.storage.log.active_segment encode_run",
    "aiodq.storage.state.channel_journal encode_block",
    "aiodq.storage.log.topic_log:TopicLog append",
    "aiodq.storage.log.topic_log:TopicLog stage",
    "aiodq.storage.log.topic_log:TopicLog commit",
    "aiodq.storage.log.topic_log:TopicLog sync",
    "aiodq.storage.log.topic_log:TopicLog close",
    "aiodq.storage.state.transactions.transaction_log:TransactionFile append",
    "aiodq.storage.state.transactions.transaction_log:TransactionFile reset",
]


def set_trap(patched: pytest.MonkeyPatch, place: str, trap: Trap) -> None:
    owner, name = place.split()
    target = pkgutil.resolve_name(owner)
    patched.setattr(target, name, trap.on(getattr(target, name)))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "aiodq")


async def lived(path: Path, tasks: Tasks, **how: Any) -> None:
    """Open, work, and close, whatever happens meanwhile."""
    # What is raised in a callback of the loop's is told to its handler.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    tasks.running.clear()
    try:
        store = await soon(aiodq.open(path, **how)._open())
    except (aiodq.AiodqError, InjectedError):
        return
    try:
        with contextlib.suppress(InjectedError):  # raised where it is called
            await worked(store, tasks)
    finally:
        closing = tasks.start(store.aclose())
        ended, _ = await asyncio.wait([closing], timeout=PATIENCE)
        assert ended
    assert isinstance(outcome(closing), aiodq.AiodqError | InjectedError | None)
    await soon(asyncio.wait(tasks.running))


async def whole(path: Path) -> None:
    """See that nobody has the store open, and that it opens."""
    async with aiodq.open(path, fs=WatchedFileSystem()) as store:
        assert set(store.topics()) <= {"queue", "other", "dull"}
        assert all(stats.damages == 0 for stats in store.stats().topics.values())


@pytest.mark.slow_on_uvloop  # what a loop makes of such an error, errors in the clock and in the threads show on both
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_within_the_engine(
    path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, place: str, *, number: int, seed: int
) -> None:
    path.mkdir()
    for at in random.Random(f"{seed}:{place}").sample((1, 3), number):
        fs = WatchedFileSystem()
        with monkeypatch.context() as patched:
            set_trap(patched, place, trap := Trap(at))
            for _ in range(_LIVES if at == 1 else 1):
                await lived(path / str(at), tasks, fs=fs)
                if trap.sprung:
                    break
        assert trap.sprung or at > 1
        await whole(path / str(at))
        assert fs.open_files == 0


async def test_in_the_file_system(path: Path, tasks: Tasks) -> None:
    path.mkdir()
    at, trap = 1, Trap(0)
    while trap.sprung:
        fs = WatchedFileSystem()
        trap = Trap(at)

        def spring(_: Passed, trap: Trap = trap) -> None:
            trap.step()

        fs.add(spring)
        await lived(path / str(at), tasks, fs=fs)
        fs.heal()
        await whole(path / str(at))
        assert fs.open_files == 0
        at += 2 + at // 3


class TrappedClock(SystemClock):
    """A clock one of whose methods is trapped."""

    def __init__(self, trap: Trap, name: str) -> None:
        self.trap, self.name = trap, name

    def now_ns(self) -> int:
        if self.name == "now_ns":
            self.trap.step()
        return super().now_ns()

    def monotonic(self) -> float:
        if self.name == "monotonic":
            self.trap.step()
        return super().monotonic()


@pytest.mark.parametrize("name", ["now_ns", "monotonic"])
async def test_in_the_clock(path: Path, tasks: Tasks, name: str) -> None:
    path.mkdir()
    at, trap = 1, Trap(0)
    while trap.sprung and at < 100:
        trap = Trap(at)
        await lived(path / str(at), tasks, fs=WatchedFileSystem(), clock=TrappedClock(trap, name))
        await whole(path / str(at))
        at += 2 + at // 3


class TrappedExecutor(ThreadPoolExecutor):
    """Threads of which one cannot be started, as where the system has no more."""

    def __init__(self, trap: Trap) -> None:
        super().__init__(4)
        self.trap = trap

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.trap.step()
        return super().submit(fn, *args, **kwargs)


async def test_in_the_threads(path: Path, tasks: Tasks) -> None:
    path.mkdir()
    at, trap = 1, Trap(0)
    while trap.sprung:
        trap = Trap(at)
        await lived(path / str(at), tasks, fs=WatchedFileSystem(), executor=TrappedExecutor(trap))
        await whole(path / str(at))
        at += 2 + at // 4


class LaterClock(SystemClock):
    """A clock that some day shows a time which no file can say."""

    def __init__(self) -> None:
        self.year_2263 = False

    def now_ns(self) -> int:
        return (1 << 63) + 1 if self.year_2263 else super().now_ns()


async def test_a_clock_in_the_year_2263(path: Path, tasks: Tasks) -> None:
    clock = LaterClock()
    store = await aiodq.open(path, fs=WatchedFileSystem(), clock=clock)
    queue = store.queue("queue")
    await queue.put(b"a")
    waiting = [tasks.start(store.queue("other").get()), tasks.start(queue.join())]
    await asyncio.sleep(0)
    clock.year_2263 = True
    with pytest.raises(aiodq.StoreFailedError) as caught:
        await soon(queue.put(b"b"))
    assert not isinstance(caught.value.__cause__, aiodq.AiodqError)
    for task in waiting:
        with pytest.raises(aiodq.StoreFailedError):
            await soon(task)
    await soon(store.aclose())
    await whole(path)


async def _listen(events: aiodq.Events) -> None:
    async for _ in events:
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", [".seg", "watermark", "journal", "#transactions"])
async def test_a_file_that_cannot_be_closed(path: Path, tasks: Tasks, name: str) -> None:
    fs = WatchedFileSystem()
    store = await aiodq.open(path, fs=fs)
    listening = tasks.start(_listen(store.events()))
    queue = store.queue("queue")
    await queue.put_many([b"a", b"b"])
    async with store.transaction() as tx:
        tx.put("other", b"c")
    fs.fail(errno.EIO, "close", match=name)
    with pytest.raises(aiodq.StorageError) as caught:
        await soon(store.aclose())
    assert caught.value.errno == errno.EIO
    assert name in caught.value.path
    assert fs.open_files == 0
    await soon(listening)
    await whole(path)


async def test_who_waits_for_a_topic_that_is_being_deleted(path: Path, tasks: Tasks) -> None:
    fs = WatchedFileSystem()
    async with contextlib.AsyncExitStack() as closing:
        store = await closing.enter_async_context(aiodq.open(path, fs=fs))
        topic = store.topic("queue")
        await topic.put(b"a")
        gate = fs.gate("sync", match=".seg")
        fs.fail(errno.EIO, "sync", match=".seg")
        put = tasks.start(topic.put(b"b"))
        await soon(gate.wait())
        deleting = tasks.start(store.delete_topic("queue"))
        await asyncio.sleep(0)
        gate.open()
        for task in (put, deleting):
            with pytest.raises(aiodq.StoreFailedError):
                await soon(task)
    assert fs.open_files == 0


async def test_what_is_written_as_the_store_stops_is_truncated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with contextlib.AsyncExitStack() as closing:
        opened = await aiodq.open(path, aiodq.StoreOptions(sync="os"))
        closing.push_async_callback(opened.aclose)
        topic = opened.topic("t")
        await topic.put(b"kept")
        with monkeypatch.context() as patching:
            patching.setattr(TopicLog, "commit", Trap(1).on(TopicLog.commit))
            with pytest.raises(aiodq.StoreFailedError):
                await topic.put_many([b"a", b"b"])
    async with aiodq.open(path) as again:
        assert [message.body async for message in again.topic("t").scan()] == [b"kept"]
