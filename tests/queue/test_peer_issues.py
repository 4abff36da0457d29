"""What other queues' users complained about (PEER-ISSUES.md), each as a test that aiodq must pass."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.format.layout import COMPACT_MIN, padded
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    Tasks,
    crash_image,
    drain,
    fill,
    numbered,
    odd_files,
    queue,
    ready_now,
    segments,
    soon,
    store,
    take,
    turns,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestIssue1:
    """go-diskqueue#42 #38 #47, nsq#1491 #1514: a reader caught up at a rotation renames a healthy file to `.bad`."""

    @pytest.mark.parametrize("policy", ["always", "os"])
    async def test_no_bad_after_alternate_put_and_get_across_rotations(self, path: Path, policy: str) -> None:
        async with queue(path, segment_bytes=328, sync=policy) as jobs:
            for number in range(100):
                await jobs.put(b"%d" % number)
                message = await jobs.get()
                assert message.offset == number
                await message.ack()
            assert (jobs.stats().lost, jobs.topic_stats().damages, jobs.depth) == (0, 0, 0)
            await jobs.sync()
            await until(lambda: len(segments(path)) == 1)
        assert odd_files(path) == []

    async def test_nor_for_a_reader_from_disk_that_catches_up(self, path: Path) -> None:
        async with queue(path, segment_bytes=328) as jobs:
            await fill(jobs, numbered(30))
        async with queue(path, segment_bytes=328) as jobs:
            assert await drain(jobs) == numbered(30)
            for number in range(30, 60):
                await jobs.put(b"%d" % number)
                assert await drain(jobs) == [b"%d" % number]
            assert jobs.stats().lost == 0
        assert odd_files(path) == []


class TestIssue2:
    """go-diskqueue#28 #31: metadata older than the data; a restart overwrote unread records."""

    async def test_older_metadata_overwrites_nothing(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os") as jobs:
            await fill(jobs, numbered(5))
            await jobs.sync()
            crash_image(path, tmp_path / "early", fs)
            await fill(jobs, numbered(20, start=5))
            for message in await take(jobs, 3):
                await message.ack()
        stale = tmp_path / "early" / "queue"
        for name in ("watermark", "topic.json", "channels/default/journal"):
            (path / "queue" / name).write_bytes((stale / name).read_bytes())
        (path / "queue" / "channels" / "default" / "checkpoint").unlink(missing_ok=True)
        async with queue(path, segment_bytes=428) as jobs:
            assert jobs.end_offset == 25
            await fill(jobs, numbered(20, start=25))
            # What the older metadata did not know of as read comes again; nothing is lost or changed.
            assert await drain(jobs) == numbered(45)


class TestIssue3:
    """go-diskqueue#29 #32, nsq#246 #693: depth wrong, negative, or never 0 after read errors or a crash."""

    async def test_depth_is_exact_after_read_errors(self, path: Path) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            for at in range(30):
                if at % 5 == 0:
                    fs.fail(errno.EIO, "read", match=".seg", times=1)
                try:
                    message = await soon(jobs.get())
                except aiodq.StorageError:
                    message = await soon(jobs.get())
                assert jobs.depth == 30 - at
                await message.ack()
                assert jobs.depth == 29 - at

    async def test_depth_is_exact_after_a_crash(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
            for message in (await take(jobs, 20))[::3]:
                await message.ack()
            depth = jobs.depth
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert jobs.depth == depth
            assert len(await drain(jobs)) == depth
            assert jobs.depth == 0

    async def test_depth_becomes_zero_after_damage(self, path: Path) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, [b"<%03d>" % number for number in range(30)])
        for found in segments(path)[::2]:
            data = bytearray(found.read_bytes())
            data[70] ^= 1
            found.write_bytes(data)
        async with queue(path, segment_bytes=428) as jobs:
            found_bodies = await drain(jobs)
            assert jobs.depth == 0
            assert jobs.stats().lost == 30 - len(found_bodies) > 0
            await soon(jobs.join())


class TestIssue4:
    """go-diskqueue#1, open since 2017: "too many open files" is taken for corruption, and good files become `.bad`."""

    @pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN, errno.ENOSPC, errno.EIO])
    async def test_no_errno_is_ever_taken_for_damage(self, path: Path, error: int) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
        fs = WatchedFileSystem()
        fs.fail(error, "open", match=".seg", at=2, times=1)
        with pytest.raises(aiodq.StorageError) as caught:
            await aiodq.open_queue(path, fs=fs)
        assert caught.value.errno == error
        async with queue(path, fs=fs) as jobs:
            fs.fail(error, "open", match=".seg")  # lasting: a descriptor that is missing once, the store frees itself
            with pytest.raises(aiodq.StorageError):
                jobs.get_nowait()
            fs.heal()
            assert await drain(jobs) == numbered(30)
            assert (jobs.stats().lost, jobs.topic_stats().damages) == (0, 0)
        assert odd_files(path) == []


def size_of(file: Path) -> int:
    """Return a file's size; 0 where retention has deleted it just now."""
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


class TestIssue5:
    """go-diskqueue#27, nsq#549, go-nsq#319, persist-queue#107: no limit on disk use; the box dies when it is full."""

    @pytest.mark.parametrize("overflow", ["block", "reject", "drop_oldest"])
    @pytest.mark.parametrize("bound", [{"max_messages": 20}, {"max_bytes": 8000}])
    async def test_the_directory_stays_bounded(self, path: Path, overflow: str, bound: dict[str, Any]) -> None:
        async with queue(path, segment_bytes=1000, overflow=overflow, **bound) as jobs:
            largest = refused = 0
            for number in range(120):
                putting = asyncio.create_task(jobs.put(b"%d" % number + bytes(200)))
                await turns(3)
                if overflow == "block" and jobs.depth >= 15:
                    await (await soon(jobs.get())).ack()
                try:
                    await soon(putting)
                except aiodq.QueueFull:
                    refused += 1
                    await (await soon(jobs.get())).ack()
                await soon(jobs.sync())
                largest = max(largest, sum(map(size_of, segments(path))))
            assert largest < 20_000
            assert bool(refused) is (overflow == "reject")
            assert bool(jobs.stats().dropped) is (overflow == "drop_oldest")

    async def test_a_full_disk_leaves_the_queue_readable(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=428) as jobs:
            await fill(jobs, numbered(20))
            fs.fail(errno.ENOSPC, "write", "create", match=".seg")
            with pytest.raises(aiodq.DiskFullError):
                await soon(jobs.put(b"x"))
            assert await drain(jobs) == numbered(20)
            await soon(jobs.sync())
            await until(lambda: len(segments(path)) == 1)
            fs.heal()
            assert await soon(jobs.put(b"20")) == 20


class TestIssue6:
    """nsq#938 #1275: thousands of empty temporary files after the disk was full."""

    async def test_no_temporary_file_is_left(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await topic.put(b"a")
            fs.fail(errno.ENOSPC, "write", match="tmp")
            for number in range(20):
                lame = topic.channel(f"c{number}")
                with pytest.raises(aiodq.DiskFullError):
                    await soon(lame.get())
            assert len(odd_files(path)) <= 1
            fs.heal()
            assert (await soon(topic.channel("c0").get())).body == b"a"
        assert odd_files(path) == []

    async def test_those_of_a_crash_go_at_the_next_open(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        for name in ("topic.json.aiodq-tmp", "channels/default/checkpoint.aiodq-tmp"):
            (path / "queue" / name).write_bytes(b"")
        async with queue(path) as jobs:
            assert ready_now(jobs) == [b"a"]
        assert odd_files(path) == []

    async def test_files_of_others_are_left_alone(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        others = [path / "notes.txt", path / "queue" / "notes.bad", path / "queue" / "x.tmp"]
        for other in others:
            other.write_text("mine")
        async with queue(path) as jobs:
            await drain(jobs)
            await jobs.purge()
        assert [other.read_text() for other in others] == ["mine"] * 3


@pytest.mark.usefixtures("unshown")
class TestIssue7:
    """nsq#1033: an endless loop over missing files, the file number ran to 88 million."""

    @pytest.mark.parametrize(
        "gone", [slice(0, 1), slice(1, 2), slice(2, 6), slice(0, -1), slice(-1, None), slice(None)]
    )
    async def test_missing_files_are_jumped_over(self, path: Path, gone: slice) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(50))
        found = segments(path)
        bases = [*(int(file.stem) for file in found), 50]
        missing = {offset for at in range(len(found))[gone] for offset in range(bases[at], bases[at + 1])}
        for file in found[gone]:
            file.unlink()
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            rest = [body for number, body in enumerate(numbered(50)) if number not in missing]
            assert await drain(jobs) == rest
            assert jobs.depth == 0
            assert await jobs.put(b"next") == 50
            assert await drain(jobs) == [b"next"]
            assert len(fs.named("create")) <= 3
        assert len(segments(path)) <= len(found)

    async def test_a_number_far_away(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        found = segments(path)[0]
        found.rename(found.with_name(f"{88_000_000:020}.seg"))
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            offset = await soon(jobs.put(b"next"))
            assert (await soon(jobs.get())).offset == offset
            assert len(fs.passed) < 300


class TestIssue8:
    """nsq#1386 #1391 #1142 #755 #510: messages in flight and in memory are lost by a crash."""

    async def test_in_flight_survive(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=428) as jobs:
            await fill(jobs, numbered(30))
            held = await take(jobs, 30)
            for message in held[10:]:
                await message.ack()
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert ready_now(jobs) == numbered(10)

    async def test_requeued_survive_with_their_attempts(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            for message in await take(jobs, 3):
                await message.nack()
            await soon(jobs.sync())
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert [message.attempts for message in await take(jobs, 3)] == [2, 2, 2]


class TestIssue20:
    """persist-queue#180 #56 #142, python-pqueue#12: a power cut leaves NULs; the queue cannot be opened for ever."""

    @pytest.mark.parametrize("name", ["topic.json", "watermark", "channels/default/journal", "segment"])
    async def test_zeros_anywhere_do_not_stop_it(self, path: Path, name: str) -> None:
        async with queue(path, segment_bytes=428) as jobs:
            await fill(jobs, numbered(20))
            await (await jobs.get()).ack()
        place = segments(path)[1] if name == "segment" else path / "queue" / name
        lost = set(range(int(segments(path)[1].stem), int(segments(path)[2].stem))) if name == "segment" else set()
        place.write_bytes(bytes(place.stat().st_size))
        for _ in range(2):
            async with queue(path) as jobs:
                found = [int(body) for body in ready_now(jobs)]
                expected = [number for number in range(20) if number not in lost]
                # Without its journal the channel begins anew; nothing is lost by that.
                assert found in (expected, expected[1:])
        async with queue(path) as jobs:
            await drain(jobs)
            assert await jobs.put(b"next") == 20
            assert await drain(jobs) == [b"next"]

    @pytest.mark.parametrize("count", [1, 7, 8, 64, 4096, 100_000])
    async def test_zeros_behind_the_last_write(self, path: Path, tmp_path: Path, count: int) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(5))
            crash_image(path, tmp_path / "image", fs)
        for place in (
            segments(tmp_path / "image")[0],
            tmp_path / "image" / "queue" / "channels" / "default" / "journal",
        ):
            with place.open("ab") as file:
                file.write(bytes(count))
        async with queue(tmp_path / "image") as jobs:
            await jobs.put(b"5")
            assert jobs.topic_stats().damages == 0
            assert ready_now(jobs) == numbered(6)


class TestIssue22:
    """persist-queue#132 #24, litequeue#5, yaque: several owners lose items; get() returns None; damaged rollbacks."""

    async def test_a_second_owner_is_refused_and_harms_nothing(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
            for _ in range(3):
                with pytest.raises(aiodq.StoreLockedError):
                    await aiodq.open_queue(path)
            assert await drain(jobs) == numbered(5)

    async def test_get_really_waits(self, path: Path, tasks: Tasks) -> None:
        async with queue(path) as jobs:
            getting = [tasks.start(jobs.get()) for _ in range(5)]
            for body in numbered(5):
                await turns()
                await jobs.put(body)
            found = await soon(asyncio.gather(*getting))
            assert all(isinstance(message, aiodq.Message) for message in found)
            assert sorted(message.body for message in found) == numbered(5)

    async def test_a_refused_batch_is_taken_back_across_segments(self, path: Path) -> None:
        for at in range(1, 8):
            fs, place = WatchedFileSystem(), path.with_name(f"store{at}")
            async with queue(place, fs=fs, segment_bytes=428) as jobs:
                await fill(jobs, numbered(4))
                fs.fail(errno.ENOSPC, "write", "create", match=".seg", at=at, times=1)
                big = [b"%d" % number * 200 for number in range(10)]
                try:
                    offsets = list(await soon(jobs.put_many(big)))
                except aiodq.DiskFullError:
                    offsets = []
                fs.heal()
                assert await soon(jobs.put(b"next")) == 4 + len(offsets)
                expected = [*numbered(4), *(big if offsets else []), b"next"]
                assert ready_now(jobs) == expected
            async with queue(place) as jobs:
                assert ready_now(jobs) == expected

    async def test_what_is_not_committed_comes_back_across_segments(self, path: Path) -> None:
        async with queue(path, segment_bytes=328) as jobs:
            await fill(jobs, numbered(30))
            for message in await take(jobs, 30):
                if message.offset % 3 == 0:
                    await message.nack()
                elif message.offset % 3 == 1:
                    await message.ack()
            expected = [body for number, body in enumerate(numbered(30)) if number % 3 != 1]
        async with queue(path) as jobs:
            assert ready_now(jobs) == expected

    async def test_a_kill_leaves_no_stale_lock(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            crash_image(path, tmp_path / "image", fs)
        assert (tmp_path / "image" / "LOCK").exists()
        async with queue(tmp_path / "image") as jobs:
            assert ready_now(jobs) == [b"a"]


class TestIssue23:
    """queuelib#14 #5 #59, scrapy#845 #3333: half a write corrupts the file; it looks empty after an unclean exit."""

    async def test_the_state_never_depends_on_closing(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=428) as jobs:
            for number in range(12):
                await jobs.put(b"%d" % number)
                crash_image(path, tmp_path / str(number), fs)
        for number in range(12):
            async with queue(tmp_path / str(number)) as jobs:
                assert (jobs.depth, ready_now(jobs)) == (number + 1, numbered(number + 1))

    async def test_half_a_write_is_cut_off(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os") as jobs:
            await fill(jobs, numbered(3))
            await jobs.sync()
            size = segments(path)[0].stat().st_size
            await jobs.put(b"half of this")
            crash_image(path, tmp_path / "image", fs)
        found = segments(tmp_path / "image")[0]
        whole = found.read_bytes()[: size + padded(COMPACT_MIN + len(b"half of this"))]  # zeros may follow
        for cut in range(size, len(whole)):
            found.write_bytes(whole[:cut])
            async with queue(tmp_path / "image") as jobs:
                assert ready_now(jobs) == numbered(3)
                written = len(whole[:cut].rstrip(b"\0"))  # zeros at the end may be what was written ahead
                assert max(written - size, 0) <= jobs.topic_stats().recovered_bytes <= cut - size


@pytest.mark.usefixtures("unshown")
class TestIssue24:
    """diskcache#287 #36 #104 #190: a deque that blocks after corruption, slow at 1:1, without a maximal length."""

    async def test_put_and_get_in_turn_touches_the_disk_once_each(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os", max_messages=3, overflow="drop_oldest") as jobs:
            since = len(fs.passed)
            for number in range(100):
                await jobs.put(b"%d" % number)
                assert (await jobs.get()).body == b"%d" % number
                jobs.task_done()
            assert fs.named("read", "open", since=since) == []
            assert len(fs.named("write", match=".seg", since=since)) == 100


class TestRunnersUp:
    """nsq#1447: an ephemeral topic made again after it was deleted; lavinmq#384: a hole of zeros hid later entries."""

    async def test_an_ephemeral_topic_made_again_begins_anew(self, path: Path) -> None:
        async with store(path) as opened:
            for body in (b"before", b"after"):
                topic = opened.topic("t#ephemeral")
                channel = topic.channel("c")
                assert (channel.depth, topic.end_offset) == (0, 0)
                await topic.put_many([body, b"left"])
                assert (await soon(channel.get())).body == body
                await opened.delete_topic("t#ephemeral")

    @pytest.mark.parametrize("hole", [64, 200, 4096])
    async def test_what_follows_a_hole_of_zeros_is_delivered(self, path: Path, tmp_path: Path, hole: int) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            for body in numbered(200):
                await jobs.put(body)
            crash_image(path, tmp_path / "image", fs)
        found = segments(tmp_path / "image")[0]
        with found.open("r+b") as file:
            file.seek(1024)
            file.write(bytes(hole))
        async with queue(tmp_path / "image") as jobs:
            rest = await drain(jobs)
            missing = jobs.stats().lost
            first = next((at for at, body in enumerate(rest) if body != b"%d" % at), len(rest))
            assert 0 < missing < 200
            assert rest == [*numbered(first), *numbered(200 - first - missing, start=first + missing)]
            assert jobs.topic_stats().damages == 1
