"""Options are kept: by whatever a store is opened, a topic's history is deleted by its own rules alone."""

from __future__ import annotations

import asyncio
import errno
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq import Backoff, ChannelOptions, Retention, StoreOptions
from aiodq.testing import WatchedFileSystem
from tests.queue.descriptions import describe, description, make_older
from tests.queue.support import fill, numbered, segments, soon, turns, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

SMALL = 300
KEEP = StoreOptions(segment_bytes=SMALL, retention=Retention(consumed="keep"))
DELETE = StoreOptions(segment_bytes=SMALL)
MESSAGES = 60


def count(path: Path) -> int:
    """Return how many segments there are."""
    return len(segments(path, "events"))


async def history(path: Path, options: StoreOptions = KEEP) -> int:
    """Make a topic whose history was consumed, and kept; return how many segments that are."""
    async with aiodq.open(path, fs=WatchedFileSystem()) as store:
        events = store.queue("events", options=options)
        await fill(events, numbered(MESSAGES))
        for message in await events.get_many(MESSAGES):
            message.ack_nowait()
        await events.sync()
    assert count(path) > 8
    return count(path)


async def settled(store: aiodq.Store, name: str = "events") -> None:
    """Let everything be done that a topic would do by itself."""
    topic = store.topic(name)
    for _ in range(3):
        await topic.sync()
        await turns()


async def put_elsewhere(store: aiodq.Store) -> None:
    await store.topic("other").put(b"x")


async def name_the_queue(store: aiodq.Store) -> None:
    store.queue("events")


async def name_the_queue_first(store: aiodq.Store) -> None:
    store.queue("events")
    store.topic("events", KEEP)


async def name_the_queue_long_before(store: aiodq.Store) -> None:
    store.queue("events")
    await settled(store)
    store.topic("events", KEEP)


async def use_it(store: aiodq.Store) -> None:
    await store.queue("events").put(b"x")


async def transact(store: aiodq.Store) -> None:
    async with store.transaction() as transaction:
        transaction.put("events", b"x")


WAYS = [put_elsewhere, name_the_queue, name_the_queue_first, name_the_queue_long_before, use_it, transact]


class TestHistory:
    """The loss that made options be kept: nine segments cut to one by whoever did not name them."""

    @pytest.mark.parametrize("way", WAYS)
    async def test_what_was_named_holds_for_who_names_nothing(
        self, path: Path, way: Callable[[aiodq.Store], Awaitable[None]]
    ) -> None:
        before = await history(path)
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await soon(way(store))
            await settled(store)
            assert store.topic("events").begin_offset == 0
        assert count(path) >= before

    @pytest.mark.parametrize("way", WAYS)
    async def test_what_was_named_holds_against_what_open_is_given(
        self, path: Path, way: Callable[[aiodq.Store], Awaitable[None]]
    ) -> None:
        before = await history(path)
        async with aiodq.open(path, DELETE, fs=WatchedFileSystem()) as store:
            await soon(way(store))
            await settled(store)
        assert count(path) >= before

    @pytest.mark.parametrize("way", WAYS[:4])
    async def test_an_older_store_keeps_everything_until_it_is_used(
        self, path: Path, way: Callable[[aiodq.Store], Awaitable[None]]
    ) -> None:
        before = await history(path)
        make_older(path)
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await soon(way(store))
            await settled(store)
        assert count(path) == before

    @pytest.mark.parametrize("use", ["put", "ack", "nack", "transaction"])
    async def test_an_older_store_that_is_used_goes_by_defaults_that_are_on_disk(self, path: Path, use: str) -> None:
        await history(path)
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events").put(b"x")
        before = count(path)
        make_older(path)
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            since = len(fs.passed)
            events = store.queue("events")
            if use == "put":
                await events.put(b"x")
            elif use == "ack":
                await (await events.get()).ack()
            elif use == "nack":
                await (await events.get()).nack(60)
            else:
                async with store.transaction() as transaction:
                    transaction.ack(await events.get())
            await until(lambda: count(path) < before)
            renamed, removed = fs.named("rename", match="topic.json", since=since), fs.named("remove", match=".seg")
            assert renamed[0].ended < removed[0].begun
        assert description(path)["options"]["named"] is False

    async def test_what_open_is_given_holds_over_stored_defaults(self, path: Path) -> None:
        async with aiodq.open(path, KEEP, fs=WatchedFileSystem()) as store:
            await store.queue("events").put(b"x")
        assert description(path)["options"]["named"] is False
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            assert store.topic("events").options.retention == KEEP.retention
        async with aiodq.open(path, DELETE, fs=WatchedFileSystem()) as store:
            assert store.topic("events").options.retention == Retention()
            await store.topic("events").put(b"x")
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            assert store.topic("events").options.retention == Retention()

    async def test_open_queue_names_its_topic(self, path: Path) -> None:
        async with aiodq.open_queue(path, KEEP, ChannelOptions(max_in_flight=3), fs=WatchedFileSystem()) as queue:
            await queue.put(b"x")
        async with aiodq.open_queue(path, fs=WatchedFileSystem()) as queue:
            assert queue.topic.options.retention == KEEP.retention
            assert queue.options.max_in_flight == 3

    async def test_how_to_sync_is_the_process_s_own(self, path: Path) -> None:
        await history(path, StoreOptions(segment_bytes=SMALL, retention=KEEP.retention, sync="os"))
        async with aiodq.open(
            path, StoreOptions(sync="interval", memory_bytes=1 << 20), fs=WatchedFileSystem()
        ) as store:
            options = store.topic("events").options
            assert (options.sync, options.memory_bytes) == ("interval", 1 << 20)
            assert (options.segment_bytes, options.retention) == (SMALL, KEEP.retention)
        assert not {"sync", "memory_bytes", "sync_interval"} & description(path)["options"].keys()


ALL = StoreOptions(
    segment_bytes=4096,
    min_message_bytes=1,
    max_message_bytes=100,
    max_bytes=1 << 20,
    max_messages=7,
    overflow="reject",
    retention=Retention(
        consumed="keep",
        max_age=timedelta(days=3, microseconds=1),
        max_bytes=1 << 30,
        max_segments=5,
        unconsumed="delete",
    ),
)
EVERY = ChannelOptions(
    visibility_timeout=None,
    max_in_flight=2,
    max_attempts=4,
    dead_letter="dead",
    backoff=Backoff(first=0.5, factor=3, limit=7, jitter=0),
    tags=["b", "a"],
    auto_ack=True,
)


class TestAllOfThem:
    async def test_every_field_comes_back(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            queue = store.queue("events", EVERY, options=ALL)
            queue.topic.channel("plain")
            await queue.put(b"x")
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events")
            assert topic.options == ALL
            assert topic.channel("default").options == EVERY
            assert topic.channel("plain").options == ChannelOptions()

    async def test_the_shortest_max_age_comes_back(self, path: Path) -> None:
        shortest = StoreOptions(retention=Retention(consumed="keep", max_age=1e-9, max_segments=1))
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events", options=shortest).put(b"x")
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events")
            assert topic.stats().damages == 0
            assert (topic.channels(), topic.options) == (["default"], shortest)

    async def test_a_channel_deleted_and_made_again_begins_anew(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events")
            topic.channel("c", EVERY)
            await topic.put(b"x")
            await topic.delete_channel("c")
            assert "channel_options" not in description(path)
            assert topic.channel("c").options == ChannelOptions()
            await topic.settle_in()
        assert "channel_options" not in description(path)

    async def test_nothing_is_written_where_nothing_changes(self, path: Path) -> None:
        await history(path)
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            queue = store.queue("events", options=KEEP)
            await queue.put(b"x")
            await settled(store)
        assert not fs.named("rename", match="topic.json")


class TestNaming:
    async def test_two_different_ones_are_refused_with_both_values(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events", StoreOptions(max_messages=5))
            assert store.topic("events", StoreOptions(max_messages=5)) is topic
            assert store.topic("events") is topic
            with pytest.raises(aiodq.InvalidOptionError, match=r"'events'.*max_messages=5.*max_messages=6.*configure"):
                store.queue("events", options=StoreOptions(max_messages=6))
            topic.channel("c", ChannelOptions(max_attempts=1))
            topic.channel("c")
            with pytest.raises(aiodq.InvalidOptionError, match=r"'c'.*max_attempts=1.*max_attempts=2.*configure"):
                topic.channel("c", ChannelOptions(max_attempts=2))
            topic.channel("c", ChannelOptions(max_attempts=1, start="latest"))
            assert topic.options.max_messages == 5

    async def test_naming_none_first_is_no_conflict(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            queue = store.queue("events")
            await queue.put(b"x")
            store.queue("events", ChannelOptions(max_in_flight=1), options=KEEP)
            await settled(store)
            assert queue.options.max_in_flight == 1
        assert description(path)["options"]["retention"]["consumed"] == "keep"

    async def test_the_wrong_kind_is_told_where_it_belongs(self, path: Path) -> None:
        wrong: Any = StoreOptions()
        other: Any = ChannelOptions()
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events")
            with pytest.raises(TypeError, match=r"options=\.\.\."):
                store.queue("events", wrong)
            with pytest.raises(TypeError, match=r"channel=\.\.\."):
                store.queue("events", options=other)
            with pytest.raises(TypeError, match="ChannelOptions"):
                topic.channel("c", wrong)
            with pytest.raises(aiodq.InvalidOptionError, match="StoreOptions"):
                await topic.configure(other)
            with pytest.raises(aiodq.InvalidOptionError, match="StoreOptions"):
                await topic.configure(None)  # type: ignore[arg-type]  # what a user may write
            with pytest.raises(aiodq.InvalidOptionError, match="ChannelOptions"):
                await topic.channel("c").configure({"max_in_flight": 1})  # type: ignore[arg-type]  # likewise
            with pytest.raises(aiodq.InvalidOptionError, match="'events' itself"):
                await topic.channel("c").configure(ChannelOptions(dead_letter="events"))


class TestConfigure:
    async def test_a_topic_s_change_is_live_and_durable(self, path: Path) -> None:
        before = await history(path)
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events", KEEP)
            await topic.configure(DELETE)
            assert topic.options == DELETE
            await until(lambda: count(path) == 1)
            store.topic("events", DELETE)
        assert before > 1
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            assert store.topic("events").options.retention == Retention()

    async def test_a_channel_s_change_is_live_and_durable(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            queue = store.queue("events", ChannelOptions(max_in_flight=1))
            await queue.put_many(numbered(3))
            await queue.get()
            with pytest.raises(aiodq.QueueEmpty):
                queue.get_nowait()
            await queue.configure(ChannelOptions(max_in_flight=2))
            queue.get_nowait()
            await queue.configure(KEEP)  # of a queue, its topic's as well
            assert queue.topic.options.retention == KEEP.retention
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            assert store.queue("events").options.max_in_flight == 2

    async def test_before_there_are_files(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("events")
            await topic.configure(KEEP)
            assert store.topics() == []
            await topic.put(b"x")
        assert description(path)["options"]["named"] is True

    async def test_while_its_files_are_made_it_waits_until_they_hold_it(self, path: Path) -> None:
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            topic = store.topic("events")
            gate = fs.gate("rename", match="topic.json")
            put = asyncio.ensure_future(topic.put(b"x"))
            await gate.wait()
            change = asyncio.ensure_future(topic.configure(KEEP))
            await turns()
            early = change.done()
            fs.heal()
            await change
            assert not early
            assert description(path)["options"]["named"] is True
            await put

    async def test_one_that_cannot_be_written_leaves_those_before(self, path: Path) -> None:
        before = await history(path)
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            topic = store.topic("events", KEEP)
            channel = topic.channel("default")
            fs.fail(errno.ENOSPC, "create", "write", match="topic.json")
            with pytest.raises(aiodq.DiskFullError):
                await topic.configure(DELETE)
            with pytest.raises(aiodq.DiskFullError):
                await channel.configure(ChannelOptions(tags=["a"]))
            assert topic.options == KEEP
            assert channel.options.tags is None
            fs.heal()
            await topic.put(b"x")
            await settled(store)
            assert (await channel.get()).body == b"x"
        assert count(path) >= before

    async def test_cancelled_it_is_done_all_the_same(self, path: Path) -> None:
        await history(path)
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            topic = store.topic("events", KEEP)
            gate = fs.gate("rename", match="topic.json")
            task = asyncio.ensure_future(topic.configure(DELETE))
            await gate.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            fs.heal()
            await until(lambda: count(path) == 1)
            assert topic.options == DELETE

    async def test_of_what_is_ephemeral_nothing_is_kept(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            topic = store.topic("t#ephemeral", KEEP)
            await topic.put(b"x")
            await topic.configure(DELETE)
            assert topic.options.overflow == "drop_oldest"
            channel = store.topic("events").channel("c#ephemeral", ChannelOptions(max_in_flight=1))
            await channel.configure(ChannelOptions(tags=["a"]))
            assert channel.options.tags == ("a",)
            await store.topic("events").put(b"x")
        assert "channel_options" not in description(path)


class TestDurableFirst:
    """A change is on disk, and in the log, before anything is deleted by it."""

    async def test_retention_waits_for_what_is_named(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "aiodq.topic")
        before = await history(path)
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            gate = fs.gate("rename", match="topic.json")
            topic = store.topic("events", DELETE)
            await gate.wait()
            await topic.put(b"x")
            await turns(20)
            assert count(path) >= before
            assert "options changed" not in caplog.text
            fs.heal()
            await until(lambda: count(path) == 1)
            assert "'events': options changed: retention from Retention(consumed='keep'" in caplog.text

    async def test_nothing_is_deleted_while_they_cannot_be_written(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = await history(path)
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            fault = fs.fail(errno.ENOSPC, "create", match="topic.json")
            topic = store.topic("events", DELETE)
            await topic.put(b"x")
            await settled(store)
            assert fault.hits
            assert "its options cannot be stored" in caplog.text
            assert count(path) >= before
            fs.heal()
            await topic.put(b"x")  # tries again
            await until(lambda: count(path) == 1)

    async def test_dropping_waits_for_what_is_named(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events", options=StoreOptions(max_messages=3)).put_many(numbered(3))
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            queue = store.queue("events")
            gate = fs.gate("rename", match="topic.json")
            store.topic("events", StoreOptions(max_messages=3, overflow="drop_oldest"))
            await gate.wait()
            putting = asyncio.ensure_future(queue.put(b"new"))
            await turns(20)
            assert queue.depth == 3
            assert not putting.done()
            fs.heal()
            await soon(putting)
            assert [(await queue.get()).body for _ in range(3)] == [b"1", b"2", b"new"]

    async def test_a_put_that_waits_for_dropping_goes_on_though_what_is_named_could_not_be_written_at_first(
        self, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aiodq.engine.topic.effective_options._RETRY", 0.001)
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events", options=StoreOptions(max_messages=3)).put_many(numbered(3))
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            queue = store.queue("events")
            fault = fs.fail(errno.ENOSPC, "create", match="topic.json")
            store.topic("events", StoreOptions(max_messages=3, overflow="drop_oldest"))
            putting = asyncio.ensure_future(queue.put(b"new"))
            await until(lambda: fault.hits > 2)
            assert queue.depth == 3
            fs.heal()
            await soon(putting)
            assert [(await queue.get()).body for _ in range(3)] == [b"1", b"2", b"new"]
        assert caplog.text.count("its options cannot be stored") == 1

    async def test_a_channel_skips_nothing_by_tags_that_are_not_on_disk(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            queue = store.queue("events")
            await queue.put(b"plain")
            await queue.put(b"red", tag="red")
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            gate = fs.gate("rename", match="topic.json")
            queue = store.queue("events", ChannelOptions(tags=["red"]))
            getting = asyncio.ensure_future(queue.get())
            await gate.wait()
            await turns(20)
            assert queue.depth == 2
            assert await queue.peek() is None
            fs.heal()
            assert (await soon(getting)).body == b"red"
            assert queue.depth == 1

    async def test_a_channel_whose_options_cannot_be_written_says_so(self, path: Path) -> None:
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events").put(b"red", tag="red")
        fs = WatchedFileSystem()
        async with aiodq.open(path, fs=fs) as store:
            fs.fail(errno.ENOSPC, "create", match="topic.json")
            queue = store.queue("events", ChannelOptions(tags=["red"]))
            with pytest.raises(aiodq.DiskFullError):
                await soon(queue.get())
            fs.heal()
            assert (await soon(queue.get())).body == b"red"


class TestOnDisk:
    async def test_a_description_with_what_a_later_version_adds_is_read(self, path: Path) -> None:
        before = await history(path)
        content = description(path)
        content["options"] |= {"colour": "green"}
        content["options"]["retention"] |= {"mood": 1}
        content["channel_options"] = {"default": {"max_in_flight": 4, "speed": 9, "backoff": {"first": 3.0, "mood": 1}}}
        describe(path, content | {"more": [1]})
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            assert store.topic("events").options.retention == KEEP.retention
            assert store.queue("events").options.max_in_flight == 4
            assert store.queue("events").options.backoff == aiodq.Backoff(first=3.0)
            await settled(store)
        assert count(path) == before

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("retention", "keep"),
            ("retention", {"consumed": "sometimes"}),
            ("retention", None),
            ("segment_bytes", "300"),
            ("segment_bytes", 1e9),
            ("max_messages", True),
            ("overflow", "burn"),
            ("named", 1),
            ("compression", "lzma"),
        ],
    )
    async def test_a_description_that_is_damaged_deletes_nothing(self, path: Path, field: str, value: object) -> None:
        before = await history(path)
        content = description(path)
        content["options"][field] = value
        describe(path, content)
        for _ in range(2):  # nor in a later life
            async with aiodq.open(path, fs=WatchedFileSystem()) as store:
                queue = store.queue("events")
                await queue.put(b"x")
                for message in await queue.get_many(MESSAGES * 2, linger=0):
                    message.ack_nowait()
                await settled(store)
            assert count(path) >= before
        assert any("damaged" in found.name for found in (path / "events").iterdir())

    async def test_a_field_that_is_missing_is_damage(self, path: Path) -> None:
        before = await history(path)
        content = description(path)
        del content["options"]["retention"]
        describe(path, content)
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events").put(b"x")
            await settled(store)
        assert count(path) >= before

    async def test_a_description_that_is_missing_deletes_nothing(self, path: Path) -> None:
        before = await history(path)
        (path / "events" / "topic.json").unlink()
        async with aiodq.open(path, fs=WatchedFileSystem()) as store:
            await store.queue("events").put(b"x")
            await settled(store)
            assert count(path) >= before
            store.topic("events", DELETE)  # until somebody says so
            await store.queue("events").put(b"x")
            await until(lambda: count(path) < before)
