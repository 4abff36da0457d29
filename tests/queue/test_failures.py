"""A disk that fails: which errors stop the store, which pass, and that everyone who waits is told the cause."""

from __future__ import annotations

import asyncio
import errno
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.store.backups import Backups
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.testing import Passed, WatchedFileSystem
from tests.queue.support import (
    Tasks,
    bodies_of,
    crash_image,
    drain,
    fill,
    log_syncs,
    numbered,
    odd_files,
    outcome,
    queue,
    ready_now,
    soon,
    store,
    take,
    turns,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiodq.options import SyncPolicy

FATAL = [errno.EIO, errno.ENOSPC, errno.EDQUOT]


def blame(error: object) -> OSError:
    """Return the system's error at the end of the causes of what a caller was told."""
    assert isinstance(error, aiodq.StoreFailedError), error
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    assert isinstance(cause, OSError), error
    return cause


async def life(jobs: aiodq.Queue, promised: set[bytes], acked: set[bytes], count: int = 12) -> None:
    """Put, get, nack and ack; note what was promised."""
    for body in numbered(count):
        await soon(jobs.put(body))
        promised.add(body)
        message = await soon(jobs.get())
        if message.offset % 4 == 1:
            await message.nack()
        elif message.offset % 4 != 3:
            acked.add(message.body)  # from the call on it may be gone
            await soon(message.ack())
            promised.discard(message.body)
        else:
            message.release()


class TestSync:
    @pytest.mark.slow_on_uvloop
    @pytest.mark.parametrize("error", FATAL)
    @pytest.mark.parametrize("kind", ["sync", "sync_directory"])
    @pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
    async def test_at_every_one_the_store_stops_and_reopening_heals(
        self, path: Path, error: int, kind: str, stride: int, seed: int
    ) -> None:
        """G11, for every k: no false promise, sticky; only a new open, which reads what is really there, goes on."""
        at = 1 + random.Random(f"{seed}:{error}:{kind}").randrange(stride)
        while True:
            fs, place = WatchedFileSystem(), path.with_name(f"store{at}")
            promised: set[bytes] = set()
            acked: set[bytes] = set()
            jobs = await aiodq.open_queue(place, aiodq.StoreOptions(segment_bytes=378), fs=fs)
            fault = fs.fail(error, kind, at=at, times=1)
            try:
                await life(jobs, promised, acked)
            except aiodq.StoreFailedError as raised:
                assert blame(raised).errno == error
                assert not raised.retriable
                failed = [call for call in fs.named(kind) if not call.ended]
                for call in (jobs.put(b"x"), jobs.get(), jobs.sync(), jobs.purge(), jobs.put_many([b"x"]), jobs.join()):
                    with pytest.raises(aiodq.StoreFailedError) as caught:
                        await soon(call)
                    assert blame(caught.value).errno == error
                for attempt in (lambda: jobs.put_nowait(b"x"), jobs.get_nowait):
                    with pytest.raises(aiodq.StoreFailedError):
                        attempt()
                assert jobs.topic_stats() is not None
                # Never a plain retry: the system may have dropped the bytes and report success the next time. What
                # another thread had begun on other files may end.
                assert failed
                assert [c for c in fs.named(kind) if c.path == failed[0].path and c.begun > failed[0].begun] == []
            await soon(close_quietly(jobs))
            assert fs.open_files == 0
            async with queue(place, segment_bytes=378) as jobs:
                found = set(ready_now(jobs))
                assert promised - acked <= found
                assert not found - set(numbered(12))
                await jobs.put(b"healed")
                assert jobs.get_nowait().body == b"healed"
                assert jobs.topic_stats().damages == 0
            if not fault.hits:
                break
            at += stride
        assert at > (8 if kind == "sync" else 2)

    @pytest.mark.parametrize("error", FATAL)
    async def test_a_put_fails_and_everyone_who_waits_is_told_the_cause(
        self, path: Path, tasks: Tasks, error: int
    ) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, aiodq.StoreOptions(max_messages=3), fs=fs)
        await fill(jobs, numbered(2))
        held = await take(jobs, 2)
        fs.fail(error, "sync", match=".seg")
        gate = fs.gate("sync", match=".seg")
        fs.rules.reverse()  # held up first, then failed
        waiting: dict[str, asyncio.Task[Any]] = {"put": tasks.start(jobs.put(b"2"))}
        await gate.wait()
        waiting |= {
            "blocked put": tasks.start(jobs.put(b"3")),
            "blocked put_many": tasks.start(jobs.put_many([b"4", b"5"])),
            "get": tasks.start(jobs.get()),
            "get with timeout": tasks.start(jobs.get(3600)),
            "get_many": tasks.start(jobs.get_many(5)),
            "join": tasks.start(jobs.join()),
            "sync": tasks.start(jobs.sync()),
            "purge": tasks.start(jobs.purge()),
            "channel purge": tasks.start(aiodq.Channel.purge(jobs)),
            "settle_in": tasks.start(jobs.topic.settle_in()),
            "new channel": tasks.start(jobs.topic.channel("new").get()),
        }
        ack_gate = fs.gate("sync", match="journal")
        waiting["ack"] = tasks.start(held[0].ack())
        await ack_gate.wait()
        await turns(10)
        assert not any(task.done() for task in waiting.values())
        gate.open()
        ack_gate.open()
        await asyncio.wait(waiting.values(), timeout=20)
        for name, task in waiting.items():
            if name != "ack" or not task.done() or task.exception() is not None:
                assert blame(outcome(task)).errno == error, name
        with pytest.raises(aiodq.StoreFailedError):
            await soon(held[1].ack())
        with pytest.raises(aiodq.StoreFailedError):
            jobs.put_nowait(b"6")
        await soon(close_quietly(jobs))
        async with queue(path) as jobs:
            assert set(ready_now(jobs)) >= {b"1"}

    async def test_a_receipt_is_told(self, path: Path) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, fs=fs)
        fs.fail(errno.EIO, "sync", match=".seg")
        receipts = [jobs.put_nowait(body) for body in numbered(3)]
        for receipt in receipts:
            with pytest.raises(aiodq.StoreFailedError):
                await soon(receipt)
            with pytest.raises(aiodq.StoreFailedError):
                await soon(receipt)
        await soon(close_quietly(jobs))

    async def test_an_ack_whose_sync_fails_is_told_and_stops_the_store(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, fs=fs)
        await fill(jobs, numbered(3))
        held = await take(jobs, 3)
        fs.fail(errno.EIO, "sync", match="journal")
        acking = [tasks.start(message.ack()) for message in held[:2]]
        getting = tasks.start(jobs.get())
        await asyncio.wait([*acking, getting], timeout=20)
        for task in (*acking, getting):
            assert blame(outcome(task)).errno == errno.EIO
        with pytest.raises(aiodq.StoreFailedError):
            await soon(held[2].ack())
        await soon(close_quietly(jobs))
        async with queue(path) as jobs:
            assert b"2" in ready_now(jobs)

    async def test_one_topics_failure_stops_the_whole_store(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        opened = await aiodq.open(path, fs=fs)
        one, other = opened.topic("one"), opened.topic("other")
        await one.put(b"1")
        channel = other.channel("c")
        await other.put(b"1")
        assert await drain(channel) == [b"1"]
        getting = tasks.start(channel.get())
        await turns()
        fs.fail(errno.EIO, "sync", match="one")
        with pytest.raises(aiodq.StoreFailedError):
            await soon(one.put(b"2"))
        await asyncio.wait([getting], timeout=20)
        assert blame(outcome(getting)).errno == errno.EIO
        for call in (other.put(b"2"), other.read(0), opened.delete_topic("other")):
            with pytest.raises(aiodq.StoreFailedError):
                await soon(call)
        with pytest.raises(aiodq.StoreFailedError):
            opened.topic("third")
        await soon(close_quietly(opened))
        async with store(path) as opened:
            assert (await opened.topic("other").read(0)).body == b"1"

    async def test_while_it_is_being_closed(self, path: Path, tasks: Tasks) -> None:
        for policy in ("always", "os"):
            fs = WatchedFileSystem()
            jobs = await aiodq.open_queue(path.with_name(policy), aiodq.StoreOptions(sync=policy), fs=fs)
            await fill(jobs, numbered(3))
            message = await jobs.get()
            message.ack_nowait()
            fs.fail(errno.EIO, "sync")
            closing = [tasks.start(jobs.aclose()) for _ in range(3)]
            await asyncio.wait(closing, timeout=20)
            assert all(isinstance(outcome(task), aiodq.StoreFailedError) for task in closing)
            assert fs.open_files == 0
            async with queue(path.with_name(policy)) as jobs:
                assert set(ready_now(jobs)) >= {b"1", b"2"}

    async def test_before_the_topics_are_closed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        jobs = await aiodq.open_queue(path)
        await jobs.put(b"1")
        end = Backups.end

        async def sync_fails(backups: Backups) -> None:
            host: Any = backups._host
            host.fail(aiodq.StoreFailedError("a sync that was under way failed"))
            await end(backups)

        monkeypatch.setattr(Backups, "end", sync_fails)
        for _ in range(2):
            with pytest.raises(aiodq.StoreFailedError, match="under way"):
                await soon(jobs.aclose())

    async def test_in_several_topics_at_once_while_it_is_being_closed(self, path: Path) -> None:
        fs = WatchedFileSystem()
        opened = await aiodq.open(path, aiodq.StoreOptions(sync="os"), fs=fs)
        for name in "abcdef":
            await opened.queue(name).put(b"1")
        fault = fs.fail(errno.EIO, "sync", at=3)
        with pytest.raises(aiodq.StoreFailedError):
            await soon(opened.aclose())
        assert fault.hits
        assert fs.open_files == 0
        async with store(path) as opened:
            assert opened.topics() == list("abcdef")

    @pytest.mark.parametrize("policy", ["interval", "os"])
    async def test_under_the_other_policies_too(self, path: Path, policy: SyncPolicy) -> None:
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, aiodq.StoreOptions(sync=policy, sync_every=5), fs=fs)
        await jobs.put(b"0")
        fs.fail(errno.EIO, "sync", match=".seg")
        with pytest.raises(aiodq.StoreFailedError):
            await soon(jobs.sync())
        with pytest.raises(aiodq.StoreFailedError):
            await soon(jobs.put(b"1"))
        await soon(close_quietly(jobs))
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"0"]

    async def test_all_are_told_and_none_is_told_the_same_object(self, path: Path) -> None:
        """Else the tracebacks of all who are told pile up in one exception."""
        fs = WatchedFileSystem()
        jobs = await aiodq.open_queue(path, fs=fs)
        fs.fail(errno.EIO, "sync", match=".seg")
        with pytest.raises(aiodq.StoreFailedError):
            await soon(jobs.put(b"a"))
        told = []
        for _ in range(3):
            with pytest.raises(aiodq.StoreFailedError) as caught:
                await soon(jobs.put(b"a"))
            told.append(caught.value)
        assert len({id(error) for error in told}) == 3
        await soon(close_quietly(jobs))


async def close_quietly(opened: aiodq.Queue | aiodq.Store) -> None:
    """Close a store that has failed; it may say so once more."""
    with suppress(aiodq.StoreFailedError):
        await opened.aclose()


class TestFullDisk:
    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
    async def test_a_put_is_refused_and_a_later_one_works(self, path: Path, error: int) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            fs.fail(error, "write", match=".seg")
            for call in (jobs.put(b"x"), jobs.put_many([b"x", b"y"]), jobs.put_nowait(b"x")):
                with pytest.raises(aiodq.DiskFullError) as caught:
                    await soon(call)
                assert caught.value.retriable
                assert caught.value.errno == error
            assert (jobs.end_offset, jobs.topic_stats().pending) == (3, 0)
            fs.heal()
            assert await soon(jobs.put(b"3")) == 3
            assert ready_now(jobs) == numbered(4)
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(4)

    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_consuming_and_acking_go_on(self, path: Path, policy: str) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync=policy, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
            fs.fail(errno.ENOSPC, "write", "create")
            with pytest.raises(aiodq.DiskFullError):
                await soon(jobs.put(b"x"))
            held = await take(jobs, 10)
            assert bodies_of(held) == numbered(10)
            for message in held:
                message.ack_nowait()
            assert (jobs.depth, jobs.qsize()) == (20, 20)
            with pytest.raises(aiodq.DiskFullError):
                await soon(jobs._channel_engine.committed())
            fs.heal()
            await soon(jobs.sync())
            assert await soon(jobs.put(b"30")) == 30
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(21, start=10)

    async def test_an_ack_says_that_it_is_not_durable_and_becomes_so(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            first, second = await take(jobs, 2)
            fs.fail(errno.ENOSPC, "write", match="journal")
            with pytest.raises(aiodq.DiskFullError):
                await soon(first.ack())
            assert (jobs.depth, first.settled) == (2, True)
            with pytest.raises(aiodq.AlreadySettledError):
                await first.ack()
            fs.heal()
            await soon(second.ack())
            image = crash_image(path, path.with_name("image"), fs)
        async with queue(image) as jobs:
            assert ready_now(jobs) == [b"2"]

    async def test_an_ack_that_did_not_fit_is_written_later_by_itself(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            fs.fail(errno.ENOSPC, "write", match="journal", times=1)
            message = await jobs.get()
            with pytest.raises(aiodq.DiskFullError):
                await soon(message.ack())
            since = len(fs.passed)
            await until(lambda: bool(fs.named("sync", match="journal", since=since)))

    async def test_closing_a_full_disk_keeps_what_was_settled_where_it_can(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(4))
            first, second = await take(jobs, 2)
            await first.ack()
            fs.fail(errno.ENOSPC, "write", "create", match="channels")
            second.ack_nowait()
        async with queue(path) as jobs:
            found = ready_now(jobs)
            assert found[-2:] == [b"2", b"3"]
            assert b"0" not in found

    @pytest.mark.slow_on_uvloop
    @pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
    async def test_at_every_write_nothing_promised_is_lost_and_it_goes_on(
        self, path: Path, stride: int, seed: int
    ) -> None:
        """G12 and G13, for every k: one write or file is refused; the store lives, and so does everything promised."""
        at = 1 + seed % stride
        while True:
            fs, place = WatchedFileSystem(), path.with_name(f"store{at}")
            promised: list[bytes] = []
            async with queue(place, fs=fs, segment_bytes=378) as jobs:
                fault = fs.fail(errno.ENOSPC, "write", "create", "rename", "truncate", at=at, times=1)
                for body in numbered(12):
                    try:
                        await soon(jobs.put(body))
                    except aiodq.DiskFullError:
                        await soon(jobs.put(body))
                    promised.append(body)
                    if len(promised) % 3 == 0:
                        message = await soon(jobs.get())
                        assert message.body == promised.pop(0)
                        try:
                            await soon(message.ack())
                        except aiodq.DiskFullError:
                            await soon(jobs.sync())
                assert jobs.depth == len(promised)
            async with queue(place) as jobs:
                assert ready_now(jobs) == promised, at
                assert jobs.topic_stats().damages == 0
            assert odd_files(place) == []
            if not fault.hits:
                break
            at += stride
        assert at > 20

    async def test_the_note_of_how_far_it_is_durable_may_be_late(self, path: Path) -> None:
        """The watermark is written after the sync and promises nothing by itself: no room for it is no failure."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            fs.fail(errno.ENOSPC, "write", match="watermark")
            assert await soon(fill(jobs, numbered(3))) == [0, 1, 2]
            fs.heal()
            assert await soon(jobs.put(b"3")) == 3
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(4)

    async def test_freeing_space_by_consuming_lets_puts_go_on(self, path: Path) -> None:
        """The disk is as large as ten segments: put until it is full, consume, put again, a hundred times."""
        fs = WatchedFileSystem()
        room = 3000

        def full(call: object) -> None:
            kind, data = getattr(call, "kind", ""), getattr(call, "data", b"")
            if kind in {"write", "create"} and str(getattr(call, "path", "")).endswith(".seg"):
                used = sum(found.stat().st_size for found in path.rglob("*.seg"))
                if used + len(data) > room:
                    raise OSError(errno.ENOSPC, "full")

        async with queue(path, fs=fs, segment_bytes=428, sync="os") as jobs:
            fs.add(full)
            number = got = 0
            for _ in range(20):
                try:
                    while True:
                        await soon(jobs.put(b"%d" % number))
                        number += 1
                except aiodq.DiskFullError:
                    pass
                for body in await drain(jobs):
                    assert body == b"%d" % got
                    got += 1
                await soon(jobs.sync())
                await until(lambda: len(list(path.rglob("*.seg"))) == 1)
            assert got == number > 500
            fs.heal()


class TestOtherWrites:
    @pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL, errno.EPERM])
    async def test_a_write_that_fails_is_told_and_leaves_no_trace(self, path: Path, error: int) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            fs.fail(error, "write", match=".seg", times=1)
            with pytest.raises(aiodq.StorageError) as caught:
                await soon(jobs.put(b"x"))
            assert caught.value.errno == error
            assert await soon(jobs.put(b"3")) == 3
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(4)

    async def test_a_write_that_takes_too_little(self, path: Path) -> None:
        fs = WatchedFileSystem()
        fs.fail(None, "write", short=7)
        async with queue(path, fs=fs, segment_bytes=428) as jobs:
            await fill(jobs, numbered(20))
            await jobs.put_many(numbered(20, start=20))
            for message in await take(jobs, 5):
                await message.ack()
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(35, start=5)

    async def test_half_a_write_and_then_a_full_disk(self, path: Path) -> None:
        left = 10**9

        def little(call: Passed) -> None:
            nonlocal left
            if call.kind == "write" and call.segment:
                if not left:
                    raise OSError(errno.ENOSPC, "full")
                call.takes = min(left, len(call.data))
                left -= call.takes

        fs = WatchedFileSystem()
        fs.add(little)
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            for size in range(1, 40, 3):
                left = size
                with pytest.raises(aiodq.DiskFullError):
                    await soon(jobs.put_many([b"half" * 20, b"of it"]))
                left = 10**9
                if size % 2:
                    await soon(jobs.put(b"%d" % jobs.end_offset))
            expected = numbered(jobs.end_offset)
            assert jobs.depth == len(expected)
        async with queue(path) as jobs:
            assert ready_now(jobs) == expected
            assert jobs.topic_stats().damages == 0

    async def test_no_store_is_stopped_by_a_reader(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            fs.fail(errno.EIO, "read", "open")
            with pytest.raises(aiodq.StorageError):
                await soon(jobs.read(1))
            with pytest.raises(aiodq.StorageError):
                _ = [message async for message in jobs.scan()]
            assert await soon(jobs.put(b"3")) == 3
            fs.heal()
            assert (await jobs.read(1)).body == b"1"

    async def test_syncs_are_shared_again_after_a_refused_batch(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"0")
            gate = fs.gate("sync", match=".seg")
            first = tasks.start(jobs.put(b"1"))
            await gate.wait()
            fs.fail(errno.ENOSPC, "write", match=".seg", times=1)
            refused = [tasks.start(jobs.put(b"x")) for _ in range(5)]
            await turns()
            gate.open()
            assert await soon(first) == 1
            await asyncio.wait(refused, timeout=20)
            assert all(isinstance(outcome(task), aiodq.DiskFullError) for task in refused)
            since = len(fs.passed)
            await soon(asyncio.gather(*(jobs.put(body) for body in numbered(10, start=2))))
            assert log_syncs(fs, since) <= 2
            assert ready_now(jobs) == numbered(12)


@pytest.mark.parametrize("what", ["sync", "delete_channel", "close"])
async def test_who_has_begun_to_wait_in_the_turn_in_which_the_store_fails_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The log is done with it, and the journals are not asked any more."""
    opened = await aiodq.open(path)
    topic = opened.topic("jobs")
    await topic.put(b"x")
    await topic.channel("c").get()

    def then_fail(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def stepped(*given: Any) -> Any:
            found = await step(*given)
            opened._store_engine.fail(OSError(errno.EIO, "broken"))
            return found

        return stepped

    with monkeypatch.context() as patched:
        for name in ("sync_log", "operate"):
            patched.setattr(TopicEngine, name, then_fail(getattr(TopicEngine, name)))
        asked: dict[str, Callable[[], Awaitable[None]]] = {
            "sync": topic.sync, "delete_channel": partial(topic.delete_channel, "c"), "close": opened.aclose,
        }  # fmt: skip
        with pytest.raises(aiodq.StoreFailedError):
            await soon(asked[what]())
    with suppress(aiodq.StoreFailedError):
        await soon(opened.aclose())
