"""The intent of go-diskqueue's unit tests, row by row, and of those it lacks, with aiodq's semantics.

A record takes 4 bytes and the body there, and here a frame: 32 bytes and the body, aligned to 8.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    bodies_of,
    crash_image,
    drain,
    files_under,
    fill,
    log_syncs,
    numbered,
    odd_files,
    queue,
    ready_now,
    segments,
    soon,
    take,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestDiskQueue:
    async def test_one_message(self, path: Path) -> None:
        async with queue(path, min_message_bytes=4, max_message_bytes=1 << 10, sync="interval") as jobs:
            assert jobs.depth == 0
            await jobs.put(b"test")
            assert jobs.depth == 1
            assert (await jobs.get()).body == b"test"


class TestDiskQueueRoll:
    async def test_depth_counts_every_put_and_every_read_over_the_roll(self, path: Path) -> None:
        body = b"0123456789"
        async with queue(path, segment_bytes=192 + 10 * 48) as jobs:
            for number in range(11):
                await jobs.put(body)
                assert jobs.depth == number + 1
            assert [int(found.stem) for found in segments(path)] == [0, 10]
            for number in range(11, 0, -1):
                message = await jobs.get()
                assert message.body == body
                await message.ack()
                assert jobs.depth == number - 1


class TestDiskQueuePeek:
    async def peeked(self, jobs: aiodq.Queue) -> bytes:
        message = await jobs.peek()
        assert message is not None
        return message.body

    async def test_roll(self, path: Path) -> None:
        async with queue(path, segment_bytes=192 + 10 * 48) as jobs:
            await fill(jobs, numbered(12))
            for number in range(12):
                assert await self.peeked(jobs) == b"%d" % number
                assert jobs.depth == 12 - number
                await (await jobs.get()).ack()

    async def test_peek_read(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(10))
            assert await self.peeked(jobs) == await self.peeked(jobs) == b"0"
            assert (await jobs.get()).body == b"0"

    async def test_read_peek(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(10))
            await (await jobs.get()).ack()
            assert await self.peeked(jobs) == b"1"
            await jobs.purge()
            assert await jobs.peek() is None


class TestDiskQueueEmpty:
    async def test_no_data_is_left_and_it_can_be_used_again(self, path: Path) -> None:
        async with queue(path, segment_bytes=328) as jobs:
            for round_ in range(2):
                await fill(jobs, numbered(100))
                assert len(segments(path)) > 10
                for message in await take(jobs, 3):
                    await message.ack()
                assert jobs.depth == 97
                await jobs.purge()
                await jobs.sync()
                assert jobs.depth == 0
                assert [int(found.stem) for found in segments(path)] == [100 * (round_ + 1)]
                assert jobs.begin_offset == jobs.end_offset == jobs.durable_offset == 100 * (round_ + 1)
            await fill(jobs, numbered(100))
            assert await drain(jobs) == numbered(100)
            assert (jobs.depth, jobs.stats().floor) == (0, jobs.end_offset)

    async def test_and_a_crash(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=328) as jobs:
            await fill(jobs, numbered(100))
            await jobs.purge()
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert jobs.depth == 0
            assert await jobs.put(b"next") == 100
            assert ready_now(jobs) == [b"next"]


class TestDiskQueueCorruption:
    async def test_only_what_is_damaged_is_skipped(self, path: Path) -> None:
        """25 puts of 120 bytes, 8 to a file; the second file is cut."""
        frame = 152
        async with queue(
            path, segment_bytes=192 + 8 * frame, min_message_bytes=10, sync="interval", sync_every=5
        ) as jobs:
            await fill(jobs, [b"%02d" % number + bytes(118) for number in range(25)])
        first, second, *_ = segments(path)
        assert int(second.stem) == 8
        os.truncate(second, 64 + 3 * frame - 10)
        async with queue(path) as jobs:
            found = [int(body[:2]) for body in await drain(jobs)]
            # Of the eight in the file the first two are whole: 19 of 25, as there.
            assert found == [*range(10), *range(16, 25)]
            assert jobs.stats().lost == 6
            assert jobs.topic_stats().damages > 0
            assert (jobs.depth, jobs.qsize()) == (0, 0)
        assert any("damaged" in name for name in odd_files(path)) or not first.exists()

    async def test_a_current_file_cut_short_is_not_in_the_way_of_the_next(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
        os.truncate(segments(path)[-1], 100)
        async with queue(path) as jobs:
            assert jobs.topic_stats().damages > 0
            offset = await jobs.put(b"next")
            assert offset == 5
            assert (await drain(jobs))[-1:] == [b"next"]
            await soon(jobs.join())

    async def test_zeros_behind_the_current_file(self, path: Path) -> None:
        async with queue(path, sync="os") as jobs:
            await jobs.put(b"before")
        with segments(path)[-1].open("ab") as file:
            file.write(bytes(4))
        async with queue(path) as jobs:
            await fill(jobs, [b"after", b"later"])
            assert await drain(jobs) == [b"before", b"after", b"later"]

    async def test_depth_becomes_zero_after_the_last_was_lost(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, [b"first", b"lost!"])
        found = segments(path)[-1]
        data = bytearray(found.read_bytes())
        data[data.index(b"lost!")] ^= 1
        found.write_bytes(data)
        async with queue(path) as jobs:
            message = await jobs.get()
            assert message.body == b"first"
            await message.ack()
            getting = asyncio.create_task(jobs.get())
            await until(lambda: jobs.depth == 0)
            await jobs.put(b"more")
            assert (await soon(getting)).body == b"more"


class TestDiskQueueSyncAfterRead:
    async def test_the_ticker_syncs_puts_and_reads(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="interval", sync_interval=0.02, segment_bytes=2048) as jobs:
            await jobs.put(bytes(1000))
            await until(lambda: jobs.durable_offset == 1)
            await jobs.put(bytes(1000))
            since = len(fs.passed)
            (await jobs.get()).ack_nowait()
            await until(lambda: bool(fs.named("write", match="journal", since=since)))
            # A tick that came before the ack was written has synced the journal without it.
            since = fs.named("write", match="journal", since=since)[0].number
            await until(lambda: jobs.durable_offset == 2 and bool(fs.named("sync", match="journal", since=since)))
            crash_image(path, tmp_path / "image", fs)
        async with queue(tmp_path / "image") as jobs:
            assert (jobs.depth, jobs.stats().floor) == (1, 1)


class TestDiskQueueResize:
    async def test_a_smaller_file_from_before_is_read_by_its_real_size(self, path: Path) -> None:
        body = bytes(10)
        async with queue(path, segment_bytes=192 + 8 * 48) as jobs:
            await fill(jobs, [body] * 9)
            assert [int(found.stem) for found in segments(path)] == [0, 8]
        async with queue(path, segment_bytes=192 + 10 * 48) as jobs:
            await fill(jobs, [body] * 10)
            assert [int(found.stem) for found in segments(path)] == [0, 8, 18]
            messages = await take(jobs, 19)
            assert [message.offset for message in messages] == list(range(19))
            assert set(bodies_of(messages)) == {body}
            for message in messages:
                await message.ack()
            assert jobs.depth == 0
        assert odd_files(path) == []


@pytest.mark.usefixtures("unshown")
class TestUpstreamLacks:
    async def test_a_rotation_with_the_reader_caught_up_makes_nothing_bad(self, path: Path) -> None:
        async with queue(path, segment_bytes=192 + 4 * 48) as jobs:
            for number in range(60):
                await jobs.put(b"%010d" % number)
                message = await jobs.get()
                assert message.offset == number
                await message.ack()
            await jobs.sync()
            assert len(segments(path)) == 1
        assert odd_files(path) == []

    async def test_missing_metadata_is_rebuilt_from_the_files(self, path: Path) -> None:
        async with queue(path, segment_bytes=328) as jobs:
            await fill(jobs, numbered(20))
            for message in await take(jobs, 5):
                await message.ack()
        kept = files_under(path)
        for name in kept:
            if name.endswith(("topic.json", "watermark", "LOCK")):
                (path / name).unlink()
        async with queue(path, segment_bytes=328) as jobs:
            assert ready_now(jobs) == numbered(15, start=5)
            assert await jobs.put(b"20") == 20

    async def test_without_the_channels_files_everything_comes_again(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(5))
            await (await jobs.get()).ack()
        for found in (path / "queue" / "channels" / "default").iterdir():
            found.unlink()
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(5)

    async def test_metadata_ahead_of_the_data(self, path: Path) -> None:
        """What was promised is missing: that is said, the numbers are not given again, and all goes on behind them."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await fill(jobs, numbered(3))
            await jobs.sync()
            early = segments(path)[0].read_bytes()
            await fill(jobs, numbered(3, start=3))
        segments(path)[0].write_bytes(early)
        async with queue(path) as jobs:
            assert jobs.topic_stats().damages == 1
            assert await jobs.put(b"6") == 6
            assert await drain(jobs) == [b"0", b"1", b"2", b"6"]
            assert jobs.depth == 0

    async def test_too_many_open_files_pass(self, path: Path) -> None:
        async with queue(path, segment_bytes=328) as jobs:
            await fill(jobs, numbered(20))
        fs = WatchedFileSystem()
        fs.fail(errno.EMFILE, "open", match=".seg", times=1)
        with pytest.raises(aiodq.StorageError) as caught:
            await aiodq.open_queue(path, fs=fs)
        assert caught.value.retriable
        async with queue(path, fs=fs) as jobs:
            fs.fail(errno.EMFILE, "open", match=".seg")
            with pytest.raises(aiodq.StorageError):
                await soon(jobs.get())
            fs.heal()
            assert await drain(jobs) == numbered(20)
        assert odd_files(path) == []

    async def test_closing_twice(self, path: Path) -> None:
        jobs = await aiodq.open_queue(path)
        await jobs.put(b"a")
        await jobs.aclose()
        await jobs.aclose()

    async def test_two_owners(self, path: Path) -> None:
        async with queue(path):
            with pytest.raises(aiodq.StoreLockedError):
                await aiodq.open_queue(path)

    async def test_directories_are_synced(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=328) as jobs:
            await fill(jobs, numbered(20))
            made = [call for call in fs.passed if call.kind in {"create", "make_directory"}]
            lasting = [call for call in made if not call.path.endswith((TEMPORARY, "watermark", "journal"))]
            assert len([call for call in lasting if call.path.endswith(".seg")]) > 1
            for call in lasting:
                parent = os.path.dirname(call.path)
                assert any(s.path == parent and s.begun > call.begun for s in fs.named("sync_directory")), call
            assert log_syncs(fs) > 0

    async def test_a_percent_sign_in_the_path(self, path: Path) -> None:
        place = path.with_name("100%s%d%%")
        for count in (1, 2):
            async with queue(place) as jobs:
                await jobs.put(b"a")
                assert jobs.depth == count
