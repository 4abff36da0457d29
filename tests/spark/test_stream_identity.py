"""A stream goes on with the topics that it began with: another one of the same name has other messages."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import aiodq
from aiodq.spark.options import read_options, stream_options
from aiodq.spark.planning import plan
from aiodq.spark.reading import record_batches
from aiodq.spark.stream.lag import lag
from aiodq.spark.stream.stream_topics import StreamTopics
from aiodq.spark.stream.streaming import StreamReader
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_hold
from tests.spark.support import KEEP, begun, reader_of
from tests.spark.test_lag import checkpoint_of
from tests.spark.test_streaming import pytest_spark, read
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiodq.storage.read.snapshot import LogSnapshot

ALL = ReadAllAvailable()
BODY = b"no header has this in it"


async def put(path: Path, topic: str, count: int, body: bytes = b"x", *, anew: bool = False) -> None:
    async with aiodq.open(path, aiodq.StoreOptions(retention=KEEP)) as store:
        if anew:
            await store.delete_topic(topic)
        await store.topic(topic).put_many([body] * count)


async def put_both(path: Path) -> None:
    await put(path, "a", 5)
    await put(path, "b", 30)


def taken(reader: StreamReader) -> dict[str, Any]:
    """Return the offset behind everything, as it comes out of Spark's log."""
    offset: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), ALL)))
    return offset


@pytest.mark.parametrize("messages", [1, 30, 50])
async def test_a_topic_that_was_made_anew(tmp_path: Path, messages: int, caplog: pytest.LogCaptureFixture) -> None:
    await put_both(tmp_path)
    running = reader_of(tmp_path)
    end = taken(running)
    await put(tmp_path, "b", messages, anew=True)
    for reader in (running, reader_of(tmp_path)):
        with pytest.raises(aiodq.OffsetError, match=r"'b' was deleted and created again .* up to 30.* new checkpoint"):
            reader.latestOffset(end, ALL)
    lenient = reader_of(tmp_path, failOnDataLoss="false")
    between = lenient.latestOffset(end, ALL)
    assert between["topics"] == {"a": 5, "b": 0}
    assert between["ids"]["b"] != end["ids"]["b"]
    assert "topic 'b' was created again after 30" in caplog.text
    assert read(lenient, end, between) == []
    last = lenient.latestOffset(between, ReadMaxRows(1000))
    assert read(lenient, between, last) == [("b", number) for number in range(messages)]
    assert reader_of(tmp_path).latestOffset(last, ALL) == last, "what is on record is the new topic"


async def test_a_topic_that_is_made_anew_behind_a_plan(tmp_path: Path) -> None:
    await put_both(tmp_path)
    reader = reader_of(tmp_path)
    start, end = reader.initialOffset(), taken(reader)
    await put(tmp_path, "b", 50, anew=True)
    with pytest.raises(aiodq.OffsetError, match="'b' was deleted and created again"):
        reader_of(tmp_path).partitions(start, end)
    assert read(reader_of(tmp_path, failOnDataLoss="false"), start, end) == [("a", number) for number in range(5)]


async def test_a_topic_that_is_only_deleted_is_another_when_it_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await put_both(tmp_path)
    reader = reader_of(tmp_path)
    end = taken(reader)
    async with aiodq.open(tmp_path) as store:
        await store.delete_topic("b")
    for _ in range(2):
        assert reader.latestOffset(end, ALL) == end
        assert reader_of(tmp_path, topics="a").latestOffset(end, ALL) == end
    assert caplog.text.count("topic 'b' was deleted: it was read up to 30, and what came after is gone") == 1
    await put(tmp_path, "b", 40)
    with pytest.raises(aiodq.OffsetError, match="'b' was deleted and created again"):
        reader.latestOffset(end, ALL)


async def delete(path: Path, topic: str) -> None:
    async with aiodq.open(path) as store:
        await store.delete_topic(topic)


@pytest.mark.parametrize("named", [{"topics": "a,b"}, {"topics": "a,b*"}, {"topic": "a"}], ids=str)
async def test_a_topic_named_in_full_that_is_deleted(
    tmp_path: Path, named: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await put_both(tmp_path)
    running, lenient = reader_of(tmp_path, **named), reader_of(tmp_path, **named, failOnDataLoss="false")
    start, end = running.initialOffset(), taken(running)
    assert lenient.latestOffset(lenient.initialOffset(), ALL) == end
    await delete(tmp_path, "a")
    for strict in (running, reader_of(tmp_path, **named)):
        with pytest.raises(aiodq.StoreNotFoundError, match="there is no topic 'a' any more, which was read up to 5"):
            strict.latestOffset(end, ALL)
    again = reader_of(tmp_path, **named, failOnDataLoss="false")
    again.prepareForTriggerAvailableNow()
    for reader in (lenient, again):
        assert reader.latestOffset(end, ALL) == end
        assert "a" not in reader.reportLatestOffset()["topics"]
        assert ("a", 0) not in read(reader, start, end)
    assert caplog.text.count("topic 'a' was deleted: it was read up to 5") == 2
    await put(tmp_path, "a", 4)
    assert lenient.latestOffset(end, ALL)["topics"]["a"] == 0, "what was created again is read from its beginning"


@pytest.mark.parametrize(
    "options",
    [{"topics": "a,b"}, {}, {"topics": "a,b", "hold": "h"}, {"startingOffsets": '{"a": 2, "b": 3}'}],
    ids=["named", "all", "held", "offsets"],
)
async def test_a_topic_that_is_deleted_while_a_first_batch_is_broken_off(
    tmp_path: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again, Spark asks where the query begins, and then for what the batch on record has."""
    monkeypatch.setattr("aiodq.spark.stream.stream_hold._UNTIL_KNOWN", 0)
    await put_both(tmp_path)
    end = taken(reader_of(tmp_path, **options))
    assert end["topics"] == {"a": 5, "b": 30}
    await delete(tmp_path, "b")
    strict = reader_of(tmp_path, **options)
    with pytest.raises((aiodq.OffsetError, aiodq.StoreNotFoundError, aiodq.InvalidOptionError), match="'b'"):
        strict.partitions(strict.initialOffset(), end)
    lenient = reader_of(tmp_path, failOnDataLoss="false", **options)
    first = 2 if "startingOffsets" in options else 0
    assert read(lenient, lenient.initialOffset(), end) == [("a", number) for number in range(first, 5)]
    assert "topic 'b' was deleted: what a batch was to read of it is gone" in caplog.text
    await put(tmp_path, "a", 1)
    after = lenient.latestOffset(end, ALL)
    assert read(lenient, end, after) == [("a", 5)]
    others = reader_of(tmp_path, topics="a")
    assert read(others, others.initialOffset(), end) == [("a", number) for number in range(5)], "not asked for any more"


async def test_a_name_that_no_topic_ever_had_is_a_mistake_all_the_same(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5)
    end = taken(reader_of(tmp_path))
    wrong = reader_of(tmp_path, topics="a,oders", failOnDataLoss="false")
    for start in (wrong.initialOffset(), end):
        with pytest.raises(aiodq.StoreNotFoundError, match="there is no topic 'oders'"):
            wrong.latestOffset(start, ALL)
    slip = reader_of(tmp_path, startingOffsets='{"oders": 1}', failOnDataLoss="false")
    with pytest.raises(aiodq.InvalidOptionError, match="names the topic 'oders', which is not read"):
        slip.latestOffset(slip.initialOffset(), ALL)


async def test_one_of_several_stores_loses_a_topic(tmp_path: Path) -> None:
    for name in ("one", "two"):
        await put(tmp_path / name, "a", 5)
        await put(tmp_path / name, "b", 5)
    options = {"topics": "a,b", "failOnDataLoss": "false"}
    reader = reader_of(f"{tmp_path}/one,{tmp_path}/two", **options)
    end = taken(reader)
    await delete(tmp_path / "two", "a")
    assert reader.latestOffset(end, ALL) == end
    shutil.rmtree(tmp_path / "two")
    with pytest.raises(aiodq.StoreNotFoundError, match="two"):
        reader.latestOffset(end, ALL)


async def test_a_store_that_is_taken_off_the_list_has_lost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two", "three"):
        await put(tmp_path / name, "a", 5)
    end = taken(reader_of(f"{tmp_path}/one,{tmp_path}/two,{tmp_path}/three"))
    await put(tmp_path / "two", "a", 1)
    fewer = reader_of(f"{tmp_path}/one,{tmp_path}/three")
    between = fewer.latestOffset(end, ALL)
    assert between == end
    assert caplog.text == ""
    back = reader_of(f"{tmp_path}/one,{tmp_path}/two,{tmp_path}/three")
    assert read(back, between, back.latestOffset(between, ALL)) == [("a", 5)]


async def test_a_topic_that_is_deleted_between_two_steps_of_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_both(tmp_path)
    reader = reader_of(tmp_path)
    end = taken(reader)
    look, deleted = StreamTopics.log, list[str]()

    def late(self: StreamTopics, topic: str, stop: int | None = None) -> LogSnapshot:
        if not deleted:
            shutil.rmtree(tmp_path / "a")
            deleted.append("a")
        return look(self, topic, stop)

    monkeypatch.setattr(StreamTopics, "log", late)
    assert reader.latestOffset(end, ALL) == end


@pytest.mark.parametrize("strict", ["true", "false"])
async def test_a_topic_that_is_made_anew_between_two_steps_of_one_look(
    tmp_path: Path, strict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_both(tmp_path)
    look, gone = StreamTopics.log, list[str]()

    def late(self: StreamTopics, topic: str, stop: int | None = None) -> LogSnapshot:
        if not gone:
            gone.append(topic)
            raise aiodq.StoreNotFoundError("not there", str(tmp_path / "a"))
        return look(self, topic, stop)

    monkeypatch.setattr(StreamTopics, "log", late)
    assert taken(reader_of(tmp_path, failOnDataLoss=strict))["topics"] == {"a": 5, "b": 30}


async def test_a_topic_that_is_deleted_while_its_end_is_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_both(tmp_path)
    reader, look = reader_of(tmp_path, failOnDataLoss="false"), StreamReader._within_log

    def late(self: StreamReader, topic: str, *rest: Any) -> int:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        return look(self, topic, *rest)

    monkeypatch.setattr(StreamReader, "_within_log", late)
    assert reader.latestOffset({"v": 1, "topics": {"a": 9, "b": 30}}, ALL)["topics"] == {"a": 9, "b": 30}


async def test_a_topic_that_is_deleted_before_its_bytes_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_both(tmp_path)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    look = StreamReader._within

    def late(self: StreamReader, topic: str, *bounds: int) -> int:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        return look(self, topic, *bounds)

    monkeypatch.setattr(StreamReader, "_within", late)
    assert reader.latestOffset(start, ReadMaxBytes(1 << 20))["topics"] == {"a": 0, "b": 30}
    shutil.rmtree(tmp_path)
    with pytest.raises(aiodq.StoreNotFoundError):
        StreamTopics(stream_options({"path": str(tmp_path)})).is_there("b")


async def test_a_topic_that_is_deleted_before_its_task_reads_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await put_both(tmp_path)
    for strict in ("true", "false"):
        options = read_options({"path": str(tmp_path), "failOnDataLoss": strict})
        splits = [split for split in plan(OsFileSystem(), options) if split.topic == "a"]
        await delete(tmp_path, "a")
        if strict == "true":
            with pytest.raises(aiodq.StoreNotFoundError, match="or it was deleted since then"):
                list(record_batches(OsFileSystem(), splits[0], options))
        else:
            assert list(record_batches(OsFileSystem(), splits[0], options)) == []
            assert "topic 'a' was deleted: left out" in caplog.text
        await put(tmp_path, "a", 7)
    assert list(record_batches(OsFileSystem(), splits[0], options)) == [], "it is another one"
    elsewhere = replace(splits[0], place=splits[0].place._replace(host="elsewhere"))
    with pytest.raises(aiodq.StoreNotFoundError, match="sees another topic there"):
        list(record_batches(OsFileSystem(), elsewhere, options))
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(aiodq.StoreNotFoundError, match="does not see the topic"):
        list(record_batches(OsFileSystem(), elsewhere, options))


@pytest.mark.parametrize("left", [True, False])
async def test_a_topic_that_is_about_to_be_made_anew_when_its_task_reads_it(
    tmp_path: Path, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory has no description yet; or it is deleted once more while the task looks."""
    await put_both(tmp_path)
    options = read_options({"path": str(tmp_path), "topic": "a", "failOnDataLoss": "false"})
    (split,) = plan(OsFileSystem(), options)
    shutil.rmtree(tmp_path / "a")
    if left:
        (tmp_path / "a").mkdir()
    else:
        monkeypatch.setattr(OsFileSystem, "is_directory", lambda _, path: path == str(tmp_path / "a"))
    assert list(record_batches(OsFileSystem(), split, options)) == []


async def test_the_hold_of_a_deleted_topic_keeps_one_that_is_made_anew_whole(tmp_path: Path) -> None:
    await put_both(tmp_path)
    reader = reader_of(tmp_path, hold="daily")
    end = taken(reader)
    await delete(tmp_path, "a")
    assert reader.latestOffset(end, ALL) == end
    reader.commit(end)
    held = read_hold(OsFileSystem(), str(tmp_path), "daily")
    assert held is not None
    assert (held.first("a"), held.first("b")) == (0, 30)


async def test_the_store_of_another_checkpoint(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        await put(tmp_path / name, "a", 30)
    end = taken(reader_of(tmp_path / "one"))
    with pytest.raises(aiodq.OffsetError, match="the checkpoint is that of another store"):
        reader_of(tmp_path / "two").latestOffset(end, ALL)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert reader_of(tmp_path / "copy").latestOffset(end, ALL) == end
    both = f"{tmp_path}/one,{tmp_path}/two"
    end = taken(reader_of(both))
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "three").rename(tmp_path / "two")
    with pytest.raises(aiodq.OffsetError, match="two/a' was deleted and created again"):
        reader_of(both).latestOffset(end, ALL)
    lenient = reader_of(both, failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL)["topics"] == {f"{tmp_path}/one/a": 30, f"{tmp_path}/two/a": 0}


async def test_a_topic_that_comes_before_the_first_batch_and_begins_further_on_is_not_deleted(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    async with aiodq.open(tmp_path, aiodq.StoreOptions(retention=KEEP)) as store:
        await store.topic("b").put_many([b"x"] * 10)
        await store.topic("b").purge()
        await store.topic("b").put_many([b"x"] * 5)
    end = reader.latestOffset(start, ALL)
    assert end["topics"] == {"a": 5, "b": 10}
    assert read(reader, start, end) == [("a", number) for number in range(5)]
    assert read(reader, end, reader.latestOffset(end, ALL)) == [("b", number) for number in range(10, 15)]


@pytest.mark.parametrize("only", [True, False])
async def test_a_topic_that_is_deleted_behind_a_plan(tmp_path: Path, only: bool) -> None:
    await put(tmp_path, "b", 30)
    if not only:
        await put(tmp_path, "a", 5)
    reader = reader_of(tmp_path)
    start, end = reader.initialOffset(), taken(reader)
    async with aiodq.open(tmp_path) as store:
        await store.delete_topic("b")
    for strict in (reader, reader_of(tmp_path)):
        with pytest.raises(aiodq.OffsetError, match="'b' was deleted, and the query had still to read"):
            strict.partitions(start, end)
    rows = [] if only else [("a", number) for number in range(5)]
    assert read(reader_of(tmp_path, failOnDataLoss="false"), start, end) == rows
    shutil.rmtree(tmp_path)
    with pytest.raises(aiodq.StoreNotFoundError):
        reader_of(tmp_path, failOnDataLoss="false").partitions(start, end)


async def test_stores_that_were_moved_go_on_where_they_were(tmp_path: Path) -> None:
    """Those of a stream over several are named in its offsets by their paths."""
    for name in ("one", "two"):
        await put(tmp_path / name, "a", 30)
    end = taken(reader_of(f"{tmp_path}/one,{tmp_path}/two"))
    (tmp_path / "two").rename(tmp_path / "three")
    await put(tmp_path / "three", "a", 5)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    reader = reader_of(f"{tmp_path}/one,{tmp_path}/three,{tmp_path}/copy")
    between = reader.latestOffset(end, ALL)
    assert between["topics"] == {f"{tmp_path}/copy/a": 0, f"{tmp_path}/one/a": 30, f"{tmp_path}/three/a": 30}
    assert read(reader, end, between) == []
    last = reader.latestOffset(between, ALL)
    assert read(reader, between, last) == [("a", number) for number in (*range(30), *range(30, 35))]


async def test_a_checkpoint_that_does_not_say_which_topics_it_means(tmp_path: Path) -> None:
    """As versions without the uuids wrote it; they overlook them in turn."""
    await put(tmp_path, "a", 5)
    reader = reader_of(tmp_path)
    start = {"v": 1, "topics": {"a": 3}}
    end = reader.latestOffset(start, ALL)
    assert read(reader, start, end) == [("a", 3), ("a", 4)]
    assert list(end["ids"]) == ["a"]
    with pytest.raises(aiodq.OffsetError, match="'a' ends at 5, and was read up to 9"):
        reader.latestOffset({"v": 1, "topics": {"a": 9}}, ALL)


async def test_where_nothing_says_what_there_was_it_is_no_empty_topic(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5)
    (path,) = segments(tmp_path / "a")
    path.unlink()
    flip(tmp_path / "a" / "topic.json", 20, 1)
    reader = reader_of(tmp_path)
    with pytest.raises(aiodq.CorruptionError, match=r"topic\.json") as caught:
        plan(OsFileSystem(), read_options({"path": str(tmp_path)}))
    assert "failOnDataLoss=false" in str(caught.value)
    with pytest.raises(aiodq.CorruptionError, match=r"topic\.json"):
        reader.latestOffset(reader.initialOffset(), ALL)
    assert plan(OsFileSystem(), read_options({"path": str(tmp_path), "failOnDataLoss": "false"})) == []
    assert taken(reader_of(tmp_path, failOnDataLoss="false"))["topics"] == {"a": 0}


async def test_a_damaged_description_says_nothing(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5)
    end = taken(reader_of(tmp_path))
    described = (tmp_path / "a" / "topic.json").read_bytes()
    (tmp_path / "a" / "topic.json").write_bytes(b"{}")
    aside = [(path, path.read_bytes()) for path in (tmp_path / "a").glob("*.seg")]
    for path, _ in aside:
        path.unlink()
    lenient = reader_of(tmp_path, failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL) == end
    (tmp_path / "a" / "topic.json").write_bytes(described)
    for path, data in aside:
        path.write_bytes(data)
    assert lenient.latestOffset(end, ALL) == end


async def test_what_was_taken_back_by_a_power_cut(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5)
    end = taken(reader_of(tmp_path))
    ahead = {**end, "topics": {"a": 9}}
    with pytest.raises(aiodq.OffsetError, match=r"ends at 5, and was read up to 9: a power cut .*failOnDataLoss=false"):
        reader_of(tmp_path).latestOffset(ahead, ALL)


async def test_what_is_put_where_a_power_cut_took_something_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those messages have numbers that the query has seen before."""
    await put(tmp_path, "a", 5)
    lenient = reader_of(tmp_path, failOnDataLoss="false")
    ahead = {**taken(lenient), "topics": {"a": 9}}
    between = lenient.latestOffset(ahead, ALL)
    assert between["topics"] == {"a": 5}
    assert "topic 'a' ends at 5, and was read up to 9" in caplog.text
    for reader in (lenient, reader_of(tmp_path)):
        assert read(reader, ahead, between) == []
    await put(tmp_path, "a", 10)
    assert read(lenient, between, lenient.latestOffset(between, ALL)) == [("a", number) for number in range(5, 15)]


async def test_a_log_that_seems_to_end_early_as_it_is_damaged_is_not_read_again(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5, BODY)
    end = taken(reader_of(tmp_path))
    damage_first(tmp_path / "a")
    assert reader_of(tmp_path, failOnDataLoss="false").latestOffset(end, ALL) == end
    with pytest.raises(aiodq.CorruptionError, match=r"is wrong; a read with failOnDataLoss=false, .*; aiodq"):
        reader_of(tmp_path).latestOffset(end, ALL)


@pytest.mark.parametrize("now", [True, False])
async def test_damage_behind_which_nothing_comes_is_told(tmp_path: Path, now: bool) -> None:
    """There is nothing to plan a batch of, which would tell it."""
    await put(tmp_path, "a", 5, BODY)
    damage_first(tmp_path / "a")
    for strict in ("true", "false"):
        reader = reader_of(tmp_path, failOnDataLoss=strict)
        start = reader.initialOffset()
        if now:
            reader.prepareForTriggerAvailableNow()
        if strict == "false":
            assert reader.latestOffset(start, ALL)["topics"] == {"a": 0}
        else:
            with pytest.raises(aiodq.CorruptionError, match=r"is wrong; a read with failOnDataLoss=false, .*; aiodq"):
                reader.latestOffset(start, ALL)


async def test_damage_behind_which_nothing_comes_is_told_also_where_the_beginning_is_missing(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=300, retention=KEEP)) as store:
        topic = store.topic("a")
        topic.channel("c")
        await topic.put(b"x" * 200)
        await topic.put(BODY)
    first, _ = segments(tmp_path / "a")
    first.unlink()
    damage_first(tmp_path / "a")
    reader = reader_of(tmp_path)
    with pytest.raises(aiodq.CorruptionError, match="checksum is wrong"):
        reader.latestOffset(reader.initialOffset(), ALL)


def damage_first(topic: Path) -> None:
    (path,) = segments(topic)
    flip(path, path.read_bytes().index(BODY), 1)


async def test_what_was_purged_before_it_was_read_is_told_and_takes_no_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aiodq.open(tmp_path, aiodq.StoreOptions(retention=KEEP)) as store:
        await store.topic("a").put_many([b"x"] * 1000)
        reader = reader_of(tmp_path, failOnDataLoss="false")
        begun = reader.latestOffset(reader.initialOffset(), ReadMaxRows(300))
        await store.topic("a").purge()
        await store.topic("a").put_many([b"x"] * 50)
    end = reader.latestOffset(begun, ReadMaxRows(30))
    assert end["topics"] == {"a": 1030}
    assert read(reader, begun, end) == [("a", number) for number in range(1000, 1030)]
    assert "topic 'a': left out, as they were deleted before they were read: 300 to 999" in caplog.text


async def test_the_hold_of_a_topic_that_was_made_anew_begins_anew(tmp_path: Path) -> None:
    await put(tmp_path, "a", 30)
    end = taken(reader := reader_of(tmp_path, hold="daily"))
    reader.commit(end)
    await put(tmp_path, "a", 10, anew=True)
    lenient = reader_of(tmp_path, hold="daily", holdAdvance="manual", failOnDataLoss="false")
    lenient.latestOffset(end, ALL)
    held = read_hold(OsFileSystem(), str(tmp_path), "daily")
    assert held is not None
    assert held.offsets == {"a": 0}


async def test_of_a_topic_that_was_made_anew_everything_is_behind(tmp_path: Path) -> None:
    await put(tmp_path / "store", "a", 30)
    end = taken(reader_of(tmp_path / "store"))
    await put(tmp_path / "store", "a", 40)
    checkpoint = checkpoint_of(tmp_path / "checkpoint", end)
    assert [each.lag for each in lag(checkpoint, tmp_path / "store")] == [40]
    await put(tmp_path / "store", "a", 50, anew=True)
    assert [(each.taken, each.lag) for each in lag(checkpoint, tmp_path / "store")] == [(0, 50)]


async def test_where_a_query_begins_at_the_end_is_noted_before_anything_is_read(tmp_path: Path) -> None:
    """Spark asks where it begins once more to read its first batch, and again where that was interrupted."""
    await put(tmp_path, "a", 5)
    await put(tmp_path, "b", 7)
    options = {"startingOffsets": '{"a": "latest", "b": 3}', "hold": "daily"}
    reader = reader_of(tmp_path, **options)
    start = reader.initialOffset()
    await put(tmp_path, "a", 2)
    end = reader.latestOffset(start, ALL)
    assert end["topics"] == {"a": 7, "b": 7}
    await put(tmp_path, "a", 3)
    assert reader.initialOffset() == start
    for each in (reader, reader_of(tmp_path, **options)):
        assert read(each, each.initialOffset(), end) == [("b", number) for number in range(3, 7)]
    held = read_hold(OsFileSystem(), str(tmp_path), "daily")
    assert held is not None
    assert held.offsets == {"a": 5, "b": 3}
    assert read(reader, end, reader.latestOffset(end, ALL)) == [("a", number) for number in range(7, 10)]


async def test_a_first_batch_that_lies_before_where_the_query_begins_by_now_is_empty(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5)
    options = {"startingTimestamp": "2199-01-01T00:00:00+00:00"}
    end = taken(reader_of(tmp_path, **options))
    await put(tmp_path, "a", 5)
    again = reader_of(tmp_path, **options)
    assert read(again, again.initialOffset(), end) == []


@pytest_spark
def test_a_query_over_a_topic_that_was_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    path, target = tmp_path / "store", str(tmp_path / "out")

    def run(strict: str) -> None:
        stream = spark.readStream.format("aiodq").option("failOnDataLoss", strict).load(str(path))
        rows = stream.selectExpr("offset", "CAST(body AS STRING) AS text").writeStream.format("parquet")
        rows = rows.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert begun(partial(rows.start, target)).awaitTermination(250)

    asyncio.run(put(path, "a", 20, b"old"))
    run("true")
    asyncio.run(put(path, "a", 30, b"new", anew=True))
    with pytest.raises(StreamingQueryException, match="OffsetError: topic 'a' was deleted and created again"):
        run("true")
    run("false")
    found = sorted((row["text"], row["offset"]) for row in spark.read.parquet(target).collect())
    assert found == [("new", number) for number in range(30)] + [("old", number) for number in range(20)]


@pytest_spark
def test_a_query_that_begins_at_the_end_while_messages_come(spark: SparkSession, tmp_path: Path) -> None:
    """Between the looks with which Spark begins, messages come; none is missed and none breaks the query."""
    path, target = tmp_path / "store", str(tmp_path / "out")

    async def scenario() -> int:
        async with aiodq.open(path, aiodq.StoreOptions(retention=KEEP)) as store:
            topic, over = store.topic("a"), asyncio.Event()
            await topic.put(b"before")

            async def produce() -> int:
                count = 0
                while not over.is_set():
                    await topic.put(b"x")
                    count += 1
                    await asyncio.sleep(0.002)
                return count

            producer = asyncio.create_task(produce())
            writer = (
                spark.readStream.format("aiodq").option("startingOffsets", "latest").load(str(path))
                .selectExpr("offset").writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
            )  # fmt: skip
            query = await asyncio.to_thread(begun, partial(writer.start, target))
            try:
                while not any(batch["numInputRows"] for batch in query.recentProgress):
                    assert query.exception() is None
                    await asyncio.sleep(0.05)
                over.set()
                count = await producer
                await asyncio.to_thread(query.processAllAvailable)
            finally:
                query.stop()
            return count

    count = asyncio.run(scenario())
    found = sorted(row["offset"] for row in spark.read.parquet(target).collect())
    assert found
    assert found == list(range(found[0], count + 1))
