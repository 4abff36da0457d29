"""Looking without taking: peek, read, scan both ways, and by time; through damage and deletion."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    FakeClock,
    bodies_of,
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
    until,
)

if TYPE_CHECKING:
    from pathlib import Path


async def scanned(jobs: aiodq.Queue | aiodq.Topic, *args: int | None, reverse: bool = False) -> list[bytes]:
    return [message.body async for message in jobs.scan(*args, reverse=reverse)]


def damage(path: Path, body: bytes) -> None:
    """Flip a bit in the one place where this body lies."""
    for found in segments(path):
        data = bytearray(found.read_bytes())
        at = data.find(body)
        if at >= 0:
            data[at] ^= 1
            found.write_bytes(data)
            return
    raise AssertionError(body)


class TestPeek:
    async def test_it_shows_the_next_and_takes_nothing(self, path: Path) -> None:
        async with queue(path) as jobs:
            assert await jobs.peek() is None
            await fill(jobs, numbered(2))
            for _ in range(3):
                message = await jobs.peek()
                assert message is not None
                assert (message.body, message.offset) == (b"0", 0)
            assert (jobs.qsize(), jobs.in_flight(), jobs.stats().delivered) == (2, 0, 0)
            await (await jobs.get()).ack()
            message = await jobs.peek()
            assert message is not None
            assert message.body == b"1"

    async def test_what_was_requeued(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            held = await take(jobs, 2)
            await held[1].nack()
            message = await jobs.peek()
            assert message is not None
            assert message.body == b"1"
            assert jobs.get_nowait().body == b"1"

    async def test_with_everything_in_flight(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
            await jobs.get()
            assert await jobs.peek() is None

    async def test_cold(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
        async with queue(path) as jobs:
            message = await jobs.peek()
            assert message is not None
            assert message.body == b"0"
            assert ready_now(jobs) == numbered(3)

    async def test_what_cannot_be_read_is_not_lost(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            fs.fail(errno.EIO, "read", match=".seg")
            with pytest.raises(aiodq.StorageError):
                await jobs.peek()
            fs.heal()
            message = await jobs.peek()
            assert message is not None
            assert message.body == b"a"

    async def test_after_closing(self, path: Path) -> None:
        async with queue(path) as jobs:
            pass
        with pytest.raises(aiodq.QueueShutDown):
            await jobs.peek()


class TestRead:
    async def test_every_offset_in_any_order(self, path: Path) -> None:
        async with queue(path, segment_bytes=400) as jobs:
            await fill(jobs, numbered(20))
            await jobs.put_many(numbered(20, start=20))
            for offset in (39, 0, 20, 19, 21, 7):
                message = await jobs.read(offset)
                assert (message.offset, message.body) == (offset, b"%d" % offset)
            assert jobs.depth == 40

    async def test_what_was_consumed_and_is_still_kept(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            await drain(jobs)
            assert (await jobs.read(1)).body == b"1"

    @pytest.mark.parametrize("offset", [-1, 3, 4, 1 << 70, -(1 << 70)])
    async def test_outside(self, path: Path, offset: int) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            with pytest.raises(aiodq.OffsetError) as caught:
                await jobs.read(offset)
            assert isinstance(caught.value, LookupError)

    async def test_of_an_empty_topic(self, path: Path) -> None:
        async with store(path) as opened:
            with pytest.raises(aiodq.OffsetError):
                await opened.topic("a").read(0)

    async def test_what_was_deleted(self, path: Path) -> None:
        async with queue(path, segment_bytes=200) as jobs:
            await fill(jobs, numbered(20))
            await jobs.read(0)
            await drain(jobs)
            await soon(jobs.sync())
            assert jobs.begin_offset > 0
            with pytest.raises(aiodq.OffsetError):
                await jobs.read(0)
            await jobs.purge()
            with pytest.raises(aiodq.OffsetError):
                await jobs.read(19)

    async def test_what_was_damaged_and_its_neighbours(self, path: Path) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, [b"<%03d>" % number for number in range(20)])
        damage(path, b"<003>")
        async with queue(path) as jobs:
            with pytest.raises(aiodq.OffsetError):
                await jobs.read(3)
            assert [(await jobs.read(offset)).body for offset in (2, 4)] == [b"<002>", b"<004>"]

    async def test_beside_the_writer(self, path: Path) -> None:
        async with queue(path, segment_bytes=300, sync="os") as jobs:
            for number in range(60):
                await jobs.put(b"%d" % number)
                assert (await jobs.read(number)).body == b"%d" % number
                assert (await jobs.read(number // 2)).body == b"%d" % (number // 2)


class TestScan:
    @pytest.mark.parametrize("wrong", ["no", 1, None], ids=repr)
    async def test_backward_is_true_or_false(self, path: Path, wrong: Any) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.InvalidOptionError, match="reverse") as caught:
                jobs.scan(reverse=wrong)
            assert isinstance(caught.value, TypeError)

    @pytest.mark.parametrize(
        ("start", "stop"),
        [(None, None), (0, 30), (5, 9), (5, None), (None, 4), (29, 30), (7, 7), (9, 5), (25, 999), (99, None)],
    )
    @pytest.mark.parametrize("reverse", [False, True])
    async def test_a_range(self, path: Path, start: int | None, stop: int | None, reverse: bool) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, numbered(10))
            await jobs.put_many(numbered(10, start=10))
            await fill(jobs, numbered(10, start=20))
            expected = numbered(30)[start or 0 : 30 if stop is None else stop]
            assert await scanned(jobs, start, stop, reverse=reverse) == (expected[::-1] if reverse else expected)
            assert jobs.depth == 30

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_much(self, path: Path, reverse: bool) -> None:
        bodies = [b"%d" % number * 2000 for number in range(400)]
        async with queue(path, segment_bytes=1 << 20, sync="os") as jobs:
            await jobs.put_many(bodies[:200])
            for body in bodies[200:]:
                jobs.put_nowait(body)
            await jobs.sync()
            assert await scanned(jobs, reverse=reverse) == (bodies[::-1] if reverse else bodies)

    async def test_of_nothing(self, path: Path) -> None:
        async with store(path) as opened:
            assert await scanned(opened.topic("a")) == []
            assert await scanned(opened.topic("a"), reverse=True) == []

    async def test_it_ends_where_the_log_ended_when_it_was_called(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            scanning = jobs.scan()
            await fill(jobs, numbered(3))
            assert [message.body async for message in scanning] == numbered(3)

    async def test_breaking_off_closes_its_files(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=300) as jobs:
            await fill(jobs, numbered(30))
            before = fs.open_files
            for reverse in (False, True):
                scanning = jobs.scan(reverse=reverse)
                assert isinstance(scanning, AsyncGenerator)
                async with aclosing(scanning) as messages:
                    async for _ in messages:
                        break
                await until(lambda: fs.open_files == before)

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_damage_is_stepped_over(self, path: Path, reverse: bool) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, [b"<%03d>" % number for number in range(30)])
        for number in (0, 3, 17, 18):
            damage(path, b"<%03d>" % number)
        async with queue(path) as jobs:
            expected = [b"<%03d>" % number for number in range(30) if number not in {0, 3, 17, 18}]
            assert await scanned(jobs, reverse=reverse) == (expected[::-1] if reverse else expected)

    @pytest.mark.parametrize("how", ["forward", "backward", "one by one"])
    async def test_damage_is_set_aside_and_reported_once(self, path: Path, how: str) -> None:
        async with store(path, segment_bytes=300) as opened:
            await fill(opened.topic("queue"), [b"<%03d>" % number for number in range(30)])
        damage(path, b"<003>")
        damage(path, b"<017>")
        async with store(path) as opened:
            topic, events = opened.topic("queue"), opened.events()
            assert topic.stats().damages == 0
            for _ in range(2):
                if how != "one by one":
                    await scanned(topic, reverse=how == "backward")
                    continue
                for offset in range(30):
                    with suppress(aiodq.OffsetError):
                        await topic.read(offset)
            await until(lambda: topic.stats().damages == 2)
            assert len(odd_files(path)) == 2
            told = [await soon(anext(events)) for _ in range(2)]
            assert sorted((event.kind, event.topic, event.offset) for event in told) == [
                ("damage", "queue", 3),
                ("damage", "queue", 17),
            ]

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_a_missing_segment_is_stepped_over(self, path: Path, reverse: bool) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, numbered(30))
        gone = segments(path)[1]
        first, following = int(gone.stem), int(segments(path)[2].stem)
        gone.unlink()
        async with queue(path) as jobs:
            expected = numbered(first) + numbered(30 - following, start=following)
            assert await scanned(jobs, reverse=reverse) == (expected[::-1] if reverse else expected)

    async def test_what_is_deleted_under_it(self, path: Path) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, numbered(30))
            found = []
            async for message in jobs.scan():
                found.append(message.body)
                if len(found) == 2:
                    await drain(jobs)
                    await jobs.sync()
            assert found[:2] == numbered(2)
            assert found == sorted(set(found), key=int)

    async def test_reverse_under_a_purge(self, path: Path) -> None:
        async with queue(path, segment_bytes=300) as jobs:
            await fill(jobs, numbered(30))
            found = []
            async for message in jobs.scan(reverse=True):
                found.append(message.body)
                if len(found) == 2:
                    await jobs.purge()
            assert found == sorted(set(found), key=int, reverse=True)

    async def test_after_closing(self, path: Path) -> None:
        async with queue(path) as jobs:
            await jobs.put(b"a")
        with pytest.raises(aiodq.QueueShutDown):
            await scanned(jobs)


class TestOffsetAt:
    START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)

    async def fill_by_the_second(self, jobs: aiodq.Queue, clock: FakeClock, count: int) -> None:
        for body in numbered(count):
            clock.move(1)
            await jobs.put(body)

    async def test_the_first_put_then_or_later(self, path: Path) -> None:
        clock = FakeClock()
        small = aiodq.StoreOptions(segment_bytes=300)
        async with aiodq.open_queue(path, small, fs=WatchedFileSystem(), clock=clock) as jobs:
            await self.fill_by_the_second(jobs, clock, 30)
            for seconds, expected in (
                (0, 0),
                (1, 0),
                (1.5, 1),
                (2, 1),
                (15, 14),
                (29.9, 29),
                (30, 29),
                (30.1, 30),
                (999, 30),
            ):
                assert await jobs.offset_at(self.START + timedelta(seconds=seconds)) == expected
            assert await jobs.offset_at(datetime(1970, 1, 1, tzinfo=UTC)) == 0
            assert await jobs.offset_at(datetime(1900, 1, 1, tzinfo=UTC)) == 0
            assert await jobs.offset_at(datetime(9999, 1, 1, tzinfo=UTC)) == 30

    async def test_after_reopening_and_in_any_zone(self, path: Path) -> None:
        clock = FakeClock()
        async with aiodq.open_queue(path, fs=WatchedFileSystem(), clock=clock) as jobs:
            await self.fill_by_the_second(jobs, clock, 10)
        async with queue(path) as jobs:
            there = (self.START + timedelta(seconds=4)).astimezone(timezone(timedelta(hours=-7)))
            assert await jobs.offset_at(there) == 3

    async def test_one_batch_has_one_time(self, path: Path) -> None:
        clock = FakeClock()
        async with aiodq.open_queue(path, fs=WatchedFileSystem(), clock=clock) as jobs:
            await jobs.put_many(numbered(5))
            clock.move(1)
            await jobs.put_many(numbered(5))
            assert await jobs.offset_at(self.START) == 0
            assert await jobs.offset_at(self.START + timedelta(microseconds=1)) == 5

    async def test_what_was_deleted_is_not_found(self, path: Path) -> None:
        clock = FakeClock()
        small = aiodq.StoreOptions(segment_bytes=300)
        async with aiodq.open_queue(path, small, fs=WatchedFileSystem(), clock=clock) as jobs:
            await self.fill_by_the_second(jobs, clock, 30)
            await drain(jobs)
            await jobs.sync()
            assert await jobs.offset_at(self.START) == jobs.begin_offset > 0

    async def test_of_an_empty_topic(self, path: Path) -> None:
        async with store(path) as opened:
            assert await opened.topic("a").offset_at(self.START) == 0

    async def test_without_a_zone(self, path: Path) -> None:
        async with queue(path) as jobs:
            with pytest.raises(aiodq.InvalidOptionError):
                await jobs.offset_at(datetime(2023, 1, 1))  # noqa: DTZ001 - a time without a zone is what is refused

    async def test_through_damage(self, path: Path) -> None:
        clock = FakeClock()
        small = aiodq.StoreOptions(segment_bytes=300)
        async with aiodq.open_queue(path, small, fs=WatchedFileSystem(), clock=clock) as jobs:
            for number in range(20):
                clock.move(1)
                await jobs.put(b"<%03d>" % number)
        damage(path, b"<003>")
        async with queue(path) as jobs:
            assert await jobs.offset_at(self.START + timedelta(seconds=4)) == 4
            assert await jobs.offset_at(self.START + timedelta(seconds=6)) == 5


async def test_looking_takes_nothing_and_reads_for_nobody(path: Path) -> None:
    async with queue(path) as jobs:
        await fill(jobs, numbered(5))
        before = jobs.stats()
        await jobs.peek()
        await jobs.read(3)
        await scanned(jobs)
        await scanned(jobs, reverse=True)
        await jobs.offset_at(datetime.now(UTC))
        assert jobs.stats() == before
        assert jobs.topic_stats().bytes_read == 0
        assert bodies_of(await take(jobs, 5)) == numbered(5)


@pytest.mark.parametrize("args", [(-1,), (0, -1), (-5, -2)])
async def test_a_scan_does_not_take_what_is_before_the_first_offset_for_the_first(
    path: Path, args: tuple[int, ...]
) -> None:
    async with aiodq.open_queue(path) as jobs:
        await jobs.put(b"x")
        with pytest.raises(aiodq.InvalidOptionError, match=r"offset, 0 or more.* end_offset - "):
            await scanned(jobs, *args)
        with pytest.raises(aiodq.InvalidOptionError, match=r"offset, 0 or more"):
            await scanned(jobs.topic, *args, reverse=True)
