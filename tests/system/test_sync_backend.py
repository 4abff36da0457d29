"""Syncs without a thread: the same promises, the same errors, and threads where the kernel cannot."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq import opening
from aiodq.engine.loop import sync_backend
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.kernel_aio import KernelAio
from aiodq.storage.log.topic_log import TopicLog
from aiodq.storage.state.watermark import WATERMARK, read_slot_file
from tests.system.support import require_aio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.storage.io.filesystem import File

AIO = aiodq.StoreOptions(sync_backend="aio")
PATIENCE = 30.0


class Kernel(KernelAio):
    """Tells of what has ended when it is let, and as it is told to.

    Attributes:
        held: nothing is told.
        code: what each sync ends with.
        refusing: no sync is begun.
        begun: how many were.
    """

    made: list[Kernel]

    def __init__(self) -> None:
        super().__init__()
        self.held = self.refusing = False
        self.code = self.begun = 0
        self.made.append(self)

    def submit(self, file: File) -> None:
        if self.refusing:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().submit(file)
        self.begun += 1

    def ended(self) -> list[tuple[int, int]]:
        return [] if self.held else [(number, self.code or code) for number, code in super().ended()]

    async def reached(self, begun: int) -> None:
        """Wait until so many syncs were begun."""
        while self.begun < begun:
            await asyncio.sleep(0.001)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    require_aio()
    made: list[Kernel] = []
    monkeypatch.setattr(Kernel, "made", made, raising=False)
    monkeypatch.setattr(opening, "KernelAio", Kernel)
    return made


@pytest.fixture
def by_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the descriptors that were synced by fdatasync."""
    synced: list[int] = []
    sync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    return synced


async def test_puts_and_acks_are_synced_without_a_thread(
    kernels: list[Kernel], by_threads: list[int], tmp_path: Path
) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        assert store.stats().sync_backend == "aio"
        queue = store.queue("jobs")
        await queue.put(b"first")
        before, begun = len(by_threads), kernels[0].begun
        for number in range(20):
            await queue.put(b"%d" % number)
        await asyncio.gather(*(queue.put(b"together") for _ in range(50)))
        assert store.topic("jobs").stats().durable_offset == 71
        assert kernels[0].begun >= begun + 21
        message = await queue.get()
        await message.ack()
        begun = kernels[0].begun
        message = await queue.get()
        await message.ack()
        assert kernels[0].begun == begun + 1
        # The journal's first sync has zeros to write, and a thread does that.
        assert len(by_threads) <= before + 2
    async with aiodq.open(tmp_path / "s") as store:
        assert store.queue("jobs").qsize() == 69


async def test_what_is_durable_is_noted(kernels: list[Kernel], tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        topic = store.topic("jobs")
        await topic.put(b"1")
        kernels[0].held = True
        putting = asyncio.create_task(topic.put(b"2"))
        await kernels[0].reached(kernels[0].begun + 1)
        await asyncio.sleep(0.01)
        assert not putting.done()
        assert topic.stats().durable_offset == 1
        kernels[0].held = False
        assert await putting == 1
        assert topic.stats().durable_offset == 2
        assert read_slot_file(OsFileSystem(), str(tmp_path / "s" / "jobs" / WATERMARK))[0] == 2


async def test_a_sync_that_fails_stops_the_store(kernels: list[Kernel], tmp_path: Path) -> None:
    store = await aiodq.open(tmp_path / "s", AIO)
    queue = store.queue("jobs")
    await queue.put(b"1")
    kernels[0].code = errno.EIO
    with pytest.raises(aiodq.StoreFailedError, match="open the store again") as told:
        await queue.put(b"2")
    assert told.value.path.endswith(".seg")
    assert told.value.errno == errno.EIO
    kernels[0].code = 0
    with pytest.raises(aiodq.StoreFailedError):
        await queue.put(b"3")
    await store.aclose()
    async with aiodq.open(tmp_path / "s") as store:
        assert await store.queue("jobs").put(b"4") >= 1


async def test_the_end_of_a_sync_whose_beginning_ctrl_c_kept_from_being_noted_is_no_error(
    kernels: list[Kernel], tmp_path: Path
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with aiodq.open(tmp_path / "s", AIO) as store:
        queue = store.queue("jobs")
        await queue.put(b"first")
        kernels[0].submit(OsFileSystem().open(str(tmp_path / "s" / "LOCK")))
        assert await queue.put(b"second") == 1
        while kernels[0]._in_flight.count:
            await asyncio.sleep(0.001)
    assert not reported


async def test_an_acks_sync_that_fails_stops_the_store(kernels: list[Kernel], tmp_path: Path) -> None:
    store = await aiodq.open(tmp_path / "s", AIO)
    queue = store.queue("jobs")
    await queue.put_many([b"1", b"2"])
    await (await queue.get()).ack()
    message = await queue.get()
    kernels[0].code = errno.EIO
    with pytest.raises(aiodq.StoreFailedError) as told:
        await message.ack()
    assert told.value.path.endswith("journal")
    await store.aclose()


async def test_a_sync_that_fails_stops_the_store_whatever_its_caller_makes_of_it(
    kernels: list[Kernel], tmp_path: Path
) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        queue = store.queue("jobs")
        await queue.put(b"1")
        kernels[0].code = errno.EIO
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        log = queue.topic._engine.log
        assert isinstance(log, TopicLog)
        store._store_engine.syncs.start(log, lambda _, error: told.set_result(error is not None))
        assert await told
        assert "fsync failed" in (store.health().failed or "")


async def test_a_kernel_that_does_not_tell_stops_the_store(
    kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = await aiodq.open(tmp_path / "s", AIO)
    await store.topic("jobs").put(b"1")

    def no_answer(_kernel: Kernel) -> list[tuple[int, int]]:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(Kernel, "ended", no_answer)
    with pytest.raises(aiodq.StoreFailedError):
        await store.topic("jobs").put(b"2")
    await store.aclose()
    assert kernels


async def test_threads_stand_in_where_no_sync_is_begun(
    kernels: list[Kernel], by_threads: list[int], tmp_path: Path
) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        queue = store.queue("jobs")
        await queue.put(b"1")
        await (await queue.get()).ack()
        kernels[0].refusing = True
        before = len(by_threads)
        await queue.put(b"2")
        await (await queue.get()).ack()
        assert len(by_threads) == before + 2
        kernels[0].refusing = False
        assert await queue.put(b"3") == 2


async def test_threads_are_what_a_store_uses_if_asked(kernels: list[Kernel], tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(sync_backend="thread")) as store:
        await store.topic("jobs").put(b"1")
        assert store.stats().sync_backend == "thread"
    assert not kernels


async def test_the_kernel_is_what_a_store_uses_unasked(
    kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Kernel, "is_watched", staticmethod(lambda: False))
    async with aiodq.open(tmp_path / "s") as store:
        for number in range(3):
            await store.topic("jobs").put(b"%d" % number)
        assert store.stats().sync_backend == "aio"
        assert kernels[0].begun >= 2


async def test_who_begins_to_watch_sees_each_sync_by_a_thread(
    kernels: list[Kernel], by_threads: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("aiodq.engine.store.watch._INTERVAL", 0.002)
    watched = [True]
    monkeypatch.setattr(Kernel, "is_watched", staticmethod(lambda: watched[0]))
    monkeypatch.setattr(sync_backend, "_FDATASYNC", os.fdatasync)
    async with aiodq.open(tmp_path / "s") as store:
        for expected in ("thread", "aio", "thread"):
            watched[0] = expected == "thread"
            async with asyncio.timeout(PATIENCE):
                while store.stats().sync_backend != expected:
                    await asyncio.sleep(0.001)
            begun, synced = kernels[0].begun, len(by_threads)
            await store.topic("jobs").put(b"1")
            await store.topic("jobs").put(b"2")
            assert (kernels[0].begun > begun) == (expected == "aio")
            assert len(by_threads) >= synced + 2 * (expected == "thread")
        explicit = aiodq.StoreOptions(sync_backend="aio")
        async with aiodq.open(tmp_path / "other", explicit) as other:
            assert other.stats().sync_backend == "aio"


async def test_a_function_in_the_place_of_fdatasync_is_called_from_the_next_put_on(
    kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Kernel, "is_watched", staticmethod(lambda: False))
    store = await aiodq.open(tmp_path / "s")
    await store.topic("jobs").put(b"1")
    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(aiodq.StoreFailedError):
        await store.topic("jobs").put(b"2")
    monkeypatch.undo()
    await store.aclose()
    assert kernels


async def test_threads_are_what_a_store_uses_where_the_kernel_has_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused() -> KernelAio:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(opening, "KernelAio", refused)
    async with aiodq.open(tmp_path / "s", AIO) as store:
        assert await store.topic("jobs").put(b"1") == 0
        assert store.stats().sync_backend == "thread"


async def test_threads_are_what_a_store_uses_on_a_loop_that_watches_nothing(
    kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Blind:
        def __init__(self, backend: asyncio.AbstractEventLoop) -> None:
            self.loop = backend

        def add_reader(self, *_arguments: object) -> None:
            raise NotImplementedError

        def __getattr__(self, name: str) -> object:
            return getattr(self.loop, name)

    use = sync_backend.SyncBackend._use

    def blindly(backend: sync_backend.SyncBackend, make: Callable[[], sync_backend.SystemSyncs]) -> None:
        backend._loop = Blind(backend._loop)  # type: ignore[assignment]
        use(backend, make)

    monkeypatch.setattr(sync_backend.SyncBackend, "_use", blindly)
    async with aiodq.open(tmp_path / "s", AIO) as store:
        assert await store.topic("jobs").put(b"1") == 0
        assert store.stats().sync_backend == "thread"
    assert len(kernels) == 1


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_who_gives_up_waiting_leaves_the_sync_to_others(kernels: list[Kernel], tmp_path: Path, how: str) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        topic = store.topic("jobs")
        await topic.put(b"1")
        kernels[0].held = True
        begun, limit = kernels[0].begun, asyncio.timeout(None)

        async def put() -> None:
            async with limit:
                await topic.put(b"2")

        putting = asyncio.create_task(put())
        await kernels[0].reached(begun + 1)
        if how == "cancel":
            putting.cancel()
        else:
            limit.reschedule(0)
        with pytest.raises(asyncio.CancelledError if how == "cancel" else TimeoutError):
            await putting
        other = asyncio.create_task(topic.put(b"3"))
        await asyncio.sleep(0.01)
        assert not other.done()
        kernels[0].held = False
        assert await other == 2


async def test_closing_waits_for_what_is_under_way(kernels: list[Kernel], tmp_path: Path) -> None:
    store = await aiodq.open(tmp_path / "s", AIO)
    topic = store.topic("jobs")
    await topic.put(b"1")
    kernels[0].held = True
    putting = asyncio.create_task(topic.put(b"2"))
    await kernels[0].reached(kernels[0].begun + 1)
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done()
    kernels[0].held = False
    await closing
    assert await putting == 1
    before = len(os.listdir("/proc/self/fd"))
    async with aiodq.open(tmp_path / "s", AIO) as store:
        assert store.topic("jobs").stats().end_offset == 2
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_channel_named_amid_a_sync_gives_what_is_there(kernels: list[Kernel], tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        topic = store.topic("jobs")
        await topic.put(b"1")
        putting = asyncio.create_task(topic.put(b"2"))
        await kernels[0].reached(kernels[0].begun + 1)
        # Nothing runs meanwhile: the loop is held until the sync, and the channel's files after it, are done.
        assert topic.channel("new", aiodq.ChannelOptions(start="earliest")).get_nowait().body == b"1"
        assert await putting == 1


async def test_more_journals_than_it_takes_at_once(kernels: list[Kernel], tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        topic = store.topic("jobs")
        channels = [topic.channel(f"c{number}") for number in range(150)]
        for life in range(3):
            await topic.put(b"%d" % life)
            messages = await asyncio.gather(*(channel.get() for channel in channels))
            await asyncio.gather(*(message.ack() for message in messages))
        assert not any(channel.qsize() for channel in channels)
        assert kernels[0].begun > 64


async def test_the_ends_of_many_syncs_are_told_some_in_each_turn(
    kernels: list[Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_backend, "_TOLD_AT_ONCE", 8)
    loop, turn, told, gathered = asyncio.get_running_loop(), 0, Counter[int](), list[tuple[int, int]]()
    end_sync, ended = TopicLog.end_sync, Kernel.ended

    def gathering(kernel: Kernel) -> list[tuple[int, int]]:
        gathered.extend(ended(kernel))
        if len(gathered) < 40:
            return []
        found = gathered.copy()
        gathered.clear()
        return found

    def telling(log: TopicLog, error: int) -> None:
        told[turn] += 1
        end_sync(log, error)
        # Another sync ends meanwhile, so that the loop has two reasons to look again.
        os.eventfd_write(kernels[0].eventfd, 1)

    def take_turns() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(take_turns)

    async with aiodq.open(tmp_path / "s", AIO) as store:
        topics = [store.topic(f"t{number}") for number in range(40)]
        for topic in topics:
            await topic.put(b"1")
        with monkeypatch.context() as patched:
            patched.setattr(Kernel, "ended", gathering)
            patched.setattr(TopicLog, "end_sync", telling)
            take_turns()
            assert await asyncio.gather(*(topic.put(b"2") for topic in topics)) == [1] * 40
        assert (told.total(), max(told.values())) == (40, 8)


def test_a_loop_that_ends_amid_a_sync_loses_nothing_that_was_told(kernels: list[Kernel], tmp_path: Path) -> None:
    async def main() -> None:
        store = await aiodq.open(tmp_path / "s", AIO)
        topic = store.topic("jobs")
        assert await topic.put(b"1") == 0
        kernels[0].held = True
        task = asyncio.create_task(topic.put(b"2"))
        await kernels[0].reached(kernels[0].begun + 1)
        assert not task.done()

    with pytest.warns(ResourceWarning, match="never closed"):
        asyncio.run(main())
        gc.collect()

    async def again() -> None:
        async with aiodq.open(tmp_path / "s") as store:
            assert store.topic("jobs").stats().end_offset >= 1

    asyncio.run(again())


async def test_a_busy_loop_waits_for_no_thread(kernels: list[Kernel], tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", AIO) as store:
        topic = store.topic("jobs")
        await topic.put(b"1")
        turns = 0
        putting = asyncio.create_task(topic.put(b"2"))
        while not putting.done():
            turns += 1
            sum(range(10_000))
            await asyncio.sleep(0)
        assert putting.result() == 1
        assert kernels[0].begun
