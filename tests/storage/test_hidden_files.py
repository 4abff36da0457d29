"""Files that are there and that the system does not show: they are never taken for missing ones."""

from __future__ import annotations

import errno
import os
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.testing import Call, Fault, FaultPlan, SimulatedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.testing.disk import Image

OPTIONS = aiodq.StoreOptions(max_messages=50, overflow="reject", retention=aiodq.Retention(consumed="keep"))
CHANNEL = aiodq.ChannelOptions(max_attempts=3, dead_letter="dead", start="earliest")


async def ack(channel: aiodq.Channel, number: int) -> None:
    for _ in range(number):
        await (await channel.get()).ack()


async def made(path: str) -> Image:
    """What a killed process leaves: its topic has options, and its channel both a checkpoint and a journal."""
    fs = SimulatedFileSystem({path: None})
    async with aiodq.open(path, fs=fs) as store:
        topic = store.topic("jobs", OPTIONS)
        await topic.put_many([b"%d" % number for number in range(10)])
        await ack(topic.channel("c", CHANNEL), 3)
        async with store.transaction() as transaction:
            transaction.put("other", b"x")
    async with aiodq.open(path, fs=fs) as store:
        await ack(store.topic("jobs").channel("c"), 3)
        return {name: data for name, data in fs.image().items() if name.startswith(path)}


async def seen(path: str, fs: SimulatedFileSystem | None = None) -> dict[str, Any]:
    """Open the store; return what may not be forgotten."""
    async with aiodq.open(path, fs=fs) as store:
        topics = {name: store.topic(name) for name in store.topics()}
        assert store.health().ok
        return {
            name: (
                [message.body async for message in topic.scan()],
                topic.options,
                topic.stats().damages,
                {
                    channel: (topic.channel(channel).depth, topic.channel(channel).options)
                    for channel in topic.channels()
                },
            )
            for name, topic in topics.items()
        }


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("call", ["exists", "is_directory"])
@pytest.mark.parametrize("error", ["EIO", "EACCES", "ESTALE"])
async def test_what_cannot_be_looked_for_at_opening_is_not_missing(
    call: Call, error: str, stride: int, seed: int
) -> None:
    image = await made("/s")
    before = await seen("/s", SimulatedFileSystem(image))
    assert before["jobs"][3]["c"][0] == 4
    assert before["jobs"][1].max_messages == 50
    refused = 0
    for at in count(1 + random.Random(f"{seed}:{call}:{error}").randrange(stride), stride):
        fs = SimulatedFileSystem(image, plan=FaultPlan([Fault(call, at, error)]))
        try:
            async with aiodq.open("/s", fs=fs):
                fs.plan.clear()
        except aiodq.StorageError as told:
            assert told.errno == getattr(errno, error)
            refused += 1
        except aiodq.AiodqError as told:
            pytest.fail(f"{call}@{at}: {told!r}")
        reached = fs.calls.get(call, 0) >= at
        fs.plan.clear()
        assert await seen("/s", fs.power_cut()) == before, f"{call}@{at}"
        if not reached:
            break
    assert refused > 2 // stride, "what concerns one topic alone costs that topic alone"


HIDDEN = ["jobs", "jobs/topic.json", "jobs/watermark", "jobs/channels", "jobs/channels/c"]


@pytest.mark.parametrize("name", [*HIDDEN, "jobs/channels/c/journal", "jobs/channels/c/checkpoint", "#transactions"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ELOOP])
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
async def test_what_lstat_fails_on_at_opening_is_not_missing(
    name: str, number: int, stride: int, seed: int, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = await made(str(tmp_path))
    real, hits, turn = os.lstat, 0, 0

    def lstat(path: Any, **more: Any) -> os.stat_result:
        nonlocal hits
        if str(path) == f"{tmp_path}/{name}":
            hits += 1
            if hits == turn:
                raise OSError(number, os.strerror(number), path)
        return real(path, **more)

    monkeypatch.setattr(os, "lstat", lstat)
    _lay_out(image)
    before = await seen(str(tmp_path))
    assert hits
    first = random.Random(f"{seed}:{name}:{number}").randrange(min(stride, hits))
    for fault in range(1 + first, hits + 1, stride):
        hits, turn = 0, fault
        _lay_out(image)
        try:
            async with aiodq.open(tmp_path) as store:
                lasting = number == errno.ELOOP and "jobs" not in store.topics()
                assert lasting or "jobs" in store.topics()
        except aiodq.StorageError as told:
            assert told.errno == number
        turn = 0
        assert await seen(str(tmp_path)) == before, fault


def _lay_out(image: Image) -> None:
    """Make the files what they were."""
    for path, data in sorted(image.items()):
        if data is None:
            os.makedirs(path, exist_ok=True)
            continue
        with open(path, "wb") as file:
            file.write(data)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ELOOP, errno.ENAMETOOLONG])
def test_only_an_absent_name_is_absent(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, file = OsFileSystem(), tmp_path / "file"
    file.write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    names = [str(tmp_path / name) for name in ("", "file", "link", "dangling", "none", "file/below")]
    assert [fs.exists(name) for name in names] == [True, True, True, True, False, False]
    assert [fs.is_directory(name) for name in names] == [True, False, False, False, False, False]

    def lstat(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "lstat", lstat)
    for asked in (fs.exists, fs.is_directory):
        with pytest.raises(OSError, match=os.strerror(number)):
            asked(str(file))


async def test_a_topic_that_cannot_be_looked_at_is_not_deleted() -> None:
    fs = SimulatedFileSystem()
    async with aiodq.open("/s", fs=fs) as store:
        await store.topic("t").put(b"secret")
        fs.plan.add(Fault("is_directory", 1, "EACCES", match="/s/t"))
        with pytest.raises(aiodq.ReadOnlyError, match="/s"):
            await store.delete_topic("t")
    async with aiodq.open("/s", fs=fs) as store:
        assert [message.body async for message in store.topic("t").scan()] == [b"secret"]
