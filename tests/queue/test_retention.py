"""Which segments go, and when: consumed, old, too many, too large; and what they take along."""

from __future__ import annotations

import errno
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aiodq
from aiodq import Retention
from aiodq.engine.topic.retention.consumption import _SEGMENTS
from aiodq.starting import move_channel
from aiodq.storage.log.retention import Verdict, expired
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    Camera,
    FakeClock,
    Tasks,
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

SMALL = 428
"""Bytes of a segment: a handful of messages."""


def kept(path: Path, topic: str = "queue") -> list[int]:
    """Return the base offsets of the segments on disk."""
    return [int(found.stem) for found in segments(path, topic)]


def is_gone(path: Path, base: int) -> bool:
    """Return whether no segment on disk begins there."""
    return base not in kept(path)


class TestConsumed:
    async def test_a_segment_goes_once_all_of_it_is_acked(self, path: Path) -> None:
        async with queue(path, segment_bytes=SMALL) as jobs:
            await fill(jobs, numbered(30))
            bases = kept(path)
            assert len(bases) > 3
            for message in await take(jobs, bases[2]):
                await message.ack()
            await soon(jobs.sync())
            await until(lambda: kept(path) == bases[2:])
            assert jobs.begin_offset == bases[2]
            assert await drain(jobs) == numbered(30 - bases[2], start=bases[2])
            await until(lambda: kept(path) == bases[-1:])

    async def test_not_before_every_channel_has_acked_it(self, path: Path) -> None:
        async with store(path, segment_bytes=SMALL) as opened:
            topic = opened.topic("a")
            one, other = topic.channel("one"), topic.channel("other")
            await fill(topic, numbered(20))
            await drain(one)
            await soon(topic.sync())
            assert kept(path, "a")[0] == 0
            await drain(other)
            await until(lambda: len(kept(path, "a")) == 1)

    async def test_not_without_a_channel(self, path: Path) -> None:
        async with store(path, segment_bytes=SMALL, sync_interval=0.005) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(20))
            before = kept(path, "a")
            await topic.sync()
            assert kept(path, "a") == before
            assert [message.body async for message in topic.scan()] == numbered(20)

    async def test_what_a_transaction_needs_holds_up_none_before_it(self, path: Path) -> None:
        async with queue(path, segment_bytes=SMALL) as jobs:
            await fill(jobs, numbered(60))
            bases = kept(path)
            jobs._engine.segment_deletion.pin(bases[2])
            for message in await take(jobs, 60):
                message.ack_nowait()
            await soon(jobs.sync())
            await until(lambda: kept(path) == bases[2:])
            jobs._engine.segment_deletion.unpin()
            await until(lambda: kept(path) == bases[-1:])

    async def test_one_old_unacked_message_pins_only_its_segment(self, path: Path) -> None:
        async with queue(path, segment_bytes=SMALL) as jobs:
            await fill(jobs, numbered(60))
            bases = kept(path)
            held = await take(jobs, 60)
            pinned = bases[1]
            for message in held:
                if message.offset != pinned:
                    message.ack_nowait()
            await soon(jobs.sync())
            await until(lambda: kept(path) == [pinned, bases[-1]])
            assert (jobs.depth, jobs.stats().floor) == (1, pinned)
        async with queue(path, segment_bytes=SMALL) as jobs:
            assert jobs.topic_stats().damages == 0
            assert await drain(jobs) == [b"%d" % pinned]
            await jobs.put(b"more")
            assert await drain(jobs) == [b"more"]

    async def test_what_was_deleted_behind_it_is_not_lost_to_who_begins_before(self, path: Path) -> None:
        async with queue(path, segment_bytes=SMALL, memory_bytes=1 << 16) as jobs:
            await fill(jobs, numbered(60))
            bases = kept(path)
            for message in await take(jobs, 60):
                if message.offset != bases[1]:
                    message.ack_nowait()
            await soon(jobs.sync())
            await until(lambda: kept(path) == [bases[1], bases[-1]])
            left = [*range(bases[1], bases[2]), *range(bases[-1], 60)]
            new = jobs.channel("new", aiodq.ChannelOptions(start="earliest"))
            await soon(jobs.topic.settle_in())
            await soon(jobs.seek("earliest"))
            for channel in (new, jobs):
                assert (channel.depth, channel.qsize(), channel.stats().lost) == (len(left), len(left), 0)
            assert ready_now(new) == [b"%d" % number for number in left]
            assert new.stats().lost == 0
        async with queue(path, segment_bytes=SMALL) as jobs:
            assert (jobs.depth, jobs.stats().lost) == (len(left), 0)

    async def test_what_is_deleted_before_a_seek_acts_is_refused(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with queue(path, segment_bytes=SMALL) as jobs:
            await fill(jobs, numbered(20))

            async def moving(*arguments: Any) -> None:
                await drain(jobs)
                await until(lambda: jobs.begin_offset > 0)
                await move_channel(*arguments)

            monkeypatch.setattr("aiodq.channel.move_channel", moving)
            with pytest.raises(aiodq.OffsetError):
                await soon(jobs.seek(0))
            assert jobs.depth == 0

    async def test_of_many_that_are_pinned_each_goes_though_few_are_asked_at_once(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[int] = []

        def counting(*arguments: Any) -> Verdict:
            asked.append(len(arguments[-1]))
            return expired(*arguments)

        monkeypatch.setattr("aiodq.engine.topic.retention.topic_retention.expired", counting)
        channel = aiodq.ChannelOptions(max_in_flight=10_000)
        options = aiodq.StoreOptions(segment_bytes=SMALL, sync="os", sync_interval=0.002)
        async with aiodq.open_queue(path, options, channel, fs=WatchedFileSystem()) as jobs:
            while len(kept(path)) < 4 * _SEGMENTS:
                await fill(jobs, numbered(100))
            bases = kept(path)
            held = {message.offset: message for message in await take(jobs, jobs.depth)}
            for offset in set(held) - set(bases):
                held[offset].ack_nowait()
            await soon(jobs.sync())
            await turns(50)
            assert kept(path) == bases
            for gone in (3 * _SEGMENTS, 2 * _SEGMENTS, len(bases) - 2):
                held[bases[gone]].ack_nowait()
                await until(partial(is_gone, path, bases[gone]))
            assert len(kept(path)) == len(bases) - 3
            await until(lambda: jobs.topic._engine.io_loop.ticker.due is None)
        assert max(asked) == _SEGMENTS

    async def test_no_message_is_lost_to_a_bound_where_something_consumed_may_go(self, path: Path) -> None:
        channel = aiodq.ChannelOptions(max_in_flight=10_000)
        retention = Retention(unconsumed="delete", max_segments=3 * _SEGMENTS)
        options = aiodq.StoreOptions(segment_bytes=SMALL, sync="os", sync_interval=3600, retention=retention)
        async with aiodq.open_queue(path, options, channel, fs=WatchedFileSystem()) as jobs:
            while len(kept(path)) < 3 * _SEGMENTS:
                await fill(jobs, numbered(1))
            bases = kept(path)
            held = {message.offset: message for message in await take(jobs, jobs.depth)}
            for offset in range(bases[-3], bases[-2]):
                held[offset].ack_nowait()
            while kept(path)[-1] == bases[-1]:
                await fill(jobs, numbered(1))
            await until(lambda: bases[-3] not in kept(path))
            assert len(kept(path)) == len(bases)
            assert jobs.stats().dropped == 0

    async def test_a_segment_goes_only_once_that_is_durable(self, path: Path, tmp_path: Path) -> None:
        """At every deletion the disk already says that it was consumed: a crash there loses and revives nothing."""
        fs = WatchedFileSystem()
        camera = Camera(fs, path, tmp_path, "remove")
        async with queue(path, fs=fs, segment_bytes=SMALL) as jobs:
            await fill(jobs, numbered(40))
            fs.add(camera)
            for message in await take(jobs, 30):
                await message.ack()
            await soon(jobs.sync())
            fs.heal()
        assert len(camera.copies) > 2
        for copy in camera.copies:
            async with queue(copy) as jobs:
                assert jobs.topic_stats().damages == 0
                found = ready_now(jobs)
                assert found == numbered(len(found), start=40 - len(found))
                assert len(found) >= 10

    async def test_a_kept_segment_stays_for_replay(self, path: Path) -> None:
        async with queue(path, segment_bytes=SMALL, retention=Retention(consumed="keep")) as jobs:
            await fill(jobs, numbered(30))
            before = kept(path)
            await drain(jobs)
            await soon(jobs.sync())
            assert kept(path) == before
            assert [message.body async for message in jobs.scan()] == numbered(30)
        async with queue(path, segment_bytes=SMALL, retention=Retention(consumed="keep")) as jobs:
            assert (jobs.depth, jobs.begin_offset) == (0, 0)
            replay = jobs.topic.channel("replay", aiodq.ChannelOptions(start="earliest"))
            await jobs.topic.settle_in()
            assert ready_now(replay) == numbered(30)

    async def test_what_was_kept_goes_when_the_option_is_gone(self, path: Path) -> None:
        async with queue(path, segment_bytes=SMALL, retention=Retention(consumed="keep")) as jobs:
            await fill(jobs, numbered(30))
            await drain(jobs)
        async with queue(path, segment_bytes=SMALL) as jobs:
            await jobs.put(b"30")
            await drain(jobs)
            await soon(jobs.sync())
            await until(lambda: len(kept(path)) == 1)

    async def test_a_deletion_that_fails_is_made_up_for(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=SMALL) as jobs:
            fs.fail(errno.EBUSY, "remove", match=".seg")
            await fill(jobs, numbered(30))
            await drain(jobs)
            await soon(jobs.sync())
            assert len(kept(path)) > 3
        async with queue(path, segment_bytes=SMALL) as jobs:
            assert (jobs.depth, jobs.topic_stats().damages) == (0, 0)
            await jobs.put(b"a")
            await drain(jobs)
            await soon(jobs.sync())
            await until(lambda: len(kept(path)) == 1)
        assert odd_files(path) == []

    async def test_their_space_comes_back(self, path: Path) -> None:
        """No reader keeps a deleted segment open."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, segment_bytes=SMALL) as jobs:
            await fill(jobs, numbered(30))
            await jobs.read(0)
            await jobs.read(10)
            _ = [message async for message in jobs.scan()]
            await drain(jobs)
            await soon(jobs.sync())
            await until(lambda: len(kept(path)) == 1)
            held = [found.readlink() for found in Path("/proc/self/fd").iterdir() if found.is_symlink()]
            assert [name for name in held if str(path) in str(name) and "(deleted)" in str(name)] == []


class TestBounds:
    def opening(self, path: Path, clock: FakeClock, **bounds: Any) -> aiodq.QueueOpening:
        retention = Retention(**bounds)
        options = aiodq.StoreOptions(segment_bytes=SMALL, sync_interval=0.005, retention=retention)
        return aiodq.open_queue(path, options, fs=WatchedFileSystem(), clock=clock)

    @pytest.mark.parametrize("spare", [0, -1])
    async def test_bytes_are_those_of_the_files(self, path: Path, spare: int) -> None:
        async with self.opening(path, FakeClock(), consumed="keep") as jobs:
            await fill(jobs, [bytes(number % 7 * 9) for number in range(40)])
            found = segments(path)
            bound = sum(file.stat().st_size for file in found) + spare
            assert len(found) > 5
            assert bound - spare == jobs.topic_stats().disk_bytes
            retention = Retention(consumed="keep", unconsumed="delete", max_bytes=bound)
            options = aiodq.StoreOptions(segment_bytes=SMALL, sync_interval=0.005, retention=retention)
            await soon(jobs.topic.configure(options))
            await until(lambda: jobs.topic._engine.io_loop.ticker.due is None)
            await soon(jobs.sync())
            await until(lambda: segments(path) == found[-spare:])  # a thread deletes them

    async def test_age(self, path: Path) -> None:
        clock = FakeClock()
        async with self.opening(path, clock, consumed="keep", max_age=timedelta(seconds=10)) as jobs:
            await fill(jobs, numbered(20))
            await drain(jobs)
            early = kept(path)
            clock.move(9)
            await fill(jobs, numbered(20, start=20))
            await drain(jobs)
            await jobs.sync()
            assert kept(path)[: len(early)] == early
            clock.move(2)
            await until(lambda: kept(path)[0] >= early[-1])
            assert len(kept(path)) > 1

    async def test_number(self, path: Path) -> None:
        async with self.opening(path, FakeClock(), consumed="keep", max_segments=3) as jobs:
            for start in range(0, 60, 10):
                await fill(jobs, numbered(10, start))
                await drain(jobs)
            await until(lambda: len(kept(path)) == 3)

    async def test_bytes(self, path: Path) -> None:
        async with self.opening(path, FakeClock(), consumed="keep", max_bytes=5 * SMALL) as jobs:
            for start in range(0, 100, 10):
                await fill(jobs, numbered(10, start))
                await drain(jobs)
            await until(lambda: sum(found.stat().st_size for found in segments(path)) <= 5 * SMALL)
            assert len(kept(path)) > 1

    @pytest.mark.parametrize(
        "bounds", [{"max_segments": 2}, {"max_bytes": 1}, {"max_age": timedelta(microseconds=1)}], ids=str
    )
    async def test_what_was_not_consumed_is_exempt(self, path: Path, bounds: dict[str, object]) -> None:
        clock = FakeClock()
        async with self.opening(path, clock, **bounds) as jobs:
            await fill(jobs, numbered(30))
            clock.move(3600)
            await jobs.put(b"30")
            await jobs.sync()
            assert await drain(jobs) == numbered(31)

    @pytest.mark.parametrize(
        ("bounds", "first"),
        [({"max_segments": 2}, 20), ({"max_bytes": 1}, 25), ({"max_age": timedelta(microseconds=1)}, 30)],
        ids=str,
    )
    async def test_unless_it_is_told_otherwise_and_then_it_counts(
        self, path: Path, bounds: dict[str, object], first: int
    ) -> None:
        clock = FakeClock()
        async with self.opening(path, clock, unconsumed="delete", **bounds) as jobs:
            await fill(jobs, numbered(30))
            clock.move(3600)
            # What is out of sight is deleted a moment later.
            await until(lambda: kept(path)[0] == jobs.begin_offset == first)
            assert (jobs.depth, jobs.stats().dropped, jobs.begin_offset) == (30 - first, first, first)
            assert ready_now(jobs) == numbered(30 - first, start=first)
        async with queue(path) as jobs:
            assert (jobs.depth, jobs.topic_stats().damages) == (30 - first, 0)
            assert ready_now(jobs) == numbered(30 - first, start=first)

    async def test_what_is_in_flight_goes_too(self, path: Path) -> None:
        async with self.opening(path, FakeClock(), unconsumed="delete", max_segments=2) as jobs:
            await jobs.put(b"0")
            held = await jobs.get()
            await fill(jobs, numbered(30, start=1))
            await until(lambda: len(kept(path)) == 2)
            with pytest.raises(aiodq.NotInFlightError):
                await held.ack()
            assert jobs.in_flight() == 0

    async def test_who_waits_for_room_and_who_joins_is_told(self, path: Path, tasks: Tasks) -> None:
        clock = FakeClock()
        retention = Retention(unconsumed="delete", max_age=timedelta(seconds=10))
        options = aiodq.StoreOptions(segment_bytes=SMALL, sync_interval=0.005, retention=retention, max_messages=20)
        async with aiodq.open_queue(path, options, fs=WatchedFileSystem(), clock=clock) as jobs:
            await fill(jobs, numbered(20))
            putting = tasks.start(jobs.put(b"waits"))
            await turns()
            assert not putting.done()
            clock.move(11)
            assert await soon(putting) == 20

    async def test_with_several_channels_the_one_behind_loses(self, path: Path) -> None:
        retention = Retention(unconsumed="delete", max_segments=2)
        async with store(path, segment_bytes=SMALL, sync_interval=0.005, retention=retention) as opened:
            topic = opened.topic("a")
            quick, slow = topic.channel("quick"), topic.channel("slow")
            for body in numbered(30):
                await topic.put(body)
                assert (await quick.get()).body == body
            await until(lambda: len(kept(path, "a")) == 2)
            first = kept(path, "a")[0]
            assert slow.stats().dropped == first
            assert ready_now(slow) == numbered(30 - first, start=first)

    async def test_a_channel_made_while_segments_go_is_not_lost(self, path: Path) -> None:
        """Both replace the topic's description: neither may overwrite what the other said."""
        retention = Retention(unconsumed="delete", max_segments=2)
        names = []
        fs = WatchedFileSystem()
        async with store(path, fs=fs, segment_bytes=SMALL, sync_interval=0.001, retention=retention) as opened:
            topic = opened.topic("a")
            for number in range(60):
                topic.channel(f"c{number}")
                names.append(f"c{number}")
                await topic.put(b"%d" % number)
            await soon(topic.sync())
            assert topic.channels() == sorted(names)
        async with store(path) as opened:
            assert opened.topic("a").channels() == sorted(names)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"consumed": "burn"},
            {"unconsumed": "burn"},
            {"max_age": timedelta(0)},
            {"max_bytes": 0},
            {"max_segments": -1},
        ],
        ids=str,
    )
    def test_out_of_range(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(aiodq.InvalidOptionError):
            Retention(**wrong)
