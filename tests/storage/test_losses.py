"""Segments that somebody deletes by hand: counted, and reported until a repair, however often the store is opened."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.segments.offset_ranges import joined, total, without
from aiodq.storage.state.json_file import decode_checked
from aiodq.storage.state.topic.topic_meta import read_meta, save_meta
from aiodq.testing import Fault, SimulatedFileSystem
from tests.channels.fixtures import machine
from tests.channels.support import Machine, ready, until
from tests.queue.support import soon
from tests.watching.support import at_hand

__all__ = ["machine"]

COUNT = 12
SMALL: dict[str, Any] = {"segment_bytes": 640}
TOPIC = "/s/jobs"
SHOWN = 3
"""A seed by which a power cut leaves a gap among segments that were being deleted."""


def segments(machine: Machine) -> list[str]:
    return sorted(path for path in machine.fs.image() if path.startswith(f"{TOPIC}/") and path.endswith(".seg"))


async def filled(machine: Machine, acked: int = 0) -> list[int]:
    """Put messages into several segments; return the first offset of each, and the end."""
    async with machine.store(**SMALL) as store:
        jobs = store.queue("jobs")
        for number in range(COUNT):
            await jobs.put(b"%d" % number + bytes(100))
        for _ in range(acked):
            await (await soon(jobs.get())).ack()
        return [*(segment.base for segment in store.topic("jobs")._engine.log.segments), COUNT]


def found(machine: Machine) -> list[tuple[int, int]]:
    """Return the offsets that a verification says are damaged."""
    return [(one.first, one.stop) for one in verify_store("/s", machine.fs).damages]


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "cut"])
async def test_all_segments_gone_are_reported_until_a_repair(machine: Machine, crash: bool) -> None:
    await filled(machine, acked=2)
    for path in segments(machine):
        machine.fs.remove(path)
    for opening in range(3):
        async with machine.store(**SMALL) as store:
            jobs = store.queue("jobs")
            stats = jobs.topic_stats()
            assert (stats.lost, jobs.depth, jobs.end_offset) == (COUNT - 2, opening, COUNT + opening)
            if not opening:
                assert stats.channels["default"].lost == COUNT - 2
            await jobs.put(b"new")
            await jobs.sync()
            if crash:
                machine.crash()
        assert found(machine) == [(2, COUNT)]
        assert StoreReader("/s", machine.fs).stats().topics["jobs"].lost == COUNT - 2
    assert [one.path for one in repair_store("/s", machine.fs)] == [f"{TOPIC}/topic.json"]
    assert verify_store("/s", machine.fs).ok
    assert repair_store("/s", machine.fs) == []
    async with machine.store(**SMALL) as store:
        jobs = store.queue("jobs")
        assert (jobs.topic_stats().lost, jobs.depth) == (0, 3)
    assert verify_store("/s", machine.fs).ok


@pytest.mark.parametrize("number", [0, 1], ids=["first", "middle"])
async def test_an_owner_that_meets_a_segment_gone_says_what_is_missing_and_what_to_do(
    machine: Machine, number: int
) -> None:
    bases = await filled(machine)
    gone = segments(machine)[number]
    async with machine.store(**SMALL) as store:
        jobs, events = store.queue("jobs"), store.events()
        machine.fs.remove(gone)
        took = [(await soon(jobs.get())).offset for _ in range(COUNT - bases[number + 1] + bases[number])]
        assert took == [offset for offset in range(COUNT) if not bases[number] <= offset < bases[number + 1]]
        await until(lambda: jobs.topic_stats().damages == 1)
        event = next(event for event in at_hand(events) if event.channel is None)
        assert (event.kind, event.topic, event.offset) == ("damage", "jobs", bases[number])
        assert event.text == (
            f"{gone} at byte 0: the file was deleted, not by aiodq: put it back while the store is closed, or accept "
            "the loss with aiodq repair"
        )


async def test_an_opening_that_misses_a_segment_says_what_to_do(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    bases = await filled(machine)
    machine.fs.remove(segments(machine)[1])
    async with machine.store(**SMALL):
        pass
    assert f"no segment holds the offsets {bases[1]} to {bases[2] - 1}: put the file back" in caplog.text
    assert "or accept the loss with aiodq repair" in caplog.text


@pytest.mark.parametrize("channel", [False, True], ids=["no channel", "a channel"])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "middle", "last"])
async def test_one_segment_gone_is_reported_until_a_repair(machine: Machine, number: int, channel: bool) -> None:
    bases = await filled(machine)
    if not channel:
        async with machine.store(**SMALL) as store:
            await store.topic("jobs").delete_channel("default")
    machine.fs.remove(segments(machine)[number])
    lost = list(pairwise(bases))[number]
    if not (channel or number):
        return  # of the oldest messages without a channel nobody can tell whether retention took them
    for opening in range(3):
        async with machine.store(**SMALL) as store:
            topic = store.topic("jobs")
            assert topic.stats().lost == lost[1] - lost[0]
            if channel:
                assert len(ready(store.queue("jobs"))) == COUNT - (lost[1] - lost[0])
                assert topic.stats().channels["default"].lost == (0 if opening else lost[1] - lost[0])
        assert found(machine) == [lost]
    assert repair_store("/s", machine.fs)
    assert verify_store("/s", machine.fs).ok
    async with machine.store(**SMALL) as store:
        assert store.topic("jobs").stats().lost == 0
    assert verify_store("/s", machine.fs).ok


async def test_whenever_the_power_is_cut_at_an_opening_it_stays_known(machine: Machine, seed: int) -> None:
    await filled(machine, acked=2)
    for path in segments(machine):
        machine.fs.remove(path)
    recorded = machine.fs = SimulatedFileSystem(machine.fs.image(), record=True)
    async with machine.store(**SMALL) as store:
        await store.queue("jobs").put(b"new")
    states = list(recorded.power_cuts(seed, 2))
    for _, image in Random(seed).sample(states, min(len(states), 40)):
        machine.fs = SimulatedFileSystem(image)
        assert found(machine)
        async with machine.store(**SMALL) as store:
            assert store.topic("jobs").stats().lost == COUNT - 2
        assert found(machine) == [(2, COUNT)]


async def test_a_full_disk_keeps_no_store_shut(machine: Machine) -> None:
    bases = await filled(machine)
    machine.fs.remove(segments(machine)[1])
    machine.fs.plan.add(Fault("create", 1, "ENOSPC", lasting=True, match="topic.json"))
    async with machine.store(**SMALL) as store:
        assert store.topic("jobs").stats().lost == bases[2] - bases[1]
        assert len(ready(store.queue("jobs"))) == COUNT - (bases[2] - bases[1])
        machine.fs.plan.clear()
        await store.queue("jobs").pause()
    assert found(machine) == [(bases[1], bases[2])]


async def test_what_is_put_back_is_no_loss(machine: Machine) -> None:
    bases = await filled(machine)
    path = segments(machine)[1]
    data = machine.fs.image()[path]
    machine.fs.remove(path)
    async with machine.store(**SMALL) as store:
        assert store.topic("jobs").stats().lost == bases[2] - bases[1]
    machine.fs = type(machine.fs)({**machine.fs.image(), path: data})
    assert found(machine) == []
    async with machine.store(**SMALL) as store:
        assert store.topic("jobs").stats().lost == 0
    assert verify_store("/s", machine.fs).ok


async def test_lost_offsets_are_not_given_again_where_the_watermark_is_gone_too(machine: Machine) -> None:
    await filled(machine)
    for _ in range(2):
        for path in segments(machine):
            machine.fs.remove(path)
        async with machine.store(**SMALL) as store:
            assert store.topic("jobs").stats().lost == COUNT
            assert store.queue("jobs").end_offset == COUNT
        machine.fs.remove(f"{TOPIC}/watermark")
    async with machine.store(**SMALL) as store:
        jobs = store.queue("jobs")
        assert await soon(jobs.put(b"new")) == COUNT
        assert (await soon(jobs.get())).body == b"new"


async def test_what_retention_deletes_is_no_loss(machine: Machine) -> None:
    bases = await filled(machine)
    async with machine.store(**SMALL, sync_interval=0.002) as store:
        jobs = store.queue("jobs")
        held = [await soon(jobs.get()) for _ in range(COUNT)]
        for message in held:
            if bases[1] <= message.offset < bases[3]:
                await message.ack()
        await until(lambda: store.topic("jobs").stats().segments == len(bases) - 3)
        await until(lambda: len(segments(machine)) == len(bases) - 3)
        await jobs.seek(0)
    for _ in range(2):
        assert found(machine) == []
        async with machine.store(**SMALL) as store:
            assert store.topic("jobs").stats().lost == 0
            assert store.topic("jobs").stats().damages == 0
    async with machine.store(**SMALL) as store:
        await store.topic("jobs").delete_channel("default")
    async with machine.store(**SMALL) as store:
        assert store.topic("jobs").stats().lost == 0
    assert found(machine) == []


async def test_where_the_last_channel_is_deleted_no_power_cut_makes_a_loss_of_what_retention_deletes(
    machine: Machine,
) -> None:
    """Of files that are deleted one after the other, later ones may stay deleted though earlier ones are back."""
    machine.fs = SimulatedFileSystem(record=True)
    async with machine.store(**SMALL) as store:
        jobs = store.queue("jobs")
        for number in range(5 * COUNT):
            await jobs.put(b"%d" % number + bytes(100))
        while jobs.depth > 1:
            await (await soon(jobs.get())).ack()
        await until(lambda: len(segments(machine)) <= 2)
        await jobs.topic.delete_channel("default")
        states = [image for _, image in machine.fs.power_cuts(SHOWN, 12)]
    for image in states[-100:]:
        machine.fs = SimulatedFileSystem(image)
        async with machine.store(**SMALL) as store:
            stats = store.stats().topics["jobs"]
            assert (stats.damages, stats.lost) == (0, 0)


async def test_a_version_before_reads_the_description(machine: Machine) -> None:
    await filled(machine)
    meta = read_meta(machine.fs, TOPIC)
    assert meta is not None
    path = f"{TOPIC}/topic.json"
    before = machine.fs.image()[path]
    save_meta(machine.fs, TOPIC, meta)
    assert machine.fs.image()[path] == before
    meta.lost, meta.deleted = ((1, 2), (4, 8)), ((9, 10),)
    save_meta(machine.fs, TOPIC, meta)
    assert read_meta(machine.fs, TOPIC) == meta
    described = decode_checked(machine.fs.image()[path] or b"", "topic", 1, path, "the description")
    known = {"uuid", "begin", "channels", "options"}
    assert {key: value for key, value in described.items() if key in known} == {
        key: value for key, value in decode_checked(before or b"", "topic", 1, path, "it").items() if key in known
    }
    assert json.dumps(described["lost"]) == "[[1, 2], [4, 8]]"


def test_ranges_are_as_sets_of_offsets(seed: int) -> None:
    random = Random(seed)

    def some() -> list[tuple[int, int]]:
        return [(start, start + random.randrange(-1, 8)) for start in random.choices(range(30), k=random.randrange(5))]

    def offsets(ranges: Any) -> set[int]:
        return {offset for start, stop in ranges for offset in range(start, stop)}

    for _ in range(500):
        one, two = some(), some()
        for result, expected in (
            (joined(one), offsets(one)),
            (without(one, two), offsets(one) - offsets(two)),
        ):
            assert offsets(result) == expected
            assert total(result) == len(expected)
            assert all(stop < start for (_, stop), (start, _) in pairwise(result))
