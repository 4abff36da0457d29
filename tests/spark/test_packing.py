"""Many small topics are a few tasks: what a task reads is put together by bytes and by count. Without a JVM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.spark.options import read_options, stream_options
from aiodq.spark.packing import OPENING_BYTES, pack, plan_tasks, tasks_for
from aiodq.spark.planning import LEAST_BYTES, MOST_BYTES, bytes_of, plan
from aiodq.spark.reading import Partition, read_partition
from aiodq.spark.stream.streaming import StreamReader
from aiodq.storage.io.filesystem import OsFileSystem
from tests.spark.support import KEEP, fill, read, scanned
from tests.storage.logs import segments

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = [f"t{number:02}" for number in range(30)]


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    async with aiodq.open(tmp_path / "store", aiodq.StoreOptions(sync="os", retention=KEEP)) as store:
        for topic in TOPICS:
            await store.topic(topic).put_many([b"%d" % number for number in range(10)])
    return tmp_path / "store"


async def test_small_topics_share_a_task(store: Path) -> None:
    (task,) = plan_tasks(OsFileSystem(), read_options({"path": str(store)}))
    assert [split.topic for split in task] == TOPICS
    assert read(store) == [row for topic in TOPICS for row in scanned(store, topic)]


async def test_small_topics_of_a_stream_share_a_task(store: Path) -> None:
    reader = StreamReader(stream_options({"path": str(store)}))
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert sum(batch.num_rows for batch in reader.read(task)) == 10 * len(TOPICS)


async def test_what_is_read_of_small_topics_is_joined_and_of_large_ones_is_not(store: Path) -> None:
    async with aiodq.open(store) as opened:
        await opened.topic("t14").put_many([b"x" * 1000] * 2000)
    options = read_options({"path": str(store), "columns": "topic,offset,body"})
    (task,) = plan_tasks(OsFileSystem(), options)
    before, large, after = read_partition(OsFileSystem(), Partition(task), options)
    assert [before.num_rows, large.num_rows, after.num_rows] == [140, 2010, 150]
    assert before["topic"].to_pylist() == [topic for topic in TOPICS[:14] for _ in range(10)]
    assert set(large["topic"].to_pylist()) == {"t14"}
    assert after["body"].to_pylist() == [b"%d" % number for number in range(10)] * 15


@pytest.mark.parametrize("size", ["1k", "1g"])
async def test_of_splits_is_known_about_how_many_bytes_they_have(tmp_path: Path, size: str) -> None:
    await fill(tmp_path, segment_bytes=4096)
    splits = plan(OsFileSystem(), read_options({"path": str(tmp_path), "splitBytes": size}))
    there = sum(path.stat().st_size for path in segments(tmp_path / "orders"))
    assert all(bytes_of(split) > 0 for split in splits)
    assert sum(map(bytes_of, splits)) == pytest.approx(there, rel=0.3)
    assert (len(splits) > 1) is (size == "1k")


@pytest.mark.parametrize(("size", "tasks"), [("1", 30), (str(OPENING_BYTES), 30), ("3m", 3), ("1g", 1)])
async def test_how_much_one_task_reads_can_be_said(store: Path, size: str, tasks: int) -> None:
    options = read_options({"path": str(store), "splitBytes": size})
    found = plan_tasks(OsFileSystem(), options)
    assert len(found) == tasks
    assert [split for task in found for split in task] == plan(OsFileSystem(), options)


@pytest.mark.parametrize("least", [1, 4, 30])
async def test_a_read_is_shared_among_as_many_tasks_as_are_asked_for(store: Path, least: int) -> None:
    assert len(plan_tasks(OsFileSystem(), read_options({"path": str(store), "minPartitions": str(least)}))) == least
    reader = StreamReader(stream_options({"path": str(store), "minPartitions": str(least)}))
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))) == least


async def test_one_topic_is_cut_into_as_many_tasks_as_are_asked_for(tmp_path: Path) -> None:
    await fill(tmp_path / "store", rounds=60, segment_bytes=1000)
    assert len(plan_tasks(OsFileSystem(), read_options({"path": str(tmp_path / "store"), "minPartitions": "5"}))) >= 4
    assert read(tmp_path / "store", minPartitions="5") == scanned(tmp_path / "store")


async def test_what_is_cut_is_not_put_together_again(tmp_path: Path) -> None:
    await fill(tmp_path / "store", rounds=60, segment_bytes=1000)
    options = read_options({"path": str(tmp_path / "store"), "splitBytes": "1k"})
    tasks = plan_tasks(OsFileSystem(), options)
    assert len(tasks) == len(plan(OsFileSystem(), options)) > 5


@pytest.mark.parametrize("number", [1, 2, 3, 7, 40])
def test_parts_are_in_order_and_weigh_about_the_same(number: int) -> None:
    pieces = [1 + each * 7919 % 13 for each in range(40)]
    parts = pack(pieces, lambda piece: piece, number)
    assert [piece for part in parts for piece in part] == pieces
    assert all(parts)
    assert len(parts) <= number
    assert max(map(sum, parts)) <= sum(pieces) / number + max(pieces)


def test_there_are_as_many_tasks_as_cores_unless_there_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert [tasks_for(total) for total in (0, 1, LEAST_BYTES, LEAST_BYTES + 1, 100 * LEAST_BYTES)] == [0, 1, 1, 2, 12]
    assert tasks_for(80 * MOST_BYTES) == 80
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert [tasks_for(total) for total in (LEAST_BYTES, 80 * MOST_BYTES)] == [1, 80]
    assert pack([], len, 0) == []
    assert pack(["a", "b"], len, 0) == [("a", "b")], "what weighs little is not left out"
