"""A full disk on which no checkpoint finds room, as XFS makes no new file with less than some fifty pages free."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import aiodq
from tests.channels.support import until
from tests.storage.full import FullFileSystem

if TYPE_CHECKING:
    from aiodq.testing import Passed

OPTIONS: Final = aiodq.StoreOptions(segment_bytes=64 << 10)
A_FILE: Final = 53 * 4096
"""Bytes that have to be free for a new one."""

MANY: Final = 2000


class CrampedFileSystem(FullFileSystem):
    """Makes no new file without a good deal of room."""

    def __init__(self) -> None:
        super().__init__()
        self.add(self._cramp)

    def _cramp(self, call: Passed) -> None:
        if call.kind == "create" and self.room < A_FILE:
            raise OSError(errno.ENOSPC, "full")


async def ack(message: aiodq.Message) -> bool:
    """Ack; return whether that is durable."""
    with suppress(aiodq.DiskFullError):
        await message.ack()
        return True
    return False


@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.slow), 2])
async def test_a_disk_that_takes_no_checkpoint_comes_free_by_acks_one_by_one(tmp_path: Path, channels: int) -> None:
    fs = CrampedFileSystem()
    names = [f"c{number}" for number in range(channels)]
    async with aiodq.open(tmp_path / "s", OPTIONS, fs=fs) as store:
        topic = store.topic("t")
        for name in names:
            topic.channel(name, aiodq.ChannelOptions(start="earliest", max_in_flight=MANY))
        for number in range(MANY):
            await topic.put(b"%d" % number * 30)
        full_of = topic.stats().segments
        fs.room = 0
        durable = 0
        for name in names:
            for _ in range(MANY - 100):
                durable += await ack(await topic.channel(name).get())
        assert durable < channels * (MANY - 100), "there was room"
        await until(lambda: topic.stats().segments < full_of - 3)
        await topic.put(b"again")
        depth = {name: topic.channel(name).depth for name in names}
    assert set(depth.values()) == {101}
    async with aiodq.open(tmp_path / "s", OPTIONS) as store:
        topic = store.topic("t")
        assert {name: topic.channel(name).depth for name in names} == depth


@pytest.mark.parametrize("how", ["as the store is closed", "once there is room"])
@pytest.mark.usefixtures("unshown")
async def test_what_was_acked_and_gathered_in_memory_is_written(tmp_path: Path, how: str) -> None:
    fs, path = CrampedFileSystem(), tmp_path / "s"
    async with aiodq.open_queue(path, replace(OPTIONS, segment_bytes=1 << 20), fs=fs) as queue:
        await queue.put_many([b"%d" % number for number in range(MANY)])
        fs.room = 0
        acked = [await ack(await queue.get()) for _ in range(MANY - 7)]
        assert not all(acked)
        # Two each second, one before and one after the reserve gives way: far fewer than acks, however slow the run.
        assert len(fs.named("create", match="checkpoint")) < 300
        assert os.path.getsize(path / "queue" / "channels" / "default" / "journal") <= 4 * 4096
        if how == "once there is room":
            with pytest.raises(aiodq.DiskFullError):
                await queue.sync()
            fs.room = 1 << 30
            await queue.sync()
            path = Path(shutil.copytree(path, tmp_path / "copy"))
    async with aiodq.open_queue(path) as queue:
        await queue.topic.settle_in()
        assert queue.depth == 7
