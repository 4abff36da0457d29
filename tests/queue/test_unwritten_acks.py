"""Acks for which the disk has no room: nothing counts as durable, and nothing is deleted, by what is only in memory."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    bodies_of,
    crash_image,
    fill,
    numbered,
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

POLICIES = ["always", "interval", "os"]
CHANNELS = "channels"
"""What the path of a journal and of a checkpoint contains."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_sync_says_that_they_are_not_on_disk(path: Path, policy: str, error: int) -> None:
    fs = WatchedFileSystem()
    async with queue(path, fs=fs, sync=policy) as jobs:
        await fill(jobs, numbered(3))
        fs.fail(error, "write", match=CHANNELS)
        (message,) = await take(jobs, 1)
        message.ack_nowait()
        for call in (jobs.sync, jobs.topic.sync):
            with pytest.raises(aiodq.StorageError) as caught:
                await soon(call())
            assert not isinstance(caught.value, aiodq.StoreFailedError)
        fs.heal()
        await soon(jobs.sync())
        image = crash_image(path, path.with_name("image"), fs)
    async with queue(image) as jobs:
        assert ready_now(jobs) == numbered(2, start=1)


@pytest.mark.parametrize("policy", POLICIES)
async def test_no_segment_goes_before_its_acks_are_on_disk(path: Path, policy: str) -> None:
    fs = WatchedFileSystem()
    async with queue(path, fs=fs, sync=policy, segment_bytes=428) as jobs:
        await fill(jobs, numbered(30))
        before = segments(path)
        fs.fail(errno.ENOSPC, "write", match=CHANNELS)
        for message in await take(jobs, 30):
            message.ack_nowait()
        since = len(fs.passed)
        # It is tried again and again.
        await until(lambda: len(fs.named("write", match="checkpoint", since=since)) > 1)
        assert segments(path) == before
        image = crash_image(path, path.with_name("image"), fs)
        fs.heal()
        await until(lambda: len(segments(path)) == 1)
        assert await soon(jobs.put(b"30")) == 30
    async with queue(image) as jobs:
        assert not jobs.topic_stats().damages
        assert ready_now(jobs) == numbered(30)
    async with queue(path) as jobs:
        assert not jobs.topic_stats().damages
        assert ready_now(jobs) == [b"30"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_at_closing_such_segments_are_left_for_the_next_owner(path: Path, policy: str) -> None:
    fs = WatchedFileSystem()
    async with queue(path, fs=fs, sync=policy, segment_bytes=428) as jobs:
        await fill(jobs, numbered(30))
        before = segments(path)
        fs.fail(errno.ENOSPC, "write", match=CHANNELS)
        for message in await take(jobs, 30):
            message.ack_nowait()
        with pytest.raises(aiodq.DiskFullError):
            await soon(jobs.sync())
    assert segments(path) == before
    async with queue(path) as jobs:
        assert not jobs.topic_stats().damages
        assert ready_now(jobs) == numbered(30)


@pytest.mark.parametrize("policy", POLICIES)
async def test_where_the_journal_has_no_room_a_checkpoint_holds_them(path: Path, policy: str) -> None:
    fs = WatchedFileSystem()
    async with queue(path, fs=fs, sync=policy) as jobs:
        await fill(jobs, numbered(3))
        fs.fail(errno.ENOSPC, "write", match="journal", times=2)
        (message,) = await take(jobs, 1)
        message.ack_nowait()
        await soon(jobs.sync())
        image = crash_image(path, path.with_name("image"), fs)
        fs.heal()
        assert bodies_of(await take(jobs, 2)) == numbered(2, start=1)
    async with queue(image) as jobs:
        assert ready_now(jobs) == numbered(2, start=1)


async def test_a_channel_is_deleted_and_a_store_closed_all_the_same(path: Path) -> None:
    fs = WatchedFileSystem()
    async with store(path, fs=fs) as opened:
        topic = opened.topic("t")
        one, two = topic.channel("one"), topic.channel("two")
        await fill(topic, numbered(3))
        fs.fail(errno.ENOSPC, "write", match="journal")
        for channel in (one, two):
            (await channel.get()).ack_nowait()
        await soon(topic.delete_channel("one"))
        assert topic.channels() == ["two"]
    fs.heal()
    async with store(path) as opened:
        assert opened.topic("t").channels() == ["two"]
        assert ready_now(opened.topic("t").channel("two")) == numbered(2, start=1)


async def test_an_error_while_a_checkpoint_is_written_takes_no_ack_along(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 2)
    fs = WatchedFileSystem()
    async with queue(path, fs=fs) as jobs:
        await fill(jobs, numbered(9))
        messages = await take(jobs, 9)
        fs.fail(errno.EIO, "write", match="checkpoint", times=1)
        gate = fs.gate("create", match="checkpoint")
        for message in messages[:6:2]:
            message.ack_nowait()
        await gate.wait()
        messages[1].ack_nowait()
        gate.open()
        await soon(jobs.sync())
        await soon(messages[3].ack())
        image = crash_image(path, path.with_name("image"), fs)
    async with queue(image) as jobs:
        assert ready_now(jobs) == numbered(4, start=5)


async def test_those_of_a_deleted_channel_are_not_of_a_new_one_of_its_name(path: Path) -> None:
    fs = WatchedFileSystem()
    async with store(path, fs=fs, retention=aiodq.Retention(consumed="keep")) as opened:
        topic = opened.topic("t")
        old = topic.channel("c")
        await fill(topic, numbered(4))
        fs.fail(errno.ENOSPC, "write", match=CHANNELS)
        for message in await take(old, 2):
            message.ack_nowait()
        with pytest.raises(aiodq.DiskFullError):
            await soon(topic.sync())
        await soon(topic.delete_channel("c"))
        fs.heal()
        new = topic.channel("c", aiodq.ChannelOptions(start="earliest"))
        await (await soon(new.get())).ack()
        image = crash_image(path, path.with_name("image"), fs)
    async with store(image) as opened:
        assert ready_now(opened.topic("t").channel("c")) == numbered(3, start=1)
