"""A topic as a stream: each message once, in batches of the size that was asked for, over restarts."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

import aiodq
from aiodq.spark.options import stream_options
from aiodq.spark.stream.streaming import StreamReader
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.storage.state.holds import Hold, read_hold, release_hold
from tests.spark.support import KEEP, MALFORMED, begun, deleted, fill, reader_of
from tests.spark.support import read as rows_of
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = aiodq.StoreOptions(segment_bytes=3000, retention=KEEP)
pytest_spark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def read(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    """Return (topic, offset) of a batch, read as tasks do, by a copy of the reader."""
    rows: list[tuple[str, int]] = []
    for partition in reader.partitions(start, end):
        task, there = pickle.loads(pickle.dumps((reader, partition)))  # noqa: S301 - dumped in this very line
        for batch in task.read(there):
            rows += zip(batch["topic"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    return rows


def batches(reader: StreamReader, start: dict[str, Any], limit: ReadLimit) -> list[list[tuple[str, int]]]:
    """Read until nothing is left; every offset goes through JSON, as Spark's log does."""
    found: list[list[tuple[str, int]]] = []
    while (end := json.loads(json.dumps(reader.latestOffset(start, limit))))["topics"] != start["topics"]:
        found.append(read(reader, start, end))
        assert read(reader, start, end) == found[-1], "a batch that is tried again is another"
        start = end
    return found


async def two_topics(path: Path) -> None:
    async with aiodq.open(path, SMALL) as store:
        await store.topic("a").put_many([b"x" * 50] * 300)
        for _ in range(100):
            await store.topic("b").put(b"y" * 90)


ALL = [("a", n) for n in range(300)] + [("b", n) for n in range(100)]


async def test_everything_once_whatever_the_limit(tmp_path: Path) -> None:
    await two_topics(tmp_path)
    reader = reader_of(tmp_path, splitBytes="1k")
    start = reader.initialOffset()
    assert (start["v"], start["topics"], list(start["ids"])) == (1, {"a": 0, "b": 0}, ["a", "b"])
    for limit in (
        ReadAllAvailable(),
        ReadMaxRows(1),
        ReadMaxRows(37),
        ReadMaxRows(10**6),
        ReadMaxBytes(1),
        ReadMaxBytes(5000),
    ):
        found = batches(reader, start, limit)
        assert sorted(row for batch in found for row in batch) == ALL
        if isinstance(limit, ReadMaxRows):
            assert all(len(batch) <= limit.max_rows for batch in found)
            assert all(len(batch) == limit.max_rows for batch in found[:-1])
        if isinstance(limit, ReadMaxBytes):
            assert len(found) > 2
    assert len(batches(reader, start, ReadAllAvailable())) == 1


async def test_both_topics_move_on(tmp_path: Path) -> None:
    await two_topics(tmp_path)
    reader = reader_of(tmp_path)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(40))
    assert (end["v"], end["topics"]) == (1, {"a": 20, "b": 20})
    end = reader.latestOffset(end, ReadMaxRows(200))
    assert end["topics"] == {"a": 140, "b": 100}


async def test_no_topic_starves_behind_another(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, SMALL) as store:
        for name, count in (("a", 50), ("b", 2), ("c", 2), ("d", 2)):
            await store.topic(name).put_many([b"x"] * count)
    reader = reader_of(tmp_path)
    at = reader.initialOffset()
    for _ in range(5):
        at = reader.latestOffset(at, ReadMaxRows(2))
    assert at["topics"]["a"] >= 2
    assert all(at["topics"][name] for name in "bcd")


async def test_where_a_topic_that_came_begins_is_on_record(tmp_path: Path) -> None:
    """What is deleted of it before its first batch is read is missed, and not passed over."""
    async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=1000)) as store:
        await store.topic("a").put(b"first")
        reader = reader_of(tmp_path)
        start = reader.initialOffset()
        queue = store.queue("b")
        for _ in range(60):
            await queue.put(b"x" * 50)
        between = reader.latestOffset(start, ReadAllAvailable())
        assert between["topics"] == {"a": 1, "b": 0}
        end = reader.latestOffset(between, ReadAllAvailable())
        assert end["topics"] == {"a": 1, "b": 60}
        for _ in range(40):
            await (await queue.get()).ack()
        while queue.begin_offset == 0:
            await asyncio.sleep(0.01)
        await deleted(queue, tmp_path / "b")
        with pytest.raises(aiodq.OffsetError, match="the messages 0 to 59"):
            reader.partitions(between, end)


async def test_what_comes_and_topics_that_come(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with aiodq.open(tmp_path, SMALL) as store:
        await store.topic("a0").put(b"first")
        reader, seen, put = reader_of(tmp_path, topics="a*", maxRecordsPerTrigger="50"), [], [("a0", 0)]
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(50)
        at = reader.initialOffset()
        for number in range(40):
            topic = store.topic(f"a{rng.randrange(1 + number // 10)}")
            offsets = await topic.put_many([b"x" * rng.randrange(200)] * rng.randrange(1, 20))
            put += [(topic.name, offset) for offset in offsets]
            await store.topic("other").put(b"not wanted")
            if rng.random() < 0.3:
                reader = reader_of(tmp_path, topics="a*")
            end = reader.latestOffset(at, limit)
            seen += read(reader, at, end)
            at = end
        seen += [row for batch in batches(reader, at, limit) for row in batch]
    assert sorted(seen) == sorted(put)


async def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    await two_topics(tmp_path)
    reader = reader_of(tmp_path)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    await fill(tmp_path, "a", rounds=3)
    await fill(tmp_path, "c", rounds=3)
    found = batches(reader, start, ReadMaxRows(90))
    assert sorted(row for batch in found for row in batch) == ALL
    assert reader.reportLatestOffset()["topics"] == {"a": 315, "b": 100, "c": 15}


async def test_where_topics_end_is_told_without_another_look(tmp_path: Path) -> None:
    """Spark asks at each trigger, and of many topics every look takes its time."""
    await two_topics(tmp_path / "store")
    reader = reader_of(tmp_path / "store")
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert reader.reportLatestOffset()["topics"] == {"a": 300, "b": 100}


async def test_a_batch_is_planned_from_what_its_trigger_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many topics every look takes its time. Only what was deleted meanwhile has a topic looked at anew."""
    await two_topics(tmp_path)
    reader, looks = reader_of(tmp_path), list[str]()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    refresh = LogSnapshot.refresh

    def watched(log: LogSnapshot, *, walk: bool = True) -> bool:
        looks.append(Path(log.directory).name)
        return refresh(log, walk=walk)

    monkeypatch.setattr(LogSnapshot, "refresh", watched)
    assert read(reader, start, end) == ALL
    assert looks == []
    min((tmp_path / "b").glob("*.seg")).unlink()
    with pytest.raises(aiodq.AiodqError):
        reader.partitions(start, end)
    assert set(looks) == {"b"}
    assert len(read(reader_of(tmp_path), start | {"topics": {"a": 0}}, {"v": 1, "topics": {"a": 300}})) == 300


async def test_what_was_wrong_only_for_a_moment_does_not_end_a_query(tmp_path: Path) -> None:
    await two_topics(tmp_path)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    segment = sorted((tmp_path / "b").glob("*.seg"))[1]
    segment.rename(tmp_path / "aside")
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(aiodq.CorruptionError, match="are missing"):
        reader.partitions(start, end)
    reader.latestOffset(start, ReadAllAvailable())
    (tmp_path / "aside").rename(segment)
    assert read(reader, start, end) == ALL


async def test_from_where_it_is_told(tmp_path: Path) -> None:
    await two_topics(tmp_path)
    assert reader_of(tmp_path, startingOffsets='{"a": 7}').initialOffset()["topics"] == {"a": 7, "b": 0}
    with pytest.raises(aiodq.InvalidOptionError, match="startingOffsets names the topic 'c', which is not read"):
        reader_of(tmp_path, startingOffsets='{"a": 7, "c": 0}').initialOffset()
    late = reader_of(tmp_path, startingTimestamp="2199-01-01T00:00:00+00:00")
    assert late.initialOffset()["topics"] == {"a": 300, "b": 100}
    with pytest.raises(aiodq.OffsetError, match="to start at 200"):
        reader_of(tmp_path, startingOffsets="200").initialOffset()


async def test_damage_where_a_time_begins_is_told(tmp_path: Path) -> None:
    """Nobody knows the times of what cannot be read: it may be as new."""
    await two_topics(tmp_path)
    [path, *_] = segments(tmp_path / "b")
    flip(path, path.read_bytes().index(b"y" * 90), 1)
    times = {"startingTimestamp": "2001-01-01T00:00:00+00:00"}
    strict, lenient = reader_of(tmp_path, **times), reader_of(tmp_path, failOnDataLoss="false", **times)
    start = lenient.initialOffset()
    assert start["topics"] == {"a": 0, "b": 1}
    assert read(lenient, start, lenient.latestOffset(start, ReadAllAvailable())) == [
        row for row in ALL if row != ("b", 0)
    ]
    start = strict.initialOffset()
    with pytest.raises(aiodq.CorruptionError, match="checksum is wrong"):
        read(strict, start, strict.latestOffset(start, ReadAllAvailable()))


async def test_what_retention_deleted_is_told_or_left_out(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=1000)) as store:
        queue = store.queue("q")
        for _ in range(60):
            await queue.put(b"x" * 50)
        reader = reader_of(tmp_path)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        for _ in range(50):
            await (await queue.get()).ack()
        while queue.begin_offset < 20:
            await queue.sync()
            await asyncio.sleep(0.01)
        await deleted(queue, tmp_path / "q")
        with pytest.raises(aiodq.OffsetError, match="let its retention keep them"):
            reader.partitions(start, end)
        begin = queue.begin_offset
        assert read(reader_of(tmp_path, failOnDataLoss="false"), start, end) == [("q", n) for n in range(begin, 60)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"endingOffsets": "5"},
        {"endingTimestamp": "5"},
        {"maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "1m"},
        {"maxRecordsPerTrigger": "0"},
        {"maxBytesPerTrigger": "x"},
        {"path": "/a,/a/"},
        {"minRecordsPerTrigger": "6", "maxRecordsPerTrigger": "5"},
        {"maxTriggerDelay": "1s"},
        {"subscribePattern": "a.*", "hold": "daily"},
    ],
    ids=str,
)
def test_mistakes(wrong: dict[str, str]) -> None:
    with pytest.raises(aiodq.InvalidOptionError):
        stream_options({"path": "/a", **wrong})


async def test_topics_by_a_regular_expression_as_they_come(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, SMALL) as store:
        for name in ("mail.eu", "mail.us", "mail", "email.eu", "other"):
            await store.topic(name).put(b"x")
        reader = reader_of(tmp_path, subscribePattern=r"mail(\.[a-z]+)?")
        start = reader.initialOffset()
        assert list(start["topics"]) == ["mail", "mail.eu", "mail.us"]
        await store.topic("mail.ch").put(b"x")
        await store.topic("mail.1").put(b"x")
        assert "mail.ch" in (end := reader.latestOffset(start, ReadAllAvailable()))["topics"]
        assert "mail.1" not in end["topics"]
    assert {row["topic"] for row in rows_of(tmp_path, subscribePattern="mail|o.*")} == {"mail", "other"}
    assert rows_of(tmp_path, subscribePattern="nothing") == []


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("aiodq.spark.stream.streaming.time", clock)
    return clock


async def test_a_batch_waits_for_enough_but_not_too_long(tmp_path: Path, clock: Clock) -> None:
    async with aiodq.open(tmp_path, SMALL) as store:
        await store.topic("a").put(b"x")
        reader = reader_of(tmp_path, minOffsetsPerTrigger="10", maxTriggerDelay="5m", startingOffsets="latest")
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMinRows(10)
        at = reader.latestOffset(reader.initialOffset(), limit)
        assert at["topics"] == {"a": 1}
        clock.now += 9999
        await store.topic("a").put_many([b"x"] * 9)
        assert reader.latestOffset(at, limit) == at
        assert reader.latestOffset(at, ReadAllAvailable())["topics"] == {"a": 10}, "once is at once"
        clock.now += 299
        assert reader.latestOffset(at, limit) == at
        clock.now += 1
        at = reader.latestOffset(at, limit)
        assert at["topics"] == {"a": 10}
        await store.topic("a").put_many([b"x"] * 9)
        clock.now += 299
        assert reader.latestOffset(at, limit) == at, "they have only come"
        await store.topic("a").put(b"x")
        assert reader.latestOffset(at, limit)["topics"] == {"a": 20}
        reader.prepareForTriggerAvailableNow()
        await store.topic("b").put(b"x")
        assert reader.latestOffset(at | {"topics": {"a": 19}}, limit)["topics"]["a"] == 20, "no more will come"


async def test_where_a_topic_begins_is_noted_while_a_batch_waits(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, SMALL) as store:
        await store.topic("a").put(b"x")
        reader = reader_of(tmp_path, minRecordsPerTrigger="10", maxRecordsPerTrigger="20")
        at, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(20)
        await store.topic("b").put_many([b"x"] * 15)
        at = reader.latestOffset(at, limit)
        assert at["topics"] == {"a": 0, "b": 0}
        assert reader.latestOffset(at, limit)["topics"] == {"a": 1, "b": 15}


async def test_several_stores_in_one_stream(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for path, count in ((left, 30), (right, 50)):
        async with aiodq.open(path, SMALL) as store:
            await store.topic("orders").put_many([b"%d" % number for number in range(count)])
    both = {"path": f"{left}/,{right}", "startingOffsets": '{"orders": 10}', "hold": "daily"}
    reader = StreamReader(stream_options(both))
    start = reader.initialOffset()
    assert (start["v"], start["topics"]) == (2, {f"{left}/orders": 10, f"{right}/orders": 10})
    assert read_hold(OsFileSystem(), str(right), "daily") == Hold({"orders": 10}, None)
    end = reader.latestOffset(start, ReadAllAvailable())
    found = batches(reader, start, ReadMaxRows(24))
    assert [len(batch) for batch in found] == [24, 24, 12]
    assert sorted(row for batch in found for row in batch) == sorted(
        [("orders", number) for number in range(10, 30)] + [("orders", number) for number in range(10, 50)]
    )
    reader.commit(end)
    assert read_hold(OsFileSystem(), str(left), "daily") == Hold({"orders": 30}, None, under_way=True)
    async with aiodq.open(right, SMALL) as store:
        await store.topic("more").put(b"x")
    between = StreamReader(stream_options(both)).latestOffset(end, ReadAllAvailable())
    assert between["topics"] == end["topics"] | {f"{right}/more": 0}
    release_hold(OsFileSystem(), str(right), "daily")
    with pytest.raises(aiodq.OffsetError, match="the hold 'daily' is gone"):
        reader.latestOffset(between, ReadAllAvailable())


async def test_a_query_of_one_store_does_not_go_on_with_several(tmp_path: Path) -> None:
    for name in ("a", "b"):
        await fill(tmp_path / name, rounds=1)
    one, both = reader_of(tmp_path / "a"), reader_of(Path(f"{tmp_path}/a,{tmp_path}/b"))
    for first, other in ((one, both), (both, one)):
        start = first.initialOffset()
        with pytest.raises(aiodq.InvalidOptionError, match="that takes a new checkpoint"):
            other.latestOffset(start, ReadAllAvailable())
        with pytest.raises(aiodq.InvalidOptionError, match="that takes a new checkpoint"):
            other.partitions(start, start)


@pytest.mark.parametrize("wrong", MALFORMED, ids=str)
async def test_offsets_that_were_spoilt_by_hand_are_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    await fill(tmp_path / "s", rounds=2)
    reader = reader_of(tmp_path / "s")
    good, told = {"v": 1, "topics": {"orders": 0}}, "offsets that aiodq does not write|another source's"
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        reader.latestOffset({**good, **wrong}, reader.getDefaultReadLimit())
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        reader.partitions(good, {**good, **wrong})
    assert reader.partitions(good, {**good, "topics": {"orders": 5}, "ids": {}})


@pytest.mark.parametrize("said", [3, {"v": 9, "topics": {}}, {"offset": 3}])
async def test_the_checkpoint_of_another_source_is_refused(tmp_path: Path, said: Any) -> None:
    await fill(tmp_path / "a", rounds=1)
    with pytest.raises(aiodq.InvalidOptionError, match="the checkpoint is another source's"):
        reader_of(tmp_path / "a").latestOffset(said, ReadAllAvailable())


@pytest_spark
def test_a_query_that_is_stopped_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    path, target = tmp_path / "store", str(tmp_path / "out")

    def run() -> None:
        stream = spark.readStream.format("aiodq").option("maxRecordsPerTrigger", "80").load(str(path))
        writer = stream.selectExpr("topic", "offset", "CAST(body AS STRING) AS text").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = begun(partial(writer.start, target))
        assert query.awaitTermination(250)
        assert query.exception() is None

    expected: list[tuple[str, int]] = []
    for _ in range(2):
        asyncio.run(fill(path, "orders", rounds=20))
        asyncio.run(fill(path, f"more{len(expected)}", rounds=2))
        run()
        store = aiodq.open_reader(path)
        expected = sorted((topic, message.offset) for topic in store.topics() for message in store.topic(topic).scan())
        rows = spark.read.parquet(target).select("topic", "offset").collect()
        assert sorted((row["topic"], row["offset"]) for row in rows) == expected
    assert len(expected) == 220


async def test_what_a_hold_keeps_until_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.engine.topic.retention.topic_retention._LOOK_EVERY", 0.0)
    reader = reader_of(tmp_path, hold="daily")
    async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=1000)) as store:
        queue = store.queue("a")
        await queue.put(b"first")
        start = reader.initialOffset()
        for number in range(40):
            await queue.put(b"%d" % number + bytes(90))
        for message in await queue.get_many(41, linger=20):
            await message.ack()
        end = reader.latestOffset(start, ReadMaxRows(20))
        assert read(reader, start, end) == [("a", number) for number in range(20)]
        reader.commit(end)
        queue.topic._engine.retain_soon()
        while queue.begin_offset == 0:
            await queue.sync()
            queue.topic._engine.retain_soon()
        again = reader_of(tmp_path, hold="daily")
        last = again.latestOffset(end, ReadAllAvailable())
        assert read(again, end, last) == [("a", number) for number in range(20, 41)]
    assert read_hold(OsFileSystem(), str(tmp_path), "daily") == Hold({"a": 20}, None, under_way=True)
    release_hold(OsFileSystem(), str(tmp_path), "daily")
    with pytest.raises(aiodq.OffsetError, match="the hold 'daily' is gone"):
        again.latestOffset(end, ReadAllAvailable())
    lenient = reader_of(tmp_path, hold="daily", failOnDataLoss="false")
    assert lenient.latestOffset(end, ReadAllAvailable()) == last
    assert read_hold(OsFileSystem(), str(tmp_path), "daily") == Hold({"a": 20}, None, under_way=True)
