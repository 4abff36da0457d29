"""Putting: one, many, without waiting, what cannot be stored, and what each sync policy promises."""

from __future__ import annotations

import asyncio
import errno
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.clock import SystemClock
from aiodq.engine.topic.commit.io_loop import IoLoop
from aiodq.engine.topic.retention.topic_retention import TopicRetention
from aiodq.format.frame import encode_run
from aiodq.testing import FakeClock, WatchedFileSystem
from tests.queue.support import (
    Tasks,
    crash_image,
    drain,
    files_under,
    fill,
    log_syncs,
    numbered,
    options,
    outcome,
    queue,
    ready_now,
    segments,
    soon,
    store,
    turns,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

    from aiodq.clock import Clock
    from aiodq.testing import Passed


class TestOne:
    async def test_offsets_count_from_zero_and_go_on_after_a_restart(self, path: Path) -> None:
        async with queue(path) as jobs:
            assert await fill(jobs, numbered(3)) == [0, 1, 2]
        async with queue(path) as jobs:
            assert await jobs.put(b"more") == 3
            assert (jobs.begin_offset, jobs.end_offset, jobs.durable_offset) == (0, 4, 4)

    @pytest.mark.parametrize(
        "body",
        [b"", b"a", b"\0\xff" * 9, bytearray(b"ab"), memoryview(b"abc")[1:]],
        ids=["empty", "bytes", "binary", "bytearray", "memoryview"],
    )
    async def test_bytes_come_back_as_bytes(self, path: Path, body: bytes | bytearray | memoryview) -> None:
        async with queue(path) as jobs:
            await jobs.put(body)
            message = jobs.get_nowait()
            assert message.body == bytes(body)
            assert type(message.body) is bytes

    async def test_a_buffer_may_be_changed_once_put_was_called(self, path: Path) -> None:
        async with queue(path) as jobs:
            body = bytearray(b"before")
            receipt = jobs.put_nowait(body)
            body[:] = b"after!"
            await receipt
            assert jobs.get_nowait().body == b"before"

    @pytest.mark.parametrize("wrong", ["text", 1, None, [1], object()], ids=lambda wrong: type(wrong).__name__)
    async def test_what_is_not_bytes_like(self, path: Path, wrong: Any) -> None:
        async with queue(path) as jobs:
            with pytest.raises(TypeError):
                await jobs.put(wrong)
            with pytest.raises(TypeError):
                jobs.put_nowait(wrong)
            with pytest.raises(TypeError):
                await jobs.put_many([b"ok", wrong])
            assert (jobs.end_offset, jobs.topic_stats().pending) == (0, 0)

    async def test_large_and_small_together(self, path: Path) -> None:
        bodies = [b"x" * size for size in (0, 1, 65_535, 65_536, 65_537, 300_000, 1 << 20, 7)]
        async with queue(path, segment_bytes=1 << 19) as jobs:
            await asyncio.gather(*(jobs.put(body) for body in bodies))
            assert await drain(jobs) == bodies
        async with queue(path) as jobs:
            assert jobs.empty()

    async def test_a_message_larger_than_a_segment_gets_one_of_its_own(self, path: Path) -> None:
        async with queue(path, segment_bytes=1000) as jobs:
            await fill(jobs, [b"a", b"b" * 5000, b"c"])
            assert jobs.topic_stats().segments == 3
            assert ready_now(jobs) == [b"a", b"b" * 5000, b"c"]

    async def test_a_put_that_never_waits_for_the_device_lets_others_run(self, path: Path) -> None:
        async with queue(path, sync="os") as jobs:
            await jobs.put(b"the first makes the files")
            other = asyncio.create_task(asyncio.sleep(0))
            puts = 0
            while not other.done():
                await jobs.put(b"a")
                puts += 1
                assert puts < 10_000
            assert puts > 1, "each gives way, though it has nothing to wait for"

    @pytest.mark.parametrize("clock", [FakeClock(), SystemClock()], ids=["stands-still", "goes-on"])
    async def test_one_among_others_puts_again_and_again(self, path: Path, clock: Clock) -> None:
        async with aiodq.open(path, aiodq.StoreOptions(sync="os"), clock=clock) as opened:
            jobs = opened.queue("jobs")
            done = [0, 0, 0]

            async def produce(number: int) -> None:
                while min(done) < 3:
                    done[number] += 1
                    await jobs.put(b"%d" % number)

            await asyncio.gather(*map(produce, range(3)))
            assert sum(done) < 100_000


class TestLarge:
    @pytest.mark.parametrize("number", [1, 30_000])
    async def test_it_is_encoded_beside_the_loop(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        threads: list[int] = []

        def encode(*given: Any, **named: Any) -> Any:
            threads.append(threading.get_ident())
            return encode_run(*given, **named)

        async with queue(path, sync="os") as jobs:
            await jobs.put(b"the first makes the files")
            monkeypatch.setattr("aiodq.storage.log.active_segment.encode_run", encode)
            bodies = [bytes((2 << 20) // number)] * number
            assert len(await jobs.put_many(bodies)) == number
            assert threads
            assert threading.get_ident() not in threads
            for offset in (1, number):
                assert (await jobs.read(offset)).body == bodies[0]


@pytest.mark.parametrize("sync", ["always", "os"])
async def test_every_put_is_compressed(path: Path, sync: str) -> None:
    body = bytes(10_000)
    async with queue(path, sync=sync, compression="zstd") as jobs:
        for number in range(4):
            await jobs.put(body, tag="t" if number % 2 else None)
            await jobs.put_nowait(body)
            await jobs.put_many([body])
    assert sum(segment.stat().st_size for segment in segments(path)) < len(body)
    async with queue(path) as jobs:
        assert await drain(jobs) == [body] * 12


class TestMany:
    async def test_offsets_are_a_range(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"first")
            assert await jobs.put_many(numbered(5)) == range(1, 6)
            assert await jobs.put_many(iter(numbered(2))) == range(6, 8)
            assert ready_now(jobs) == [b"first", *numbered(5), *numbered(2)]

    async def test_nothing_is_nothing(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            assert list(await jobs.put_many([])) == []
            assert jobs.end_offset == 1

    async def test_drafts_have_their_own_and_the_rest_what_was_given(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put_many(
                [b"plain", aiodq.Draft(b"own", tag="t", key=b"k", headers={"h": "1"}), aiodq.Draft(b"none")],
                tag="T", key=b"K", headers={"H": "2"},
            )  # fmt: skip
            found = [(m.body, m.tag, m.key, m.headers) for m in [jobs.get_nowait() for _ in range(3)]]
        assert found == [
            (b"plain", "T", b"K", {"H": "2"}),
            (b"own", "t", b"k", {"h": "1"}),
            (b"none", None, None, {}),
        ]

    @pytest.mark.parametrize("count", [2, 999, 1001, 1700])
    async def test_of_any_number(self, path: Path, count: int) -> None:
        async with queue(path, segment_bytes=4096) as jobs:
            assert await jobs.put_many(numbered(count)) == range(count)
            assert await drain(jobs) == numbered(count)

    async def test_larger_than_a_segment_is_still_one(self, path: Path, tmp_path: Path) -> None:
        bodies = [b"%d" % number * 10_000 for number in range(30)]
        async with queue(path, segment_bytes=4096) as jobs:
            assert await jobs.put_many(bodies) == range(30)
            crash_image(path, tmp_path / "image")
        async with queue(tmp_path / "image") as jobs:
            assert ready_now(jobs) == bodies

    async def test_one_wrong_message_refuses_all(self, path: Path) -> None:
        async with queue(path, max_message_bytes=3) as jobs:
            with pytest.raises(aiodq.MessageSizeError):
                await jobs.put_many([b"ok", b"long"])
            with pytest.raises(aiodq.InvalidMessageError):
                await jobs.put_many([b"ok", aiodq.Draft(b"b", tag="\ud800")])
            assert (jobs.end_offset, jobs.topic_stats().pending) == (0, 0)

    async def test_an_iterable_that_raises_puts_nothing(self, path: Path) -> None:
        def bodies() -> Iterator[bytes]:
            yield b"a"
            raise KeyError("mine")

        async with queue(path) as jobs:
            with pytest.raises(KeyError):
                await jobs.put_many(bodies())
            assert (jobs.end_offset, jobs.topic_stats().pending) == (0, 0)

    async def test_all_of_it_or_nothing_at_every_byte(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"before")
            at = (path / "queue" / "00000000000000000000.seg").stat().st_size
            await jobs.put_many([b"x" * 40_000, b"y" * 40_000, b"z"])
            crash_image(path, tmp_path / "image", fs)
        name = "queue/00000000000000000000.seg"
        whole = (tmp_path / "image" / name).read_bytes()
        (tmp_path / "image" / "queue" / "watermark").write_bytes(bytes(8192))  # else the cut would be damage
        for size in [at, at + 1, at + 40, at + 40_031, (at + len(whole)) // 2, len(whole) - 1, len(whole)]:
            (tmp_path / "image" / name).write_bytes(whole[:size])
            async with queue(tmp_path / "image") as jobs:
                expected = 1 if size < len(whole) else 4
                assert (jobs.end_offset, jobs.depth) == (expected, expected)
            (tmp_path / "image" / "queue" / "watermark").write_bytes(bytes(8192))


class TestNoWait:
    async def test_a_receipt_gives_the_offset_and_can_be_awaited_again(self, path: Path) -> None:
        async with queue(path) as jobs:
            receipts = [jobs.put_nowait(body) for body in numbered(5)]
            assert not any(receipt.done() for receipt in receipts)
            assert [await receipt for receipt in receipts] == list(range(5))
            assert [await receipt for receipt in receipts] == list(range(5))
            assert all(receipt.done() for receipt in receipts)

    async def test_a_receipt_that_nobody_awaits(self, path: Path, tmp_path: Path) -> None:
        async with queue(path) as jobs:
            jobs.put_nowait(b"a")
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]
        fs = WatchedFileSystem()
        async with queue(tmp_path / "other", fs=fs) as jobs:
            fs.fail(errno.ENOSPC, "write", match=".seg")
            jobs.put_nowait(b"lost")
            with pytest.raises(aiodq.DiskFullError):
                await jobs.put(b"lost, too")
            fs.heal()

    async def test_cancelling_who_awaits_it_does_not_take_it_back(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            receipt = jobs.put_nowait(b"a")
            waiting = tasks.start(receipt)
            await gate.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
            gate.open()
            assert await soon(receipt) == 0
            assert ready_now(jobs) == [b"a"]

    async def test_several_await_one_receipt_that_fails_and_it_tells_later_ones_too(
        self, path: Path, tasks: Tasks
    ) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            fs.fail(errno.ENOSPC, "write", match=".seg")
            receipts = [jobs.put_nowait(b"lost"), jobs.put_nowait(b"lost, too", tag="t")]
            waiting = [tasks.start(receipt) for receipt in (*receipts, *receipts)]
            await asyncio.wait(waiting)
            assert [type(outcome(task)) for task in waiting] == [aiodq.DiskFullError] * 4
            for receipt in receipts:
                assert receipt.done()
                with pytest.raises(aiodq.DiskFullError):
                    await receipt
            fs.heal()
            kept = jobs.put_nowait(b"b"), jobs.put_nowait(b"c", tag="t")
            waiting = [tasks.start(receipt) for receipt in kept]
            assert await soon(asyncio.gather(*waiting)) == [1, 2]
            assert [await receipt for receipt in kept] == [1, 2]

    async def test_order_is_the_order_of_the_calls(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            waiting: list[asyncio.Task[Any]] = []
            for number in range(0, 30, 3):
                waiting.append(tasks.start(jobs.put(b"%d" % number)))
                await asyncio.sleep(0)
                jobs.put_nowait(b"%d" % (number + 1))
                waiting.append(tasks.start(jobs.put_many([b"%d" % (number + 2)])))
                await asyncio.sleep(0)
            await asyncio.wait(waiting)
            assert ready_now(jobs) == numbered(30)


class TestSizes:
    async def test_bounds_are_inclusive(self, path: Path) -> None:
        async with queue(path, min_message_bytes=2, max_message_bytes=4) as jobs:
            for size in (2, 4):
                await jobs.put(b"x" * size)
                await jobs.put_nowait(b"x" * size)
                await jobs.put_many([b"x" * size])
            assert jobs.depth == 6

    @pytest.mark.parametrize("size", [0, 1, 5, 100_000])
    async def test_outside_nothing_is_written(self, path: Path, size: int) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, min_message_bytes=2, max_message_bytes=4) as jobs:
            await jobs.put(b"good")
            before = files_under(path)
            with pytest.raises(aiodq.MessageSizeError) as caught:
                await jobs.put(b"x" * size)
            assert str(size) in str(caught.value)
            assert isinstance(caught.value, ValueError)
            with pytest.raises(aiodq.MessageSizeError):
                jobs.put_nowait(b"x" * size)
            with pytest.raises(aiodq.MessageSizeError):
                await jobs.put_many([b"good", b"x" * size])
            await jobs.sync()
            assert files_under(path) == before
            assert await jobs.put(b"next") == 1

    async def test_the_default_bound_is_sixteen_mebibytes(self, path: Path) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.MessageSizeError):
                await jobs.put(bytes((16 << 20) + 1))
            await jobs.put(bytes(16 << 20))
            assert len(jobs.get_nowait().body) == 16 << 20


class TestExtras:
    GOOD: tuple[dict[str, Any], ...] = (
        {"tag": ""}, {"tag": "t"}, {"tag": "ünïcödé 🎉"}, {"tag": "x" * 65_536}, {"key": b""}, {"key": b"\0\xff"},
        {"key": bytearray(b"k")}, {"key": memoryview(b"key")}, {"key": b"x" * (1 << 20)}, {"headers": {}},
        {"headers": {"": ""}}, {"headers": {"a": "1", "b": "2"}}, {"headers": {"ü": "🎉"}},
        {"headers": {str(number): "v" for number in range(1000)}},
        {"tag": "t", "key": b"k", "headers": {"h": "v"}},
    )  # fmt: skip
    BAD = (
        {"tag": b"bytes"}, {"tag": 1}, {"tag": "\ud800"}, {"tag": "x" * 65_537}, {"key": "text"}, {"key": 1},
        {"key": b"x" * ((1 << 20) + 1)}, {"headers": {"a": 1}}, {"headers": {1: "a"}}, {"headers": {"a": b"b"}},
        {"headers": {"\udfff": "a"}}, {"headers": {"a": "x" * (1 << 20)}},
        {"headers": {str(number): "" for number in range(65_536)}}, {"headers": [("a", "b")]}, {"headers": "text"},
    )  # fmt: skip

    @pytest.mark.parametrize("given", GOOD, ids=lambda given: repr(given).partition(" at 0x")[0][:40])
    async def test_round_trip_in_memory_and_from_disk(self, path: Path, given: dict[str, Any]) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"plain")
            await jobs.put(b"body", **given)
            await jobs.put_nowait(b"body", **given)
            await jobs.put_many([b"body", b"body"], **given)
            assert [await jobs.get() for _ in range(3)]
        async with queue(path) as jobs:
            for number in range(5):
                message = await soon(jobs.get())
                looked = await jobs.read(number)
                for found in (message, looked):
                    if number:
                        expected = given.get("tag"), given.get("key"), given.get("headers", {})
                    else:
                        expected = None, None, {}
                    assert (found.tag, found.key, dict(found.headers)) == expected

    @pytest.mark.parametrize("given", BAD, ids=lambda given: repr(given)[:40])
    async def test_what_cannot_be_stored_is_refused_before_anything_is(self, path: Path, given: dict[str, Any]) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.InvalidMessageError, match=next(iter(given))):
                await jobs.put(b"body", **given)
            with pytest.raises(aiodq.InvalidMessageError):
                jobs.put_nowait(b"body", **given)
            with pytest.raises(aiodq.InvalidMessageError):
                await jobs.put_many([b"body"], **given)
            assert (jobs.end_offset, jobs.topic_stats().pending) == (0, 0)
            assert await jobs.put(b"next") == 0

    async def test_headers_may_be_changed_afterwards(self, path: Path) -> None:
        async with queue(path) as jobs:
            headers = {"a": "1"}
            receipt = jobs.put_nowait(b"body", headers=headers)
            headers["a"] = "2"
            await receipt
            assert jobs.get_nowait().headers == {"a": "1"}


def covered(fs: WatchedFileSystem, body: bytes, moment: int) -> bool:
    """Return whether a sync that began after this body was written to its file had ended at `moment`."""
    written = next(call for call in fs.named("write", match=".seg") if body in call.data)
    syncs = [call for call in fs.named("sync") if call.path == written.path]
    return any(written.ended < sync.begun and 0 < sync.ended < moment for sync in syncs)


class TestSyncAlways:
    async def test_a_put_returns_after_a_sync_that_began_after_its_write(self, path: Path, seed: int) -> None:
        """G2: eight producers, and syncs that take as long as it takes for more to come."""
        fs = WatchedFileSystem()
        returned: dict[bytes, int] = {}
        total, each = 8 * 12, 12

        def linger(call: Passed) -> None:
            # Hold each sync up until others have put something: the case in which a put could join too late.
            if call.kind == "sync" and call.segment:
                pause.wait(0.002)

        pause = threading.Event()
        async with queue(path, fs=fs, segment_bytes=3000) as jobs:
            fs.add(linger)

            async def produce(name: int) -> None:
                for number in range(each):
                    body = b"<%d-%d-%d>" % (seed, name, number)
                    await jobs.put(body)
                    returned[body] = fs.tick()

            await asyncio.gather(*(produce(name) for name in range(8)))
            assert len(returned) == total
            assert all(covered(fs, body, moment) for body, moment in returned.items())
            # Group commit: those that wait together share one.
            assert log_syncs(fs) < total / 2

    async def test_what_is_put_while_a_sync_runs_waits_for_the_next(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            first = tasks.start(jobs.put(b"first"))
            await gate.wait()
            late = [tasks.start(jobs.put(body)) for body in numbered(3)]
            await turns(20)
            assert not first.done()
            assert (jobs.qsize(), jobs.topic_stats().pending) == (0, 4)
            since = len(fs.passed)
            gate.open()
            assert await soon(asyncio.gather(first, *late)) == [0, 1, 2, 3]
            assert log_syncs(fs, since) == 1

    async def test_producers_that_wait_for_each_other_s_syncs_come_to_share_them(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            since = len(fs.passed)
            await asyncio.gather(*(fill(jobs, numbered(20)) for _ in range(3)))
            # The first goes alone, the others together, and then all three.
            assert log_syncs(fs, since) <= 22

    async def test_one_who_puts_alone_is_told_without_a_turn_of_the_loop_s(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs, turned = WatchedFileSystem(), []
        async with queue(path, fs=fs, sync_interval=3600) as jobs:
            await fill(jobs, numbered(3))
            monkeypatch.setattr(IoLoop, "_take_reports", lambda _: turned.append(1))
            since = len(fs.passed)
            assert [await soon(jobs.put(b"alone")) for _ in range(5)] == [3, 4, 5, 6, 7]
            assert (log_syncs(fs, since), turned) == (5, [])
            monkeypatch.undo()
            assert jobs.durable_offset == 8

    async def test_what_is_not_durable_is_not_delivered(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            putting = tasks.start(jobs.put(b"a"))
            getting = tasks.start(jobs.get())
            await gate.wait()
            await turns(20)
            assert not getting.done()
            with pytest.raises(aiodq.OffsetError):
                await jobs.read(0)
            gate.open()
            assert (await soon(getting)).body == b"a"
            assert await soon(putting) == 0

    async def test_a_receipt_is_done_when_it_is_durable(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            receipt = jobs.put_nowait(b"a")
            await gate.wait()
            assert not receipt.done()
            gate.open()
            assert await soon(receipt) == 0

    async def test_an_ack_returns_after_its_journal_was_synced(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            message = jobs.get_nowait()
            since = len(fs.passed)
            await message.ack()
            written, synced = (
                fs.named("write", match="journal", since=since),
                fs.named("sync", match="journal", since=since),
            )
            assert len(written) == 1
            # A sync that was under way already, of nothing that was settled, is none of its own.
            assert any(written[0].ended < each.begun < each.ended for each in synced)

    @pytest.mark.usefixtures("unshown")
    async def test_every_byte_is_synced_when_it_is_closed(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=500) as jobs:
            await fill(jobs, numbered(50))
        for call in fs.named("write"):
            if call.name != "watermark":
                assert any(sync.path == call.path and sync.begun > call.ended for sync in fs.named("sync")), call


class TestSyncInterval:
    async def test_a_put_waits_for_no_sync(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_every=1000, sync_interval=3600) as jobs:
            await jobs.put(b"first")
            since = len(fs.passed)
            await fill(jobs, numbered(20))
            assert log_syncs(fs, since) == 0
            assert jobs.durable_offset < jobs.end_offset == 21
            assert ready_now(jobs) == [b"first", *numbered(20)]

    async def test_a_sync_after_so_many_messages(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_every=10, sync_interval=3600) as jobs:
            since = len(fs.passed)
            await fill(jobs, numbered(9))
            assert log_syncs(fs, since) == 0
            await jobs.put(b"the tenth")
            await until(lambda: jobs.durable_offset == 10)
            assert log_syncs(fs, since) == 1
            await fill(jobs, numbered(9))
            await turns(20)
            assert log_syncs(fs, since) == 1
            await jobs.put_many(numbered(25))
            await until(lambda: jobs.durable_offset == 44)
            assert log_syncs(fs, since) == 2

    async def test_as_many_are_put_during_a_sync(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_every=10, sync_interval=3600) as jobs:
            gate, since = fs.gate("sync", match=".seg"), len(fs.passed)
            await fill(jobs, numbered(10))
            await gate.wait()
            await fill(jobs, numbered(15))
            gate.open()
            await until(lambda: jobs.durable_offset == 25)
            assert log_syncs(fs, since) == 2

    async def test_what_an_earlier_owner_put_does_not_count(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_every=10) as jobs:
            await fill(jobs, numbered(9))
        async with queue(path, fs=fs, sync="interval", sync_every=10, sync_interval=3600) as jobs:
            since = len(fs.passed)
            await fill(jobs, numbered(9))
            await turns(20)
            assert log_syncs(fs, since) == 0
            await jobs.put(b"the tenth")
            await until(lambda: log_syncs(fs, since) == 1)

    async def test_a_sync_after_so_much_time(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_every=1000, sync_interval=0.02) as jobs:
            await fill(jobs, numbered(3))
            await until(lambda: jobs.durable_offset == 3)

    async def test_a_shorter_time_counts_at_once(self, path: Path) -> None:
        async with queue(path, sync="interval", sync_interval=3600) as jobs:
            await jobs.put(b"before")
            await jobs.topic.configure(options(sync="interval", sync_interval=0.02))
            await jobs.put(b"after")
            await until(lambda: jobs.durable_offset == 2)

    async def test_none_while_nothing_is_new(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_interval=0.005) as jobs:
            await jobs.put(b"a")
            await until(lambda: jobs.durable_offset == 1)
            since, ticks = len(fs.passed), []
            monkeypatch.setattr(TopicRetention, "retain", lambda _: ticks.append(1))
            while len(ticks) < 5:
                before = len(ticks)
                jobs._engine.schedule_tick()
                await until(lambda: len(ticks) > before)
            assert log_syncs(fs, since) == 0

    async def test_acks_are_synced_with_time_as_well(self, path: Path) -> None:
        """As diskqueue's TestDiskQueueSyncAfterRead: the ticker syncs what was read, too."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_interval=0.02) as jobs:
            await jobs.put(b"a")
            message = jobs.get_nowait()
            since = len(fs.passed)
            message.ack_nowait()
            await until(lambda: bool(fs.named("sync", match="journal", since=since)))

    async def test_so_are_those_that_are_written_already(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_interval=3600) as jobs:
            await jobs.put(b"a")
            message = jobs.get_nowait()
            since = len(fs.passed)
            message.ack_nowait()
            await until(lambda: bool(fs.named("write", match="journal", since=since)))
            await turns(20)
            assert not fs.named("sync", match="journal", since=since)
            jobs._engine.io_loop._ticked()
            await until(lambda: bool(fs.named("sync", match="journal", since=since)))

    async def test_sync_makes_it_so_now(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_every=1000, sync_interval=3600) as jobs:
            await fill(jobs, numbered(5))
            (await jobs.get()).ack_nowait()
            jobs.put_nowait(b"accepted")
            since = len(fs.passed)
            await soon(jobs.sync())
            assert jobs.durable_offset == jobs.end_offset == 6
            assert log_syncs(fs, since) >= 1
            assert fs.named("sync", match="journal", since=since)


class TestCrowd:
    """Many tasks that put in one turn of the loop, where no put waits for a sync."""

    async def test_their_puts_are_written_in_batches_and_a_lone_one_s_at_once(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os", sync_interval=3600) as jobs:
            await fill(jobs, numbered(3))

            async def writes(work: Awaitable[object]) -> int:
                since = len(fs.passed)
                await soon(work)
                return len(fs.named("write", match=".seg", since=since))

            def crowd(each: int = 1) -> Awaitable[object]:
                return asyncio.gather(*(fill(jobs, numbered(each)) for _ in range(100)))

            assert await writes(crowd()) < 20
            assert await writes(crowd()) == 1
            assert await writes(crowd(5)) == 5
            await jobs.sync()
            assert await writes(crowd()) == 1
            await fill(jobs, [b"the crowd is gone"] * 4)
            assert await writes(fill(jobs, numbered(20))) == 20
            few = asyncio.gather(*(fill(jobs, numbered(1)) for _ in range(5)))
            assert await writes(few) == 5
            assert [message.offset for message in await jobs.get_many(1000)] == list(range(832))

    async def test_order_is_the_order_of_the_calls(self, path: Path) -> None:
        async with queue(path, sync="os") as jobs:
            await fill(jobs, numbered(3))
            for _ in range(3):
                first = jobs.end_offset
                given = await asyncio.gather(*(jobs.put(b"%d" % number) for number in range(50)))
                assert given == list(range(first, first + 50))
            bodies = [message.body for message in await jobs.get_many(1000)]
            assert bodies == numbered(3) + 3 * numbered(50)


class TestSyncOs:
    async def test_none_until_it_is_closed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os", sync_interval=0.001) as jobs:
            since, ticks = len(fs.passed), []
            retain = TopicRetention.retain

            def counted(retention: TopicRetention) -> None:
                ticks.append(1)
                retain(retention)

            monkeypatch.setattr(TopicRetention, "retain", counted)
            await fill(jobs, numbered(50))
            for _ in range(10):
                await (await jobs.get()).ack()
            while len(ticks) < 5:
                await jobs.put(b"one more")
                await asyncio.sleep(0.001)
            assert fs.named("sync", since=since) == []
            since = len(fs.passed)
        assert log_syncs(fs, since) >= 1
        assert fs.named("sync", match="channels", since=since)

    async def test_a_full_segment_is_synced_before_the_next_begins(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os", segment_bytes=500) as jobs:
            await fill(jobs, numbered(50))
            found = fs.named("create", match=".seg")
            assert len(found) > 2
            for before, following in pairwise(found):
                last = max(call.ended for call in fs.named("write") if call.path == before.path)
                assert any(
                    last < s.begun and s.ended < following.begun for s in fs.named("sync") if s.path == before.path
                )

    async def test_sync_makes_it_so_now(self, path: Path) -> None:
        async with queue(path, sync="os") as jobs:
            await fill(jobs, numbered(5))
            assert jobs.durable_offset == 0
            await soon(jobs.sync())
            assert jobs.durable_offset == 5


class TestAnotherPolicy:
    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_what_was_written_under_the_one_before_returns_and_is_shown_in_order(
        self, path: Path, tasks: Tasks, policy: str
    ) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            jobs = opened.queue("jobs")
            await jobs.put(b"first")
            gate = fs.gate("sync", match=".seg")
            synced = tasks.start(jobs.put(b"being synced"))
            await gate.wait()
            large = tasks.start(jobs.put_many([b"l" * 100_000] * 15))  # as much is written during a sync
            await until(lambda: jobs.topic._engine.log.end == 17)
            opened.topic("jobs", options(sync=policy, sync_interval=3600))
            later = tasks.start(jobs.put(b"later"))
            await turns(20)
            assert jobs.qsize() == 1
            gate.open()
            assert (await soon(synced), await soon(large), await soon(later)) == (1, range(2, 17), 17)
            assert [(await soon(jobs.get())).offset for _ in range(18)] == list(range(18))


class TestSync:
    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_of_nothing(self, path: Path, policy: str) -> None:
        async with queue(path, sync=policy) as jobs:
            await soon(jobs.sync())
            await jobs.put(b"a")
            await soon(jobs.sync())
            await soon(jobs.sync())
            assert jobs.durable_offset == 1

    async def test_of_a_topic_without_files(self, path: Path) -> None:
        async with store(path) as opened:
            await soon(opened.topic("named").sync())
            assert opened.topics() == []

    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_covers_everything_accepted_before_and_waits_for_nothing_after(
        self, path: Path, tasks: Tasks, policy: str
    ) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync=policy, sync_interval=3600) as jobs:
            gate = fs.gate("sync", match=".seg")
            receipts = [jobs.put_nowait(body) for body in numbered(5)]
            syncing = tasks.start(jobs.sync())
            await gate.wait()
            await turns()
            assert not syncing.done()
            gate.open()
            await soon(syncing)
            assert all(receipt.done() for receipt in receipts)
            assert jobs.durable_offset == 5

    async def test_when_everything_accepted_was_cancelled(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            first = tasks.start(jobs.put(b"a"))
            await gate.wait()
            doomed = tasks.start(jobs.put(b"b"))
            await turns()
            syncing = tasks.start(jobs.sync())
            await turns()
            doomed.cancel()
            await asyncio.wait([doomed])
            gate.open()
            await soon(syncing)
            assert outcome(first) == 0
            assert jobs.end_offset == 1


class TestOneAtATime:
    """Who writes the log, who syncs it and who changes its files."""

    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_nothing_is_written_while_a_thread_has_the_log(self, path: Path, tasks: Tasks, policy: str) -> None:
        fs, begun, over = WatchedFileSystem(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            over.wait(20)

        async with queue(path, fs=fs, sync=policy, sync_interval=3600) as jobs:
            await fill(jobs, numbered(3))
            working = tasks.start(jobs._engine.operate(work))
            await until(begun.is_set)
            await turns()
            since = len(fs.passed)
            put = tasks.start(jobs.put(b"3"))
            await turns()
            written = fs.named("write", match=".seg", since=since)
            over.set()
            assert await soon(put) == 3
            await soon(working)
            assert not written

    async def test_no_segment_is_begun_while_the_one_before_is_synced(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=500, sync="interval", sync_every=3, sync_interval=3600) as jobs:
            gate = fs.gate("sync", match=".seg")
            await fill(jobs, numbered(3))
            await gate.wait()
            since = len(fs.passed)
            put = tasks.start(jobs.put(bytes(400)))
            await until(lambda: jobs._engine.writer.rolling)
            for _ in range(20):
                await asyncio.sleep(0.001)  # a thread would have begun
            begun = fs.named("write", match=".seg", since=since)
            gate.open()
            assert await soon(put) == 3
            assert not begun


class TestCancelling:
    async def test_before_the_writer_takes_it_it_is_not_stored(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            first = tasks.start(jobs.put(b"first"))
            await gate.wait()
            kept = tasks.start(jobs.put(b"kept"))
            gone = [tasks.start(jobs.put(b"gone")), tasks.start(jobs.put_many([b"gone", b"gone"]))]
            last = tasks.start(jobs.put_many([b"last", b"of all"]))
            await turns()
            for task in gone:
                task.cancel()
            await asyncio.wait(gone)
            gate.open()
            assert list(await soon(asyncio.gather(first, kept, last))) == [0, 1, range(2, 4)]
            assert all(task.cancelled() for task in gone)
            assert ready_now(jobs) == [b"first", b"kept", b"last", b"of all"]
            assert jobs.topic_stats().pending == 0

    async def test_after_that_it_is(self, path: Path, tasks: Tasks) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            gate = fs.gate("sync", match=".seg")
            puts = [tasks.start(jobs.put(b"a")), tasks.start(jobs.put_many([b"b", b"c"]))]
            await gate.wait()
            for task in puts:
                task.cancel()
            await asyncio.wait(puts)
            gate.open()
            assert (await soon(jobs.get())).body == b"a"
            assert ready_now(jobs) == [b"b", b"c"]
            assert all(task.cancelled() for task in puts)

    async def test_one_cancelled_put_takes_no_other_of_its_batch_along(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            puts = [tasks.start(jobs.put(body)) for body in numbered(20)]
            await asyncio.sleep(0)
            for task in puts[::3]:
                task.cancel()
            await asyncio.wait(puts)
            offsets = {
                task.result(): body for task, body in zip(puts, numbered(20), strict=True) if not task.cancelled()
            }
            assert len(offsets) == 13
            for offset, body in offsets.items():
                assert (await jobs.read(offset)).body == body
