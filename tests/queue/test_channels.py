"""Several channels on one topic: each sees all, where each begins, and what each keeps for itself."""

from __future__ import annotations

import asyncio
import errno
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    FakeClock,
    Tasks,
    crash_image,
    drain,
    fill,
    numbered,
    ready_now,
    soon,
    store,
    take,
    turns,
)

if TYPE_CHECKING:
    from pathlib import Path

EARLIEST = aiodq.ChannelOptions(start="earliest")


class TestFanOut:
    async def test_each_sees_every_message_once(self, path: Path) -> None:
        async with store(path, segment_bytes=500) as opened:
            topic = opened.topic("a")
            channels = [topic.channel(name) for name in ("x", "y", "z")]
            await fill(topic, numbered(50))
            for channel in channels:
                assert channel.depth == 50
                assert await drain(channel) == numbered(50)
            assert topic.channels() == ["x", "y", "z"]

    async def test_the_consumers_of_one_share_it(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            one, same = topic.channel("c"), topic.channel("c")
            await fill(topic, numbered(4))
            found = [(await channel.get()).body for channel in (one, same, one, same)]
            assert found == numbered(4)
            assert one.depth == same.depth == 4

    async def test_each_settles_for_itself(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            one, other = topic.channel("one"), topic.channel("other")
            await fill(topic, numbered(3))
            for message in await take(one, 3):
                await message.ack()
            await (await other.get()).nack()
        async with store(path) as opened:
            topic = opened.topic("a")
            assert topic.channel("one").depth == 0
            messages = await take(topic.channel("other"), 3)
            assert [(message.body, message.attempts) for message in messages] == [(b"0", 2), (b"1", 1), (b"2", 1)]

    async def test_one_behind_holds_no_other_up(self, path: Path, tasks: Tasks) -> None:
        async with store(path, memory_bytes=1 << 16, segment_bytes=20_000) as opened:
            topic = opened.topic("a")
            quick, slow = topic.channel("quick"), topic.channel("slow", aiodq.ChannelOptions(max_in_flight=1))
            held = tasks.start(slow.get())
            for number in range(300):
                await topic.put(b"%d" % number * 300)
                message = await soon(quick.get())
                assert message.offset == number
                message.ack_nowait()
            await (await held).ack()
            assert slow.depth == 299
            assert [message[:10] for message in await drain(slow)] == [
                (b"%d" % number * 300)[:10] for number in range(1, 300)
            ]


class TestBeginning:
    async def test_the_first_begins_at_the_earliest_and_the_next_at_the_end(self, path: Path) -> None:
        """As NSQ's: what came before any channel goes to the first."""
        async with store(path) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            first = topic.channel("first")
            await topic.settle_in()
            second = topic.channel("second")
            await topic.put(b"3")
            assert ready_now(first) == numbered(4)
            assert ready_now(second) == [b"3"]

    async def test_its_creation_is_durable_before_a_later_put_returns(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            topic.channel("first")
            topic.channel("second")
            await topic.put(b"3")
            crash_image(path, tmp_path / "image", fs)
        async with store(tmp_path / "image") as opened:
            topic = opened.topic("a")
            assert topic.channels() == ["first", "second"]
            assert ready_now(topic.channel("second")) == [b"3"]

    @pytest.mark.parametrize(
        ("start", "expected"), [("earliest", 0), ("latest", 10), (0, 0), (4, 4), (10, 10), (99, 10), (None, 0)]
    )
    async def test_where_it_is_told_to(self, path: Path, start: int | None, expected: int) -> None:
        async with store(path, segment_bytes=300) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(10))
            channel = topic.channel("c", aiodq.ChannelOptions(start=start))
            await topic.put(b"10")
            assert ready_now(channel) == numbered(11 - expected, start=expected)

    async def test_refresh_waits_for_one_that_begins_at_a_time(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(10))
            begin = aiodq.ChannelOptions(start=datetime(2020, 1, 1, tzinfo=UTC))
            channel = topic.channel("c", begin)
            await soon(channel.refresh())
            assert (channel.qsize(), channel.empty()) == (10, False)
            fs.fail(errno.EACCES, "create", match="d/journal")
            with pytest.raises(aiodq.ReadOnlyError):
                await soon(topic.channel("d", begin).refresh())
            fs.heal()

    async def test_at_a_time(self, path: Path) -> None:
        clock = FakeClock()
        begin = datetime.fromtimestamp(clock.now // 10**9, UTC)
        async with aiodq.open(
            path, aiodq.StoreOptions(segment_bytes=300), fs=WatchedFileSystem(), clock=clock
        ) as opened:
            topic = opened.topic("a")
            for body in numbered(10):
                clock.move(1)
                await topic.put(body)
            for seconds, expected in ((0, 0), (3, 2), (3.5, 3), (99, 10)):
                options = aiodq.ChannelOptions(start=begin + timedelta(seconds=seconds))
                channel = topic.channel(f"at{seconds}", options)
                await topic.settle_in()
                assert ready_now(channel) == numbered(10 - expected, start=expected)

    async def test_a_start_below_what_is_kept(self, path: Path) -> None:
        async with store(path, segment_bytes=300) as opened:
            topic = opened.topic("a")
            first = topic.channel("first")
            await fill(topic, numbered(20))
            await drain(first)
            await topic.sync()
            assert topic.begin_offset > 0
            second = topic.channel("second", aiodq.ChannelOptions(start=0))
            await topic.settle_in()
            assert ready_now(second) == numbered(20 - topic.begin_offset, start=topic.begin_offset)

    async def test_it_counts_only_when_the_channel_is_new(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(5))
            assert await drain(channel) == numbered(5)
        async with store(path) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c", aiodq.ChannelOptions(start="earliest"))
            await topic.put(b"5")
            assert ready_now(channel) == [b"5"]

    async def test_a_channel_before_the_topic_has_files(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c", aiodq.ChannelOptions(start="latest"))
            await topic.put(b"a")
            assert ready_now(channel) == [b"a"]

    async def test_made_while_messages_are_put(self, path: Path) -> None:
        """Whatever the moment, a channel sees a contiguous stretch up to the end."""
        async with store(path, segment_bytes=500) as opened:
            topic = opened.topic("a")
            channels = []
            for number in range(60):
                topic.put_nowait(b"%d" % number)
                if number % 7 == 3:
                    channels.append(topic.channel(f"c{number}", aiodq.ChannelOptions(start="latest")))
                if number % 5 == 0:
                    await asyncio.sleep(0)
            await topic.sync()
            for channel in channels:
                found = [int(body) for body in ready_now(channel)]
                assert found == list(range(60 - len(found), 60))
                # What was put after the channel was named must be there.
                assert len(found) >= 60 - int(channel.name[1:]) - 1


class TestInOneGo:
    NAMES = tuple(f"c{number}" for number in range(20))

    async def test_the_description_is_written_once(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            before = len(fs.named("rename", match="topic.json"))
            channels = [topic.channel(name, EARLIEST) for name in self.NAMES]
            await fill(topic, numbered(1, start=3))
            assert len(fs.named("rename", match="topic.json")) == before + 1
            assert [channel.depth for channel in channels] == [4] * len(self.NAMES)
            copy = crash_image(path, tmp_path / "copy", fs)
        async with store(copy) as opened:
            assert opened.topic("a").channels() == sorted(self.NAMES)
            for name in self.NAMES:
                assert ready_now(opened.topic("a").channel(name)) == numbered(4)

    async def test_each_begins_where_the_log_was_when_it_was_named(self, path: Path, tasks: Tasks) -> None:
        latest = aiodq.ChannelOptions(start="latest")
        async with store(path) as opened:
            topic = opened.topic("a")
            channels = []
            for number in range(10):
                channels.append(topic.channel(f"c{number}", latest))
                if number % 3 == 2:
                    tasks.start(topic.put(b"%d" % number))
                    await asyncio.sleep(0)
            await soon(topic.sync())
            assert [channel.depth for channel in channels] == [3, 3, 3, 2, 2, 2, 1, 1, 1, 0]

    async def test_one_that_cannot_be_made_keeps_none_of_the_others(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            fs.fail(errno.ENOSPC, "create", "make_directory", match="c7")
            channels = [topic.channel(name, EARLIEST) for name in self.NAMES]
            await soon(channels[8].get())
            with pytest.raises(aiodq.DiskFullError):
                await soon(channels[7].get())
            with pytest.raises(aiodq.DiskFullError):
                await soon(topic.put(b"3"))
            fs.heal()
            await fill(topic, numbered(1, start=3))
            assert ready_now(channels[7]) == numbered(4)
        async with store(path) as opened:
            assert opened.topic("a").channels() == sorted(self.NAMES)

    async def test_where_the_description_cannot_be_written_all_are_tried_again(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            fs.fail(errno.ENOSPC, "rename", match="topic.json")
            channels = [topic.channel(name, EARLIEST) for name in self.NAMES]
            with pytest.raises(aiodq.DiskFullError):
                await soon(topic.put(b"3"))
            fs.heal()
            before = len(fs.named("rename", match="topic.json"))
            await fill(topic, numbered(1, start=3))
            assert len(fs.named("rename", match="topic.json")) == before + 1
            for channel in channels:
                assert ready_now(channel) == numbered(4)


class TestState:
    async def test_counts_before_it_is_there(self, path: Path) -> None:
        async with store(path) as opened:
            channel = opened.topic("a").channel("c")
            assert (channel.qsize(), channel.in_flight(), channel.depth, channel.empty()) == (0, 0, 0, True)
            assert channel.stats().depth == 0
            with pytest.raises(aiodq.QueueEmpty):
                channel.get_nowait()
            assert await channel.peek() is None

    async def test_stats(self, path: Path) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(6))
            held = await take(channel, 5)
            await held[0].ack()
            await held[1].nack()
            held[2].release()
            await (await channel.get()).ack()
            stats = channel.stats()
            assert (stats.name, stats.ready, stats.in_flight, stats.depth, stats.floor) == ("c", 2, 2, 4, 2)
            assert (stats.delivered, stats.redelivered, stats.acked, stats.requeued) == (5, 1, 2, 1)
            assert (stats.dropped, stats.lost) == (0, 0)
            assert topic.stats().channels == {"c": stats}
            assert opened.stats().topics["a"].channels == {"c": stats}

    async def test_a_queue_is_a_topic_and_its_channel(self, path: Path) -> None:
        async with store(path) as opened:
            jobs = opened.queue("a")
            await jobs.put(b"a")
            assert (jobs.topic.name, jobs.name) == ("a", "default")
            assert opened.topic("a").channels() == ["default"]
            assert (await opened.queue("a").get()).body == b"a"
            assert jobs.in_flight() == 1

    async def test_getters_of_all_channels_wake(self, path: Path, tasks: Tasks) -> None:
        async with store(path) as opened:
            topic = opened.topic("a")
            getting = [tasks.start(topic.channel(f"c{number}").get()) for number in range(5)]
            await turns()
            await topic.put(b"a")
            assert [message.body for message in await soon(asyncio.gather(*getting))] == [b"a"] * 5


class TestThatCannotBeMade:
    """Something is refused while a channel is to be made."""

    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])
    @pytest.mark.parametrize("kind", ["write", "create", "make_directory", "rename"])
    async def test_a_put_is_refused_and_the_next_makes_it(
        self, path: Path, tasks: Tasks, error: int, kind: str
    ) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs, segment_bytes=500) as opened:
            topic = opened.topic("a")
            other = topic.channel("other")
            await fill(topic, numbered(40))
            fs.fail(error, kind, match="topic.json" if kind == "rename" else "late")
            late = topic.channel("late", EARLIEST)
            waiting = tasks.start(late.get())
            with pytest.raises(aiodq.StorageError):
                await soon(topic.put(b"refused"))
            with pytest.raises(aiodq.StorageError):
                await soon(waiting)
            fs.heal()
            assert await drain(other) == numbered(40)
            await topic.put(b"40")
            assert await drain(late) == numbered(41)
        async with store(path) as opened:
            assert opened.topic("a").channels() == ["late", "other"]
            assert ready_now(opened.topic("a").channel("late")) == []

    async def test_what_waits_for_it_tries_again_and_is_told(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs, segment_bytes=500) as opened:
            topic = opened.topic("a")
            other = topic.channel("other")
            await fill(topic, numbered(40))
            fs.fail(errno.ENOSPC, "write", "create", match="late")
            late = topic.channel("late", EARLIEST)
            for waiting in (topic.settle_in, late.join, late.purge, topic.settle_in):
                with pytest.raises(aiodq.DiskFullError):
                    await soon(waiting())
            for _ in range(3):
                with pytest.raises(aiodq.DiskFullError):
                    await soon(topic.put(b"refused"))
            assert await soon(other.purge()) == 40
            fs.heal()
            await soon(topic.settle_in())
            assert late.depth == 40
            assert await drain(late) == numbered(40)

    async def test_one_that_is_deleted_is_not_made(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            fs.fail(errno.ENOSPC, "write", "create", match="late")
            topic.channel("late")
            with pytest.raises(aiodq.DiskFullError):
                await soon(topic.settle_in())
            await soon(topic.delete_channel("late"))
            await soon(topic.put(b"3"))
            fs.heal()
            await soon(topic.put(b"4"))
            assert topic.channels() == []
        async with store(path) as opened:
            assert opened.topic("a").channels() == []

    async def test_a_topic_and_its_channel(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            fs.fail(errno.ENOSPC, "write", "create", match="/a/")
            topic = opened.topic("a")
            channel = topic.channel("c")
            for body in numbered(3):
                with pytest.raises(aiodq.DiskFullError):
                    await soon(topic.put(body))
            fs.heal()
            await soon(fill(topic, numbered(3)))
            assert await drain(channel) == numbered(3)

    async def test_closing_leaves_the_topic_as_it_is(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            fs.fail(errno.ENOSPC, "write", "create", match="late")
            topic.channel("late")
            with pytest.raises(aiodq.DiskFullError):
                await soon(opened.drain())
        async with store(path) as opened:
            topic = opened.topic("a")
            assert topic.channels() == []
            late = topic.channel("late", EARLIEST)
            await topic.settle_in()
            assert await drain(late) == numbered(3)


class TestThatCannotBeDeleted:
    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES])
    async def test_it_says_that_it_is_to_be_deleted_again(self, path: Path, error: int) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(3))
            fs.fail(error, "write", match="topic.json")
            with pytest.raises(aiodq.StorageError):
                await soon(topic.delete_channel("c"))
            fs.heal()
            assert topic.channels() == ["c"]
            for handle in (channel, topic.channel("c")):
                with pytest.raises(aiodq.QueueShutDown, match="'c' is half deleted: delete it again"):
                    await soon(handle.get())
            await soon(topic.delete_channel("c"))
            assert topic.channels() == []
            assert await drain(topic.channel("c")) == numbered(3)

    async def test_whose_files_alone_are_left_is_deleted(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            channel = topic.channel("c")
            await fill(topic, numbered(3))
            fs.fail(errno.EACCES, "remove", match="channels")
            with pytest.raises(aiodq.StorageError):
                await soon(topic.delete_channel("c"))
            assert topic.channels() == []
            with pytest.raises(aiodq.QueueShutDown, match="channel 'c' was deleted"):
                await soon(channel.get())
            fs.heal()
            assert await drain(topic.channel("c")) == numbered(3)
